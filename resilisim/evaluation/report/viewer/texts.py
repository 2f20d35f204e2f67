"""What is written and said in an episode, for the viewer.

Texts are what an agent sent, the edits of a flawed plan, and what an LLM agent says of itself. Talks are prompt,
replies of the environment, and each call of a model. What a model is told (prompts, instructions) is the same in many
episodes: such a text stands once, in the row of the episode that needs it first, and other rows name it by its number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from resilisim.evaluation.episode.record import EpisodeRecord, SpokenTexts
from resilisim.evaluation.episode.texts import newly_told, opened_if_whole, prompt_of, replies_of, stored
from resilisim.evaluation.report.page import printable

MESSAGE_LENGTH = 6_000  # characters of one message that are kept
EPISODE_LENGTH = 40_000  # characters of all messages of an episode
DETAIL_LENGTH = 300  # characters of an event, an edit, a failure
MOST_EVENTS = 60
MOST_EDITS = 12
TOLD_LENGTH = 12_000  # of a prompt, or of what a model is told at once
TALK_LENGTH = 60_000  # of all texts of an episode but its messages

# A text, or its beginning and its length if it was cut.
Shown = str | list[object]

_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def encode(value: object) -> bytes:
    """Return the shortest JSON of a value, in ASCII; NaN and infinities are refused."""
    return _ENCODER.encode(value).encode("ascii")


class _Room:
    """What is left for the texts of an episode."""

    def __init__(self, most: int) -> None:
        self._left = most

    def cut(self, text: str, most: int = MESSAGE_LENGTH) -> Shown:
        """Return a text, or its beginning and its length where it has no room."""
        kept = printable(text[: min(most, self._left)])
        self._left -= len(kept)
        return kept if len(kept) == len(text) else [kept, len(text)]


def episode_texts(record: EpisodeRecord) -> dict[str, Any]:
    """Return the texts of an episode as JSON values.

    Returns:
        "messages": one per step, a text or [its beginning, its length]; "edits" (of a flawed plan): [what, step,
        before, after]; "agent" (of an LLM agent): its architecture, models, calls, tokens, end, answer, first failure
        and events.
    """
    room = _Room(EPISODE_LENGTH)
    texts: dict[str, Any] = {"messages": [room.cut(readable_message(step["message"])) for step in record["steps"]]}
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


def talk_of(record: EpisodeRecord) -> bytes | None:
    """Return of a record what its talk is made of, as JSON and as small as it comes; None if nothing was kept of it."""
    agent = record.get("agent")
    if "texts" not in record and "messages" not in (agent or {}):
        return None
    if not isinstance(record.get("texts"), str):  # an older one
        record = stored(record, "all")
    steps = [{"message": step["message"]} for step in record["steps"]]
    part: dict[str, Any] = {"index": record["index"], "steps": steps, "texts": record.get("texts")}
    if agent is not None:
        # Turns are those of the last trial; what was said in earlier ones comes before all of them.
        restarts = [event["call"] for event in agent["events"] if event["kind"] == "restart"]
        begun = max(restarts, default=0)
        part["agent"] = {
            "calls": [
                {"role": call["role"], "turn": call["turn"] if number >= begun else -1, "reply": {}}
                for number, call in enumerate(agent["calls"])
            ]
        }
    return encode(part)


class TalkRows:
    """Rows of talks, made one after the other.

    Args:
        talks: What they are made of (`talk_of`), the most important first.

    Attributes:
        num_strings: Texts that each row brings with it, in the order of the rows so far.
    """

    def __init__(self, talks: Iterable[bytes]) -> None:
        self._talks = talks
        self._numbers: dict[bytes, int] = {}
        self.num_strings: list[int] = []

    def __iter__(self) -> Iterator[bytes]:
        """Yield the JSON of each row: [texts that it brings, prompt, replies, calls]; of broken texts, what is wrong.

        A reply is a text. A call is [component, messages sent before it (-1: before the last fresh episode), what it
        was told, thoughts, what it wrote]. Prompt and what it was told are numbers of texts, the latter behind the role
        of who speaks; thoughts are "" if there are none, and what it wrote is null where just that was sent.
        """
        for talk in self._talks:
            record, problem = opened_if_whole(json.loads(talk))
            if problem is not None:
                texts = SpokenTexts(prompt=problem, replies=[""] * len(record["steps"]))
                record = cast("EpisodeRecord", {"steps": record["steps"], "texts": texts})
            yield self._row(record)

    def _row(self, record: EpisodeRecord) -> bytes:
        left = _Room(TALK_LENGTH)
        brought: list[Shown] = []
        prompt = prompt_of(record)
        told_first = None if prompt is None else self._number(left.cut(prompt, TOLD_LENGTH), brought)
        replies = [left.cut(reply or "") for reply in replies_of(record)]
        agent = record.get("agent", {})
        sent = [readable_message(step["message"]).strip() for step in record["steps"]]
        calls = []
        for call, new in zip(agent.get("calls", ()), newly_told(record), strict=True):
            told = [
                [message["role"], self._number(left.cut(message["content"], TOLD_LENGTH), brought)]
                for message in map(agent["messages"].__getitem__, new)
            ]
            reply, turn = call["reply"], call["turn"]
            native = "".join(f"\n{one['name']}({one['arguments']})" for one in reply["tool_calls"])
            wrote = (reply["text"] + native).strip()
            is_sent = 0 <= turn < len(sent) and wrote == sent[turn]
            calls.append(
                [
                    printable(call["role"])[:100],
                    turn,
                    told,
                    left.cut(reply.get("thoughts", "")),
                    None if is_sent else left.cut(wrote),
                ]
            )
        self.num_strings.append(len(brought))
        return encode([brought, told_first, replies, calls])

    def _number(self, text: Shown, brought: list[Shown]) -> int:
        digest = hashlib.blake2b(encode(text), digest_size=16).digest()
        number = self._numbers.get(digest)
        if number is None:
            number = self._numbers[digest] = len(self._numbers)
            brought.append(text)
        return number
