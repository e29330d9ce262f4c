// A change of the image that is drawn by hand: painted in cells, sent whenever it or its length changes.

const MOST_CELLS = 16; // on either side of the drawing
const pad = { rows: 0, columns: 0, cells: [], row: 0, column: 0, painting: false, number: 0, waiting: false };

function startDrawing() {
  const { width, height } = state.network, cell = Math.max(1, Math.max(width, height) / MOST_CELLS);
  pad.rows = Math.ceil(height / cell);
  pad.columns = Math.ceil(width / cell);
  at("hand-eps").max = state.end;
  at("hand-eps").value = Math.min(state.end, 0.9 * (state.proof.radius || NO_RADIUS));
  setPicture("hand-before", state.proof.picture);
  clearDrawing();
  showHandEps();
}

function clearDrawing() {
  pad.cells = Array.from({ length: pad.rows }, () => new Array(pad.columns).fill(0));
  pad.number += 1;
  drawPad();
  setPicture("hand-after", state.proof.picture, "The image, not changed yet");
  at("hand-says").textContent = className(state.proof.prediction);
  at("hand-words").textContent = "Nothing is drawn yet.";
  at("hand-words").className = "verdict";
}

/** Draw the cells over the image: light ones, dark ones, and the cell that the keys would paint. */
function drawPad() {
  const rect = (row, column, kind) => svg("rect", { x: column, y: row, width: 1, height: 1, class: kind });
  const painted = pad.cells.flatMap((line, row) => line.map((value, column) =>
    value ? rect(row, column, value > 0 ? "lighter" : "darker") : null)).filter(Boolean);
  at("pad").setAttribute("viewBox", `0 0 ${pad.columns} ${pad.rows}`);
  at("pad").replaceChildren(...painted, rect(pad.row, pad.column, "cursor"));
}

function paint(row, column, value) {
  if (row < 0 || column < 0 || row >= pad.rows || column >= pad.columns || pad.cells[row][column] === value) return;
  pad.cells[row][column] = value;
  drawPad();
  sendDrawing();
}

const brush = () => Number(document.querySelector("[name=brush]:checked").value);

/** Send the drawing; while an answer is awaited, only the latest one waits. */
async function sendDrawing() {
  pad.number += 1;
  if (pad.waiting) return;
  pad.waiting = true;
  for (let sent = -1; sent !== pad.number;) {
    sent = pad.number;
    const { proof } = state, eps = Number(at("hand-eps").value);
    if (!pad.cells.flat().some(Boolean)) { clearDrawing(); break; }
    if (!(eps > 0)) break;
    try {
      const response = await ask(address("/drawing"), asJson({ ...state.chosen, eps, change: pad.cells }));
      const answer = await response.json();
      if (proof === state.proof && sent === pad.number) showDrawing(answer);
    } catch (error) {
      if (proof === state.proof) complain(error);
    }
  }
  pad.waiting = false;
}

function showDrawing(answer) {
  const { proof } = state, same = answer.prediction === proof.prediction;
  const inside = proof.radius === null || answer.distance < proof.radius;
  const is = className(answer.prediction);
  at("hand-after").src = answer.picture;
  at("hand-after").alt = `The image with your change, which the network calls ${is}`;
  at("hand-says").textContent = is;
  const lead = `${answer.margin_before.toFixed(2)} to ${answer.margin.toFixed(2)}`;
  const length = `Your change has the length ${nearly(answer.distance)}`;
  if (!same && inside) {
    at("hand-words").textContent = `${length}, inside the radius, and the answer is ${is}: the certificate is false. Please report it.`;
  } else if (!same) {
    at("hand-words").textContent = `You did it: ${length.toLowerCase()}, and the network says ${is}.`;
  } else {
    at("hand-words").textContent = `${length}; the lead of ${is} goes from ${lead}. ` +
      (inside ? "Inside the radius no drawing can change the answer." : "Beyond the radius one may.");
  }
  at("hand-words").className = `verdict ${same ? (inside ? "held" : "") : "broken"}`;
  if (!same) note({ success: true, distance: answer.distance });
}

function showHandEps() {
  const { radius } = state.proof, value = Number(at("hand-eps").value);
  const share = (part) => `${(100 * Math.min(1, part / state.end)).toFixed(2)}%`;
  at("hand-eps").style.setProperty("--proved", share(radius === null ? state.end : radius));
  at("hand-value").textContent = nearly(value);
  at("hand-eps").setAttribute("aria-valuetext", `${nearly(value)}, ${
    radius === null || value <= radius ? "inside" : "beyond"} the certified radius`);
}

function cellUnder(event) {
  const box = at("pad").getBoundingClientRect();
  return [Math.floor(((event.clientY - box.top) / box.height) * pad.rows),
    Math.floor(((event.clientX - box.left) / box.width) * pad.columns)];
}

at("pad").addEventListener("pointerdown", (event) => {
  if (!state.proof) return;
  at("pad").setPointerCapture(event.pointerId);
  pad.painting = true;
  [pad.row, pad.column] = cellUnder(event);
  paint(pad.row, pad.column, brush());
});
at("pad").addEventListener("pointermove", (event) => {
  if (pad.painting) paint(...cellUnder(event), brush());
});
for (const kind of ["pointerup", "pointercancel"]) at("pad").addEventListener(kind, () => { pad.painting = false; });
at("pad").addEventListener("keydown", (event) => {
  const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
  if (!state.proof || !(move || event.key === " " || event.key === "Enter")) return;
  event.preventDefault();
  if (move) {
    pad.row = Math.min(pad.rows - 1, Math.max(0, pad.row + move[0]));
    pad.column = Math.min(pad.columns - 1, Math.max(0, pad.column + move[1]));
    drawPad();
  } else {
    paint(pad.row, pad.column, pad.cells[pad.row][pad.column] === brush() ? 0 : brush());
  }
});
at("hand-clear").addEventListener("click", () => { if (state.proof) clearDrawing(); });
at("hand-eps").addEventListener("input", () => {
  if (!state.proof) return;
  showHandEps();
  sendDrawing();
});
at("hand-eps").addEventListener("keydown", (event) => stepByKey(event, at("hand-eps")));
