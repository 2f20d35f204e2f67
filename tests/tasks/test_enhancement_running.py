"""One task with its re-asks, many tasks in order, the file that goes on, the forecast."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest

from resilisim.chat import (
    ChatMessage,
    ChatReply,
    EndpointError,
    RequestRefusedError,
    ScriptedChatModel,
    ScriptedReply,
    TokenUsage,
)
from resilisim.chat.types import estimated_prompt_tokens
from resilisim.errors import InfrastructureError, InvalidInputError, StoreError
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.enhancement import (
    DesignMode,
    EnhancedTasksFile,
    EnhancementOptions,
    EnhancementTotals,
    Refusal,
    RewriteMode,
    TaskEnhancer,
    enhance_tasks,
    forecast_calls,
)
from resilisim.tasks.enhancement.enhancer import in_order
from resilisim.tasks.enhancement.files import manifest_of, num_finished
from resilisim.tasks.sources import read_tasks_file
from resilisim.tool_library.library import default_library
from resilisim.tool_library.retrieval import default_retriever
from tests.tasks.enhancement_answers import FunctionModel, good_description, good_design, good_rewrite

LIBRARY = default_library()
REWRITE = RewriteMode(LIBRARY, default_retriever(LIBRARY))
DESIGN = DesignMode(LIBRARY, default_retriever(LIBRARY))
TASKS = benchmark_tasks()[:10]


class PlainMode:
    """Asks for a description by the task's id and takes any answer but "bad"; needs no retrieval."""

    name = "plain"

    def ask(self, task):
        return (ChatMessage("user", task.instance_id),)

    def read(self, task, answer):
        if answer == "bad":
            return Refusal("not_solvable", "it is bad")
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
    assert "after 20 tokens" in result.task.metadata["enhancement"]["detail"]


def test_a_design_remembers_the_task_in_whose_place_it_stands():
    task = next(task for task in benchmark_tasks() if task.task_type == "basic_file_processing")
    result, _ = enhance_one(DESIGN, [json.dumps(good_design())], task)
    assert result.outcome == "enhanced"
    assert result.task.metadata["enhancement"]["made_from"] == task.instance_id
    assert result.task.metadata["llm_generated"] is True
    assert result.task.metadata["inputs_generated_from"] == "llm"
    refused, _ = enhance_one(DESIGN, ["{}"], task, re_asks=0)
    assert refused.task.required_tools == task.required_tools
    assert refused.task.instance_id == task.instance_id
    assert refused.task.metadata["inputs_generated_from"] == "rules"


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


@pytest.mark.parametrize("options", [{"temperature": -1}, {"temperature": 2.1}, {"max_tokens": 0}, {"re_asks": -1}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        EnhancementOptions(**options)


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
        for task in benchmark_tasks():
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


def test_single_failures_keep_the_original_and_the_order():
    results, _ = enhance_all(failing([0, 1, 4, 9]), give_up_after=3)
    outcomes = [result.outcome for result in results]
    assert [place for place, outcome in enumerate(outcomes) if outcome == "failed"] == [0, 1, 4, 9]
    assert [result.original for result in results] == list(TASKS)


def collect(function, tasks=TASKS, **options):
    """Return what was yielded before the run ended, and how it ended."""
    results = []
    enhancer = TaskEnhancer(PlainMode(), model := FunctionModel(function), EnhancementOptions(re_asks=0))
    with pytest.raises((InfrastructureError, InvalidInputError)) as caught:
        results.extend(enhance_tasks(tasks, enhancer, **options))
    assert model.closed
    return results, caught.value


def test_failures_in_a_row_end_the_run_and_none_of_them_is_yielded():
    results, error = collect(failing(range(4, 10)), give_up_after=3, concurrency=1)
    assert isinstance(error, InfrastructureError)
    assert str(error).startswith("the endpoint is down; stopped after 3 tasks in a row")
    assert [result.original for result in results] == list(TASKS[:4])


def test_an_endpoint_that_never_answers_ends_the_run_or_leaves_few_tasks_as_they_were():
    results, error = collect(failing(range(10)), TASKS[:7], give_up_after=5)
    assert isinstance(error, InfrastructureError)
    assert results == []
    few, _ = enhance_all(failing(range(10)), TASKS[:2], give_up_after=5)
    assert [result.outcome for result in few] == ["failed"] * 2
    assert [result.task.description for result in few] == [task.description for task in TASKS[:2]]
    kept, _ = enhance_all(failing(range(10)), TASKS[:7], give_up_after=0)
    assert [result.outcome for result in kept] == ["failed"] * 7


def test_refusals_end_the_run_as_bad_input():
    results, error = collect(failing(range(10), RequestRefusedError("no such parameter", 400)), give_up_after=2)
    assert isinstance(error, InvalidInputError)
    assert results == []
    results, error = collect(failing([5], RequestRefusedError("wrong key", 401)), concurrency=1)
    assert isinstance(error, RequestRefusedError)
    assert len(results) <= 5


def test_a_task_that_was_designed_before_is_refused():
    tasks = [task for task in benchmark_tasks() if task.task_type == "basic_file_processing"][:3]
    design = json.dumps(good_design())
    results, _ = enhance_all(lambda text: design, tasks, DESIGN)
    assert [result.outcome for result in results] == ["enhanced", "refused", "refused"]
    assert results[1].reason == "duplicate"
    assert results[1].task.required_tools == tasks[1].required_tools
    again, _ = enhance_all(lambda text: design, tasks, DESIGN, taken_ids=[results[0].task.instance_id])
    assert [result.reason for result in again] == ["duplicate"] * 3
    assert len({result.task.instance_id for result in (*results, *again)}) == 4


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"give_up_after": -1}])
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        enhance_all(lambda text: "x", **options)


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
    forecast = forecast_calls(TASKS, REWRITE, options)
    prompts = sum(estimated_prompt_tokens(options.request(REWRITE.ask(task))) for task in TASKS)
    assert (forecast.tasks, forecast.cached, forecast.calls, forecast.most_calls) == (10, 0, 10, 20)
    assert forecast.prompt_tokens_estimate == prompts
    assert 2 * prompts + 10 * 100 < forecast.most_prompt_tokens_estimate < 2 * prompts + 10 * 400
    assert forecast.most_completion_tokens == 1000
    assert forecast.most_completion_tokens_with_re_asks == 2000
    known = forecast_calls(TASKS, REWRITE, options, lambda request: TASKS[0].description in request.messages[1].content)
    assert (known.cached, known.calls, known.most_calls) == (1, 9, 19)
    assert known.prompt_tokens_estimate < prompts
    once = forecast_calls(TASKS, DESIGN, dataclasses.replace(options, re_asks=0))
    assert once.calls == once.most_calls == 10
    assert once.prompt_tokens_estimate == once.most_prompt_tokens_estimate
