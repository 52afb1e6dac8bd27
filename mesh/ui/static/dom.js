// Elements from texts. Every text becomes a text node, so that output of hosts is never read as HTML.

const SVG = "http://www.w3.org/2000/svg";

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
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return element;
}

/** Replace the children of an element. */
export function put(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
}

/** A table; rows are lists of cells. */
export function table(head, rows, attributes = {}) {
  const cells = (name, row) => row.map((cell) => (cell instanceof HTMLTableCellElement ? cell : h(cell === "" ? "td" : name, {}, cell))); // a head without text is none
  return h("div", { class: "wide" }, h("table", attributes,
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
