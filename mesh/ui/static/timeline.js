// The timeline of a run: a bar for each phase of each host, a mark for each event.

import { get } from "./api.js";
import { h, moment, onWidth, plural, put, s, span, table } from "./dom.js";

const NAMES = 150; // pixels for the names of hosts, at most
const NAMES_PART = 0.28; // of the width
const CHARACTER = 6.7; // pixels
const EDGE = 4; // pixels at the right
const ROW = 18;
const LONG_S = 600; // a run that is longer has its times in minutes or hours
const TICK = 110; // pixels between two times

export async function timelinePart(below, { run, signal, view }) {
  const picture = h("div", { id: "timeline" });
  const events = h("div", { id: "events" });
  put(below, picture, events);
  let shown = -1;
  let isBusy = false;
  let found = null;
  const drawPicture = () => put(picture, drawing(found, Math.max(240, picture.clientWidth)));

  async function draw() {
    if (isBusy) return;
    isBusy = true;
    found = await get(`runs/${run}/timeline`, signal).finally(() => { isBusy = false; });
    const { marks } = found;
    shown = marks.length;
    drawPicture();
    const open = events.querySelector("details")?.open;
    put(events, h("details", { open }, h("summary", { id: "count" }, plural(marks.length, "event")),
      table(["time", "event", "where", ""], marks.map(([time, name, host, rank, text]) =>
        [moment(time), name, rank >= 0 ? `rank ${rank} on ${host}` : host, text]), { id: "marks" })));
  }

  await draw();
  onWidth(picture, signal, drawPicture);
  return () => { if (view.events !== shown || view.data.row.state === "on") draw(); };
}

/** The bars and marks in so many pixels. Events without a time stand at the begin. */
function drawing({ bars, marks, hosts, first }, width) {
  const times = [...bars.flatMap((bar) => [bar[2], bar[3]]), ...marks.map((mark) => mark[0])].filter((time) => time > 0);
  if (!times.length) return h("p", { class: "muted" }, "nothing has begun yet");
  const begin = times.reduce((one, other) => Math.min(one, other));
  const end = times.reduce((one, other) => Math.max(one, other));
  const left = Math.min(NAMES, Math.round(width * NAMES_PART));
  const size = Math.max(0.001, end - begin);
  const at = (time) => left + ((Math.max(begin, time) - begin) / size) * (width - EDGE - left);
  const short = (name) => (name.length * CHARACTER > left ? `${name.slice(0, Math.floor(left / CHARACTER) - 1)}…` : name);
  const height = (hosts.length + 2) * ROW;
  const rows = new Map(hosts.map((host, number) => [host, number]));
  const ticks = Math.max(2, Math.floor((width - left) / TICK));
  const cursor = s("line", { class: "cursor", y1: 0, y2: height - ROW, x1: -1, x2: -1 });
  const label = s("text", { x: 0, y: height - 4 });
  const picture = s("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Phases of each host" },
    s("defs", {}, s("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      s("rect", { class: "hatchback", width: 6, height: 6 }), s("line", { class: "hatchline", x1: 0, y1: 0, x2: 0, y2: 6 }))),
    hosts.map((host, number) => s("text", { x: 0, y: number * ROW + 13 }, short(host), s("title", {}, host))),
    bars.filter((bar) => rows.has(bar[0])).map(([host, phase, from, to]) =>
      s("rect", { class: `phase-${phase}`, "data-phase": phase, "data-host": host, x: at(from), y: rows.get(host) * ROW + 3,
        width: Math.max(1, at(to) - at(from)), height: ROW - 6 }, s("title", {}, `${host}: ${phase}, ${(to - from).toFixed(1)} s`))),
    marks.map(([time, name, host, rank, text]) =>
      s("circle", { class: "mark", cx: at(time), cy: (rows.get(host) ?? hosts.length) * ROW + 9, r: 2 }, s("title", {}, [name, rank >= 0 ? `rank ${rank}` : host, text].join(" ")))),
    first ? s("line", { class: "first", x1: at(first.time), x2: at(first.time), y1: 0, y2: hosts.length * ROW }) : null,
    Array.from({ length: ticks }, (_, tick) => {
      const time = begin + (size * tick) / ticks;
      return s("text", { x: at(time), y: height - ROW - 2 }, size < LONG_S ? `${(time - begin).toFixed(1)} s` : span(time - begin));
    }), cursor, label);
  picture.addEventListener("pointermove", (event) => {
    const x = event.clientX - picture.getBoundingClientRect().left;
    if (x < left) return;
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    const seconds = ((x - left) / (width - EDGE - left)) * size;
    label.textContent = `${seconds.toFixed(2)} s, ${moment(begin + seconds)}`;
  });
  const phases = [...new Set(bars.map((bar) => bar[1]))];
  return [h("p", { class: "muted" }, `${plural(hosts.length, "host")}, ${span(end - begin)}: ${phases.join(", ")}`), picture];
}
