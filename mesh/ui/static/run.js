// A run: its facts and verdict, the grid of its ranks, and below it output, timeline, stacks or metrics.

import { get, post, stream } from "./api.js";
import { facts, h, moment, plain, plural, problem, put, span } from "./dom.js";
import { Lines } from "./lines.js";
import { metricsPart } from "./metrics.js";
import { counts, stateWords, status } from "./now.js";
import { stacksPart } from "./stacks.js";
import { timelinePart } from "./timeline.js";

const PARTS = [["output", "Output"], ["timeline", "Timeline"], ["stacks", "Stacks"], ["metrics", "Metrics"]];
const DIM_S = 30; // after which a cell without output is as dim as it becomes
const SIGNALS = ["USR1", "USR2", "HUP", "INT", "TERM"];

export async function runPage(page, { words, signal, state, about, go }) {
  const [run, part = "output"] = words;
  const found = await get(`runs/${run}`, signal);
  const view = new RunView(run, found, about);
  signal.addEventListener("abort", () => clearInterval(view.timer));
  document.title = plain(`${found.record.name || run} — mesh`);
  const tabs = h("div", { class: "tabs" }, PARTS.map(([name, title]) =>
    h("a", { href: `/run/${run}${name === "output" ? "" : `/${name}`}`, "aria-current": name === part ? "page" : null }, title)));
  const below = h("div", { id: "part" });
  put(page, view.head, view.grid, tabs, below);
  const shown = { output: outputPart, timeline: timelinePart, stacks: stacksPart, metrics: metricsPart }[part];
  if (!shown) {
    put(below, problem("there is no such part of a run"));
    return;
  }
  view.go = go;
  const listener = shown(below, { run, signal, found, view });
  view.listener = (await Promise.race([listener, 0])) || null;
  Promise.resolve(listener).then((one) => { view.listener = one || null; }, (error) => {
    if (!signal.aborted) put(below, problem(error.message, error.hint));
  });
  await stream(`runs/${run}/stream`, signal, (name, data) => view.take(name, data), state);
}

class RunView {
  constructor(run, found, about) {
    this.run = run;
    this.found = found;
    this.about = about;
    this.events = 0;
    this.data = null;
    this.cells = new Map();
    this.spoke = new Map();
    this.offset = 0; // of the server's clock to ours, in seconds
    this.status = h("span", { id: "status" });
    this.words = h("div", { id: "words" });
    this.verdict = h("div", { id: "verdict" });
    this.counts = h("div", { id: "counts" });
    this.tree = h("span", { id: "tree" });
    this.grid = h("div", { class: "grid", id: "grid" });
    this.head = this.makeHead();
    this.makeGrid();
    this.showVerdict(found.verdict_lines);
    this.timer = setInterval(() => this.dim(), 1000);
  }

  makeHead() {
    const { record } = this.found;
    const git = record.git ?? {};
    const line = h("code", {}, record.state === "ended" ? `mesh logs ${this.run}` : `mesh attach ${this.run}`);
    return h("div", {},
      h("h1", {}, record.name || this.run, " ", this.status),
      this.words, this.verdict,
      facts([["run", this.run], ["command", h("code", {}, commandOf(record))], ["cluster", `${record.cluster}: ${plural((record.hosts ?? []).length, "host")}`],
        ["began", moment(record.created)], ["git", `${git.branch ?? ""} ${(git.commit ?? "").slice(0, 12)}`.trim()], ["tree", this.tree],
        ["in a terminal", h("span", { class: "bar" }, line, h("button", { onclick: () => navigator.clipboard?.writeText(line.textContent) }, "Copy"))],
        ["actions", this.about.actions ? this.actions() : ""]]),
      this.counts);
  }

