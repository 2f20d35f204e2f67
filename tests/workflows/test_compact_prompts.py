"""The compact style: few words, all prompt types, and plans that followers read as they read the full ones."""

import contextlib
import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import hostile_texts, names, nested_objects, workflows_of
from test_golden_prompts import golden_task, golden_workflow

from resilisim import benchmark_tasks
from resilisim.chat.local import shipped_model_path
from resilisim.chat.local.gguf import TokenCounter
from resilisim.envs.conversation import ConversationEnv
from resilisim.errors import InvalidInputError
from resilisim.simulator import EndRules, Law
from resilisim.tool_library import default_library
from resilisim.workflows.plan_text import read_compact_steps, render_compact_plan
from resilisim.workflows.planner import resolve_planner
from resilisim.workflows.prompts import PROMPT_TYPES, parse_steps, parse_work_order, render_prompt
from resilisim.workflows.templating import escape_text, inline_json

MOST_TOKENS = 350  # beside the work order and its input data
LONG_CLOSURE = 8  # tools; of lists whose plans are the longest


@pytest.mark.long
def test_prompts_with_the_longest_plans_are_short_enough():
    library = default_library()
    counter = TokenCounter(shipped_model_path())
    planner = resolve_planner("exact", library, Law(), EndRules())
    # What plans say depends on the list and on the names of the inputs alone.
    chosen = {
        (task.required_tools, tuple(task.inputs)): task
        for task in benchmark_tasks()
        if len(library.closure(task.required_tools)) >= LONG_CLOSURE
    }
    assert len(chosen) > 180
    for task in chosen.values():
        workflow = planner.plan(task)
        order = counter.count(escape_text(task.description.strip())) + counter.count(inline_json(dict(task.inputs)))
        for protocol in ("text", "native"):
            text = render_prompt(task, "optimal", workflow, style="compact", protocol=protocol).text
            assert counter.count(text) - order <= MOST_TOKENS, text


def test_every_prompt_type_has_a_compact_form():
    task = golden_task()
    workflow = golden_workflow(task)
    for prompt_type, protocol in itertools.product(PROMPT_TYPES, ("text", "native")):
        full, compact = (
            render_prompt(task, prompt_type, workflow, default_library(), style=style, protocol=protocol)
            for style in ("full", "compact")
        )
        assert compact.plan_format == (None if full.workflow is None else "compact")
        assert len(compact.text) < 0.6 * len(full.text)
        assert parse_work_order(compact.text) == parse_work_order(full.text) == task.description
        assert parse_steps(compact.text) == parse_steps(full.text)
        assert ("Reasoning:" in compact.text) == (prompt_type == "chain_of_thought")
        assert ("<finish/>" in compact.text) == (protocol == "text")
        assert "10 messages" in compact.text
    listed = render_prompt(task, "baseline", library=default_library(), style="compact", tools_listed=True).text
    assert all(name in listed for name in default_library().names)
    unlimited = render_prompt(task, "baseline", style="compact", rules=EndRules(12, 0, 0)).text
    assert "12 messages, then a closing one that runs nothing.\n" in unlimited


PROMPTS = (
    "optimal",
    "flawed:parameter_error:severe",
    "flawed:redundant_operation:severe",
    "flawed:sequential_order:moderate",
    "flawed:missing_step:moderate",
)


@pytest.mark.parametrize("parameters", ["lenient", "strict"])
def test_plans_of_both_styles_are_read_alike(parameters):
    full, compact = (ConversationEnv(prompt_style=style, parameters=parameters) for style in ("full", "compact"))
    tasks = [task for task in benchmark_tasks() if len(task.required_tools) >= 3][:300:20]
    read = []
    for task, prompt in itertools.product(tasks, PROMPTS):
        with contextlib.suppress(InvalidInputError):  # a plan that cannot carry the flaw
            read.append(parse_steps(compact.prompt(task, prompt).text))
            assert read[-1] == parse_steps(full.prompt(task, prompt).text)
    assert len(read) > 50
    assert sum(any(step.max_tries or step.skip_from for step in steps) for steps in read) > 10


limits = st.none() | st.integers(1, 12)


@given(
    workflows_of(names, nested_objects),
    st.dictionaries(hostile_texts | st.sampled_from(["data", "source", "options"]), st.integers() | hostile_texts),
    st.lists(st.tuples(limits, limits), min_size=5, max_size=5),
    st.booleans(),
)
def test_a_plan_reads_back_as_it_was(workflow, inputs, numbers, usual):
    steps = [
        replace(
            step,
            parameters={**step.parameters, **(inputs if usual else {}), "destination": "as in the work order"},
            max_tries=tries,
            skip_from=message,
        )
        for step, (tries, message) in zip(workflow.steps, numbers, strict=False)
    ]
    plan = render_compact_plan(steps, inputs)
    text = f"## Input data\n\n{inline_json(inputs)}\n\n## Plan\n\nWords.\n\n{plan}\n\n## More\n\n9 other(x)\n"
    read = read_compact_steps(text)
    assert [step.problem for step in read] == [None] * len(steps)
    assert [(s.tool, s.parameters, s.requires, s.max_tries, s.skip_from) for s in read] == [
        (s.tool, s.parameters, s.requires or None, s.max_tries, s.skip_from) for s in steps
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1 reader(source={) after 1; 2 tries", "cannot be read"),
        ("1 reader(source schema) after 1; 2 tries", "expected a comma"),
        ("1 reader(=3) after 1; 2 tries", "name of a parameter"),
        ("1 reader(a=" + "[" * 100_000 + ") after 1; 2 tries", "cannot be read"),
        ("1 reader(a", "expected a comma"),
    ],
)
def test_parameters_that_cannot_be_read_are_said_and_the_step_stays(line, problem):
    (step,) = read_compact_steps(f"## Plan\n\n{line}\n")
    assert (step.tool, step.parameters) == ("reader", None)
    assert step.problem is not None
    assert problem in step.problem
    assert len(step.problem) < 400
    if "tries" in line:
        assert (step.requires, step.max_tries) == (("reader",), 2)
