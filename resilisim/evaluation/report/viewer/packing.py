"""The episodes of a run packed for the viewer, in one pass and in bounded memory.

A pack has four parts. The index holds what the list of episodes shows, in columns of numbers, and is unpacked when the
page opens. Steps, texts (what an agent sent) and talks (what it was told, thought and heard) lie in chunks, which are
unpacked when an episode of theirs is opened, or when words are looked for in them. Rows of all four are in one order,
failures first and the costliest first, so that whatever does not fit is missing at the end; talks are the first to go,
then texts, then episodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from resilisim.evaluation.episode.record import EpisodeRecord, StepRecord
from resilisim.evaluation.report.content import printable
from resilisim.evaluation.report.viewer.blocks import encode, pack_block, pack_chunks
from resilisim.evaluation.report.viewer.names import EntryTable, NameTable, short
from resilisim.evaluation.report.viewer.ranking import Shortlist, rank_of
from resilisim.evaluation.report.viewer.talks import TalkRows, talk_of
from resilisim.evaluation.report.viewer.texts import episode_texts
from resilisim.evaluation.run.contestants import model_of, policy_of

PACK_FORMAT: Final = "resilisim-viewer-2"
DESCRIPTION_LENGTH = 1_500
MILLION = 1_000_000  # shares are kept in millionths
ROW_BYTES = 400  # that a row of the index takes in memory, about

# Columns of the index in the order of `_PackedEpisode.row`; to them come the sets "causes" and "tools".
COLUMNS: Final = (
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
)


@dataclass(frozen=True, slots=True)
class _PackedEpisode:
    row: list[int | None]
    causes: tuple[int, ...]
    tools: tuple[int, ...]
    steps: bytes


@dataclass(frozen=True, slots=True)
class _Starts:
    """For each kind of chunk the number of each chunk's first row, with the number of all rows at the end.

    `strings` numbers the texts that rows of talks bring with them; `with_talks` is the row of the index of each talk.
    """

    steps: list[int]
    texts: Sequence[int] = (0,)
    talks: Sequence[int] = (0,)
    strings: Sequence[int] = (0,)
    with_talks: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of a run is packed; sizes in bytes.

    Attributes:
        numbers: Of index and steps in the page.
        texts: Of texts in the page.
        whole: Of everything in the page: what the others leave is for talks.
        memory: What steps, and again texts, and again talks, may take before they are packed.
    """

    numbers: int = 8_500_000
    texts: int = 7_500_000
    whole: int = 16_000_000
    memory: int = 64_000_000


@dataclass(frozen=True, slots=True)
class Pack:
    """The blocks of a page that hold a run's episodes.

    Attributes:
        index: Block of the index.
        steps: Blocks of the steps.
        texts: Blocks of the texts.
        talks: Blocks of the talks.
        num_episodes: Episodes of the run.
        num_packed: Those whose numbers are in the blocks.
        num_with_texts: Those whose texts are.
        num_with_talks: Those whose talks are.
        num_talks: Episodes of the run whose records have kept a talk.
    """

    index: str
    steps: list[str]
    texts: list[str]
    talks: list[str]
    num_episodes: int
    num_packed: int
    num_with_texts: int
    num_with_talks: int
    num_talks: int


