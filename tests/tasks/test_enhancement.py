"""Both modes with scripted models, and runs over many tasks: re-asks, order, the file that is resumed, the forecast."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.chat import ChatMessage, ChatReply, EndpointError, RequestRefusedError, ScriptedChatModel, TokenUsage
from resilisim.chat.checked_answers import RefusedAnswer
from resilisim.chat.scripted_models import ScriptedReply
from resilisim.chat.types import estimated_prompt_tokens
from resilisim.errors import InfrastructureError, InvalidInputError, StoreError
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.enhancement.design import BriefStep, DesignBrief, DesignMode, carried_operations
from resilisim.tasks.enhancement.enhancer import (
    EnhancedTasksFile,
    EnhancementOptions,
    EnhancementTotals,
    TaskEnhancer,
    enhance_tasks,
    forecast_calls,
    in_order,
    manifest_of,
    num_finished,
)
from resilisim.tasks.enhancement.questions import TASK_REFUSALS
from resilisim.tasks.enhancement.rewrite import RewriteMode, identifying_values, kept_values
from resilisim.tasks.sources import read_tasks_file
from resilisim.tasks.task import Task, instance_id_of
from resilisim.tasks.wording import solving_clauses
from resilisim.tool_library.library import default_library
from resilisim.tool_library.retrieval import default_retriever
from tests.tasks.enhancement_answers import FunctionModel, asked_steps, good_description, good_design, good_rewrite

LIBRARY = default_library()
RETRIEVER = default_retriever(LIBRARY)
REWRITE = RewriteMode(LIBRARY, RETRIEVER)
DESIGN = DesignMode(LIBRARY, RETRIEVER)
TASK = benchmark_tasks("benchmark-v1")[2]
DESIGNED = next(task for task in benchmark_tasks("benchmark-v1") if task.task_type == "basic_file_processing")
FREE = Task.from_mapping(
    {"required_tools": ["network_fetcher"], "description": "Fetch the page from the web address over the network."},
    LIBRARY,
)


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
    task = benchmark_tasks("benchmark-v1")[place]
    result = REWRITE.read(task, good_rewrite(task))
    assert result == dataclasses.replace(task, description=good_description(task))
    assert solving_clauses(result.description, task.required_tools, RETRIEVER) is not None


GOOD = good_description(TASK)
SPOILT = {
    "": "wrong_fields",
    " \n": "wrong_fields",
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


BAD_ANSWERS = {json.dumps({"description": text}): kind for text, kind in SPOILT.items()} | {
    "": "not_json",
    "Here is the order: read it.": "not_json",
    '{"text": "x"}': "not_json",
    '{"description": 5}': "wrong_fields",
    '{"description": ["x"]}': "wrong_fields",
    "x" * 1_000_000: "not_json",
}


def refusal_of(mode, task, answer):
    with pytest.raises(RefusedAnswer) as refused:
        mode.read(task, answer)
    return refused.value.args


@pytest.mark.parametrize("answer", BAD_ANSWERS, ids=range(len(BAD_ANSWERS)))
def test_a_rewrite_that_cannot_stand_is_refused(answer):
    kind, detail = refusal_of(REWRITE, TASK, answer)
    assert kind == BAD_ANSWERS[answer], detail
    assert kind in TASK_REFUSALS


def test_the_reason_names_the_step_that_no_sentence_asks_for():
    for steps, words in ((TASK.required_tools[:1], ("step 2", "after the one for step 1")), ((), ("step 1",))):
        description = GOOD.replace(asked_steps(TASK.required_tools), asked_steps(steps))
        _, detail = refusal_of(REWRITE, TASK, json.dumps({"description": description}))
        assert all(word in detail for word in words)


def test_what_is_no_markup_and_names_that_the_original_says_may_stand():
    task = dataclasses.replace(TASK, description=TASK.description + " (data_processing_parser is not meant)")
    for text in ("Mind values < 5 and > 3.", "Mind a <- b.", "Mind x<y.", "Not by data_processing_parser.\r\n"):
        result = REWRITE.read(task, json.dumps({"description": f"{GOOD} {text}"}))
        assert isinstance(result, Task)
        assert result.description == f"{GOOD} {text}".strip()


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
    right = ["file_operations_reader", "data_processing_parser", "data_processing_transformer"]
    description = good_design(tools=right)["description"]
    result = designed(good_design(tools=[right[0], right[2], right[1]], description=description))
    assert list(result.required_tools) == right  # the required order follows the dependencies


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
    found, detail = refusal_of(DESIGN, DESIGNED, json.dumps(design))
    assert found == kind, detail
    assert kind in TASK_REFUSALS


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
    told = {task.task_type: DESIGN.ask(task)[0].content for task in benchmark_tasks("benchmark-v1")[:40]}
    assert "one that another chosen tool depends on" in told["advanced_computation_pipeline"]
    assert "no tool beyond the steps" in told["complex_network_integration"]
    assert "Take 5 to 7 of" in told["advanced_computation_pipeline"]


def test_each_tool_gets_a_step_of_its_own():
    """Names of the default library, whose dependencies say that computation_analyzer needs parser and aggregator."""
    parser, aggregator, analyzer = "data_processing_parser", "data_processing_aggregator", "computation_analyzer"
    steps = (BriefStep("read", "", (parser, aggregator)), BriefStep("compute", "", (analyzer, parser)))

    def brief(repeats_last):
        return DesignBrief(steps, (parser, aggregator, analyzer), 1, 3, True, repeats_last)

    def operations(*names, repeats_last=False):
        return carried_operations(names, brief(repeats_last), LIBRARY)

    assert operations(parser) == ["read"]
    assert operations(parser, aggregator) == ["compute", "read"]  # the first moves over
    assert operations(parser, analyzer) == ["read", "compute"]
    everything = operations(parser, aggregator, analyzer)
    assert (sorted(everything), everything[2]) == (["compute", "prerequisite", "read"], "compute")
    assert sorted(operations(parser, aggregator, analyzer, repeats_last=True)) == ["compute", "compute", "read"]
    assert operations(analyzer, "computation_predictor") is None


# Whatever a model writes


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

BY_WORDS = default_retriever(LIBRARY, "lexical")
WORD_REWRITE = RewriteMode(LIBRARY, BY_WORDS)
WORD_DESIGN = DesignMode(LIBRARY, BY_WORDS)


@given(answers)
def test_any_answer_becomes_a_task_or_a_typed_refusal(answer):
    for mode, task in ((WORD_REWRITE, TASK), (WORD_DESIGN, DESIGNED), (WORD_DESIGN, FREE)):
        kind = None
        try:
            Task.from_mapping(mode.read(task, answer).to_mapping(), LIBRARY)
        except RefusedAnswer as refused:
            kind = refused.args[0]
        assert kind is None or kind in TASK_REFUSALS


TASKS = benchmark_tasks("benchmark-v1")[:10]


class PlainMode:
    """Asks for a description by the task's id and takes any answer but "bad"; needs no retrieval."""

    name = "plain"

    def ask(self, task):
        return (ChatMessage("user", task.instance_id),)

    def read(self, task, answer):
        if answer == "bad":
            raise RefusedAnswer("not_solvable", "it is bad")
        return dataclasses.replace(task, description=answer)


