"""Plans of the benchmark and flaws in them, and whether a list of edits tells all that was done, by replaying it."""

import functools
import json
from dataclasses import replace

from resilisim import benchmark_tasks, default_library
from resilisim.tool_library.retrieval import default_retriever
from resilisim.workflows import ExactPlanner
from resilisim.workflows.flaws import FLAW_METHODS, SEVERITIES, FlawedWorkflow, Perturber
from resilisim.workflows.flaws.flaw import EDIT_KINDS, tool_similarity

LIBRARY = default_library()
VERSION = "benchmark-v1"  # whose matched tasks have one validator at most, and plans that no light flaw improves
# A prime, so that the sample does not walk in step with how the tasks lie in the benchmark.
STRIDE = 83

METHODS = [(flaw, method) for flaw, methods in FLAW_METHODS.items() for method in methods]


@functools.cache
def similarity():
    return tool_similarity(default_retriever(LIBRARY))


@functools.cache
def perturber():
    return Perturber(similarity=similarity)


@functools.cache
def planned(stride=STRIDE):
    planner = ExactPlanner()
    return tuple((task, planner.plan(task)) for task in benchmark_tasks(VERSION)[::stride])


def distinct_plans(stride):
    """Return every `stride`-th of the benchmark's required lists, one task of each."""
    planner = ExactPlanner()
    distinct = {task.required_tools: task for task in benchmark_tasks(VERSION)}
    return [(task, planner.plan(task)) for task in list(distinct.values())[::stride]]


def outcomes(flaw, method, severity, seed=0):
    for task, workflow in planned():
        yield task, perturber().perturb(workflow, task.required_tools, flaw, severity, method, seed)


@functools.cache
def flawed(flaw, method, severity):
    """Return the flawed workflows of the sample's tasks whose plans can carry the flaw."""
    found = outcomes(flaw, method, severity)
    return tuple((task, outcome) for task, outcome in found if isinstance(outcome, FlawedWorkflow))


def all_flawed(flaw, method):
    for severity in SEVERITIES:
        yield from flawed(flaw, method, severity)


# What an edit of a whole step may bring with it.
FOLLOWS_FROM_THE_TOOL = ("parameters", "requires", "alternatives", "expected_outcome")
MOVES = ("swapped", "moved")
CHANGES_WITHIN = ("parameter_dropped", "parameter_changed")
CHANGES_OF_TEXT = {"outcome_changed": "expected_outcome", "reason_changed": "reason"}


def check_edits(flawed):
    """Fail unless every edit is true and the edits together lead from the original to the flawed workflow."""
    old, new, edits = flawed.original.steps, flawed.workflow.steps, flawed.edits
    assert edits
    assert all(edit.what in EDIT_KINDS and edit.before != edit.after for edit in edits)
    assert len({(edit.what, edit.step, edit.original_step, edit.parameter) for edit in edits}) == len(edits)
    assert [edit.step for edit in edits] == sorted(edit.step for edit in edits)
    source = _sources(old, new, edits)
    for edit in edits:
        _check_claim(edit, old, new, source)
    for number, step in enumerate(new, start=1):
        origin = source[number]
        if origin is not None:
            assert step == _replayed(old[origin - 1], step, [edit for edit in edits if edit.step == number])


def _sources(old, new, edits):
    """Return, for each step of the flawed workflow, the number of the original step that it was, as the edits say."""
    source = {}
    for edit in edits:
        if edit.what in ("inserted", "duplicated"):
            source[edit.step] = None
        elif edit.what == "moved":
            source[edit.step] = edit.original_step
        elif edit.what == "swapped":
            source[edit.step], source[edit.step + 1] = edit.step + 1, edit.step
    gone = {edit.original_step for edit in edits if edit.what == "removed"} | set(source.values())
    waiting = [number for number in range(1, len(old) + 1) if number not in gone]
    for number in range(1, len(new) + 1):
        if number not in source:
            source[number] = waiting.pop(0)
    assert not waiting
    return source


def _check_claim(edit, old, new, source):
    was = old[edit.original_step - 1] if edit.original_step is not None else None
    now = new[edit.step - 1] if edit.step <= len(new) else None
    if edit.what == "removed":
        assert was is not None
        kept_before = [
            number for number in source.values() if number is not None and number < (edit.original_step or 0)
        ]
        assert (edit.before, edit.after, edit.step) == (was.tool, None, len(kept_before) + 1)
        return
    assert now is not None
    if edit.what == "undone":
        assert (edit.step, edit.original_step, edit.before, edit.after) == (edit.step, edit.step, now.tool, None)
    elif edit.what == "inserted":
        assert (edit.original_step, edit.before, edit.after) == (None, None, now.tool)
        assert all(step.tool != now.tool for step in old)
    elif edit.what == "duplicated":
        assert was is not None
        assert now == replace(was, max_tries=None, skip_from=None)
        assert (edit.before, edit.after) == (None, now.tool)
    elif edit.what in MOVES:
        first, second = (edit.before or "").split(", ")
        assert edit.after == f"{second}, {first}"
        assert _tools(old).index(first) < _tools(old).index(second)
        assert _tools(new).index(first) > _tools(new).index(second)
        assert now.tool == second
    else:
        assert source[edit.step] == edit.original_step
        assert (edit.parameter is None) == (edit.what == "replaced" or edit.what in CHANGES_OF_TEXT)


def _replayed(step, now, edits):
    """Return an original step with the edits done to it; what follows from another tool is taken from the new step."""
    for edit in edits:
        if edit.what == "replaced":
            assert (edit.before, edit.after) == (step.tool, now.tool)
            step = replace(step, tool=now.tool, **{name: getattr(now, name) for name in FOLLOWS_FROM_THE_TOOL})
        elif edit.what in CHANGES_OF_TEXT:
            field = CHANGES_OF_TEXT[edit.what]
            assert edit.before == getattr(step, field)
            step = replace(step, **{field: edit.after or ""})
        elif edit.what in CHANGES_WITHIN:
            values = dict(step.parameters)
            assert json.loads(edit.before or "") == values.pop(edit.parameter or "")
            if edit.after is not None:
                values[edit.parameter or ""] = json.loads(edit.after)
            assert (edit.after is None) == (edit.what == "parameter_dropped")
            step = replace(step, parameters=values)
    return step


def _tools(steps):
    return [step.tool for step in steps]
