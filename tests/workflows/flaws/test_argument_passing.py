"""Argument passing, the stressor beside the seven flaws: each kind is what it says, and what it costs is exact."""

import functools
import json
from dataclasses import replace

import numpy as np
import pytest
from flaw_samples import LIBRARY, check_edits, perturber, planned
from hypothesis import given
from hypothesis import strategies as st

from resilisim import benchmark_tasks, explore
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.attribution import sound_steps
from resilisim.evaluation.episode.play import play_episode
from resilisim.policies.registry import make_policy
from resilisim.simulator import EndRules, Law
from resilisim.tool_library import Parameter, Tool, ToolLibrary
from resilisim.tool_library.parameters import accepts
from resilisim.workflows import ExactPlanner, PlannedStep, Step, Workflow
from resilisim.workflows.argument_references import argument_references, by_number, undone_steps
from resilisim.workflows.flaws import FLAW_TYPES, SEVERITIES, FlawedWorkflow, Perturber
from resilisim.workflows.flaws.flaw import ARGUMENT_PASSING, STRESSORS, Edit, Flaw, FlawRefusal, PlanView
from resilisim.workflows.flaws.perturber import flaw_problem
from resilisim.workflows.plan_value import CostCalculator, costs_of_tasks
from resilisim.workflows.prompts import parse_steps, render_prompt

METHODS = STRESSORS[ARGUMENT_PASSING]
BREAKING = [method for method in METHODS if method != "nested_reference"]
CALCULATOR = CostCalculator()


@functools.cache
def flawed(method, severity, seed=0):
    outcomes = (
        (task, perturber().perturb(workflow, task.required_tools, ARGUMENT_PASSING, severity, method, seed))
        for task, workflow in planned()
    )
    return [(task, outcome) for task, outcome in outcomes if isinstance(outcome, FlawedWorkflow)]


def test_it_stands_beside_the_seven_flaws_and_is_never_drawn_among_them():
    assert tuple(STRESSORS) == (*FLAW_TYPES, ARGUMENT_PASSING)
    assert ARGUMENT_PASSING not in FLAW_TYPES


@pytest.mark.parametrize("method", METHODS)
def test_each_kind_is_what_it_says(method):
    for severity in SEVERITIES:
        found = flawed(method, severity)
        assert len(found) > 0.8 * len(planned())
        for task, one in found:
            check_edits(one)
            assert str(one.flaw) == f"argument_passing/{method}/{severity}"
            parameters = [step.parameters for step in one.workflow.steps]
            undone = undone_steps(parameters)
            changed = {(edit.step - 1, edit.parameter) for edit in one.edits if edit.what == "parameter_changed"}
            assert {edit.step - 1 for edit in one.edits if edit.what == "undone"} == set(undone)
            assert all(accepts(LIBRARY[step.tool], step.parameters, "strict") for step in one.workflow.steps)
            for index, name in changed:
                (reference,) = argument_references(parameters[index][name])
                before = argument_references(one.original.steps[index].parameters[name])[0].number
                assert {
                    "malformed_reference": reference.number is None,
                    "nested_reference": reference.number == before and not reference.is_whole,
                    "missing_reference": reference.number is not None and reference.number > len(parameters),
                    "forward_reference": index + 1 < (reference.number or 0) <= len(parameters),
                }[method]
                assert (index in undone) == (method != "nested_reference")
            assert one.workflow.tools == one.original.tools == planned_tools(task)


@functools.cache
def planned_tools(task):
    return next(workflow.tools for known, workflow in planned() if known is task)


@pytest.mark.parametrize("method", METHODS)
def test_severities_extend_each_other_and_seeds_choose_anew(method):
    for (_, light), (_, moderate), (_, severe) in zip(*(flawed(method, name) for name in SEVERITIES), strict=True):
        sets = [{edit for edit in one.edits if edit.what == "parameter_changed"} for one in (light, moderate, severe)]
        assert sets[0] <= sets[1] <= sets[2]
    assert flawed(method, "light") == flawed.__wrapped__(method, "light")
    pairs = zip(flawed(method, "light"), flawed(method, "light", 1), strict=True)
    assert np.mean([one.workflow != other.workflow for (_, one), (_, other) in pairs]) > 0.4


