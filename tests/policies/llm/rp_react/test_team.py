"""Executors and their tools, as the option names them."""

from __future__ import annotations

import re

import pytest

from resilisim.chat import ScriptedChatModel
from resilisim.errors import InvalidInputError
from resilisim.policies.llm.agents.rp_react import Executor, RPReAct, addressed, read_team, read_tools
from resilisim.policies.llm.conversation import CONVERSATION_TOOLS
from resilisim.policies.registry import make_policy
from tests.policies.llm.toolboxes import spec

TWO = "search:tool_search+tool_info;run:tool_call"


def test_all_is_one_executor_with_every_tool():
    (executor,) = read_team("all")
    assert executor.specs(CONVERSATION_TOOLS) == CONVERSATION_TOOLS


def test_several_executors_have_their_own_tools():
    search, run = read_team(f" {TWO} ;")
    assert [spec.name for spec in search.specs(CONVERSATION_TOOLS)] == ["tool_search", "tool_info"]
    assert [spec.name for spec in run.specs(CONVERSATION_TOOLS)] == ["tool_call"]
    assert read_team("a:all") == (Executor("a", None),)


@pytest.mark.parametrize("text", ["", ";", "search", "search:", ":tool_search", "a b:x", "1a:x", "a:x;a:y", "a:+"])
def test_what_cannot_be_read_is_refused_when_the_policy_is_made(text):
    with pytest.raises(InvalidInputError, match="executors="):
        RPReAct(models=ScriptedChatModel([]), executors=text)


def test_an_unknown_tool_is_refused_with_the_nearest():
    with pytest.raises(InvalidInputError, match="did you mean 'tool_search'"):
        Executor("a", ("tool_serch",)).specs(CONVERSATION_TOOLS)


@pytest.mark.parametrize("options", [{"executors": "s:tool_serch"}, {"offload_tools": "tool_info+tool_serch"}])
def test_an_unknown_tool_is_refused_when_the_policy_is_made(options):
    (option,) = options
    with pytest.raises(InvalidInputError, match="did you mean 'tool_search'") as refusal:
        RPReAct(models=ScriptedChatModel([]), **options)
    assert f"option {option}" in str(refusal.value)
    with pytest.raises(InvalidInputError, match="did you mean 'tool_search'"):
        make_policy(f"rp-react[{option}={options[option]}]", models=ScriptedChatModel([]))


def test_tools_of_another_toolbox_can_be_named():
    model = ScriptedChatModel([])
    options = {"executors": "a:load_db", "offload_tools": "load_db"}
    tools = [spec("load_db", "name")]
    assert RPReAct(models=model, tools=tools, **options).options.offload_tools == "load_db"
    with pytest.raises(InvalidInputError, match="unknown tool 'load_db'"):
        RPReAct(models=model, **options)
    with pytest.raises(InvalidInputError, match=r"unknown tool 'tool_search'.*expected one of load_db"):
        RPReAct(models=model, tools=tools, executors="a:tool_search")


@pytest.mark.parametrize("tools", ["tool_search", 3, ["tool_search"]])
def test_tools_are_no_option_in_brackets(tools):
    with pytest.raises(InvalidInputError, match="tools="):
        RPReAct(models=ScriptedChatModel([]), tools=tools)


def test_lists_of_tools():
    assert read_tools("All") is None
    assert read_tools("a + b+a") == ("a", "b")


@pytest.mark.parametrize(
    ("question", "who", "rest"),
    [
        ("search: find a reader", "search", "find a reader"),
        (" Run :  tool x: now ", "run", "tool x: now"),
    ],
)
def test_a_sub_question_names_its_executor(question, who, rest):
    found = addressed(question, read_team(TWO))
    assert not isinstance(found, str)
    assert (found[0].name, found[1]) == (who, rest)


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ("find a reader", r"does not begin with the name of an executor and a colon \(search, run\)"),
        ("find: a reader", "there is no executor 'find', only search, run"),
        ("search:  ", "empty behind the executor's name"),
    ],
)
def test_a_sub_question_to_nobody_says_so(question, problem):
    found = addressed(question, read_team(TWO))
    assert isinstance(found, str)
    assert re.search(problem, found)


def test_a_single_executor_needs_no_address():
    team = read_team("all")
    assert addressed("find: a reader", team) == (team[0], "find: a reader")
