"""Check (c): luck is zero on average for every honest policy, and taking it out leaves the score where it was.

Whole episodes in Conversation-v0, recorded by the same code that evaluates agents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.conversation import ConversationEnv
from resilisim.evaluation.episode.attribution import identity_error
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.table.controls import more_controls
from resilisim.policies.base import Policy
from resilisim.policies.registry import make_policy
from resilisim.simulator import build_problem
from resilisim.simulator.exact import plan_following
from resilisim.simulator.exact.optimum import start_optimum
from resilisim.simulator.scoring import rescore
from resilisim.statistics.luck_adjustment import (
    NUM_FOLDS,
    NUM_MORE,
    cross_fitted_weights,
    fold_of,
    fold_of_episodes,
    moments_of,
)
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.sources import sample_tasks
from resilisim.tool_library import default_library
from resilisim.tool_library.retrieval import ToolHit
from verification.findings import Finding
from verification.policies import GivesUp, Peeks, RequiredOrder, Switches
from verification.statistics import clustered_mean_is

SOURCE = "SPEC 7, attribution"
SCORE_SOURCE = "SPEC 7, luck-adjusted score"
NUM_TASKS, NUM_SEEDS, TASKS_PER_JOB = 80, 40, 5
SMALLEST_REGRET = -1e-12
IDENTITY_ERROR = 1e-9


@dataclass(frozen=True, slots=True)
class Contestant:
    """A policy of the check.

    Attributes:
        name: Its name.
        make: Makes it, for a salt.
        prompt: The prompt type that it gets.
        reference: Its success probability in closed form, as a function of the task, if it has one.
        honest: Whether it does without its luck; for the one that does not, zero luck has to be rejected.
    """

    name: str
    make: Callable[[str], Policy]
    prompt: str
    reference: Callable[[Task], float] | None = None
    honest: bool = True


def _optimum(task: Task) -> float:
    return start_optimum(build_problem(default_library(), task.required_tools))


def _plan_following(task: Task) -> float:
    return plan_following(build_problem(default_library(), task.required_tools))


def chance_without_failure(task: Task) -> float:
    """Return the chance that every required tool succeeds at its first call: a product of 0.8 x 0.5^Nu."""
    library, chance = default_library(), 1.0
    for place, name in enumerate(task.required_tools):
        missing = set(library[name].dependencies) - set(task.required_tools[:place])
        chance *= 0.8 * 0.5 ** len(missing)
    return chance


CONTESTANTS = (
    Contestant("random", lambda salt: make_policy("random"), "baseline"),
    Contestant("plan-follower", lambda salt: make_policy("plan-follower"), "optimal", _plan_following),
    Contestant("repairing-follower", lambda salt: make_policy("repairing-follower", ask="before"), "optimal"),
    Contestant("exact-optimum", lambda salt: make_policy("exact-optimum"), "baseline", _optimum),
    Contestant("gives-up", lambda salt: GivesUp(), "baseline", chance_without_failure),
    Contestant("switches", lambda salt: Switches(), "baseline"),
    Contestant("peeks", lambda salt: Peeks(salt), "baseline", honest=False),
)


@functools.lru_cache(maxsize=1)
def tasks() -> tuple[Task, ...]:
    """Return the tasks: of every type, all with different required lists."""
    distinct = {task.required_tools: task for task in reversed(benchmark_tasks())}
    return tuple(sample_tasks(tuple(distinct.values()), NUM_TASKS))


def find_by_words(query: str, count: int) -> list[ToolHit]:
    """Search by common words, so that no model has to be loaded; what a search finds does not matter here."""
    words = set(query.lower().split())
    scored = [(len(words & set(name.split("_"))), name) for name in default_library().names]
    best = sorted(scored, key=lambda pair: -pair[0])[:count]
    return [ToolHit(name, float(score)) for score, name in best]


@dataclass(frozen=True, slots=True)
class Played:
    """What the episodes of a few tasks brought, for each contestant.

    Attributes:
        outcome: (num_contestants, num_tasks, num_seeds) 1 for a full success, else 0.
        luck: Same shape, the sum of luck.
        more: (num_contestants, num_tasks, num_seeds, NUM_MORE) other sums with mean zero.
        broken_identities: Episodes that miss the identity.
        negative_regrets: Messages with regret below zero.
        luck_without_draw: Messages without a draw that have luck.
        other_scores: Episodes whose record gives another score when it is scored again.
        messages: Messages in all.
    """

    outcome: NDArray[np.float64]
    luck: NDArray[np.float64]
    more: NDArray[np.float64]
    broken_identities: int
    negative_regrets: int
    luck_without_draw: int
    other_scores: int
    messages: int


def jobs(shift: int) -> list[tuple[int, int]]:
    """Return (first task, shift) of every piece of work."""
    return [(first, shift) for first in range(0, NUM_TASKS, TASKS_PER_JOB)]


def work(job: tuple[int, int]) -> Played:
    """Play all contestants on a few tasks, on common luck."""
    first, shift = job
    salt = f"verification/score/{shift}"
    chosen = tasks()[first : first + TASKS_PER_JOB]
    env = ConversationEnv(salt=salt, planner=RequiredOrder(), search=find_by_words)
    shape = (len(CONTESTANTS), len(chosen), NUM_SEEDS)
    outcome, luck, more = np.zeros(shape), np.zeros(shape), np.zeros((*shape, NUM_MORE))
    counts = np.zeros(5, dtype=np.int64)
    for place, task in enumerate(chosen):
        for number, contestant in enumerate(CONTESTANTS):
            policy = contestant.make(salt)
            for seed in range(NUM_SEEDS):
                if isinstance(policy, Peeks):
                    policy.cheat(seed, task.instance_id)
                record = play_episode(env, policy, task, contestant.prompt, seed)
                outcome[number, place, seed] = record["outcome"]
                luck[number, place, seed] = record["luck"]
                more[number, place, seed] = more_controls(record)
                counts += _inspect(record)
    return Played(outcome, luck, more, *(int(count) for count in counts))


def _inspect(record: EpisodeRecord) -> NDArray[np.int64]:
    steps = record["steps"]
    return np.array(
        [
            identity_error(record) > IDENTITY_ERROR,
            # The record's regret is cut off at zero, its two parts are not.
            sum(step["value"] - step["action_value"] < SMALLEST_REGRET for step in steps),
            sum(step["luck"] != 0.0 for step in steps if step["success"] is None),
            rescore(record).to_mapping() != record["score"],
            len(steps),
        ],
        dtype=np.int64,
    )


def judge(pieces: Sequence[Played]) -> list[Finding]:
    """Test luck and adjusted scores of every contestant, by task."""
    outcome = np.concatenate([piece.outcome for piece in pieces], axis=1)
    luck = np.concatenate([piece.luck for piece in pieces], axis=1)
    more = np.concatenate([piece.more for piece in pieces], axis=1)
    findings = []
    for number, contestant in enumerate(CONTESTANTS):
        findings += _judge_contestant(contestant, outcome[number], luck[number], more[number])
    episodes = outcome.size
    messages = sum(piece.messages for piece in pieces)
    for name, count in (
        (f"1 - outcome = (1 - V*) + regret - luck ({episodes:,} episodes)", sum(p.broken_identities for p in pieces)),
        (f"regret >= -1e-12 ({messages:,} messages)", sum(piece.negative_regrets for piece in pieces)),
        ("luck is exactly 0 for messages without a draw", sum(piece.luck_without_draw for piece in pieces)),
        ("records score the same when scored again", sum(piece.other_scores for piece in pieces)),
    ):
        findings.append(Finding(name, SOURCE, f"{count} exceptions", exact=count == 0))
    return findings


def _judge_contestant(
    contestant: Contestant, outcome: NDArray[np.float64], luck: NDArray[np.float64], more: NDArray[np.float64]
) -> list[Finding]:
    mean_luck = clustered_mean_is(luck)
    if not contestant.honest:
        name = f"control: {contestant.name}, mean luck is 0"
        return [Finding(name, SOURCE, mean_luck.text, mean_luck.p_value, control=True)]
    adjusted = outcome - luck
    fitted = _fitted(outcome, luck, more)
    ratio, fitted_ratio = _variance_ratio(adjusted, outcome), _variance_ratio(fitted, outcome)
    difference = clustered_mean_is(outcome - fitted)
    means = f"mean {outcome.mean():.4f}, adjusted {adjusted.mean():.4f} / {fitted.mean():.4f}"
    ratios = f"variance ratio {ratio:.2f} / {fitted_ratio:.2f}"
    findings = [
        Finding(f"{contestant.name}: mean luck is 0", SOURCE, mean_luck.text, mean_luck.p_value),
        Finding(
            f"{contestant.name}: adjusted (fitted) = raw on average",
            SCORE_SOURCE,
            f"{difference.text}; {means}; {ratios}",
            difference.p_value,
        ),
    ]
    if contestant.reference is not None:
        expected = np.array([contestant.reference(task) for task in tasks()])
        for name, values in (("raw", outcome), ("adjusted, beta 1,", adjusted), ("adjusted, fitted,", fitted)):
            result = clustered_mean_is(values, expected)
            text = f"{result.text} from {expected.mean():.4f}"
            findings.append(Finding(f"{contestant.name}: {name} = closed form", SCORE_SOURCE, text, result.p_value))
    return findings


def _fitted(outcome: NDArray[np.float64], luck: NDArray[np.float64], more: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the outcomes with what the code of evaluations takes off; shape (num_tasks, num_seeds)."""
    optimum = np.broadcast_to(np.array([_optimum(task) for task in tasks()])[:, None], outcome.shape)
    by_task = np.array([fold_of(task.instance_id) for task in tasks()])
    folds = fold_of_episodes(by_task[:, None], np.arange(NUM_SEEDS))
    own = [folds == fold for fold in range(NUM_FOLDS)]
    moments = np.array([moments_of(outcome[here], optimum[here], luck[here], more[here]) for here in own])
    weights = cross_fitted_weights(moments)[folds]  # (num_tasks, num_seeds, 1 + NUM_MORE)
    taken_off: NDArray[np.float64] = np.einsum("tsk,tsk->ts", weights, np.concatenate([luck[..., None], more], axis=2))
    return outcome - taken_off


def _variance_ratio(adjusted: NDArray[np.float64], raw: NDArray[np.float64]) -> float:
    """Return the ratio of the variances of both scores' means, the tasks being given."""
    return float(adjusted.var(axis=1, ddof=1).mean() / raw.var(axis=1, ddof=1).mean())
