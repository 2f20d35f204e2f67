"""Costs of plans: exact values, and a cache that never takes one plan for another."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.simulator import BenchmarkLaw, EndRules, build_problem
from resilisim.simulator.exact import known_probabilities, obey_plan
from resilisim.tool_library import Parameter, Tool, ToolLibrary
from resilisim.tool_library.parameters import check_parameters
from resilisim.workflows import Step
from resilisim.workflows import plan_value as module
from resilisim.workflows.plan_value import CostCalculator, PlanCosts

CERTAIN = BenchmarkLaw(base=1.0)
HALF = BenchmarkLaw(0.5, 1.0, 1.0, 1.0)
LIBRARY = ToolLibrary(
    [
        Tool("read", "Reads.", (Parameter("source"), Parameter("limit", "integer", required=False))),
        Tool("parse", "Parses.", (Parameter("data", "object"),)),
        Tool("write", "Writes.", dependencies=("parse",)),
    ]
)
READ, PARSE, WRITE = Step("read", {"source": "a"}), Step("parse", {"data": {}}), Step("write")


def calculator(law: BenchmarkLaw = CERTAIN, turns: int = 10, library: ToolLibrary = LIBRARY) -> CostCalculator:
    return CostCalculator(library, law, EndRules(turns))


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
    found = calculator(BenchmarkLaw(1.0, 0.5, 1.0, 1.0), turns=4).costs(("read", "parse"), steps)
    assert (found.obey, found.obey_coverage, found.deviate) == (obey, coverage, 1.0)


def test_half_of_all_calls_succeed():
    # Two steps in three turns: at least two successes among three fair throws.
    found = calculator(HALF, turns=3).costs(("read", "parse"), (READ, PARSE))
    assert found.obey == 0.5
    # Shares: none 1/8, one 3/8, both 1/2.
    assert found.obey_coverage == 0.5 * 3 / 8 + 0.5
    assert found.deviate == 0.5
    assert found.price_of_obedience == 0.0
    assert found.to_mapping() == {"obey": 0.5, "obey_coverage": 0.6875, "deviate": 0.5}


def test_the_price_of_obedience():
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
    assert found.obey == pytest.approx(0.685497, abs=1e-6)
    assert found.deviate == pytest.approx(0.923321, abs=1e-6)


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


def by_definition(required: list[str], steps: list[Step], law: BenchmarkLaw) -> PlanCosts:
    problem = build_problem(LIBRARY, required, law, EndRules())
    refused = [bool(check_parameters(LIBRARY[step.tool], step.parameters, "strict")) for step in steps]
    obeyed = obey_plan(problem, [LIBRARY.index(step.tool) for step in steps], refused)
    return PlanCosts(obeyed.success, obeyed.coverage, known_probabilities(problem))


@given(work=st.lists(st.tuples(LISTS, PLANS), max_size=12), kept=st.sampled_from([1, 2, 65536]))
def test_no_plan_is_taken_for_another(work, kept):
    """Steps are made anew and dropped each time, so that their identities are given to others, which differ."""
    law = BenchmarkLaw()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "KEPT_RESULTS", kept)
        used = CostCalculator(LIBRARY, law)
        for required, plan in [*work, *work]:
            steps = [Step(tool, json.loads(parameters)) for tool, parameters in plan]
            assert used.costs(required, steps) == by_definition(required, steps, law)
            del steps


def test_identities_that_come_again(monkeypatch):
    monkeypatch.setattr(module, "KEPT_RESULTS", 1)
    used, identities, repeated = calculator(), set(), 0
    for number in range(200):
        step = Step("read", {"source": "a"} if number % 2 else {"source": 1})
        repeated += id(step) in identities
        identities.add(id(step))
        assert used.costs(("read",), (step, PARSE)).obey == number % 2
        del step
    assert repeated > 0


def test_equal_work_is_done_once(monkeypatch):
    calls = []

    def counted(*key):
        calls.append(key)
        return obey_plan(*key)

    monkeypatch.setattr(module, "obey_plan", counted)
    used = calculator()
    for parameters in ({"source": "a"}, {"source": "b"}, {"source": "a", "limit": 3}):
        used.costs(("read", "parse"), (Step("read", parameters), PARSE))
    assert len(calls) == 1
    used.costs(("read", "parse"), (Step("read", {"source": 1}), PARSE))
    used.costs(("read",), (READ, PARSE))
    used.costs(("read", "parse"), (PARSE, READ))
    assert len(calls) == 4


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "KEPT_RESULTS", 3)
    used = calculator()
    for required in (("read",), ("parse",), ("write",), ("read", "parse"), ("parse", "read")):
        for step in (READ, PARSE, WRITE, Step("read"), Step("parse")):
            used.costs(required, (step,))
    sizes = (used._ceiling.cache_info().currsize, used._obeyed.cache_info().currsize, len(used._refused))
    assert sizes == (3, 3, 3)


def test_libraries_with_the_same_names_do_not_meet():
    strict = ToolLibrary([Tool("read", "Reads.", (Parameter("source", constraints={"minLength": 5}),))])
    loose = ToolLibrary([Tool("read", "Reads.", (Parameter("source"),))])
    assert calculator(library=strict).costs(("read",), (READ,)).obey == 0.0
    assert calculator(library=loose).costs(("read",), (READ,)).obey == 1.0
