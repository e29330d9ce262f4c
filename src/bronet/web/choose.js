// Choosing an image: a click, a key, a file.

let wanted = null, asking = false;

/** Show an image: a sample, or a file. Only the latest wish is sent, one at a time. */
async function choose(wish) {
  wanted = wish;
  if (asking) return;
  asking = true;
  while (wanted) {
    const current = wanted;
    wanted = null;
    try {
      await look(current);
    } catch (error) {
      complain(error);
      if (state.proof && !wanted) { // for the image that stays
        noiseTimer = setTimeout(showNoise, PATIENCE);
        if (at("duel").getAttribute("aria-busy") === "true") compareSoon();
      }
    }
  }
  asking = false;
}

async function look(wish) {
  stopEverything();
  const { run } = state;
  let response;
  if (wish.file) {
    if (wish.file.size > MAX_BYTES) throw new Error(`This file is too large: at most ${MAX_BYTES / 2 ** 20} MB.`);
    response = await ask(address("/upload"), post("application/octet-stream", wish.file));
  } else {
    response = await ask(address("/proof"), asJson({ sample: wish.sample }));
  }
  const proof = await response.json();
  if (run !== state.run) return;
  complain(null);
  state.proof = proof;
  state.chosen = wish.file ? { image: proof.picture.split(",")[1] } : { sample: wish.sample };
  state.file = wish.file || null;
  state.found = null;
  state.searched = 0;
  mark(wish.file ? -1 : wish.sample);
  showProof();
  if (!wanted) noiseTimer = setTimeout(showNoise, PATIENCE);
}

function stopEverything() {
  clearTimeout(noiseTimer);
  clearTimeout(comparisonTimer);
  if (comparing) comparing.abort();
  if (noiseSearch) noiseSearch.abort();
  if (attacking) attacking.abort();
}

function showSamples() {
  const { labels, sheet } = state.network;
  const tiles = labels.map((label, number) => {
    const tile = html("div", "sample");
    tile.setAttribute("role", "option");
    tile.setAttribute("aria-label", `Image ${number + 1}: ${className(label)}`);
    tile.setAttribute("aria-selected", "false");
    tile.tabIndex = -1;
    tile.style.backgroundImage = `url(${sheet.picture})`;
    tile.style.backgroundSize = `${sheet.columns * 100}% ${sheet.rows * 100}%`;
    const place = (index, count) => (count > 1 ? (100 * index) / (count - 1) : 0);
    tile.style.backgroundPosition =
      `${place(number % sheet.columns, sheet.columns)}% ${place(Math.floor(number / sheet.columns), sheet.rows)}%`;
    tile.addEventListener("click", () => choose({ sample: number }));
    return tile;
  });
  at("samples").replaceChildren(...tiles);
  if (tiles.length) tiles[0].tabIndex = 0;
  at("samples-remark").textContent = sentence(`no sample images: ${state.network.remark}`);
  at("samples-remark").hidden = !state.network.remark;
}

function mark(chosen) {
  [...at("samples").children].forEach((tile, number) => {
    tile.setAttribute("aria-selected", String(number === chosen));
    tile.tabIndex = number === Math.max(chosen, 0) ? 0 : -1;
  });
}

at("samples").addEventListener("keydown", (event) => {
  const tiles = [...at("samples").children];
  const here = tiles.indexOf(document.activeElement);
  if (here < 0) return;
  const columns = tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length;
  const moves = { ArrowRight: here + 1, ArrowLeft: here - 1, ArrowDown: here + columns, ArrowUp: here - columns,
    Home: 0, End: tiles.length - 1, Enter: here, " ": here };
  if (!(event.key in moves)) return;
  event.preventDefault();
  const there = moves[event.key];
  if (there < 0 || there >= tiles.length) return;
  tiles[there].focus();
  choose({ sample: there });
});

at("open").addEventListener("click", () => at("file").click());
at("file").addEventListener("change", () => {
  if (at("file").files.length) choose({ file: at("file").files[0] });
  at("file").value = "";
});
let depth = 0;
function veil(change) {
  depth = Math.max(0, depth + change);
  document.body.classList.toggle("dragging", depth > 0);
}

addEventListener("dragenter", (event) => { event.preventDefault(); veil(1); });
addEventListener("dragleave", () => veil(-1));
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  veil(-depth);
  if (event.dataTransfer.files.length) choose({ file: event.dataTransfer.files[0] });
});
addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) choose({ file: event.clipboardData.files[0] });
});
