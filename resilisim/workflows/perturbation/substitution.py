"""Flaws that put other tools in the place of required ones: misuse and drift."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from resilisim.seeding import Draws
from resilisim.workflows.perturbation.plan import Change, Plan, Unfit, tool_before
from resilisim.workflows.perturbation.references import redirect
from resilisim.workflows.perturbation.types import Edit, num_edits
from resilisim.workflows.types import Step

NO_OTHER_TOOL = "the library has no tool left that could stand in for one of the plan's"

# Chooses a substitute for the tool of a step among free tools (library indices); None if none will do.
Choose = Callable[[int, Sequence[int]], "int | None"]


def semantic_similarity(plan: Plan, severity: str, draws: Draws) -> Change | Unfit:
    """Replace required tools by the tools whose texts are most similar and that do not do the same (F < 1)."""
    similarity = plan.shop.similarity()

    def most_similar(index: int, free: Sequence[int]) -> int | None:
        tool = plan.shop.library.index(plan.steps[index].tool)
        return _highest(
            similarity.semantic[tool], [other for other in free if similarity.functional[tool, other] < 1.0]
        )

    return _replace_required(plan, severity, draws, most_similar, NO_OTHER_TOOL)


def category_mismatch(plan: Plan, severity: str, draws: Draws) -> Change | Unfit:
    """Replace required tools by any tools of other categories."""
    library = plan.shop.library

    def of_another_category(index: int, free: Sequence[int]) -> int | None:
        category = plan.tool(index).category
        others = [tool for tool in free if library[library.names[tool]].category != category]
        return draws.choice(others) if others else None

    return _replace_required(plan, severity, draws, of_another_category, "no unused tool is of another category")


def semantic_mismatch(plan: Plan, severity: str, draws: Draws) -> Change | Unfit:
    """Replace required tools by tools that are similar in words and different in function: argmax S x (1 - F)."""
    similarity = plan.shop.similarity()

    def similar_but_wrong(index: int, free: Sequence[int]) -> int | None:
        tool = plan.shop.library.index(plan.steps[index].tool)
        return _highest(similarity.semantic[tool] * (1.0 - similarity.functional[tool]), free, above_zero=True)

    return _replace_required(plan, severity, draws, similar_but_wrong, NO_OTHER_TOOL)


def progressive_drift(plan: Plan, severity: str, draws: Draws) -> Change | Unfit:
    """From some step on replace every tool, each substitute chosen by its likeness to the substitute before it.

    T_i = argmax over t of S(t, T_{i-1}) x (1 - F(t, T_original)) (R C.3), where T_{i-1} is the substitute of the step
    before, and for the first step of the drift its own tool. Candidates are tools that the plan does not use, each
    once. A light drift takes the last quarter of the steps, a moderate one the last half, a severe one all after the
    first; a drift begins no later than at the last required tool.
    """
    similarity = plan.shop.similarity()
    num_steps = len(plan.steps)
    length = {"light": -(-num_steps // 4), "moderate": -(-num_steps // 2), "severe": max(num_steps - 1, 1)}[severity]
    required = plan.required_steps()
    if not required:
        return Unfit("no step is required")
    start = min(num_steps - length, required[-1])
    free = plan.tools_elsewhere()
    steps, edits = list(plan.steps), []
    previous = plan.shop.library.index(steps[start].tool)
    for index in range(start, num_steps):
        original = plan.shop.library.index(plan.steps[index].tool)
        scores = similarity.semantic[previous] * (1.0 - similarity.functional[original])
        chosen = _highest(scores, free, above_zero=True)
        if chosen is None:
            return Unfit(NO_OTHER_TOOL)
        free.remove(chosen)
        edits.append(_substitute(plan, steps, index, chosen))
        previous = chosen
    return _consistent(plan, steps, edits)


def _replace_required(plan: Plan, severity: str, draws: Draws, choose: Choose, otherwise: str) -> Change | Unfit:
    """Replace the tools of some required steps, drawn at random; no substitute is used twice."""
    sites = draws.shuffled(plan.required_steps())
    if not sites:
        return Unfit("no step is required")
    free = plan.tools_elsewhere()
    steps, edits = list(plan.steps), []
    for index in sites[: num_edits(severity, len(sites))]:
        chosen = choose(index, free)
        if chosen is None:
            continue
        free.remove(chosen)
        edits.append(_substitute(plan, steps, index, chosen))
    if not edits:
        return Unfit(otherwise)
    return _consistent(plan, steps, edits)


def _consistent(plan: Plan, steps: Sequence[Step], edits: Sequence[Edit]) -> Change:
    """Let the steps refer to the substitutes where they referred to the tools that these stand for."""
    new_names = {plan.steps[edit.step - 1].tool: steps[edit.step - 1].tool for edit in edits}
    replaced = frozenset(edit.step - 1 for edit in edits)
    changed, redirected = redirect(steps, range(len(steps)), new_names, new_names, replaced)
    return Change(changed, tuple(sorted([*edits, *redirected], key=lambda edit: edit.step)))


def _substitute(plan: Plan, steps: list[Step], index: int, chosen: int) -> Edit:
    name = plan.shop.library.names[chosen]
    before = steps[index].tool
    steps[index] = plan.step_with_tool(index, name, tool_before(steps, index))
    return Edit("replaced", index + 1, index + 1, None, before, name)


def _highest(scores: NDArray[np.float64], free: Sequence[int], above_zero: bool = False) -> int | None:
    """Return the free tool with the highest score, the first in the library among equals."""
    best = max(free, key=lambda tool: (scores[tool], -tool), default=None)
    return None if best is None or (above_zero and scores[best] <= 0.0) else best
