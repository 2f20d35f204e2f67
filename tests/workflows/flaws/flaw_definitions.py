"""What each method's flaw is, said a second time and apart from the package: checks that fail where it is not there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.parameters import check_parameters
from resilisim.workflows import Step
from resilisim.workflows.flaws import FlawedWorkflow, ToolSimilarity


class Case:
    """A flawed workflow with its task, its library and the similarities of its tools."""

    def __init__(self, task: Task, flawed: FlawedWorkflow, library: ToolLibrary, similarity: ToolSimilarity) -> None:
        self.required = list(task.required_tools)
        self.library = library
        self.similarity = similarity
        self.old: Sequence[Step] = flawed.original.steps
        self.new: Sequence[Step] = flawed.workflow.steps
        self.old_tools = [step.tool for step in self.old]
        self.new_tools = [step.tool for step in self.new]

    def unused(self) -> list[str]:
        taken = {*self.old_tools, *self.new_tools, *self.required}
        return [name for name in self.library.names if name not in taken]

    def useful(self) -> set[str]:
        return set(self.library.closure([*self.old_tools, *self.required]))

    def score(self, kind: str, one: str, other: str) -> float:
        return float(getattr(self.similarity, kind)[self.library.index(one), self.library.index(other)])

    def replaced(self) -> list[tuple[str, str]]:
        """Return (tool, substitute) of every step that runs another tool; the others must be as they were."""
        assert len(self.new) == len(self.old)
        assert all(same_work(now, was) for now, was in zip(self.new, self.old, strict=True) if now.tool == was.tool)
        pairs = [(was, now) for was, now in zip(self.old_tools, self.new_tools, strict=True) if was != now]
        assert len({now for _, now in pairs}) == len(pairs)
        assert not {now for _, now in pairs} & {*self.old_tools, *self.required}
        return pairs

    def accepted(self, step: Step, mode: str) -> bool:
        return not check_parameters(self.library[step.tool], step.parameters, mode)


def same_work(now: Step, was: Step) -> bool:
    """Tell whether two steps differ in nothing but the tools that they refer to."""
    if replace(now, parameters=was.parameters, reason=was.reason) != was or list(now.parameters) != list(
        was.parameters
    ):
        return False
    old = [json.dumps(value) for value in was.parameters.values()]
    new = [json.dumps(value) for value in now.parameters.values()]
    return all(one == other or "result" in one for one, other in zip(old, new, strict=True))


def check_references(case: Case) -> None:
    """Fail if a step of the flawed plan names a tool that was in the original and is not in it any more."""
    gone = set(case.old_tools) - set(case.new_tools)
    for step in case.new:
        said = step.reason + json.dumps(step.parameters)
        assert not [tool for tool in gone if tool in re.split(r"[^\w.-]+", said)]


def swap(case: Case) -> None:
    assert sorted(case.new_tools) == sorted(case.old_tools)
    index, swaps = 0, 0
    while index < len(case.old):
        if case.new[index] is case.old[index]:
            index += 1
            continue
        first, second = case.old_tools[index], case.old_tools[index + 1]
        assert case.new_tools[index : index + 2] == [second, first]
        assert {first, second} <= set(case.required) or first in case.library.dependencies(second)
        index, swaps = index + 2, swaps + 1
    assert swaps


def dependency_violation(case: Case) -> None:
    assert sorted(case.new_tools) == sorted(case.old_tools)
    broken = [
        (tool, needed)
        for tool in case.old_tools
        for needed in case.library.dependencies(tool)
        if needed in case.old_tools
        and case.old_tools.index(needed) < case.old_tools.index(tool)
        and case.new_tools.index(needed) > case.new_tools.index(tool)
    ]
    assert broken


def semantic_similarity(case: Case) -> None:
    for tool, substitute in _required_replaced(case):
        best = case.score("semantic", tool, substitute)
        assert case.score("functional", tool, substitute) < 1.0
        others = [other for other in case.unused() if case.score("functional", tool, other) < 1.0]
        assert all(best >= case.score("semantic", tool, other) for other in others)


def category_mismatch(case: Case) -> None:
    for tool, substitute in _required_replaced(case):
        assert case.library[tool].category != case.library[substitute].category


def semantic_mismatch(case: Case) -> None:
    def score(tool: str, other: str) -> float:
        return case.score("semantic", tool, other) * (1.0 - case.score("functional", tool, other))

    for tool, substitute in _required_replaced(case):
        assert case.score("functional", tool, substitute) < 1.0
        assert all(score(tool, substitute) >= score(tool, other) for other in case.unused())


def progressive_drift(case: Case) -> None:
    changed = [index for index in range(len(case.old)) if case.old_tools[index] != case.new_tools[index]]
    assert changed == list(range(changed[0], len(case.old)))
    assert any(tool in case.required for tool, _ in case.replaced())


def missing_parameters(case: Case) -> None:
    assert case.new_tools == case.old_tools
    refused = [now for now in case.new if not case.accepted(now, "strict")]
    assert refused
    for now, was in zip(case.new, case.old, strict=True):
        assert case.accepted(was, "strict")
        assert case.accepted(now, "lenient")
        assert now.parameters.items() <= was.parameters.items()


def type_mismatch(case: Case) -> None:
    assert case.new_tools == case.old_tools
    for now, was in zip(case.new, case.old, strict=True):
        assert list(now.parameters) == list(was.parameters)
        for name, value in now.parameters.items():
            tool = case.library[now.tool]
            # Compared as JSON: in Python True equals 1.
            if json.dumps(value) != json.dumps(was.parameters[name]):
                assert check_parameters(tool, {name: value}, "lenient")
    assert any(not case.accepted(now, "lenient") for now in case.new)


def middle_step_removal(case: Case) -> None:
    gone = _removed(case)
    assert (case.new_tools[0], case.new_tools[-1]) == (case.old_tools[0], case.old_tools[-1])
    assert set(gone) <= set(case.required)


def validation_removal(case: Case) -> None:
    gone = _removed(case)
    assert any(tool.endswith("_validator") and tool in case.required for tool in gone)


def duplication(case: Case) -> None:
    assert len(case.new) > len(case.old)
    assert set(case.new_tools) == set(case.old_tools)
    assert list(dict.fromkeys(case.new_tools)) == case.old_tools
    unlimited = [replace(step, max_tries=None, skip_from=None) for step in case.old]
    assert all(any(step is one for one in case.old) or step in unlimited for step in case.new)
    assert len(case.old) == 1 or case.new_tools.count(case.old_tools[-1]) == 1


def unnecessary_addition(case: Case) -> None:
    assert case.new[-1] is case.old[-1]
    extra = [step for step in case.new if step not in case.old]
    assert [step for step in case.new if step in case.old] == list(case.old)
    _check_useless(case, extra)


def format_mismatch(case: Case) -> None:
    assert case.new_tools == case.old_tools
    refused = [index for index, step in enumerate(case.new) if not case.accepted(step, "lenient")]
    assert refused
    for index in refused:
        assert index > 0
        giver, taker, was = case.new[index - 1], case.new[index], case.old[index]
        (name,) = [name for name in was.parameters if taker.parameters[name] != was.parameters[name]]
        kind = giver.expected_outcome.removeprefix("success, with ")
        assert giver.expected_outcome != case.old[index - 1].expected_outcome
        assert giver.tool in json.dumps(taker.parameters[name])
        assert kind in json.dumps(taker.parameters[name])


def unrelated_insertion(case: Case) -> None:
    assert case.new[0] is case.old[0]
    assert case.new_tools[-1] == case.old_tools[-1]
    extra = [step for step in case.new if step.tool not in case.old_tools]
    assert [tool for tool in case.new_tools if tool in case.old_tools] == case.old_tools
    _check_useless(case, extra)
    for before, inserted, now in zip(case.new, case.new[1:], case.new[2:], strict=False):
        if inserted.tool in case.old_tools or now.tool not in case.old_tools:
            continue
        # Nothing is read from what stands before the insertion any more.
        assert f"result of {before.tool}" not in now.parameters.values()
        assert {"result_of": before.tool} not in now.parameters.values()
        assert case.accepted(now, "strict")


def _required_replaced(case: Case) -> list[tuple[str, str]]:
    pairs = case.replaced()
    assert pairs
    assert all(tool in case.required for tool, _ in pairs)
    check_references(case)
    return pairs


def _removed(case: Case) -> list[str]:
    gone = [tool for tool in case.old_tools if tool not in case.new_tools]
    assert gone
    kept = [step for step in case.old if step.tool not in gone]
    assert [step.tool for step in case.new] == [step.tool for step in kept]
    assert all(same_work(now, was) for now, was in zip(case.new, kept, strict=True))
    check_references(case)
    return gone


def _check_useless(case: Case, extra: Sequence[Step]) -> None:
    assert extra
    assert not {step.tool for step in extra} & case.useful()
    assert all(case.accepted(step, "strict") for step in extra)


DEFINITIONS: Mapping[str, Callable[[Case], None]] = {
    check.__name__: check
    for check in (
        swap,
        dependency_violation,
        semantic_similarity,
        category_mismatch,
        missing_parameters,
        type_mismatch,
        middle_step_removal,
        validation_removal,
        duplication,
        unnecessary_addition,
        format_mismatch,
        unrelated_insertion,
        semantic_mismatch,
        progressive_drift,
    )
}
