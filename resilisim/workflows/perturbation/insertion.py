"""Steps that should not be there: repeated ones, useless ones, unrelated ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from resilisim.seeding import Draws
from resilisim.workflows.parameters import FLOWING_PARAMETERS
from resilisim.workflows.perturbation.plan import Change, Plan, Unfit, tool_before
from resilisim.workflows.perturbation.references import refer_to, referred_tool
from resilisim.workflows.perturbation.types import Edit, num_extra_steps
from resilisim.workflows.perturbation.values import as_json
from resilisim.workflows.types import Step

# Useless tools are drawn from the third that is most like the plan, unrelated ones from the third that is least so.
SHARE = 3


def duplication(plan: Plan, severity: str, draws: Draws) -> Change | Unfit:
    """Repeat steps, each copy somewhere after its original and before the last step, which has to wait for it.

    A copy has no limits: one that may be left at once would do nothing.
    """
    last = len(plan.steps) - 1
    copies: list[tuple[int, int]] = []  # place in the original that the copy comes before, and what is copied
    for _ in range(num_extra_steps(severity, _spare_turns(plan))):
        source = draws.below(max(last, 1))
        copies.append((draws.between(source + 1, last) if last else 1, source))
    copies.sort()
    steps: list[Step] = []
    edits: list[Edit] = []
    for index in range(len(plan.steps) + 1):
        for place, source in copies:
            if place == index:
                copied = plan.copy_of(source)
                steps.append(copied)
                edits.append(Edit("duplicated", len(steps), source + 1, None, None, copied.tool))
        if index < len(plan.steps):
            steps.append(plan.steps[index])
    return Change(tuple(steps), tuple(edits))


def unnecessary_addition(plan: Plan, severity: str, draws: Draws) -> Change | Unfit:
    """Insert tools that look as if they belonged there and are of no use, before the last step."""
    useless = plan.useless_tools
    if not useless:
        return Unfit("every tool of the library is of some use to the plan")
    related = useless[: _share(useless)]
    return _insert(plan, related, num_extra_steps(severity, _spare_turns(plan)), draws, first_gap=0, rewire=False)


def unrelated_insertion(plan: Plan, severity: str, draws: Draws) -> Change | Unfit:
    """Insert tools that have nothing to do with the task between steps; the next step takes its data from them."""
    if len(plan.steps) < 2:
        return Unfit("a single step has no neighbour to be cut off from")
    useless = plan.useless_tools
    if not useless:
        return Unfit("every tool of the library is of some use to the plan")
    unrelated = useless[-_share(useless) :]
    return _insert(plan, unrelated, num_extra_steps(severity, _spare_turns(plan)), draws, first_gap=1, rewire=True)


def _share(tools: Sequence[int]) -> int:
    return math.ceil(len(tools) / SHARE)


def _spare_turns(plan: Plan) -> int:
    return max(plan.shop.max_turns - len(plan.steps), 0)


def _insert(plan: Plan, tools: Sequence[int], count: int, draws: Draws, *, first_gap: int, rewire: bool) -> Change:
    """Insert useless steps, each before a step drawn from `first_gap` on; tools come again only when all were used."""
    order: list[int] = []
    while len(order) < count:
        order += draws.shuffled(tools)
    gaps = [(draws.between(first_gap, len(plan.steps) - 1), number) for number in range(count)]
    names = plan.shop.library.names
    steps: list[Step] = []
    edits: list[Edit] = []
    for index, step in enumerate(plan.steps):
        inserted = [names[order[number]] for gap, number in sorted(gaps) if gap == index]
        for name in inserted:
            steps.append(plan.useless_step(name, tool_before(steps, len(steps))))
            edits.append(Edit("inserted", len(steps), None, None, None, name))
        steps.append(step)
        if rewire and inserted:
            edits += _take_data_from(steps, inserted[-1], plan.steps[index - 1].tool, index)
    return Change(tuple(steps), tuple(edits))


def _take_data_from(steps: list[Step], source: str, before: str, original: int) -> list[Edit]:
    """Let the last of the steps read from `source` what it read from `before`, in values of the same type."""
    step = steps[-1]
    edits = []
    for name in sorted(FLOWING_PARAMETERS & step.parameters.keys()):
        value = step.parameters[name]
        if referred_tool(value) != before:
            continue
        instead = refer_to(value, source)
        steps[-1] = replace(steps[-1], parameters={**steps[-1].parameters, name: instead})
        edits.append(Edit("parameter_changed", len(steps), original + 1, name, as_json(value), as_json(instead)))
    return edits
