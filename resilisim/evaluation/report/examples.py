"""One episode per policy, told message by message: what each call was worth, what it cost, what luck did."""

from __future__ import annotations

from resilisim.evaluation.episode.record import LOSS_LABELS, EpisodeRecord, StepRecord
from resilisim.evaluation.report.cells import REGRET_ADDS_UP, signed_points
from resilisim.evaluation.report.drawing import CHART_WIDTH, figure
from resilisim.evaluation.report.facts import RunFacts
from resilisim.evaluation.report.markup import Child, Markup, element
from resilisim.evaluation.summary import format_percent

MESSAGE_LENGTH = 160
NUMBER_COLUMNS = ("chance", "V* before", "Q*", "regret", "luck")
MOST_STEPS = 40  # an episode of a run with a hundred turns is cut in the report, not in its record

MOST_EXAMPLES = 6


def examples_without_script(facts: RunFacts) -> Markup:
    """Return one episode per policy for readers whose browser runs no script, and so shows no viewer."""
    text = (
        "For each policy the episode in which its calls cost most (not a typical one), or its unluckiest if none cost "
        "anything. V* is the chance of success that was still open. " + REGRET_ADDS_UP
    )
    policies = list(dict.fromkeys(row.policy for row in facts.rows))[:MOST_EXAMPLES]
    episodes = [example_section(facts.examples[policy]) for policy in policies]
    return element("noscript", element("p", text), episodes)


def example_section(record: EpisodeRecord) -> Markup:
    """Return one episode as a fold-out: its trace of V*, and a table of its messages."""
    outcome = "success" if record["outcome"] else record["score"]["level"].replace("_", " ")
    heading = element(
        "summary",
        element("strong", record["policy"]),
        f" under {record['prompt_type']}: {outcome}, ended by {record['ended_by'].replace('_', ' ')}",
    )
    facts = element(
        "p",
        element("code", record["instance_id"]),
        f", seed {record['seed']}. Required, in this order: ",
        element("span", " → ".join(record["required_tools"]), class_="tools"),
        f". Ceiling V* {format_percent(record['optimum'])}%, lost by calls {format_percent(record['regret'])} points, "
        f"luck {signed_points(record['luck'])} points.",
        class_="facts",
    )
    body = [_step_row(step) for step in record["steps"][:MOST_STEPS]]
    hidden = len(record["steps"]) - len(body)
    table = element(
        "table",
        element("caption", f"Every message of this episode of {record['policy']}", class_="unseen"),
        element(
            "thead",
            element(
                "tr",
                element("th", "turn", class_="number", scope="col"),
                element("th", "message", scope="col"),
                element("th", "result", scope="col"),
                *(element("th", text, class_="number", scope="col") for text in NUMBER_COLUMNS),
                element("th", "why it cost", scope="col"),
            ),
        ),
        element("tbody", body),
    )
    more = element("p", f"{hidden} more messages are in the record.", class_="note") if hidden > 0 else None
    return element("details", heading, facts, trace_chart(record), element("div", table, class_="scroll"), more)


def _step_row(step: StepRecord) -> Markup:
    if step["kind"] == "execute" and step["success"] is not None:
        result = "succeeded" if step["success"] else step["error"] or "failed"
    else:
        result = step["kind"].replace("_", " ")
    text = " ".join(step["message"].split())
    message = text if len(text) <= MESSAGE_LENGTH else text[: MESSAGE_LENGTH - 1] + "…"
    label = step["label"]
    explanation = LOSS_LABELS.get(label, label) if label else None
    costly = step["regret"] >= 0.0005
    chance = step["success_probability"]
    return element(
        "tr",
        element("td", step["turn"], class_="number"),
        element("td", element("code", message or "(stopped by itself)")),
        element("td", result, class_="good" if step["success"] else "bad" if step["success"] is False else "muted"),
        element("td", "" if chance is None else f"{format_percent(chance, 0)}%", class_="number muted"),
        element("td", format_percent(step["value"]), class_="number"),
        element("td", format_percent(step["action_value"]), class_="number"),
        element("td", format_percent(step["regret"]) if costly else "", class_="number cost"),
        element("td", signed_points(step["luck"]) if abs(step["luck"]) >= 0.0005 else "", class_="number"),
        element("td", element("span", (label or "").replace("_", " "), title=explanation) if costly else None),
    )


def trace_chart(record: EpisodeRecord) -> Markup:
    """Draw the chance of success under best play after each message: steps down in red are regret, the rest is luck."""
    steps = record["steps"][:MOST_STEPS]
    width, height, left, top, bottom = CHART_WIDTH, 170.0, 44.0, 14.0, 26.0
    tall = height - top - bottom
    column = (width - left - 8.0) / max(len(steps) + 1, 8)

    def y(value: float) -> float:
        return top + tall * (1.0 - value)

    parts: list[Child] = []
    for share in (0.0, 0.5, 1.0):
        parts.append(
            element("line", x1=left, x2=width - 8.0, y1=y(share), y2=y(share), class_="grid" if share else "zero")
        )
        parts.append(
            element("text", f"{share * 100:.0f}%", x=left - 8.0, y=y(share) + 4.0, class_="tick", text_anchor="end")
        )
    value = record["optimum"]
    x = left + column * 0.5
    parts.append(element("text", "start", x=x, y=height - 8.0, class_="tick", text_anchor="middle"))
    parts.append(element("circle", cx=x, cy=y(value), r=4.0, class_="dot trace"))
    for number, step in enumerate(steps, start=1):
        next_x = left + column * (number + 0.5)
        after = step["action_value"] + step["luck"]
        parts.append(element("line", x1=x, x2=next_x, y1=y(step["value"]), y2=y(step["value"]), class_="trace-level"))
        bar = min(16.0, column * 0.4)
        if step["regret"] > 0.0005:
            parts.append(_change(next_x, bar, y(step["value"]), y(step["action_value"]), "regret", step))
        if abs(step["luck"]) > 0.0005:
            style = "good-luck" if step["luck"] > 0 else "bad-luck"
            parts.append(_change(next_x, bar, y(step["action_value"]), y(after), style, step))
        parts.append(element("circle", cx=next_x, cy=y(after), r=4.0, class_="dot trace"))
        parts.append(element("text", str(step["turn"]), x=next_x, y=height - 8.0, class_="tick", text_anchor="middle"))
        x = next_x
    return figure(
        width,
        height,
        f"Chance of success during one episode of {record['policy']}",
        "V* after each message. Red falls are regret of the call, others are luck; the table below holds the numbers.",
        parts,
    )


def _change(x: float, width: float, start: float, end: float, style: str, step: StepRecord) -> Markup:
    amount = step["regret"] if style == "regret" else step["luck"]
    text = f"turn {step['turn']}: {'regret' if style == 'regret' else 'luck'} {signed_points(amount)} points"
    return element(
        "rect",
        element("title", text),
        x=x - width / 2.0,
        y=min(start, end),
        width=width,
        height=abs(end - start),
        class_=f"bar {style}",
    )
