// Numbers found in the lines of ranks: the least, the median and the most over ranks, by step.

import { get } from "./api.js";
import { h, onWidth, put, s } from "./dom.js";

const HEIGHT = 200; // pixels, as all below
const LEFT = 60;
const RIGHT = 8;
const BOTTOM = 20;
const AGAIN_MS = 5000;

export async function metricsPart(below, { run, signal, view }) {
  let asked = 0;
  let isBusy = false; // long output takes the server longer than the time between two requests
  let plots = [];

  async function draw() {
    if (isBusy) return;
    isBusy = true;
    const { metrics, more } = await get(`runs/${run}/metrics`, signal).finally(() => { isBusy = false; });
    asked = Date.now();
    plots = Object.keys(metrics).map((name) => plot(name, metrics[name], (step) => plots.forEach((one) => one.showAt(step))));
    put(below, more ? h("p", { class: "muted" }, "reading the output…") : null,
      plots.length || more ? h("div", { class: "cards", id: "metrics" }, plots.map((one) => one.element))
        : h("div", { class: "empty" }, "No numbers by step were found. Lines as ", h("code", {}, "step 120 loss 2.31"), " give them."));
    plots.forEach((one) => one.draw());
    if (more && !signal.aborted) await draw();
  }

  await draw();
  onWidth(below, signal, () => plots.forEach((one) => one.draw()));
  return (data) => { if (data.row.state === "on" && Date.now() - asked > AGAIN_MS) draw(); };
}

const short = (value) => (Math.abs(value) >= 10000 || (value && Math.abs(value) < 0.001) ? value.toExponential(2) : Number(value.toPrecision(4)).toString());

/** The plot of a number. moved(step): the pointer is over a step; draw: as wide as its place; showAt: the values at the step that is nearest. */
function plot(name, points, moved) {
  const good = points.filter((point) => point[4] >= 0);
  const low = Math.min(...good.map((point) => point[1]));
  const high = Math.max(...good.map((point) => point[3]));
  const first = points[0][0];
  const last = points.at(-1)[0];
  const cursor = s("line", { class: "cursor", y1: 0, y2: HEIGHT - BOTTOM, x1: -1, x2: -1 });
  const place = h("div", {});
  const tip = h("p", { class: "mono tip" }, " ");
  let shown = points.at(-1);
  let width = 0;
  const x = (step) => LEFT + ((step - first) / Math.max(1, last - first)) * (width - LEFT - RIGHT);
  const y = (value) => 8 + ((high - value) / (high - low || 1)) * (HEIGHT - BOTTOM - 16);
  const line = (column, kind) => s("polyline", { class: kind, points: good.map((point) => `${x(point[0]).toFixed(1)},${y(point[column]).toFixed(1)}`).join(" ") });

  function draw() {
    width = Math.max(200, place.clientWidth);
    const picture = s("svg", { class: "plot", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${name} by step` },
      s("line", { class: "axis", x1: LEFT, x2: width, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }),
      good.length ? [s("text", { x: 0, y: y(high) + 4 }, short(high)), s("text", { x: 0, y: y(low) + 4 }, short(low))] : null,
      s("text", { x: LEFT, y: HEIGHT - 4 }, first), s("text", { class: "right", x: width - RIGHT, y: HEIGHT - 4 }, last),
      line(1, "least"), line(3, "most"), line(2, "median"),
      points.filter((point) => point[6].length).map((point) => s("line", { class: "tick", x1: x(point[0]), x2: x(point[0]), y1: HEIGHT - BOTTOM - 8, y2: HEIGHT - BOTTOM },
        s("title", {}, `step ${point[0]}: not a number on rank ${point[6].join(", ")}`))), cursor);
    picture.addEventListener("pointermove", (event) =>
      moved(first + ((event.clientX - picture.getBoundingClientRect().left - LEFT) / (width - LEFT - RIGHT)) * (last - first)));
    put(place, picture);
    show(shown);
  }

  function show(point) {
    shown = point;
    cursor.setAttribute("x1", x(point[0]));
    cursor.setAttribute("x2", x(point[0]));
    const bad = point[6].length ? h("span", { class: "bad" }, `not a number: rank ${point[6].join(", ")}`) : null;
    const values = `median ${short(point[2])}, least ${short(point[1])} (rank ${point[4]}), most ${short(point[3])} (rank ${point[5]})`;
    put(tip, `step ${point[0]}: `, point[4] < 0 ? null : [values, bad ? ", " : ""], bad);
  }

  const element = h("div", { class: "card", "data-metric": name, "data-points": points.length }, h("h2", {}, name), place, tip);
  return { element, draw, showAt: (step) => show(points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best))) };
}
