// What is proved of the image.

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
    : "Every image closer than this (l2 distance, pixels in [0, 1]) is provably called " +
      `${className(proof.prediction)} as well.`;
  waitForNoise();
  at("found").hidden = true;
  at("verdict").textContent = "";
  at("verdict").className = "verdict";
  at("go").disabled = false;
  state.end = Math.min(proof.farthest, Math.max(LEAST_REACH, REACH * (proof.radius || NO_RADIUS)));
  at("budget").max = state.end;
  setBudget(Math.min(state.end, 0.9 * (proof.radius || NO_RADIUS)));
  startComparison();
  startDrawing();
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
  const rivals = state.proof.rivals.slice(0, MAX_RIVALS);
  const longest = Math.max(...rivals.map((rival) => rival.radius || 0), 1e-300);
  at("rivals").replaceChildren(...rivals.map((rival) => {
    const bar = html("i", "");
    bar.style.width = `${rival.radius === null ? 55 : (55 * rival.radius) / longest}%`;
    const meter = html("div", "meter", bar, atLeast(rival.radius));
    const cells = [className(rival.class), meter, rival.margin.toFixed(3)].map((content) => html("td", "", content));
    return html("tr", "", ...cells);
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
    const wish = { eps: proof.radius, restarts: 1 };
    const show = (share) => {
      if (proof === state.proof) at("noise-size").textContent = `looking for the worst noise… ${Math.round(100 * share)} %`;
    };
    const result = state.network.comparison ? await compare(wish, noiseSearch.signal)
      : await search("/attack", wish, noiseSearch.signal, show);
    if (proof !== state.proof || !result) return;
    setPicture("noise-change", result.noise);
    const found = className(result.found);
    setPicture("noise-after", result.picture, `The image with the noise, which the network calls ${found}`);
    const length = atLeast(Math.min(result.distance, proof.radius));
    at("noise-size").replaceChildren("noise of length ", html("b", "", length), magnified(result.gain));
    at("noise-answer").replaceChildren(result.success ? "called " : "provably still ", html("b", "", found));
    note(result);
  } catch (error) {
    if (error.name !== "AbortError") complain(error);
  }
}

function magnified(gain) {
  return gain > 1.05 ? `, shown ${gain < 9.95 ? gain.toFixed(1) : Math.round(gain)}\u00a0× stronger` : "";
}
