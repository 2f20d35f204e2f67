"""Planners: the exact one agrees with the exact optimum, step by step, and gives its reasons and matches."""

import itertools
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from toy_workflows import LIBRARY, task

from resilisim.errors import ExactLimitError, InvalidInputError, MissingExtraError
from resilisim.simulator.end_rules import EndRules
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.reachable import solve_reachable
from resilisim.simulator.law import Law
from resilisim.simulator.messages import execution
from resilisim.simulator.problem import build_problem, next_state, start_state, success_probability
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library
from resilisim.tool_library.parameters import check_parameters
from resilisim.tool_library.retrieval import ToolHit
from resilisim.workflows import ExactPlanner, Step, Workflow, steps
from resilisim.workflows import planner as planner_module
from resilisim.workflows.plan_value import CostCalculator, follow_steps
from resilisim.workflows.planner import AutoPlanner, resolve_planner, similar_by_retrieval
from resilisim.workflows.steps import semantic_match_by_retrieval


def toy_lists():
    names = LIBRARY.names
    return st.lists(st.sampled_from(names), min_size=1, max_size=len(names), unique=True).map(tuple)


@given(toy_lists(), st.integers(1, 10), st.sampled_from([0, 3, 5]))
def test_every_step_of_the_path_is_an_optimal_call_and_states_its_chance(required, turns, failures):
    rules = EndRules(turns, failures, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = task(*required)
        workflow = ExactPlanner(LIBRARY, rules=rules, limits=False).plan(one)
    assert (workflow.instance_id, workflow.planner) == (one.instance_id, "exact-path")
    problem = build_problem(LIBRARY, required, Law(), rules)
    optimum, state = solve(problem), start_state(problem)
    assert workflow.predicted_success_probability == optimum.value(state)
    assert [tool for tool in workflow.tools if tool in required] == list(required)
    if workflow.predicted_success_probability == 0.0:
        assert workflow.tools == required
        return
    for step in workflow.steps:
        message = execution(step.tool)
        assert optimum.action_value(state, message) == pytest.approx(optimum.value(state), abs=1e-12)
        chance = success_probability(problem, state, LIBRARY.index(step.tool))
        assert step.confidence == pytest.approx(chance, abs=1e-15)
        assert step.requires == LIBRARY[step.tool].dependencies
        assert step.alternatives == ()
        state = next_state(problem, state, message, success=True)
    assert optimum.value(state) == 1.0


@example(("write",), 7, 5, 0.8)  # what was taken away left room for a better limit
@example(("read", "merge"), 10, 0, 1.0)  # every call is as good as any other
@given(toy_lists(), st.integers(1, 10), st.sampled_from([0, 3, 5]), st.sampled_from([0.4, 0.8, 1.0]))
def test_no_other_limit_and_no_missing_helper_would_make_the_plan_better(required, turns, failures, base):
    law, rules = Law(base=base), EndRules(turns, failures, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        workflow = ExactPlanner(LIBRARY, law, rules).plan(task(*required))
        path = ExactPlanner(LIBRARY, law, rules, limits=False).plan(task(*required))
    problem = build_problem(LIBRARY, required, law, rules)
    assert [step.tool for step in workflow.steps if step.tool in required] == list(required)

    def value(steps):
        return follow_steps(problem, steps, "ignore").success

    found = value(workflow.steps)
    assert found == pytest.approx(workflow.predicted_success_probability, abs=1e-12)
    assert value(path.steps) <= found + 1e-8
    assert found <= path.predicted_success_probability + 1e-12
    for place, step in enumerate(workflow.steps):
        if step.tool in required:
            assert not step.is_limited
            continue
        assert step.skip_from is None or step.skip_from > place + 1  # it can be tried
        for name, limit in itertools.product(("max_tries", "skip_from"), [None, *range(1, turns + 1)]):
            other = replace(step, **{name: limit})
            assert value([*workflow.steps[:place], other, *workflow.steps[place + 1 :]]) <= found + 1e-8


def test_the_benchmark_is_planned_to_within_one_percent_of_the_optimum():
    """Every tenth required list; `docs/results/plans.md` has all."""
    planner, costs = ExactPlanner(), CostCalculator()
    tasks = list({one.required_tools: one for one in benchmark_tasks()}.values())[::10]
    found = [costs.costs(one.required_tools, planner.plan(one).steps) for one in tasks]
    assert sum(one.obey for one in found) >= 0.99 * sum(one.deviate for one in found)
    assert min(one.obey / one.deviate for one in found) >= 0.93


def test_tools_outside_the_list_say_what_they_are_good_for():
    steps = ExactPlanner(LIBRARY).plan(task("write")).steps
    assert [step.tool for step in steps] == ["parse", "merge", "write"]
    effect = "success probability 0.800 with it, 0.400 without"
    assert [step.reason for step in steps] == [
        f"not on the task's list, required by merge ({effect}), a tool on which write in turn depends",
        f"not on the task's list, required by write ({effect})",
        "an operation that the task asks for",
    ]
    assert [step.confidence for step in steps] == [0.8, 0.8, 0.8]
    assert steps[2].requires == ("merge",)


def test_where_turns_are_short_a_dependency_is_left_out_and_the_reason_says_so():
    (step,) = ExactPlanner(LIBRARY, rules=EndRules(max_turns=1)).plan(task("write")).steps
    asked_for, left_out = step.reason.split("; ")
    assert asked_for == "an operation that the task asks for"
    assert left_out == "running merge first would not pay (success probability 0.400 without)"
    assert step.confidence == 0.4


def test_without_enough_turns_the_plan_is_the_list_and_predicts_nothing():
    workflow = ExactPlanner(LIBRARY, rules=EndRules(max_turns=2)).plan(task("read", "fetch", "write"))
    assert workflow.tools == ("read", "fetch", "write")
    assert workflow.predicted_success_probability == 0.0
    assert [step.confidence for step in workflow.steps] == [0.8, 0.8, 0.4]


def test_each_required_list_is_solved_once_while_it_is_kept(monkeypatch):
    solved = []
    monkeypatch.setattr(planner_module, "solve", lambda problem: solved.append(problem) or solve(problem))
    monkeypatch.setattr(planner_module, "KEPT_PLANS", 2)
    planner = ExactPlanner(LIBRARY)
    for name in ("read", "fetch", "read", "parse", "read", "fetch"):
        planner.plan(task(name))
    names = [problem.required_tools[0] for problem in solved]
    # fetch was the one used longest ago when parse came.
    assert names == ["read", "fetch", "parse", "fetch"]


def test_alternatives_are_asked_for_once_for_each_tool():
    asked = []

    class Retriever:
        def similar_tools(self, name, count):
            asked.append((name, count))
            return [ToolHit(f"like_{name}_{number}", 0.5) for number in range(count)]

    planner = ExactPlanner(LIBRARY, similar=similar_by_retrieval(Retriever(), 2))
    for required in (("read",), ("read", "write"), ("write", "read")):
        for step in planner.plan(task(*required)).steps:
            assert step.alternatives == (f"like_{step.tool}_0", f"like_{step.tool}_1")
    assert sorted(asked) == [(name, 2) for name in ("merge", "parse", "read", "write")]


class RequiredOrder:
    """The minimal planner of the protocol's docstring."""

    name = "required-order"

    def plan(self, one):
        return Workflow(one.instance_id, tuple(Step(tool) for tool in one.required_tools), self.name, 0.0)


def test_auto_is_exact_where_it_can_be_and_falls_back_where_it_cannot(monkeypatch):
    auto = resolve_planner("auto", LIBRARY, fallback=RequiredOrder())
    assert isinstance(auto, AutoPlanner)
    assert auto.plan(task("read")) == ExactPlanner(LIBRARY).plan(task("read"))

    def too_large(problem):
        raise ExactLimitError("too large")

    monkeypatch.setattr(planner_module, "solve", too_large)
    assert auto.plan(task("write")).planner == "required-order"
    with pytest.raises(ExactLimitError, match=r"^too large$"):
        AutoPlanner(ExactPlanner(LIBRARY)).plan(task("write"))


def test_a_list_without_room_for_its_optimum_is_planned_from_what_is_required(monkeypatch):
    one = benchmark_tasks()[2]
    exact = ExactPlanner().plan(one).predicted_success_probability
    monkeypatch.setattr(planner_module, "solve", lambda problem: solve_reachable(problem, max_states=1))
    problem = build_problem(default_library(), one.required_tools)
    assert solve_reachable(problem, max_states=1).start_gap > 0.0
    assert ExactPlanner(limits=False).plan(one).tools == one.required_tools
    plan = ExactPlanner().plan(one)
    assert [tool for tool in plan.tools if tool in one.required_tools] == list(one.required_tools)
    assert 0.9 * exact < plan.predicted_success_probability <= exact


def test_auto_makes_its_fallback_when_it_is_needed(monkeypatch):
    made = []

    def make():
        made.append(1)
        if len(made) == 1:
            raise InvalidInputError("nothing there")
        return RequiredOrder()

    def too_large(problem):
        if problem.required_tools == ("write",):
            raise ExactLimitError("too large")
        return solve(problem)

    monkeypatch.setattr(planner_module, "solve", too_large)
    auto = AutoPlanner(ExactPlanner(LIBRARY), make)
    assert auto.plan(task("read")).planner == "exact"
    assert made == []
    with pytest.raises(ExactLimitError, match=r"^too large; a trained policy could plan it, but nothing there$"):
        auto.plan(task("write"))
    assert [auto.plan(task("write")).planner for _ in range(2)] == ["required-order"] * 2
    assert len(made) == 2


class Prefixed:
    """A planner whose name has two parts."""

    def __init__(self, argument, library, law, rules, similar, match):
        self.name = f"policy:{argument}"
        self.options = (library, law, rules, similar, match)


def test_planners_of_higher_floors_are_imported_when_they_are_made(monkeypatch, tmp_path):
    monkeypatch.setattr(planner_module, "POLICY_PLANNER", (__name__, "Prefixed"))
    rules, law = EndRules(3), Law(base=0.5)
    made = resolve_planner("policy:runs/1:2", LIBRARY, law, rules, similar=list, match=max)
    assert made.name == "policy:runs/1:2"
    assert made.options == (LIBRARY, law, rules, list, max)
    (tmp_path / "lacking_something.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(planner_module, "POLICY_PLANNER", ("lacking_something", "Planner"))
    with pytest.raises(MissingExtraError) as caught:
        resolve_planner("policy:default")
    assert str(caught.value) == (
        "planner 'policy:default' cannot be loaded (No module named 'no_such_package'): "
        "pip install -c constraints.txt '.[train]' (in a clone of ResiliSim)"
    )


def test_planners_by_name():
    assert [resolve_planner(name, LIBRARY).name for name in ("exact", "exact-path")] == ["exact", "exact-path"]
    with pytest.raises(InvalidInputError, match="unknown planner 'exakt': did you mean 'exact'"):
        resolve_planner("exakt")
    with pytest.raises(InvalidInputError, match=r"expected one of exact, auto, exact-path, policy:DIR$"):
        resolve_planner("x")
    with pytest.raises(InvalidInputError, match=r"^unknown planner 'polcy:runs': did you mean 'policy:DIR'\?$"):
        resolve_planner("polcy:runs")
    with pytest.raises(InvalidInputError, match=r"names no checkpoint: expected policy:DIR or policy:default$"):
        resolve_planner("policy:")


def test_planned_parameters_pass_the_strict_check_for_every_shipped_tool():
    library = default_library()
    planner = ExactPlanner(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for first, second in itertools.pairwise([*library.names, library.names[0]]):
            one = Task.from_mapping({"required_tools": [first, second], "inputs": {"source": 5}}, library)
            for step in planner.plan(one).steps:
                assert check_parameters(library[step.tool], step.parameters, "strict") == []


class TableRetriever:
    """Knows the similarities of some clauses to the five tools of the toy library."""

    library = LIBRARY
    table = {  # noqa: RUF012
        "Read it": [0.9, 0.1, 0.0, -0.2, 0.31249],
        "Write it": [0.2, 0.3, -0.5, -0.1, 0.8],
        "": [-0.0001, 0.0, 0.0, 0.0, 0.0],
    }

    def __init__(self):
        self.asked = []

    def similarities(self, queries):
        self.asked.append(list(queries))
        return np.array([self.table[query] for query in queries], np.float32)


def test_a_tool_is_scored_by_its_best_clause():
    match = semantic_match_by_retrieval(TableRetriever())
    assert match("Read it. Write it.", ["read", "write", "merge", "fetch"]) == [0.9, 0.8, -0.1, 0.3]
    assert match("Read it.", ["write"]) == [0.312]


def test_a_description_without_clauses_is_taken_as_a_whole():
    score = semantic_match_by_retrieval(TableRetriever())("", ["read"])
    assert [str(value) for value in score] == ["0.0"]  # not -0.0


def test_clauses_are_looked_at_in_batches(monkeypatch):
    monkeypatch.setattr(steps, "CLAUSES_AT_ONCE", 2)
    retriever = TableRetriever()
    match = semantic_match_by_retrieval(retriever)
    assert match("Read it. Write it. Read it. Read it. Write it.", ["fetch"]) == [0.3]
    assert retriever.asked == [["Read it", "Write it"], ["Read it", "Read it"], ["Write it"]]


def test_a_tool_of_another_library_is_named():
    with pytest.raises(InvalidInputError, match="'reed'"):
        semantic_match_by_retrieval(TableRetriever())("Read it.", ["reed"])


def test_a_planner_fills_the_match_from_the_text_of_each_task():
    asked = []

    def match(description, tools):
        asked.append((description, list(tools)))
        return [0.1 * place + (description == "B") for place in range(len(tools))]

    planner = resolve_planner("auto", LIBRARY, match=match)
    plans = [planner.plan(task("read", "write", description=text)) for text in ("A", "B")]
    tools = list(plans[0].tools)
    assert asked == [("A", tools), ("B", tools)]
    for plan, first in zip(plans, (0.0, 1.0), strict=True):
        assert [step.semantic_match for step in plan.steps] == [0.1 * place + first for place in range(len(tools))]
    plain = ExactPlanner(LIBRARY).plan(task("read", "write"))
    assert {step.semantic_match for step in plain.steps} == {None}