class Packer:
    """Takes in the episodes of a run one by one; memory is bounded, but for the names of tasks, policies and tools.

    Args:
        budget: How much is packed.
    """

    def __init__(self, budget: Budget | None = None) -> None:
        self._budget = budget or Budget()
        self._numbers: Shortlist[_PackedEpisode] = Shortlist(self._budget.memory)
        self._texts: Shortlist[bytes] = Shortlist(self._budget.memory)
        self._talks: Shortlist[tuple[int, bytes]] = Shortlist(self._budget.memory)
        self._num_episodes = 0
        self._num_talks = 0
        names = ("prompts", "types", "seeds", "levels", "endings", "causes", "tools", "kinds", "errors")
        self._names = {name: NameTable() for name in names}
        entries = ("policies", "tasks", "flaws")
        self._entries = {name: EntryTable() for name in entries}

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
            if self._talks.accepts(rank):
                self._talks.add(rank, len(talk), (record["index"], talk))

    def pack(self, command: str, descriptions: Mapping[str, str]) -> Pack:
        """Return the blocks of the episodes so far.

        Args:
            command: The command that shows an episode in a terminal, but for the episode's number.
            descriptions: Descriptions of tasks by instance id, as far as they are known.
        """
        known = [
            printable(descriptions.get(str(name), "")[:DESCRIPTION_LENGTH]) for name in self._entries["tasks"].keys
        ]
        extra = {"command": printable(command), "descriptions": known}
        kept = self._numbers.in_order()
        steps, step_starts = pack_chunks((episode.steps for episode in kept), self._budget.numbers)
        starts = _Starts(step_starts)
        index = self._index(kept, starts, extra)
        while steps and (size := len(index) + sum(map(len, steps))) > self._budget.numbers:
            staying = min(len(steps) - 1, len(steps) * self._budget.numbers // size)
            steps, step_starts = steps[:staying], step_starts[: staying + 1]
            starts = _Starts(step_starts)
            index = self._index(kept, starts, extra)
        texts, text_starts = pack_chunks(self._texts.in_order()[: step_starts[-1]], self._budget.texts)
        room = self._budget.whole - len(index) - sum(map(len, steps)) - sum(map(len, texts))
        row_of = {episode.row[0]: row for row, episode in enumerate(kept[: text_starts[-1]])}
        talks = [(row_of[index], talk) for index, talk in self._talks.in_order() if index in row_of]
        rows = TalkRows(talk for _, talk in talks)
        blocks, talk_starts = pack_chunks(rows, room)
        with_talks = [row for row, _ in talks[: talk_starts[-1]]]
        string_starts = [sum(rows.num_strings[:start]) for start in talk_starts]
        starts = _Starts(step_starts, text_starts, talk_starts, string_starts, with_talks)
        index = self._index(kept, starts, extra)
        return Pack(
            index,
            steps,
            texts,
            blocks,
            self._num_episodes,
            step_starts[-1],
            text_starts[-1],
            talk_starts[-1],
            self._num_talks,
        )

    def _index(
        self,
        kept: list[_PackedEpisode],
        starts: _Starts,
        extra: Mapping[str, object],
    ) -> str:
        shown = kept[: starts.steps[-1]]
        columns = {name: [episode.row[place] for episode in shown] for place, name in enumerate(COLUMNS)}
        causes, tools = EntryTable(), EntryTable()  # of the shown episodes alone: sets can be as many as episodes
        columns["causes"] = [causes.number(episode.causes) for episode in shown]
        columns["tools"] = [tools.number(episode.tools) for episode in shown]
        tables = {name: table.names for name, table in self._names.items()}
        entries = {name: table.entries for name, table in self._entries.items()}
        sets = {"cause_sets": causes.entries, "tool_sets": tools.entries}
        return pack_block(
            {
                "format": PACK_FORMAT,
                "episodes": self._num_episodes,
                "tables": {**tables, **entries, **sets},
                "columns": columns,
                "starts": {name: getattr(starts, name) for name in ("steps", "texts", "talks", "strings")},
                "with_talks": starts.with_talks,
                "num_talks": self._num_talks,
                **extra,
            }
        )

    def _packed(self, record: EpisodeRecord) -> _PackedEpisode:
        names = self._names
        losses = record["losses"]
        costliest = max(losses, key=lambda label: losses[label]) if losses else None
        called = (step["tool"] for step in record["steps"] if step["kind"] in ("execute", "info") and step["tool"])
        row = [
            record["index"],
            self._policy(record),
            names["prompts"].number(record["prompt_type"]),
            self._task(record),
            self._flaw(record),
            names["seeds"].number(str(record["seed"])),  # as text: JavaScript has no whole numbers beyond 2^53
            names["levels"].number(record["score"]["level"]),
            names["endings"].number(record["ended_by"]),
            _millionths(record["optimum"]),
            _millionths(record["regret"]),
            _millionths(record["luck"]),
            len(record["steps"]),
            names["causes"].optional(costliest),
        ]
        return _PackedEpisode(
            row,
            causes=tuple(sorted(names["causes"].number(label) for label in losses)),
            tools=tuple(sorted({names["tools"].number(tool) for tool in called})),
            steps=encode([self._step(step) for step in record["steps"]]),
        )

    def _policy(self, record: EpisodeRecord) -> int:
        name = record["policy"]
        number = self._entries["policies"].find(name)
        if number is not None:
            return number
        model = model_of(name)
        entry = (short(name), short(policy_of(name)), None if model is None else short(model), record["privileged"])
        return self._entries["policies"].add(name, entry)

    def _task(self, record: EpisodeRecord) -> int:
        instance_id = record["instance_id"]
        number = self._entries["tasks"].find(instance_id)
        if number is not None:
            return number
        tools = [self._names["tools"].number(tool) for tool in record["required_tools"]]
        entry = (short(instance_id), self._names["types"].number(record["task_type"]), tools)
        return self._entries["tasks"].add(instance_id, entry)

    def _flaw(self, record: EpisodeRecord) -> int:
        flaw = record["flaw"]
        if flaw is None:
            return -1
        return self._entries["flaws"].number(tuple(short(str(flaw.get(key))) for key in ("type", "severity", "method")))

    def _step(self, step: StepRecord) -> list[int | None]:
        names = self._names
        chance = step["success_probability"]
        return [
            names["kinds"].number(step["kind"]),
            -1 if step["tool"] is None else names["tools"].number_if_room(step["tool"]),
            -1 if step["success"] is None else int(step["success"]),
            self._error(step),
            step["attempt"],
            None if chance is None else _millionths(chance),
            _millionths(step["value"]),
            _millionths(step["action_value"]),
            _millionths(step["luck"]),
            names["causes"].optional(step["label"]),
        ]

    def _error(self, step: StepRecord) -> int:
        """Return the number of an execution's code, of which there are few, or of why a message was not obeyed."""
        errors, error = self._names["errors"], step["error"]
        return (
            errors.optional(error) if step["success"] is not None or error is None else errors.number_if_room(error, "")
        )


def _millionths(share: float) -> int | None:
    return round(share * MILLION) if math.isfinite(share) else None
