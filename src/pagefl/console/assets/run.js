// A run, live: cards, charts, the clients' heat map, and the controls.
import {address, byId, decimal, duration, el, get, listen, post, runName, stateBadge} from "./page.js";
import {makeCharts} from "./charts.js";
import {ClassFigures} from "./classes.js";
import {HeatMap} from "./heat.js";

const HEAT_SECONDS = 3;  // between two looks at the heat map
const RATIOS = ["100:1", "50:1", "20:1", "10:1", "5:1", "2:1", "1:1", "1:2", "1:5", "1:10", "1:20", "1:50", "1:100"];
const here = address(runName), charts = makeCharts();
const data = {generation: 0, columns: {}, marks: []};
const heat = {metric: "lr", wanted: 0, shown: 0, busy: false};
const classes = new ClassFigures(byId("charts"));
const map = new HeatMap(metric => { heat.metric = metric; heat.shown = -1; showHeat(); });
byId("name").textContent = runName;
byId("charts").append(charts[0].figure, charts[1].figure, map.figure, ...charts.slice(2).map(chart => chart.figure));
charts.forEach(chart => { chart.figure.hidden = true; });
map.figure.hidden = true;
map.figure.classList.add("wide");

function lay(x) {  // the horizontal axis of all charts
  for (const name of ["round", "hours"]) byId(`by-${name}`).setAttribute("aria-pressed", String(name === x));
  [...charts, classes].forEach(each => each.along(x));
}
for (const name of ["round", "hours"]) byId(`by-${name}`).onclick = () => lay(name);

function take({generation, first, points, columns, marks}) {
  const kept = generation === data.generation ? first : 0;
  const names = new Set([...Object.keys(columns), ...(kept ? Object.keys(data.columns) : [])]);
  const merged = {};
  for (const name of names) {
    const before = kept ? (data.columns[name] ?? Array(kept).fill(null)).slice(0, kept) : [];
    merged[name] = before.concat(columns[name] ?? Array(points - kept).fill(null));
  }
  if (merged.clock) merged.hours = merged.clock.map(now => now == null ? null : now / 3600);
  byId("axis").hidden = !merged.clock;
  if (!merged.clock) lay("round");
  Object.assign(data, {generation, columns: merged, marks});
  charts.forEach(chart => chart.show([{name: runName, columns: merged}], marks));
}

function card(name, value, note = "") {
  return el("div", {}, el("dt", {}, name), el("dd", {}, el("b", {}, value), note));
}
function best(column) {
  const values = data.columns[column] ?? [];
  let at = -1;
  values.forEach((value, i) => { if (value != null && (at < 0 || value > values[at])) at = i; });
  return at < 0 ? "" : `best ${decimal(values[at])} in round ${data.columns.round[at]}`;
}

function showRow(row, told) {
  byId("badge").replaceChildren(stateBadge(row.state));
  document.title = `${row.state}: ${runName} · pagefl`;
  const parts = row.task ? [`task ${row.task}`, `algorithm ${row.algorithm}`, `players ${row.players}`, ...(row.seed == null ? [] : [`seed ${row.seed}`]), ...(row.deployment ? ["deployment"] : [])] : [];
  byId("facts").textContent = parts.join(" · ");
  const problem = row.problem ?? told.problem;
  byId("problem").hidden = !problem;
  byId("problem").textContent = problem ?? "";
  byId("progress").value = row.rounds ? (row.round ?? 0) / row.rounds : 0;
  byId("reached").textContent = `round ${row.round ?? 0} of ${row.rounds ?? "?"}${row.left != null ? `, ${duration(row.left)} left` : ""}`;
  byId("cards").replaceChildren(
    card("Global accuracy", decimal(row.global_accuracy), best("global_accuracy")),
    card("Local accuracy", decimal(row.local_accuracy), best("local_accuracy")),
    card("Worst tenth", decimal(row.local_worst10), "of the clients, by local accuracy"),
    ...(row.personal_accuracy == null ? [] : [card("Personal accuracy", decimal(row.personal_accuracy), "after the personal step")]),
    card("Time", duration(told.seconds ?? 0), row.round ? `${((told.seconds ?? 0) / row.round).toPrecision(3)} s per round` : ""));
  controls(row, told);
}

// Controls