def enhance_one(mode, script, task=TASKS[2], **options):
    model = ScriptedChatModel(script, name="openai:small")

    async def once():
        enhancer = TaskEnhancer(mode, model, EnhancementOptions(**options))
        try:
            return await enhancer.enhance(task)
        finally:
            await enhancer.aclose()

    return asyncio.run(once()), model


def enhance_all(function, tasks=TASKS, mode=None, **options):
    model = FunctionModel(function)
    enhancer = TaskEnhancer(mode or PlainMode(), model, EnhancementOptions(re_asks=0))
    return list(enhance_tasks(tasks, enhancer, **options)), model


# One task


def test_a_rewritten_task_says_who_wrote_it():
    task = TASKS[2]
    result, model = enhance_one(REWRITE, [good_rewrite(task)], seed=7, temperature=0.5)
    assert result.outcome == "enhanced"
    assert result.task.instance_id == task.instance_id
    assert result.task.original_description == task.description
    assert result.task.description == good_description(task)
    assert result.task.metadata == {
        **task.metadata,
        "llm_generated": True,
        "enhancement": {
            "mode": "rewrite",
            "model": "openai:small",
            "made_from": task.instance_id,
            "outcome": "enhanced",
            "reason": None,
            "detail": None,
        },
    }
    assert (result.count.calls, result.count.cached_calls) == (1, 0)
    [request] = model.requests
    assert (request.role, request.seed, request.temperature, request.max_tokens) == ("task_writer", 7, 0.5, 1500)


