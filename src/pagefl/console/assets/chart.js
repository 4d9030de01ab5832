// Line charts on a canvas: light enough for thousands of points that change twice a second.
import {css, el, onTheme, short, speak} from "./page.js";

// the colours of reports
export const COLOURS = ["#3b82f6", "#e8710a", "#14a06f", "#a35cf0", "#e0457b", "#0e9aa7", "#b08900", "#8a8f98", "#9a4a1f", "#5b8c12", "#5666c4", "#c23b3b"];
export const DASHES = {solid: [], dash: [7, 4], dot: [2, 3], dashdot: [7, 3, 2, 3]};
const MARGIN = {left: 54, right: 16, top: 28, bottom: 36};
const TICK = "11px system-ui, sans-serif";

// Charts in sight are drawn one per frame, so that no frame is long.
const waiting = new Set(), inSight = new Set();
let asked = false;
function drawNext() {
  asked = false;
  for (const chart of waiting) {
    if (!inSight.has(chart)) continue;
    waiting.delete(chart);
    chart.draw();
    break;
  }
  if ([...waiting].some(chart => inSight.has(chart))) ask();
}
function ask() {
  if (!asked) { asked = true; requestAnimationFrame(drawNext); }
}
const sight = new IntersectionObserver(entries => {
  for (const {target, isIntersecting} of entries) isIntersecting ? inSight.add(target.chart) : inSight.delete(target.chart);
  ask();
}, {rootMargin: "100px"});

addEventListener("beforeprint", () => {  // paper has no sight
  for (const chart of waiting) chart.draw();
  waiting.clear();
});

