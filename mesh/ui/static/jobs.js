// Jobs and machines: the rows of `mesh job list`, with costs by prices.yaml alone; an unknown price is "?".

import { get } from "./api.js";
import { facts, h, moment, money, plural, problem, put, span, table } from "./dom.js";

const AGAIN_MS = 3000;

/** Ask again and again while the page is open and visible. */
async function repeat(signal, ask) {
  while (!signal.aborted) {
    if (document.visibilityState === "visible") await ask();
    await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
}

export async function jobsPage(page, { signal }) {
  const found = h("div", { id: "jobs" });
  const all = h("input", { type: "checkbox", onchange: draw });
  const asked = h("div", { id: "asked" });
  const button = (address, name) => h("button", { onclick: () => askCloud(asked, address, signal) }, name);
  put(page, h("h1", {}, "Jobs"), h("div", { class: "bar" }, h("label", {}, all, " also those that ended more than a day ago")), found,
    h("h2", {}, "Storage and quota"), h("div", { class: "bar" }, button("jobs/storage", "Storage"), button("machines?quota=1", "Quota"),
      h("span", { class: "muted" }, "as ", h("code", {}, "mesh job storage"), " and ", h("code", {}, "mesh job quota"))), asked);

  async function draw() {
    try {
      const data = await get(`jobs${all.checked ? "?all=1" : ""}`, signal);
      put(found, stewardLine(data), data.jobs.length ? jobTable(data) : h("div", { class: "empty" }, "There is no job: ", h("code", {}, "mesh job submit train.yaml")),
        data.strays.map((line) => h("p", { class: "warn" }, line)), tasksOf(data));
    } catch (error) {
      if (!signal.aborted) put(found, problem(error.message, error.hint));
    }
  }

  await repeat(signal, draw);
}

/** Show the answer of a command that asks the cloud. */
async function askCloud(asked, address, signal) {
  put(asked, h("p", { class: "muted" }, "asking the cloud…"));
  try {
    const answer = await get(address, signal);
    const rows = answer.found === null ? [] : [answer.found].flat();
    put(asked, rows.length ? objectTable(rows) : null, answer.error.trim() || !rows.length ? problem(answer.error.trim() || "nothing was found") : null);
  } catch (error) {
    if (!signal.aborted) put(asked, problem(error.message, error.hint));
  }
}

function stewardLine({ steward, trouble, jobs }) {
  if (steward) return h("p", { class: "muted", id: "steward" }, `looked after by mesh serve (pid ${steward.pid})`, steward.trouble.map((line) => h("span", { class: "warn" }, `; ${line}`)));
  const waits = jobs.some((job) => !["succeeded", "failed", "stopped"].includes(job.state));
  return h("p", { class: waits ? "notice" : "muted", id: "steward" }, trouble || "mesh serve does not run: ", trouble ? null : h("code", {}, "mesh serve"));
}

const stateOf = (job) => h("span", { class: job.state === "failed" || job.state === "held" ? "bad" : job.state === "succeeded" ? "good" : "running" }, job.state);

function jobTable({ jobs, costs, currency }) {
  const now = Date.now() / 1000;
  return table(["id", "name", "state", "for", h("th", { class: "optional" }, "attempt"), h("th", { class: "optional" }, "machines"), "cost", "why"], jobs.map((job) => [
    h("td", { "data-row": true }, h("a", { href: `/job/${job.id}` }, job.id)), job.name, stateOf(job), job.since ? span(now - job.since) : "-",
    h("td", { class: "optional" }, job.attempt, job.preemptions ? ` (${job.preemptions} preempted)` : ""), h("td", { class: "optional" }, job.machines.join(", ") || "-"),
    money(costs[job.id], currency), job.progress && job.state === "running" ? job.progress : job.reason]));
}

function tasksOf({ tasks, tasks_problem: trouble }) {
  if (trouble) return [h("h2", {}, "Tasks"), problem(trouble)];
  if (!tasks) return null;
  return [h("h2", {}, "Tasks of tasks.yaml"), h("p", { class: "muted" }, Object.entries(tasks.counts).map(([state, count]) => `${count} ${state}`).join(", ")),
    table(["task", "state", "runs", "failures", "why"], tasks.rows.map((task) => [task.id, task.state, task.runs, task.failures, task.why]))];
}

export async function jobPage(page, { words, signal }) {
  const [id] = words;
  const found = h("div", {});
  put(page, found);
  let isOpen = new Set();

  await repeat(signal, async () => {
    try {
      const data = await get(`jobs/${id}`, signal);
      isOpen = new Set([...found.querySelectorAll("details[open]")].map((one) => one.dataset.name));
      put(found, jobElements(data, (name, ...children) => h("details", { "data-name": name, open: isOpen.has(name) }, h("summary", {}, name), children)));
    } catch (error) {
      if (!signal.aborted) put(found, problem(error.message, error.hint));
    }
  });
}

function jobElements({ job, cost, currency, attempts, events, files, logs }, folded) {
  const spec = events.find((event) => event.spec)?.spec;
  return [h("h1", {}, `${job.id} ${job.name} `, stateOf(job)),
    facts([["why", job.reason], ["try", job.hint ? h("code", {}, job.hint) : ""], ["since", moment(job.since)], ["user", job.user], ["queue", `${job.queue}, priority ${job.priority}`],
      ["cluster", job.cluster], ["machines", job.machines.join(", ")], ["cost", cost ? money(cost, currency) : ""], ["attempts", `${job.attempt}, ${job.failures} failed, ${job.preemptions} preempted`],
      ["progress", job.progress], ["exit", job.exit_code === null ? "" : `${job.exit_code} (${job.cause})`], ["directory", h("code", {}, job.directory)]]),
    h("h2", {}, "Attempts"), attempts.length ? table(["attempt", "run"], attempts.map(([number, run]) => [number, h("a", { href: `/run/${run}` }, run)])) : h("p", { class: "muted" }, "none yet"),
    h("h2", {}, "Events"), table(["time", "event", ""], events.map((event) => [moment(event.time), event.event, eventText(event)]), { id: "events" }),
    h("h2", {}, "Configuration and logs"),
    spec ? folded("configuration", h("pre", {}, JSON.stringify(spec, null, 1))) : null,
    [...files, ...logs].map(([name, text]) => folded(name, h("pre", {}, text)))];
}

const eventText = (event) => Object.entries(event).filter(([key, value]) => !["time", "event", "spec"].includes(key) && value !== null && value !== "" && value !== 0)
  .map(([key, value]) => `${key}=${typeof value === "object" ? JSON.stringify(value) : value}`).join(" ").slice(0, 400);

export async function machinesPage(page, { signal }) {
  const found = h("div", { id: "machines" });
  const asked = h("div", { id: "asked" });
  const ask = (kind) => askCloud(asked, `machines?${kind}=1`, signal);
  put(page, h("h1", {}, "Machines"), found, h("h2", {}, "In the cloud"),
    h("div", { class: "bar" }, h("button", { onclick: () => ask("audit") }, "Owned, condemned, orphans"), h("button", { onclick: () => ask("quota") }, "Quota"),
      h("span", { class: "muted" }, "as ", h("code", {}, "mesh job audit"), " and ", h("code", {}, "mesh job quota"))), asked);
  await repeat(signal, async () => {
    try {
      const { machines, currency, date } = await get("machines", signal);
      put(found, machines.length ? table(["name", "job", "kind", "zone", "state", "hosts", "since", "cost"], machines.map((one) => [
        one.name, h("a", { href: `/job/${one.job}` }, `${one.job} ${one.job_name}`), `${one.slices} x ${one.accelerator} ${one.pricing}`, one.zone, one.phase, plural(one.hosts.length, "host"),
        moment(one.since), one.cost === null ? "?" : `${one.cost.toFixed(2)} ${currency}`])) : h("div", { class: "empty" }, "No job has machines that were made for it."),
      h("p", { class: "muted" }, date ? `prices of ${date}` : "no prices: a cost is ? without ~/.config/mesh/prices.yaml"));
    } catch (error) {
      if (!signal.aborted) put(found, problem(error.message, error.hint));
    }
  });
}

function objectTable(rows) {
  const names = [...new Set(rows.flatMap(Object.keys))];
  return table(names, rows.map((row) => names.map((name) => (row[name] === null ? "?" : typeof row[name] === "object" ? JSON.stringify(row[name]) : String(row[name])))));
}