@pytest.mark.parametrize("method", METHODS)
def test_who_follows_it_loses_what_cannot_be_done_and_nothing_where_it_can(method):
    coverage = {severity: [] for severity in SEVERITIES}
    for severity in SEVERITIES:
        for task, one in flawed(method, severity):
            by_name = next(workflow for known, workflow in planned() if known is task)
            sound = CALCULATOR.costs(task.required_tools, one.original.steps)
            assert sound == CALCULATOR.costs(task.required_tools, by_name.steps)
            costs = CALCULATOR.costs(task.required_tools, one.workflow.steps)
            if method == "nested_reference":
                assert costs == sound
                continue
            assert costs.obey < sound.obey
            assert costs.deviate == sound.deviate
            undone = {edit.before for edit in one.edits if edit.what == "undone"}
            assert (costs.obey == 0.0) == bool(undone & set(task.required_tools))
            left = [step for step in by_name.steps if step.tool not in undone]
            assert costs == CALCULATOR.costs(task.required_tools, left)
            coverage[severity].append(costs.obey_coverage)
    if method != "nested_reference":
        light, moderate, severe = map(np.mean, coverage.values())
        assert light > moderate > severe


SMALL = ToolLibrary(
    [
        Tool("read", "Reads.", (Parameter("source"),)),
        Tool("parse", "Parses.", (Parameter("data", "object"),)),
        Tool("write", "Writes.", (Parameter("data", "object"),), dependencies=("parse",)),
    ]
)
READ, PARSE = Step("read", {"source": "a"}), Step("parse", {"data": {"result_of": "step 1"}})


@pytest.mark.parametrize(
    ("write", "required", "obey", "coverage"),
    [
        ({"result_of": "step 2"}, ("read", "parse", "write"), 1.0, 1.0),
        ({"rows": [{"result_of": "step 2"}]}, ("read", "parse", "write"), 1.0, 1.0),
        ({"result_of": "step 4"}, ("read", "parse", "write"), 0.0, 2 / 3),
        ({"result_of": "step"}, ("read", "parse"), 1.0, 1.0),  # what nobody asked for
        ({"result_of": "step 3"}, ("write",), 0.0, 0.0),
    ],
)
def test_prices_of_small_plans(write, required, obey, coverage):
    costs = CostCalculator(SMALL, Law("certain", base=1.0, not_executed=1.0, failed=1.0), EndRules(5))
    found = costs.costs(required, (READ, PARSE, Step("write", {"data": write})))
    assert (found.obey, found.obey_coverage, found.deviate) == (pytest.approx(obey), pytest.approx(coverage), 1.0)


def test_a_helper_that_cannot_be_done_leaves_the_law_without_it():
    costs = CostCalculator(SMALL)
    helped = costs.costs(("write",), (READ, PARSE, Step("write", {"data": {}})))
    broken = (READ, replace(PARSE, parameters={"data": {"result_of": "step 3"}}), Step("write", {"data": {}}))
    assert costs.costs(("write",), broken) == costs.costs(("write",), (READ, Step("write", {"data": {}})))
    assert costs.costs(("write",), broken).obey < helped.obey


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", ["markdown", "xml", "compact"])
def test_a_plan_reads_back_from_every_form_of_prompt_with_its_references(method, form):
    options = {"style": "compact"} if form == "compact" else {"plan_format": form}
    for task, one in flawed(method, "severe")[::12]:
        text = render_prompt(task, "flawed", one.workflow, **options).text
        assert [(step.tool, step.parameters) for step in parse_steps(text)] == [
            (step.tool, step.parameters or None) for step in one.workflow.steps
        ]


@pytest.mark.parametrize("method", METHODS)
def test_the_plan_follower_succeeds_as_often_as_it_costs(method):
    prompt = f"flawed:argument_passing:light:{method}"
    for task, one in flawed(method, "light")[5:60:20]:
        row = explore("plan-follower", [task], prompt, parameters="strict").rows[0]
        assert row.is_exact
        assert row.low == pytest.approx(CALCULATOR.costs(task.required_tools, one.workflow.steps).obey, abs=1e-9)


