"""What a goal is worth, by trying everything: an expectimax from the words of the guide, which shares no code.

A program has some calls. A call passes with probability base * not_executed^u * failed^w * history^f: of what its
function depends on, u were never called and w have not answered so far, and f calls have failed. One that passes runs
and answers; one that fails does not run, or has run (`after`). What may run once must not run twice. Required functions
have to answer, their first answers in order if that is asked for.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

NEVER, CALLED, ANSWERED = range(3)


@dataclass(frozen=True)
class GoalByHand:
    bases: tuple[float, ...]
    needs: tuple[tuple[int, ...], ...]
    factors: tuple[float, float, float]  # not_executed, failed, history
    required: tuple[int, ...]
    calls: int
    ordered: bool = True
    once: tuple[int, ...] = ()
    after: bool = False

    def chance(self, known: tuple[int, ...], failures: int, function: int) -> float:
        not_executed, failed, history = self.factors
        chance = self.bases[function] * history**failures
        for other in self.needs[function]:
            chance *= {NEVER: not_executed, CALLED: failed, ANSWERED: 1.0}[known[other]]
        return chance

    def value(self) -> float:
        @functools.cache
        def best(known: tuple[int, ...], ran: frozenset[int], failures: int, left: int) -> float:
            if all(known[function] == ANSWERED for function in self.required):
                return 1.0
            return (
                max((of(known, ran, failures, left, function) for function in range(len(known))), default=0.0)
                if left
                else 0.0
            )

        def of(known: tuple[int, ...], ran: frozenset[int], failures: int, left: int, function: int) -> float:
            chance = self.chance(known, failures, function)
            running = ran | {function}
            spoilt = function in self.once and function in ran
            worth = 0.0
            if not spoilt and not self.breaks_order(known, function):
                answered = (*known[:function], ANSWERED, *known[function + 1 :])
                worth += chance * best(answered, running, failures, left - 1)
            if not (spoilt and self.after):
                called = (*known[:function], max(known[function], CALLED), *known[function + 1 :])
                worth += (1.0 - chance) * best(called, running if self.after else ran, failures + 1, left - 1)
            return worth

        return best((NEVER,) * len(self.bases), frozenset(), 0, self.calls)

    def breaks_order(self, known: tuple[int, ...], function: int) -> bool:
        if not self.ordered or function not in self.required or known[function] == ANSWERED:
            return False
        return any(known[earlier] != ANSWERED for earlier in self.required[: self.required.index(function)])
