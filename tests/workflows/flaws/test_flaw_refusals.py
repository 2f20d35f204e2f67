"""Plans that cannot carry a flaw, and input that is none: a reason or one line, never a crash."""

import pytest
from flaw_samples import LIBRARY, METHODS, check_edits

from resilisim.errors import InvalidInputError
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.workflows import Step, Workflow
from resilisim.workflows.flaws import FLAW_METHODS, SEVERITIES, FlawedWorkflow, Perturber
from resilisim.workflows.flaws.flaw import FlawRefusal, ToolSimilarity, functional_equivalence
from resilisim.workflows.steps import step_parameters

READER, PARSER, AGGREGATOR = "file_operations_reader", "data_processing_parser", "data_processing_aggregator"
VALIDATOR, NETWORK_VALIDATOR = "data_processing_validator", "network_validator"


def plan(*tools, library=LIBRARY):
    steps = []
    for place, name in enumerate(tools):
        values = step_parameters(library[name], {}, tools[place - 1] if place else None)
        steps.append(Step(name, values))
    return Workflow("t", tuple(steps), "hand", 0.5)


def made_up(library=LIBRARY):
    """Return what needs no model: all tools are equally like each other."""
    functional = functional_equivalence(library)
    return Perturber(library, similarity=lambda: ToolSimilarity(functional * 0 + 0.5, functional))


def reason(workflow, required, method, library=LIBRARY):
    """Return why a workflow cannot carry a method's flaw, which must not depend on the severity."""
    flaw = next(flaw for flaw, methods in FLAW_METHODS.items() if method in methods)
    reasons = set()
    for severity in SEVERITIES:
        refusal = made_up(library).perturb(workflow, required, flaw, severity, method)
        assert isinstance(refusal, FlawRefusal)
        assert (refusal.type, refusal.method, refusal.severity) == (flaw, method, severity)
        assert refusal.instance_id == workflow.instance_id
        assert str(refusal) == f"t cannot carry {flaw} ({method}): {refusal.reason}"
        reasons.add(refusal.reason)
    (only,) = reasons
    assert "\n" not in only
    return only


ONE_CATEGORY = ToolLibrary([Tool("soil_digger", "Digs."), Tool("soil_filler", "Fills."), Tool("soil_raker", "R.")])
CHAIN = ToolLibrary([Tool("a", "A."), Tool("b", "B.", dependencies=("a",)), Tool("c", "C.", dependencies=("b",))])
ALONE = ToolLibrary([Tool("dig", "Digs.")])
REPLACING = ("semantic_similarity", "category_mismatch", "semantic_mismatch", "progressive_drift")
REFUSALS = {
    # What is refused: library, tools of the plan (the required ones, too), methods.
    "no two neighbouring steps are in an order that matters": [(LIBRARY, (READER,), ("swap",))],
    "no step follows a step that it depends on": [
        (LIBRARY, (READER,), ("dependency_violation",)),
        (LIBRARY, (READER, VALIDATOR), ("dependency_violation",)),
    ],
    "no required step stands between the first and the last one": [
        (LIBRARY, (READER,), ("middle_step_removal",)),
        (LIBRARY, (READER, PARSER), ("middle_step_removal",)),
    ],
    "no required step validates or verifies anything": [(LIBRARY, (READER, PARSER), ("validation_removal",))],
    "every step validates, so nothing would be left": [
        (LIBRARY, (VALIDATOR,), ("validation_removal",)),
        (LIBRARY, (VALIDATOR, NETWORK_VALIDATOR), ("validation_removal",)),
    ],
    "no step receives anything from the step before that its tool could refuse": [
        (LIBRARY, (READER,), ("format_mismatch",))
    ],
    "a single step has no neighbour to be cut off from": [(LIBRARY, (READER,), ("unrelated_insertion",))],
    f"the workflow already runs {READER} more than once": [(LIBRARY, (READER, PARSER, READER), ("swap",))],
    "the library has no tool left that could stand in for one of the plan's": [
        (ALONE, ("dig",), ("semantic_similarity", "semantic_mismatch", "progressive_drift"))
    ],
    "no unused tool is of another category": [
        (ALONE, ("dig",), ("category_mismatch",)),
        (ONE_CATEGORY, ("soil_digger", "soil_filler"), ("category_mismatch",)),
    ],
    "every tool of the library is of some use to the plan": [
        (ALONE, ("dig",), ("unnecessary_addition",)),
        (CHAIN, ("b", "c"), ("unnecessary_addition", "unrelated_insertion")),
    ],
}


@pytest.mark.parametrize("expected", REFUSALS)
def test_plans_and_libraries_without_what_a_method_needs(expected):
    for library, tools, methods in REFUSALS[expected]:
        for method in methods:
            assert reason(plan(*tools, library=library), tuple(dict.fromkeys(tools)), method, library) == expected


