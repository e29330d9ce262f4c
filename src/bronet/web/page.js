// Curves, layers, runs, and the start.

function drawAll() {
  const { proof, end, found, searched } = state;
  if (proof) drawRuler(at("ruler"), { end, radius: proof.radius, found, searched });
  showCurves();
}

function showCurves() {
  const radius = state.proof ? state.proof.radius : null;
  const runs = state.runs.map((run, number) => ({ ...run, number }));
  const { comparison } = state.network || {};
  if (comparison) {
    const name = "the ordinary network while attacked: at most this; nothing is proved of it";
    runs.push({ name, curve: comparison.ordinary.curve, remark: "", number: runs.length });
    runs[state.run].name += ", certified: at least this";
  }
  const drawn = runs.filter((run) => run.curve.length);
  at("curve").style.display = drawn.length ? "" : "none";
  if (drawn.length) drawCurves(at("curve"), drawn, radius);
  const entries = runs.filter((run) => run.remark || runs.length > 1).map((run) => {
    const line = run.curve.length ? [legendLine(run.number)] : [];
    return html("li", "", ...line, run.remark ? `${run.name}: ${run.remark}` : run.name);
  });
  at("curve-legend").replaceChildren(...entries);
  const own = state.runs[state.run];
  at("curve-text").textContent = !own.curve.length || !radius ? ""
    : `${(100 * shareBeyond(own.curve, radius)).toFixed(1)} % of them are right with a larger radius than this image.`;
  at("curve-images").textContent = own.images || "the test images";
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
  at("opening").hidden = false;
  main.setAttribute("aria-busy", "true");
  main.inert = true;
  try {
    const network = await (await ask(address())).json();
    if (number !== state.run) return;
    state.network = network;
    const { comparison } = network;
    if (comparison && !state.runs[number].curve.length) {
      Object.assign(state.runs[number], { curve: comparison.curve, images: `all ${comparison.images} test images`, remark: "" });
    }
    complain(null);
  } catch (error) {
    state.run = before;
    at("run").value = before;
    at("about").textContent = "";
    complain(error);
    return;
  } finally {
    at("opening").hidden = true;
    main.setAttribute("aria-busy", "false");
    main.inert = false;
  }
  showNetwork();
  showSamples();
  showComparison();
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
