// Requests to the server. The token is in this tab's memory, and goes along as a header: there is no cookie.

const KEY = "mesh-token";
const RETRY_MS = 1000;
const TRIES = 3;
const AGAIN_MS = 300;

/** Take the token out of the address, where the redirecting file has put it. */
export function takeToken() {
  const given = /^#token=([\w-]+)$/.exec(location.hash);
  if (given) {
    sessionStorage.setItem(KEY, given[1]);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem(KEY) !== null;
}

const headers = (more = {}) => ({ Authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}`, ...more });

/** Get JSON, at a third try where the network changes meanwhile. An answer that is an error is thrown with its text and hint. */
export async function get(path, signal) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await read(await fetch(`/api/${path}`, { headers: headers(), signal }));
    } catch (error) {
      if (!(error instanceof TypeError) || tries === TRIES || signal?.aborted) throw error; // a TypeError: no answer
      await pause(AGAIN_MS);
    }
  }
}

export async function post(path, body) {
  const options = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body) };
  return read(await fetch(`/api/${path}`, options));
}

async function read(response) {
  const data = await response.json().catch(() => ({ error: `the server answers with status ${response.status}` }));
  if (!response.ok) throw Object.assign(new Error(data.error), { hint: data.hint ?? "", status: response.status });
  return data;
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const isHidden = () => document.visibilityState === "hidden";

/** Call a function at each change of the tab's visibility and at the end of a signal; return the function that stops this. */
function watch(signal, changed) {
  document.addEventListener("visibilitychange", changed);
  signal.addEventListener("abort", changed);
  return () => {
    document.removeEventListener("visibilitychange", changed);
    signal.removeEventListener("abort", changed);
  };
}

/** Wait until the tab is visible, or for the end of a signal. */
function visible(signal) {
  return new Promise((done) => {
    const look = () => {
      if (isHidden() && !signal.aborted) return;
      stop();
      done();
    };
    const stop = watch(signal, look);
    look();
  });
}

/**
 * Read a stream of events until the signal ends it. A stream that breaks goes on where it was, by its last id.
 * A hidden tab has no stream, because a browser opens six connections to a server for all of its tabs.
 * take(name, data) gets each event once; state(text) says how the connection is.
 */
export async function stream(path, signal, take, state = () => {}) {
  let last = "";
  for (;;) {
    await visible(signal);
    if (signal.aborted) return;
    const own = new AbortController();
    const stop = watch(signal, () => { if (isHidden() || signal.aborted) own.abort(); });
    try {
      const response = await fetch(`/api/${path}`, { headers: headers(last ? { "Last-Event-ID": last } : {}), signal: own.signal });
      if (!response.ok) {
        await read(response);
        return;
      }
      state("");
      let isOver = false; // the server has given the reason, and has nothing more
      last = await readEvents(response.body.getReader(), last, (name, data) => {
        isOver ||= name === "gone" || name === "error";
        take(name, data);
      });
      if (isOver) return;
    } catch (error) {
      if (signal.aborted) return;
      if (error.status) {
        take("error", { error: error.message, hint: error.hint });
        return;
      }
      last = error.last ?? last;
    } finally {
      stop();
    }
    if (own.signal.aborted) continue;
    state("connecting again");
    await pause(RETRY_MS);
  }
}

async function readEvents(reader, last, take) {
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return last;
      const parts = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const fields = Object.fromEntries(part.split("\n").filter((line) => line && !line.startsWith(":"))
          .map((line) => [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]));
        if (fields.event) take(fields.event, JSON.parse(fields.data));
        if (fields.id) last = fields.id;
      }
    }
  } catch (error) {
    throw Object.assign(error, { last });
  }
}
