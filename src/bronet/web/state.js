// What the page knows, and how it asks the server.

const MAX_BYTES = 8 * 2 ** 20;
const MAX_RIVALS = 10;
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
let comparisonTimer = 0, comparing = null;

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
const post = (type, body) => ({ method: "POST", headers: { "content-type": type }, body });
const asJson = (body) => post("application/json", JSON.stringify(body));
const address = (what = "") => `/api/runs/${state.run}${what}`;
const className = (number) => state.network.classes[number];

function complain(error) {
  const line = at("trouble");
  line.textContent = error ? error.message : "";
  line.hidden = !error;
  if (error) line.scrollIntoView({ block: "center" });
}

/** Move a slider by a hundredth of its range, or by a tenth: with any step its own keys move too little. */
function stepByKey(event, slider) {
  const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[event.key];
  if (!step || !state.proof) return;
  event.preventDefault();
  slider.value = Math.max(0, Number(slider.value) + (step * state.end) / 100);
  slider.dispatchEvent(new Event("input"));
}
