// The runs that are on, and those of this day.

import { get, stream } from "./api.js";
import { h, plural, problem, put, s, span, table } from "./dom.js";

const STATES = ["failed", "lost", "silent", "running", "ready", "waiting", "stopped", "done"];
const SHAPES = { failed: "✗", lost: "⌀", silent: "◌", running: "▶", ready: "◇", waiting: "…", stopped: "■", done: "✓" };

/** How many ranks are in each state, each with a shape of its own. */
export function counts(found) {
  return h("p", { class: "counts" }, STATES.filter((state) => found[state]).map((state) =>
    h("span", { class: state }, `${SHAPES[state]} ${found[state]} ${state}`)));
}

/** The words of a run whose client is gone; "" for others. */
export function stateWords(row, lease) {
  if (row.state === "died") return `client gone, lease ${Math.round(lease)} s`;
  return row.state === "detached" ? "detached: it goes on without a client" : "";
}

export async function nowPage(page, { signal, state }) {
  const cards = h("div", { class: "cards", id: "cards" });
  const today = h("div", { id: "today" });
  put(page, h("h1", {}, "Now"), cards, h("h2", {}, "This day"), today, clustersElement(signal));
  await stream("now", signal, (name, data) => {
    if (name === "error") {
      put(cards, problem(data.error, data.hint));
      return;
    }
    const { now, state: found } = data;
    put(cards, found.cards.length ? found.cards.map((card) => cardOf(card, now)) : h("div", { class: "empty" },
      h("p", {}, "No run of this machine is on."), h("p", {}, "Start one: ", h("code", {}, "mesh run local:4 python3 train.py"))));
    put(today, found.today.length ? [dayOf(found.today, now), runTable(found.today)] : h("p", { class: "muted" }, "no run yet"));
  }, state);
}

/** Clusters with the runs on their hosts, of whomever; the hosts are asked on a click. */
function clustersElement(signal) {
  const found = h("div", { id: "holders" });
  const button = h("button", { id: "ask", onclick: ask }, "Ask the hosts");

  async function ask() {
    button.disabled = true;
    put(found, h("p", { class: "muted" }, "asking the hosts…"));
    try {
      const [{ clusters }, answer] = await Promise.all([get("clusters", signal), get("ps", signal)]);
      const failures = answer.error.trim().split("\n").filter(Boolean);
      put(found, table(["cluster", "hosts", "", "run", "by", "for"], clusters.flatMap((one) => holdersOf(one, answer.found ?? [], failures.join("\n")))),
        failures.length ? h("pre", { id: "unasked" }, failures.join("\n")) : null);
    } catch (error) {
      if (!signal.aborted) put(found, problem(error.message, error.hint));
    } finally {
      button.disabled = false;
    }
  }

  return h("section", {}, h("h2", {}, "Clusters"), h("div", { class: "bar" }, button, h("span", { class: "muted" }, "as ", h("code", {}, "mesh ps"))), found);
}

/** The rows of a cluster: a run each; else it is free, or some of its hosts give no answer. */
function holdersOf(cluster, runs, failures) {
  const name = h("a", { href: `/cluster/${encodeURIComponent(cluster.name)}` }, cluster.name);
  const hosts = plural(cluster.hosts.length, "host");
  const own = runs.filter((run) => run.hosts.some((host) => cluster.hosts.includes(host)));
  const silent = cluster.hosts.filter((host) => failures.includes(host)).length;
  const rows = own.map((run) => [name.cloneNode(true), `${run.hosts.length} of ${hosts}`, h("span", { class: "running" }, `▶ busy: ${run.state}`),
    `${run.name || run.run} ${run.command}`, run.owner || "?", run.since ? span(Date.now() / 1000 - run.since) : "-"]);
  if (silent) rows.push([name.cloneNode(true), `${silent} of ${hosts}`, h("span", { class: "bad" }, "⌀ no answer"), "", "", ""]);
  return rows.length ? rows : [[name, hosts, h("span", { class: "good" }, "✓ free"), "", "", ""]];
}

function cardOf(card, now) {
  const words = stateWords(card, card.lease);
  const text = card.last ? card.last[3] : "";
  const last = typeof text === "string" ? text : text.map(([, part]) => part).join("");
  return h("div", { class: "card", "data-run": card.run, "data-row": true },
    h("div", {}, h("a", { href: `/run/${card.run}` }, card.name || card.run), " ", h("span", { class: "muted" }, card.cluster, ", ", span(now - card.created))),
    h("code", { class: "mono" }, card.command),
    words ? h("p", { class: "warn" }, words) : null,
    counts(card.counts),
    card.slowest ? h("p", { class: "warn" }, `slowest: rank ${card.slowest[0]}, ${card.slowest[1]} ${card.slowest[2]}`) : null,
    h("code", { class: "mono muted" }, card.last ? `${card.last[1]} ${last}` : "no output yet"));
}

/** The runs of a day as bars in time. */
function dayOf(rows, now) {
  const begin = Math.min(...rows.map((row) => row.created));
  const width = 1000 / Math.max(1, now - begin);
  const bar = (row, number) => {
    const end = row.ended ?? (row.state === "on" ? now : row.created);
    const kind = row.state === "ended" ? (row.exit_code ? "lost" : "run") : "ready";
    return s("rect", { class: `phase-${kind}`, x: (row.created - begin) * width, y: 2 + (number % 4) * 6, height: 5,
      width: Math.max(2, (end - row.created) * width) }, s("title", {}, `${row.command}: ${row.status}`));
  };
  return [h("p", { class: "muted" }, `${plural(rows.length, "run")}, ${rows.filter((row) => row.exit_code).length} failed`),
    s("svg", { class: "plot day", viewBox: "0 0 1000 28", preserveAspectRatio: "none", role: "img", "aria-label": "Runs of this day" }, rows.map(bar))];
}

/** Runs as a table. */
export function runTable(rows, more = () => []) {
  return table([...(more(null) ?? []), "run", h("th", { class: "optional" }, "cluster"), "status", h("th", { class: "optional" }, "took"), "command"],
    rows.map((row) => [...(more(row) ?? []),
      h("td", { "data-row": true }, h("a", { href: `/run/${row.run}` }, row.name || row.run), row.tags.length ? h("div", { class: "muted" }, row.tags.join(", ")) : null),
      h("td", { class: "optional" }, row.cluster), h("td", {}, status(row), row.verdict ? h("div", { class: "muted" }, row.verdict) : null),
      h("td", { class: "optional" }, row.ended ? span(row.ended - row.created) : "-"), h("td", {}, h("code", {}, row.command))]));
}

export function status(row) {
  const kind = row.state === "ended" ? (row.exit_code ? "bad" : "good") : row.state === "died" ? "bad" : "running";
  const shape = { bad: "✗", good: "✓", running: "▶" }[kind];
  return h("span", { class: kind }, `${shape} ${row.status}`);
}
