// The page: what is chosen, what was answered, and what follows from a click or a key.

const MOST_BYTES = 8 * 2 ** 20;
const MOST_RIVALS = 10;
const SMOOTH_FROM = 96; // images of this many pixels are drawn smooth, smaller ones as squares
const PATIENCE = 250; // milliseconds on an image before its noise is looked for
const LONG_NAME = 9; // letters
const RESTARTS = 2;
const REACH = 3; // the ruler ends at this many radii, or at the least distance
const LEAST_REACH = 0.3;
const NO_RADIUS = 0.1; // what the ruler takes for the radius where nothing, or everything, is proved

const at = (id) => document.getElementById(id);
const state = { runs: [], run: 0, network: null, chosen: null, proof: null, found: null, searched: 0, end: 1 };
let attacking = null; // what ends the attack in progress
let noiseTimer = 0, noiseSearch = null;

/** Ask the server; what it refuses is an error with a sentence for people. */
async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is it still running?");
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  throw new Error(sentence(answer.message || "The server failed; its terminal says why."));
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
const asJson = (body) => ({ method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
const address = (what = "") => `/api/runs/${state.run}${what}`;
const className = (number) => state.network.classes[number];

function complain(error) {
  const line = at("trouble");
  line.textContent = error ? error.message : "";
  line.hidden = !error;
  if (error) line.scrollIntoView({ block: "center" });
}

// ---- choosing an image

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
      if (state.proof && !wanted) noiseTimer = setTimeout(showNoise, PATIENCE); // for the image that stays
    }
  }
  asking = false;
}

