"""The episodes of a run packed for the viewer, in one pass and in bounded memory.

A pack has four parts. The index holds what the list of episodes shows, in columns of numbers, and is unpacked when the
page opens. Steps, texts (what an agent sent) and talks (what it was told, thought and heard) lie in chunks, which are
unpacked when an episode of theirs is opened, or when words are looked for in them. Rows of all four are in one order,
failures first and the costliest first, so that whatever does not fit is missing at the end; talks are the first to go,
then texts, then episodes. All are JSON that is deflated and written in base64, so that no text of a record can end the
element in which it stands.

What a model is told (prompts, instructions) is the same in many episodes: such a text stands once, in the row of the
episode that needs it first, and other rows name it by its number.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import json
import math
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

from resilisim.evaluation.episode.record import EpisodeRecord, SpokenTexts, StepRecord
from resilisim.evaluation.episode.texts import newly_told, opened_if_whole, prompt_of, replies_of, stored
from resilisim.evaluation.run.contestants import split_name
from resilisim.tables.html import printable

PACK_FORMAT: Final = "resilisim-viewer-3"
DESCRIPTION_LENGTH = 1_500
LONGEST_NAME = 100
MOST_NAMES = 5_000  # after so many no further name that an agent made up is kept
OTHER = "(one of many made-up names)"
MILLION = 1_000_000  # shares are kept in millionths
ROW_BYTES = 400  # that a row of the index takes in memory, about
COMPRESSION_LEVEL = 6
CHUNK_BYTES, CHUNK_ROWS = 262_144, 256  # of JSON that a browser unpacks to show one episode

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

# Columns of the index in the order of `_PackedEpisode.row`; to them come the sets "causes" and "tools".
ROW_COLUMNS: Final = (
    "index",
    "policy",
    "prompt",
    "task",
    "flaw",
    "seed",
    "level",
    "ending",
    "optimum",
    "regret",
    "luck",
    "turns",
    "cause",
    "weight",  # of a branch of an agent that was explored, else null
)

Kept = TypeVar("Kept")


# How much there is to see in an episode: whether it missed full success; its regret, rounded, so that sums that differ
# in the last bit count as equal; minus its index, so that of equals the earlier one comes first. The highest is first.
Rank: TypeAlias = tuple[bool, float, int]


def rank_of(record: EpisodeRecord) -> Rank:
    """Return the rank of an episode."""
    return not record["outcome"], round(record["regret"], 9), -record["index"]


class Shortlist(Generic[Kept]):
    """Keeps what ranks highest, so many bytes of it; everything above the highest rank that had to go is there."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._heap: list[tuple[Rank, int, Kept]] = []
        self._refused: Rank | None = None

    def accepts(self, rank: Rank) -> bool:
        """Return whether something of this rank can still be kept."""
        return self._refused is None or rank > self._refused

    def add(self, rank: Rank, size: int, kept: Kept) -> None:
        """Keep something, at the cost of what ranks lower. No two may have one rank."""
        if not self.accepts(rank):
            return
        heapq.heappush(self._heap, (rank, size, kept))
        self._bytes += size
        while self._bytes > self._most_bytes:
            self._refused, size, _ = heapq.heappop(self._heap)
            self._bytes -= size

    def in_order(self) -> list[Kept]:
        """Return what was kept, the highest rank first."""
        return [kept for _, _, kept in sorted(self._heap, key=lambda entry: entry[0], reverse=True)]


class Numbering:
    """Numbers entries in the order of their first use, by their keys: columns of a pack hold numbers."""

    def __init__(self) -> None:
        self.entries: list[object] = []  # what each number stands for: a name, or the values of an entry
        self.keys: dict[Hashable, int] = {}

    def entry(self, key: Hashable, value: object) -> int:
        """Return the number of an entry."""
        number = self.keys.setdefault(key, len(self.entries))
        if number == len(self.entries):
            self.entries.append(value)
        return number

    def name(self, name: str | None) -> int:
        """Return the number of a name; -1 for None."""
        if name is None:
            return -1
        known = self.keys.get(name)
        return self.entry(name, short(name)) if known is None else known

    def made_up(self, name: str | None, other: str = OTHER) -> int:
        """Return the number of a name that an agent may have made up; all that find no place share that of `other`."""
        has_place = name is None or name in self.keys or len(self.entries) < MOST_NAMES
        return self.name(name if has_place else other)


