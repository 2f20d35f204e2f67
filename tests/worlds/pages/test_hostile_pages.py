"""Whatever a page holds is data, for every agent: none of it ends, calls, judges or fills in anything."""

import json

import pytest

from resilisim.chat import ScriptedChatModel
from resilisim.datasets import export_dataset, read_records
from resilisim.datasets.conversations import ConversationSpec
from resilisim.datasets.rollout import TRAINING_ENVIRONMENT
from resilisim.envs import ConversationEnv, EnvironmentSettings
from resilisim.evaluation import play_episode
from resilisim.policies import make_policy
from resilisim.policies.registry import LLM_POLICIES
from resilisim.tasks import split_of
from resilisim.tasks.split import split_of_task
from resilisim.worlds import load_world
from tests.worlds.pages.hostile import NAME, TASK, TEXT

ENVIRONMENT = ConversationEnv(EnvironmentSettings().in_world(NAME))
SEARCH = 'Thought: I search.\nAction: search {"query": "Ostrel"}'
FINISH = 'Thought: It stands there.\nAction: finish {"answer": "Mirren"}'
STEPS = json.dumps({"steps": [{"step": 1, "task": "Search for Ostrel and say which river it lies on.", "needs": []}]})
CHAIN = """tasks:
  - task_id: T1
    task_description: Search for Ostrel
    task_type: Tool call
    tool_name: search
    input_parameters: [{name: query, type: string, value: Ostrel, is_reference: false}]
    expected_output_entities: [{name: river, type: string, description: the river}]
    dependencies: []
    execution_status: pending
    execution_result: {}
  - task_id: T2
    task_description: Give the river
    task_type: Reasoning
    tool_name: ""
    input_parameters: [{name: river, type: string, value: <JSON_PATH>T1.river</JSON_PATH>, is_reference: true}]
    expected_output_entities: [{name: final_answer, type: string, description: the answer}]
    dependencies: [T1]
    execution_status: pending
    execution_result: {}
"""
EXTRACTED = "confidence_score: 0.95\nextracted_entities: {river: Mirren}\nentities_summary: It stands there"
REASONED = """Justifications:
1. The input says so.

execution_result: {status: completed, outputs: {final_answer: Mirren}}
execution_details: {reasoning_steps: [The input says so]}
"""
SCRIPTS = {
    "direct": ['<tool_call>search {"query": "Ostrel"}</tool_call>', "<finish>Mirren</finish>"],
    "react": [SEARCH, FINISH],
    "plan-and-execute": [STEPS, SEARCH, FINISH, '{"answer": "Mirren"}'],
    "code-act": ["```python\nprint(tool_call('search', {'query': 'Ostrel'}))\n```", "```python\nfinish('Mirren')\n```"],
    "reflexion": [SEARCH, FINISH, '{"reason": "It stands there.", "success": true}'],
    "rp-react": [
        "<|begin_search_query|>Which river does Ostrel lie on?<|end_search_query|>",
        SEARCH,
        FINISH,
        "<Finish>Mirren</Finish>",
    ],
    "kpi-chain": [CHAIN, EXTRACTED, REASONED],
}


@pytest.mark.parametrize("agent", LLM_POLICIES)
def test_markup_on_a_page_is_read_and_nothing_else(agent):
    model = ScriptedChatModel(SCRIPTS[agent])
    record = play_episode(ENVIRONMENT, make_policy(agent, models=model), TASK, "baseline", seed=0)
    assert [(step["kind"], step["tool"]) for step in record["steps"]] == [("execute", "search"), ("finish", None)]
    assert (record["answer"], record["outcome"]) == ("Mirren", 1)
    assert len(model.requests) == len(SCRIPTS[agent])  # nothing on the page was taken for a reply
    read = "\n".join(message.content for request in model.requests for message in request.messages)
    whole = json.dumps(TEXT, ensure_ascii=False)[1:-1]
    assert any(text in read for text in (whole, TEXT, repr(TEXT)[1:-1]))  # and none of it was lost on the way


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
