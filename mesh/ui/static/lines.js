// The folded lines of a run: only the visible ones are in the page, and only some windows in memory.

import { get } from "./api.js";
import { h, put } from "./dom.js";

const ROW = 20; // pixels
const WINDOW = 200; // lines that are asked for at once
const KEPT = 40; // windows in memory
const HEIGHT_MAX = 8_000_000; // pixels: browsers cannot scroll over more; beyond it a pixel stands for several lines
const SOON_MS = 100; // to the next request for a window that has grown
const MARGIN = 10; // rows above and below the visible ones

export class Lines {
  constructor(run, { onlabel = () => {}, signal }) {
    this.run = run;
    this.signal = signal;
    this.onlabel = onlabel;
    this.total = 0;
    this.filter = new URLSearchParams();
    this.windows = new Map();
    this.waiting = new Set();
    this.target = -1;
    this.follows = true;
    this.space = h("div", { class: "space" });
    this.shown = h("div", { class: "window" });
    this.element = h("div", { class: "lines", tabindex: "0", role: "log", "aria-label": "Output of the ranks", onscroll: () => this.scrolled() },
      this.space, this.shown);
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  /** Show another part of the output. */
  choose(filter) {
    this.filter = filter;
    this.windows.clear();
    this.waiting.clear();
    this.total = 0;
    this.draw();
  }

  /** Note how many lines there are now. */
  grow(total) {
    if (total === this.total) return;
    if (total < this.total) this.windows.clear();
    this.total = total;
    if (this.follows && this.target < 0) this.toEnd();
    this.draw();
  }

  get height() {
    return Math.min(this.total * ROW, HEIGHT_MAX);
  }

  /** Lines for each pixel of the scroll bar, relative to the usual. */
  get scale() {
    const room = this.element.clientHeight;
    const real = this.total * ROW;
    return real <= HEIGHT_MAX ? 1 : (real - room) / (HEIGHT_MAX - room);
  }

  toEnd() {
    this.space.style.height = `${this.height}px`;
    this.element.scrollTop = this.height;
  }

  /** Scroll to a line and mark it. */
  toLine(number) {
    this.target = number;
    this.follows = false;
    this.space.style.height = `${this.height}px`;
    this.element.scrollTop = Math.max(0, (number * ROW) / this.scale - this.element.clientHeight / 3);
    this.draw();
  }

  scrolled() {
    this.follows = this.element.scrollTop + this.element.clientHeight >= this.height - ROW;
    if (!this.frame) this.frame = requestAnimationFrame(() => { this.frame = 0; this.draw(); });
  }

  draw() {
    const { element } = this;
    this.space.style.height = `${this.height}px`;
    const top = element.scrollTop * this.scale; // in pixels of all lines
    const first = Math.max(0, Math.floor(top / ROW) - MARGIN);
    const last = Math.min(this.total, Math.ceil((top + element.clientHeight) / ROW) + MARGIN);
    this.shown.style.transform = `translateY(${element.scrollTop - (top - first * ROW)}px)`;
    const rows = [];
    for (let number = first; number < last; number += 1) rows.push(this.row(number));
    put(this.shown, rows);
    this.load(Math.floor(first / WINDOW), Math.floor(Math.max(first, last - 1) / WINDOW));
  }

  row(number) {
    const found = this.windows.get(Math.floor(number / WINDOW))?.[number % WINDOW];
    if (!found) return h("div", { class: "row muted" }, "…");
    const [, label, stream, text, mixed] = found;
    const classes = `row ${stream}${mixed ? " mixed" : ""}${number === this.target ? " target" : ""}`;
    return h("div", { class: classes, "data-line": number },
      h("button", { class: "label", title: `line ${number}: show its ranks`, onclick: () => this.onlabel(number, label) }, label), " ",
      h("span", { class: "text" }, typeof text === "string" ? text : text.map(([name, part]) => (name ? h("span", { class: name }, part) : part))));
  }

  isWhole(number) {
    return this.windows.has(number) && this.windows.get(number).length >= Math.min(WINDOW, this.total - number * WINDOW);
  }

  /** Ask for windows that are missing or have grown. */
  load(first, last) {
    for (let number = first; number <= last && number * WINDOW < this.total; number += 1) {
      if (this.isWhole(number) || this.waiting.has(number)) continue;
      this.waiting.add(number);
      this.fetch(number, this.filter);
    }
  }

  async fetch(number, filter) {
    const query = new URLSearchParams(filter);
    query.set("first", number * WINDOW);
    query.set("count", WINDOW);
    try {
      const found = await get(`runs/${this.run}/lines?${query}`, this.signal);
      if (filter !== this.filter) return;
      this.windows.set(number, found.rows);
      if (!this.isWhole(number)) { // it has grown while the answer was on its way
        setTimeout(() => { this.waiting.delete(number); this.draw(); }, SOON_MS);
        this.draw();
        return;
      }
      for (const key of this.windows.keys()) if (this.windows.size > KEPT && key !== number) this.windows.delete(key);
      this.waiting.delete(number);
      this.draw();
    } catch (error) {
      if (!this.signal.aborted) setTimeout(() => this.waiting.delete(number), 1000);
    }
  }
}
