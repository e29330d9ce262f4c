// One attack on two networks: the ordinary one and the certified one.

const SETTLED = 150; // milliseconds without a move of the slider before both are attacked
const NO_MOVE = 1e-9;

/** Attack both networks, show what happened, and return what was found of the certified one. */
async function compare(wish, signal) {
  const { proof } = state;
  at("duel").setAttribute("aria-busy", "true");
  const result = await search("/comparison", wish, signal, () => {});
  if (proof !== state.proof) return null;
  if (Math.abs(wish.eps - duelBudget()) < NO_MOVE) { // else the slider was moved meanwhile
    at("duel").setAttribute("aria-busy", "false");
    showOpponent("ordinary", result.ordinary, null);
    showOpponent("certified", result.certified, proof.radius);
  }
  return result.certified;
}

/** Show one network after the attack; `radius` is what is proved of it, if anything is. */
function showOpponent(name, result, radius) {
  const proved = radius !== null && result.eps <= radius;
  const now = className(result.found), was = className(result.prediction);
  setPicture(`${name}-after`, result.picture, `The attacked image, which this network calls ${now}`);
  at(`${name}-says`).textContent = now;
  at(`${name}-side`).className = `opponent ${result.success ? "fell" : proved ? "held" : ""}`;
  const line = at(`${name}-outcome`);
  const [verdict, why] = result.success
    ? ["Fooled.", ` It said ${was}; a change of ${atMost(result.distance)} was enough.`]
    : proved ? ["Cannot be fooled.", ` Proved up to ${atLeast(radius)}: no search can succeed.`]
      : ["Not fooled", ` by this search up to ${nearly(result.eps)}. That proves nothing.`];
  line.replaceChildren(html("b", "", verdict), why);
}

/** Make the comparison ready for the image that was chosen; its radius is the first budget. */
function startComparison() {
  if (!state.network.comparison) return;
  at("duel-budget").max = state.end;
  at("duel-budget").value = Math.min(state.end, state.proof.radius || NO_RADIUS);
  at("duel").setAttribute("aria-busy", "true");
  showDuelBudget();
  if (!state.proof.radius) compareSoon();
}

const duelBudget = () => Number(at("duel-budget").value);

function showDuelBudget() {
  const { radius } = state.proof, value = duelBudget(), slider = at("duel-budget");
  const share = (part) => `${(100 * Math.min(1, part / state.end)).toFixed(2)}%`;
  slider.style.setProperty("--proved", share(radius === null ? state.end : radius));
  at("duel-value").textContent = nearly(value);
  const words = radius === null || value < radius * (1 - 1e-6) ? "inside the certified radius"
    : value <= radius * (1 + 1e-6) ? "the certified radius of this image" : "beyond the certified radius: both may fall";
  at("duel-words").textContent = words;
  slider.setAttribute("aria-valuetext", `${nearly(value)}, ${words}`);
}

function compareSoon() {
  clearTimeout(comparisonTimer);
  comparisonTimer = setTimeout(compareNow, SETTLED);
}

async function compareNow() {
  if (comparing) comparing.abort();
  const eps = duelBudget();
  if (!(eps > 0)) return;
  comparing = new AbortController();
  try {
    await compare({ eps, restarts: 1 }, comparing.signal);
  } catch (error) {
    if (error.name !== "AbortError") complain(error);
  }
}

/** Show what is known of both networks before any image is chosen. */
function showComparison() {
  const { comparison } = state.network;
  at("compare").hidden = !comparison;
  if (!comparison) return;
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const { ordinary } = comparison;
  const sizes = (network) => `${percent(network.accuracy)} of the test images right, ` +
    `${network.parameters.toLocaleString("en")} parameters`;
  at("ordinary-about").textContent = sizes(ordinary);
  at("certified-about").textContent = sizes(comparison);
  at("duel-all").replaceChildren("Of all ", String(comparison.images), " test images, each attacked within its certified radius, the attack fools ",
    html("b", "", `the ordinary network on ${percent(comparison.beaten)}`), " and, provably, ",
    html("b", "", "the certified one on none"), ".");
}

at("duel-budget").addEventListener("input", () => {
  if (!state.proof) return;
  showDuelBudget();
  at("duel").setAttribute("aria-busy", "true");
  compareSoon();
});
at("duel-budget").addEventListener("keydown", (event) => stepByKey(event, at("duel-budget")));