export class Figure {  // a canvas with a title, drawn when it is in sight
  constructor({title, about, label, height}) {
    this.title = title;
    this.canvas = el("canvas");
    this.tip = el("div", {class: "tip", hidden: true});
    this.area = el("div", {class: "chart", tabIndex: 0, role: "application", "aria-roledescription": "chart", "aria-label": label ?? title},
      this.canvas, this.tip);
    if (height) this.area.style.height = `${height}px`;
    this.legend = el("div", {class: "legend"});
    this.figure = el("figure", {}, el("h2", {}, title), el("figcaption", {}, about), this.legend, this.area);
    this.area.chart = this;
    sight.observe(this.area);
    new ResizeObserver(() => this.stale()).observe(this.area);
    onTheme(() => this.stale());
  }
  stale() { waiting.add(this); ask(); }
  pen() {  // a context in CSS pixels, and the size of the canvas
    const {clientWidth: width, clientHeight: height} = this.area, ratio = Math.min(devicePixelRatio || 1, 2);
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = TICK;
    return {pen, width, height};
  }
  showTip(x, y, rows) {
    this.tip.replaceChildren(...rows);
    this.tip.hidden = false;
    const {clientWidth: width} = this.area, own = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, x + own + 20 > width ? x - own - 12 : x + 12)}px`;
    this.tip.style.top = `${Math.max(0, y)}px`;
  }
}

export class LineChart extends Figure {
  // lines: {column, label, hue, dash, band: two columns}; x: the column below; scale: linear or log; text: how values are written
  constructor(about) {
    super({...about, label: `${about.title}; the arrow keys read the values`});
    Object.assign(this, {x: "round", scale: "linear", xTitle: "round", yTitle: "", text: short, ...about});
    this.own = about.x !== undefined;  // its horizontal axis is neither rounds nor hours
    this.sources = [];  // {name, columns}, and a colour where there are several
    this.marks = [];  // [round, label]
    this.hidden = new Set();
    this.at = null;  // the point that is read, of the longest source
    this.legend.append(...this.lines.map((line, number) => this.legendButton(line, number)));
    this.area.addEventListener("pointermove", event => this.point(event));
    this.area.addEventListener("pointerleave", () => this.leave());
    this.area.addEventListener("blur", () => this.leave());
    this.area.addEventListener("keydown", event => this.key(event));
  }

  legendButton(line, number) {
    const sample = el("canvas", {width: 52, height: 20, class: "sample"});
    const paint = () => {
      const pen = sample.getContext("2d");
      pen.clearRect(0, 0, 52, 20);
      Object.assign(pen, {lineWidth: 4, strokeStyle: this.several ? css("--ink") : COLOURS[line.hue]});
      pen.setLineDash(DASHES[line.dash ?? "solid"].map(part => 2 * part));
      pen.beginPath(); pen.moveTo(2, 10); pen.lineTo(50, 10); pen.stroke();
    };
    onTheme(paint);
    paint();
    const button = el("button", {type: "button", "aria-pressed": "true"}, sample, line.label);
    button.onclick = () => {
      this.hidden.delete(number) || this.hidden.add(number);
      button.setAttribute("aria-pressed", String(!this.hidden.has(number)));
      this.stale();
    };
    return button;
  }

  show(sources, marks = []) {
    this.sources = sources;
    this.marks = marks;
    this.figure.hidden = !sources.some(({columns}) => this.lines.some(line => known(columns[line.column])));
    this.lines.forEach((line, number) => { this.legend.children[number].hidden = !sources.some(({columns}) => known(columns[line.column])); });
    this.stale();
  }

  along(x) {  // rounds or hours
    if (this.own || this.x === x) return;
    Object.assign(this, {x, xTitle: x === "round" ? "round" : "hours", at: null});
    this.stale();
  }

  curves() {  // what is drawn: a curve for each source and line
    return this.sources.flatMap((source, s) => this.lines.map((line, l) => ({source, line, l, s,
      xs: source.columns[this.x], ys: source.columns[line.column],
      band: (line.band ?? []).map(column => source.columns[column]), colour: this.several ? source.colour : COLOURS[line.hue]})))
      .filter(({xs, ys, l}) => xs && known(ys) && !this.hidden.has(l));
  }

  draw() {
    const {pen, width, height} = this.pen(), curves = this.curves();
    if (!curves.length || width < 80) return;
    const byRound = this.x === "round";  // also of rounds without a value
    const xRange = range(curves.map(({xs, ys}) => [xs, byRound ? xs : ys]), 0, false, byRound);
    const yRange = range(curves.flatMap(({xs, ys, band}) => [ys, ...band].map(values => [xs, values])), 1, this.scale === "log", false, this.bounds);
    if (this.zero) yRange[0] = 0;
    const box = {left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom};
    const toX = linear(xRange, [box.left, box.right]), toY = (this.scale === "log" ? logarithmic : linear)(yRange, [box.bottom, box.top]);
    this.toX = toX; this.box = box; this.shown = curves;
    this.axes(pen, box, xRange, yRange, toX, toY);
    if (byRound) this.drawMarks(pen, box, toX, xRange);
    pen.save();
    pen.beginPath(); pen.rect(box.left - 6, box.top - 6, box.right - box.left + 12, box.bottom - box.top + 12); pen.clip();
    for (const curve of curves) if (curve.band.length) drawBand(pen, curve, toX, toY);
    for (const curve of curves) drawCurve(pen, curve, toX, toY, this.scale === "log", this.own);
    pen.restore();
    if (this.at !== null) this.drawReading(pen, box, toX, toY);
  }

  axes(pen, box, xRange, yRange, toX, toY) {
    Object.assign(pen, {strokeStyle: css("--edge"), fillStyle: css("--dim"), lineWidth: 1, textBaseline: "middle", textAlign: "right"});
    pen.setLineDash([]);
    const rows = this.scale === "log" ? logTicks(yRange) : ticks(yRange, 5);
    for (const value of rows) {
      const y = Math.round(toY(value)) + 0.5;
      pen.beginPath(); pen.moveTo(box.left, y); pen.lineTo(box.right, y); pen.stroke();
      pen.fillText(this.text(value), box.left - 6, y);
    }
    Object.assign(pen, {textAlign: "center", textBaseline: "top"});
    const columns = ticks(xRange, Math.max(2, Math.floor((box.right - box.left) / 70)), this.x === "round");
    for (const value of columns) pen.fillText(this.x === "round" ? String(value) : short(value), toX(value), box.bottom + 6);
    pen.fillText(this.xTitle, (box.left + box.right) / 2, box.bottom + 21);
    Object.assign(pen, {textAlign: "left", textBaseline: "alphabetic"});
    pen.fillText(this.yTitle, 2, 10);
  }

  drawMarks(pen, box, toX, [low, high]) {  // rounds in which demand changed
    Object.assign(pen, {strokeStyle: css("--mark"), fillStyle: css("--mark"), lineWidth: 1.2, textAlign: "center", textBaseline: "alphabetic"});
    let free = -Infinity;
    for (const [round, label] of this.marks) {
      if (round < low || round > high) continue;
      const x = Math.round(toX(round)) + 0.5, wide = pen.measureText(label).width;
      pen.setLineDash([3, 3]);
      pen.beginPath(); pen.moveTo(x, box.top); pen.lineTo(x, box.bottom); pen.stroke();
      const middle = Math.min(Math.max(x, box.left + wide / 2), box.right - wide / 2);
      if (middle - wide / 2 > free) { pen.fillText(label, middle, box.top - 4); free = middle + wide / 2 + 6; }
    }
    pen.setLineDash([]);
  }

  drawReading(pen, box, toX, toY) {
    const rounds = this.longest();
    if (!rounds.length) return;
    const at = Math.min(this.at, rounds.length - 1), round = rounds[at], rows = [el("b", {}, `round ${round}`)];
    for (const {source, line, xs, ys, colour} of this.shown) {
      const i = nearest(source.columns.round, round);
      let known = i;
      while (known > 0 && ys[known] == null) known -= 1;  // the last that was measured
      if (ys[known] == null) continue;
      Object.assign(pen, {fillStyle: colour});
      pen.beginPath(); pen.arc(toX(xs[known] ?? round), toY(ys[known]), 3.5, 0, 7); pen.fill();
      const swatch = el("i");
      swatch.style.background = colour;
      rows.push(el("span", {}, swatch, `${this.several ? `${source.name}: ` : ""}${line.label} ${this.text(ys[known])}`));
    }
    let x = box.right;
    const across = {round, hours: this.sources[0].columns.hours?.[at]}[this.x];
    if (across != null) {
      x = toX(across);
      Object.assign(pen, {strokeStyle: css("--dim"), lineWidth: 1});
      pen.beginPath(); pen.moveTo(x, box.top); pen.lineTo(x, box.bottom); pen.stroke();
    }
    const marked = this.marks.filter(([from]) => from <= round).at(-1);
    if (marked && this.x === "round") rows.push(el("span", {}, `demand ${marked[1]} since round ${marked[0]}`));
    this.showTip(x, box.top, rows);
    this.reading = rows.map(row => row.textContent).join(", ");
  }

  longest() { return this.sources.map(({columns}) => columns.round ?? []).reduce((a, b) => b.length > a.length ? b : a, []); }

  point(event) {
    if (!this.toX || this.own) return;
    const x = event.clientX - this.area.getBoundingClientRect().left;
    this.at = nearest(this.x === "hours" ? this.sources[0].columns.hours : this.longest(), this.toX.back(x));
    this.stale();
  }
  leave() { this.at = null; this.tip.hidden = true; this.stale(); }
  key(event) {
    const length = this.longest().length, now = this.at ?? (event.key === "ArrowLeft" ? length : -1);
    const next = {ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: length - 1, PageUp: now - 50, PageDown: now + 50}[event.key];
    if (event.key === "Escape") this.leave();
    if (next === undefined || !length) return;
    event.preventDefault();
    this.at = Math.min(Math.max(next, 0), length - 1);
    this.draw();
    speak(this.reading);
  }
}

const known = values => Array.isArray(values) && values.some(value => value != null);

function drawCurve(pen, {line, xs, ys, colour}, toX, toY, log, ended) {
  Object.assign(pen, {strokeStyle: colour, fillStyle: colour, lineWidth: 1.8, lineJoin: "round"});
  pen.setLineDash(DASHES[line.dash ?? "solid"]);
  pen.beginPath();
  let count = 0, x = 0, y = 0;
  for (let i = 0; i < ys.length; i += 1) {
    if (ys[i] == null || xs[i] == null || (log && ys[i] <= 0)) continue;
    x = toX(xs[i]); y = toY(ys[i]);
    count ? pen.lineTo(x, y) : pen.moveTo(x, y);
    count += 1;
  }
  pen.stroke();
  pen.setLineDash([]);
  if (count && (count < 3 || ended)) {
    Object.assign(pen, {strokeStyle: css("--card"), lineWidth: 2});
    pen.beginPath(); pen.arc(x, y, ended ? 6 : 3, 0, 7); pen.fill();
    if (ended) pen.stroke();
  }
}

function drawBand(pen, {xs, band: [low, high], colour}, toX, toY) {
  const places = xs.map((_, i) => i).filter(i => xs[i] != null && low[i] != null && high[i] != null);
  Object.assign(pen, {fillStyle: colour, globalAlpha: 0.15});
  pen.beginPath();
  for (const i of places) pen.lineTo(toX(xs[i]), toY(low[i]));
  for (const i of places.reverse()) pen.lineTo(toX(xs[i]), toY(high[i]));
  pen.fill();
  pen.globalAlpha = 1;
}

function range(pairs, which, log, whole, bounds) {
  let low = Infinity, high = -Infinity;
  for (const [xs, ys] of pairs) for (let i = 0; i < ys.length; i += 1) {
    const value = which ? ys[i] : xs[i];
    if (value == null || ys[i] == null || xs[i] == null || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (log) return low === high ? [low / 2, high * 2] : [low / 1.1, high * 1.1];
  if (whole) return [low === high ? low - 1 : low, high];
  const pad = (high - low || Math.abs(high) || 1) * 0.05;
  return bounds ? [Math.max(bounds[0], low - pad), Math.min(bounds[1], high + pad)] : [low - pad, high + pad];
}

function linear([low, high], [from, to]) {
  const step = (to - from) / (high - low || 1), scale = value => from + (value - low) * step;
  scale.back = place => low + (place - from) / step;
  return scale;
}
function logarithmic([low, high], span) {
  const scale = linear([Math.log(low), Math.log(high)], span);
  return value => scale(Math.log(Math.max(value, 1e-300)));
}
function ticks([low, high], count, whole = false) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map(factor => factor * power).find(each => each >= rough) ?? rough;
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9 && found.length < 20; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}
function logTicks([low, high]) {
  const decades = Math.log10(high / low), found = [];
  if (decades < 0.5) return ticks([low, high], 4).filter(value => value > 0);
  const step = Math.max(1, Math.ceil(decades / 6)), factors = decades > 2 ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += step)
    for (const factor of factors) { const value = factor * 10 ** power; if (value >= low && value <= high) found.push(value); }
  return found;
}
export function nearest(sorted, value) {
  let low = 0, high = (sorted?.length ?? 0) - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; sorted[middle] < value ? low = middle : high = middle; }
  return high >= 0 && Math.abs(sorted[high] - value) < Math.abs(sorted[low] - value) ? high : low;
}
