"""The verification finds out workflows that do not have the flaw in whose name they come."""

from dataclasses import replace

import pytest
from flaw_samples import LIBRARY, METHODS, flawed, similarity

from resilisim.workflows import Step, Workflow
from resilisim.workflows.flaws import FLAW_METHODS, FlawedWorkflow, Perturber
from resilisim.workflows.flaws import perturber as module
from resilisim.workflows.flaws.flaw import Change, Edit, Flaw, PlanView
from resilisim.workflows.flaws.perturber import flaw_problem
from resilisim.workflows.steps import step_parameters

TOOLS = FETCHER, PARSER, VALIDATOR, TRANSFORMER, AGGREGATOR, POSTER = (
    "network_fetcher",
    "data_processing_parser",
    "data_processing_validator",
    "data_processing_transformer",
    "data_processing_aggregator",
    "network_poster",
)
# Parser and aggregator are there because others depend on them; the fetcher stands alone.
REQUIRED = (FETCHER, VALIDATOR, TRANSFORMER, POSTER)
SOUND = Workflow(
    "t",
    tuple(
        Step(name, step_parameters(LIBRARY[name], {}, before), expected_outcome="success, with data")
        for name, before in zip(TOOLS, (None, *TOOLS), strict=False)
    ),
    "hand",
    0.5,
)
READER = Step("file_operations_reader", {"source": "a"})
CALCULATOR = Step("computation_calculator", {"expression": "1"})
EDIT = Edit("swapped", 1, 1, None, "a", "b")

Steps = tuple[Step, ...]


def view(workflow, required):
    return PlanView(workflow.steps, required, LIBRARY, similarity, 10)


def step(tool):
    return next(one for one in SOUND.steps if one.tool == tool)


def without(*tools):
    return tuple(one for one in SOUND.steps if one.tool not in tools)


def with_step(place, added):
    return (*SOUND.steps[:place], added, *SOUND.steps[place:])


def changed(name, /, **fields):
    return tuple(replace(one, **fields) if one.tool == name else one for one in SOUND.steps)


def reordered(*tools):
    """Return the steps with the named ones, which keep their places, in that order."""
    waiting = list(tools)
    return tuple(step(waiting.pop(0)) if one.tool in tools else one for one in SOUND.steps)


def problem(steps, method, edits=(EDIT,)):
    flaw = next(flaw for flaw, methods in FLAW_METHODS.items() if method in methods)
    forged = FlawedWorkflow(SOUND, replace(SOUND, steps=steps), Flaw(flaw, method, "light"), edits)
    return flaw_problem(forged, view(SOUND, REQUIRED))


def values(tool, **given):
    return {**step(tool).parameters, **given}


def less(tool, *names):
    return {name: value for name, value in step(tool).parameters.items() if name not in names}


