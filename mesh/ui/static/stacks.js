// Stacks of the ranks: groups of equal ones, the odd one out first; two shots beside each other.

import { get } from "./api.js";
import { h, problem, put } from "./dom.js";

export async function stacksPart(below, { run, signal }) {
  const shots = h("div", { id: "shots" });
  const button = h("button", { id: "again", onclick: take }, "Ask the hosts now");
  const taken = [];
  put(below, h("div", { class: "bar" }, button, h("span", { class: "muted" }, "as ", h("code", {}, `mesh stacks ${run}`))), shots);

  async function take() {
    button.disabled = true;
    try {
      const { found, error } = await get(`runs/${run}/stacks?now=1`, signal);
      if (!found) {
        put(shots, problem(error.trim() || "no answer"));
        return;
      }
      taken.unshift({ at: new Date(), groups: found.groups.filter((one) => one.main_thread).map(groupOf), notes: [...found.notes, ...found.failures], ended: found.ended });
      taken.length = Math.min(2, taken.length);
      put(shots, taken.map((shot, number) => shotOf(shot, taken[number + 1])));
    } catch (error) {
      if (!signal.aborted) put(shots, problem(error.message, error.hint));
    } finally {
      button.disabled = false;
    }
  }

  const { recorded } = await get(`runs/${run}/stacks`, signal);
  if (recorded.length) put(shots, h("h2", {}, "Recorded"), recorded.map((group) => groupElement(group, null)));
  return null;
}

function groupOf(group) {
  const calls = group.frames.map((frame) => `${frame.function} at ${frame.file}${frame.line ? `:${frame.line}` : ""}`);
  return { ranks: group.ranks, head: `[${group.labels || ranges(group.ranks)}] ${group.role ? `${group.role}: ` : ""}${group.where}`, calls: group.words ? [group.words, ...calls] : calls };
}

function shotOf({ at, groups, notes, ended }, earlier) {
  const before = earlier && new Set(earlier.groups.map((group) => group.head));
  return h("section", { class: "shot" }, h("h2", {}, at.toLocaleTimeString(), earlier ? "; marked: what has moved" : ""),
    groups.map((group) => groupElement(group, before)), ended.length ? h("p", { class: "muted" }, `ended: ${ranges(ended)}`) : null,
    notes.map((note) => h("p", { class: "muted" }, note)));
}

function groupElement(group, before) {
  const moved = before && !before.has(group.head);
  return h("details", { class: "stack" }, h("summary", { class: `mono${moved ? " warn" : ""}` }, moved ? "→ " : "", group.head),
    h("pre", {}, group.calls.join("\n")));
}

/** Ranks in short: "0-6,8". */
export function ranges(ranks) {
  const parts = [];
  for (const rank of [...ranks].sort((one, other) => one - other)) {
    const last = parts.at(-1);
    if (last && last[1] === rank - 1) last[1] = rank;
    else parts.push([rank, rank]);
  }
  return parts.map(([first, last]) => (first === last ? first : `${first}-${last}`)).join(",");
}
