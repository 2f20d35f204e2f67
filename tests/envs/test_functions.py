"""Sessions: an agent keeps its own loop and meets the same episode as every policy of Conversation-v0."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim import EpisodeEnded, ResiliSimError, ToolFailed, default_library, evaluate, open_session
from resilisim.envs import Session
from resilisim.envs.protocol.message_reader import read_call, read_native
from resilisim.envs.protocol.native_messages import call_text, native_call, native_text, openai_message
from resilisim.envs.session import current_session
from resilisim.errors import InvalidInputError
from resilisim.evaluation import EpisodeRecord
from resilisim.simulator.scoring import rescore
from resilisim.tool_library import Tool, ToolLibrary

TASK = "task_c64444cae27fab46"
SCORES = ("outcome", "optimum", "optimum_gap", "regret", "luck", "losses", "score", "ended_by", "required_tools")


def replay(session: Session, record: EpisodeRecord) -> None:
    """Make the calls of a recorded episode."""
    for step in record["steps"]:
        if step["kind"] == "finish":
            session.finish()
        elif step["kind"] == "stop":
            session.stop()
        else:  # what a text could not say is said by a function that does not exist
            tool = step["tool"] if step["kind"] in ("execute", "rejected") else "no_such_function"
            session.call(tool or "no_such_function")


@pytest.mark.parametrize(
    ("policy", "prompt"),
    [("plan-follower", "optimal"), ("repairing-follower", "flawed"), ("exact-optimum", "baseline")],
)
def test_the_same_calls_are_the_same_episode_as_in_the_environment(policy: str, prompt: str) -> None:
    for record in evaluate(policy, 12, prompt, 3, max_turns=8, parameters="ignore").records():
        if any(step["kind"] in ("search", "info") for step in record["steps"]):
            continue
        with open_session(
            record["instance_id"], record["seed"], record["prompt_type"], max_turns=8, parameters="ignore"
        ) as session:
            replay(session, record)
        mine = session.record()
        assert [mine[name] for name in SCORES] == [record[name] for name in SCORES]
        assert rescore(mine).to_mapping() == mine["score"] == session.score


def test_functions_have_what_frameworks_look_at() -> None:
    with open_session(TASK, parameters="strict") as session:
        tools = {tool.name: tool for tool in session.tools}
        reader = tools["file_operations_reader"]
        signature = inspect.signature(reader)
        assert inspect.isfunction(reader)
        assert reader.__name__ == "file_operations_reader"
        assert signature.parameters["source"].default is inspect.Parameter.empty
        assert signature.parameters["options"].default is None
        assert inspect.get_annotations(reader)["source"] is str
        assert "source: " in (reader.__doc__ or "")
        assert reader.parameters["required"] == ["source"]
        assert list(tools) == [entry["function"]["name"] for entry in session.openai_tools()]
        assert [tool["name"] for tool in session.mcp_tools()] == list(tools)
        assert list(tools)[-1] == "finish"
        assert reader("/data").startswith("file_operations_reader")  # positional, as some frameworks call
    with open_session(TASK) as lenient:
        assert all("required" not in tool.parameters for tool in lenient.tools[:-1])


def test_a_prompt_for_functions_never_speaks_of_tags_or_searches() -> None:
    for style in ("full", "compact"):
        for prompt in ("baseline", "chain_of_thought", "optimal"):
            session = open_session(TASK, prompt=prompt, prompt_style=style)
            said = [session.prompt, str(session.call("no_such_function")), str(session.call("network_fetcher"))]
            assert all("<tool" not in text and "tool_search" not in text and "no tag" not in text for text in said)
            assert "function" in said[0]


def test_discovery_offers_the_four_functions_and_costs_searching() -> None:
    with open_session(TASK, tools="discovery") as session:
        assert [tool.name for tool in session.tools] == ["tool_search", "tool_info", "tool_call", "finish"]
        found = session.tools[0]("scan the files of a folder")
        assert found.ok
        assert found.data[0]["name"] == "file_operations_scanner"
        session.call("tool_call", {"name": "file_operations_scanner", "parameters": {}})
        assert session.turns_left == 8
    native = open_session(TASK)
    native.stop()
    assert session.record()["optimum_after_searches"] < session.record()["optimum"]
    assert native.record()["optimum_after_searches"] is None  # nothing has to be found, so V* is the ceiling


def test_what_failed_is_a_text_with_its_error_or_raised() -> None:
    with open_session(TASK, base=1e-9) as session:
        failed = session.call("network_fetcher", {"source": None})  # None is left out
        assert not failed.ok
        assert failed.error in " ".join(failed.split())
        assert failed.data is None
    with (
        pytest.raises(ToolFailed, match="network_fetcher failed"),
        open_session(TASK, base=1e-9, on_failure="raise") as session,
    ):
        session.call("network_fetcher")
    with open_session(TASK, base=1.0) as session:
        assert session.call("file_operations_scanner").data["success"] is True


def test_leaving_is_the_agents_stop_and_finishing_its_answer() -> None:
    with open_session(TASK) as session:
        session.call("network_fetcher")
    assert (session.record()["ended_by"], session.record()["agent"]["ended_by"]) == ("stopped", "gave_up")
    with open_session(TASK) as session:
        session.finish("all done")
        session.finish("later words change nothing")
    assert (session.record()["ended_by"], session.record()["agent"]["answer"]) == ("completion", "all done")


def test_after_the_end_calls_raise_and_the_block_ends_quietly() -> None:
    calls = 0
    with open_session(TASK, base=1e-9) as session:
        while True:
            calls += 1
            session.call("network_fetcher")
    assert (calls, session.record()["ended_by"]) == (6, "consecutive_failures")
    with pytest.raises(EpisodeEnded):
        session.tools[0]()
    with pytest.raises(EpisodeEnded):
        session.call("finish")
    assert not issubclass(EpisodeEnded, Exception)  # no framework shows it to its model as an error of a tool


async def in_a_group(session: Session) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(session.acall("network_fetcher"))


def wrapped(session: Session) -> None:
    try:
        for _ in range(20):
            session.call("network_fetcher")
    except BaseException as error:
        raise RuntimeError("a framework has words of its own") from error


@pytest.mark.parametrize("play", [lambda session: asyncio.run(in_a_group(session)), wrapped])
def test_an_end_that_a_framework_has_wrapped_is_the_end_all_the_same(play: Callable[[Session], None]) -> None:
    with open_session(TASK, base=1e-9) as session:
        play(session)
    assert session.record()["ended_by"] == "consecutive_failures"
    with pytest.raises(BaseExceptionGroup), open_session(TASK) as session:
        raise BaseExceptionGroup("two", [EpisodeEnded(), ValueError("a bug of the agent")])
    with pytest.raises(EpisodeEnded), open_session(TASK):
        raise EpisodeEnded  # of another session: this one goes on
    assert not session.ended


def test_the_session_under_way_is_that_of_the_innermost_block() -> None:
    def in_a_generator() -> Iterator[Session]:
        with open_session(TASK) as session:
            yield session

    with open_session(TASK) as outer:
        with open_session(TASK) as inner, inner:
            assert current_session() is inner
        assert current_session() is outer
    assert current_session() is None
    generator = in_a_generator()
    contextvars.copy_context().run(next, generator)
    assert list(generator) == []  # its context is another one, and its block ends without a word


def test_schemas_belong_to_whoever_asked_for_them() -> None:
    changed = open_session(TASK)
    for schema in (changed.openai_tools()[0]["function"]["parameters"], changed.mcp_tools()[0]["inputSchema"]):
        assert schema["properties"]
        schema["properties"].clear()
    assert open_session(TASK).openai_tools()[0]["function"]["parameters"]["properties"]
    assert open_session(TASK).tools[0].parameters["properties"]


def test_parameters_may_have_names_that_python_has_not() -> None:
    content = json.loads(default_library().to_json())
    tool = next(tool for tool in content["tools"] if tool["canonical_name"] == "file_operations_reader")
    for parameter, name in zip(tool["parameters"], ("from", "max-size"), strict=True):
        parameter["name"] = name
    library = ToolLibrary.from_json(json.dumps(content))
    task = {"task_type": "basic_task", "description": "Read.", "required_tools": ["file_operations_reader"]}
    session = open_session(task, library=library, parameters="strict", base=1.0)
    reader = next(tool for tool in session.tools if tool.name == "file_operations_reader")
    assert reader(**{"from": "/data"}).ok
    assert list(inspect.signature(reader).parameters) == ["others"]


def test_an_error_in_the_block_has_lost_the_episode_and_one_of_the_network_leaves_no_record() -> None:
    with pytest.raises(ZeroDivisionError), open_session(TASK) as session:
        _ = 1 / 0
    record = session.record()
    assert (record["ended_by"], record["outcome"]) == ("agent_error", 0)
    with pytest.raises(ConnectionError), open_session(TASK) as session:
        raise ConnectionError("refused")
    assert not session.ended
    with pytest.raises(ResiliSimError, match="no record before the episode has ended"):
        session.record()


def test_calls_from_many_threads_are_served_one_after_the_other() -> None:
    with open_session(TASK, max_turns=40, base=1.0, loop_length=0) as session:
        threads = [threading.Thread(target=session.call, args=("network_fetcher",)) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert session.turns_left == 8
    assert [step["attempt"] for step in session.record()["steps"][:-1]] == list(range(1, 33))


def test_async_calls_and_the_session_of_each_task() -> None:
    async def play(seed: int) -> tuple[bool, bool]:
        with open_session(TASK, seed) as session:
            result = await session.tools[0].acall()
            await asyncio.sleep(0.001)
            return result.ok, current_session() is session

    async def play_all() -> list[tuple[bool, bool]]:
        return await asyncio.gather(*map(play, range(8)))

    results = asyncio.run(play_all())
    assert all(own for _, own in results)
    alone = [open_session(TASK, seed).tools[0]().ok for seed in range(8)]
    assert [ok for ok, _ in results] == alone
    assert current_session() is None


def test_usage_is_part_of_the_record() -> None:
    with open_session(TASK) as session:
        session.note_usage(100, 20, 0.5, model="mine")
        session.note_usage(prompt_tokens=50)
    used = session.record()["agent"]["components"]["agent"]
    assert (used["calls"], used["prompt_tokens"], used["completion_tokens"]) == (2, 150, 20)
    assert used["cost"] is None  # of one call nobody knows it
    for tokens in (-1, math.inf, 10**400):
        with pytest.raises(InvalidInputError, match="prompt_tokens is"):
            session.note_usage(tokens)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "task_x"}, "task_x"),
        ({"tools": "nativ"}, "did you mean 'native'"),
        ({"on_failure": "rais"}, "did you mean 'raise'"),
        ({"seed": -1}, "seed is -1"),
        ({"bas": 0.5}, "unexpected keyword argument 'bas': did you mean 'base'"),
        ({"prompt": "optimum"}, "unknown prompt type 'optimum'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ResiliSimError, match=message):
        open_session(**arguments)


@settings(max_examples=30)
@given(name=st.text(), arguments=st.dictionaries(st.text(), st.text() | st.floats() | st.none() | st.just({})))
def test_a_call_is_sent_as_the_message_that_a_model_would_write(name: str, arguments: dict[str, Any]) -> None:
    call = native_call(name, arguments)
    assert call_text(call) == native_text(openai_message(call))
    given = (default_library(), "lenient", ("network_fetcher", "finish"))
    assert read_call(call, *given) == read_native(openai_message(call), *given)


class Unwritable:
    """What cannot even say what it is."""

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


def test_hostile_arguments_use_a_turn_and_break_nothing() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with open_session(TASK, max_turns=20) as session:
        for hostile in ({"source": float("nan")}, {"source": "x" * 2_000_000}, {"nope": 1}, {"source": object()}):
            assert not session.call("network_fetcher", hostile).ok or "source" in hostile
        assert not session.call("network_fetcher", {"source": deep}).ok
        assert not session.call("\ud800 nonsense", {}).ok
        assert not session.call("", {}).ok
        unreadable: Any
        for unreadable in ({"source": Unwritable()}, ["/data"], 5):
            assert "not valid JSON" in session.call("network_fetcher", unreadable)
    assert len(session.record()["steps"]) == 11


def test_arguments_may_be_the_text_that_a_model_wrote() -> None:
    with open_session(TASK, base=1.0, parameters="strict") as session:
        assert session.call("file_operations_reader", '{"source": "/data", "options": null}').ok
        for unreadable in ('{"source": "/da', '["/data"]', "[" * 100_000):
            assert not session.call("file_operations_reader", unreadable).ok
        assert session.turns_left == 6
        session.call("finish", '{"answer": "read"}')
    assert session.record()["agent"]["answer"] == "read"


def test_a_tool_that_stands_in_for_a_broken_one_counts_in_the_record_too():
    tools = [Tool("reader", "Reads.", equivalents=("scanner",)), Tool("scanner", "Scans.")]
    law = {"base": 1.0, "broken": {"probability": 1.0, "tools": ["reader"]}}
    task = {"required_tools": ["reader"], "description": "Read."}
    with open_session(task, library=ToolLibrary(tools), law=law) as session:
        assert (session.call("reader").ok, session.call("scanner").ok) == (False, True)
        session.finish()
    record = session.record()
    assert record["law"]["equivalents"] == {"reader": ["scanner"]}
    assert session.score["level"] == rescore(record).level == "full_success"
