"use strict";
// Drawing and numbers: no state of the page is known here.

const SVG = "http://www.w3.org/2000/svg";
const THUMB = 10; // half the width of the slider's thumb: the ruler ends where the thumb can go
const DASHES = ["", "7 4", "2 4", "10 3 2 3", "5 2"];

/** Make an element of a picture: attributes, then children or a text. */
function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** Make an element of the page: a class, then children or texts. */
function html(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** Write a positive number with four decimals, or with two significant digits if it is small. */
function written(value, round) {
  if (value === null) return "∞";
  if (!(value > 0)) return "0";
  const decimals = Math.min(15, Math.max(4, 1 - Math.floor(Math.log10(value))));
  const scale = 10 ** decimals;
  return (round(value * scale) / scale).toFixed(decimals);
}

/** A proved distance is rounded down, a distance at which something was found is rounded up. */
const atLeast = (value) => written(value, Math.floor);
const atMost = (value) => written(value, Math.ceil);
const nearly = (value) => written(value, Math.round);

/** Return round places of ticks from 0 to the end, at most as many as wanted. */
function ticks(end, wanted) {
  const power = 10 ** Math.floor(Math.log10(end / wanted));
  const least = (end / wanted) * (1 - 1e-9);
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= least);
  const decimals = Math.max(0, 1 - Math.floor(Math.log10(step)));
  const count = Math.floor(end / step + 1e-9);
  return Array.from({ length: count + 1 }, (_, number) => ({
    value: number * step,
    text: String(Number((number * step).toFixed(decimals))),
  }));
}

/** Put two texts over their places, moved aside where they would touch each other or leave the picture. */
function placeLabels(first, second, width) {
  const gap = 14;
  const size = (label) => (label ? label.text.getComputedTextLength() : 0);
  const over = (label) => Math.max(0, Math.min(width - size(label), label.x - size(label) / 2));
  if (!first || !second) {
    const only = first || second;
    if (only) only.text.setAttribute("x", over(only));
    return;
  }
  let left = over(first), right = over(second);
  const overlap = left + size(first) + gap - right;
  if (overlap > 0) {
    left = Math.max(0, left - overlap / 2);
    right = Math.min(width - size(second), left + size(first) + gap);
    left = Math.min(left, right - size(first) - gap);
  }
  first.text.setAttribute("x", left);
  second.text.setAttribute("x", right);
}

/** Draw what is known of the distances around an image: proved safe, not known, another answer found. */
function drawRuler(target, { end, radius, found, searched }) {
  const width = target.clientWidth, top = 26, height = 24;
  const x = (value) => THUMB + (Math.min(value, end) / end) * (width - 2 * THUMB);
  const proved = radius === null ? end : radius;
  const broken = found === null ? end : Math.max(found, proved);
  const band = (from, to, kind) =>
    svg("rect", { x: x(from), y: top, width: Math.max(0, x(to) - x(from)), height, class: kind });
  const hatch = svg("pattern",
    { id: "hatch", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 8, height: 8, class: "hatch-paper" }),
    svg("line", { x1: 0, x2: 0, y1: 0, y2: 8, class: "hatch-line" }));
  const marks = ticks(end, Math.max(2, Math.floor(width / 90))).flatMap(({ value, text }) => [
    svg("line", { x1: x(value), x2: x(value), y1: top + height + 4, y2: top + height + 10, class: "tick" }),
    svg("text", { x: x(value), y: top + height + 26, class: "quiet", "text-anchor": "middle" }, text),
  ]);
  const label = (value, text) => ({ x: x(value), text: svg("text", { y: 16, class: "strong" }, text) });
  const own = proved < end ? label(proved, `r = ${atLeast(radius)}`) : null;
  const other = found !== null ? label(found, `found ${atMost(found)}`)
    : searched > proved ? label(searched, `searched to ${nearly(searched)}`) : null;
  target.replaceChildren(svg("defs", {}, hatch), band(0, proved, "band-proved"), band(proved, broken, "band-open"),
    band(broken, end, "band-broken"), ...marks, ...[own, other].filter(Boolean).map((entry) => entry.text));
  placeLabels(own, other, width);
  const words = [own ? `proved safe up to ${atLeast(radius)}` : "all of it is proved safe",
    found !== null ? `another answer was found at ${atMost(found)}` : "no other answer was found"];
  target.setAttribute("aria-label", `Distances from 0 to ${nearly(end)}: ${words.join("; ")}`);
  target.setAttribute("viewBox", `0 0 ${width} ${target.clientHeight}`);
}

/** Give a line the colour and the dash of a run, so that it can be told without colours too. */
function coloured(line, number) {
  line.setAttribute("stroke-dasharray", DASHES[number % DASHES.length]);
  line.style.stroke = `var(--run${number % DASHES.length})`;
  return line;
}

/** Draw certified accuracy over the radius for all runs, with a line at the radius of the image that is shown. */
function drawCurves(target, runs, radius) {
  const width = target.clientWidth, height = target.clientHeight;
  const left = 50, right = 14, top = 26, bottom = 40;
  const last = Math.max(...runs.map(({ curve }) => curve[curve.length - 1][0]), radius || 0);
  const end = last > 0 ? last * 1.04 : 1;
  const x = (value) => left + (value / end) * (width - left - right);
  const y = (share) => top + (1 - share) * (height - top - bottom);
  const shown = [];
  let here = null;
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const kind = share ? "grid" : "axis";
    shown.push(svg("line", { x1: left, x2: width - right, y1: y(share), y2: y(share), class: kind }));
    shown.push(svg("text", { x: left - 8, y: y(share) + 4, class: "quiet", "text-anchor": "end" }, `${100 * share} %`));
  }
  for (const { value, text } of ticks(end, Math.max(2, Math.floor(width / 90)))) {
    shown.push(svg("text", { x: x(value), y: height - bottom + 18, class: "quiet", "text-anchor": "middle" }, text));
  }
  const middle = (left + width - right) / 2;
  shown.push(svg("text", { x: middle, y: height - 4, class: "quiet", "text-anchor": "middle" }, "l2 radius"));
  for (const { curve, number } of runs) {
    let path = `M${x(0)},${y(curve[0][1])}`;
    for (const [at, share] of curve.slice(1)) path += `H${x(at).toFixed(2)}V${y(share).toFixed(2)}`;
    shown.push(coloured(svg("path", { d: `${path}H${x(end)}`, class: "line" }), number));
  }
  if (radius !== null && radius > 0) {
    shown.push(svg("line", { x1: x(radius), x2: x(radius), y1: top - 6, y2: y(0), class: "here" }));
    here = { x: x(radius), text: svg("text", { y: 14, class: "strong" }, "this image") };
    shown.push(here.text);
  }
  target.replaceChildren(...shown);
  placeLabels(here, null, width);
  target.setAttribute("viewBox", `0 0 ${width} ${height}`);
}

/** Return a short line in the colour and dash of a run, for the legend. */
function legendLine(number) {
  const line = coloured(svg("line", { x1: 0, x2: 28, y1: 5, y2: 5, class: "line" }), number);
  return svg("svg", { viewBox: "0 0 28 10", "aria-hidden": "true" }, line);
}

/** Return the share of images that are right with a larger radius: the value of a step function. */
function shareBeyond(curve, radius) {
  let share = curve[0][1];
  for (const [at, value] of curve) if (at <= radius) share = value;
  return share;
}
