// The turns of an opened episode, each with what was written, what came of it, and what it was worth.

const KINDS = new Map(Object.entries({
  execute: "called",
  search: "searched for tools",
  info: "asked about",
  format_error: "could not be read",
  rejected: "rejected",
  finish: "said that the task is done",
  stop: "stopped by itself",
}));

function turnList(steps, messages, command) {
  const items = steps.map((step, place) => turnItem(step, place + 1, messages?.[place] ?? null, command));
  return make("ol", { class: "viewer-turns" }, items);
}

function turnItem(step, turn, message, command) {
  const costly = step.cause !== null && step.regret >= 500;
  const [style, result] = outcomeOf(step);
  return make(
    "li",
    { class: costly ? "viewer-turn viewer-costly" : "viewer-turn" },
    make(
      "div",
      { class: "viewer-what" },
      make("span", { class: "viewer-count" }, `Turn ${turn}`),
      make("span", {}, KINDS.get(step.kind) ?? words(step.kind), step.tool === null ? null : " ", toolName(step.tool)),
      result === "" ? null : make("span", { class: style }, result),
    ),
    message === null ? null : messageText(message, command),
    worth(step),
    costly
      ? make(
          "p",
          { class: "viewer-why" },
          causeMark(step.cause),
          `: ${cost(step.regret, 2)} points lost by ${CAUSES.get(step.cause)?.text ?? "this call"}`,
        )
      : null,
  );
}

function toolName(tool) {
  return tool === null ? null : make("code", {}, isolated(tool));
}

function outcomeOf(step) {
  const again = step.attempt !== null && step.attempt > 1 ? `, attempt ${step.attempt}` : "";
  if (step.success === true) return ["good", `succeeded${again}`];
  if (step.success === false) return ["bad", `${step.error ?? "failed"}${again}`];
  return ["muted", step.error ?? ""];
}

// A message is a text, or its beginning and its length if it was cut.
function messageText(message, command) {
  const [text, length] = Array.isArray(message) ? message : [message, null];
  const shown = text === "" && (length ?? 0) === 0 ? "(nothing was written)" : text;
  const missing = length === null ? 0 : length - text.length;
  return make(
    "div",
    { class: "viewer-message" },
    make("pre", { tabindex: text.length > 600 ? "0" : null }, shown),
    missing <= 0 ? null : make("p", { class: "note" }, `${counted(missing, "more character")}: ${command} --full`),
  );
}

function worth(step) {
  const entry = (name, text, style = null, title = null) =>
    make("div", { title }, make("dt", {}, name), make("dd", { class: style }, text));
  const luckStyle = step.luck > 0 ? "good" : step.luck < 0 ? "viewer-unlucky" : "muted";
  return make(
    "dl",
    { class: "viewer-worth" },
    entry("chance", step.chance === null ? "–" : `${percent(step.chance)}%`, null, "that this one call succeeds"),
    entry("V* before", `${percent(step.value, 2)}%`),
    entry("Q* of the call", `${percent(step.action, 2)}%`),
    entry("V* after", `${percent(step.after, 2)}%`),
    entry("regret", cost(step.regret, 2), step.regret >= 500 ? "cost" : "muted", "V* before − Q*, in points"),
    entry("luck", points(step.luck, 2), luckStyle, "V* after − Q*, in points"),
  );
}
