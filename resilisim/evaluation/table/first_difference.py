"""Where two episodes on the same draws part: the first message in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from resilisim.errors import one_line
from resilisim.evaluation.episode.record import EpisodeRecord, StepRecord

MOST_PARTED: Final = 50  # pairs whose episodes are looked at; the rest is counted
LONGEST_MESSAGE: Final = 80  # characters that are shown of one


@dataclass(frozen=True, slots=True)
class Parted:
    """Two episodes of one task and seed that came out differently.

    Attributes:
        task: Id of the task.
        seed: The seed.
        baseline, candidate: 1 for a full success, else 0; None for an episode that broke or is not finished.
        turn: Number of the first message in which they differ, from 1; None where none does, or one is missing.
        baseline_did, candidate_did: What each did there.
        before: What the message before had brought, the same in both; empty at the first message.
        baseline_index, candidate_index: Numbers of the episodes in their runs.
        baseline_run, candidate_run: Their folders.
    """

    task: str
    seed: int
    baseline: int | None
    candidate: int | None
    turn: int | None
    baseline_did: str
    candidate_did: str
    before: str
    baseline_index: int | None
    candidate_index: int | None
    baseline_run: str
    candidate_run: str

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @property
    def where(self) -> str:
        """Where they part, in words."""
        if self.turn is None:
            missing = "one of both broke" if None in (self.baseline, self.candidate) else "both did the same"
            return missing
        after = f" after {self.before}" if self.before else ""
        return f"turn {self.turn}{after}: baseline {self.baseline_did}, candidate {self.candidate_did}"


def parted_episodes(
    pair: tuple[str, int], baseline: tuple[Path, EpisodeRecord] | None, candidate: tuple[Path, EpisodeRecord] | None
) -> Parted:
    """Return where the episodes of a pair, task and seed, part; each with its folder, None if it is not there."""
    records = [None if each is None else each[1] for each in (baseline, candidate)]
    turn, did, before = None, ("", ""), ""
    if records[0] is not None and records[1] is not None:
        turn, did, before = _parting(records[0]["steps"], records[1]["steps"])
    outcomes = [None if record is None else record["outcome"] for record in records]
    indices = [None if record is None else record["index"] for record in records]
    runs = ["" if each is None else str(each[0]) for each in (baseline, candidate)]
    return Parted(*pair, outcomes[0], outcomes[1], turn, *did, before, indices[0], indices[1], runs[0], runs[1])


def _parting(one: Sequence[StepRecord], other: Sequence[StepRecord]) -> tuple[int | None, tuple[str, str], str]:
    """Return the first turn at which steps differ, what each did there, and what the turn before had brought."""
    for place in range(max(len(one), len(other))):
        steps = [each[place] if place < len(each) else None for each in (one, other)]
        if steps[0] is None or steps[1] is None or said(steps[0]) != said(steps[1]):
            before = "" if place == 0 else _brought(one[place - 1])
            done = did(steps[0]), did(steps[1])
            if done[0] == done[1]:  # the same tool with other arguments, say
                words = ["" if step is None else one_line(step["message"], LONGEST_MESSAGE) for step in steps]
                done = f"{done[0]}: {words[0]}", f"{done[1]}: {words[1]}"
            return place + 1, done, before
    return None, ("", ""), ""


def said(step: StepRecord) -> tuple[str, str | None, str]:
    """Return what two messages have in common that are the same."""
    return step["kind"], step["tool"], step["message"]


# What an agent did with a message of each kind, and what the message was.
_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "execute": ("called {}", "{}"),
    "rejected": ("made a call of {} that was rejected", "a rejected call of {}"),
    "search": ("searched", "a search"),
    "info": ("asked about {}", "what is known of {}"),
    "format_error": ("sent nothing that could be read", "nothing that could be read"),
    "wait": ("waited", "waiting"),
    "finish": ("finished", "the end"),
    "stop": ("stopped", "the end"),
}


def _brought(step: StepRecord) -> str:
    """Return what a message has brought, in words."""
    what = _WORDS.get(step["kind"], ("", step["kind"].replace("_", " ")))[1].format(step["tool"] or "a tool")
    if step["kind"] != "execute":
        return what
    return f"{what} {'answered' if step['success'] else 'failed with ' + one_line(step['error'] or 'an error', 40)}"


def did(step: StepRecord | Mapping[str, Any] | None) -> str:
    """Say what a message did, in few words; None is one that an episode did not come to."""
    if step is None:
        return "had ended"
    if step["kind"] == "agent_error":
        return f"raised {one_line(step['error'] or 'an error', LONGEST_MESSAGE)}"
    kind: str = step["kind"]
    what, _ = _WORDS.get(kind, (kind.replace("_", " "), ""))
    return what.format(step["tool"] or "a tool")
