// Attacking the image.

/** Run a search on the chosen image, "/attack" or "/comparison"; `progress` hears how far it is. */
async function search(what, { eps, restarts }, signal, progress) {
  const response = await ask(address(what), { ...asJson({ ...state.chosen, eps, restarts }), signal });
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
    const show = (share) => { at("progress").value = share; };
    const result = await search("/attack", { eps, restarts: RESTARTS }, attacking.signal, show);
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
  const was = className(proof.prediction), is = className(result.found), distance = atMost(result.distance);
  at("found").hidden = !result.success;
  if (result.refutes) {
    say(`The certificate is false: at ${distance}, inside the radius, the answer is ${is}. Please report it.`, "broken");
  } else if (result.success) {
    const times = proof.radius ? `, ${(result.distance / proof.radius).toFixed(2)} times the certified radius` : "";
    say(`Found: ${distance} away${times}, the network says ${is}. What lies between the two is not known.`, "broken");
  } else if (proof.radius === null || result.eps <= proof.radius) {
    say(`Failed, as it must: within ${atLeast(result.eps)} every image is provably called ${was}.`, "held");
  } else {
    const where = `within ${nearly(result.eps)}. Beyond the radius of ${atLeast(proof.radius)}`;
    say(`Nothing was found ${where} that proves nothing.`, "");
  }
  if (result.success) {
    setPicture("found-before", proof.picture);
    setPicture("found-change", result.noise);
    setPicture("found-after", result.picture, `The image that was found, which the network calls ${is}`);
    at("found-was").replaceChildren("called ", html("b", "", was));
    at("found-size").replaceChildren("change of length ", html("b", "", distance), magnified(result.gain));
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
  if (event.key === "Enter") at("go").click();
  stepByKey(event, at("budget"));
});
for (const button of document.querySelectorAll("[data-factor]")) {
  button.addEventListener("click", () => {
    if (state.proof) setBudget(Math.min(state.end, Number(button.dataset.factor) * (state.proof.radius || NO_RADIUS)));
  });
}
at("go").addEventListener("click", () => (attacking ? attacking.abort() : runAttack()));
