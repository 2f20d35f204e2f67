"""A trained policy as a planner: what it would call if every call succeeded."""

from __future__ import annotations

import functools
from pathlib import Path

from resilisim.envs.workflow import columns
from resilisim.policies.ppo.checkpoint import load_checkpoint
from resilisim.policies.ppo.mirror import Mirror, Preference, check_library
from resilisim.simulator.exact import best_limits
from resilisim.simulator.law import SUCCEEDED, BenchmarkLaw, EndRules
from resilisim.simulator.problem import Problem, build_problem
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.workflows.model import Step, Workflow
from resilisim.workflows.planner import KEPT_PLANS, NUM_ALTERNATIVES, SimilarTools, fill_steps, limited_steps
from resilisim.workflows.steps import SemanticMatch, Wording, expected_outcome, reason

# Probabilities come from 32 bit arithmetic, whose last bits differ between machines; plans should not.
CONFIDENCE_DECIMALS = 4
WORDING = Wording(left_out="the trained policy does not run {} first", unexplained="but called by the trained policy")


class PolicyPlanner:
    """Plans by a trained policy: the calls that it prefers along the path on which every call succeeds.

    The policy sees Workflow-v0's observations under the given law and end rules. A step is a tool to run until it has
    succeeded, so each tool is a step once: where the policy would rather call a tool that has succeeded, its best other
    call is taken. The plan ends when all required tools are steps, or with as many steps as there are turns; so every
    policy gives a plan, a bad one perhaps one that cannot succeed. Its steps outside the required list get limits, or
    are left out, so that the plan succeeds as often as it can (`simulator.exact.best_limits`).

    A step's confidence is the probability that the policy gave to the call. The predicted success probability is not
    the policy's opinion: it is the computed chance of full success of following this plan to the letter, and so at most
    V*.

    Args:
        checkpoint: Folder of the policy, or "default" for the one that ships.
        library: Tool library of the tasks; the default one if omitted.
        law: Success law; the benchmark's if omitted.
        rules: End rules; the benchmark's if omitted.
        similar: Names the alternatives of a tool; without it they are the policy's next most probable calls.
        match: Scores how well tools match a task's description; without it, steps have no semantic match.

    Raises:
        InvalidInputError: There is no such checkpoint, it is broken, or it was trained for another library.
    """

    def __init__(
        self,
        checkpoint: Path | str,
        library: ToolLibrary | None = None,
        law: BenchmarkLaw | None = None,
        rules: EndRules | None = None,
        similar: SimilarTools | None = None,
        match: SemanticMatch | None = None,
    ) -> None:
        self.name = f"policy:{checkpoint}"
        self.library = library if library is not None else default_library()
        self.law = law or BenchmarkLaw()
        self.rules = rules or EndRules()
        self.similar = similar
        self.match = match
        self._loaded = load_checkpoint(checkpoint)
        check_library(self._loaded, self.library)
        # By task, not by required list as the exact planner's: the policy reads the task's text, too.
        self._made = functools.lru_cache(maxsize=KEPT_PLANS)(self._make)

    def plan(self, task: Task) -> Workflow:
        """Return the workflow for a task.

        Raises:
            InvalidInputError: The required list does not fit the library.
            MissingExtraError: The task's similarities have to be computed, and the extra `retrieval` is not installed.
        """
        steps, chance = self._made(task)
        return Workflow(task.instance_id, fill_steps(steps, task, self.library, self.match), self.name, chance)

    def _make(self, task: Task) -> tuple[tuple[Step, ...], float]:
        problem = build_problem(self.library, task.required_tools, self.law, self.rules)
        mirror = Mirror(self._loaded, task, self.library, self.law, self.rules)
        calls = all_success_calls(mirror, problem)
        chosen = best_limits(problem, [options[0].tool for options in calls])
        calls = [calls[place] for place in chosen.kept]
        tools = [self.library.names[options[0].tool] for options in calls]
        steps = [self._step(problem, tools, place, options) for place, options in enumerate(calls)]
        return limited_steps(steps, chosen.limits), chosen.success

    def _step(self, problem: Problem, tools: list[str], place: int, options: list[Preference]) -> Step:
        name = tools[place]
        tool = self.library[name]
        if self.similar is not None:
            alternatives = tuple(self.similar(name))
        else:
            alternatives = tuple(self.library.names[option.tool] for option in options[1 : 1 + NUM_ALTERNATIVES])
        return Step(
            tool=name,
            reason=reason(problem, tools, place, WORDING),
            requires=tuple(tool.dependencies),
            alternatives=alternatives,
            expected_outcome=expected_outcome(tool),
            confidence=round(min(options[0].probability, 1.0), CONFIDENCE_DECIMALS),
            chosen_by="semantics" if name in problem.required_tools else "policy",
        )


def all_success_calls(mirror: Mirror, problem: Problem) -> list[list[Preference]]:
    """Return, for each call of a policy when every call succeeds, the calls of new tools that it considers, best first.

    Args:
        mirror: An episode at its start; it is played to the end.
        problem: Numbers of the same task.
    """
    calls: list[list[Preference]] = []
    missing = set(problem.required)
    while missing and not mirror.ended and len(calls) < problem.rules.max_turns:
        status = mirror.state.status
        options = [option for option in mirror.preferences() if status[option.tool] != SUCCEEDED]
        if not options:  # filters or a library without another tool
            break
        calls.append(options)
        mirror.execute(options[0].tool, columns.SUCCESS)
        missing.discard(options[0].tool)
    return calls