let busy = false, usesDemand = null, touched = false, askedFor = null;
const ratioText = () => RATIOS[byId("slider").value];
function tellRatio() {
  const [server, clients] = ratioText().split(":").map(Number);
  byId("ratio").textContent = ratioText();
  byId("slider").setAttribute("aria-valuetext", server === clients ? "1:1, both count the same"
    : server > clients ? `${ratioText()}, our shared model counts ${server} times` : `${ratioText()}, their own models count ${clients} times`);
}
function controls(row, told) {
  const live = row.state === "running" || row.state === "starting", over = row.state === "finished";
  byId("stop").disabled = busy || !live;
  byId("resume").disabled = busy || live || over || row.deployment === true || row.ghost === true;
  byId("extend-button").disabled = busy || live || row.deployment === true || row.ghost === true;
  if (!byId("rounds").value && row.rounds) byId("rounds").value = String(2 * row.rounds);
  for (const id of ["slider", "apply"]) byId(id).disabled = busy || over || row.ghost === true || usesDemand === false;
  if (told.bias && !touched && RATIOS.includes(told.bias)) { byId("slider").value = RATIOS.indexOf(told.bias); tellRatio(); }
  const state = byId("demand-state");
  const text = usesDemand === false ? "These players do not learn from rewards: demand changes nothing for them."
    : row.pending ? `Asked for ${row.pending}${row.running ? "; the next round takes it up." : "; the run takes it up when it goes on."}`
      : askedFor && askedFor === told.bias ? `${told.bias} holds since round ${told.marks.at(-1)?.[0] ?? 1}.` : told.bias ? `Now ${told.bias} (server : clients).` : "";
  if (state.textContent !== text) state.textContent = text;
}
async function act(url, fields, done) {
  const state = byId("action-state");
  busy = true;
  try { await post(`/runs/${here}/${url}`, fields); state.textContent = done; state.classList.remove("problem"); }
  catch (error) { state.textContent = error.message; state.classList.add("problem"); }
  finally { busy = false; if (latest) controls(latest.row, latest); }
}
byId("slider").oninput = () => { touched = true; tellRatio(); };
byId("ratios").append(...RATIOS.map((ratio, i) => el("option", {value: String(i), label: ratio})));
tellRatio();
byId("demand").onsubmit = async event => {
  event.preventDefault();
  askedFor = ratioText();
  byId("demand-state").textContent = `Asking for ${askedFor} …`;
  try { await post(`/runs/${here}/bias`, {ratio: askedFor}); touched = false; }
  catch (error) { byId("demand-state").textContent = error.message; }
};
byId("stop").onclick = () => act("stop", {}, "Stopping after the current round …");
byId("resume").onclick = () => act("resume", {}, "Resuming …");
byId("extend").onsubmit = event => {
  event.preventDefault();
  act("resume", {rounds: byId("rounds").value}, `Extending to round ${byId("rounds").value} …`);
};

// The heat map and the settings

async function showHeat() {
  if (heat.busy || heat.shown === heat.wanted) return;
  heat.busy = true;
  const {metric, wanted} = heat;
  try {
    map.show(metric, await get(`/clients/${here}?metric=${metric}`));
    heat.shown = metric === heat.metric ? wanted : -1;
    if (data.columns.clock) classes.show(await get(`/classes/${here}`), data.columns, data.marks);
  } catch { heat.shown = wanted; }
  setTimeout(() => { heat.busy = false; showHeat(); }, metric === heat.metric ? 1000 * HEAT_SECONDS : 0);
}

async function showSettings() {
  const place = byId("settings");
  try {
    const {rows, uses_demand: uses} = await get(`/settings/${here}`);
    usesDemand = uses;
    if (latest) controls(latest.row, latest);
    const differ = rows.filter(row => row.differs);
    const line = row => el("tr", {class: row.differs ? "differs" : ""}, el("th", {scope: "row"}, row.name), el("td", {}, row.value),
      el("td", {}, row.usual ?? "–"), el("td", {class: "meaning"}, row.meaning));
    const table = (title, shown) => el("div", {class: "scroll", tabIndex: 0, role: "region", "aria-label": title}, el("table", {class: "settings"},
      el("caption", {}, title), el("thead", {}, el("tr", {}, ...["Setting", "Value", "Default", "Meaning"].map(name => el("th", {scope: "col"}, name)))), el("tbody", {}, ...shown.map(line))));
    place.replaceChildren(el("summary", {}, `Settings: ${differ.length} differ from the defaults`),
      ...(differ.length ? [table("Different from the defaults of this task, algorithm and players", differ)] : []), table("All settings", rows));
  } catch (error) { place.replaceChildren(el("summary", {}, "Settings"), el("p", {class: "problem"}, error.message)); }
}

let latest = null, asked = false;
listen(`/events/${here}`, told => {
  if (told.gone) { byId("problem").hidden = false; byId("problem").textContent = told.gone; return; }
  latest = {marks: [], ...told};
  if (told.columns) take(told);
  showRow(told.row, latest);
  if (told.clients) { heat.wanted = told.clients; showHeat(); }
  if (!asked && !told.row.ghost) { asked = true; showSettings(); }
  const state = byId("action-state");
  if (!state.classList.contains("problem") && ((state.textContent.startsWith("Stopping") && !told.row.running)
    || (/^(Resuming|Extending)/.test(state.textContent) && told.row.running))) state.textContent = "";
});