def short(name: str) -> str:
    """Return a name fit to be printed, cut if it is very long."""
    shown = printable(name)
    return shown if len(shown) <= LONGEST_NAME else shown[: LONGEST_NAME - 1] + "…"


def pack_chunks(rows: Iterable[bytes], most_bytes: int) -> tuple[list[str], list[int]]:
    """Pack rows of JSON, the most important first, into blocks, each a JSON array, until a budget is used up.

    With the blocks comes for each the number of its first row, and the number of all packed rows at the end.
    """
    blocks: list[str] = []
    starts = [0]
    left = most_bytes
    for chunk in _chunks(rows):
        fitting, block = chunk, packed_rows(chunk)
        while len(block) > left and fitting:
            fitting = fitting[: len(fitting) // 2]
            block = packed_rows(fitting)
        if fitting:
            blocks.append(block)
            starts.append(starts[-1] + len(fitting))
            left -= len(block)
        if len(fitting) < len(chunk):
            break
    return blocks, starts


def _chunks(rows: Iterable[bytes]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for row in rows:
        if chunk and (size + len(row) > CHUNK_BYTES or len(chunk) == CHUNK_ROWS):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += len(row)
    if chunk:
        yield chunk


def packed_rows(rows: list[bytes]) -> str:
    """Return rows of JSON as a block of a page."""
    return packed(b"[" + b",".join(rows) + b"]")


def packed(data: bytes) -> str:
    """Return JSON as a block of a page."""
    return base64.b64encode(zlib.compress(data, COMPRESSION_LEVEL)).decode("ascii")


@dataclass(frozen=True, slots=True)
class _PackedEpisode:
    row: list[float | None]
    causes: tuple[int, ...]
    tools: tuple[int, ...]
    steps: bytes


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of a run is packed; sizes in bytes."""

    numbers: int = 8_500_000  # of index and steps in the page
    texts: int = 7_500_000  # of texts in the page
    whole: int = 16_000_000  # of everything in the page: what the others leave is for talks
    memory: int = 64_000_000  # what steps, and again texts, and again talks, may take before they are packed


@dataclass(frozen=True, slots=True)
class Pack:
    """The blocks of a page that hold a run's episodes, of which some have their numbers, texts and talks in them."""

    index: str
    steps: list[str]
    texts: list[str]
    talks: list[str]
    num_episodes: int
    num_packed: int
    num_with_texts: int
    num_with_talks: int
    num_talks: int  # episodes of the run whose records have kept a talk

    @property
    def blocks(self) -> dict[str, str]:
        """The blocks by what they are called within a page."""
        kinds = {"steps": self.steps, "texts": self.texts, "talks": self.talks}
        chunks = {f"pack-{kind}-{number}": block for kind, own in kinds.items() for number, block in enumerate(own)}
        return {"pack-index": self.index, **chunks}


class Packer:
    """Takes in the episodes of a run one by one; memory is bounded, but for the names of tasks, policies and tools."""

    def __init__(self, budget: Budget | None = None) -> None:
        self._budget = budget or Budget()
        self._numbers: Shortlist[_PackedEpisode] = Shortlist(self._budget.memory)
        self._texts: Shortlist[bytes] = Shortlist(self._budget.memory)
        self._talks: Shortlist[tuple[int, bytes]] = Shortlist(self._budget.memory)
        self._num_episodes = 0
        self._num_talks = 0
        names = ("prompts", "types", "seeds", "levels", "endings", "causes", "tools", "kinds", "errors", "bests")
        self._tables = {name: Numbering() for name in (*names, "policies", "tasks", "flaws")}

    def add(self, record: EpisodeRecord) -> None:
        """Take in one episode."""
        self._num_episodes += 1
        rank = rank_of(record)
        if self._numbers.accepts(rank):
            episode = self._packed(record)
            self._numbers.add(rank, len(episode.steps) + ROW_BYTES, episode)
        if self._texts.accepts(rank):
            texts = encode(episode_texts(record))
            self._texts.add(rank, len(texts), texts)
        talk = talk_of(record)
        if talk is not None:
            self._num_talks += 1
            self._talks.add(rank, len(talk), (record["index"], talk))

    @property
    def tasks(self) -> list[str]:
        """The instance ids of the tasks so far."""
        return [str(name) for name in self._tables["tasks"].keys]

    def pack(self, command: str, descriptions: Mapping[str, str]) -> Pack:
        """Return the blocks of the episodes so far.

        They hold the command that shows an episode in a terminal, but for the episode's number, and the descriptions of
        tasks by instance id, as far as they are known.
        """
        known = [printable(descriptions.get(name, "")[:DESCRIPTION_LENGTH]) for name in self.tasks]
        extra = {"command": printable(command), "descriptions": known}
        kept = self._numbers.in_order()
        steps, step_starts = pack_chunks((episode.steps for episode in kept), self._budget.numbers)
        index = self._index(kept, extra, step_starts)
        while steps and (size := len(index) + sum(map(len, steps))) > self._budget.numbers:
            staying = min(len(steps) - 1, len(steps) * self._budget.numbers // size)
            steps, step_starts = steps[:staying], step_starts[: staying + 1]
            index = self._index(kept, extra, step_starts)
        texts, text_starts = pack_chunks(self._texts.in_order()[: step_starts[-1]], self._budget.texts)
        room = self._budget.whole - len(index) - sum(map(len, steps)) - sum(map(len, texts))
        row_of = {episode.row[0]: row for row, episode in enumerate(kept[: text_starts[-1]])}
        talks = [(row_of[index], talk) for index, talk in self._talks.in_order() if index in row_of]
        rows = TalkRows()
        blocks, talk_starts = pack_chunks((rows.row(talk) for _, talk in talks), room)
        with_talks = [row for row, _ in talks[: talk_starts[-1]]]
        string_starts = [sum(rows.num_strings[:start]) for start in talk_starts]
        index = self._index(kept, extra, step_starts, text_starts, talk_starts, string_starts, with_talks)
        counts = (self._num_episodes, step_starts[-1], text_starts[-1], talk_starts[-1], self._num_talks)
        return Pack(index, steps, texts, blocks, *counts)

    def _index(
        self,
        kept: list[_PackedEpisode],
        extra: Mapping[str, object],
        steps: Sequence[int],
        texts: Sequence[int] = (0,),
        talks: Sequence[int] = (0,),
        strings: Sequence[int] = (0,),
        with_talks: Sequence[int] = (),
    ) -> str:
        """Return the block of the index.

        Of each kind of chunk it has the number of each chunk's first row, with the number of all rows at the end;
        `strings` numbers the texts that rows of talks bring with them, `with_talks` is the row of each talk.
        """
        shown = kept[: steps[-1]]
        columns = {name: [episode.row[place] for episode in shown] for place, name in enumerate(ROW_COLUMNS)}
        causes, tools = Numbering(), Numbering()  # of the shown episodes alone: sets can be as many as episodes
        columns["causes"] = [causes.entry(episode.causes, episode.causes) for episode in shown]
        columns["tools"] = [tools.entry(episode.tools, episode.tools) for episode in shown]
        tables = {name: table.entries for name, table in self._tables.items()}
        value = {
            "format": PACK_FORMAT,
            "episodes": self._num_episodes,
            "tables": {**tables, "cause_sets": causes.entries, "tool_sets": tools.entries},
            "columns": columns,
            "starts": {"steps": steps, "texts": texts, "talks": talks, "strings": strings},
            "with_talks": with_talks,
            "num_talks": self._num_talks,
            **extra,
        }
        return packed(encode(value))

    def _packed(self, record: EpisodeRecord) -> _PackedEpisode:
        tables = self._tables
        losses, policy, instance_id, flaw = record["losses"], record["policy"], record["instance_id"], record["flaw"]
        costliest = max(losses, key=lambda label: losses[label]) if losses else None
        called = (step["tool"] for step in record["steps"] if step["kind"] in ("execute", "info") and step["tool"])
        agent, model = split_name(policy)
        names = (short(policy), short(agent), None if model is None else short(model))
        required = [tables["tools"].name(tool) for tool in record["required_tools"]]
        task = (short(instance_id), tables["types"].name(record["task_type"]), required)
        row: list[float | None] = [
            record["index"],
            tables["policies"].entry(policy, (*names, record["privileged"])),
            tables["prompts"].name(record["prompt_type"]),
            tables["tasks"].entry(instance_id, task),
            -1 if flaw is None else self._flaw(flaw),
            tables["seeds"].name(str(record["seed"])),  # as text: JavaScript has no whole numbers beyond 2^53
            tables["levels"].name(record["score"]["level"]),
            tables["endings"].name(record["ended_by"]),
            _millionths(record["optimum"]),
            _millionths(record["regret"]),
            _millionths(record["luck"]),
            len(record["steps"]),
            tables["causes"].name(costliest),
            record.get("weight"),
        ]
        return _PackedEpisode(
            row,
            causes=tuple(sorted(tables["causes"].name(label) for label in losses)),
            tools=tuple(sorted({tables["tools"].name(tool) for tool in called})),
            steps=encode([self._step(step) for step in record["steps"]]),
        )

    def _flaw(self, flaw: Mapping[str, object]) -> int:
        names = tuple(short(str(flaw.get(key))) for key in ("type", "severity", "method"))
        return self._tables["flaws"].entry(names, names)

    def _step(self, step: StepRecord) -> list[int | None]:
        tables = self._tables
        tool, success, chance = step["tool"], step["success"], step["success_probability"]
        return [
            tables["kinds"].name(step["kind"]),
            tables["tools"].made_up(tool),
            -1 if success is None else int(success),
            self._error(step),
            step["attempt"],
            None if chance is None else _millionths(chance),
            _millionths(step["value"]),
            _millionths(step["action_value"]),
            _millionths(step["luck"]),
            tables["causes"].name(step["label"]),
            *([tables["bests"].made_up(step["best"])] if "best" in step else []),
        ]

    def _error(self, step: StepRecord) -> int:
        """Return the number of an execution's code, of which there are few, or of why a message was not obeyed."""
        errors, error = self._tables["errors"], step["error"]
        return errors.name(error) if step["success"] is not None or error is None else errors.made_up(error, "")


def _millionths(share: float) -> int | None:
    return round(share * MILLION) if math.isfinite(share) else None


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

    They are "messages", one per step; "edits" of a flawed plan, [what, step, before, after]; and what an "agent" says
    of itself.
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
    """Makes rows of talks, one after the other: what one brings the next need not bring again."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self.num_strings: list[int] = []  # texts that each row so far brings with it

    def row(self, talk: bytes) -> bytes:
        """Return the JSON of a row: [texts that it brings, prompt, replies, calls]; of broken texts, what is wrong.

        A reply is a text. A call is [component, messages sent before it (-1: before the last fresh episode), what it
        was told, thoughts, what it wrote]. Prompt and what it was told are numbers of texts, the latter behind the role
        of who speaks; thoughts are "" if there are none, and what it wrote is null where just that was sent.
        """
        record, problem = opened_if_whole(json.loads(talk))
        if problem is not None:
            texts = SpokenTexts(prompt=problem, replies=[""] * len(record["steps"]))
            record = cast("EpisodeRecord", {"steps": record["steps"], "texts": texts})
        left = _Room(TALK_LENGTH)
        brought: list[Shown] = []
        prompt = prompt_of(record)
        told_first = None if prompt is None else self._number(left.cut(prompt, TOLD_LENGTH), brought)
        replies = [left.cut(reply or "") for reply in replies_of(record)]
        agent = record.get("agent", {})
        sent = [readable_message(step["message"]).strip() for step in record["steps"]]
        calls = []
        for call, new in zip(agent.get("calls", ()), newly_told(record), strict=True):
            cells = [
                [message["role"], self._number(left.cut(message["content"], TOLD_LENGTH), brought)]
                for message in map(agent["messages"].__getitem__, new)
            ]
            reply, turn = call["reply"], call["turn"]
            native = "".join(f"\n{one['name']}({one['arguments']})" for one in reply["tool_calls"])
            wrote = (reply["text"] + native).strip()
            is_sent = 0 <= turn < len(sent) and wrote == sent[turn]
            thoughts = left.cut(reply.get("thoughts", ""))
            calls.append([printable(call["role"])[:100], turn, cells, thoughts, None if is_sent else left.cut(wrote)])
        self.num_strings.append(len(brought))
        return encode([brought, told_first, replies, calls])

    def _number(self, text: Shown, brought: list[Shown]) -> int:
        digest = hashlib.blake2b(encode(text), digest_size=16).digest()
        number = self._numbers.get(digest)
        if number is None:
            number = self._numbers[digest] = len(self._numbers)
            brought.append(text)
        return number
