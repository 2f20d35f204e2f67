// An opened episode: what it was, how its chance of success went, and its turns.

const NO_TEXTS = "The texts of this episode are not in this file; the command below shows them.";
const NO_TALK =
  "What the agent was told, thought and heard is not in this file: the record kept none of it, or there was no room. " +
  "The command below shows what there is.";

const MORE_THAN_ALL =
  "More than 100, because luck gave back what a call had given away, and a later call lost it again.";

function episodeView(episodes, row, steps, said, navigation, width) {
  const { texts, talk } = said;
  const episode = episodes.episode(row);
  const command = `${episodes.index.command} ${episode.number}`;
  const heading = make(
    "h3",
    { tabindex: "-1", class: "viewer-heading" },
    `Episode #${episode.number}: `,
    isolated(episode.name),
    ` under ${episode.prompt}, `,
    make("span", { class: levelStyle(episode.level) }, words(episode.level)),
  );
  const view = make(
    "article",
    { class: "viewer-episode" },
    navigation,
    heading,
    facts(episode),
    make("p", { class: "viewer-sum" }, identity(episode)),
    make("div", { class: "viewer-chart" }, traceChart(steps, episode.optimum, width)),
    traceLegend(),
    texts?.edits ? flawEdits(episode, texts.edits) : null,
    texts !== null && talk !== null ? null : make("p", { class: "note" }, texts === null ? NO_TEXTS : NO_TALK),
    talk?.prompt ? foldedText("Prompt", [["", talk.prompt]], command, said.sought) : null,
    turnList(steps, said, command),
    texts?.agent ? agentPart(texts.agent) : null,
    make(
      "p",
      { class: "viewer-command" },
      "In a terminal: ",
      make("code", {}, command),
    ),
  );
  return { view, heading };
}

function facts(episode) {
  const flaw = episode.flaw;
  const entries = [
    ["task", make("code", {}, isolated(episode.task))],
    ["type", words(episode.type)],
    ["required, in this order", make("span", { class: "tools" }, isolated(episode.required.join(" → ")))],
    episode.description === "" ? null : ["description", folded(episode.description)],
    ["policy", [isolated(episode.policy), episode.privileged ? " (privileged: it is shown the state)" : ""]],
    episode.model === null ? null : ["model", isolated(episode.model)],
    flaw === null ? null : ["flaw of the plan", `${words(flaw.type)}, ${flaw.severity} (${words(flaw.method)})`],
    ["seed", episode.seed],
    episode.weight === null ? null : ["probability of this branch", `${Number((100 * episode.weight).toPrecision(3))}%`],
    ["ended by", words(episode.ending)],
  ];
  return definitions(entries, "keys");
}

// A long text behind its first line that says something, which a greeting does not.
function folded(text) {
  const lines = text.split("\n");
  const line = lines.find((one) => one.length > 40) ?? lines[0];
  if (text.length <= 160) return make("span", { class: "viewer-text" }, text);
  return make(
    "details",
    { class: "viewer-fold" },
    make("summary", {}, line.length <= 140 ? line : `${line.slice(0, 139)}…`),
    make("p", { class: "viewer-text" }, text),
  );
}

// 1 − outcome = (1 − V*) + regret − luck, in points.
function identity(episode) {
  const optimum = percent(episode.optimum, 2);
  const regret = cost(episode.regret, 2);
  const luck = percent(Math.abs(episode.luck ?? 0), 2);
  const isUnlucky = episode.luck < 0;
  const end = episode.level === "full_success" ? "100, full success" : "0, no full success";
  return (
    `The best possible play had ${optimum}% at the start. Calls gave away ${regret} points, ` +
    `${isUnlucky ? "bad luck cost" : "good luck brought"} ${luck}: ` +
    `${optimum} − ${regret} ${isUnlucky ? "−" : "+"} ${luck} = ${end}.` +
    (episode.regret > 1e6 ? ` ${MORE_THAN_ALL}` : "")
  );
}

function flawEdits(episode, edits) {
  const items = edits.map(([what, step, before, after]) =>
    make(
      "li",
      {},
      step === null ? "" : `Step ${step}: `,
      words(what),
      before === "" ? "" : [", ", make("del", {}, before)],
      after === "" ? "" : [" → ", make("ins", {}, after)],
    ),
  );
  return make(
    "details",
    { class: "viewer-flaw" },
    make("summary", {}, `What is wrong with the plan in the prompt (${words(episode.flaw?.type ?? "flaw")})`),
    make("ul", {}, items),
  );
}

function failureText(component, text, turn) {
  return [`${words(component)}, after turn ${turn}: `, isolated(text)];
}

function agentPart(agent) {
  const models = Object.entries(agent.models).map(([role, model]) => `${role}: ${model}`);
  const entries = [
    ["architecture", isolated(agent.architecture)],
    ["models", isolated(models.join(", "))],
    ["calls of models", `${grouped(agent.calls)}, ${counted(agent.tokens, "token")}`],
    ["ended by", words(agent.ended_by)],
    agent.failure === null ? null : ["first to fail", failureText(...agent.failure)],
    agent.restarts > 0 ? ["fresh episodes", `${agent.restarts}; the turns above are those of the last one`] : null,
    agent.answer === "" ? null : ["answer", isolated(agent.answer)],
  ];
  const hidden = agent.num_events - agent.events.length;
  const events = agent.events.map(([kind, component, text, turn]) =>
    make(
      "li",
      {},
      quiet(`after turn ${turn}, ${component}: `),
      make("strong", {}, words(kind)),
      text === "" ? null : [" ", isolated(text)],
    ),
  );
  return make(
    "section",
    { class: "viewer-agent" },
    make("h4", {}, "Inside the agent"),
    definitions(entries, "keys"),
    events.length === 0
      ? null
      : make(
          "details",
          {},
          make("summary", {}, counted(agent.num_events, "event")),
          make("ul", { class: "viewer-events" }, events),
          hidden > 0 ? make("p", { class: "note" }, `${counted(hidden, "more event")} in the record.`) : null,
        ),
  );
}