def test_a_bad_answer_is_sent_back_once_with_the_reason():
    task = TASKS[2]
    script = ["I cannot.", ScriptedReply(good_rewrite(task), expect="the answer holds no JSON object")]
    result, model = enhance_one(REWRITE, script)
    assert result.outcome == "enhanced"
    assert result.count.calls == 2
    roles = [message.role for message in model.requests[1].messages]
    assert roles == ["system", "user", "assistant", "user"]
    assert model.requests[1].messages[2].content == "I cannot."


def test_after_the_last_bad_answer_the_original_stays():
    task = TASKS[2]
    result, model = enhance_one(REWRITE, ["", '{"description": "Do it."}'])
    assert (result.outcome, result.reason) == ("refused", "lost_value")
    assert model.remaining == 0
    assert model.requests[1].messages[2].content == "(no answer)"
    facts = result.task.metadata["enhancement"]
    assert (facts["outcome"], facts["reason"]) == ("refused", "lost_value")
    assert "has to stand in it unchanged" in facts["detail"]
    assert result.task.metadata["llm_generated"] is False
    assert dataclasses.replace(result.task, metadata=task.metadata) == task
    once, model = enhance_one(REWRITE, ["no"], re_asks=0)
    assert (once.reason, len(model.requests)) == ("not_json", 1)


def test_an_answer_that_was_cut_off_says_so():
    reply = ChatReply('{"description": "It be', usage=TokenUsage(3, 20), finish_reason="length")
    result, _ = enhance_one(REWRITE, [reply], re_asks=0, max_tokens=20)
    assert result.reason == "cut_off"
    assert "was cut off at the limit of tokens" in result.task.metadata["enhancement"]["detail"]


def test_an_endpoint_that_fails_leaves_the_original():
    for error, detail in (
        (EndpointError("down", 503), "status 503"),
        (EndpointError("down"), "no answer"),
        (RequestRefusedError("too long", 400), "status 400"),
    ):
        result, _ = enhance_one(REWRITE, ["bad", error])
        assert (result.outcome, result.reason, result.error) == ("failed", "endpoint", error)
        assert result.count.calls == 1
        assert result.task.metadata["enhancement"]["detail"] == detail
        assert result.task.description == TASKS[2].description
    with pytest.raises(RequestRefusedError):
        enhance_one(REWRITE, [RequestRefusedError("wrong key", 401)])


# Many tasks


def test_results_stand_in_the_order_of_the_tasks():
    results, model = enhance_all(lambda text: f"better {text}", concurrency=4)
    assert [result.task.description for result in results] == [f"better {task.instance_id}" for task in TASKS]
    assert [result.original for result in results] == list(TASKS)
    assert model.closed


def test_work_overlaps_up_to_the_limit_within_a_window():
    under_way = most = begun = 0

    async def work(item):
        nonlocal under_way, most, begun
        begun += 1
        under_way += 1
        most = max(most, under_way)
        for _ in range(30 if item == 0 else 1):  # the first takes longest
            await asyncio.sleep(0)
        under_way -= 1
        return item * item

    async def all_of_them():
        stream = in_order(work, range(50), concurrency=3, window=5)
        results = [await anext(stream)]
        assert begun == 5  # the others were done while the first one took its time, and no more than the window
        return results + [result async for result in stream]

    assert asyncio.run(all_of_them()) == [item * item for item in range(50)]
    assert most == 3


def test_tasks_are_read_as_they_are_needed():
    read = []

    def source():
        for task in benchmark_tasks("benchmark-v1"):
            read.append(task)
            yield task

    enhancer = TaskEnhancer(PlainMode(), model := FunctionModel(lambda text: "x"))
    stream = enhance_tasks(source(), enhancer, concurrency=2)
    assert next(stream).outcome == "enhanced"
    assert len(read) == 8
    stream.close()
    assert model.closed


