"""Putting flaws into workflows: seeded, verified, or refused with a reason."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from resilisim.seeding import Draws
from resilisim.simulator.law import EndRules
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.workflows.flaws.methods import METHODS
from resilisim.workflows.flaws.model import (
    DEFAULT_SEVERITY,
    FLAW_METHODS,
    Change,
    Flaw,
    FlawedWorkflow,
    FlawRefusal,
    PlanView,
    ToolSimilarity,
    Workshop,
    check_flaw,
    tool_similarity,
)
from resilisim.workflows.flaws.verification import flaw_problem
from resilisim.workflows.model import Workflow


class Perturber:
    """Makes flawed workflows out of sound ones.

    Args:
        library: Tool library of the workflows; the default one if omitted.
        rules: End rules; useless steps are counted in the turns that they take.
        similarity: Gives the similarities of the library's tools; by retrieval with the default model if omitted. It is
            called once, when a method first needs it.
    """

    def __init__(
        self,
        library: ToolLibrary | None = None,
        rules: EndRules | None = None,
        similarity: Callable[[], ToolSimilarity] | None = None,
    ) -> None:
        self.library = library if library is not None else default_library()
        self.rules = rules or EndRules()
        self.similarity = functools.cache(similarity or self._by_retrieval)
        self._shop = Workshop(self.library, self.similarity, self.rules.max_turns)
        self._last_plan: PlanView | None = None
        self._last_draws: dict[tuple[object, ...], _RepeatedDraws] = {}

    def perturb(
        self,
        workflow: Workflow,
        required_tools: Sequence[str],
        flaw_type: str,
        severity: str = DEFAULT_SEVERITY,
        method: str | None = None,
        seed: int = 0,
    ) -> FlawedWorkflow | FlawRefusal:
        """Put a flaw into a workflow.

        The choices are drawn from (seed, task, flaw type, method), not from the severity: a severe flaw mostly extends
        the light one of the same seed.

        Args:
            workflow: A sound workflow: one that runs no tool twice.
            required_tools: The task's required tools, in order.
            flaw_type: One of `FLAW_TYPES`.
            severity: One of `SEVERITIES`.
            method: One of the type's two methods. If omitted it is drawn from the seed, and the other one is taken
                where the first can do nothing.
            seed: Another seed makes other choices.

        Returns:
            The flawed workflow, verified to have the flaw, or why this workflow cannot carry it.

        Raises:
            InvalidInputError: An unknown flaw type, severity, method or tool; a required list that is empty or
                names a tool twice.
            MissingExtraError: The method needs similarities and the extra `retrieval` is missing.
        """
        check_flaw(flaw_type, severity, method)
        plan = self._plan(workflow, required_tools)
        unsound = _unsoundness(plan)
        if unsound is not None:
            return FlawRefusal(workflow.instance_id, flaw_type, method, severity, unsound)
        reasons = []
        for name in self._candidates(workflow.instance_id, flaw_type, method, seed):
            change = METHODS[name](plan, severity, self._draws(seed, workflow.instance_id, flaw_type, name))
            if isinstance(change, Change):
                changed = Workflow(
                    workflow.instance_id, change.steps, workflow.planner, workflow.predicted_success_probability
                )
                flawed = FlawedWorkflow(workflow, changed, Flaw(flaw_type, name, severity), change.edits)
                problem = flaw_problem(flawed, plan)
                if problem is not None:
                    raise AssertionError(f"{flawed.flaw} of {workflow.instance_id}: {problem}")
                return flawed
            reasons.append(change.reason)
        return FlawRefusal(workflow.instance_id, flaw_type, method, severity, "; ".join(reasons))

    def first_carried(
        self,
        workflow: Workflow,
        required_tools: Sequence[str],
        flaw_types: Sequence[str],
        severity: str = DEFAULT_SEVERITY,
        method: str | None = None,
        seed: int = 0,
    ) -> FlawedWorkflow | FlawRefusal:
        """Put the first of some flaws, in the order in which they were drawn, into a workflow that it can carry.

        The other arguments are those of `perturb`.

        Returns:
            The flawed workflow, or why the workflow cannot carry the first of the flaws if it can carry none.
        """
        refusals = []
        for flaw_type in flaw_types:
            found = self.perturb(workflow, required_tools, flaw_type, severity, method, seed)
            if isinstance(found, FlawedWorkflow):
                return found
            refusals.append(found)
        return refusals[0]

    def _plan(self, workflow: Workflow, required_tools: Sequence[str]) -> PlanView:
        """Return what the methods look at; the flaws of one workflow are mostly made one after the other."""
        known = self._last_plan
        if known is None or known.steps is not workflow.steps or known.required != tuple(required_tools):
            known = self._last_plan = PlanView.of(workflow, required_tools, self._shop)
            self._last_draws = {}
        return known

    def _draws(self, *name: object) -> Draws:
        """Return the draws of that name from their beginning; all severities of a flaw have the same."""
        if name not in self._last_draws:
            self._last_draws[name] = _RepeatedDraws("resilisim/flaw", *name)
        return self._last_draws[name].from_the_beginning()

    def _candidates(self, instance_id: str, flaw_type: str, method: str | None, seed: int) -> tuple[str, ...]:
        if method is not None:
            return (method,)
        first, second = FLAW_METHODS[flaw_type]
        drawn_second = Draws("resilisim/flaw-method", seed, instance_id, flaw_type).below(2) == 1
        return (second, first) if drawn_second else (first, second)

    def _by_retrieval(self) -> ToolSimilarity:
        from resilisim.tool_library.retrieval import default_retriever

        return tool_similarity(default_retriever(self.library))


class _RepeatedDraws(Draws):
    """Draws that can be made again without being computed again."""

    def __init__(self, *name: object) -> None:
        super().__init__(*name)
        self._known: list[int] = []

    def from_the_beginning(self) -> Draws:
        """Begin again; whoever drew before must have finished."""
        self._count = 0
        return self

    def bits(self) -> int:
        """Return the next 53 uniform bits."""
        if self._count == len(self._known):
            self._known.append(super().bits())
        else:
            self._count += 1
        return self._known[self._count - 1]


def _unsoundness(plan: PlanView) -> str | None:
    """Say why no flaw can be told from what the plan already is, or return None."""
    if not plan.steps:
        return "the workflow has no steps"
    repeated = plan.repeated_tool()
    return None if repeated is None else f"the workflow already runs {repeated} more than once"
