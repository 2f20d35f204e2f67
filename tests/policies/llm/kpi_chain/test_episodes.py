"""KPI-Chain in Conversation-v0: whole episodes with a scripted model, successes and failures of simulated tools."""

from __future__ import annotations

import json

import pytest

from resilisim.chat import ScriptedChatModel
from resilisim.policies.llm.kpi_chain import KpiChain
from resilisim.tasks import Task
from tests.policies.llm.kpi_chain.chains import (
    answer_task,
    entity,
    extracted,
    given,
    planned,
    reasoned,
    ref,
    replanned,
    tool_task,
)
from tests.policies.llm.playing import PARSER, READER, TASK, environment, play_scripted, scripted


def call_task(task_id: str, tool: str, *found: object, needs: tuple[str, ...] = (), **parameters: object):
    """A call of a library tool through `tool_call`."""
    inputs = [given("name", tool), given("parameters", parameters, "object")]
    return tool_task(task_id, "", *found, needs=needs, tool_name="tool_call", input_parameters=inputs)


PLAN = planned(
    call_task("T1", READER, entity("read", "boolean"), source=TASK["inputs"]["source"]),
    call_task("T2", PARSER, entity("parsed", "boolean"), needs=("T1",)),
    answer_task("T3", "T1.read", "T2.parsed"),
    expect=TASK["inputs"]["source"],
)
SUCCESS = [
    PLAN,
    extracted(0.9, f"{READER} executed successfully", read=True),
    extracted(0.9, f"{PARSER} executed successfully", parsed=True),
    reasoned("value: true", final_answer="Both are done."),
]


@pytest.mark.parametrize("prompt", ["baseline", "optimal"])
@pytest.mark.parametrize("protocol", ["text", "native"])
def test_a_plan_that_succeeds(prompt, protocol):
    record = play_scripted(KpiChain(models=scripted(*SUCCESS)), prompt, protocol=protocol)
    assert record["score"]["level"] == "full_success"
    assert record["ended_by"] == "completion"
    assert [step["tool"] for step in record["steps"][:2]] == [READER, PARSER]
    assert len(record["steps"]) == 3, "only calls and the finish use turns"
    assert record["protocol"] == "text", "it has its own way of calling"


def played(script, seed=0, **options):
    """Play an episode; return its messages, its score and the agent's record."""
    record = play_scripted(KpiChain(models=ScriptedChatModel(script)), seed=seed, **options)
    return [step["message"] for step in record["steps"]], record["score"], record["agent"]


def seed_of(*pattern: bool) -> int:
    """The first seed on which the reader's attempts go like that and the parser then succeeds at once."""
    env = environment(base=0.5, history=1.0)
    for seed in range(1000):
        env.reset(seed=seed, options={"task": Task.from_mapping(TASK, env.library), "prompt": "optimal"})
        tools = [READER] * len(pattern) + [PARSER]
        luck = [env.step(f"<tool_call>{tool}</tool_call>")[-1]["execution"]["success"] for tool in tools]
        if luck == [*pattern, True]:
            return seed
    raise AssertionError("no such seed")


def test_a_simulated_failure_is_told_to_the_replanner_and_tried_again():
    script = [
        planned(
            call_task("T1", READER, entity("read", "boolean")),
            call_task("T2", PARSER, entity("parsed", "boolean"), needs=("T1",)),
            answer_task("T3", "T2.parsed"),
        ),
        replanned(
            call_task("T1a", READER, entity("read", "boolean")),
            call_task("T2a", PARSER, entity("parsed", "boolean"), needs=("T1a",)),
            answer_task("T3a", "T2a.parsed"),
            expect=f"Task T1 failed: the tool 'tool_call' returned an error.\nError: {READER} failed. Error: ",
        ),
        extracted(0.9, read=True),
        extracted(0.9, parsed=True),
        reasoned(final_answer="done"),
    ]
    sent, score, record = played(script, seed_of(False, True), base=0.5, history=1.0)
    assert score["level"] == "full_success"
    assert len(sent) == 4
    assert record["ended_by"] == "answer"
    assert record["counters"]["replans"] == 1
    assert record["structure"]["replans"] == {"T1": 1}
    assert record["first_failure"] is None
    assert record["components"]["replanner"]["calls"] == 1
    json.dumps(record)


def test_tools_that_always_fail_end_the_chain_and_are_what_it_is_put_down_to():
    def again(task_id):
        return replanned(call_task(task_id, READER, entity("final_answer", "boolean")))

    script = [planned(call_task("T1", READER, entity("final_answer", "boolean"))), *map(again, ["T1a", "T1b", "T1c"])]
    sent, score, record = played(script, base=1e-12)
    assert (len(sent), sent[-1]) == (5, "")
    assert score["ended_by"] == "stopped"
    assert record["ended_by"] == "gave_up"
    assert record["first_failure"]["component"] == "tool"
    assert [task["execution_status"] for task in record["structure"]["plan"]["tasks"]] == ["failed"] * 4


def test_turns_that_run_out_inside_a_call():
    plan = planned(
        *(call_task(f"T{n}", READER, entity("read", "boolean")) for n in range(1, 5)), answer_task("T5", "T1.read")
    )
    _, score, record = played([plan, *[extracted(0.9, read=True)] * 2], max_turns=2)
    assert score["ended_by"] == "turns"
    assert record["ended_by"] == "environment"
    assert record["structure"]["memory"] == {"T1": {"read": True}, "T2": {"read": True}}
    assert record["first_failure"] is None


def test_a_search_feeds_the_call():
    search = tool_task("T1", "read a file", "tool", tool_name="tool_search")
    call = tool_task(
        "T2",
        "",
        entity("final_answer", "boolean"),
        needs=("T1",),
        tool_name="tool_call",
        input_parameters=[given("name", ref("T1.tool"))],
    )
    script = [planned(search, call), extracted(0.9, READER, tool=READER), extracted(0.9, final_answer=True)]
    sent, score, _ = played(script)
    assert [message.partition(">")[0] for message in sent] == ["<tool_search", "<tool_call", "<finish/"]
    assert score["level"] != "full_success", "the parser is missing"