@pytest.mark.long
def test_whoever_mends_a_reference_loses_nothing():
    for method in METHODS:
        task, _ = flawed(method, "severe")[7]
        rows = [
            explore("repairing-follower", [task], prompt, parameters="strict").rows[0]
            for prompt in ("optimal", f"flawed:argument_passing:severe:{method}")
        ]
        assert rows[1].low == pytest.approx(rows[0].low, abs=1e-9)


def test_a_step_that_is_passed_over_is_logged_with_its_reason(caplog):
    caplog.set_level("WARNING", "resilisim.policies")
    policy = make_policy("plan-follower")
    prompt = '1. Execute read\n2. Execute parse\n   - Parameters: {"data": {"result_of": "step 5"}}'
    policy.reset(prompt, {"turns_left": 5})
    assert "step 2, parse: 'data' refers to step 5, which does not exist" in caplog.text
    assert policy.act(prompt, {"turns_left": 5}) == "<tool_call>read</tool_call>"
    done = {"event": "execute", "execution": {"tool": "read", "success": True}, "turns_left": 4}
    assert policy.act("reply", done) == "<finish/>"


def test_of_a_user_that_speaks_of_steps_nothing_is_a_reference():
    prompt = 'The result of step 5 is needed.\n\n1. Execute read\n   - Parameters: {"source": "the result of step 5"}'
    policy = make_policy("plan-follower")
    policy.reset(prompt, {"turns_left": 5})
    assert policy.act(prompt, {"turns_left": 5}) == '<tool_call>read {"source": "the result of step 5"}</tool_call>'


@pytest.mark.parametrize("method", BREAKING)
def test_losses_of_who_follows_it_are_put_down_to_the_plan(method):
    """Where no tool ever fails a sound plan costs nothing, so all that is lost is lost by following the flawed one."""
    certain = {"base": 1.0, "not_executed": 1.0, "failed": 1.0}
    env = ConversationEnv(max_turns=7, parameters="strict", search=lambda query, count: [], **certain)
    planner = ExactPlanner(env.library, env.law, env.rules)
    obeyed = 0
    for task in benchmark_tasks()[5::360]:
        found = Perturber(env.library, env.rules).perturb(
            planner.plan(task), task.required_tools, ARGUMENT_PASSING, "severe", method
        )
        if isinstance(found, FlawedWorkflow):
            prompt = f"flawed:argument_passing:severe:{method}"
            record = play_episode(env, make_policy("plan-follower"), task, prompt, 1)
            assert set(record["losses"]) <= {"obeyed_flaw"}
            obeyed += bool(record["losses"])
            steps = [PlannedStep(step.tool, None, step.parameters) for step in found.workflow.steps]
            assert [step.tool for step in sound_steps(steps, found.flaw_mapping()["edits"])] == list(
                found.original.tools
            )
    assert obeyed > 0


SOUND = by_number(
    Workflow(
        "t",
        (READ, Step("parse", {"data": {"result_of": "read"}}), Step("write", {"data": {"result_of": "parse"}})),
        "hand",
        0.5,
    )
)
EDIT = Edit("parameter_changed", 1, 1, "data", "1", "2")


@pytest.mark.parametrize(
    ("method", "parse", "expected"),
    [
        ("malformed_reference", {"data": {"result_of": "step 9"}}, "holds no malformed reference"),
        ("nested_reference", {"data": {"result_of": "step"}}, "holds no nested reference"),
        ("nested_reference", {"data": {"x": {"result_of": "step 3"}}}, "holds no nested reference"),
        ("missing_reference", {"data": {"result_of": "step 3"}}, "holds no missing reference"),
        ("forward_reference", {"data": {"result_of": "step 2"}}, "holds no forward reference"),
        ("forward_reference", {"data": {"result_of": "step 4"}}, "holds no forward reference"),
        ("missing_reference", {"data": {"rows": 1}}, "changes more than references"),
        ("missing_reference", {"data": "result of step 7"}, "is refused for more than its references"),
        ("missing_reference", {}, "passes other parameters"),
        ("missing_reference", {"data": {"result_of": "step 1"}}, "is equal to its original"),
    ],
)
def test_forgeries_are_found_out(method, parse, expected):
    steps = (SOUND.steps[0], replace(SOUND.steps[1], parameters=parse), SOUND.steps[2])
    forged = FlawedWorkflow(SOUND, replace(SOUND, steps=steps), Flaw(ARGUMENT_PASSING, method, "light"), (EDIT,))
    view = PlanView(SOUND.steps, ("parse", "write"), SMALL, lambda: None, 10)
    assert expected in (flaw_problem(forged, view) or "")


