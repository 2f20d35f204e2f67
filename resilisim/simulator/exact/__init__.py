"""The exact optimum: values of states and messages, and the references that a task's score is compared with."""

from __future__ import annotations

from resilisim.simulator.exact.judging import Judge, Judgement
from resilisim.simulator.exact.optimum import known_probabilities, solve
from resilisim.simulator.exact.plan_following import (
    Obedience,
    PlanLimits,
    best_limits,
    obey_plan,
    plan_following,
    plan_following_with_search,
)
from resilisim.simulator.exact.reachable import ReachableOptimum, solve_reachable
from resilisim.simulator.exact.references import References, bound, solve_all, solved_references
from resilisim.simulator.exact.values import Values

__all__ = [
    "Judge",
    "Judgement",
    "Obedience",
    "PlanLimits",
    "ReachableOptimum",
    "References",
    "Values",
    "best_limits",
    "bound",
    "known_probabilities",
    "obey_plan",
    "plan_following",
    "plan_following_with_search",
    "solve",
    "solve_all",
    "solve_reachable",
    "solved_references",
]
