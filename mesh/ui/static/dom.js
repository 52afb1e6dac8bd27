// Elements from texts. Every text becomes a text node, so that output of hosts is never read as HTML.

const SVG = "http://www.w3.org/2000/svg";
const UNUSUAL = /[^\t\n\x20-\x7e\xa0-\u0600]/;
const SEQUENCES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[PX^_][^\x1b\n]*\x1b\\|[ -/]*[0-~])/g;
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;
// Marks that turn the direction of text, and characters without a width: they could make a text read as another one.
const MARKS = /[\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;
const TEXTS = ["title", "aria-label"]; // attributes that are read

/** A text of any origin without control sequences, its marks as code points: as `mesh report` shows it. */
export function plain(text) {
  if (!UNUSUAL.test(text)) return text;
  return text.replace(SEQUENCES, "").replace(CONTROLS, "")
    .replace(MARKS, (mark) => `<U+${mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);
}

/** Make an element. Attributes: "on..." functions are listeners; false and null are left out. */
export function h(name, attributes = {}, ...children) {
  if (name === "pre") attributes = { tabindex: 0, ...attributes }; // it may scroll, and keys then need a focus
  return fill(document.createElement(name), attributes, children);
}

/** Make an element of SVG. */
export function s(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : TEXTS.includes(key) ? plain(String(value)) : String(value));
  }
  element.append(...nodes(children));
  return element;
}

/** Replace the children of an element. */
export function put(element, ...children) {
  element.replaceChildren(...nodes(children));
}

const nodes = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)
  .map((child) => (child instanceof Node ? child : document.createTextNode(plain(String(child)))));

/** Call a function whenever the width of an element has changed, until a signal. */
export function onWidth(element, signal, changed) {
  let width = element.clientWidth;
  const observer = new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    changed();
  });
  observer.observe(element);
  signal.addEventListener("abort", () => observer.disconnect());
}

/** A table; rows are lists of cells. */
export function table(head, rows, attributes = {}) {
  const cells = (name, row) => row.map((cell) => (cell instanceof HTMLTableCellElement ? cell : h(cell === "" ? "td" : name, {}, cell))); // a head without text is none
  return h("div", { class: "wide", tabindex: 0 }, h("table", attributes,
    head.length ? h("thead", {}, h("tr", {}, cells("th", head))) : null,
    h("tbody", {}, rows.map((row) => h("tr", {}, cells("td", row))))));
}

/** A table of names and texts. */
export function facts(rows) {
  const shown = rows.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return h("table", { class: "facts" }, h("tbody", {}, shown.map(([name, value]) => h("tr", {}, h("th", {}, name), h("td", {}, value)))));
}

/** An error in one line, with what to try. */
export function problem(error, hint = "") {
  return h("div", { class: "error", role: "alert" }, error, hint ? [" — ", h("code", {}, hint)] : null);
}

export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** A time span: "59s", "1h02m". */
export function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (number) => String(number).padStart(2, "0");
  if (whole >= 86400) return `${Math.floor(whole / 86400)}d${two(Math.floor((whole % 86400) / 3600))}h`;
  if (whole >= 3600) return `${Math.floor(whole / 3600)}h${two(Math.floor((whole % 3600) / 60))}m`;
  return whole >= 60 ? `${Math.floor(whole / 60)}m${two(whole % 60)}s` : `${whole}s`;
}

export function moment(seconds) {
  if (!seconds) return "";
  const date = new Date(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** A sum of money whose parts may be unknown: [known, hours without a price]. */
export function money(cost, currency) {
  if (!cost) return "-";
  const [known, unknown] = cost;
  const text = unknown ? (known ? `${known.toFixed(2)} + ?` : "?") : known.toFixed(2);
  return `${text} ${currency}`.trim();
}
