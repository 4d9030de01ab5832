const {charts, runs} = JSON.parse(document.getElementById("data").textContent);
const all = (selector, within = document) => [...within.querySelectorAll(selector)], hidden = new Set();
const short = name => name.length > 48 ? name.slice(0, 20) + "…" + name.slice(-27) : name;
const number = value => value === null || value === undefined ? "none" : String(Number(value.toPrecision(4)));

function toggle(key) {  // a key stands for a line of one chart, or for all lines of a run
  hidden.delete(key) || hidden.add(key);
  for (const part of all("[data-key]")) if (part.dataset.key === key) {
    part.tagName === "BUTTON" ? part.ariaPressed = String(!hidden.has(key)) : part.classList.toggle("hidden", hidden.has(key));
  }
}
for (const button of all(".legend button")) button.onclick = () => toggle(button.dataset.key);

const lines = charts.map(({labels}, c) => runs.flatMap(run => Object.entries(labels).map(([column, label]) => ({
  run, column, label, key: runs.length > 1 ? run.key : all(`#chart${c} [data-key]`).map(path => path.dataset.key).find(key => key.endsWith(` ${column}`)) ?? run.key,
  name: runs.length > 1 ? run.name : label}))));
const shown = c => lines[c].filter(line => !hidden.has(line.key) && line.run.columns[line.column].some(value => value !== null));

function tooltip(chart) {
  const plot = chart.querySelector(".plot"), box = document.createElement("div"), rule = document.createElement("div");
  [box.className, rule.className] = ["tip", "rule"];
  box.hidden = rule.hidden = true;
  plot.append(rule, box);
  return {
    show(title, entries, left) {
      box.replaceChildren(title, ...entries.map(([name, value, colour]) => {
        const row = document.createElement("div"), spot = document.createElement("span");
        spot.style.background = colour;
        row.append(spot, `${short(name)}  `, Object.assign(document.createElement("b"), {textContent: value}));
        return row;
      }));
      box.hidden = rule.hidden = false;
      rule.style.left = `${100 * left}%`;
      box.style.left = left < 0.5 ? `calc(${100 * left}% + 10px)` : "auto";
      box.style.right = left < 0.5 ? "auto" : `calc(${100 * (1 - left)}% + 10px)`;
    },
    hide: () => box.hidden = rule.hidden = true,
  };
}

const colourOf = (chart, key) => all(".line", chart).find(path => path.dataset.key === key)?.style.stroke ?? "currentColor";
charts.forEach(({x}, c) => {
  const chart = document.getElementById(`chart${c}`), plot = chart.querySelector(".plot"), tip = tooltip(chart);
  const rounds = [...new Set(runs.flatMap(run => run.columns.round))].sort((a, b) => a - b);
  const valueAt = (line, round) => line.run.columns[line.column][line.run.columns.round.indexOf(round)];
  let at = -1;

  function tell(round, left) {
    const entries = shown(c).map(line => [line.name, valueAt(line, round), colourOf(chart, line.key)]).filter(entry => entry[1] != null);
    entries.sort((a, b) => b[1] - a[1]);
    const most = entries.slice(0, 12).map(([name, value, colour]) => [name, number(value), colour]);
    tip.show(`round ${round}`, most, left);
  }
  const on = (range, value) => (value - range[0]) / (range[1] - range[0]);
  const [across, up] = [plot.dataset.x, plot.dataset.y].map(range => range.split(" ").map(Number)), share = round => on(across, round);

  plot.onpointermove = event => {
    const frame = plot.getBoundingClientRect(), left = (event.clientX - frame.left) / frame.width;
    if (x === "round") {
      const round = rounds.reduce((best, each) => Math.abs(share(each) - left) < Math.abs(share(best) - left) ? each : best, rounds[0]);
      if (round !== undefined) tell(round, share(round));
      return;
    }
    const top = (event.clientY - frame.top) / frame.height;  // the nearest point of any run
    let best = null;
    for (const line of shown(c)) {
      const xs = line.run.columns[x], ys = line.run.columns[line.column];
      xs?.forEach((value, i) => {  // a run without a clock has no hours
        if (value === null || ys[i] === null) return;
        const gap = Math.hypot((on(across, value) - left) * frame.width, (1 - on(up, ys[i]) - top) * frame.height);
        if (!best || gap < best.gap) best = {gap, line, i};
      });
    }
    if (!best || best.gap > 60) return tip.hide();
    const {line, i} = best, of = line.run.columns;
    const [first, second] = x === "hours" ? ["hours", line.name] : ["global", "local"];
    tip.show(`${short(line.run.name)}, round ${of.round[i]}`, [[first, number(of[x][i]), colourOf(chart, line.key)], [second, number(of[line.column][i]), colourOf(chart, line.key)]], on(across, of[x][i]));
  };
  plot.onpointerleave = tip.hide;
  chart.onkeydown = event => {
    const next = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: rounds.length - 1}[event.key];
    if (event.key === "Escape") return tip.hide();
    if (next === undefined || !rounds.length) return;
    event.preventDefault();
    at = Math.min(Math.max(next, 0), rounds.length - 1);
    const told = shown(c).map(line => `${line.name} ${valueAt(line, rounds[at]) ?? "none"}`).join(", ");
    document.getElementById("spoken").textContent = `round ${rounds[at]}: ${told}`;
    if (x === "round") tell(rounds[at], share(rounds[at]));
  };
  chart.onblur = tip.hide;
});
