"""How good a policy is while it trains: its share of the optimum on validation tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from resilisim.policies.ppo.closed_loop import play_closed_loop
from resilisim.policies.ppo.description import Network
from resilisim.policies.ppo.network import WorkflowActor
from resilisim.policies.ppo.resume import random_state, set_random_state
from resilisim.seeding import VALIDATION_SALT
from resilisim.simulator.exact import solve_all
from resilisim.simulator.law import BenchmarkLaw, EndRules
from resilisim.simulator.problem import build_problem
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The policy on the validation tasks, closed loop under the benchmark law, most probable actions.

    Attributes:
        steps: Environment steps of training before it.
        minutes: Minutes of training before it.
        success: Share of episodes with full success.
        optimum: Mean V* of the tasks.
        share: success / optimum.
    """

    steps: int
    minutes: float
    success: float
    optimum: float
    share: float

    @classmethod
    def of(cls, steps: int, minutes: float, success: float, optimum: float) -> Evaluation:
        """Return the evaluation of a measured success rate."""
        return cls(steps, minutes, success, optimum, success / optimum)

    @classmethod
    def read(cls, mapping: Mapping[str, Any] | None) -> Evaluation | None:
        """Return what `dataclasses.asdict` turned into JSON values; None stays None."""
        return None if mapping is None else cls(**mapping)


class Validator:
    """Measures a network on validation tasks without touching anybody's random generators.

    Args:
        tasks: The tasks.
        episodes: Episodes of each; every evaluation has the same luck.
        library: Their tool library.
        required: Whether observations show the required tools.
        filters: Filters of the mask that the policy is trained with, and so played with.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        episodes: int,
        library: ToolLibrary,
        required: Literal["shown", "hidden"],
        filters: Sequence[str] = (),
    ) -> None:
        self._tasks = tasks
        self._episodes = episodes
        self._library = library
        self._required: Literal["shown", "hidden"] = required
        self._filters = tuple(filters)
        problems = [build_problem(library, task.required_tools, BenchmarkLaw(), EndRules()) for task in tasks]
        values = solve_all(problems)
        self.optimum = float(np.mean([values[problem].known_probabilities for problem in problems]))

    def success(self, network: Network, patterns: Mapping[tuple[str, ...], float] | None = None) -> float:
        """Return the share of episodes with full success, given the patterns mined so far."""
        arrays, facts = random_state()
        was_training = network.training
        network.eval()
        try:
            played = play_closed_loop(
                WorkflowActor(network),
                self._tasks,
                self._episodes,
                salt=VALIDATION_SALT,
                options={"library": self._library, "required": self._required, "filters": self._filters},
                patterns=patterns,
            )
        finally:
            network.train(was_training)
            set_random_state(arrays, facts)
        return float(np.mean(played.success))
