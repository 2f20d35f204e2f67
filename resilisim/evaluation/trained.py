"""How good a trained policy is: its success against the exact optimum, step by step and by its plans alone."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from resilisim.envs.settings import BENCHMARK_LAW
from resilisim.seeding import EVALUATION_SALT
from resilisim.statistics import Estimate
from resilisim.statistics.estimates import clustered_mean, clustered_ratio
from resilisim.tasks import Task
from resilisim.tasks.task import TASK_TYPES
from resilisim.tool_library import ToolLibrary

if TYPE_CHECKING:
    from resilisim.envs.random_libraries import RandomSettings
    from resilisim.policies.ppo.checkpoint import LoadedPolicy

PLAIN = "none"  # of the parts of a law
EPISODES = 200  # of each task, where they are played and nobody says how many

# Makes a context of what is done and how often; what it yields counts what is done with `advance`.
Progress = Callable[[str, int], AbstractContextManager[Any]]


def measure_policy(
    checkpoint: str,
    tasks: Sequence[Task],
    episodes: int | None,
    library: ToolLibrary,
    progress: Progress,
    law: str = BENCHMARK_LAW,
) -> dict[str, Any]:
    """Measure a trained policy, by task type and in all; the values are fit for JSON.

    The closed loop is computed where the law has no parts and no number of episodes is asked for: `states` is how many
    were met, and the rates are exact on these tasks. Else so many episodes of each task, or EPISODES, are played with
    the luck of evaluations. The open loop is the chance of doing the policy's plan to the letter, which is always
    computed; there is none under a law with parts. Intervals are over tasks.
    """
    # They need torch, which comes with an extra.
    from resilisim.policies.ppo.checkpoint import load_checkpoint
    from resilisim.policies.ppo.exact_rates import exact_rates
    from resilisim.policies.ppo.policy import PolicyPlanner, actor_of, check_library, observation_options, patterns_of
    from resilisim.policies.ppo.validation import optima_of, play_closed_loop

    loaded = load_checkpoint(checkpoint)
    check_library(loaded, library)
    options = observation_options(loaded, library).with_options({"law": law})
    model = options.failure_model()
    with progress("solving tasks", len(tasks)) as shown:
        optima = optima_of(tasks, library, model)
        shown.advance(len(tasks))
    actor, patterns, num_states = actor_of(loaded), patterns_of(loaded, library), None
    if episodes is None and model.is_plain:
        with progress("computing success rates", len(tasks)) as shown:
            rates = exact_rates(actor, tasks, options=options, patterns=patterns, progress=shown.advance)
        successes, num_states, per_task = rates.low.tolist(), rates.num_states, 1
    else:
        per_task = EPISODES if episodes is None else episodes
        with progress("playing episodes", len(tasks) * per_task) as shown:
            played = play_closed_loop(
                actor,
                tasks,
                per_task,
                salt=EVALUATION_SALT,
                progress=shown.advance,
                options=options,
                patterns=patterns,
            )
        successes = [float(count) for count in played.sum(axis=1)]
    plans: list[float] | None = None
    if model.is_plain:
        planner = PolicyPlanner(checkpoint, library, model)
        planner.expect(tasks)
        with progress("making plans", len(tasks)) as shown:
            plans = [planner.plan(task).predicted_success_probability for task in shown.track(tasks)]
    closed = _by_type(tasks, successes, optima, per_task)
    by_type = closed.pop("by_type")
    return {
        "checkpoint": checkpoint,
        **closed,
        **({"episodes": per_task} if num_states is None else {"states": num_states}),
        "by_type": by_type,
        **({} if law == BENCHMARK_LAW else {"law": model.to_mapping()}),
        "open_loop": None if plans is None else _by_type(tasks, plans, optima, 1),
        "benchmark": loaded.description.benchmark.version,
        "training": dict(loaded.description.training),
        "results": dict(loaded.description.results),
    }


def measure_generality(
    checkpoint: str,
    sizes: Sequence[int],
    parts: Sequence[str],
    num_libraries: int,
    num_tasks: int,
    episodes: int,
    progress: Progress,
) -> dict[str, Any]:
    """Measure a trained policy on random libraries, turns and laws: a row for each size and part, fit for JSON.

    Each row has libraries of its own, each with a law that has the part PLAIN (none) or one of `law.TASK_PARTS` in
    a strength of its own, and tasks that can be solved. Intervals of the share of V* are clustered by library.
    """
    from resilisim.envs.random_libraries import VERSION
    from resilisim.policies.ppo.checkpoint import load_checkpoint

    loaded, rows = load_checkpoint(checkpoint), []
    with progress("playing on random libraries", len(sizes) * len(parts) * num_libraries) as shown:
        for size, part in itertools.product(sizes, parts):
            successes: list[float] = []
            optima: list[float] = []
            refused = Counter[str]()
            for number in range(num_libraries):
                (success,), drawn = play_random_library([loaded], size, part, number, num_tasks, episodes)
                successes.append(success * num_tasks * episodes)
                optima.append(sum(drawn.optima) * episodes)
                refused.update(drawn.refused)
                shown.advance(1)
            count = num_libraries * num_tasks * episodes
            ratio = clustered_ratio(successes, optima, count)
            rows.append(
                {
                    "tools": size,
                    "part": part,
                    "success": sum(successes) / count,
                    "optimum": sum(optima) / count,
                    "ratio": ratio.value,
                    "ratio_interval": _interval(ratio),
                    "drawn_again": dict(refused),
                }
            )
    about = {"checkpoint": checkpoint, "libraries": num_libraries, "tasks": num_tasks, "episodes": episodes}
    return {**about, "random_libraries": VERSION, "rows": rows, "training": dict(loaded.description.training)}


def play_random_library(
    policies: Sequence[LoadedPolicy], size: int, part: str, number: int, num_tasks: int, episodes: int
) -> tuple[list[float], RandomSettings]:
    """Return each policy's mean success in a random library with the same luck, and what was drawn.

    Args:
        policies: Trained policies.
        size: Tools of the library.
        part: Part of the law that is drawn, or PLAIN.
        number: Which of the libraries that measurements take.
        num_tasks: Tasks of it, all of which can be solved.
        episodes: Episodes of each task.
    """
    from resilisim.envs.random_libraries import random_settings
    from resilisim.policies.ppo.policy import actor_of, check_library, observation_options
    from resilisim.policies.ppo.validation import play_closed_loop

    parts = () if part == PLAIN else (part,)
    drawn = random_settings("test", number, num_tasks, num_tools=size, parts=parts, solved=True)
    measured = []
    for policy in policies:
        check_library(policy, drawn.options.resolved_library())
        shown_as = observation_options(policy)
        options = drawn.options.with_options({"required": shown_as.required, "filters": shown_as.filters})
        played = play_closed_loop(actor_of(policy), drawn.tasks, episodes, salt=EVALUATION_SALT, options=options)
        measured.append(float(played.mean()))
    return measured, drawn


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
