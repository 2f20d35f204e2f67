"""What plans are worth: exact values, a cache that takes no plan for another, and the table of what flaws cost."""

import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim import benchmark_tasks
from resilisim.errors import InvalidInputError
from resilisim.simulator import EndRules, Law, build_problem
from resilisim.simulator.exact import obey_plan
from resilisim.simulator.exact.optimum import start_optimum
from resilisim.tool_library import Parameter, Tool, ToolLibrary
from resilisim.tool_library.parameters import check_parameters
from resilisim.workflows import ExactPlanner, Step
from resilisim.workflows import plan_value as module
from resilisim.workflows.flaws import SEVERITIES, FlawedWorkflow, Perturber
from resilisim.workflows.flaws.flaw import STRESSORS
from resilisim.workflows.plan_value import SOUND_PLAN, CostCalculator, PlanCosts, costs_of_tasks, flaw_cost_table

LIBRARY = ToolLibrary(
    [
        Tool("read", "Reads.", (Parameter("source"), Parameter("limit", "integer", required=False))),
        Tool("parse", "Parses.", (Parameter("data", "object"),)),
        Tool("write", "Writes.", dependencies=("parse",)),
    ]
)
READ, PARSE, WRITE = Step("read", {"source": "a"}), Step("parse", {"data": {}}), Step("write")


def calculator(law=None, turns=10):
    return CostCalculator(LIBRARY, law, EndRules(turns))


@pytest.mark.parametrize(
    ("steps", "obey", "coverage"),
    [
        ((), 0.0, 0.0),
        ((READ, PARSE), 1.0, 1.0),
        ((READ, WRITE, PARSE), 0.75, 0.75 + 0.25 / 2),
        ((PARSE, READ), 0.0, 0.5),
        ((READ,), 0.0, 0.5),
        ((READ, Step("parse")), 0.0, 0.5),  # a required parameter is missing: strict mode
        ((READ, Step("parse", {"data": "text"})), 0.0, 0.5),
        ((Step("read", {"source": "a", "limit": "none"}), PARSE), 0.0, 0.0),
        ((Step("read", {"source": "a", "colour": 1}), PARSE), 0.0, 0.0),
        ((READ, READ, PARSE), 1.0, 1.0),
    ],
)
def test_certain_tools_in_four_turns(steps, obey, coverage):
    # Only writing before parsing can fail, with 0.5 each time: one turn or two are left to it, the last is for parsing.
    found = calculator(Law(base=1.0, not_executed=0.5, failed=1.0, history=1.0), turns=4).costs(
        ("read", "parse"), steps
    )
    assert (found.obey, found.obey_coverage, found.deviate) == (obey, coverage, 1.0)


def test_half_of_all_calls_succeed():
    # Two steps in three turns: at least two successes among three fair throws; none 1/8, one 3/8, both 1/2.
    found = calculator(Law(base=0.5, not_executed=1.0, failed=1.0, history=1.0), turns=3).costs(
        ("read", "parse"), (READ, PARSE)
    )
    assert found.to_mapping() == {"obey": 0.5, "obey_coverage": 0.5 * 3 / 8 + 0.5, "deviate": 0.5}
    assert PlanCosts(0.25, 0.5, 0.75).price_of_obedience == 0.5


def test_the_defaults_are_the_benchmark():
    required = ("file_operations_reader", "data_processing_transformer", "file_operations_writer")
    steps = [
        Step("file_operations_reader", {"source": "a"}),
        Step("data_processing_transformer", {"data": {}, "input_format": "a", "output_format": "b"}),
        Step("file_operations_writer", {"destination": "a"}),
    ]
    found = CostCalculator().costs(required, steps)
    # The third reference task of the specification, with the rule of consecutive failures.
    assert (found.obey, found.deviate) == (pytest.approx(0.685497, abs=1e-6), pytest.approx(0.923321, abs=1e-6))


@pytest.mark.parametrize(
    ("required", "steps", "expected"),
    [
        (("read", "pars"), (), "unknown tool 'pars': did you mean 'parse'?"),
        (("read",), (Step("rite"),), "unknown tool 'rite': did you mean 'write'?"),
        ((), (READ,), "the list of required tools is empty: expected at least one tool"),
        (("read", "read"), (READ,), "required tool 'read' is listed twice: expected each tool once"),
    ],
)
def test_tools_that_do_not_exist(required, steps, expected):
    with pytest.raises(InvalidInputError) as caught:
        calculator().costs(required, steps)
    assert str(caught.value) == expected


