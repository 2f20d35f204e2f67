"""What is written in an episode: its messages, the edits of its flaw, and what an LLM agent says of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.report.content import printable

MESSAGE_LENGTH = 6_000  # characters of one message that are kept
EPISODE_LENGTH = 40_000  # characters of all messages of an episode
DETAIL_LENGTH = 300  # characters of an event, an edit, a failure
MOST_EVENTS = 60
MOST_EDITS = 12


def episode_texts(record: EpisodeRecord) -> dict[str, Any]:
    """Return the texts of an episode as JSON values.

    Returns:
        "messages": one per step, a text or [its beginning, its length]; "edits" (of a flawed plan): [what, step,
        before, after]; "agent" (of an LLM agent): its architecture, models, calls, tokens, end, answer, first failure
        and events.
    """
    left = EPISODE_LENGTH
    messages: list[object] = []
    for step in record["steps"]:
        text = readable_message(step["message"])
        kept = printable(text[: min(MESSAGE_LENGTH, left)])
        left -= len(kept)
        messages.append(kept if len(kept) == len(text) else [kept, len(text)])
    texts: dict[str, Any] = {"messages": messages}
    if record["flaw"] is not None and record["flaw"].get("edits"):
        texts["edits"] = [_edit(edit) for edit in record["flaw"]["edits"][:MOST_EDITS]]
    agent = record.get("agent")
    if agent is not None:
        texts["agent"] = _agent(agent)
    return texts


def readable_message(message: str) -> str:
    """Return a message as people read it: a native message's content, then its calls, instead of its JSON."""
    if not message.startswith('{"role"'):
        return message
    try:
        value = json.loads(message)
        calls = [call["function"] for call in value.get("tool_calls") or ()]
        lines = [value["content"]] if value.get("content") else []
        lines += [f"{call['name']}({call['arguments']})" for call in calls]
        return "\n".join(lines)
    except (ValueError, TypeError, KeyError, AttributeError):
        return message


def _edit(edit: Mapping[str, Any]) -> list[object]:
    where = edit.get("where") or {}
    return [
        _cut(edit.get("what")),
        where.get("step") if isinstance(where, Mapping) else None,
        _cut(edit.get("before")),
        _cut(edit.get("after")),
    ]


def _agent(agent: Mapping[str, Any]) -> dict[str, Any]:
    components = agent.get("components", {}).values()
    failure = agent.get("first_failure")
    events = agent.get("events", [])
    return {
        "architecture": _cut(agent.get("architecture")),
        "models": {_cut(role): _cut(model) for role, model in agent.get("models", {}).items()},
        "calls": sum(usage["calls"] for usage in components),
        "tokens": sum(usage["prompt_tokens"] + usage["completion_tokens"] for usage in components),
        "ended_by": _cut(agent.get("ended_by")),
        "answer": _cut(agent.get("answer")),
        "restarts": agent.get("restarts", 0),
        "failure": None if failure is None else [_cut(failure["component"]), _cut(failure["text"]), failure["turn"]],
        "events": [
            [_cut(event["kind"]), _cut(event["component"]), _cut(event["text"]), event["turn"]]
            for event in events[:MOST_EVENTS]
        ],
        "num_events": len(events),
    }


def _cut(value: object) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return printable(text if len(text) <= DETAIL_LENGTH else text[: DETAIL_LENGTH - 1] + "…")
