"""Check (d), and the average of (f): the references of benchmark tasks against simulation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from resilisim.simulator import FINISH, Episode, Message, Problem, build_problem, execution
from resilisim.simulator.exact import plan_following, solve
from resilisim.simulator.exact.optimum import start_optimum
from resilisim.simulator.exact.plan_following import plan_following_with_search
from resilisim.simulator.exact.references import clairvoyant
from resilisim.simulator.problem import is_awaiting_closing, is_done, outcome
from resilisim.simulator.state import EpisodeState
from resilisim.simulator.tool_status import SUCCEEDED
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.sources import sample_tasks
from resilisim.tool_library import default_library
from verification.findings import Finding
from verification.statistics import TestResult, binomial_groups, normal_score, not_below, worst_cell

SOURCE = "SPEC 7, references"
NUM_LISTS = 48
OPTIMUM_SEEDS, PLAN_SEEDS, CLAIRVOYANT_SEEDS = 250, 800, 250
CONTROL_SHIFT = 0.03  # how much too high the control takes V* to be

Player = Callable[[Problem, EpisodeState], Message]


@functools.lru_cache(maxsize=1)
def tasks() -> tuple[Task, ...]:
    """Return tasks with different required lists, of every type in proportion, and of every length."""
    distinct = {task.required_tools: task for task in benchmark_tasks()}
    return tuple(sample_tasks(tuple(distinct.values()), NUM_LISTS, seed=1))


@dataclass(frozen=True, slots=True)
class Simulated:
    """What one required list brought.

    Attributes:
        task_type: Type of its task.
        references: V*, plan following, plan following with search, as computed.
        successes: Full successes of the three in simulation.
        clairvoyant: Share of the seeds in which some sequence of calls succeeds.
        overtaken: Seeds in which the optimal policy succeeds though no sequence of calls is said to.
    """

    task_type: str
    references: tuple[float, float, float]
    successes: tuple[int, int, int]
    clairvoyant: float
    overtaken: int


def jobs(shift: int) -> list[tuple[int, int]]:
    """Return (place of the task, shift) of every piece of work."""
    return [(place, shift) for place in range(NUM_LISTS)]


def work(job: tuple[int, int]) -> Simulated:
    """Simulate one required list."""
    place, shift = job
    task, salt = tasks()[place], f"verification/references/{shift}"
    problem = build_problem(default_library(), task.required_tools)
    optimal = _optimal_player(problem)
    best = [_play(problem, task, seed, salt, optimal) for seed in range(OPTIMUM_SEEDS)]
    # Other seeds: the three comparisons then do not share their luck.
    own = range(OPTIMUM_SEEDS, OPTIMUM_SEEDS + PLAN_SEEDS)
    other = range(own.stop, own.stop + PLAN_SEEDS)
    found = [clairvoyant(problem, [seed], salt, task.instance_id)[0] for seed in range(CLAIRVOYANT_SEEDS)]
    return Simulated(
        task.task_type,
        (start_optimum(problem), plan_following(problem), plan_following_with_search(problem)),
        (
            sum(best),
            sum(_play(problem, task, seed, salt, _follow_list) for seed in own),
            sum(_play(problem, task, seed, salt, _search_and_follow_list) for seed in other),
        ),
        float(np.mean(found)),
        sum(one > most for one, most in zip(best, found, strict=True)),
    )


def _play(problem: Problem, task: Task, seed: int, salt: str, player: Player) -> int:
    episode = Episode(problem, task.instance_id, seed, salt)
    while episode.ended_by is None:
        finished = is_done(problem, episode.state) or is_awaiting_closing(problem, episode.state)
        episode.apply(FINISH if finished else player(problem, episode.state))
    return outcome(problem, episode.state)


def _follow_list(problem: Problem, state: EpisodeState) -> Message:
    """Call the required tools in order, each again until it has succeeded."""
    return next(
        execution(name) for name in problem.required_tools if state.status[problem.library.index(name)] != SUCCEEDED
    )


def _search_and_follow_list(problem: Problem, state: EpisodeState) -> Message:
    """Search once for each required tool, then follow the list."""
    if state.turns_used < len(problem.required):
        return Message("search", query=problem.required_tools[state.turns_used])
    return _follow_list(problem, state)


def _optimal_player(problem: Problem) -> Player:
    optimum = solve(problem)
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], Message] = {}

    def play(_: Problem, state: EpisodeState) -> Message:
        key = (state.status, state.counters)
        if key not in known:
            known[key] = optimum.best_action(state)
        return known[key]

    return play


def judge(simulated: Sequence[Simulated]) -> list[Finding]:
    """Compare success rates with references: all lists together, the worst list, and every type."""
    findings = []
    names = ("V*", "plan_following", "plan_following_with_search")
    for number, (name, seeds) in enumerate(zip(names, (OPTIMUM_SEEDS, PLAN_SEEDS, PLAN_SEEDS), strict=True)):
        successes = [one.successes[number] for one in simulated]
        chances = [min(one.references[number], 1.0) for one in simulated]
        trials = [seeds] * len(simulated)
        together = binomial_groups(successes, trials, chances)
        worst = worst_cell(successes, trials, chances)
        bias = _total(successes, trials, chances)
        findings += [
            Finding(f"{name}: {len(simulated)} lists", SOURCE, together.text, together.p_value),
            Finding(f"{name}: the worst list", SOURCE, worst.text, worst.p_value),
            Finding(f"{name}: all episodes", SOURCE, bias.text, bias.p_value),
        ]
    successes = [one.successes[0] for one in simulated]
    too_high = [min(one.references[0] + CONTROL_SHIFT, 1.0) for one in simulated]
    control = _total(successes, [OPTIMUM_SEEDS] * len(simulated), too_high)
    findings.append(
        Finding(f"control: V* + {CONTROL_SHIFT}, all episodes", SOURCE, control.text, control.p_value, control=True)
    )
    gains = np.array([one.clairvoyant - one.references[0] for one in simulated])
    shares = np.array([one.clairvoyant for one in simulated])
    error = math.sqrt(float(np.sum(shares * (1.0 - shares) / CLAIRVOYANT_SEEDS))) / len(simulated)
    bound = not_below(float(gains.mean()) / error)
    overtaken = sum(one.overtaken for one in simulated)
    findings += [
        Finding("clairvoyant >= V* on average", SOURCE, f"{bound.text}, {gains.mean():+.4f} on average", bound.p_value),
        Finding(
            "no optimal episode succeeds where no sequence of calls does",
            SOURCE,
            f"{overtaken} do",
            exact=overtaken == 0,
        ),
    ]
    return findings


def _total(successes: Sequence[int], trials: Sequence[int], chances: Sequence[float]) -> TestResult:
    won, total, chance = (np.asarray(values, dtype=np.float64) for values in (successes, trials, chances))
    deviation = math.sqrt(float(np.sum(total * chance * (1.0 - chance))))
    return normal_score(float(np.sum(won - total * chance)) / deviation)
