const {charts, runs, clients} = JSON.parse(document.getElementById("data").textContent);
const colours = ["#3b82f6", "#e8710a", "#14a06f", "#a35cf0", "#e0457b", "#0e9aa7", "#b08900", "#8a8f98", "#9a4a1f", "#5b8c12", "#5666c4", "#c23b3b"];
const dashes = {solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3"}, several = runs.length > 1, hidden = new Set();
const finger = matchMedia("(pointer: coarse)").matches;
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name);
const plain = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");  // Plotly would read a name as markup
const short = name => name.length > 48 ? name.slice(0, 20) + "…" + name.slice(-27) : name;
const groups = [...new Set(runs.map(run => run.name.replace(/, seed \d+$/, "")))];  // the seeds of a method form a group
runs.forEach(run => run.group = groups.indexOf(run.name.replace(/, seed \d+$/, "")));
const lastRound = runs.reduce((last, run) => run.round.reduce((a, b) => Math.max(a, b), last), 0);

function traces(c, r, l) {
  const run = runs[r], {column, label, hue, style, band, right} = charts[c].lines[l];
  const color = colours[(several ? run.group : hue) % colours.length], dash = several ? Object.keys(dashes)[l] : style;
  const name = several ? `${run.name}: ${label}` : label;
  const shared = {x: run[charts[c].x], customdata: run.round, yaxis: right ? "y2" : "y", visible: !hidden.has(`run ${run.group}`) && !hidden.has(`line ${c} ${l}`)};
  const known = run[column].filter(value => value !== null).length;
  const mode = known > 2 ? "lines" : "lines+markers";  // markers show what is too short for a line
  const line = {...shared, y: run[column], connectgaps: column === "personal_accuracy", line: {width: 2, color, dash}, mode, marker: {size: 6}, name,
    meta: plain(short(name)), hovertemplate: charts[c].x === "round" ? "%{y:.4g}<extra>%{meta}</extra>"
      : "round %{customdata}: %{x:.4g}, %{y:.4g}<extra>%{meta}</extra>"};
  if (!band || runs.length > 3) return [line];  // more than three bands would hide one another
  const off = sign => line.y.map((y, i) => y === null || run[band][i] === null ? null : y + sign * run[band][i]);
  const edge = {...shared, mode: "lines", line: {width: 0, color}, hoverinfo: "skip"};
  return [{...edge, y: off(-1)}, {...edge, y: off(1), fill: "tonexty", fillcolor: color + (several ? "16" : "2a")}, line];
}

function ends(c) {  // each run's last round is a dot, and a line joins the dots on the Pareto front
  const {x, lines: [{column: y, hue}]} = charts[c];
  const shown = runs.filter(run => run[x].at(-1) != null && run[y].at(-1) != null && !hidden.has(`run ${run.group}`) && !hidden.has(`line ${c} 0`));
  const points = shown.map(run => [run[x].at(-1), run[y].at(-1)]);
  const best = points.filter(([a, b]) => !points.some(([c, d]) => c >= a && d >= b && (c > a || d > b))).sort((p, q) => p[0] - q[0]);
  const dots = {x: points.map(p => p[0]), y: points.map(p => p[1]), mode: "markers", hoverinfo: "skip",
    marker: {size: 9, color: shown.map(run => colours[(several ? run.group : hue) % colours.length])}};
  const front = {x: best.map(p => p[0]), y: best.map(p => p[1]), mode: "lines", line: {width: 1, dash: "dot", color: css("--dim")}, hoverinfo: "skip"};
  return several ? [dots, front] : [dots];
}

function draw(c) {
  const axis = {gridcolor: css("--edge"), linecolor: css("--edge"), zeroline: false, automargin: true};
  const {x, lines, axis: scale, right} = charts[c], byRound = x === "round";
  const bounds = lines[0].column.endsWith("accuracy") ? {clipmin: -0.005, clipmax: 1.005} : {};
  const logarithmic = kind => kind === "log" ? "D2" : undefined;  // ticks at 1, 2 and 5 only: all nine digits would overlap
  const drawn = lines.flatMap((_, l) => runs.flatMap((_, r) => traces(c, r, l)));
  if (!byRound) drawn.push(...ends(c));
  Plotly.react(`chart${c}`, drawn, {
    font: {family: "system-ui, sans-serif", size: 12, color: css("--dim")},
    paper_bgcolor: css("--card"), plot_bgcolor: css("--card"),
    margin: {l: 8, r: 12, t: finger ? 12 : 26, b: 8}, showlegend: false, uirevision: "as the reader left it",
    xaxis: {...axis, title: {text: byRound ? "round" : "global accuracy", font: {size: 12}, standoff: 6},
      unifiedhovertitle: {text: "round %{x}"}, dtick: byRound && lastRound < 8 ? 1 : undefined},  // short runs would get ticks at half rounds
    yaxis: {...axis, type: scale, autorangeoptions: bounds, tickformat: "~g", dtick: logarithmic(scale),
      title: byRound ? undefined : {text: "local accuracy", font: {size: 12}}},
    ...(right ? {yaxis2: {...axis, type: right, overlaying: "y", side: "right", showgrid: false, tickformat: "~g",
      tickmode: "auto", dtick: right === "log" ? 1 : undefined}} : {}),
    dragmode: finger ? false : "zoom",  // a finger must be able to scroll the page
    hovermode: runs.length > 4 || !byRound ? "closest" : "x unified",
    hoverlabel: {bgcolor: css("--card"), bordercolor: css("--edge"), font: {color: css("--ink")}, namelength: -1},
    modebar: {bgcolor: "transparent", color: css("--dim"), activecolor: css("--ink")},
  }, {responsive: true, displaylogo: false, displayModeBar: finger ? false : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]]});
}

