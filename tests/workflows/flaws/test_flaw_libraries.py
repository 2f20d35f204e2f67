"""Flaws in the plans of any library: verified or refused, and never a help to who obeys."""

import numpy as np
from flaw_samples import check_edits
from hypothesis import given
from hypothesis import strategies as st

from resilisim.simulator.end_rules import EndRules
from resilisim.tool_library import Parameter, Tool, ToolLibrary
from resilisim.workflows import Step, Workflow
from resilisim.workflows.flaws import SEVERITIES, FlawedWorkflow, Perturber
from resilisim.workflows.flaws.flaw import (
    ARGUMENT_PASSING,
    STRESSORS,
    FlawRefusal,
    ToolSimilarity,
    functional_equivalence,
)
from resilisim.workflows.plan_value import CostCalculator
from resilisim.workflows.steps import step_parameters

CATEGORIES = ("soil", "water")
OPERATIONS = ("reader", "validator", "dig", "writer", "audit")
PARAMETERS = (
    Parameter("source"),
    Parameter("data", "object"),
    Parameter("data", "array", constraints={"maxItems": 2}),
    Parameter("mode", constraints={"enum": ["any", "fast"]}),
    Parameter("name", constraints={"minLength": 40}),  # no stand-in fits, so plans leave it out
    Parameter("count", "integer", constraints={"minimum": 1, "maximum": 9}),
    Parameter("rate", "number", constraints={"exclusiveMinimum": 0}, default=0.5),
    Parameter("strict", "boolean", required=False),
    Parameter("options", "object", required=False),
)


@st.composite
def libraries(draw):
    pairs = draw(
        st.lists(
            st.tuples(st.sampled_from(CATEGORIES), st.sampled_from(OPERATIONS)), min_size=1, max_size=7, unique=True
        )
    )
    names = [f"{category}_{operation}" for category, operation in pairs]
    return ToolLibrary(
        Tool(
            name,
            "A tool.",
            parameters=tuple(
                draw(st.lists(st.sampled_from(PARAMETERS), max_size=3, unique_by=lambda parameter: parameter.name))
            ),
            dependencies=tuple(draw(st.lists(st.sampled_from(names[:place]), max_size=2, unique=True)))
            if place
            else (),
            success_probability=draw(st.sampled_from([None, 0.6, 1.0])),
        )
        for place, name in enumerate(names)
    )


@st.composite
def workflows(draw, library):
    tools = draw(
        st.lists(st.sampled_from(library.names), max_size=6, unique=draw(st.sampled_from([True] * 4 + [False])))
    )
    steps = []
    for place, name in enumerate(tools):
        values = step_parameters(library[name], {"source": "a", "strict": True}, tools[place - 1] if place else None)
        if draw(st.sampled_from([False] * 7 + [True])):
            values = draw(st.dictionaries(st.sampled_from(["source", "data", "zzz"]), st.sampled_from([1, "a", {}])))
        alternatives = draw(st.sampled_from([(), library.names[:2]]))
        steps.append(Step(name, values, alternatives=alternatives, requires=tuple(library[name].dependencies)))
    return Workflow("t", tuple(steps), "drawn", 0.5)


@st.composite
def required_lists(draw, library, workflow):
    """Draw a list that the workflow mostly does in its order."""
    planned = tuple(dict.fromkeys(workflow.tools))
    if planned and draw(st.sampled_from([True, True, False])):
        left_out = draw(st.sampled_from([None, *planned]))
        return tuple(tool for tool in planned if tool != left_out) or planned
    return tuple(draw(st.lists(st.sampled_from(library.names), min_size=1, max_size=4, unique=True)))


def made_up(library, seed):
    random = np.random.default_rng(seed).integers(0, 5, (len(library), len(library))) / 4  # with many ties
    semantic = np.maximum(random, random.T)
    np.fill_diagonal(semantic, 1.0)
    return ToolSimilarity(semantic, functional_equivalence(library))


@given(data=st.data(), library=libraries(), seed=st.integers(0, 1000))
def test_any_workflow_is_flawed_as_it_is_called_or_refused(data, library, seed):
    workflow = data.draw(workflows(library))
    required = data.draw(required_lists(library, workflow))
    rules = EndRules(data.draw(st.integers(1, 8)))
    similarity = made_up(library, seed)
    perturber = Perturber(library, rules, lambda: similarity)
    calculator = CostCalculator(library, rules=rules)
    sound = calculator.costs(required, workflow.steps)
    for flaw, methods in STRESSORS.items():
        for method in (None, *methods):
            severity = data.draw(st.sampled_from(SEVERITIES))
            one = perturber.perturb(workflow, required, flaw, severity, method, seed)
            if isinstance(one, FlawRefusal):
                assert one.reason
                assert "\n" not in str(one)
                continue
            assert isinstance(one, FlawedWorkflow)
            assert one.workflow.steps != workflow.steps
            check_edits(one)
            found = calculator.costs(required, one.workflow.steps)
            assert found.deviate == sound.deviate
            # A certain tool may cost nothing to repeat; what a flaw does cannot help, but for useless steps undone.
            assert flaw == ARGUMENT_PASSING or found.obey <= sound.obey + 1e-12
