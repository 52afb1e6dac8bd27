// Numbers found in the lines of ranks: the least, the median and the most over ranks, by step.

import { get } from "./api.js";
import { h, put, s } from "./dom.js";

const WIDTH = 560;
const HEIGHT = 200;
const LEFT = 60;
const BOTTOM = 20;
const AGAIN_MS = 5000;

export async function metricsPart(below, { run, signal, view }) {
  let asked = 0;
  let isBusy = false; // long output takes the server longer than the time between two requests

  async function draw() {
    if (isBusy) return;
    isBusy = true;
    const { metrics, more } = await get(`runs/${run}/metrics`, signal).finally(() => { isBusy = false; });
    asked = Date.now();
    const plots = Object.keys(metrics).map((name) => plot(name, metrics[name], (step) => plots.forEach((one) => one.showAt(step))));
    put(below, more ? h("p", { class: "muted" }, "reading the output…") : null,
      plots.length || more ? h("div", { class: "cards", id: "metrics" }, plots.map((one) => one.element))
        : h("div", { class: "empty" }, "No numbers by step were found. Lines as ", h("code", {}, "step 120 loss 2.31"), " give them."));
    if (more && !signal.aborted) await draw();
  }

  await draw();
  return (data) => { if (data.row.state === "on" && Date.now() - asked > AGAIN_MS) draw(); };
}

const short = (value) => (Math.abs(value) >= 10000 || (value && Math.abs(value) < 0.001) ? value.toExponential(2) : Number(value.toPrecision(4)).toString());

/** The plot of a number. moved(step): the pointer is over a step; showAt: shows the values at the step that is nearest. */
function plot(name, points, moved) {
  const good = points.filter((point) => point[4] >= 0);
  const low = Math.min(...good.map((point) => point[1]));
  const high = Math.max(...good.map((point) => point[3]));
  const first = points[0][0];
  const last = points.at(-1)[0];
  const x = (step) => LEFT + ((step - first) / Math.max(1, last - first)) * (WIDTH - LEFT - 8);
  const y = (value) => 8 + ((high - value) / (high - low || 1)) * (HEIGHT - BOTTOM - 16);
  const line = (column, kind) => s("polyline", { class: kind, points: good.map((point) => `${x(point[0]).toFixed(1)},${y(point[column]).toFixed(1)}`).join(" ") });
  const cursor = s("line", { class: "cursor", y1: 0, y2: HEIGHT - BOTTOM, x1: -1, x2: -1 });
  const tip = h("p", { class: "mono tip" }, " ");
  const picture = s("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${name} by step` },
    s("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }),
    good.length ? [s("text", { x: 0, y: y(high) + 4 }, short(high)), s("text", { x: 0, y: y(low) + 4 }, short(low))] : null,
    s("text", { x: LEFT, y: HEIGHT - 4 }, first), s("text", { x: WIDTH - 60, y: HEIGHT - 4 }, last),
    line(1, "least"), line(3, "most"), line(2, "median"),
    points.filter((point) => point[6].length).map((point) => s("line", { class: "tick", x1: x(point[0]), x2: x(point[0]), y1: HEIGHT - BOTTOM - 8, y2: HEIGHT - BOTTOM },
      s("title", {}, `step ${point[0]}: not a number on rank ${point[6].join(", ")}`))), cursor);
  const show = (point) => {
    cursor.setAttribute("x1", x(point[0]));
    cursor.setAttribute("x2", x(point[0]));
    const bad = point[6].length ? h("span", { class: "bad" }, `not a number: rank ${point[6].join(", ")}`) : null;
    const values = `median ${short(point[2])}, least ${short(point[1])} (rank ${point[4]}), most ${short(point[3])} (rank ${point[5]})`;
    put(tip, `step ${point[0]}: `, point[4] < 0 ? null : [values, bad ? ", " : ""], bad);
  };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const step = first + ((((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - 8)) * (last - first);
    moved(step);
  });
  show(points.at(-1));
  const element = h("div", { class: "card", "data-metric": name, "data-points": points.length }, h("h2", {}, name), picture, tip);
  return { element, showAt: (step) => show(points.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best))) };
}
