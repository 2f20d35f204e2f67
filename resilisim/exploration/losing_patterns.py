"""Losing patterns: the fewest failures that lose an episode, and those with which an agent loses needlessly."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from resilisim.bounds import Count, Share, checked
from resilisim.envs.session import NotRepeatedError, not_repeated
from resilisim.errors import InvalidInputError, count_of
from resilisim.evaluation.episode.record import EpisodeRecord, has_no_ceiling
from resilisim.evaluation.run.progress import Progressing
from resilisim.exploration.watching import Call, Fault, Playable, Steady, Watching
from resilisim.options import check_options, option
from resilisim.simulator.draws import OK, Forced
from resilisim.tables.numbers import percent
from resilisim.tables.table import Table

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LosingFailure:
    """A call that went wrong in an episode that was lost.

    Attributes:
        tool: Name of the tool.
        attempt: Which call of the tool it was, from 1.
        turn: Number of the message that made it, from 1.
        result: What it brought, an error code or "corrupt".
        chance: How likely that was, whatever the words.
        optimum_before: V* before the call; None where nobody knows it.
        optimum_after: V* after it: what could still be reached.
    """

    tool: str
    attempt: int
    turn: int
    result: str
    chance: float
    optimum_before: float | None
    optimum_after: float | None


@dataclass(frozen=True, slots=True)
class Pattern:
    """Failures with which an agent loses.

    Attributes:
        failures: The failures, in the order of their calls; none where it loses although nothing fails by luck.
        probability: How likely it is that the calls of the episode bring just this: these failures, and no others.
        optimum: V* of the start; None where nobody knows it.
        force: What has to be said beforehand to have the episode again (`--force`).
        reproduce: Two lines that play it again: of a run the command, or the call in Python; of a program one after the
            other.
        record: The episode.
    """

    failures: tuple[LosingFailure, ...]
    probability: float
    optimum: float | None
    force: tuple[str, ...]
    reproduce: tuple[str, str]
    record: EpisodeRecord = field(repr=False)

    @classmethod
    def of(cls, case: Playable, played: Watching, force: Sequence[str]) -> Pattern:
        """Return what lost a play that `force` brings about."""
        is_known = not has_no_ceiling(played.record)
        failures = [
            LosingFailure(
                tool=call.tool,
                attempt=call.attempt,
                turn=call.turn,
                result=call.result,
                chance=call.chance,
                optimum_before=played.optimum_after(call.turn - 1) if is_known else None,
                optimum_after=played.optimum_after(call.turn) if is_known else None,
            )
            for call in failures_by_luck(played)
        ]
        return cls(
            tuple(failures),
            played.probability,
            played.record["optimum"] if is_known else None,
            tuple(force),
            case.reproducing(force),
            played.record,
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return it as JSON values, the record apart."""
        return {
            "failures": [asdict(failure) for failure in self.failures],
            "probability": self.probability,
            "optimum": self.optimum,
            "force": list(self.force),
            "reproduce": list(self.reproduce),
        }

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the table."""
        return self.table()._repr_html_()

    def table(self, caption: str = "") -> Table:
        """Return the failures as a table."""
        rows = [
            [
                f"{failure.tool}#{failure.attempt}",
                failure.result,
                failure.chance,
                failure.optimum_before,
                failure.optimum_after,
            ]
            for failure in self.failures
        ]
        note = f"Percent. The calls of this episode bring just this {percent(self.probability, 3)}% of the time."
        headings = ["call", "brings", "chance", "V* before", "V* after"]
        return Table(caption, headings, rows, text_columns=2, notes=[note])


def failures_by_luck(played: Watching) -> list[Call]:
    """Return the calls that went wrong where they could have gone right."""
    return [call for call in played.calls if call.has_failed_by_luck]


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


@dataclass(frozen=True, slots=True)
class AdversaryLimits:
    """How far an adversary goes.

    Raises:
        InvalidInputError: A limit is none.
    """

    above: Share = option(0.5, "V* after the last failure has to be above this: nobody is blamed for the impossible.")
    plays: Count = option(2000, "Most episodes to play.")

    def __post_init__(self) -> None:
        """Refuse limits that are none."""
        check_options(self, "limit ")


@dataclass(frozen=True, slots=True)
class Attack:
    """What `adversary` found.

    Attributes:
        case: Who was attacked, in words.
        pattern: The failures with which it loses; None if none were found.
        above: V* after the last of them is above this.
        plays: Episodes that were played.
        is_complete: Whether everything was played that comes before: with fewer failures, or with as many and likelier.
            Without a pattern, whether there is none.
    """

    case: str
    pattern: Pattern | None
    above: float
    plays: int
    is_complete: bool

    def to_mapping(self) -> dict[str, Any]:
        """Return it as JSON values."""
        numbers = {"above": self.above, "plays": self.plays, "is_complete": self.is_complete}
        return {"case": self.case, **numbers, "pattern": None if self.pattern is None else self.pattern.to_mapping()}

    def told(self) -> str:
        """Say it in one sentence."""
        level = f"V* still above {percent(self.above)}%"
        if self.pattern is None:
            end = "nothing is left to play" if self.is_complete else "more --plays may find one"
            return f"no failures make {self.case} lose and leave {level} in {count_of(self.plays, 'play')}: {end}"
        if not self.pattern.failures:
            return f"{self.case} loses although no call fails by luck"
        return f"{self.case} loses with {count_of(len(self.pattern.failures), 'failure')} and {level}"


def find_attack(case: Playable, above: float, plays: int, progress: bool | None) -> Attack:
    """Find the fewest failures with which an agent loses (`Case.adversary`)."""
    limits = AdversaryLimits(above=above, plays=plays)
    left: list[_Entry] = [(0, 0, -1.0, 0, {})]
    num_met, num_played = 1, 0
    with Progressing("plays", plays, 0, progress) as shown:
        while left and num_played < limits.plays:
            _, num_unusual, _, _, failing = heapq.heappop(left)
            played = case.watch(Steady({**case.calls, **failing}))
            num_played += 1
            shown.advance()
            if has_no_ceiling(played.record):
                raise InvalidInputError(f"{case.name}: nobody knows V* there: expected a task that can be solved")
            made = {call.place: call for call in played.calls}
            missing = next((place for place in failing if place not in made), None)
            if missing is not None:
                raise NotRepeatedError(
                    f"{case.name} did not make call {missing[1]} of {missing[0]} again: expected an agent that repeats "
                    "itself"
                )
            failures = failures_by_luck(played)
            if played.is_lost and played.optimum_after(failures[-1].turn if failures else 0) > limits.above:
                force = [str(call) for call in played.calls if call.chance < 1.0 and call.can_be_forced]
                return Attack(case.name, Pattern.of(case, played, force), above, num_played, True)
            for entry in _with_one_more(played, failing, num_unusual, num_met):
                if not entry[-1].keys() & case.calls.keys():  # of those it is said what they bring
                    heapq.heappush(left, entry)
                num_met += 1
    return Attack(case.name, None, above, num_played, not left)


# How many failures, how many of them with another code than the likeliest, how likely (negative), number in the order
# of meeting, and which calls fail.
_Entry = tuple[int, int, float, int, dict[tuple[str, int], str]]


def _with_one_more(
    played: Watching, failing: Mapping[tuple[str, int], str], num_unusual: int, num_met: int
) -> Iterator[_Entry]:
    """Yield what is to be played with one more failure, behind those that there were."""
    weight, num_left = 1.0, len(failing)
    for call in played.calls:
        if not num_left and call.place not in failing and call.chance < 1.0:
            kinds = {kind.kind: kind for kind in likeliest_faults(call)}
            for fault in call.faults:
                kind = kinds[fault.kind]
                unusual = num_unusual + (fault.result != kind.result)
                more = {**failing, call.place: fault.result}
                yield len(more), unusual, -weight * kind.chance, num_met, more
                num_met += 1
        num_left -= call.place in failing
        weight *= call.chance


def likeliest_faults(call: Call) -> list[Fault]:
    """Return the likeliest code of each kind of failure, with the chance of the kind."""
    kinds: dict[int, list[Fault]] = {}
    for fault in call.faults:
        kinds.setdefault(fault.kind, []).append(fault)
    return [
        Fault(max(faults, key=lambda fault: fault.chance).result, kind, sum(fault.chance for fault in faults))
        for kind, faults in kinds.items()
    ]
