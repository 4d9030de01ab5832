// The overview: a row for each run; filter, sort, pick some to compare.
import {address, ago, byId, decimal, duration, el, listen, stateBadge} from "./page.js";

const COLUMNS = [
  {title: "", label: "Compare"},
  {title: "Run", key: row => row.name},
  {title: "State", key: row => row.state},
  {title: "Task", key: row => row.task ?? ""},
  {title: "Method", key: row => `${row.method ?? ""} ${row.seed ?? ""}`},
  {title: "Round", key: row => row.round ?? -1},
  {title: "Global accuracy", key: row => row.global_accuracy ?? -1},
  {title: "Local accuracy", key: row => row.local_accuracy ?? -1},
  {title: "Time", label: "time left, or last change", key: row => row.left ?? 1e12 - (row.changed ?? 0)},
];
const rows = new Map(), made = new Map(), picked = new Set();  // by name
let sorted = 8, down = false;

function spark(values, kind, name) {
  const shape = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({viewBox: "0 0 80 24", width: 80, height: 24, role: "img", "aria-label": name, class: `spark ${kind}`}))
    shape.setAttribute(key, value);
  const known = (values ?? []).map((value, i) => [i, value]).filter(([, value]) => value != null);
  if (known.length > 1) {
    const heights = known.map(([, value]) => value), low = Math.min(...heights), high = Math.max(...heights);
    const last = known.at(-1)[0] || 1;
    const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    line.setAttribute("points", known.map(([i, value]) => `${2 + 76 * i / last},${21 - 18 * (value - low) / (high - low || 1)}`).join(" "));
    shape.append(line);
  }
  return shape;
}

const accuracy = (row, side) => el("td", {"data-label": `${side} accuracy`, class: "number"},
  el("span", {class: "pair"}, el("b", {}, decimal(row[`${side.toLowerCase()}_accuracy`])), spark(row.spark?.[side.toLowerCase()], side.toLowerCase(), `${side} accuracy by round`)));

function tableRow(row) {
  const box = el("input", {type: "checkbox", checked: picked.has(row.name), "aria-label": `Compare ${row.name}`, disabled: row.ghost === true});
  box.onchange = () => { box.checked ? picked.add(row.name) : picked.delete(row.name); tellPicked(); };
  const share = row.rounds ? Math.min(1, (row.round ?? 0) / row.rounds) : 0;
  const progress = el("progress", {max: 1, value: share, "aria-label": "Rounds done"});
  const when = row.running && row.left != null ? `${duration(row.left)} left` : row.changed ? ago(row.changed) : "–";
  return el("tr", {},
    el("td", {class: "pick"}, box),
    el("th", {scope: "row"}, el("a", {href: `/runs/${address(row.name)}`}, row.name), row.problem ? el("p", {class: "problem"}, row.problem) : null),
    el("td", {"data-label": "State"}, stateBadge(row.state)),
    el("td", {"data-label": "Task"}, row.task ?? "–"),
    el("td", {"data-label": "Method"}, el("span", {class: "stack"}, el("span", {}, row.method ?? "–"), row.seed == null ? null : el("span", {class: "dim"}, `seed ${row.seed}`))),
    el("td", {"data-label": "Round", class: "number"}, el("span", {class: "stack"}, el("span", {}, `${row.round ?? 0} / ${row.rounds ?? "?"}`), progress)),
    accuracy(row, "Global"), accuracy(row, "Local"),
    el("td", {"data-label": row.running ? "Left" : "Last change"}, when));
}

function tellPicked() {
  const link = byId("compare"), names = [...picked].filter(name => rows.has(name));
  link.textContent = names.length > 1 ? `Compare ${names.length} runs` : `Compare: pick ${names.length ? "one more run" : "two runs"}`;
  if (names.length > 1) link.href = `/compare?${new URLSearchParams(names.map(name => ["run", name]))}`;
  else link.removeAttribute("href");
  link.setAttribute("aria-disabled", String(names.length < 2));
}

function arrange() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean), state = byId("state").value;
  const key = COLUMNS[sorted].key;
  const shown = [...rows.values()].filter(row => (!state || row.state === state || (state === "running" && row.state === "starting"))
    && words.every(word => [row.name, row.task, row.method, row.algorithm, row.players, row.state].join(" ").toLowerCase().includes(word)));
  shown.sort((a, b) => {
    const [one, other] = [key(a), key(b)];
    const order = typeof one === "string" ? one.localeCompare(other, undefined, {numeric: true}) : one - other;
    return (down ? -order : order) || a.name.localeCompare(b.name);
  });
  const body = document.querySelector("tbody"), wanted = shown.map(row => made.get(row.name));
  if (wanted.length !== body.children.length || wanted.some((row, i) => row !== body.children[i])) body.replaceChildren(...wanted);
  document.querySelector("table").hidden = !rows.size;
  byId("empty").hidden = rows.size > 0;
}

function head() {
  document.querySelector("thead tr").replaceChildren(...COLUMNS.map((column, number) => {
    const cell = el("th", {scope: "col"});
    if (!column.key) { cell.append(el("span", {class: "hidden"}, column.label)); return cell; }
    if (number === sorted) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
    cell.append(el("button", {type: "button", title: `Sort by ${column.label ?? column.title}`, onclick: () => {
      down = number === sorted ? !down : typeof column.key({name: ""}) === "number" && number !== 8;
      sorted = number;
      head();
      arrange();
      document.querySelectorAll("thead button")[number - 1].focus();
    }}, column.title));
    return cell;
  }));
}

head();
byId("filter").oninput = byId("state").onchange = arrange;
listen("/events", ({rows: changed, gone}) => {
  for (const name of gone) { rows.delete(name); made.delete(name); }
  for (const row of changed) {
    const before = made.get(row.name), now = tableRow(row), focused = before?.contains(document.activeElement) ? document.activeElement.tagName : null;
    rows.set(row.name, row);
    made.set(row.name, now);
    before?.replaceWith(now);
    if (focused) now.querySelector(focused.toLowerCase())?.focus();
  }
  arrange();
  tellPicked();
});
