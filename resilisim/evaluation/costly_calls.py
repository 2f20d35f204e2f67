"""The calls of a run that cost most, whatever the order in which its episodes come."""

from __future__ import annotations

import heapq
from dataclasses import asdict, dataclass
from typing import Any, Final

from resilisim.evaluation.episode.record import EpisodeRecord, StepRecord

NUM_KEPT: Final = 100
EXCERPT_LENGTH: Final = 200  # characters of a message that are kept

# Finding out what the prompt does not say has a price, which is nobody's fault.
_NO_BLAME: Final = "information"

# Regrets that differ by rounding count as equal, so that the choice among them is by place and never by chance.
_DIGITS: Final = 9


@dataclass(frozen=True, slots=True)
class CostlyCall:
    """One message that cost something.

    Attributes:
        policy: Who sent it.
        prompt_type: Under which prompt.
        instance_id: The task's id.
        seed: The episode's seed.
        index: The episode's place in the plan of its run.
        turn: The message's number, from 1.
        kind: What the message was (execute, search, ...).
        tool: The tool that it named, if it named one.
        message: The message, cut at `EXCERPT_LENGTH` characters.
        label: Why it cost something (`LOSS_LABELS`).
        regret: What it cost, as a probability of full success.
    """

    policy: str
    prompt_type: str
    instance_id: str
    seed: int
    index: int
    turn: int
    kind: str
    tool: str | None
    message: str
    label: str
    regret: float

    def to_mapping(self) -> dict[str, Any]:
        """Return the call as JSON values."""
        return asdict(self)


# Regret (rounded), then the earlier episode and message: a total order, as no episode stands twice in a run.
_Key = tuple[float, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    key: _Key
    call: CostlyCall

    def __lt__(self, other: _Entry) -> bool:
        return self.key < other.key


class CostlyCalls:
    """Keeps the calls with the highest regret, searches that the prompt made necessary left out."""

    __slots__ = ("_heap", "_lowest")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._lowest = 0.0  # below this nothing can enter any more

    def add(self, record: EpisodeRecord, step: StepRecord) -> None:
        """Look at one call that has a label."""
        regret = step["regret"]
        if regret < self._lowest or step["label"] == _NO_BLAME:
            return
        key = (round(regret, _DIGITS), -record["index"], -step["turn"])
        if len(self._heap) < NUM_KEPT or key > self._heap[0].key:
            self._keep(_Entry(key, _costly_call(record, step)))

    def merge(self, other: CostlyCalls) -> None:
        """Look at the calls that others have kept."""
        for entry in other._heap:
            self._keep(entry)

    def _keep(self, entry: _Entry) -> None:
        heap = self._heap
        if len(heap) < NUM_KEPT:
            heapq.heappush(heap, entry)
        else:
            heapq.heappushpop(heap, entry)
        if len(heap) == NUM_KEPT:
            self._lowest = heap[0].key[0] - 10.0**-_DIGITS

    def ranked(self) -> tuple[CostlyCall, ...]:
        """Return the calls, the costliest first, at most `NUM_KEPT`."""
        return tuple(entry.call for entry in sorted(self._heap, reverse=True))


def _costly_call(record: EpisodeRecord, step: StepRecord) -> CostlyCall:
    return CostlyCall(
        policy=record["policy"],
        prompt_type=record["prompt_type"],
        instance_id=record["instance_id"],
        seed=record["seed"],
        index=record["index"],
        turn=step["turn"],
        kind=step["kind"],
        tool=step["tool"],
        message=step["message"][:EXCERPT_LENGTH],
        label=step["label"] or "",
        regret=step["regret"],
    )