def test_plans_that_do_nothing_of_what_is_required():
    assert reason(plan(), (READER,), "duplication") == "the workflow has no steps"
    for method in REPLACING:
        assert reason(plan(READER, PARSER), ("network_fetcher",), method) == "no step is required"


def test_calls_that_are_refused_as_they_stand_are_left_alone():
    sound = plan(READER, PARSER)
    broken = Step(READER, {"source": 7, "zzz": 1})
    required = (READER, PARSER)
    for method in FLAW_METHODS["parameter_error"]:
        both = Workflow("t", (broken, Step(PARSER, {})), "hand", 0.5)
        assert reason(both, required, method).startswith("no call that its tool accepts")
        half = Workflow("t", (broken, sound.steps[1]), "hand", 0.5)
        one = made_up().perturb(half, required, "parameter_error", "severe", method)
        assert isinstance(one, FlawedWorkflow)
        assert one.workflow.steps[0] is broken


def test_an_order_that_is_already_broken_is_not_put_right():
    # The task wants the parser first and the aggregator second; either method could only mend the plan.
    required = (PARSER, AGGREGATOR)
    assert reason(plan(AGGREGATOR, PARSER), required, "swap").startswith("no two neighbouring steps")
    # Here the task wants the aggregator before what it depends on.
    against = (AGGREGATOR, PARSER)
    assert reason(plan(PARSER, AGGREGATOR), against, "dependency_violation").startswith("no step follows")
    assert reason(plan(PARSER, AGGREGATOR), against, "swap").startswith("no two neighbouring steps")
    one = made_up().perturb(plan(AGGREGATOR, PARSER), against, "sequential_order", method="swap")
    assert isinstance(one, FlawedWorkflow)
    assert one.workflow.tools == (PARSER, AGGREGATOR)


@pytest.mark.parametrize(
    ("steps", "required", "expected"),
    [
        ((READER, "nope"), (READER,), "unknown tool 'nope'"),
        ((READER, "combiner"), (READER,), "unknown tool 'combiner': did you mean"),
        ((READER, "File_Operations_Writer"), (READER,), "did you mean 'file_operations_writer'?"),
        ((READER,), (), "the list of required tools is empty"),
        ((READER,), (READER, READER), "is listed twice"),
        ((READER,), (READER, "data_processing_parse"), "did you mean 'data_processing_parser'?"),
    ],
)
def test_tools_that_do_not_exist(steps, required, expected):
    workflow = Workflow("t", tuple(Step(name) for name in steps), "hand", 0.5)
    for flaw, method in METHODS:
        with pytest.raises(InvalidInputError) as caught:
            made_up().perturb(workflow, required, flaw, method=method)
        assert expected in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("sequential",), "unknown flaw 'sequential': did you mean 'sequential_order'?"),
        (("missing_step", "Severe"), "unknown severity 'Severe': did you mean 'severe'?"),
        (("missing_step", ""), "unknown severity '': expected one of light, moderate, severe"),
        (
            ("missing_step", "light", "swap"),
            "unknown method 'swap' in flaw 'missing_step': expected one of middle_step_removal, validation_removal",
        ),
        (
            ("semantic_drift", "light", "semantic_similarity"),
            "unknown method 'semantic_similarity' in flaw 'semantic_drift': did you mean 'semantic_mismatch'?",
        ),
    ],
)
def test_names_that_do_not_exist(arguments, expected):
    with pytest.raises(InvalidInputError) as caught:
        made_up().perturb(plan(READER), (READER,), *arguments)
    assert str(caught.value) == expected


def test_checking_operations_are_recognised_by_their_names():
    operations = ("open", "verify", "audit", "checkout", "checkpoint", "invalidate")
    library = ToolLibrary([Tool(f"shop_{name}", "A tool.") for name in operations])
    flaw, names = ("missing_step", "light", "validation_removal"), library.names
    workflow, perturber = plan(*names, library=library), made_up(library)
    found = [perturber.perturb(workflow, names, *flaw, seed) for seed in range(20)]
    assert {edit.before for one in found for edit in one.edits} == {"shop_verify", "shop_audit"}


def test_one_step_always_stays():
    # Both ends check, so everything stands beside a check.
    tools = (VALIDATOR, READER, NETWORK_VALIDATOR)
    for severity, left in (("light", 2), ("moderate", 1), ("severe", 1)):
        one = made_up().perturb(plan(*tools), tools, "missing_step", severity, "validation_removal")
        assert isinstance(one, FlawedWorkflow)
        assert len(one.workflow.steps) == left
        assert READER in one.workflow.tools
        check_edits(one)
