// Clusters: their hosts, what `mesh check` finds there, and what `mesh top` shows while the page is open.

import { get } from "./api.js";
import { h, plural, problem, put, s, table } from "./dom.js";

const TOP_MS = 5000; // between two looks, while the page is visible
const LONG = 16; // characters of a finding that needs a wide column
const SHAPES = { ok: ["good", "✓"], warning: ["warn", "!"], failed: ["bad", "✗"], unknown: ["muted", "-"] };

export async function clustersPage(page, { signal }) {
  const { clusters } = await get("clusters", signal);
  put(page, h("h1", {}, "Clusters"), table(["cluster", "hosts", ""], clusters.map((one) => [
    h("td", { "data-row": true }, h("a", { href: `/cluster/${encodeURIComponent(one.name)}` }, one.name)), plural(one.hosts.length, "host"),
    one.problem ? h("span", { class: "bad" }, one.problem) : one.note])));
}

export async function clusterPage(page, { words, signal }) {
  const [name] = words;
  const found = h("div", { id: "check" });
  const figures = h("div", { id: "top" });
  const button = h("button", { onclick: check }, "Check again");
  put(page, h("h1", {}, name), h("div", { class: "bar" }, button, h("span", { class: "muted" }, "as ", h("code", {}, `mesh check ${name}`))), found,
    h("h2", {}, "Now"), figures);

  async function check() {
    button.disabled = true;
    put(found, h("p", { class: "muted" }, "asking the hosts…"));
    try {
      const answer = await get(`check/${encodeURIComponent(name)}`, signal);
      put(found, answer.found ? checkTable(answer.found) : problem(answer.error.trim() || "no answer"));
    } catch (error) {
      if (!signal.aborted) put(found, problem(error.message, error.hint));
    } finally {
      button.disabled = false;
    }
  }

  async function look() {
    while (!signal.aborted) {
      if (document.visibilityState === "visible") {
        try {
          const answer = await get(`top/${encodeURIComponent(name)}`, signal);
          put(figures, answer.found ? topTable(answer.found, answer.history) : problem(answer.error.trim() || "no answer"));
        } catch (error) {
          if (!signal.aborted) put(figures, problem(error.message, error.hint));
        }
      }
      await new Promise((done) => setTimeout(done, TOP_MS));
    }
  }

  look();
  await check();
}

function checkTable(reports) {
  const names = [...new Set(reports.flatMap((report) => report.checks.map((one) => one.name)))];
  const details = new Map(); // the common text of a check: others are marked
  for (const name of names) {
    const texts = reports.flatMap((report) => report.checks.filter((one) => one.name === name).map((one) => one.detail));
    const counted = texts.map((text) => [texts.filter((one) => one === text).length, text]);
    details.set(name, counted.sort((one, other) => other[0] - one[0])[0]?.[1]);
  }
  const cell = (report, name) => {
    const checks = report.checks.filter((one) => one.name === name);
    return h("td", {}, checks.map((one) => {
      const [kind, shape] = SHAPES[one.verdict] ?? SHAPES.unknown;
      const differs = one.detail !== details.get(name) && one.verdict === "ok";
      return h("div", { class: one.detail.length > LONG ? `${kind} long` : kind, title: one.hint }, `${shape} `, h("span", { class: differs ? "warn" : "" }, one.detail), one.hint && one.verdict !== "ok" ? h("div", { class: "muted" }, one.hint) : null);
    }));
  };
  return table(["host", ...names], reports.map((report) => [h("td", { class: report.ok ? "" : "bad", "data-host": report.host }, report.host), ...names.map((name) => cell(report, name))]));
}

/** CPU over the last minutes, as a line. */
function history(points) {
  if (!points || points.length < 2) return null;
  const begin = points[0][0];
  const width = Math.max(1, points.at(-1)[0] - begin);
  return s("svg", { class: "plot", viewBox: "0 0 120 20", style: null, role: "img", "aria-label": "CPU of the last minutes" },
    s("polyline", { class: "median", points: points.map(([time, cpu]) => `${(((time - begin) / width) * 120).toFixed(1)},${(19 - 18 * cpu).toFixed(1)}`).join(" ") }));
}

function topTable(hosts, taken) {
  const amount = (bytes) => (bytes >= 1e9 ? `${(bytes / 1e9).toFixed(1)} GB` : `${(bytes / 1e6).toFixed(1)} MB`);
  const meter = (part, text) => {
    const bar = h("i", {});
    bar.style.width = `${Math.round(100 * Math.min(1, Math.max(0, part)))}%`;
    return h("span", { class: "figure" }, h("span", { class: "meter" }, bar), text);
  };
  const ranks = hosts.flatMap((one) => (one.ranks ?? []).map((rank) => [rank, one.host]));
  return [table(["host", "cpu", "", "memory", "disk", "network", "devices"], hosts.map((one) => (one.error
    ? [one.host, h("td", { class: "bad", colspan: 6 }, one.error)]
    : [h("td", { "data-top": one.host }, one.host), meter(one.cpu, `${(100 * one.cpu).toFixed(0)} % of ${one.cores}`), history(taken?.[one.host]), meter(one.memory_used / one.memory, `${amount(one.memory_used)} of ${amount(one.memory)}`),
      `${amount(one.disk_read)}/s read, ${amount(one.disk_written)}/s written`, `${amount(one.received)}/s in, ${amount(one.sent)}/s out`,
      one.devices.map((device) => h("div", {}, meter(device.busy, `${device.name}: ${(100 * device.busy).toFixed(0)} %, ${amount(device.memory_used)} of ${amount(device.memory)}`)))]))),
  ranks.length ? table(["rank", "host", "cpu", "memory", "run"], ranks.map(([rank, host]) =>
    [rank.rank, host, `${(100 * rank.cpu).toFixed(0)} %`, amount(rank.memory), h("a", { href: `/run/${rank.run}` }, rank.run)]), { id: "ranks" }) : null];
}
