"""The simulator: the success law, what executions return, the episode, its score, and the exact optimum."""

from __future__ import annotations

from resilisim.simulator.episode import Episode, Event
from resilisim.simulator.failure_model import (
    Broken,
    Corrupt,
    Drift,
    Duration,
    ErrorKinds,
    Latency,
    Law,
    Outage,
    RateLimit,
    law_schema,
    load_law,
    shipped_laws,
)
from resilisim.simulator.goal import Goal
from resilisim.simulator.law import BenchmarkLaw, EndRules
from resilisim.simulator.messages import AGENT_ERROR, FINISH, STOP, WAIT, Message, execution
from resilisim.simulator.problem import Problem, build_problem
from resilisim.simulator.scoring import Score, graded_score, rescore, score_episode
from resilisim.simulator.state import EpisodeState, branches, next_state, start_state, success_probability

__all__ = [
    "AGENT_ERROR",
    "FINISH",
    "STOP",
    "WAIT",
    "BenchmarkLaw",
    "Broken",
    "Corrupt",
    "Drift",
    "Duration",
    "EndRules",
    "Episode",
    "EpisodeState",
    "ErrorKinds",
    "Event",
    "Goal",
    "Latency",
    "Law",
    "Message",
    "Outage",
    "Problem",
    "RateLimit",
    "Score",
    "branches",
    "build_problem",
    "execution",
    "graded_score",
    "law_schema",
    "load_law",
    "next_state",
    "rescore",
    "score_episode",
    "shipped_laws",
    "start_state",
    "success_probability",
]
