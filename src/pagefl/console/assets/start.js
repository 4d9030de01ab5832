// A form for all settings, generated from their schema, and checked while one types.
import {address, byId, el, get, post} from "./page.js";

const FIRST = ["rounds", "task.clients", "seed", "lr", "epochs", "participation"];  // beside name, task, algorithm and players
const KINDS = ["task", "algorithm", "players"];
const fields = new Map();  // by setting: {input, error, hint}
const groups = new Map();  // by title: its element
let schema = null, nameTouched = false;

function field(setting) {
  const id = `field-${setting.name}`, help = `${id}-help`, wrong = `${id}-wrong`;
  const choices = setting.type.startsWith("one of ") && !setting.type.includes(" or ") ? setting.type.slice(7).split(", ")
    : setting.type === "true or false" ? ["true", "false"] : null;
  const input = setting.options ? el("select", {id}, ...setting.options.map(name => el("option", {value: name}, name || "default")))
    : choices ? el("select", {id}, el("option", {value: ""}, `default: ${setting.default}`), ...choices.map(name => el("option", {value: name}, name)))
      : el("input", {id, type: "text", placeholder: setting.default, autocomplete: "off", spellcheck: false,
        inputMode: /^(integer|number)$/.test(setting.type) ? "decimal" : "text"});
  input.name = setting.name;
  input.setAttribute("aria-describedby", `${help} ${wrong}`);
  const error = el("span", {id: wrong, class: "wrong", role: "alert"});
  const about = [setting.meaning, setting.options || choices ? "" : [setting.type, setting.range.replace(/(, )?[<≤] \S*e\+\S+/, "").replace(/([<≤>≥]) /g, "$1\u00a0")].filter(Boolean).join(", ")].filter(Boolean).join(" · ");
  const made = el("div", {class: "field"}, el("label", {for: id}, setting.label ?? setting.name), input, error, el("span", {id: help, class: "help"}, about));
  fields.set(setting.name, {input, error, choices});
  input.addEventListener("input", () => changed(setting.name));
  return made;
}

function group(title, settings, open = false) {
  const made = el("details", {open}, el("summary", {}, title), el("div", {class: "fields"}, ...settings.map(field)));
  groups.set(title, made);
  return made;
}

const chosen = kind => fields.get(kind).input.value;
const meant = () => {  // a short name stands for an algorithm with its players
  const own = checked?.settings;
  return {task: chosen("task"), algorithm: own?.["algorithm.name"] ?? chosen("algorithm"), players: own?.["players.name"] ?? chosen("players")};
};
let checked = null;

function ownGroups() {  // settings of the task, algorithm and players that are chosen
  const now = meant();
  for (const kind of KINDS) {
    const title = `${kind} ${now[kind]}`, settings = (schema.groups[title] ?? []).filter(setting => !FIRST.includes(setting.name));
    const place = byId(`own-${kind}`);
    if (place.dataset.title === title) continue;
    place.dataset.title = title;
    for (const name of [...fields.keys()]) if (name.startsWith(`${kind}.`) && !FIRST.includes(name)) fields.delete(name);
    place.replaceChildren(...(settings.length ? [group(`${kind[0].toUpperCase()}${kind.slice(1)}: ${now[kind]}`, settings)] : []));
  }
}

