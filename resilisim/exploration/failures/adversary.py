"""The adversary: the fewest failures with which an agent loses although it could still have succeeded."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from resilisim.bounds import Count, Share
from resilisim.envs.session import NotRepeatedError
from resilisim.errors import InvalidInputError, count_of
from resilisim.evaluation.episode.record import has_no_ceiling
from resilisim.evaluation.run.progress import Progressing
from resilisim.exploration.failures.pattern import Pattern, failures_by_luck
from resilisim.exploration.failures.watching import Call, Fault, Playable, Steady, Watching
from resilisim.options import check_options, option
from resilisim.tables.numbers import percent


@dataclass(frozen=True, slots=True)
class AdversaryLimits:
    """How far an adversary goes.

    Raises:
        InvalidInputError: A limit is none.
    """

    above: Share = option(0.5, "V* after the last failure has to be above this: nobody is blamed for the impossible.")
    plays: Count = option(2000, "Maximum number of episodes to play.")

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
        losing = f"{self.case} loses with {count_of(len(self.pattern.failures), 'failure')} and {level}"
        if self.pattern.record.get("optimum_knowledge") == "informed":
            return f"{losing}, that of an agent that also sees what the law hides: a bound that nobody may reach"
        return losing


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
                reason = played.record["no_ceiling"]
                raise InvalidInputError(f"{case.name}: V* is not known ({reason}): expected a task that has one")
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