def test_a_style_without_parameters_shows_no_such_flaw_and_says_so():
    env = ConversationEnv(prompt_style="terse", search=lambda query, count: [])
    task = flawed("missing_reference", "severe")[0][0]
    for flaw in ("argument_passing", "parameter_error"):
        with pytest.raises(InvalidInputError, match="the terse style shows no parameters"):
            env.prompt(task, f"flawed:{flaw}:severe")
    assert env.prompt(task, "flawed:missing_step:severe").flaw is not None


def test_plans_that_pass_nothing_on_refuse_it_and_say_why():
    workflow = Workflow("t", (Step("network_fetcher", {"source": "a"}),), "x", 1.0)
    alone = perturber().perturb(workflow, ["network_fetcher"], ARGUMENT_PASSING)
    assert isinstance(alone, FlawRefusal)
    assert str(alone).startswith("t cannot carry argument_passing (any method): no step passes on the result")
    broken = Workflow("t", (READ, replace(PARSE, parameters={"data": {"result_of": "step 7"}})), "x", 1.0)
    refused = Perturber(SMALL).perturb(broken, ["parse"], ARGUMENT_PASSING)
    assert "its step 2 cannot be done as it is: 'data' refers to step 7, which does not exist" in str(refused)


@given(
    forms=st.lists(st.sampled_from(["data", "source", "none"]), min_size=2, max_size=6),
    severity=st.sampled_from(SEVERITIES),
    method=st.sampled_from([None, *METHODS]),
    seed=st.integers(0, 50),
)
def test_any_plan_that_passes_results_on_carries_it(forms, severity, method, seed):
    library = ToolLibrary(
        Tool(f"t{place}", "A tool.", (Parameter("data", "object", required=False), Parameter("source", required=False)))
        for place in range(len(forms))
    )
    values = {
        "data": lambda name: {"data": {"result_of": name}},
        "source": lambda name: {"source": f"result of {name}"},
    }
    steps = tuple(
        Step(f"t{place}", values[form](f"t{place - 1}") if place and form in values else {})
        for place, form in enumerate(forms)
    )
    workflow = Workflow("t", steps, "drawn", 0.5)
    one = Perturber(library).perturb(workflow, ["t1"], ARGUMENT_PASSING, severity, method, seed)
    passing = [place for place, form in enumerate(forms) if place and form in values]
    if not passing or (method == "forward_reference" and passing == [len(forms) - 1]):
        assert isinstance(one, FlawRefusal)
        return
    assert isinstance(one, FlawedWorkflow)
    check_edits(one)
    assert json.loads(json.dumps(one.flaw_mapping())) == one.flaw_mapping()
    assert one == Perturber(library).perturb(workflow, ["t1"], ARGUMENT_PASSING, severity, method, seed)


def test_the_table_of_costs_holds_it():
    costs = next(iter(costs_of_tasks(benchmark_tasks()[3:4])))
    keys = {key for key in costs.flawed if key[0] == ARGUMENT_PASSING}
    assert keys == {(ARGUMENT_PASSING, method, severity) for method in METHODS for severity in SEVERITIES}
    assert costs.flawed[ARGUMENT_PASSING, "nested_reference", "severe"][0] == costs.sound
    settings = EnvironmentSettings(parameters="strict")
    assert settings.perturber(LIBRARY).perturb(planned()[0][1], planned()[0][0].required_tools, ARGUMENT_PASSING)
