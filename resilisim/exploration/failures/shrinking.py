"""Shrinking: the fewest failures that lose an episode, found by turning failed calls into successes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resilisim.bounds import Count, checked
from resilisim.envs.session import not_repeated
from resilisim.errors import InvalidInputError, count_of
from resilisim.evaluation.run.progress import Progressing
from resilisim.exploration.failures.pattern import Pattern, Place, failures_by_luck
from resilisim.exploration.failures.watching import Call, Playable, Watching
from resilisim.simulator.draws import OK, Forced


@dataclass(frozen=True, slots=True)
class Shrunk:
    """What `shrink` found.

    Attributes:
        case: What was shrunk, in words.
        before: How many calls had failed by luck.
        pattern: The failures that are left.
        is_smallest: Whether no loss is left with one of them, or any group that was tried, turned into a success; False
            where `plays` ended it before.
        plays: Episodes that were played.
    """

    case: str
    before: int
    pattern: Pattern
    is_smallest: bool
    plays: int

    def to_mapping(self) -> dict[str, Any]:
        """Return it as JSON values."""
        numbers = {"before": self.before, "is_smallest": self.is_smallest, "plays": self.plays}
        return {"case": self.case, **numbers, **self.pattern.to_mapping()}

    def told(self) -> str:
        """Say it in one sentence."""
        left = len(self.pattern.failures)
        if not left:
            return f"{self.case} is lost although no call fails by luck"
        return f"{self.case} is lost by {count_of(left, 'failure')} of {self.before}"


class _OutOfPlays(Exception):
    """No play is left."""


class _Search:
    """Plays a case with calls of which it is said what they bring, each set of them once."""

    def __init__(self, case: Playable, plays: int, shown: Progressing) -> None:
        self._case, self._plays, self._shown = case, plays, shown
        self._played: dict[frozenset[tuple[Place, str]], Watching] = {}

    @property
    def num_played(self) -> int:
        return len(self._played)

    def play(self, calls: Mapping[Place, str]) -> Watching:
        key = frozenset(calls.items())
        if key not in self._played:
            if self.num_played >= self._plays:
                raise _OutOfPlays
            self._played[key] = self._case.watch_forced(Forced(calls).to_texts())
            self._shown.advance()
        return self._played[key]


def shrunk(case: Playable, plays: int, progress: bool | None) -> Shrunk:
    """Find the fewest failures that lose an episode (`Case.shrink`)."""
    checked(Count, "plays", plays)
    with Progressing("plays", plays, 0, progress) as shown:
        search = _Search(case, plays, shown)
        start = search.play({})
        check_repeats(case, start)
        if not start.is_lost:
            raise InvalidInputError(f"{case.name} has succeeded: expected an episode that was lost")
        spared, smallest, is_smallest = _smallest(search, start)
        # What is left of the failures is forced, too, so that the pattern stands there.
        made = {call.place for call in smallest.calls}
        calls = {**_kept(failures_by_luck(smallest)), **{place: OK for place in spared if place in made}}
        force = Forced(calls).to_texts()
        played = case.watch_forced(force)
    if not played.is_lost:
        raise InvalidInputError(f"{case.name} was lost and then was not: expected an agent that repeats itself")
    pattern = Pattern.of(case, played, force)
    return Shrunk(case.name, len(failures_by_luck(start)), pattern, is_smallest, search.num_played)


def check_repeats(case: Playable, played: Watching) -> None:
    """Refuse an agent that does not do what it did when the episode was recorded.

    Raises:
        InvalidInputError: The line names the message, and both versions.
    """
    if case.recorded is None:
        return
    steps = itertools.zip_longest(case.recorded["steps"], played.record["steps"])
    for place, (then, now) in enumerate(steps):
        before, after = (None if step is None else step["message"] or step["kind"] for step in (then, now))
        if before != after:
            raise not_repeated(place, after, before, case.name)


def _smallest(search: _Search, start: Watching) -> tuple[list[Place], Watching, bool]:
    """Return which failures were turned into successes, the play without them, and whether it is the smallest."""
    spared, smallest, parts = list[Place](), start, 1
    try:
        while failures := failures_by_luck(smallest):
            for group in _groups([call.place for call in failures], parts):
                freed, played = _without(search, failures, spared, group)
                if played.is_lost and len(failures_by_luck(played)) < len(failures):
                    spared, smallest, parts = [*spared, *freed], played, max(parts - 1, 1)
                    break
            else:
                if parts >= len(failures):
                    break
                parts = min(2 * parts, len(failures))
    except _OutOfPlays:
        return spared, smallest, False
    return spared, smallest, True


def _without(
    search: _Search, failures: Sequence[Call], spared: Sequence[Place], group: Sequence[Place]
) -> tuple[list[Place], Watching]:
    """Turn a group of failures into successes, and those of calls that are only made then; return all, and the play."""
    freed, places = list(group), {call.place for call in failures}
    while True:
        kept = _kept(call for call in failures if call.place not in freed)
        played = search.play({**kept, **dict.fromkeys([*spared, *freed], OK)})
        new = [call.place for call in failures_by_luck(played) if call.place not in places and call.place not in freed]
        if not played.is_lost or not new:
            return freed, played
        freed += new


def _kept(failures: Iterable[Call]) -> dict[Place, str]:
    """Return failures as they are forced.

    The key brings those that nobody can ask for, such as one that tells of dependencies.
    """
    return {call.place: call.result for call in failures if call.can_be_forced}


def _groups(places: Sequence[Place], parts: int) -> Iterator[list[Place]]:
    """Yield groups of failures to do without: all but one part each, then one part each."""
    size = math.ceil(len(places) / parts)
    groups = [list(places[at : at + size]) for at in range(0, len(places), size)]
    if len(groups) > 2:
        yield from ([place for place in places if place not in group] for group in groups)
    yield from groups
