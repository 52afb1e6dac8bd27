// Loads the pages. A browser fails requests while an interface of this machine comes or goes, and keeps the failure
// of a module: only a reload asks for it again.

const KEY = "mesh-reloads";
const RELOADS_MAX = 3;
const PAUSE_MS = 300;

import("/static/main.js").then(() => sessionStorage.removeItem(KEY), (error) => {
  const reloads = Number(sessionStorage.getItem(KEY) ?? 0);
  sessionStorage.setItem(KEY, reloads < RELOADS_MAX ? reloads + 1 : 0);
  if (reloads < RELOADS_MAX) setTimeout(() => location.reload(), PAUSE_MS);
  else document.getElementById("page").textContent = `the page cannot be loaded: ${error.message}`;
});
