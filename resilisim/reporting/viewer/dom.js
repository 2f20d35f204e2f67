// Elements and numbers. Data reaches the page as text nodes and checked attributes only, never as markup.

const SVG = "http://www.w3.org/2000/svg";

// Make an element: attributes that are null, undefined or false are left out; children are nodes, texts or null.
function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function drawn(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

// A button that does something.
function button(text, action, attributes = {}) {
  const node = make("button", { type: "button", ...attributes }, text);
  node.addEventListener("click", action);
  return node;
}

// A list of names and values; entries that are null are left out.
function definitions(entries, style) {
  const shown = entries.filter((entry) => entry !== null);
  return make("dl", { class: style }, shown.map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

// The small square of a key, in the colour of a mark in the charts.
function square(style) {
  const mark = drawn("rect", { width: 11, height: 11, rx: 2, class: `bar ${style}` });
  return drawn("svg", { width: 11, height: 11, viewBox: "0 0 11 11", "aria-hidden": "true" }, mark);
}

// Names and texts come from models and users: their direction of writing must not reach the rest of the line.
function isolated(text) {
  return make("bdi", {}, text);
}

function quiet(text) {
  return make("span", { class: "muted" }, text);
}

function words(name) {
  return name.replaceAll("_", " ");
}

function grouped(number) {
  return number.toLocaleString("en-US");
}

function counted(number, noun) {
  const ending = noun.endsWith("ch") ? "es" : "s";
  return `${grouped(number)} ${noun}${number === 1 ? "" : ending}`;
}

// Shares come in millionths. A share that is not there (null) is a dash.
function percent(share, digits = 1) {
  return share === null ? "–" : (share / 1e4).toFixed(digits);
}

// Points with their sign; what is too small for the digits but not zero says so.
function points(share, digits = 1) {
  if (share === null) return "–";
  const text = percent(Math.abs(share), digits);
  const sign = share > 0 ? "+" : "−";
  if (Number(text) > 0) return sign + text;
  return share === 0 ? text : `${sign}<${(10 ** -digits).toFixed(digits)}`;
}

// What calls cost: without a sign, as it is hardly ever below zero.
function cost(share, digits = 1) {
  const text = points(share, digits);
  return text.startsWith("+") ? text.slice(1) : text;
}
