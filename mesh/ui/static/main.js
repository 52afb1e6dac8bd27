// The pages by their addresses, and the keys.

import { get, takeToken } from "./api.js";
import { h, problem, put } from "./dom.js";
import { clusterPage, clustersPage } from "./cluster.js";
import { jobPage, jobsPage, machinesPage } from "./jobs.js";
import { nowPage } from "./now.js";
import { runPage } from "./run.js";
import { comparePage, runsPage } from "./runs.js";

const PAGES = [
  [/^\/$/, nowPage],
  [/^\/runs$/, runsPage],
  [/^\/compare$/, comparePage],
  [/^\/run\/([\w-]+)(?:\/(\w+))?$/, runPage],
  [/^\/clusters$/, clustersPage],
  [/^\/cluster\/([^/]+)$/, clusterPage],
  [/^\/jobs$/, jobsPage],
  [/^\/job\/(\d+)$/, jobPage],
  [/^\/machines$/, machinesPage],
];
const MENU = [["/", "Now", "n"], ["/runs", "Runs", "r"], ["/clusters", "Clusters", "c"], ["/jobs", "Jobs", "j"], ["/machines", "Machines", "m"]];
const page = document.getElementById("page");
const context = { about: {}, state: (text) => put(document.getElementById("link"), text) };
let leaving = new AbortController();
let before = "";

/** Show the page of the address. */
async function show() {
  leaving.abort();
  leaving = new AbortController();
  const path = location.pathname;
  put(document.querySelector("nav"), MENU.map(([href, name, key]) =>
    h("a", { href, title: `g ${key}`, "aria-current": isIn(path, href) ? "page" : null }, name)));
  context.state("");
  document.title = "mesh";
  const found = PAGES.map(([pattern, made]) => [pattern.exec(path), made]).find(([match]) => match);
  put(page);
  if (!found) {
    put(page, problem("there is no such page"));
    return;
  }
  const [match, made] = found;
  try {
    await made(page, { ...context, signal: leaving.signal, go, words: match.slice(1).map((word) => word && decodeURIComponent(word)) });
  } catch (error) {
    if (error.name !== "AbortError") put(page, problem(error.message, error.hint));
  }
}

const isIn = (path, href) => path === href || (href === "/runs" && /^\/(run|compare)/.test(path)) ||
  (href === "/clusters" && path.startsWith("/cluster/")) || (href === "/jobs" && path.startsWith("/job/"));

/** Go to another page without a load. */
export function go(address) {
  history.pushState(null, "", address);
  show();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='/']");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
window.addEventListener("popstate", show);
window.addEventListener("unhandledrejection", ({ reason }) => { // of a request after a click, as for the ranks of a line
  if (reason?.name !== "AbortError") context.state(reason?.message ?? String(reason));
});
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const place = MENU.find(([, , key]) => before === "g" && key === event.key);
  before = event.key;
  if (place) go(place[0]);
  else if (event.key === "/") {
    event.preventDefault();
    document.querySelector("input[type=search]")?.focus();
  } else if (event.key === "j" || event.key === "k") {
    const links = [...page.querySelectorAll("[data-row] a")];
    const next = links.indexOf(document.activeElement) + (event.key === "j" ? 1 : -1);
    links[Math.max(0, Math.min(links.length - 1, next))]?.focus();
  }
});

if (takeToken()) {
  try {
    context.about = await get("about");
    await show();
  } catch (error) {
    put(page, problem(error.message, error.hint));
  }
} else put(page, problem("this tab has no token: open the address that `mesh ui` has printed, or its file"));
