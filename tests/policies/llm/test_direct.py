"""The direct agent: its replies are the messages, as they stand, in text and with native calls."""

from __future__ import annotations

import json

import pytest

from resilisim.chat import ChatMessage, ChatReply
from resilisim.policies.llm.agents.direct import Direct
from tests.policies.llm.helpers import NONSENSE, PARSER, READER, native, play_scripted, scripted


def test_a_task_done_in_text():
    lines = [f"I read. <tool_call>{READER}</tool_call>", f"<tool_call>{PARSER}</tool_call>", "Done. <finish/>"]
    model = scripted(*lines)
    record = play_scripted(Direct(models=model))
    assert record["outcome"] == 1
    assert [step["message"] for step in record["steps"]] == lines
    assert record["agent"]["protocol"] == "text"
    assert record["agent"]["ended_by"] == "environment"
    assert record["agent"]["first_failure"] is None
    first, _, last = model.requests
    assert [message.role for message in first.messages] == ["system", "user"]
    assert "<tool_search>" in first.messages[1].content, "it writes tags itself, so it is told how"
    assert [message.role for message in last.messages[2:]] == ["assistant", "user"] * 2
    assert last.messages[2].content == lines[0]
    assert f"{READER} executed successfully." in last.messages[3].content
    assert {request.role for request in model.requests} == {"agent"}
    assert first.tools == () == first.stop


def test_a_task_done_with_native_calls():
    replies = [
        native(("a", "tool_call", json.dumps({"name": READER})), text="I read."),
        native(("b", "tool_call", json.dumps({"name": PARSER})), ("c", "finish", "{}")),
        native(("d", "finish", "{}")),
    ]
    model = scripted(*replies)
    record = play_scripted(Direct(models=model), protocol="native")
    assert record["outcome"] == 1
    assert record["protocol"] == record["agent"]["protocol"] == "native"
    first, _, last = model.requests
    assert [tool["function"]["name"] for tool in first.tools] == ["tool_search", "tool_info", "tool_call", "finish"]
    calls = last.messages[4]
    assert [call.id for call in calls.tool_calls] == ["b", "c"]
    assert [(message.role, message.tool_call_id) for message in last.messages[5:]] == [("tool", "b"), ("tool", "c")]
    assert f"{PARSER} executed successfully." in last.messages[5].content
    assert "1 more was ignored" in last.messages[5].content


def test_a_call_in_another_form_is_a_call_whatever_is_made_up_behind_it():
    call = f'Action: tool_call {{"name": "{READER}"}}'
    bare = f'{{"name": "tool_call", "arguments": {{"name": "{READER}"}}}}'
    kinds = {
        f"{call}\nObservation: ok\nThought: The task is complete.\nAction: finish": "execute",
        f"{call}\n<finish/>": "execute",
        f"Thought: Step 1 of the task is done.\n{call}": "execute",
        f"```json\n{bare}\n```\nThe task is complete.": "execute",
        f"The task is complete. The last call was:\n```json\n{bare}\n```": "finish",
        "Thought: All has run.\nAction: finish": "finish",
        f"<tool_call>{READER}</tool_call>" * 10: "execute",
    }
    for reply, kind in kinds.items():
        record = play_scripted(Direct(models=scripted(reply, "<finish/>")))
        assert [step["kind"] for step in record["steps"]][:2] == [kind, "finish"][: 1 + (kind != "finish")], reply


MALFORMED = {
    **{name: reply for name, reply in NONSENSE.items() if name != "ten tags"},
    "more than a megabyte": "x" * 1_000_001,
    "invalid JSON": f'<tool_call>{READER} {{"source": </tool_call>',
    "unclosed tag": f"<tool_call>{READER}",
}


@pytest.mark.parametrize("protocol", ["text", "native"])
@pytest.mark.parametrize("reply", MALFORMED.values(), ids=list(MALFORMED))
def test_malformed_replies_are_sent_and_cost_a_turn(reply, protocol):
    model = scripted(reply, "Is this better?", "<finish/>")
    record = play_scripted(Direct(models=model), protocol=protocol)
    assert record["steps"][0]["kind"] in ("format_error", "rejected")
    assert len(record["steps"]) == 3
    events = [event["kind"] for event in record["agent"]["events"]]
    assert events == ["invalid_action" if reply == MALFORMED["invalid JSON"] else "malformed_reply", "malformed_reply"]
    assert sum(record["agent"]["counters"].values()) == 2
    for request in model.requests:
        assert all(message.content for message in request.messages)
        assert sum(len(message.content) for message in request.messages) < 60_000


def test_broken_native_calls_leave_a_conversation_that_endpoints_take():
    model = scripted(native(("", "tool call!", '{"name": '), ("", "tool_call", "[]")), native(("x", "finish", "{}")))
    record = play_scripted(Direct(models=model), protocol="native")
    assert [step["kind"] for step in record["steps"]] == ["format_error", "finish"]
    kept = model.requests[1].messages[2].tool_calls
    assert [call.name for call in kept] == ["tool_call_", "tool_call"]
    assert all(isinstance(json.loads(call.arguments), dict) for call in kept)
    assert len({call.id for call in kept}) == 2
    assert record["agent"]["events"][0]["details"]["excerpt"] == 'tool call! {"name": '


@pytest.mark.parametrize("protocol", ["text", "native"])
def test_the_reply_with_which_the_episode_ends_is_counted_too(protocol):
    record = play_scripted(Direct(models=scripted(*["Hm."] * 4)), max_turns=3, protocol=protocol)
    assert len(record["steps"]) == 4
    assert [event["kind"] for event in record["agent"]["events"]] == ["malformed_reply"] * 4
    assert record["agent"]["counters"] == {"malformed_replies": 4}
    model = scripted(ChatReply("Let me", finish_reason="length"), "Hm.")
    record = play_scripted(Direct(models=model, max_llm_calls=2), protocol=protocol)
    assert (record["ended_by"], record["agent"]["ended_by"]) == ("stopped", "max_llm_calls")
    assert model.requests[1].messages[2:3] == (ChatMessage("assistant", "Let me"),)
    assert model.requests[1].messages[-1].content.startswith("The reply was cut off, because it reached the limit")
