// What all pages share: elements, numbers as text, requests, events, the theme.

export const csrf = document.querySelector("meta[name=csrf]").content;
export const runName = document.querySelector("meta[name=run]").content;

// Text goes in as text only. Nothing here reads markup.
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === "class") made.className = value;
    else if (name.includes("-") || name === "role" || name === "for" || name === "scope") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter(child => child !== null && child !== undefined));
  return made;
}
export const byId = id => document.getElementById(id);
export const address = name => name.split("/").map(encodeURIComponent).join("/");
export const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export const decimal = value => value == null ? "–" : Math.abs(value) < 1e6 ? value.toFixed(4) : value.toExponential(3);
export function short(value) {  // four digits
  if (value == null) return "–";
  const size = Math.abs(value);
  if (size >= 1e5 || (size > 0 && size < 1e-3)) return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}
export function bytes(value) {
  if (value == null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${Number(value.toPrecision(3))} ${units[unit]}`;
}
export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 100) return seconds < 10 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 100 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}
export function ago(moment) {
  const seconds = Date.now() / 1000 - moment;
  if (seconds < 60) return "just now";
  if (seconds < 86400) return `${duration(Math.max(100, seconds))} ago`;
  return new Date(moment * 1000).toISOString().slice(0, 10);
}

export async function get(url) {
  return answered(await fetch(url, {headers: {accept: "application/json"}}));
}
export async function post(url, fields = {}) {
  return answered(await fetch(url, {method: "POST", body: new URLSearchParams({...fields, csrf})}));
}
async function answered(response) {
  const text = await response.text();
  let found;
  try { found = JSON.parse(text); } catch { found = {problem: text.trim() || `the console answered ${response.status}`}; }
  if (!response.ok) throw Object.assign(new Error(found.problem), {field: found.field});
  return found;
}

// Events while the page is in sight. A browser has few connections for one server, so hidden pages give theirs back.
export function listen(url, tell) {
  let source = null, again = null;
  const link = byId("link");
  const say = (text, state) => { link.textContent = text; link.dataset.state = state; };
  function open() {
    close();
    source = new EventSource(url);
    source.onopen = () => say("live", "live");
    source.onmessage = event => { say("live", "live"); tell(JSON.parse(event.data)); };
    source.onerror = () => {
      say("no connection; trying again", "lost");
      if (source.readyState === EventSource.CLOSED) again = setTimeout(open, 3000);
    };
  }
  function close() { clearTimeout(again); source?.close(); source = null; }
  document.addEventListener("visibilitychange", () => document.hidden ? close() : open());
  addEventListener("pagehide", close);
  if (!document.hidden) open();
}

export const stateBadge = state => el("span", {class: "badge", "data-state": state}, state);
export const speak = text => { byId("spoken").textContent = text; };

const watchers = new Set();  // those who draw with colours
export const onTheme = redraw => watchers.add(redraw);
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
function themed() {
  byId("theme").textContent = isDark() ? "☀" : "☾";
  byId("theme").setAttribute("aria-pressed", String(isDark()));
  watchers.forEach(redraw => redraw());
}
byId("theme").onclick = () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* it holds for this page */ }
  themed();
};
dark.addEventListener("change", themed);
themed();
for (const link of document.querySelectorAll("nav a")) if (link.pathname === location.pathname) link.setAttribute("aria-current", "page");