FORGERIES = [
    ("swap", reordered(PARSER, FETCHER), "breaks no order that mattered"),
    ("swap", without(PARSER), "does not hold the same steps"),
    ("swap", changed(PARSER, reason="x"), "does not hold the same steps"),
    ("swap", (*SOUND.steps[:5], SOUND.steps[4]), "does not hold the same steps"),
    ("swap", reordered(VALIDATOR, FETCHER, PARSER), "swaps more than neighbours"),
    ("dependency_violation", reordered(TRANSFORMER, VALIDATOR), "breaks no order that mattered"),
    ("semantic_similarity", changed(PARSER, tool="data_processing_filter"), "keeps every required tool"),
    ("semantic_similarity", changed(POSTER, reason="x"), "changes more than tools"),
    (
        "middle_step_removal",
        tuple(replace(one, reason="x") for one in without(PARSER)),
        "changes more than it leaves out",
    ),
    ("semantic_similarity", without(POSTER), "has another number of steps"),
    ("category_mismatch", changed(POSTER, tool="network_router"), "keeps a category"),
    ("semantic_mismatch", changed(VALIDATOR, tool="network_validator"), "puts in a tool that does the same"),
    ("progressive_drift", changed(AGGREGATOR, tool="utility_helper"), "keeps every required tool"),
    ("missing_parameters", changed(FETCHER, parameters=values(FETCHER, timeout=5)), "no call is refused"),
    ("missing_parameters", changed(FETCHER, parameters=values(FETCHER, source=5)), "no call is refused"),
    ("missing_parameters", changed(FETCHER, tool="network_router", parameters={}), "changes more than parameters"),
    ("missing_parameters", without(FETCHER), "changes more than parameters"),
    ("type_mismatch", changed(FETCHER, parameters=values(FETCHER, timeout=5)), "no call is refused"),
    ("type_mismatch", changed(FETCHER, parameters=less(FETCHER, "source")), "no call is refused"),
    ("type_mismatch", changed(FETCHER, parameters={"source": 5}, reason="x"), "changes more than parameters"),
    ("middle_step_removal", without(PARSER, POSTER), "lacks an end of the original"),
    ("middle_step_removal", (*without(FETCHER), step(FETCHER)), "is not the original with steps left out"),
    ("middle_step_removal", (*without(PARSER, FETCHER), READER), "is not the original with steps left out"),
    ("validation_removal", without(TRANSFORMER), "lacks nothing that was needed"),
    ("duplication", with_step(2, READER), "adds a step that it did not hold"),
    ("duplication", with_step(2, replace(step(FETCHER), reason="x")), "adds a step that it did not hold"),
    ("duplication", reordered(PARSER, FETCHER), "is not the original with steps added"),
    ("duplication", without(PARSER), "is not the original with steps added"),
    ("unnecessary_addition", with_step(2, step(FETCHER)), "adds network_fetcher, which is of use"),
    ("format_mismatch", changed(FETCHER, expected_outcome="success, with a zip archive"), "no call is refused"),
    ("format_mismatch", changed(PARSER, parameters=less(PARSER, "source")), "no call is refused"),
    ("format_mismatch", changed(PARSER, parameters={"source": 5}, reason="x"), "changes more than"),
    ("format_mismatch", without(PARSER), "has another number of steps"),
    ("unrelated_insertion", with_step(2, step(FETCHER)), "is not the original with steps added"),
    ("unrelated_insertion", with_step(0, READER), "inserts nothing between its steps"),
    ("unrelated_insertion", without(PARSER), "is not the original with steps added"),
]


@pytest.mark.parametrize(("method", "steps", "expected"), FORGERIES)
def test_forgeries_are_found_out(method, steps, expected):
    found = problem(steps, method)
    assert found is not None
    assert expected in found


def test_every_method_is_forged_and_a_flawless_or_empty_workflow_has_no_flaw():
    assert {method for method, _, _ in FORGERIES} == {method for _, method in METHODS}
    for _, method in METHODS:
        assert problem(SOUND.steps, method) == "is equal to its original"
        assert problem((), method) == "has no steps"
        assert problem(without(FETCHER), method, ()) == "lists no edits"


@pytest.mark.parametrize("flaw", list(FLAW_METHODS))
def test_a_flaw_does_not_pass_under_the_name_of_another_type(flaw):
    # Inserted useless steps are redundant and unrelated alike, and similar tools are a misuse and a drift alike.
    kin = [{"tool_misuse", "semantic_drift"}, {"redundant_operation", "logic_discontinuity"}]
    # A format is mismatched by a value of another type, so only the changed outcome tells the two apart.
    kin.append({"parameter_error", "logic_discontinuity"})
    tried = 0
    for method in FLAW_METHODS[flaw]:
        for task, one in flawed(flaw, method, "moderate")[::5]:
            plan = view(one.original, task.required_tools)
            assert flaw_problem(one, plan) is None
            for other, methods in FLAW_METHODS.items():
                if other == flaw or any({flaw, other} <= pair for pair in kin):
                    continue
                for name in methods:
                    renamed = replace(one, flaw=Flaw(other, name, "moderate"))
                    assert flaw_problem(renamed, plan) is not None
                    tried += 1
    assert tried > 50


def test_a_method_that_does_not_do_its_work_is_a_bug(monkeypatch):
    def lazy(plan, severity, draws):
        return Change(plan.steps, (EDIT,))

    methods = {**module.MAKERS, "swap": lazy}
    monkeypatch.setattr(module, "MAKERS", methods)
    with pytest.raises(AssertionError, match=r"sequential_order/swap/light of .*: is equal to its original"):
        Perturber(similarity=similarity).perturb(SOUND, REQUIRED, "sequential_order", "light", "swap")