async function look(wish) {
  stopEverything();
  const { run } = state;
  let response;
  if (wish.file) {
    if (wish.file.size > MOST_BYTES) throw new Error(`This file is too large: at most ${MOST_BYTES / 2 ** 20} MB.`);
    response = await ask(address("/upload"), { method: "POST", headers: { "content-type": "application/octet-stream" }, body: wish.file });
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
const veil = (change) => { depth = Math.max(0, depth + change); document.body.classList.toggle("dragging", depth > 0); };
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

// ---- what is proved

function showProof() {
  const { proof } = state;
  const label = "sample" in state.chosen ? state.network.labels[state.chosen.sample] : null;
  setPicture("picture", proof.picture, `The chosen image, which the network calls ${className(proof.prediction)}`);
  at("prediction").textContent = className(proof.prediction);
  at("prediction").classList.toggle("long", className(proof.prediction).length > LONG_NAME);
  at("truth").textContent = label === null ? "A prediction: the true class of your image is not known here."
    : label === proof.prediction ? "This is the true class." : `Mistaken: the true class is ${className(label)}.`;
  at("radius").textContent = atLeast(proof.radius);
  at("meaning").textContent = proof.radius === 0
    ? "Two classes are too close to tell apart with certainty: nothing is proved of this image."
    : `Every image closer than this (l2 distance, pixels in [0, 1]) is provably called ${className(proof.prediction)} as well.`;
  waitForNoise();
  at("found").hidden = true;
  at("verdict").textContent = "";
  at("verdict").className = "verdict";
  at("go").disabled = false;
  state.end = Math.min(proof.farthest, Math.max(LEAST_REACH, REACH * (proof.radius || NO_RADIUS)));
  at("budget").max = state.end;
  setBudget(Math.min(state.end, 0.9 * (proof.radius || NO_RADIUS)));
  showRivals();
  drawAll();
}

function setPicture(id, source, description) {
  const picture = at(id);
  picture.src = source;
  if (description) picture.alt = description;
  picture.classList.toggle("smooth", state.network.width >= SMOOTH_FROM);
  picture.classList.remove("fresh");
  void picture.offsetWidth; // begins the animation anew
  picture.classList.add("fresh");
}

function showRivals() {
  const rivals = state.proof.rivals.slice(0, MOST_RIVALS);
  const longest = Math.max(...rivals.map((rival) => rival.radius || 0), 1e-300);
  at("rivals").replaceChildren(...rivals.map((rival) => {
    const bar = html("i", "");
    bar.style.width = `${rival.radius === null ? 55 : (55 * rival.radius) / longest}%`;
    const meter = html("div", "meter", bar, atLeast(rival.radius));
    return html("tr", "", html("td", "", className(rival.class)), html("td", "", meter), html("td", "", rival.margin.toFixed(3)));
  }));
  const more = state.proof.rivals.length - rivals.length;
  at("rivals-more").textContent = more ? `The other ${more} classes are farther away.` : "";
}

function waitForNoise() {
  for (const id of ["noise-change", "noise-after"]) at(id).removeAttribute("src");
  at("noise-size").textContent = state.proof.radius ? "looking for the worst noise…" : "";
  at("noise-answer").textContent = "";
}

/** Look for the worst noise of the size of the radius, and show it. */
async function showNoise() {
  const { proof } = state;
  if (!proof.radius || at("noise-after").hasAttribute("src")) return;
  noiseSearch = new AbortController();
  try {
    const result = await attack({ eps: proof.radius, restarts: 1 }, noiseSearch.signal, () => {});
    if (proof !== state.proof) return;
    setPicture("noise-change", result.noise);
    setPicture("noise-after", result.picture, `The image with the noise, which the network calls ${className(result.found)}`);
    const length = atLeast(Math.min(result.distance, proof.radius));
    at("noise-size").replaceChildren("noise of length ", html("b", "", length), magnified(result.gain));
    at("noise-answer").replaceChildren(result.success ? "called " : "provably still ", html("b", "", className(result.found)));
    note(result);
  } catch (error) {
    if (error.name !== "AbortError") complain(error);
  }
}

const magnified = (gain) => (gain > 1.05 ? `, shown ${gain < 9.95 ? gain.toFixed(1) : Math.round(gain)}\u00a0× stronger` : "");

// ---- attacking

/** Run an attack on the chosen image; `progress` hears how far it is. */
async function attack({ eps, restarts }, signal, progress) {
  const response = await ask(address("/attack"), { ...asJson({ ...state.chosen, eps, restarts }), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The server ended the attack.");
    text += value;
    const lines = text.split("\n");
    text = lines.pop();
    for (const line of lines) {
      const answer = JSON.parse(line);
      if (answer.message) throw new Error(sentence(answer.message));
      if (answer.result) return answer.result;
      progress(answer.share);
    }
  }
}

/** Keep the nearest other answer that is known, and how far was searched in vain. */
function note(result) {
  if (result.success && (state.found === null || result.distance < state.found)) state.found = result.distance;
  if (!result.success) state.searched = Math.max(state.searched, result.eps);
  drawAll();
}

async function runAttack() {
  const { proof } = state, eps = budget();
  if (!(eps > 0)) return;
  attacking = new AbortController();
  at("go").textContent = "Stop";
  at("progress").hidden = false;
  at("progress").value = 0;
  at("verdict").textContent = "";
  at("verdict").className = "verdict";
  try {
    const result = await attack({ eps, restarts: RESTARTS }, attacking.signal, (share) => { at("progress").value = share; });
    if (proof === state.proof) showResult(result);
  } catch (error) {
    if (error.name !== "AbortError") say(error.message, "");
  }
  attacking = null;
  at("go").textContent = "Attack";
  at("progress").hidden = true;
}

function say(text, kind) {
  at("verdict").textContent = text;
  at("verdict").className = `verdict ${kind}`;
}

function showResult(result) {
  const { proof } = state;
  const was = className(proof.prediction), is = className(result.found);
  at("found").hidden = !result.success;
  if (result.refutes) {
    say(`The certificate is false: at distance ${atMost(result.distance)}, inside the radius, the answer is ${is}. Please report this.`, "broken");
  } else if (result.success) {
    const times = proof.radius ? `, ${(result.distance / proof.radius).toFixed(2)} times the certified radius` : "";
    say(`Found: ${atMost(result.distance)} away${times}, the network says ${is}. What lies between the two is not known.`, "broken");
  } else if (proof.radius === null || result.eps <= proof.radius) {
    say(`Failed, as it must: within ${atLeast(result.eps)} every image is provably called ${was}.`, "held");
  } else {
    say(`Nothing was found within ${nearly(result.eps)}. Beyond the radius of ${atLeast(proof.radius)} that proves nothing.`, "");
  }
  if (result.success) {
    setPicture("found-before", proof.picture);
    setPicture("found-change", result.noise);
    setPicture("found-after", result.picture, `The image that was found, which the network calls ${is}`);
    at("found-was").replaceChildren("called ", html("b", "", was));
    at("found-size").replaceChildren("change of length ", html("b", "", atMost(result.distance)), magnified(result.gain));
    at("found-answer").replaceChildren("called ", html("b", "", is));
  }
  note(result);
}

const budget = () => Number(at("budget").value);

function setBudget(value) {
  at("budget").value = value;
  showBudget();
}

function showBudget() {
  const { proof } = state, value = budget();
  const inside = proof.radius === null || value <= proof.radius;
  at("budget-value").textContent = nearly(value);
  at("budget-side").textContent = inside ? "inside the radius: it must fail" : "beyond the radius: it may succeed";
  at("budget").setAttribute("aria-valuetext", `${nearly(value)}, ${inside ? "inside" : "beyond"} the certified radius`);
}

at("budget").addEventListener("input", showBudget);
at("budget").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[event.key];
  if (event.key === "Enter") at("go").click();
  if (!step || !state.proof) return;
  event.preventDefault();
  setBudget(Math.max(0, budget() + (step * state.end) / 100));
});
for (const button of document.querySelectorAll("[data-factor]")) {
  button.addEventListener("click", () => {
    if (state.proof) setBudget(Math.min(state.end, Number(button.dataset.factor) * (state.proof.radius || NO_RADIUS)));
  });
}
at("go").addEventListener("click", () => (attacking ? attacking.abort() : runAttack()));

// ---- curves, layers, runs

function drawAll() {
  if (state.proof) drawRuler(at("ruler"), { end: state.end, radius: state.proof.radius, found: state.found, searched: state.searched });
  showCurves();
}

function showCurves() {
  const radius = state.proof ? state.proof.radius : null;
  const runs = state.runs.map((run, number) => ({ ...run, number }));
  const drawn = runs.filter((run) => run.curve.length);
  at("curve").style.display = drawn.length ? "" : "none";
  if (drawn.length) drawCurves(at("curve"), drawn, radius);
  const entries = runs.filter((run) => run.remark || runs.length > 1).map((run) =>
    html("li", "", ...(run.curve.length ? [legendLine(run.number)] : []), run.remark ? `${run.name}: ${run.remark}` : run.name));
  at("curve-legend").replaceChildren(...entries);
  const own = state.runs[state.run];
  at("curve-text").textContent = !own.curve.length || !radius ? ""
    : `${(100 * shareBeyond(own.curve, radius)).toFixed(1)} % of ${own.images.toLocaleString("en")} test images are right with a larger radius than this image.`;
}

function showNetwork() {
  const { network } = state, run = state.runs[state.run];
  at("about").textContent = `${state.runs.length > 1 ? "" : `${run.name}: `}${run.recipe}, ${run.data}`;
  at("size").textContent = `${network.width} × ${network.height}`;
  at("lipschitz").textContent = network.lipschitz;
  at("layers-count").textContent = `${network.layers.length} layers`;
  at("layers").replaceChildren(...network.layers.map((layer) => {
    const kind = html("td", "", layer.kind);
    if (layer.remark) kind.append(html("span", "note", layer.remark));
    return html("tr", "", html("td", "", html("code", "", layer.name)), kind, html("td", "", layer.bound));
  }));
}

async function openRun(number) {
  stopEverything();
  const { file, run: before } = state;
  const main = document.querySelector("main");
  state.run = number;
  at("about").textContent = "opening and proving…";
  main.setAttribute("aria-busy", "true");
  main.inert = true;
  try {
    const network = await (await ask(address())).json();
    if (number !== state.run) return;
    state.network = network;
    complain(null);
  } catch (error) {
    state.run = before;
    at("run").value = before;
    at("about").textContent = "";
    complain(error);
    return;
  } finally {
    main.setAttribute("aria-busy", "false");
    main.inert = false;
  }
  showNetwork();
  showSamples();
  if (file) choose({ file });
  else if (state.network.labels.length) choose({ sample: 0 });
}

async function start() {
  try {
    state.runs = (await (await ask("/api/runs")).json()).runs;
  } catch (error) {
    complain(error);
    return;
  }
  const several = state.runs.length > 1;
  at("run").replaceChildren(...state.runs.map((run, number) => {
    const option = html("option", "", run.name);
    option.value = number;
    return option;
  }));
  at("run").hidden = at("run-label").hidden = !several;
  at("run").addEventListener("change", () => openRun(Number(at("run").value)));
  new ResizeObserver(drawAll).observe(at("curve-legend").parentElement);
  await openRun(0);
}

start();