  actions() {
    const answer = h("span", { id: "answer", role: "status" });
    const act = async (verb, body = {}) => {
      put(answer, " …");
      try {
        const done = await post(`runs/${this.run}/${verb}`, body);
        put(answer, done.status ? ` ${done.error || `status ${done.status}`}` : ` ${verb}: done`);
      } catch (error) {
        put(answer, ` ${error.message}`);
      }
    };
    const chosen = h("select", { "aria-label": "Signal" }, SIGNALS.map((name) => h("option", {}, name)));
    return h("span", { class: "bar" }, h("button", { id: "stop", onclick: () => act("stop") }, "Stop"),
      h("button", { id: "detach", onclick: () => act("detach") }, "Detach"), chosen,
      h("button", { id: "signal", onclick: () => act("signal", { signal: chosen.value }) }, "Signal"), answer);
  }

  /** A row for each host with several ranks; else only cells. */
  makeGrid() {
    const { hosts, roles } = this.found;
    const isShort = new Set(hosts).size === hosts.length;
    const rows = new Map();
    this.grid.classList.toggle("short", isShort);
    hosts.forEach((host, rank) => {
      const cell = h("button", { class: "cell waiting", "data-rank": rank, title: `rank ${rank} on ${host}`, onclick: () => this.chosen?.(rank) },
        h("b", {}, roles[rank] || rank), h("span", {}, "·"));
      this.cells.set(rank, cell);
      if (!rows.has(host)) rows.set(host, h("div", { class: "host", "data-host": host }, isShort ? null : h("span", { class: "name", title: host }, host)));
      rows.get(host).append(cell);
    });
    put(this.grid, [...rows.values()]);
  }

  take(name, data) {
    if (name === "gone" || name === "error") {
      put(this.words, problem(data.error, data.hint));
      return;
    }
    this.offset = data.now - Date.now() / 1000;
    const before = this.data?.row.status;
    this.data = data;
    this.events += data.events.length;
    put(this.status, status(data.row));
    const words = stateWords(data.row, data.lease);
    put(this.words, words ? h("div", { class: "notice" }, words) : null, data.folding ? h("div", { class: "muted" }, "reading the output…") : null);
    put(this.counts, counts(data.counts));
    put(this.tree, data.tree || "not sent yet");
    for (const row of data.ranks) this.showRank(row);
    this.dim();
    if (before && before !== data.row.status) this.again();
    this.listener?.(data);
  }

  /** Read run.json again, because the run has ended meanwhile. */
  async again() {
    const found = await get(`runs/${this.run}`).catch(() => null);
    if (found) this.showVerdict(found.verdict_lines);
  }

  showVerdict(lines) {
    put(this.verdict, lines.length ? h("pre", { class: "verdict" }, lines.join("\n")) : null);
  }

  showRank([rank, name, how, spoke, step, unit, behind, since]) {
    const cell = this.cells.get(rank);
    if (!cell) return;
    this.spoke.set(rank, spoke || since);
    cell.className = `cell ${name}`;
    cell.dataset.state = name;
    cell.dataset.step = step;
    cell.lastChild.textContent = step >= 0 ? step : name === "running" ? "·" : name.slice(0, 4);
    const host = this.found.hosts[rank];
    cell.title = plain([`rank ${rank} on ${host}: ${name}`, how, unit && `${unit} ${step}`, behind ? `${behind} behind` : ""].filter(Boolean).join(", "));
  }

  /** Make a cell dimmer, the longer its rank has printed nothing. */
  dim() {
    const now = Date.now() / 1000 + this.offset;
    for (const [rank, cell] of this.cells) {
      const age = Math.max(0, now - (this.spoke.get(rank) ?? now));
      const isOn = cell.dataset.state === "running" || cell.dataset.state === "silent";
      cell.style.opacity = isOn ? String(1 - 0.55 * Math.min(1, age / DIM_S)) : "1";
      if (isOn) cell.dataset.age = span(age);
    }
  }
}

const commandOf = (record) => (record.groups ?? []).map((group) => (group.label ? `${group.label}: ` : "") + (group.command ?? []).join(" ")).join("; ") || (record.command ?? []).join(" ");

