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

/** Return a round number of at least the value: 1, 1.5, 2, 3, 4, 5 or 8 times a power of ten. */
function roundAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 8, 10].map((factor) => factor * power).find((candidate) => candidate >= value * (1 - 1e-9));
}

/** Return round places of ticks from 0 to the end, about as many as wanted. */
function ticks(end, wanted) {
  const step = roundAbove(end / wanted);
  const decimals = Math.max(0, 1 - Math.floor(Math.log10(step)));
  const count = Math.floor(end / step + 1e-9);
  return Array.from({ length: count + 1 }, (_, number) => ({
    value: number * step,
    text: String(Number((number * step).toFixed(decimals))),
  }));
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
    svg("rect", { width: 8, height: 8, class: "hatch-paper" }), svg("line", { x1: 0, x2: 0, y1: 0, y2: 8, class: "hatch-line" }));
  const label = (value, text, y, kind, anchor) => svg("text", { x: x(value), y, class: kind, "text-anchor": anchor }, text);
  const anchorAt = (value) => (x(value) < 60 ? "start" : x(value) > width - 60 ? "end" : "middle");
  const marks = ticks(end, Math.max(2, Math.floor(width / 110))).flatMap(({ value, text }) => [
    svg("line", { x1: x(value), x2: x(value), y1: top + height + 4, y2: top + height + 10, class: "tick" }),
    label(value, text, top + height + 26, "quiet", "middle"),
  ]);
  const shown = [svg("defs", {}, hatch), band(0, proved, "band-proved"), band(proved, broken, "band-open"),
    band(broken, end, "band-broken"), ...marks];
  const close = found !== null && x(found) - x(proved) < 110;
  if (proved < end) shown.push(label(proved, `r = ${atLeast(radius)}`, 16, "strong", close ? "end" : anchorAt(proved)));
  if (found !== null && found < end) {
    shown.push(label(found, `found ${atMost(found)}`, 16, "strong", close ? "start" : anchorAt(found)));
  }
  if (searched > 0 && found === null) {
    shown.push(svg("circle", { cx: x(searched), cy: top + height / 2, r: 4, class: "searched" }));
  }
  target.replaceChildren(...shown);
  target.setAttribute("viewBox", `0 0 ${width} ${target.clientHeight}`);
}

/** Draw certified accuracy over the radius for all runs, with a line at the radius of the image that is shown. */
function drawCurves(target, runs, radius) {
  const width = target.clientWidth, height = target.clientHeight;
  const left = 46, right = 14, top = 12, bottom = 40;
  const last = Math.max(...runs.map(({ curve }) => curve[curve.length - 1][0]), radius || 0);
  const end = last > 0 ? last * 1.04 : 1;
  const x = (value) => left + (value / end) * (width - left - right);
  const y = (share) => top + (1 - share) * (height - top - bottom);
  const shown = [];
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    shown.push(svg("line", { x1: left, x2: width - right, y1: y(share), y2: y(share), class: share ? "grid" : "axis" }));
    shown.push(svg("text", { x: left - 8, y: y(share) + 4, class: "quiet", "text-anchor": "end" }, `${100 * share} %`));
  }
  for (const { value, text } of ticks(end, Math.max(2, Math.floor(width / 90)))) {
    shown.push(svg("text", { x: x(value), y: height - bottom + 18, class: "quiet", "text-anchor": "middle" }, text));
  }
  shown.push(svg("text", { x: (left + width - right) / 2, y: height - 4, class: "quiet", "text-anchor": "middle" }, "l2 radius"));
  for (const { curve, number } of runs) {
    let path = `M${x(0)},${y(curve[0][1])}`;
    for (const [at, share] of curve.slice(1)) path += `H${x(at).toFixed(2)}V${y(share).toFixed(2)}`;
    const line = svg("path", { d: `${path}H${x(end)}`, class: "line", "stroke-dasharray": DASHES[number % DASHES.length] });
    line.style.stroke = `var(--run${number % 5})`;
    shown.push(line);
  }
  if (radius !== null && radius > 0) {
    const flip = x(radius) > width - right - 80;
    shown.push(svg("line", { x1: x(radius), x2: x(radius), y1: top, y2: y(0), class: "here" }));
    shown.push(svg("text", { x: x(radius) + (flip ? -6 : 6), y: top + 12, class: "strong", "text-anchor": flip ? "end" : "start" }, "this image"));
  }
  target.replaceChildren(...shown);
  target.setAttribute("viewBox", `0 0 ${width} ${height}`);
}

/** Return a short line in the colour and dash of a run, for the legend. */
function legendLine(number) {
  const line = svg("line", { x1: 0, x2: 28, y1: 5, y2: 5, class: "line", "stroke-dasharray": DASHES[number % DASHES.length] });
  line.style.stroke = `var(--run${number % 5})`;
  return svg("svg", { viewBox: "0 0 28 10", "aria-hidden": "true" }, line);
}

/** Return the share of images that are right with a larger radius: the value of a step function. */
function shareBeyond(curve, radius) {
  let share = curve[0][1];
  for (const [at, value] of curve) if (at <= radius) share = value;
  return share;
}
