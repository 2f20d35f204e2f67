"""Putting flaws into workflows: seeded, verified, or refused with a reason.

Whether a flawed workflow really has the flaw that it is named after is judged from the workflow, apart from the methods
that made it.

A flaw is a matter of steps, and plans of the benchmark run no tool twice, so tool and step are one there. In programs,
plans that call a tool several times as reference solutions of worlds do, each later call of a tool gets a name of its
own while the flaw is made, and loses it afterwards.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from resilisim.errors import CheckFailed
from resilisim.seeding import Draws
from resilisim.simulator.end_rules import EndRules
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.parameters import accepts
from resilisim.workflows.argument_references import by_number, referred_tool
from resilisim.workflows.flaws.argument_passing import references_problem
from resilisim.workflows.flaws.flaw import (
    ARGUMENT_PASSING,
    DEFAULT_SEVERITY,
    STRESSORS,
    Change,
    Flaw,
    FlawedWorkflow,
    FlawRefusal,
    PlanView,
    ToolSimilarity,
    check_flaw,
    tool_similarity,
)
from resilisim.workflows.flaws.methods import MAKERS, is_verifying
from resilisim.workflows.workflow import Step, Workflow

FlawNames = tuple[str, str, str | None]  # flaw type, severity, and method if it is not to be drawn


class Perturber:
    """Makes flawed workflows out of sound ones.

    Args:
        library: Tool library of the workflows; the default one if omitted.
        rules: End rules; useless steps are counted in the turns that they take.
        similarity: Gives the similarities of the library's tools; by retrieval with the default model if omitted. It is
            called once, when a method first needs it.

    Example:
        >>> from resilisim import benchmark_tasks
        >>> from resilisim.workflows import ExactPlanner
        >>> from resilisim.workflows.flaws import Perturber
        >>> task = benchmark_tasks()[2]
        >>> sound = ExactPlanner().plan(task)
        >>> flawed = Perturber().perturb(sound, task.required_tools, "missing_step", "light")
        >>> len(sound.steps) - len(flawed.workflow.steps)
        1
    """

    def __init__(
        self,
        library: ToolLibrary | None = None,
        rules: EndRules | None = None,
        similarity: Callable[[], ToolSimilarity] | None = None,
    ) -> None:
        self.library = library if library is not None else default_library()
        self.rules = rules or EndRules()
        self._similarity = functools.cache(similarity or self._by_retrieval)
        self._last_plan: PlanView | None = None
        self._last_by_number: tuple[Workflow, Workflow] | None = None
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
            flaw_type: One of `FLAW_TYPES`, or "argument_passing", for which the plan refers to results by number.
            severity: One of `SEVERITIES`.
            method: One of the type's methods. If omitted it is drawn from the seed, and another one is taken where
                that can do nothing.
            seed: Another seed makes other choices.

        Returns:
            The flawed workflow, verified to have the flaw, or why this workflow cannot carry it.

        Raises:
            InvalidInputError: An unknown flaw type, severity, method or tool; a required list that is empty or
                names a tool twice.
            MissingExtraError: The method needs similarities and the extra `retrieval` is missing.
        """
        check_flaw(flaw_type, severity, method)
        instance_id = workflow.instance_id
        workflow = self._as_carrier(workflow, flaw_type)
        plan = self._plan(workflow, required_tools)
        unsound = _unsoundness(plan)
        if unsound is not None:
            return FlawRefusal(instance_id, flaw_type, method, severity, unsound)
        reasons = []
        for name in self._candidates(instance_id, flaw_type, method, seed):
            change = MAKERS[name](plan, severity, self._draws(seed, instance_id, flaw_type, name))
            if isinstance(change, Change):
                changed = replace(workflow, steps=change.steps)
                flawed = FlawedWorkflow(workflow, changed, Flaw(flaw_type, name, severity), change.edits)
                problem = flaw_problem(flawed, plan)
                if problem is not None:
                    raise CheckFailed(f"{flawed.flaw} of {instance_id}: {problem}")
                return flawed
            reasons.append(change)
        return FlawRefusal(instance_id, flaw_type, method, severity, "; ".join(dict.fromkeys(reasons)))

    def carried(
        self, workflow: Workflow, required_tools: Sequence[str], flaws: Iterable[FlawNames], seed: int = 0
    ) -> Iterator[tuple[FlawNames, FlawedWorkflow]]:
        """Yield each of some flaws that a workflow can carry, with the flawed workflow."""
        for names in flaws:
            flawed = self.perturb(workflow, required_tools, *names, seed)
            if isinstance(flawed, FlawedWorkflow):
                yield names, flawed

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

        Returns:
            The flawed workflow, or why the workflow cannot carry the first of the flaws if it can carry none.
        """
        refusals = []
        for flaw_type in flaw_types:
            flawed = self.perturb(workflow, required_tools, flaw_type, severity, method, seed)
            if isinstance(flawed, FlawedWorkflow):
                return flawed
            refusals.append(flawed)
        return refusals[0]

    def _as_carrier(self, workflow: Workflow, flaw_type: str) -> Workflow:
        """Return a workflow as a flaw is put into it; the same one for the flaws of one that are made in a row."""
        if flaw_type != ARGUMENT_PASSING:
            return workflow
        if self._last_by_number is None or self._last_by_number[0] is not workflow:
            self._last_by_number = workflow, by_number(workflow)
        return self._last_by_number[1]

    def _plan(self, workflow: Workflow, required_tools: Sequence[str]) -> PlanView:
        """Return what the methods look at; the flaws of one workflow are mostly made one after the other."""
        known, required = self._last_plan, tuple(required_tools)
        if known is None or known.steps is not workflow.steps or known.required != required:
            known = PlanView(workflow.steps, required, self.library, self._similarity, self.rules.max_turns)
            self._last_plan, self._last_draws = known, {}
        return known

    def _draws(self, *name: object) -> Draws:
        """Return the draws of that name from their beginning; all severities of a flaw have the same."""
        if name not in self._last_draws:
            self._last_draws[name] = _RepeatedDraws("resilisim/flaw", *name)
        return self._last_draws[name].from_the_beginning()

    def _candidates(self, instance_id: str, flaw_type: str, method: str | None, seed: int) -> tuple[str, ...]:
        if method is not None:
            return (method,)
        methods = STRESSORS[flaw_type]
        drawn = Draws("resilisim/flaw-method", seed, instance_id, flaw_type).below(len(methods))
        return (*methods[drawn:], *methods[:drawn])

    def _by_retrieval(self) -> ToolSimilarity:
        from resilisim.tool_library.retrieval import default_retriever

        return tool_similarity(default_retriever(self.library))


class _RepeatedDraws(Draws):
    """Draws that can be made again without being computed again."""

    def __init__(self, *name: object) -> None:
        super().__init__(*name)
        self._known: list[int] = []
        self._place = 0

    def from_the_beginning(self) -> Draws:
        """Begin again; whoever drew before must have finished."""
        self._place = 0
        return self

    def bits(self) -> int:
        """Return the next 53 uniform bits."""
        if self._place == len(self._known):
            self._known.append(super().bits())
        self._place += 1
        return self._known[self._place - 1]


def _unsoundness(plan: PlanView) -> str | None:
    """Say why no flaw can be told from what the plan already is, or return None."""
    tools = [step.tool for step in plan.steps]
    repeated = next((tool for place, tool in enumerate(tools) if tool in tools[:place]), None)
    if repeated is not None:
        return f"the workflow already runs {repeated} more than once"
    return None if tools else "the workflow has no steps"


def flaw_problem(flawed: FlawedWorkflow, plan: PlanView) -> str | None:
    """Say what is wrong with a flawed workflow of a plan, or return None if it is what it says."""
    steps = flawed.workflow.steps
    if steps == plan.steps:
        return "is equal to its original"
    if not steps:
        return "has no steps"
    if not flawed.edits:
        return "lists no edits"
    return _CHECKS[flawed.flaw.type](flawed.flaw, steps, plan)


def _order_problem(flaw: Flaw, steps: Sequence[Step], plan: PlanView) -> str | None:
    places = {id(step): index for index, step in enumerate(plan.steps)}
    order = [places.get(id(step), -1) for step in steps]
    if sorted(order) != list(range(len(plan.steps))):
        return "does not hold the same steps"
    # Pairs that stand the wrong way round now, by their places in the original.
    reversed_pairs = [
        (first, second)
        for place, second in enumerate(order)
        for first in order[place + 1 :]
        if first < second and plan.order_matters(first, second)
    ]
    if flaw.method == "dependency_violation":
        reversed_pairs = [(first, second) for first, second in reversed_pairs if plan.depends(second, first)]
    elif any(abs(index - place) > 1 for place, index in enumerate(order)):
        return "swaps more than neighbours"
    return None if reversed_pairs else "breaks no order that mattered"


def _tools_problem(flaw: Flaw, steps: Sequence[Step], plan: PlanView) -> str | None:
    if len(steps) != len(plan.steps):
        return "has another number of steps"
    changed = [(new, old) for new, old in zip(steps, plan.steps, strict=True) if new.tool != old.tool]
    gone = {old.tool for _, old in changed}
    for new, old in zip(steps, plan.steps, strict=True):
        if new.tool == old.tool and not _same_but_for_references(new, old, gone):
            return "changes more than tools"
    if gone.isdisjoint(plan.place.keys() - {step.tool for step in steps}):
        return "keeps every required tool"
    library = plan.library
    if flaw.method == "category_mismatch" and any(
        library[new.tool].category == library[old.tool].category for new, old in changed
    ):
        return "keeps a category"
    if flaw.type == "semantic_drift":
        functional = plan.similarity().functional
        if any(functional[library.index(old.tool), library.index(new.tool)] >= 1.0 for new, old in changed):
            return "puts in a tool that does the same"
    return None


def _parameters_problem(flaw: Flaw, steps: Sequence[Step], plan: PlanView) -> str | None:
    if not _differ_only_in(("parameters",), steps, plan):
        return "changes more than parameters"
    # In lenient mode a call may leave out what it likes, so what is refused is a value.
    if flaw.method == "missing_parameters":
        as_named = _refuses_more(steps, plan, "strict") and not _refuses_more(steps, plan, "lenient")
    else:
        as_named = _refuses_more(steps, plan, "lenient")
    return None if as_named else "no call is refused in that way that was accepted before"


def _missing_problem(flaw: Flaw, steps: Sequence[Step], plan: PlanView) -> str | None:
    place = {step.tool: index for index, step in enumerate(plan.steps)}
    kept = [place.get(step.tool, -1) for step in steps]
    if -1 in kept or kept != sorted(set(kept)):
        return "is not the original with steps left out"
    gone = set(range(len(plan.steps))) - set(kept)
    names = {plan.steps[index].tool for index in gone}
    for step, index in zip(steps, kept, strict=True):
        if not _same_but_for_references(step, plan.steps[index], names):
            return "changes more than it leaves out"
    if flaw.method == "middle_step_removal" and gone & {0, len(plan.steps) - 1}:
        return "lacks an end of the original"
    if flaw.method == "validation_removal":
        gone = {index for index in gone if is_verifying(plan.tool(index).operation)}
    return None if any(plan.is_needed(index) for index in gone) else "lacks nothing that was needed"


def _redundancy_problem(flaw: Flaw, steps: Sequence[Step], plan: PlanView) -> str | None:
    extra, waiting = [], list(plan.steps)
    for step in steps:
        if waiting and step is waiting[0]:
            waiting.pop(0)
        else:
            extra.append(step)
    if waiting or not extra:
        return "is not the original with steps added"
    if flaw.method == "duplication":
        copies = [plan.copy_of(index) for index in range(len(plan.steps))]
        return None if all(step in copies for step in extra) else "adds a step that it did not hold"
    return _usefulness_problem(extra, plan)


def _discontinuity_problem(flaw: Flaw, steps: Sequence[Step], plan: PlanView) -> str | None:
    if flaw.method == "format_mismatch":
        if len(steps) != len(plan.steps):
            return "has another number of steps"
        if not _differ_only_in(("parameters", "expected_outcome"), steps, plan):
            return "changes more than parameters and outcomes"
        return None if _refuses_more(steps, plan, "lenient") else "no call is refused that was accepted before"
    tools = [step.tool for step in plan.steps]
    if [step.tool for step in steps if step.tool in tools] != tools:
        return "is not the original with steps added"
    extra = [step for step in steps if step.tool not in tools]
    if not extra or steps[0] is not plan.steps[0]:
        return "inserts nothing between its steps"
    return _usefulness_problem(extra, plan)


def _passing_problem(flaw: Flaw, steps: Sequence[Step], plan: PlanView) -> str | None:
    if not _differ_only_in(("parameters",), steps, plan):
        return "changes more than parameters"
    return references_problem(flaw, steps, plan)


def _usefulness_problem(extra: Iterable[Step], plan: PlanView) -> str | None:
    useful = [step.tool for step in extra if step.tool in plan.tools_of_use]
    return f"adds {useful[0]}, which is of use" if useful else None


def _same_but_for_references(new: Step, old: Step, gone: Set[str]) -> bool:
    """Return whether two steps differ in nothing but what the old one says of tools that are gone."""
    if new is old:
        return True
    if replace(new, parameters=old.parameters, reason=old.reason) != old or [*new.parameters] != [*old.parameters]:
        return False
    if new.reason != old.reason and not any(name in old.reason for name in gone):
        return False
    return all(
        value == old.parameters[name] or referred_tool(old.parameters[name]) in gone
        for name, value in new.parameters.items()
    )


def _differ_only_in(fields: Sequence[str], steps: Sequence[Step], plan: PlanView) -> bool:
    return len(steps) == len(plan.steps) and all(
        new is old or replace(new, **{name: getattr(old, name) for name in fields}) == old
        for new, old in zip(steps, plan.steps, strict=True)
    )


def _refuses_more(steps: Sequence[Step], plan: PlanView, mode: str) -> bool:
    """Return whether a call is refused, in some mode, that is accepted in the original."""
    return any(
        was_accepted and new is not old and not accepts(plan.library[new.tool], new.parameters, mode)
        for new, old, was_accepted in zip(steps, plan.steps, plan.accepted, strict=True)
    )


_CHECKS: Mapping[str, Callable[[Flaw, Sequence[Step], PlanView], str | None]] = {
    "sequential_order": _order_problem,
    "tool_misuse": _tools_problem,
    "parameter_error": _parameters_problem,
    "missing_step": _missing_problem,
    "redundant_operation": _redundancy_problem,
    "logic_discontinuity": _discontinuity_problem,
    "semantic_drift": _tools_problem,
    ARGUMENT_PASSING: _passing_problem,
}


@dataclass(frozen=True, slots=True)
class Program:
    """A workflow whose steps all have tools of their own.

    Attributes:
        original: The workflow as it is.
        workflow: The same, each later call of a tool under the tool's name with a number.
        library: A library in which these are tools.
    """

    original: Workflow
    workflow: Workflow
    library: ToolLibrary

    @classmethod
    def of(cls, workflow: Workflow, library: ToolLibrary) -> Program:
        """Return the program of a workflow."""
        calls = Counter[str]()
        steps, clones = [], []
        for step in workflow.steps:
            calls[step.tool] += 1
            name = step.tool if calls[step.tool] == 1 else f"{step.tool}.{calls[step.tool]}"
            if name != step.tool:
                clones.append((name, step.tool))
            steps.append(replace(step, tool=name))
        return cls(workflow, replace(workflow, steps=tuple(steps)), with_clones(library, tuple(clones)))

    def with_flaw(self, flawed: FlawedWorkflow) -> FlawedWorkflow:
        """Return a flawed form of `workflow` as one of the original."""
        names = {new.tool: old.tool for new, old in zip(self.workflow.steps, self.original.steps, strict=True)}
        names = {new: old for new, old in names.items() if new != old}
        steps = tuple(Step.from_mapping(_renamed(step.to_mapping(), names)) for step in flawed.workflow.steps)
        edits = tuple(
            replace(edit, before=_renamed(edit.before, names), after=_renamed(edit.after, names))
            for edit in flawed.edits
        )
        return FlawedWorkflow(self.original, replace(flawed.workflow, steps=steps), flawed.flaw, edits)


@lru_cache(maxsize=256)
def with_clones(library: ToolLibrary, clones: tuple[tuple[str, str], ...]) -> ToolLibrary:
    """Return a library with copies of tools under other names, given as (name, tool)."""
    copies = [replace(library[tool], name=name, canonical_name=name, aliases=()) for name, tool in clones]
    return ToolLibrary([*library, *copies]) if copies else library


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return JSON values with other names of tools, wherever these stand."""
    text = json.dumps(value)
    for new in sorted(names, key=len, reverse=True):  # the name with number 12 before that with number 1
        text = text.replace(new, names[new])
    return json.loads(text)
