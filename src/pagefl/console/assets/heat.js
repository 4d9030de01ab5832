// A heat map over rounds and clients: every client's learning rate, epochs, weight …
import {css, el, short, speak} from "./page.js";
import {Figure} from "./chart.js";

const MARGIN = {left: 54, right: 14, top: 8, bottom: 36};
const SCALE = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];  // evenly bright steps
const LOG = new Set(["lr", "weight", "reward"]);
export const NAMES = {lr: "Learning rate", epochs: "Local epochs", weight: "Weight", local_accuracy: "Local accuracy", reward: "Reward",
  train_loss: "Training loss", personal_accuracy: "Personal accuracy", seconds: "Seconds", multiplier: "Multiplier", used: "Budget used"};

export class HeatMap extends Figure {
  constructor(choose) {
    super({title: "Clients", about: "A column for each round that is shown, a row for each client. Empty: the client did not take part, or was not measured.",
      label: "Heat map of the clients; the arrow keys read its cells", height: 340});
    this.select = el("select", {id: "metric", onchange: () => choose(this.select.value)});
    this.key_ = el("div", {class: "scale"}, this.lowest = el("span"), el("canvas", {width: 120, height: 10}), this.highest = el("span"));
    this.note = el("span", {class: "note"});
    this.legend.append(el("label", {}, "Shown ", this.select), this.key_, this.note);
    paintScale(this.key_.querySelector("canvas"));
    this.cell = null;
    this.image = document.createElement("canvas");
    this.area.addEventListener("pointermove", event => this.point(event));
    for (const gone of ["pointerleave", "blur"]) this.area.addEventListener(gone, () => { this.cell = null; this.tip.hidden = true; this.stale(); });
    this.area.addEventListener("keydown", event => this.arrow(event));
  }

  show(metric, data) {
    this.metric = metric;
    this.data = data;
    this.figure.hidden = !data.metrics.length;
    const options = data.metrics.includes(metric) ? data.metrics : [metric, ...data.metrics];
    if ([...this.select.options].map(option => option.value).join() !== options.join())
      this.select.replaceChildren(...options.map(name => el("option", {value: name}, NAMES[name])));
    this.select.value = metric;
    const {columns, clients, of} = data, log = LOG.has(metric);
    let low = Infinity, high = -Infinity;
    for (const column of columns) for (const value of column) if (value != null && (!log || value > 0)) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (low > high) low = high = 0;
    this.lowest.textContent = low === high ? "all" : short(low);
    this.highest.textContent = `${short(high)}${log && low < high ? ", logarithmic" : ""}`;
    this.note.textContent = of > clients.length ? `${clients.length} of ${of} clients` : `${of} clients`;
    this.paint(columns, clients.length, low, high, log);
    this.stale();
  }

  paint(columns, rows, low, high, log) {
    this.image.width = Math.max(1, columns.length);
    this.image.height = Math.max(1, rows);
    const pen = this.image.getContext("2d"), image = pen.createImageData(this.image.width, this.image.height);
    const place = log ? value => Math.log(value / low) / (Math.log(high / low) || 1) : value => (value - low) / (high - low || 1);
    const cells = new Uint32Array(image.data.buffer), width = columns.length;
    for (let x = 0; x < width; x += 1) for (let row = 0; row < rows; row += 1) {
      const value = columns[x][row];
      if (value == null || (log && value <= 0)) continue;
      cells[row * width + x] = SHADES[low === high ? 128 : Math.round(255 * Math.min(Math.max(place(value), 0), 1))];
    }
    pen.putImageData(image, 0, 0);
  }

  draw() {
    const {pen, width, height} = this.pen();
    if (!this.data?.columns.length) return;
    const {rounds, clients} = this.data, box = {left: MARGIN.left, top: MARGIN.top, right: width - MARGIN.right, bottom: height - MARGIN.bottom};
    this.box = box;
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.image, box.left, box.top, box.right - box.left, box.bottom - box.top);
    Object.assign(pen, {fillStyle: css("--dim"), strokeStyle: css("--edge"), textAlign: "center", textBaseline: "top"});
    pen.strokeRect(box.left - 0.5, box.top - 0.5, box.right - box.left + 1, box.bottom - box.top + 1);
    const shown = Math.max(2, Math.floor((box.right - box.left) / 90)), every = Math.max(1, Math.ceil(rounds.length / shown));
    for (let i = 0; i < rounds.length; i += every) pen.fillText(rounds[i], this.left(i + 0.5), box.bottom + 6);
    pen.fillText("round", (box.left + box.right) / 2, box.bottom + 21);
    Object.assign(pen, {textAlign: "right", textBaseline: "middle"});
    const step = Math.max(1, Math.ceil(clients.length / 8));
    for (let i = 0; i < clients.length; i += step) pen.fillText(clients[i], box.left - 6, this.top(i + 0.5));
    if (this.cell) this.drawCell(pen);
  }

  left(column) { return this.box.left + column / this.data.rounds.length * (this.box.right - this.box.left); }
  top(row) { return this.box.top + row / this.data.clients.length * (this.box.bottom - this.box.top); }

  drawCell(pen) {
    const [x, y] = this.cell, {rounds, clients, columns} = this.data;
    if (x >= rounds.length || y >= clients.length) return;
    Object.assign(pen, {strokeStyle: css("--ink"), lineWidth: 2});
    pen.strokeRect(this.left(x), this.top(y), Math.max(3, this.left(x + 1) - this.left(x)), Math.max(3, this.top(y + 1) - this.top(y)));
    const told = `client ${clients[y]}, round ${rounds[x]}: ${columns[x][y] == null ? "none" : short(columns[x][y])}`;
    this.reading = told;
    this.showTip(this.left(x + 1), this.top(y), [el("span", {}, told)]);
  }

  point(event) {
    if (!this.box || !this.data?.columns.length) return;
    const {left, top} = this.area.getBoundingClientRect(), {rounds, clients} = this.data, box = this.box;
    const x = Math.floor((event.clientX - left - box.left) / (box.right - box.left) * rounds.length);
    const y = Math.floor((event.clientY - top - box.top) / (box.bottom - box.top) * clients.length);
    this.cell = x >= 0 && y >= 0 && x < rounds.length && y < clients.length ? [x, y] : null;
    if (!this.cell) this.tip.hidden = true;
    this.stale();
  }

  arrow(event) {
    const move = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1]}[event.key];
    if (!move || !this.data?.columns.length) return;
    event.preventDefault();
    const within = (value, length) => Math.min(Math.max(value, 0), length - 1);
    const [x, y] = this.cell ?? [this.data.rounds.length - 1 - move[0], -move[1]];
    this.cell = [within(x + move[0], this.data.rounds.length), within(y + move[1], this.data.clients.length)];
    this.draw();
    speak(this.reading);
  }
}

function colour(share) {
  const at = Math.min(Math.max(share, 0), 1) * (SCALE.length - 1), low = Math.min(Math.floor(at), SCALE.length - 2);
  return SCALE[low].map((value, i) => Math.round(value + (at - low) * (SCALE[low + 1][i] - value)));
}
const SHADES = Uint32Array.from({length: 256}, (_, i) => {  // as the four bytes of a pixel
  const [red, green, blue] = colour(i / 255);
  return new Uint32Array(Uint8ClampedArray.of(red, green, blue, 255).buffer)[0];
});
function paintScale(canvas) {
  const pen = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; x += 1) {
    pen.fillStyle = `rgb(${colour(x / canvas.width).join()})`;
    pen.fillRect(x, 0, 1, canvas.height);
  }
}
