// Some runs side by side: the tables of `pagefl compare`, and their curves.
import {address, byId, el, get, stateBadge} from "./page.js";
import {CHARTS, makeCharts} from "./charts.js";
import {COLOURS} from "./chart.js";

const AGAIN = 3000;  // ms between looks while a run is going on
const names = [...new Set(new URLSearchParams(location.search).getAll("run"))];
const wanted = ["global_accuracy", "local_accuracy", "local_worst10", "personal_accuracy"].map((column, at) => ({...CHARTS[0], title: ["Global accuracy", "Local accuracy", "Worst tenth", "Personal accuracy"][at],
  about: ["The shared model on the server's test.", "The clients' own models on their own tests, averaged.", "Mean local accuracy of the worst tenth of the clients.", "After the personal step."][at],
  lines: [{column, label: column === "personal_accuracy" ? "personal" : "by run", hue: 0}]}));
const charts = makeCharts([wanted[0], wanted[1], {...CHARTS[1], about: "Each run's way through the plane of both accuracies. Up and to the right is better on both; dots are the ends."}, wanted[2], wanted[3]], true);
byId("charts").append(...charts.map(chart => chart.figure));
charts.forEach(chart => { chart.figure.hidden = true; chart.legend.hidden = true; });

async function curves(colours) {
  const found = await Promise.all(names.map(name => get(`/rounds/${address(name)}`).catch(error => ({problem: error.message, name}))));
  const shown = found.filter(one => one.row).map(one => ({name: one.row.name, columns: one.columns, colour: colours[one.row.name], row: one.row}))
    .map((one, at) => ({...one, colour: one.colour ?? COLOURS[at % COLOURS.length]}));
  byId("legend").replaceChildren(...shown.map(({name, colour, row}) => {
    const swatch = el("i", {class: "swatch"});
    swatch.style.background = colour;
    return el("span", {role: "listitem"}, swatch, el("a", {href: `/runs/${address(name)}`}, name), el("span", {class: "dim"}, ` ${row.method}, seed ${row.seed} `), stateBadge(row.state));
  }));
  charts.forEach(chart => { chart.show(shown); chart.legend.hidden = true; });
  const missing = found.filter(one => !one.row).map(one => one.problem);
  if (missing.length) { byId("problem").hidden = false; byId("problem").textContent = missing.join(" "); }
  return shown.some(one => one.row.running);
}

async function statistics() {  // returns the runs' colours, which are those of reports and tables
  const place = byId("tables");
  try {
    const {tables, said, colours} = await get(`/comparison?${new URLSearchParams(names.map(name => ["run", name]))}`);
    const table = ({title, columns, rows}) => el("div", {class: "scroll", tabIndex: 0, role: "region", "aria-label": title}, el("table", {},
      el("caption", {}, title), el("thead", {}, el("tr", {}, ...columns.map(column => el("th", {scope: "col"}, column)))),
      el("tbody", {}, ...rows.map(([first, ...cells]) => el("tr", {}, el("th", {scope: "row"}, first), ...cells.map(cell => el("td", {}, cell)))))));
    place.replaceChildren(...tables.map(table), ...said.map(sentence => el("p", {class: "dim"}, sentence)));
    return colours;
  } catch (error) {
    place.replaceChildren(el("p", {class: "problem"}, error.message));
    return {};
  }
}

async function follow(colours) {
  if (await curves(colours)) setTimeout(follow, AGAIN, colours);
}

if (names.length < 2) {
  byId("tables").replaceChildren(el("p", {}, "Pick two or more runs on the ", el("a", {href: "/"}, "overview"), "."));
} else { statistics().then(follow); }
