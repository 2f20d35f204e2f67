"""The simulator: the success law, what executions return, the episode, its score, and the exact optimum."""

from __future__ import annotations

from resilisim.simulator.end_rules import EndRules
from resilisim.simulator.episode import Episode, Event
from resilisim.simulator.goal import Goal
from resilisim.simulator.law import (
    Broken,
    Corrupt,
    Drift,
    Duration,
    ErrorKinds,
    Latency,
    Law,
    LostAnswer,
    Outage,
    RateLimit,
    load_law,
    shipped_laws,
)
from resilisim.simulator.messages import FINISH, Message, execution
from resilisim.simulator.problem import Problem, build_problem, start_state

__all__ = [
    "FINISH",
    "Broken",
    "Corrupt",
    "Drift",
    "Duration",
    "EndRules",
    "Episode",
    "ErrorKinds",
    "Event",
    "Goal",
    "Latency",
    "Law",
    "LostAnswer",
    "Message",
    "Outage",
    "Problem",
    "RateLimit",
    "build_problem",
    "execution",
    "load_law",
    "shipped_laws",
    "start_state",
]
