"""The exact optimum: values of states and messages, and the references that a task's score is compared with."""

from __future__ import annotations

from resilisim.simulator.exact.goal import Goal, GoalJudge
from resilisim.simulator.exact.judging import Judge, Judgement
from resilisim.simulator.exact.optimum import Optimum, Solved, known_probabilities, solve
from resilisim.simulator.exact.plan_following import (
    Obedience,
    PlanLimits,
    best_limits,
    obey_plan,
    plan_following,
    plan_following_with_search,
)
from resilisim.simulator.exact.reachable import ReachableOptimum, solve_reachable
from resilisim.simulator.exact.reference_solution import ReferenceJudge, ReferenceSolution
from resilisim.simulator.exact.references import References, bound, solve_all, solved_references

__all__ = [
    "Goal",
    "GoalJudge",
    "Judge",
    "Judgement",
    "Obedience",
    "Optimum",
    "PlanLimits",
    "ReachableOptimum",
    "ReferenceJudge",
    "ReferenceSolution",
    "References",
    "Solved",
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
