"""What following a plan to the letter brings and costs, computed exactly (SPEC section 6)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from resilisim.simulator.exact import known_probabilities
from resilisim.simulator.exact.plan_following import Obedience, obey_plan
from resilisim.simulator.law import BenchmarkLaw, EndRules
from resilisim.simulator.problem import Problem, build_problem
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.parameters import accepts
from resilisim.workflows.types import Step

KEPT_RESULTS = 65536


@dataclass(frozen=True, slots=True)
class PlanCosts:
    """The chances that a plan leaves, with parameters in `strict` mode.

    Attributes:
        obey: Probability of full success when the plan is followed to the letter (`workflows.types.Step`) and
            completion is signalled after the last step.
        obey_coverage: Expected share of the required tools that succeed in order on that way (`Obedience.coverage`).
        deviate: V* of the task: what an agent can still reach that does not believe the plan.
    """

    obey: float
    obey_coverage: float
    deviate: float

    @property
    def price_of_obedience(self) -> float:
        """What obeying gives away: deviate - obey."""
        return self.deviate - self.obey

    def to_mapping(self) -> dict[str, float]:
        """Return the costs as they stand in records."""
        return {"obey": self.obey, "obey_coverage": self.obey_coverage, "deviate": self.deviate}


def follow_steps(problem: Problem, steps: Sequence[Step], mode: str = "strict") -> Obedience:
    """Return the chances of following a plan to the letter, limits of its steps and refused calls included.

    Args:
        problem: The task's numbers.
        steps: The steps of the plan.
        mode: How parameters of calls are checked.

    Raises:
        InvalidInputError: A tool is not in the library.
        ExactLimitError: Too many steps have limits.
    """
    refused = [not accepts(problem.library[step.tool], step.parameters, mode) for step in steps]
    return obey_plan(problem, *_numbers(problem.library, steps, refused))


def _numbers(
    library: ToolLibrary, steps: Sequence[Step], refused: Sequence[bool]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int | None, int | None], ...]]:
    """Return tools, refused calls and limits as `obey_plan` takes them."""
    messages: dict[str, int] = {}  # as `simulator.messages.Message.signature` tells them apart
    refusals = []
    for step, is_refused in zip(steps, refused, strict=True):
        text = f"{step.tool} {sorted(step.parameters.items(), key=str)}" if is_refused else ""
        refusals.append(1 + messages.setdefault(text, len(messages)) if is_refused else 0)
    tools = tuple(library.index(step.tool) for step in steps)
    return tools, tuple(refusals), tuple((step.max_tries, step.skip_from) for step in steps)


class CostCalculator:
    """Computes costs; equal plans for equal required lists are computed once.

    Args:
        library: Tool library of the plans; the default one if omitted.
        law: Success law; the benchmark's if omitted.
        rules: End rules; the benchmark's if omitted.
    """

    def __init__(
        self, library: ToolLibrary | None = None, law: BenchmarkLaw | None = None, rules: EndRules | None = None
    ) -> None:
        self.library = library if library is not None else default_library()
        self.law = law or BenchmarkLaw()
        self.rules = rules or EndRules()
        self._ceilings: OrderedDict[Problem, float] = OrderedDict()
        self._obedience: OrderedDict[tuple[Any, ...], Obedience] = OrderedDict()  # by the arguments of `obey_plan`
        self._refused: OrderedDict[int, tuple[Step, bool]] = OrderedDict()

    def costs(self, required_tools: Sequence[str], steps: Sequence[Step]) -> PlanCosts:
        """Return the costs of a plan for a task.

        Args:
            required_tools: The task's required tools, in order.
            steps: The steps of the plan.

        Raises:
            InvalidInputError: A tool is not in the library.
            ExactLimitError: The task is too large to be solved exactly.
        """
        problem = build_problem(self.library, required_tools, self.law, self.rules)
        key = (problem, *_numbers(self.library, steps, [self._is_refused(step) for step in steps]))
        obeyed = self._obedience.get(key)
        if obeyed is None:
            obeyed = self._obedience[key] = obey_plan(*key)
            if len(self._obedience) > KEPT_RESULTS:
                self._obedience.popitem(last=False)
        return PlanCosts(obeyed.success, obeyed.coverage, self.ceiling(problem))

    def ceiling(self, problem: Problem) -> float:
        """Return V* of a problem's start."""
        value = self._ceilings.get(problem)
        if value is None:
            value = self._ceilings[problem] = known_probabilities(problem)
            if len(self._ceilings) > KEPT_RESULTS:
                self._ceilings.popitem(last=False)
        return value

    def _is_refused(self, step: Step) -> bool:
        """Return whether a step's call is refused in strict mode; a step is checked once while it is in use."""
        known = self._refused.get(id(step))
        if known is not None and known[0] is step:
            return known[1]
        refused = not accepts(self.library[step.tool], step.parameters, "strict")
        self._refused[id(step)] = (step, refused)  # kept alive, so that its identity is not given to another one
        if len(self._refused) > KEPT_RESULTS:
            self._refused.popitem(last=False)
        return refused