def failing(places, error=None):
    ids = {TASKS[place].instance_id for place in places}
    return lambda text: (error or EndpointError("the endpoint is down", 500)) if text in ids else f"better {text}"


def collect(function, tasks=TASKS, **options):
    """Return what was yielded before the run ended, and how it ended."""
    results = []
    enhancer = TaskEnhancer(PlainMode(), model := FunctionModel(function), EnhancementOptions(re_asks=0))
    with pytest.raises((InfrastructureError, InvalidInputError)) as caught:
        results.extend(enhance_tasks(tasks, enhancer, **options))
    assert model.closed
    return results, caught.value


def test_refusals_end_the_run_as_bad_input():
    results, error = collect(failing(range(10), RequestRefusedError("no such parameter", 400)), give_up_after=2)
    assert isinstance(error, InvalidInputError)
    assert results == []
    results, error = collect(failing([5], RequestRefusedError("wrong key", 401)), concurrency=1)
    assert isinstance(error, RequestRefusedError)
    assert len(results) <= 5


def test_a_task_that_was_designed_before_is_refused():
    tasks = [task for task in benchmark_tasks("benchmark-v1") if task.task_type == "basic_file_processing"][:3]
    design = json.dumps(good_design())
    results, _ = enhance_all(lambda text: design, tasks, DESIGN)
    assert [result.outcome for result in results] == ["enhanced", "refused", "refused"]
    new = results[0].task
    assert new.metadata["enhancement"]["made_from"] == tasks[0].instance_id != new.instance_id
    assert results[1].reason == "duplicate"
    assert results[1].task.required_tools == tasks[1].required_tools
    again, _ = enhance_all(lambda text: design, tasks, DESIGN, taken_ids=[results[0].task.instance_id])
    assert [result.reason for result in again] == ["duplicate"] * 3
    assert len({result.task.instance_id for result in (*results, *again)}) == 4


def test_totals_count_outcomes_reasons_and_calls():
    results, _ = enhance_all(
        lambda text: ChatReply("bad" if text == TASKS[1].instance_id else "good", usage=TokenUsage(5, 2))
    )
    failed, _ = enhance_all(failing([3]))
    totals = EnhancementTotals()
    for result in (*results, failed[3]):
        totals.add(result)
    assert totals.to_mapping() == {
        "tasks": 11,
        "enhanced": 9,
        "refused": 1,
        "failed": 1,
        "refusals": {"not_solvable": 1},
        "calls": 10,
        "cached_calls": 0,
        "prompt_tokens": 50,
        "completion_tokens": 20,
        "is_estimate": False,
    }


# The file

ARGUMENTS = {"mode": "plain", "model": "m"}


def test_a_file_is_gone_on_with_after_its_last_whole_line(tmp_path):
    path = tmp_path / "tasks.jsonl"
    results, _ = enhance_all(lambda text: "bad" if text == TASKS[1].instance_id else f"better {text}")
    with EnhancedTasksFile(path, ARGUMENTS, TASKS) as file:
        for result in results:
            file.write(result.task)
    whole = path.read_bytes()
    assert [task.instance_id for task in read_tasks_file(path, LIBRARY)] == [task.instance_id for task in TASKS]
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + lines[4][:100])  # as a kill leaves it
    assert num_finished(path, ARGUMENTS, TASKS) == 4
    totals = EnhancementTotals()
    with EnhancedTasksFile(path, ARGUMENTS, TASKS, totals.add_written) as file:
        assert file.num_written == 4
        assert file.ids == {task.instance_id for task in TASKS[:4]}
        assert (totals.outcomes["enhanced"], totals.refusals["not_solvable"]) == (3, 1)
        for result in results[4:]:
            file.write(result.task)
    assert path.read_bytes() == whole


def test_a_file_of_something_else_is_refused_and_untouched(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"my notes")
    for use in (EnhancedTasksFile, num_finished):
        with pytest.raises(StoreError, match="use another --out"):
            use(path, ARGUMENTS, TASKS)
    assert path.read_bytes() == b"my notes"
    assert not manifest_of(path).exists()
    with pytest.raises(StoreError, match="no regular file"):
        EnhancedTasksFile(tmp_path, ARGUMENTS, TASKS)


