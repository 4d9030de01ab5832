// Clients by class of device: a table of what each class came to, and charts with a line for each class.
import {COLOURS, LineChart, nearest} from "./chart.js";
import {decimal, el, runName, short} from "./page.js";

const STYLES = ["solid", "dash", "dot", "dashdot"];
const percent = share => share == null ? "–" : `${(100 * share).toFixed(1)} %`;
const TABLE = [["Clients", "clients", String], ["Local accuracy", "local_accuracy", decimal], ["Turns", "turns", String], ["Seconds", "seconds", short],
  ["Epochs", "epochs", short], ["Late", "late", percent], ["Over budget", "over", percent], ["Multiplier", "multiplier", short]];
const CHARTS = [
  ["local_accuracy", {title: "Local accuracy by class", about: "Mean over all clients of a class.", yTitle: "accuracy", bounds: [0, 1]}],
  ["seconds", {title: "Seconds by class", about: "Of training and transfer (mean).", yTitle: "seconds", zero: true}],
  ["epochs", {title: "Local epochs by class", about: "What the clients chose or were given (mean).", yTitle: "epochs", zero: true}],
  ["late", {title: "Late by class", about: "Share of the uploads that came too late.", yTitle: "share", bounds: [0, 1]}],
  ["multiplier", {title: "Multipliers by class", about: "Median and middle half of the clients.", yTitle: "multiplier", zero: true}],
  ["used", {title: "Budgets by class", about: "Median and middle half of the clients; no line where none is left.", yTitle: "share used", zero: true}],
  ["over", {title: "Over budget by class", about: "Share of the clients that exceeded theirs.", yTitle: "share", bounds: [0, 1]}],
];

export class ClassFigures {
  constructor(place) {
    Object.assign(this, {place, names: "", charts: [], x: "round"});
  }

  show({names, rounds, lines, table}, told, marks) {  // told: the columns of the run's rounds, for the hours
    if (this.names !== JSON.stringify(names)) this.make(names);
    this.table.replaceChildren(...this.rows(names, table));
    const columns = {round: rounds};
    if (told.hours) columns.hours = rounds.map(round => told.hours[nearest(told.round, round)]);
    for (const [measure, values] of Object.entries(lines)) values.forEach((each, k) => { columns[column(measure, k)] = each; });
    for (const chart of this.charts) chart.show([{name: runName, columns}], marks);
  }

  along(x) {
    this.x = x;
    for (const chart of this.charts) chart.along(x);
  }

  make(names) {
    for (const figure of this.figures ?? []) figure.remove();
    this.names = JSON.stringify(names);
    this.table = el("table");
    const title = "Clients by class of device";
    const figure = el("figure", {class: "wide", hidden: !names.length}, el("h2", {}, title),
      el("figcaption", {}, "Local accuracy and multiplier are the last ones recorded. A turn is one client in one of the rounds that are shown; seconds, epochs, and the shares of late uploads and exceeded budgets are over all turns."),
      el("div", {class: "scroll", tabIndex: 0, role: "region", "aria-label": title}, this.table));
    this.charts = CHARTS.map(([measure, about]) => new LineChart({text: short, ...about, lines: names.map((name, k) => ({
      column: column(measure, k), label: name, hue: k % COLOURS.length, dash: STYLES[k % STYLES.length],
      band: ["multiplier", "used"].includes(measure) ? [".low", ".high"].map(edge => column(measure + edge, k)) : undefined}))}));
    this.along(this.x);
    this.figures = [figure, ...this.charts.map(chart => chart.figure)];
    this.place.append(...this.figures);
  }

  rows(names, table) {
    const shown = TABLE.filter(([, measure]) => table[measure]?.some(value => value != null));
    const row = (name, k) => el("tr", {}, el("th", {scope: "row"}, name), ...shown.map(([, measure, text]) => el("td", {}, text(table[measure][k]))));
    return [el("thead", {}, el("tr", {}, ...["Class", ...shown.map(([head]) => head)].map(head => el("th", {scope: "col"}, head)))),
      el("tbody", {}, ...names.map(row))];
  }
}

const column = (measure, k) => `${measure} of class ${k}`;
