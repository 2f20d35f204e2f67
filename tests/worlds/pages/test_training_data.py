"""Conversations of the reference solutions, exported as those of the benchmark are."""

import json

from resilisim.datasets import export_dataset, read_records
from resilisim.datasets.conversations import ConversationSpec
from resilisim.datasets.rollout import TRAINING_ENVIRONMENT
from resilisim.tasks import split_of, split_of_task
from resilisim.worlds import load_world
from tests.worlds.pages.hostile import NAME, TASK, TEXT

NATIVE = TRAINING_ENVIRONMENT.with_options(protocol="native")


def exported(folder, **options):
    result = export_dataset(ConversationSpec(prompts=("baseline",), **options), NAME, folder, tokenizer="none")
    (record,) = read_records(result.directory)
    return record


def test_the_reference_solution_is_demonstrated_in_the_text_protocol(tmp_path):
    record = exported(tmp_path / "data")
    assert (record["policy"], record["reward"], record["split"]) == ("reference", 1.0, TASK.metadata["split"])
    prompt, search, page, end = record["messages"]
    assert TASK.description.splitlines()[0] in prompt["content"]
    assert search["content"] == '<tool_call>search {"query": "Ostrel"}</tool_call>'
    assert json.dumps(TEXT, ensure_ascii=False) in page["content"]
    assert end["content"] == "<finish>Mirren</finish>"
    assert [turn["regret"] for turn in record["turns"]] == [0.0, 0.0]


def test_it_becomes_native_calls_where_the_protocol_is_native(tmp_path):
    record = exported(tmp_path / "data", environment=NATIVE)
    calls = [message["tool_calls"][0]["function"] for message in record["messages"] if message["role"] == "assistant"]
    assert calls == [
        {"name": "tool_call", "arguments": {"name": "search", "parameters": {"query": "Ostrel"}}},
        {"name": "finish", "arguments": {"answer": "Mirren"}},
    ]
    assert "answer" in record["tools"][-1]["function"]["parameters"]["properties"]


def test_tasks_of_a_world_are_split_by_question_and_others_by_their_tools():
    splits = {split_of_task(task) for task in load_world("pages-v1").tasks()[:60]}
    assert splits == {"train", "validation", "test"}
    assert split_of_task(TASK) == TASK.metadata["split"] == split_of((TASK.instance_id,))