function build(found) {
  schema = found;
  const setting = name => Object.values(schema.groups).flat().find(one => one.name === name);
  const names = KINDS.map(kind => ({name: kind, type: "", options: kind === "players" ? ["", ...schema.names[kind]] : schema.names[kind], default: "",
    meaning: {task: "data and model", algorithm: "how models are trained and put together", players: "who chooses lr, epochs and weights; by default, those that the algorithm names"}[kind]}));
  const own = {name: "name", type: "", default: "", range: "", meaning: "the run's directory"};
  byId("first").append(field(own), ...names.map(field), ...FIRST.map(name => field({...setting(name), ...(name === "task.clients" ? {label: "clients", meaning: "clients of the federation"} : {})})));
  const rest = ["run", "personal"].flatMap(title => schema.groups[title]).filter(one => !FIRST.includes(one.name) && !KINDS.includes(one.name));
  const apart = Object.keys(schema.groups).filter(title => !/ |^(run|personal|deploy)$/.test(title));  // nodes are not started here
  byId("groups").append(...KINDS.map(kind => el("div", {id: `own-${kind}`})),
    ...apart.map(title => group(`${title[0].toUpperCase()}${title.slice(1)}`, schema.groups[title])), group("All other settings", rest));
  fields.get("name").input.addEventListener("input", () => { nameTouched = true; });
  const asked = new URLSearchParams(location.search).get("task");
  fields.get("task").input.value = schema.names.task.includes(asked) ? asked : schema.names.task[0];
  ownGroups();
  check();
}

function given() {
  const found = {};
  for (const [name, {input}] of fields) if (name !== "name" && input.value.trim()) found[name] = input.value.trim();
  if (byId("spec").value.trim()) {  // the file's own names hold, unless another is chosen
    found.spec = byId("spec").value;
    for (const kind of KINDS) if (!fields.get(kind).touched) delete found[kind];
  }
  return found;
}

let timer = null;
function changed(name) {
  if (fields.get(name)) fields.get(name).touched = true;
  clearTimeout(timer);
  timer = setTimeout(check, 250);
}

function showProblem(sentence, name) {
  for (const {input, error} of fields.values()) { error.textContent = ""; input.removeAttribute("aria-invalid"); }
  const at = sentence && fields.get(name);
  if (at) {
    at.error.textContent = sentence;
    at.input.setAttribute("aria-invalid", "true");
    at.input.closest("details")?.setAttribute("open", "");
  }
  byId("problem").hidden = !sentence || Boolean(at);
  byId("problem").textContent = sentence && !at ? sentence : "";
}

let turn = 0;
async function check() {
  const mine = turn += 1;
  byId("checked").textContent = "Checking …";
  try {
    const found = await post("/check", given());
    if (mine !== turn) return;
    showProblem(found.problem, found.field);
    byId("go").disabled = Boolean(found.problem);
    byId("checked").textContent = found.problem ? "This cannot be started yet." : ["Ready.", ...found.said].join(" ");
    if (found.problem) return;
    checked = found;
    ownGroups();
    for (const [name, {input, choices}] of fields) {
      const value = found.settings[name];
      if (value === undefined) continue;
      if (choices) input.options[0].textContent = `default: ${value}`;
      else if (input.tagName === "INPUT") input.placeholder = value;
    }
    if (!nameTouched) fields.get("name").input.value = suggestion(found.settings);
  } catch (error) {
    if (mine !== turn) return;
    showProblem(error.message, error.field);
    byId("checked").textContent = "";
  }
}

function suggestion(settings) {
  const players = settings["players.name"] === "fixed" ? "" : `-${settings["players.name"]}`;
  const moment = new Date().toISOString().slice(5, 16).replace(/[-T:]/g, "");
  return `${settings["task.name"]}-${settings["algorithm.name"]}${players}-s${settings.seed}-${moment}`;
}

byId("spec").oninput = () => changed("");
byId("file").onchange = async () => {
  const [file] = byId("file").files;
  if (!file) return;
  if (file.size > 500_000) { showProblem(`${file.name} has ${file.size} bytes; expected a spec of at most 500000`); return; }
  byId("spec").value = await file.text();
  changed("");
};
byId("form").onsubmit = async event => {
  event.preventDefault();
  byId("go").disabled = true;
  const name = fields.get("name").input.value.trim();
  try {
    await post("/runs", {...given(), name});
    location.href = `/runs/${address(name)}`;
  } catch (error) {
    showProblem(error.message, error.field ?? (error.message.startsWith("name = ") ? "name" : null));
    byId("go").disabled = false;
  }
};
try { build(await get("/form")); } catch (error) { showProblem(error.message); byId("checked").textContent = ""; }