/** The folded output with its filters. Returns the function that gets the changes of the run. */
function outputPart(below, { run, signal, found, view }) {
  const given = new URLSearchParams(location.hash.slice(1));
  const members = h("div", { id: "members" });
  const lines = new Lines(run, { signal, onlabel: showMembers });
  const field = (name, label, more = {}) => h("input", { name, "aria-label": label, placeholder: label, size: 12, onchange: change, ...more });
  const ranks = field("ranks", "ranks: 3,5-7");
  const grep = field("grep", "regular expression", { type: "search", size: 24 });
  const minutes = field("since", "minutes ago", { type: "number", min: 0 });
  const host = h("select", { "aria-label": "Host", onchange: change }, ["", ...new Set(found.hosts)].map((name) => h("option", { value: name }, name || "all hosts")));
  const kind = h("select", { "aria-label": "Stream", onchange: change }, ["", "stdout", "stderr", "prerun"].map((name) => h("option", { value: name }, name || "both streams")));
  const total = h("span", { class: "muted", id: "total" });
  let isFiltered = false;
  let complete = false;

  function change() {
    const filter = new URLSearchParams();
    if (ranks.value) filter.set("ranks", ranks.value);
    if (grep.value) filter.set("grep", grep.value);
    if (minutes.value) filter.set("since", Date.now() / 1000 + view.offset - 60 * minutes.value);
    if (host.value) filter.set("host", host.value);
    if (kind.value) filter.set("stream", kind.value);
    isFiltered = filter.size > 0;
    put(members);
    lines.choose(filter);
    if (isFiltered) poll(filter);
    else if (view.data) lines.grow(view.data.lines);
  }

  /** Ask how many lines a filter has, as long as more may come. */
  async function poll(filter) {
    while (filter === lines.filter && !signal.aborted) {
      const query = new URLSearchParams(filter);
      query.set("count", 0);
      let state;
      try {
        state = await get(`runs/${run}/lines?${query}`, signal);
      } catch (error) {
        if (!signal.aborted) put(members, problem(error.message, error.hint));
        return;
      }
      if (filter !== lines.filter) return;
      count(state.lines, state.complete);
      if (state.complete && !state.folding) return;
      await new Promise((done) => setTimeout(done, state.folding ? 50 : 500));
    }
  }

  function count(number, isOver) {
    complete = isOver;
    lines.grow(number);
    put(total, plural(number, "line"), isOver ? "" : ", more may come");
  }

  async function showMembers(number, label) {
    const query = new URLSearchParams(lines.filter);
    query.set("first", number);
    query.set("count", 1);
    const { members: of } = await get(`runs/${run}/lines?${query}`, signal);
    put(members, h("div", { class: "notice" }, `${label} of line ${number}: `, of.map((rank) => [h("button", {
      onclick: () => { ranks.value = rank; change(); }, title: `only rank ${rank}` }, `${rank} ${found.hosts[rank]}`), " "]),
    h("button", { onclick: () => { ranks.value = ""; change(); } }, "all ranks")));
  }

  /** Go to the line of the address: #line=420, or the first line of a rank from there on, #rank=11&line=420. */
  async function toGiven() {
    const line = Number(given.get("line") ?? 0);
    const rank = given.get("rank");
    given.delete("line");
    given.delete("rank");
    const query = new URLSearchParams({ first: line, count: 1, ...(rank ? { rank } : {}) });
    const place = rank ? (await get(`runs/${run}/lines?${query}`, signal)).first_of : line;
    if (place >= 0) lines.toLine(place);
  }

  view.chosen = (rank) => { ranks.value = rank; change(); };
  put(below, h("div", { class: "bar" }, ranks, host, kind, grep, minutes, h("button", { onclick: () => { lines.target = -1; lines.follows = true; lines.toEnd(); } }, "To the end"), total),
    members, lines.element);
  if (given.has("line") || given.has("rank")) lines.follows = false;
  return (data) => {
    if (isFiltered) {
      if (complete && !data.complete) poll(lines.filter);
      return;
    }
    count(data.lines, data.complete);
    if ((given.has("line") || given.has("rank")) && (data.complete || data.lines > Number(given.get("line")))) toGiven();
  };
}
