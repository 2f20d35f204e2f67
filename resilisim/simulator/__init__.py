"""The simulator: the success law, what executions return, the episode, its score, and the exact optimum."""

from __future__ import annotations

from resilisim.simulator.episode import Episode, Event
from resilisim.simulator.law import BenchmarkLaw, EndRules
from resilisim.simulator.messages import FINISH, STOP, Message, execution
from resilisim.simulator.problem import Problem, build_problem
from resilisim.simulator.scoring import Score, graded_score, rescore, score_episode
from resilisim.simulator.state import EpisodeState, next_state, start_state, success_probability

__all__ = [
    "FINISH",
    "STOP",
    "BenchmarkLaw",
    "EndRules",
    "Episode",
    "EpisodeState",
    "Event",
    "Message",
    "Problem",
    "Score",
    "build_problem",
    "execution",
    "graded_score",
    "next_state",
    "rescore",
    "score_episode",
    "start_state",
    "success_probability",
]