def test_other_arguments_or_tasks_are_refused_by_the_first_difference(tmp_path):
    path = tmp_path / "tasks.jsonl"
    results, _ = enhance_all(lambda text: "x")
    with EnhancedTasksFile(path, ARGUMENTS, TASKS) as file:
        file.write(results[0].task)
    with pytest.raises(StoreError, match='model is "m" there and "n" here'):
        EnhancedTasksFile(path, {**ARGUMENTS, "model": "n"}, TASKS)
    with pytest.raises(StoreError, match="tasks is"):
        EnhancedTasksFile(path, ARGUMENTS, TASKS[1:])
    with EnhancedTasksFile(path, ARGUMENTS, TASKS), pytest.raises(StoreError, match="another process"):
        EnhancedTasksFile(path, ARGUMENTS, TASKS)
    path.write_bytes(path.read_bytes().replace(TASKS[0].instance_id.encode(), b"task_0"))
    with pytest.raises(StoreError, match=r"line 1 .* is not the task that belongs there"):
        EnhancedTasksFile(path, ARGUMENTS, TASKS)


# The forecast


def test_the_forecast_counts_calls_and_tokens_and_asks_nothing():
    options = EnhancementOptions(max_tokens=100, re_asks=1)
    forecast = forecast_calls(map(REWRITE.ask, TASKS), options)
    prompts = sum(estimated_prompt_tokens(options.request(REWRITE.ask(task))) for task in TASKS)
    assert (forecast.questions, forecast.cached, forecast.calls, forecast.most_calls) == (10, 0, 10, 20)
    assert forecast.prompt_tokens_estimate == prompts
    assert 2 * prompts + 10 * 100 < forecast.most_prompt_tokens_estimate < 2 * prompts + 10 * 400
    assert forecast.most_completion_tokens == 1000
    assert forecast.most_completion_tokens_with_re_asks == 2000

    def is_known(request):
        return TASKS[0].description in request.messages[1].content

    known = forecast_calls(map(REWRITE.ask, TASKS), options, is_known)
    assert (known.cached, known.calls, known.most_calls) == (1, 9, 19)
    assert known.prompt_tokens_estimate < prompts
    once = forecast_calls(map(DESIGN.ask, TASKS), dataclasses.replace(options, re_asks=0))
    assert once.calls == once.most_calls == 10
    assert once.prompt_tokens_estimate == once.most_prompt_tokens_estimate


@pytest.mark.parametrize(
    ("places", "num_tasks", "give_up_after", "failed"),
    [([0, 1, 4, 9], 10, 3, [0, 1, 4, 9]), (range(10), 2, 5, [0, 1]), (range(10), 7, 0, range(7))],
)
def test_failures_that_do_not_end_the_run_keep_originals_and_the_order(places, num_tasks, give_up_after, failed):
    results, _ = enhance_all(failing(places), TASKS[:num_tasks], give_up_after=give_up_after)
    assert [place for place, result in enumerate(results) if result.outcome == "failed"] == list(failed)
    assert [result.original for result in results] == list(TASKS[:num_tasks])
    assert all(results[place].task.description == TASKS[place].description for place in failed)


@pytest.mark.parametrize(("places", "concurrency", "yielded"), [(range(4, 10), 1, 4), (range(10), 8, 0)])
def test_failures_in_a_row_end_the_run_and_none_of_them_is_yielded(places, concurrency, yielded):
    results, error = collect(failing(places), give_up_after=3, concurrency=concurrency)
    assert isinstance(error, InfrastructureError)
    assert str(error).startswith("the endpoint is down; stopped after 3 tasks in a row")
    assert [result.original for result in results] == list(TASKS[:yielded])


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (EnhancementOptions, {"temperature": -1}),
        (EnhancementOptions, {"temperature": 2.1}),
        (EnhancementOptions, {"max_tokens": 0}),
        (EnhancementOptions, {"re_asks": -1}),
        (lambda **options: enhance_all(lambda text: "x", **options), {"concurrency": 0}),
        (lambda **options: enhance_all(lambda text: "x", **options), {"give_up_after": -1}),
    ],
)
def test_numbers_out_of_range_are_refused(make, options):
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        make(**options)
