// The chance of success along an episode: red falls are what calls gave away, the others are luck.

const TRACE_HEIGHT = 190;
const MOST_TRACED = 120; // turns; more of them would be too narrow to be seen

function traceChart(steps, optimum, width) {
  const left = 46;
  const right = 10;
  const top = 12;
  const bottom = 28;
  const shown = steps.slice(0, MOST_TRACED);
  const column = (width - left - right) / Math.max(shown.length + 1, 6);
  const bar = Math.min(13, column * 0.36);
  const y = (share) => top + (TRACE_HEIGHT - top - bottom) * (1 - (share ?? 0) / 1e6);
  const parts = [];
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const height = y(share * 1e6);
    parts.push(drawn("line", { x1: left, x2: width - right, y1: height, y2: height, class: share ? "grid" : "zero" }));
    if (share === 0.25 || share === 0.75) continue;
    parts.push(drawn("text", { x: left - 8, y: height + 4, class: "tick", "text-anchor": "end" }, `${share * 100}%`));
  }
  const rarely = Math.max(1, Math.ceil(24 / column)); // so that numbers of turns keep apart
  let x = left + column * 0.5;
  parts.push(tick(x, "start"));
  parts.push(dot(x, y(optimum), `start: V* ${percent(optimum, 2)}%`));
  shown.forEach((step, place) => {
    const next = left + column * (place + 1.5);
    parts.push(drawn("line", { x1: x, x2: next - bar, y1: y(step.value), y2: y(step.value), class: "trace-level" }));
    if (step.regret >= 500) {
      const text = `turn ${place + 1}: ${points(-step.regret, 2)} points by the call`;
      parts.push(change(next - bar, bar, y(step.value), y(step.action), "regret", text));
    }
    if (Math.abs(step.luck) >= 500) {
      const text = `turn ${place + 1}: ${points(step.luck, 2)} points by luck`;
      parts.push(change(next, bar, y(step.action), y(step.after), step.luck > 0 ? "good-luck" : "bad-luck", text));
    }
    const end = next + bar;
    parts.push(dot(end, y(step.after), `after turn ${place + 1}: V* ${percent(step.after, 2)}%`));
    if (place === 0 ? column > 40 : (place + 1) % rarely === 0) {
      parts.push(tick(next, String(place + 1)));
    }
    x = end;
  });
  const name = "V* (the chance of success that was still open) after each turn; the turns below hold the numbers";
  return drawn(
    "svg",
    { class: "chart viewer-trace", viewBox: `0 0 ${width} ${TRACE_HEIGHT}`, role: "img", "aria-label": name },
    parts,
  );
}

function tick(x, text) {
  return drawn("text", { x, y: TRACE_HEIGHT - 8, class: "tick", "text-anchor": "middle" }, text);
}

function dot(x, y, text) {
  return drawn("circle", { cx: x, cy: y, r: 3.6, class: "dot trace" }, drawn("title", {}, text));
}

function change(x, width, start, end, style, text) {
  const size = { x, y: Math.min(start, end), width, height: Math.max(1, Math.abs(end - start)) };
  return drawn("rect", { ...size, class: `bar ${style}` }, drawn("title", {}, text));
}

function traceLegend() {
  const item = (style, text) => make("li", {}, square(style), text);
  return make(
    "ul",
    { class: "legend" },
    item("regret", "given away by the call (regret)"),
    item("good-luck", "good luck"),
    item("bad-luck", "bad luck"),
  );
}
