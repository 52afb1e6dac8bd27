// The timeline of a run: a bar for each phase of each host, a mark for each event.

import { get } from "./api.js";
import { h, moment, plural, put, s, span, table } from "./dom.js";

const WIDTH = 1000;
const NAMES = 150; // pixels for the names of hosts
const ROW = 18;
const TICKS = 6;

/** A scale of time that plots of a page share. */
export function timeScale(begin, end, left = NAMES, right = WIDTH) {
  const size = Math.max(0.001, end - begin);
  return (time) => left + ((time - begin) / size) * (right - left);
}

export async function timelinePart(below, { run, signal, view }) {
  const picture = h("div", { id: "timeline" });
  const events = h("div", { id: "events" });
  put(below, picture, events);
  let shown = -1;
  let isBusy = false;

  async function draw() {
    if (isBusy) return;
    isBusy = true;
    const { bars, marks, hosts, first } = await get(`runs/${run}/timeline`, signal).finally(() => { isBusy = false; });
    shown = marks.length;
    put(picture, drawing(bars, marks, hosts, first));
    const open = events.querySelector("details")?.open;
    put(events, h("details", { open }, h("summary", { id: "count" }, plural(marks.length, "event")),
      table(["time", "event", "where", ""], marks.map(([time, name, host, rank, text]) =>
        [moment(time), name, rank >= 0 ? `rank ${rank} on ${host}` : host, text]), { id: "marks" })));
  }

  await draw();
  return () => { if (view.events !== shown || view.data.row.state === "on") draw(); };
}

function drawing(bars, marks, hosts, first) {
  const begin = Math.min(...bars.map((bar) => bar[2]), ...marks.map((mark) => mark[0]));
  const end = Math.max(...bars.map((bar) => bar[3]), ...marks.map((mark) => mark[0]));
  const at = timeScale(begin, end);
  const height = (hosts.length + 2) * ROW;
  const rows = new Map(hosts.map((host, number) => [host, number]));
  const cursor = s("line", { class: "cursor", y1: 0, y2: height - ROW, x1: -1, x2: -1 });
  const label = s("text", { x: 0, y: height - 4 });
  const picture = s("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "Phases of each host" },
    s("defs", {}, s("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      s("rect", { class: "hatchback", width: 6, height: 6 }), s("line", { class: "hatchline", x1: 0, y1: 0, x2: 0, y2: 6 }))),
    hosts.map((host, number) => s("text", { x: 0, y: number * ROW + 13 }, host.slice(0, 22))),
    bars.filter((bar) => rows.has(bar[0])).map(([host, phase, from, to]) =>
      s("rect", { class: `phase-${phase}`, "data-phase": phase, "data-host": host, x: at(from), y: rows.get(host) * ROW + 3,
        width: Math.max(1, at(to) - at(from)), height: ROW - 6 }, s("title", {}, `${host}: ${phase}, ${(to - from).toFixed(1)} s`))),
    marks.map(([time, name, host, rank, text]) =>
      s("circle", { class: "mark", cx: at(time), cy: (rows.get(host) ?? hosts.length) * ROW + 9, r: 2 }, s("title", {}, [name, rank >= 0 ? `rank ${rank}` : host, text].join(" ")))),
    first ? s("line", { class: "first", x1: at(first.time), x2: at(first.time), y1: 0, y2: hosts.length * ROW }) : null,
    Array.from({ length: TICKS }, (_, tick) => {
      const time = begin + ((end - begin) * tick) / TICKS;
      return s("text", { x: at(time), y: height - ROW - 2 }, `${(time - begin).toFixed(1)} s`);
    }), cursor, label);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    if (x < NAMES) return;
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    const seconds = ((x - NAMES) / (WIDTH - NAMES)) * (end - begin);
    label.textContent = `${seconds.toFixed(2)} s, ${moment(begin + seconds)}`;
  });
  const phases = [...new Set(bars.map((bar) => bar[1]))];
  return [h("p", { class: "muted" }, `${plural(hosts.length, "host")}, ${span(end - begin)}: ${phases.join(", ")}`), picture];
}
