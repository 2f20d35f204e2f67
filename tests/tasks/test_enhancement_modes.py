"""What is asked in both modes, and which answers are used and refused."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.enhancement import DesignMode, Refusal, RewriteMode
from resilisim.tasks.enhancement.modes import (
    REFUSALS,
    BriefStep,
    DesignBrief,
    carried_operations,
    identifying_values,
    kept_values,
    tidied,
)
from resilisim.tasks.model import Task, instance_id_of
from resilisim.tasks.wording import solving_clauses
from resilisim.tool_library.library import default_library
from resilisim.tool_library.retrieval import TextHit, ToolHit, default_retriever
from tests.tasks.enhancement_answers import asked_steps, good_description, good_design, good_rewrite

LIBRARY = default_library()
RETRIEVER = default_retriever(LIBRARY)
REWRITE = RewriteMode(LIBRARY, RETRIEVER)
DESIGN = DesignMode(LIBRARY, RETRIEVER)
TASK = benchmark_tasks()[2]
DESIGNED = next(task for task in benchmark_tasks() if task.task_type == "basic_file_processing")
FREE = Task.from_mapping(
    {"required_tools": ["network_fetcher"], "description": "Fetch the page from the web address over the network."},
    LIBRARY,
)


def rewritten(description):
    return REWRITE.read(TASK, json.dumps({"description": description}))


# Rewriting


def test_the_question_holds_the_order_the_steps_and_the_values_but_no_tool():
    rules, facts = (message.content for message in REWRITE.ask(TASK))
    assert TASK.description in facts
    assert "1. " in facts
    assert "2. " in facts
    assert all(f"- {value}" in facts for value in kept_values(TASK))
    assert "JSON" in rules
    assert not any(name in rules + facts for name in LIBRARY.names)


def test_kept_values_are_what_cannot_be_said_otherwise():
    assert kept_values(TASK) == ("/srv/exchange/incoming/snow_measurements/", "EAN-8244000")
    values = {"a": ["csv", "x_y", {"b": "two words 1", "c": 5, "d": True}], "e": "me@x.example", "f": ""}
    assert list(identifying_values(values)) == ["x_y", "me@x.example"]


@pytest.mark.parametrize("place", range(10))
def test_a_good_rewrite_changes_the_description_alone(place):
    task = benchmark_tasks()[place]
    result = REWRITE.read(task, good_rewrite(task))
    assert result == dataclasses.replace(task, description=good_description(task))
    assert solving_clauses(result.description, task.required_tools, RETRIEVER) is not None


GOOD = good_description(TASK)
SPOILT = {
    "": "not_json",
    " \n": "not_json",
    TASK.description: "unchanged",
    TASK.description.replace(" ", "  "): "unchanged",
    GOOD + " and so on" * 300: "too_long",
    GOOD + "\ud83d": "not_text",
    GOOD + "\x1b[31m": "not_text",
    GOOD + "<tool_call>file_operations_reader {}</tool_call>": "markup",
    GOOD + "\n<finish/>": "markup",
    GOOD + " <TOOL_SEARCH> ": "markup",
    GOOD + " </mcp_task": "markup",
    GOOD + " <b>now</b>": "markup",
    GOOD + " Use data_processing_parser.": "names_tool",
    GOOD + " Use Data_Processing_Validator.": "names_tool",
    GOOD.replace("EAN-8244000", "EAN-1"): "lost_value",
    GOOD.replace(asked_steps(TASK.required_tools), ""): "not_solvable",
    GOOD.replace(asked_steps(TASK.required_tools), asked_steps(TASK.required_tools[:1])): "not_solvable",
    GOOD.replace(asked_steps(TASK.required_tools), asked_steps(TASK.required_tools[::-1])): "not_solvable",
}


@pytest.mark.parametrize("description", SPOILT)
def test_a_rewrite_that_cannot_stand_is_refused(description):
    result = rewritten(description)
    assert isinstance(result, Refusal)
    assert result.kind == SPOILT[description], result.detail
    assert result.kind in REFUSALS


def test_signs_that_are_no_markup_may_stand():
    for text in ("values < 5 and > 3", "a <- b", "x<y"):
        assert isinstance(rewritten(f"{GOOD} Mind {text} here."), Task)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("", "not_json"),
        ("Here is the order: read it.", "not_json"),
        ('{"text": "x"}', "not_json"),
        ('{"description": 5}', "wrong_fields"),
        ('{"description": ["x"]}', "wrong_fields"),
        ("x" * 1_000_000, "not_json"),
    ],
)
def test_an_answer_of_another_form_is_refused(answer, kind):
    result = REWRITE.read(TASK, answer)
    assert isinstance(result, Refusal)
    assert result.kind == kind


def test_the_reason_names_the_step_that_no_sentence_asks_for():
    only_first = GOOD.replace(asked_steps(TASK.required_tools), asked_steps(TASK.required_tools[:1]))
    assert "step 2" in rewritten(only_first).detail
    assert "after the one for step 1" in rewritten(only_first).detail
    nothing = GOOD.replace(asked_steps(TASK.required_tools), "")
    assert "no sentence says clearly enough that step 1" in rewritten(nothing).detail


def test_names_that_the_original_says_may_be_said_again():
    task = dataclasses.replace(TASK, description=TASK.description + " (data_processing_parser is not meant)")
    answer = json.dumps({"description": GOOD + " Not by data_processing_parser."})
    assert isinstance(REWRITE.read(task, answer), Task)


def test_line_ends_become_plain():
    assert tidied(" a\r\nb\rc \n") == "a\nb\nc"


# Designing


def designed(design, task=DESIGNED):
    return DESIGN.read(task, json.dumps(design))


def test_the_question_offers_the_retrieved_tools_with_all_that_a_design_has_to_fit():
    rules, facts = (message.content for message in DESIGN.ask(DESIGNED))
    assert "Take 2 to 3 of the proposed tools" in rules
    assert "1. input (" in facts
    assert "2. process (" in facts
    lines = [json.loads(line) for line in facts.splitlines() if line.startswith('{"name"')]
    reader = next(card for card in lines if card["name"] == "file_operations_reader")
    assert reader["required_inputs"] == {
        "source": 'string. Location or identifier that the input comes from. {"minLength": 1}'
    }
    assert list(reader["optional_inputs"]) == ["options"]
    assert reader["outputs"]["success"] == "boolean"
    assert "a second time what 'process' asks for" in rules
    transformer = next(card for card in lines if card["name"] == "data_processing_transformer")
    assert transformer["depends_on"] == ["data_processing_parser"]
    assert "utility_cache" not in {card["name"] for card in lines}
    assert DESIGNED.description in facts


def test_a_good_design_becomes_a_task_of_its_own():
    result = designed(good_design())
    assert isinstance(result, Task)
    assert result.required_tools == ("file_operations_reader", "data_processing_parser")
    assert result.inputs == {"source": "/data/berths.csv"}
    assert result.expected_outputs == {"success": True}
    assert result.description == result.original_description == good_design()["description"]
    assert result.instance_id != DESIGNED.instance_id
    assert result.instance_id == instance_id_of(
        result.task_type, result.required_tools, result.inputs, result.expected_outputs, result.description
    )
    assert (result.task_type, result.complexity) == (DESIGNED.task_type, DESIGNED.complexity)
    assert result.metadata["inputs_generated_from"] == "llm"
    assert result.metadata["operations"] == ["input", "process"]
    assert "layout" not in result.metadata
    assert Task.from_mapping(result.to_mapping(), LIBRARY) == result


def test_the_required_order_follows_the_dependencies():
    names = ["file_operations_reader", "data_processing_transformer", "data_processing_parser"]
    right = ["file_operations_reader", "data_processing_parser", "data_processing_transformer"]
    description = good_design(tools=right)["description"]
    result = designed(good_design(tools=names, description=description))
    assert isinstance(result, Task)
    assert list(result.required_tools) == right


BAD_DESIGNS = {
    "a field missing": ({"description": "x", "tools": []}, "not_json"),
    "description": (good_design(description=5), "wrong_fields"),
    "tools": (good_design() | {"tools": "file_operations_reader"}, "wrong_fields"),
    "tool numbers": (good_design(description="x") | {"tools": [1]}, "wrong_fields"),
    "inputs": (good_design(inputs=[]), "wrong_fields"),
    "outputs": (good_design(expected_outputs=None), "wrong_fields"),
    "half characters": (good_design(inputs={"source": "\ud83d"}), "wrong_fields"),
    "huge inputs": (good_design(inputs={"source": "x" * 30_000}), "wrong_fields"),
    "unknown tool": (
        good_design(description="x") | {"tools": ["file_reader", "data_processing_parser"]},
        "unknown_tool",
    ),
    "not proposed": (good_design(tools=["file_operations_reader", "utility_cache"]), "unknown_tool"),
    "twice": (good_design(tools=["file_operations_reader", "file_operations_reader"]), "unknown_tool"),
    "too few": (good_design(tools=["file_operations_reader"]), "wrong_number_of_tools"),
    "no tools": (good_design(tools=[]), "wrong_number_of_tools"),
    "two inputs": (good_design(tools=["file_operations_reader", "network_fetcher"]), "wrong_steps"),
    "input missing": (good_design(inputs={}), "wrong_inputs"),
    "input of another type": (good_design(inputs={"source": 5}), "wrong_inputs"),
    "input unknown": (good_design(inputs={"source": "/data/berths.csv", "sauce": 1}), "wrong_inputs"),
    "no output": (good_design(expected_outputs={}), "wrong_outputs"),
    "output unknown": (good_design(expected_outputs={"weather": "fine"}), "wrong_outputs"),
    "output of another type": (good_design(expected_outputs={"success": "yes"}), "wrong_outputs"),
    "failure expected": (good_design(expected_outputs={"success": False}), "wrong_outputs"),
    "input not said": (good_design(inputs={"source": "/data/other.csv"}), "lost_value"),
    "step not said": (good_design(description="The list is in /data/berths.csv."), "not_solvable"),
    "markup": (good_design(description=good_design()["description"] + "<finish/>"), "markup"),
    "tool named": (good_design(description=good_design()["description"] + " utility_cache"), "names_tool"),
}


@pytest.mark.parametrize("name", BAD_DESIGNS)
def test_a_design_that_cannot_stand_is_refused(name):
    design, kind = BAD_DESIGNS[name]
    result = designed(design)
    assert isinstance(result, Refusal)
    assert result.kind == kind, result.detail
    assert result.kind in REFUSALS


def test_a_type_without_template_may_take_what_retrieval_finds_for_its_text():
    rules, facts = (message.content for message in DESIGN.ask(FREE))
    found = [hit.name for hit in RETRIEVER.search(FREE.description.rstrip("."))]
    assert [json.loads(line)["name"] for line in facts.splitlines() if line.startswith('{"name"')] == found
    assert "Take 1 to 5 of the proposed tools" in rules
    assert "Any of the tools may be taken" in rules
    design = good_design(tools=["network_fetcher"], inputs={"source": "https://a.example/b"})
    design["description"] = f"It is at https://a.example/b.\n{asked_steps(['network_fetcher'])}"
    result = designed(design, FREE)
    assert isinstance(result, Task)
    assert result.metadata["operations"] == ["work"]


def test_each_tool_gets_a_step_of_its_own():
    """Names of the default library, whose dependencies say that computation_analyzer needs parser and aggregator."""
    parser, aggregator, analyzer = "data_processing_parser", "data_processing_aggregator", "computation_analyzer"
    steps = (BriefStep("read", "", (parser, aggregator)), BriefStep("compute", "", (analyzer, parser)))

    def brief(repeats_last):
        return DesignBrief(steps, (parser, aggregator, analyzer), 1, 3, True, repeats_last)

    assert carried_operations((parser,), brief(False), LIBRARY) == ["read"]
    assert carried_operations((parser, aggregator), brief(False), LIBRARY) == [
        "compute",
        "read",
    ]  # the first moves over
    assert carried_operations((parser, analyzer), brief(False), LIBRARY) == ["read", "compute"]
    everything = carried_operations((parser, aggregator, analyzer), brief(False), LIBRARY)
    assert everything is not None
    assert sorted(everything) == ["compute", "prerequisite", "read"]
    assert everything[2] == "compute"
    assert sorted(carried_operations((parser, aggregator, analyzer), brief(True), LIBRARY)) == [
        "compute",
        "compute",
        "read",
    ]
    assert carried_operations((analyzer, "computation_predictor"), brief(False), LIBRARY) is None


def test_a_tool_beyond_the_steps_is_explained():
    told = {}
    for task in benchmark_tasks()[:40]:
        told[task.task_type] = DESIGN.ask(task)[0].content
    assert "one that another chosen tool depends on" in told["advanced_computation_pipeline"]
    assert "no tool beyond the steps" in told["complex_network_integration"]
    assert "Take 5 to 7 of" in told["advanced_computation_pipeline"]


# Whatever a model writes


class WordRetriever:
    """Finds a tool where a word of its name stands in the query; needs no embeddings."""

    def search_many(self, queries, k=5):
        return [self.search(query, k) for query in queries]

    def search(self, query, k=5):
        words = set(query.lower().replace(":", " ").split())
        scores = {name: float(len(words & set(name.split("_")))) for name in LIBRARY.names}
        ranked = sorted(scores, key=lambda name: -scores[name])
        return [ToolHit(name, scores[name]) for name in ranked[:k]]

    def search_texts(self, query, texts, k=None):
        return [TextHit(place, 0.0) for place in range(len(texts))][:k]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(LIBRARY.names),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
answers = st.one_of(
    st.text(),
    json_values.map(json.dumps),
    st.fixed_dictionaries(
        {
            "description": st.text() | json_values,
            "tools": st.lists(st.sampled_from(LIBRARY.names), max_size=4) | json_values,
            "inputs": st.dictionaries(st.sampled_from(["source", "options"]), json_values, max_size=2) | json_values,
            "expected_outputs": st.dictionaries(st.sampled_from(["success", "data"]), json_values) | json_values,
        }
    ).map(json.dumps),
)

WORD_REWRITE = RewriteMode(LIBRARY, WordRetriever())
WORD_DESIGN = DesignMode(LIBRARY, WordRetriever())


@settings(max_examples=100)
@given(answers)
def test_any_answer_becomes_a_task_or_a_typed_refusal(answer):
    for result in (WORD_REWRITE.read(TASK, answer), WORD_DESIGN.read(DESIGNED, answer), WORD_DESIGN.read(FREE, answer)):
        if isinstance(result, Refusal):
            assert result.kind in REFUSALS
        else:
            Task.from_mapping(result.to_mapping(), LIBRARY)
