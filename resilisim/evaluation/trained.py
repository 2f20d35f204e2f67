"""How good a trained policy is: its success against the exact optimum, step by step and by its plans alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resilisim.envs.settings import BENCHMARK_LAW
from resilisim.seeding import EVALUATION_SALT
from resilisim.simulator.problem import build_problem
from resilisim.statistics import Estimate
from resilisim.statistics.estimates import clustered_proportion, clustered_ratio
from resilisim.tasks import Task
from resilisim.tasks.task import TASK_TYPES
from resilisim.tool_library import ToolLibrary

if TYPE_CHECKING:
    from resilisim.policies.ppo.checkpoint import LoadedPolicy

PLAIN, ANY_PART = "none", "any"  # of the parts of a law: there is none; whatever is drawn
EPISODES_OF_A_TASK = 200  # of each task, where they are played and nobody says how many
RANDOM_TOLERANCE = 2e-3  # how much of a success rate on random libraries may stay unknown
MAX_FOLLOWED_STATES = 1_000  # in one step, for each list of a random library: a minute or two for three lists
SOLVED_GAP = 1e-3  # V* that is known better than this counts as solved

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

    The closed loop is computed where no number of episodes is asked for, and the law has no parts or the policy reads
    the state alone: `states` is how many were met, and the rates are exact on these tasks. Else so many episodes of
    each task, or EPISODES, are played with the luck of evaluations: there are too many ways to a state. The open loop
    is the chance of doing the policy's plan to the letter, which is always
    computed; there is none under a law with parts, nor for a policy that looks ahead. Intervals are over tasks.
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
    if episodes is None and (model.is_plain or actor.reads_state_alone):
        with progress("computing success rates", len(tasks)) as shown:
            rates = exact_rates(actor, tasks, options=options, patterns=patterns, progress=shown.advance)
        successes, num_states, per_task = rates.low.tolist(), rates.num_states, 1
    else:
        per_task = EPISODES_OF_A_TASK if episodes is None else episodes
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
    if model.is_plain and not loaded.look_ahead:
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
    episodes: int | None,
    progress: Progress,
) -> dict[str, Any]:
    """Measure a trained policy on random libraries, turns and laws: a row for each size and part, fit for JSON.

    Each row has libraries of its own, each with a law that has the part PLAIN (none), one of `law.TASK_PARTS`, or
    whatever is drawn (ANY), and lists of which none is left out. Success is computed, or so many episodes of each task
    are played. Rates and V* that are known within a bracket only count against the policy: as the least that it surely
    reaches, and the most that anybody can. Intervals of the share of V* are clustered by library.
    """
    from resilisim.envs.random_libraries import RANDOM_LIBRARIES_VERSION
    from resilisim.policies.ppo.checkpoint import load_checkpoint
    from resilisim.policies.ppo.policy import actor_of

    loaded, rows = load_checkpoint(checkpoint), []
    with progress("measuring on random libraries", len(sizes) * len(parts) * num_libraries) as shown:
        for size, part in itertools.product(sizes, parts):
            measured = []
            for number in range(num_libraries):
                measured.append(measure_random_library([loaded], size, part, number, num_tasks, episodes)[0])
                shown.advance(1)
            rows.append({"tools": size, "part": part, **share_of_libraries(measured)})
    computed = episodes is None and actor_of(loaded).reads_state_alone
    played = None if computed else episodes or EPISODES_OF_A_TASK
    about = {"checkpoint": checkpoint, "libraries": num_libraries, "tasks": num_tasks, "episodes": played}
    return {
        **about,
        "computed": computed,
        "random_libraries": RANDOM_LIBRARIES_VERSION,
        "rows": rows,
        "training": dict(loaded.description.training),
    }


@dataclass(frozen=True, slots=True)
class LibraryRates:
    """How a policy does on the tasks of a random library.

    Attributes:
        success: (num_tasks,) the success rate is surely not below, or what was played.
        most: (num_tasks,) nor above.
        optimum: (num_tasks,) V* is surely not above.
        least_optimum: (num_tasks,) nor below.
    """

    success: list[float]
    most: list[float]
    optimum: list[float]
    least_optimum: list[float]


def measure_random_library(
    policies: Sequence[LoadedPolicy], size: int, part: str, number: int, num_tasks: int, episodes: int | None
) -> list[LibraryRates]:
    """Return how each policy does in a random library, with the same lists and, if it plays, the same luck.

    Args:
        policies: Trained policies.
        size: Tools of the library.
        part: Part of the law that is drawn, PLAIN, or ANY.
        number: Which of the libraries that measurements take.
        num_tasks: Tasks of it, none of which is left out.
        episodes: Episodes of each task. If None, rates are computed where policies read nothing but what decides, and
            EPISODES are played where they read how it came to that, for then there are too many states.
    """
    from resilisim.envs.random_libraries import optimum_bracket, random_settings
    from resilisim.policies.ppo.exact_rates import exact_rates
    from resilisim.policies.ppo.policy import actor_of, check_library, observation_options
    from resilisim.policies.ppo.validation import play_closed_loop

    parts = None if part == ANY_PART else () if part == PLAIN else (part,)
    drawn = random_settings("test", number, num_tasks, num_tools=size, parts=parts, selected=False)
    library, law, rules = drawn.options.resolved_library(), drawn.options.failure_model(), drawn.options.end_rules()
    brackets = [optimum_bracket(build_problem(library, task.required_tools, law, rules)) for task in drawn.tasks]
    most, measured = [bracket[1] for bracket in brackets], []
    for policy in policies:
        check_library(policy, library)
        shown_as = observation_options(policy)
        shown = {name: getattr(shown_as, name) for name in ("required", "filters", "detailed")}
        options = drawn.options.with_options(shown)
        actor = actor_of(policy)
        if episodes is None and actor.reads_state_alone:
            room = MAX_FOLLOWED_STATES * len(drawn.tasks)
            rates = exact_rates(actor, drawn.tasks, options=options, tolerance=RANDOM_TOLERANCE, max_states=room)
            low, high = rates.low.tolist(), rates.high.tolist()
            # What it surely reaches, the best agent reaches, too.
            least = [max(bracket[0], min(rate, bracket[1])) for bracket, rate in zip(brackets, low, strict=True)]
        else:
            number = EPISODES_OF_A_TASK if episodes is None else episodes
            played = play_closed_loop(actor, drawn.tasks, number, salt=EVALUATION_SALT, options=options)
            low = high = played.mean(axis=1).tolist()
            least = [bracket[0] for bracket in brackets]
        measured.append(LibraryRates(low, high, most, least))
    return measured


def share_of_libraries(measured: Sequence[LibraryRates]) -> dict[str, Any]:
    """Return success, optimum and their ratio over libraries, and how much of it is brackets; fit for JSON."""
    num_tasks = len(measured[0].success)
    count = len(measured) * num_tasks
    ratio = clustered_ratio([sum(one.success) for one in measured], [sum(one.optimum) for one in measured], num_tasks)
    unknown = sum(sum(one.most) - sum(one.success) for one in measured) / count
    gap = sum(sum(one.optimum) - sum(one.least_optimum) for one in measured) / count
    not_solved = sum(
        most - least > SOLVED_GAP
        for one in measured
        for most, least in zip(one.optimum, one.least_optimum, strict=True)
    )
    return {
        "success": sum(sum(one.success) for one in measured) / count,
        "optimum": sum(sum(one.optimum) for one in measured) / count,
        "ratio": ratio.value,
        "ratio_interval": _interval(ratio),
        "unknown_success": unknown,
        "unknown_optimum": gap,
        "tasks_not_solved": not_solved,
    }


def _by_type(
    tasks: Sequence[Task], successes: Sequence[float], optima: Sequence[float], episodes: int
) -> dict[str, Any]:
    """Return success, optimum and ratio of all tasks and of each type, from each task's sum over its episodes."""

    def summary(places: Sequence[int]) -> dict[str, Any]:
        own, best = [successes[place] for place in places], [optima[place] for place in places]
        success = clustered_proportion(own, [float(episodes)] * len(own))
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
