"""Check (g): what following a plan to the letter is worth, sound and flawed, against agents that do follow it.

Besides the planner's plans there are plans whose steps have limits at random, required ones too, and half of the tasks
are played without the rule of consecutive failures. The plans are put into prompts, a plan follower reads them there
and plays in Conversation-v0 with strict parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.session import Session
from resilisim.policies.registry import make_policy
from resilisim.seeding import Draws
from resilisim.simulator import EndRules, build_problem
from resilisim.simulator.exact import obey_plan
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.sources import sample_tasks
from resilisim.tool_library import default_library
from resilisim.tool_library.retrieval import tool_text
from resilisim.workflows import ExactPlanner, PlannedStep, Step, Workflow
from resilisim.workflows.flaws import SEVERITIES, FlawedWorkflow, Perturber
from resilisim.workflows.flaws.flaw import STRESSORS, ToolSimilarity, functional_equivalence
from resilisim.workflows.plan_value import CostCalculator
from resilisim.workflows.prompts import Prompt, parse_steps, render_prompt
from verification.findings import Finding
from verification.statistics import binomial_groups, clustered_mean_is, worst_cell

SOURCE = "SPEC 6, costs"
NUM_TASKS, NUM_SEEDS = 24, 40
SOUND = "sound"
NUM_RANDOM = 4  # plans with limits at random of each task
MAX_TRIES, SKIP_FROM = (None, None, 1, 2, 3), (None, None, 2, 4, 6, 8, 11)
ANY_LIMITS = "any limits"  # the path of the optimum, with limits that nobody chose


@functools.lru_cache(maxsize=1)
def tasks() -> tuple[Task, ...]:
    """Return tasks with different required lists, of every type in proportion."""
    distinct = {task.required_tools: task for task in benchmark_tasks()}
    return tuple(sample_tasks(tuple(distinct.values()), NUM_TASKS, seed=2))


@functools.lru_cache(maxsize=1)
def similarity_by_words() -> ToolSimilarity:
    """Compare tools by common words, so that no model has to be loaded; which tools are put in does not matter here."""
    library = default_library()
    words = [set(tool_text(tool).lower().split()) for tool in library]
    shares = np.array([[len(one & other) / len(one | other) for other in words] for one in words])
    return ToolSimilarity(shares, functional_equivalence(library))


@dataclass(frozen=True, slots=True)
class Obeyed:
    """What one plan brought to those who obeyed it.

    Attributes:
        flaw: Its flaw type, or SOUND.
        obey: Chance of full success as computed.
        obey_coverage: Expected share of the required tools that succeed in order, as computed.
        unchecked_coverage: The same for calls that nobody refuses: a control.
        unlimited: Chance of full success of a plan with limits if they were not kept: a control; None without limits.
        successes: Full successes in simulation.
        coverage: (num_seeds,) share of the required tools that succeeded in order in each episode.
        misread: Whether the plan that stands in the prompt is read as another one.
    """

    flaw: str
    obey: float
    obey_coverage: float
    unchecked_coverage: float
    unlimited: float | None
    successes: int
    coverage: NDArray[np.float64]
    misread: bool


def jobs(shift: int) -> list[tuple[int, int]]:
    """Return (place of the task, shift) of every piece of work."""
    return [(place, shift) for place in range(NUM_TASKS)]


def work(job: tuple[int, int]) -> list[Obeyed]:
    """Play the sound plan of one task, and the same plan with every flaw that it can carry."""
    place, shift = job
    rules = EndRules(max_consecutive_failures=0 if place % 4 < 2 else 5)
    task, library, costs = tasks()[place], default_library(), CostCalculator(rules=rules)
    env = ConversationEnv(
        parameters="strict",
        salt=f"verification/obedience/{shift}",
        max_consecutive_failures=rules.max_consecutive_failures,
    )
    problem = build_problem(library, task.required_tools, rules=rules)
    obeyed = []
    for number, (flaw, workflow) in enumerate(_plans(task, rules)):
        prompt_type = "flawed" if flaw in STRESSORS else "optimal"
        prompt = render_prompt(task, prompt_type, workflow, plan_format="xml" if place % 2 else "markdown")
        expected = costs.costs(task.required_tools, workflow.steps)
        limits = [(step.max_tries, step.skip_from) for step in workflow.steps]
        unchecked = obey_plan(problem, [library.index(tool) for tool in workflow.tools], limits=limits)
        without = [replace(step, max_tries=None, skip_from=None) for step in workflow.steps]
        limited = any(step.is_limited for step in workflow.steps)
        # Each plan has its own seeds: the tests of a task do not share their luck.
        first = number * NUM_SEEDS
        played = [_play(env, task, prompt, seed) for seed in range(first, first + NUM_SEEDS)]
        obeyed.append(
            Obeyed(
                flaw,
                expected.obey,
                expected.obey_coverage,
                unchecked.coverage,
                costs.costs(task.required_tools, without).obey if limited else None,
                sum(success for success, _ in played),
                np.array([coverage for _, coverage in played]),
                [
                    (step.tool, step.parameters or {}, step.max_tries, step.skip_from)
                    for step in parse_steps(prompt.text)
                ]
                != [(step.tool, step.parameters, step.max_tries, step.skip_from) for step in workflow.steps],
            )
        )
    return obeyed


def _as_read(step: Step | PlannedStep) -> tuple[object, ...]:
    return step.tool, dict(step.parameters or {}), step.max_tries, step.skip_from


def _plans(task: Task, rules: EndRules) -> Iterator[tuple[str, Workflow]]:
    """Yield the sound plan of a task, plans with limits at random, and every flaw by every method at every severity."""
    sound = ExactPlanner(rules=rules).plan(task)
    yield SOUND, sound
    path, draws = ExactPlanner(rules=rules, limits=False).plan(task), Draws("verification/limits", task.instance_id)
    for _ in range(NUM_RANDOM):
        steps = [
            replace(step, max_tries=draws.choice(MAX_TRIES), skip_from=draws.choice(SKIP_FROM)) for step in path.steps
        ]
        yield ANY_LIMITS, replace(path, steps=tuple(steps))
    perturber = Perturber(rules=rules, similarity=similarity_by_words)
    for flaw, methods in STRESSORS.items():
        for method in methods:
            for severity in SEVERITIES:
                one = perturber.perturb(sound, task.required_tools, flaw, severity, method)
                if isinstance(one, FlawedWorkflow):
                    yield flaw, one.workflow


def _play(env: ConversationEnv, task: Task, prompt: Prompt, seed: int) -> tuple[bool, float]:
    """Return whether a plan follower had full success, and the share of the required tools that succeeded in order."""
    policy, session = make_policy("plan-follower"), Session(env, task, prompt, seed)
    reply, succeeded = session.reply, list[str]()
    policy.reset(reply.observation, reply.info)
    while not reply.ended:
        reply = session.send(policy.act(reply.observation, reply.info))
        execution = reply.info.get("execution")
        if execution is not None and execution["success"] and execution["tool"] not in succeeded:
            succeeded.append(execution["tool"])
    places = [task.required_tools.index(tool) for tool in succeeded if tool in task.required_tools]
    is_success = (session.score or {}).get("level") == "full_success"
    return is_success, longest_ascending_run(places) / len(task.required_tools)


def longest_ascending_run(places: Sequence[int]) -> int:
    """Return the length of the longest ascending subsequence."""
    lengths: list[int] = []
    for index, place in enumerate(places):
        lengths.append(1 + max((lengths[i] for i in range(index) if places[i] < place), default=0))
    return max(lengths, default=0)


def judge(pieces: Sequence[list[Obeyed]]) -> list[Finding]:
    """Compare success rates over all plans and the mean coverage for every flaw type with what was computed."""
    plans = [one for piece in pieces for one in piece]
    successes, chances = [one.successes for one in plans], [one.obey for one in plans]
    trials = [NUM_SEEDS] * len(plans)
    together, worst = binomial_groups(successes, trials, chances), worst_cell(successes, trials, chances)
    findings = [
        Finding(f"obey: {len(plans)} plans", SOURCE, together.text, together.p_value),
        Finding("obey: the worst plan", SOURCE, worst.text, worst.p_value),
    ]
    for flaw in (SOUND, ANY_LIMITS, *STRESSORS):
        chosen = [one for one in plans if one.flaw == flaw]
        result = clustered_mean_is([one.coverage for one in chosen], [one.obey_coverage for one in chosen])
        name = f"obey_coverage: {flaw} ({len(chosen)} plans)"
        findings.append(Finding(name, SOURCE, result.text, result.p_value))
    refused = [one for one in plans if one.unchecked_coverage != one.obey_coverage]
    control = clustered_mean_is([one.coverage for one in refused], [one.unchecked_coverage for one in refused])
    name = f"control: refused calls taken for accepted ones ({len(refused)} plans)"
    findings.append(Finding(name, SOURCE, control.text, control.p_value, control=True))
    limited = [(one.successes, one.unlimited) for one in plans if one.unlimited is not None]
    kept = binomial_groups([won for won, _ in limited], [NUM_SEEDS] * len(limited), [chance for _, chance in limited])
    name = f"control: limits taken for none ({len(limited)} plans)"
    findings.append(Finding(name, SOURCE, kept.text, kept.p_value, control=True))
    hopeless = sum(one.successes for one in plans if one.obey == 0.0)
    misread = sum(one.misread for one in plans)
    findings += [
        Finding("plans that leave no chance never succeed", SOURCE, f"{hopeless} successes", exact=hopeless == 0),
        Finding("plans are read from prompts as they were made", SOURCE, f"{misread} are not", exact=misread == 0),
    ]
    return findings
