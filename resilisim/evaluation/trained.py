"""How good a trained policy is: its success against the exact optimum, step by step and by its plans alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from resilisim.seeding import EVALUATION_SALT
from resilisim.statistics import Estimate, clustered_mean, clustered_ratio
from resilisim.tasks import TASK_TYPES, Task
from resilisim.tool_library import ToolLibrary

# Makes a context of what is done and how often; what it yields counts what is done with `advance`.
Progress = Callable[[str, int], AbstractContextManager[Any]]


def measure_policy(
    checkpoint: str, tasks: Sequence[Task], episodes: int, library: ToolLibrary, progress: Progress
) -> dict[str, Any]:
    """Measure a trained policy, by task type and in all; the values are fit for JSON.

    The closed loop plays episodes with the luck of evaluations. The open loop is the chance of doing the policy's plan
    to the letter, which is computed, not sampled. Intervals are clustered by task.
    """
    # They need torch, which comes with an extra.
    from resilisim.policies.ppo.checkpoint import load_checkpoint
    from resilisim.policies.ppo.network import WorkflowActor
    from resilisim.policies.ppo.policy import PolicyPlanner, observation_options, patterns_of
    from resilisim.policies.ppo.validation import optima_of, play_closed_loop

    loaded = load_checkpoint(checkpoint)
    planner = PolicyPlanner(checkpoint, library)
    with progress("solving tasks", len(tasks)) as shown:
        optima = optima_of(tasks, library)
        shown.advance(len(tasks))
    with progress("playing episodes", len(tasks) * episodes) as shown:
        played = play_closed_loop(
            WorkflowActor(loaded.network),
            tasks,
            episodes,
            salt=EVALUATION_SALT,
            progress=shown.advance,
            options=observation_options(loaded, library),
            patterns=patterns_of(loaded, library),
        )
    with progress("making plans", len(tasks)) as shown:
        plans = [planner.plan(task).predicted_success_probability for task in shown.track(tasks)]
    closed = _by_type(tasks, [float(count) for count in played.sum(axis=1)], optima, episodes)
    by_type = closed.pop("by_type")
    return {
        "checkpoint": checkpoint,
        **closed,
        "episodes": episodes,
        "by_type": by_type,
        "open_loop": _by_type(tasks, plans, optima, 1),
        "training": dict(loaded.description.training),
        "results": dict(loaded.description.results),
    }


def _by_type(
    tasks: Sequence[Task], successes: Sequence[float], optima: Sequence[float], episodes: int
) -> dict[str, Any]:
    """Return success, optimum and ratio of all tasks and of each type, from each task's sum over its episodes."""

    def summary(places: Sequence[int]) -> dict[str, Any]:
        own, best = [successes[place] for place in places], [optima[place] for place in places]
        success = clustered_mean(own, [float(episodes)] * len(own))
        ratio = clustered_ratio(own, [value * episodes for value in best], episodes * len(own))
        return {
            "tasks": len(own),
            "success": success.value,
            "success_interval": _interval(success),
            "optimum": sum(best) / len(best),
            "ratio": ratio.value,
            "ratio_interval": _interval(ratio),
        }

    types = [task.task_type for task in tasks]
    places = {name: [place for place, own in enumerate(types) if own == name] for name in TASK_TYPES if name in types}
    return {**summary(range(len(tasks))), "by_type": {name: summary(own) for name, own in places.items()}}


def _interval(estimate: Estimate) -> tuple[float | None, float | None]:
    mapping = estimate.to_mapping()
    return mapping["low"], mapping["high"]
