"use strict";
// What the page shows, and how it says numbers. All texts of the graph reach the page as text, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

function byteUnit(bytes) {
  let rank = 0;
  while (rank + 1 < UNITS.length && bytes >= 1024 ** (rank + 1)) rank += 1;
  return { size: 1024 ** rank, name: UNITS[rank] };
}

function digits(number) {
  if (number >= 1000) return Math.round(number).toLocaleString("en");
  return number >= 99.95 ? number.toFixed(0) : number >= 9.995 ? number.toFixed(1) : number.toFixed(2);
}

function bytesText(bytes) {
  const unit = byteUnit(bytes);
  return unit.size === 1 ? `${bytes} bytes` : `${digits(bytes / unit.size)} ${unit.name}`;
}

function timeUnit(time) {
  if (!data.is_time) return { size: 1, name: "" };
  const units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  // Milliseconds up to ten seconds: what a step takes is thought of in these.
  const [size, name] = units.find(([size]) => time >= (size === 1e9 ? 1e10 : size)) || units[3];
  return { size, name };
}

/** Numbers of an unknown unit, in short: 3.59e12. */
function shortText(number) {
  const rounded = Number(number.toPrecision(3));
  return rounded >= 1e6 ? rounded.toExponential().replace("+", "") : rounded.toLocaleString("en");
}

function timeText(time) {
  const unit = timeUnit(time);
  const number = time / unit.size;
  if (!data.is_time) return shortText(number);
  return time === 0 ? `0 ${unit.name}`.trim() : `${digits(number)} ${unit.name}`.trim();
}

function percentText(share) {
  const percent = 100 * share;
  return `${percent < 0 ? "−" : "+"}${Math.abs(percent).toFixed(Math.abs(percent) < 9.95 ? 1 : 0)}%`;
}

function counted(number, one, many) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

const times = (count) => (count === 1 ? "once" : count === 2 ? "twice" : `${count} times`);

const KINDS = {
  constant: "parameters, optimizer state and other constants",
  input: "inputs",
  activation: "other activations",
  gradient: "other gradients",
  scratch: "scratch of the operation",
};

/** What a band is called. */
function layerName({ kind, row, group }) {
  if (row !== null) return data.texts[data.rows[row].name];
  return group === null || kind === "input" ? KINDS[kind] : `${KINDS[kind]}, ${data.texts[group]}`;
}

/** What a plan does with the value of a row: a word for its looks, and words for people. */
function decisionOf(view, row) {
  const { again, forms, form, spared, spared_by: by } = view.decisions[row];
  const said = [];
  if (forms > 0) {
    const name = form === null ? "another form" : data.texts[form];
    said.push(name === "offload" ? `offloaded ${times(forms)}` : `from ${name} ${times(forms)}`);
  }
  if (again > 0) said.push(`recomputed ${times(again)}`);
  if (spared > 0) said.push(by === null ? "not needed" : `only ${data.texts[by]} kept`);
  if (said.length === 0 && data.rows[row].kind === "activation" && !data.rows[row].is_saved) said.push("not needed later");
  const look = again > 0 ? "again" : forms > 0 ? "form" : spared > 0 ? "spared" : "kept";
  return { look, text: said.join(", ") || "kept", weight: 4 * again + 2 * forms + spared };
}

const opName = (op) => data.texts[data.ops[op].name];
const opStage = (op) => (data.ops[op].stage === null ? "" : data.texts[data.ops[op].stage]);
const overheadOf = (view) => {
  const base = data.views[0].makespan;
  return base > 0 ? view.makespan / base - 1 : 0;
};
