// Tables that can be sorted by a click on a heading, or by Enter on it. Numbers sort as numbers, the largest first.
for (const table of document.querySelectorAll(".sortable table")) {
  table.querySelectorAll("th").forEach((heading, column) => {
    const value = (row) => row.cells[column].innerText;
    const units = { B: 1000, h: 3600, min: 60 }; // of parameters in millions, and of times in seconds
    const number = (text) => {
      const [, digits, unit] = text.match(/^([\d.]+)\s*(B|h|min)?/) || [];
      return digits === undefined ? NaN : Number(digits) * (units[unit] || 1);
    };
    const sort = () => {
      const rows = [...table.tBodies[0].rows];
      const first = heading.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
      const sign = first === "descending" ? -1 : 1;
      const isNumeric = rows.some((row) => !Number.isNaN(number(value(row))));
      rows.sort((one, two) => {
        if (!isNumeric) return -sign * value(one).localeCompare(value(two));
        const [a, b] = [number(value(one)), number(value(two))];
        return Number.isNaN(a) - Number.isNaN(b) || sign * (a - b) || 0; // what has no number comes last
      });
      for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", first);
      table.tBodies[0].append(...rows);
    };
    heading.tabIndex = 0;
    heading.addEventListener("click", sort);
    heading.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}