PARAMETERS = st.sampled_from(['{"source": "a"}', '{"source": 1}', "{}", '{"data": {}}', '{"data": []}'])
PLANS = st.lists(st.tuples(st.sampled_from(LIBRARY.names), PARAMETERS), max_size=4)
LISTS = st.lists(st.sampled_from(LIBRARY.names), min_size=1, max_size=3, unique=True)


@given(work=st.lists(st.tuples(LISTS, PLANS), max_size=12), kept=st.sampled_from([1, 2, 65536]))
def test_no_plan_is_taken_for_another(work, kept):
    """Steps are made anew and dropped each time, so that their identities are given to others, which differ."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "KEPT_RESULTS", kept)
        used = calculator()
        for required, plan in [*work, *work]:
            steps = [Step(tool, json.loads(parameters)) for tool, parameters in plan]
            problem = build_problem(LIBRARY, required)
            refused = [bool(check_parameters(LIBRARY[step.tool], step.parameters, "strict")) for step in steps]
            obeyed = obey_plan(problem, [LIBRARY.index(step.tool) for step in steps], refused)
            expected = PlanCosts(obeyed.success, obeyed.coverage, start_optimum(problem))
            assert used.costs(required, steps) == expected
            del steps


def test_equal_work_is_done_once(monkeypatch):
    calls = []
    monkeypatch.setattr(module, "obey_plan", lambda *key: calls.append(key) or obey_plan(*key))
    used = calculator()
    for parameters in ({"source": "a"}, {"source": "b"}, {"source": "a", "limit": 3}):
        used.costs(("read", "parse"), (Step("read", parameters), PARSE))
    assert len(calls) == 1
    used.costs(("read", "parse"), (Step("read", {"source": 1}), PARSE))
    used.costs(("read",), (READ, PARSE))
    used.costs(("read", "parse"), (PARSE, READ))
    assert len(calls) == 4


TASKS = benchmark_tasks()[::250]


def test_a_row_is_the_mean_over_the_tasks_that_carry_the_flaw():
    done = []
    rows = flaw_cost_table(TASKS, seed=5, progress=done.append)
    assert sum(done) == len(TASKS)
    assert len(rows) == 1 + sum(len(methods) for methods in STRESSORS.values()) * len(SEVERITIES)
    planner, perturber, costs = ExactPlanner(), Perturber(), CostCalculator()
    plans = [(task.required_tools, planner.plan(task)) for task in TASKS]
    for row in rows[1::7]:
        carried = []
        for required, sound in plans:
            found = perturber.perturb(sound, required, row.flaw, row.severity, row.method, seed=5)
            if isinstance(found, FlawedWorkflow):
                carried.append((costs.costs(required, found.workflow.steps), len(found.edits)))
        assert (row.num_tasks, row.num_tasks + row.num_refused) == (len(carried), len(TASKS))
        coverage = [one.obey_coverage for one, _ in carried]
        assert row.obey == pytest.approx(statistics.fmean(one.obey for one, _ in carried), abs=1e-12)
        assert row.obey_coverage == pytest.approx(statistics.fmean(coverage), abs=1e-12)
        assert row.price == pytest.approx(statistics.fmean(one.price_of_obedience for one, _ in carried), abs=1e-12)
        assert row.edits == pytest.approx(statistics.fmean(edits for _, edits in carried))
        error = statistics.stdev(coverage) / math.sqrt(len(coverage))
        assert row.coverage_interval == pytest.approx(1.959964 * error)
    sound = rows[0]
    assert (sound.flaw, sound.method, sound.severity) == SOUND_PLAN
    assert (sound.num_tasks, sound.harmless, sound.edits) == (len(TASKS), 1.0, 0.0)
    assert sound.obey == pytest.approx(sound.sound_obey)
    assert 0.0 < sound.obey < sound.deviate


def test_a_mean_over_one_task_has_no_interval_and_over_none_no_value():
    single = next(task for task in benchmark_tasks() if len(task.required_tools) == 1)
    rows = {(row.flaw, row.method, row.severity): row for row in flaw_cost_table([single])}
    assert math.isnan(rows[SOUND_PLAN].obey_interval)
    refused = rows["missing_step", "middle_step_removal", "light"]
    assert (refused.num_tasks, refused.num_refused) == (0, 1)
    assert math.isnan(refused.obey)
    assert math.isnan(refused.harmless)


@pytest.mark.long
def test_several_processes_give_the_same_costs_in_the_same_order():
    tasks = benchmark_tasks()[:45]
    assert list(costs_of_tasks(tasks, workers=2)) == list(costs_of_tasks(tasks))