function drawClients() {  // each run is a box, and each of its clients a dot
  const shown = clients.map((values, r) => ({type: "box", y: values, name: plain(short(runs[r].name)), boxpoints: "all", jitter: 0.6,
    pointpos: 0, marker: {size: 3, opacity: 0.5}, line: {width: 1.2, color: colours[several ? runs[r].group % colours.length : 1]},
    fillcolor: "transparent", hoverinfo: "y+name", visible: !hidden.has(`run ${runs[r].group}`)})).filter(box => box.y.length);
  const axis = {gridcolor: css("--edge"), linecolor: css("--edge"), zeroline: false, automargin: true};
  Plotly.react("clients", shown, {font: {family: "system-ui, sans-serif", size: 12, color: css("--dim")},
    paper_bgcolor: css("--card"), plot_bgcolor: css("--card"), margin: {l: 8, r: 12, t: 12, b: 8}, showlegend: false,
    xaxis: {...axis, type: "category", showticklabels: shown.length < 9}, yaxis: {...axis, tickformat: "~g"}, dragmode: false},
    {responsive: true, displayModeBar: false});
}

const stale = new Set(), inSight = new Set();  // charts are drawn when they come into view: thirty runs in eight charts take seconds
function drawNext() {
  const chart = [...document.querySelectorAll(".chart")].find(chart => stale.has(chart) && inSight.has(chart));
  if (!chart) return false;
  stale.delete(chart);
  chart.id === "clients" ? drawClients() : draw(Number(chart.id.slice(5)));
  return true;
}
function drawSeen() {  // charts are drawn one at a time, so that scrolling stays smooth
  if (drawNext()) setTimeout(drawSeen);
}
function drawAll() {
  document.querySelectorAll(".chart").forEach(chart => stale.add(chart));
  drawSeen();
}
const watch = new IntersectionObserver(entries => {
  for (const {target, isIntersecting} of entries) isIntersecting ? inSight.add(target) : inSight.delete(target);
  drawSeen();
}, {rootMargin: "150px"});
addEventListener("beforeprint", () => { document.querySelectorAll(".chart").forEach(chart => inSight.add(chart)); while (drawNext()); });

function switches(entries) {  // Plotly's own legend cannot be reached by keyboard
  const legend = document.createElement("div");
  legend.className = "legend";
  for (const {key, label, color, dash} of entries) {
    const button = document.createElement("button");
    button.innerHTML = `<svg width="26" height="10" aria-hidden="true"><path d="M1 5h24" stroke-width="2.5"/></svg>`;
    button.querySelector("path").style = `stroke: ${color}; stroke-dasharray: ${dashes[dash]}`;
    button.append(label);
    button.dataset.key = key;
    button.ariaPressed = "true";
    button.onclick = () => {
      hidden.delete(key) || hidden.add(key);
      for (const each of document.querySelectorAll(".legend button")) each.ariaPressed = String(!hidden.has(each.dataset.key));
      drawAll();
    };
    legend.append(button);
  }
  return legend;
}

function readByArrows(chart, c) {
  const rounds = [...new Set(runs.flatMap(run => run.round))].sort((a, b) => a - b);
  let at = -1;
  chart.onkeydown = event => {
    const next = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: rounds.length - 1}[event.key];
    if (next === undefined || !rounds.length) return;
    event.preventDefault();
    at = Math.min(Math.max(next, 0), rounds.length - 1);
    const lines = chart.data.filter(trace => trace.meta && trace.visible);
    const told = lines.map(line => `${line.name} ${line.y[line.customdata.indexOf(rounds[at])] ?? "none"}`).join(", ");
    document.getElementById("spoken").textContent = `round ${rounds[at]}: ${told}`;
    if (charts[c].x === "round") Plotly.Fx.hover(chart, {xval: rounds[at]});
  };
}

if (several && charts.length) {
  const legend = switches(groups.map((name, g) => ({key: `run ${g}`, label: name, color: colours[g % colours.length], dash: "solid"})));
  legend.classList.add("runs");
  document.querySelector(".charts").before(legend);
}
charts.forEach((_, c) => {
  const chart = document.getElementById(`chart${c}`);
  chart.before(switches(charts[c].lines.map(({label, hue, style: dash}, l) => ({key: `line ${c} ${l}`, label,
    color: several ? "currentColor" : colours[hue], dash: several ? Object.keys(dashes)[l] : dash}))));
  readByArrows(chart, c);
});
addEventListener("load", () => setTimeout(() => {  // the page can be read before Plotly's megabytes have run
  const script = document.createElement("script");
  script.textContent = document.getElementById("plotly").textContent;
  document.body.append(script);
  document.querySelectorAll(".chart").forEach(chart => watch.observe(chart));
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}));
