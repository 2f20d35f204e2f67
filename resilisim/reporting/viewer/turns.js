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

function turnList(steps, { texts, talk, sought }, command) {
  const calls = talk?.calls ?? [];
  const spoken = (turn) => calls.filter((call) => call.turn === turn);
  const items = steps.map((step, place) => {
    const said = { message: texts?.messages[place] ?? null, reply: talk?.replies[place] ?? "", calls: spoken(place) };
    return turnItem(step, place + 1, said, command, sought);
  });
  const earlier = spoken(-1);
  const later = calls.filter((call) => call.turn >= steps.length);
  return make(
    "ol",
    { class: "viewer-turns" },
    earlier.length === 0 ? null : aside("Before the last fresh episode", earlier, command, sought),
    items,
    later.length === 0 ? null : aside("After the last turn", later, command, sought),
  );
}

// What was said where no turn was used.
function aside(heading, calls, command, sought) {
  const parts = calls.map((call) => callParts(call, command, sought));
  const title = make("summary", {}, `${heading}: ${counted(calls.length, "call")} of the model`);
  return make("li", { class: "viewer-turn" }, make("details", { class: "viewer-told" }, title, parts));
}

function turnItem(step, turn, { message, reply, calls }, command, sought) {
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
    calls.map((call) => callParts(call, command, sought)),
    message === null ? null : saidText("sent", message, "viewer-message", command, sought),
    reply === "" ? null : saidText("reply", reply, "viewer-reply", command, sought),
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

// A call of a model: what it was told beyond what it knew, what it thought, what it wrote.
function callParts({ component, told, thoughts, wrote }, command, sought) {
  const texts = told.map(({ role, text }) => [role, text]);
  return [
    texts.length === 0 ? null : foldedText(`What the ${words(component)} was told`, texts, command, sought),
    lengthOf(thoughts) === 0 ? null : saidText("thought", thoughts, "viewer-thought", command, sought),
    wrote === null ? null : saidText(words(component), wrote, "viewer-wrote", command, sought),
  ];
}

// Long texts behind a line that says how long they are; open where they hold a word that was searched for.
function foldedText(title, texts, command, sought) {
  const length = texts.reduce((sum, [, text]) => sum + lengthOf(text), 0);
  const found = sought.some((word) => texts.some(([, text]) => holds(text, word)));
  return make(
    "details",
    { class: "viewer-told", open: found },
    make("summary", {}, `${title} (${counted(length, "character")})`),
    texts.map(([role, text]) => saidText(role, text, "viewer-heard", command, sought)),
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

// A text is a text, or its beginning and its length if it was cut.
function lengthOf(text) {
  return Array.isArray(text) ? text[1] : text.length;
}

function saidText(label, said, style, command, sought) {
  const text = Array.isArray(said) ? said[0] : said;
  const missing = lengthOf(said) - text.length;
  const shown = text === "" && missing === 0 ? "(nothing was written)" : withThoughts(text, sought);
  return make(
    "div",
    { class: `viewer-said ${style}` },
    label === "" ? null : make("span", { class: "viewer-label" }, label),
    make("pre", { tabindex: text.length > 600 ? "0" : null }, shown),
    missing <= 0 ? null : make("p", { class: "note" }, `${counted(missing, "more character")}: ${command} --full`),
  );
}

// Thoughts between the marks of models that think aloud are set apart.
function withThoughts(text, sought) {
  return text
    .split(/(<think>[\s\S]*?(?:<\/think>|$))/i)
    .map((part, place) => (place % 2 ? make("i", {}, highlighted(part, sought)) : highlighted(part, sought)));
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
    step.best === null ? null : entry("best", isolated(step.best), null, "a message whose Q* is V* before"),
    entry("V* after", `${percent(step.after, 2)}%`),
    entry("regret", cost(step.regret, 2), step.regret >= 500 ? "cost" : "muted", "V* before − Q*, in points"),
    entry("luck", points(step.luck, 2), luckStyle, "V* after − Q*, in points"),
  );
}
