"""Tools of an MCP server: listed, called, failing, gone; and KPI-Chain playing over them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from resilisim.chat import ScriptedChatModel
from resilisim.errors import InfrastructureError, InvalidInputError, MissingExtraError
from resilisim.integrations.mcp.client import McpToolbox
from resilisim.integrations.mcp.host import listening
from resilisim.integrations.mcp.server_functions import ServerFunctions, read_configuration
from resilisim.policies.llm.agent_run import AgentRun
from resilisim.policies.llm.kpi_chain.agent import KpiChain
from tests.integrations.mcp import own_server
from tests.integrations.mcp.adding_server import ARTICLES, server
from tests.policies.llm.helpers import answer_task, extracted, planned, reasoned, ref, replanned, tool_task

PROGRAM = str(Path(__file__).with_name("adding_server.py"))


def with_tools(use, toolbox=None):
    """Connect, do something with the toolbox, disconnect."""

    async def connected():
        async with toolbox or McpToolbox(server, timeout_seconds=20) as tools:
            return await use(tools)

    return asyncio.run(connected())


def call(name, arguments, toolbox=None):
    return with_tools(lambda tools: tools.call(name, arguments), toolbox)


async def signatures(tools):
    return {spec.name: (spec.signature(), spec.description) for spec in tools.specs}


@pytest.mark.parametrize("where", ["in process", "as a program"])
def test_the_tools_of_a_server(where):
    toolbox = None if where == "in process" else McpToolbox.of_command(sys.executable, PROGRAM, timeout_seconds=60)

    async def use(tools):
        return await signatures(tools), await tools.call("add", {"a": 2, "b": 3})

    found, result = with_tools(use, toolbox)
    assert set(found) == {"library_search", "add", "sleep"}
    assert found["library_search"] == ("library_search(query: string)", "Finds an article.")
    assert found["add"][1] == "Adds two numbers."
    assert result.ok
    assert (result.text, result.data) == ("5", {"result": 5})


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("library_search", {"query": "nothing"}, "Error executing tool library_search"),
        ("add", {"a": "two"}, "valid integer"),
        ("add", {}, "add"),
        ("ad", {"a": 1}, "unknown tool 'ad': did you mean 'add'?"),
    ],
)
def test_what_goes_wrong_is_an_error_and_no_result(name, arguments, error):
    result = call(name, arguments)
    assert not result.ok
    assert error in result.error
    assert "\n" not in result.error
    assert result.data is None


def test_a_tool_that_answers_too_late_is_an_infrastructure_failure():
    with pytest.raises(InfrastructureError, match="did not answer the call of sleep"):
        call("sleep", {"seconds": 30}, McpToolbox(server, timeout_seconds=1.0))


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "seconds", "problem"),
    [
        ("print('no protocol')", 60, "does not list its tools"),
        ("import time; time.sleep(60)", 0.5, "did not answer within"),
    ],
)
def test_a_program_that_is_no_server(program, seconds, problem):
    with pytest.raises(InfrastructureError, match=problem):
        with_tools(signatures, McpToolbox.of_command(sys.executable, "-c", program, timeout_seconds=seconds))


def test_a_command_that_does_not_exist():
    with pytest.raises(InvalidInputError, match="cannot be started"):
        with_tools(signatures, McpToolbox.of_command("no-such-program-anywhere"))


def test_only_within_its_block():
    with pytest.raises(RuntimeError, match="async with"):
        asyncio.run(McpToolbox(server).call("add", {"a": 1}))


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtraError, match=r"'\.\[mcp\]'"):
        McpToolbox(server)


def test_kpi_chain_plays_over_an_mcp_server():
    def search(task_id, query, entity, needs=()):
        return tool_task(task_id, query, entity, needs=needs, tool_name="library_search")

    model = ScriptedChatModel(
        [
            planned(
                search("T1", "the film", "actress"), answer_task("T2", "T1.actress"), expect="library_search(query"
            ),
            replanned(
                search("T1a", "film", "actress"),
                search("T1b", ref("T1a.actress"), "office", needs=("T1a",)),
                answer_task("T2a", "T1b.office"),
                expect="Error executing tool library_search",
            ),
            extracted(0.9, ARTICLES["film"], actress="Ada Quill"),
            extracted(0.9, ARTICLES["Ada Quill"], office="mayor of Brindle"),
            reasoned("mayor of Brindle", final_answer="mayor of Brindle"),
        ]
    )
    policy = KpiChain(models=model)

    async def use(tools):
        run = AgentRun(task="Which office?", tools=tools, models=policy.models, options=policy.options)
        return await policy.play(run)

    assert with_tools(use) == "mayor of Brindle"
    assert model.remaining == 0


def test_a_configured_server_that_listens_is_told_its_headers_and_connected_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("ADDING_KEY", "open sesame")
    told = []

    def told_headers(app):
        async def listens(scope, receive, send):
            told.append(dict(scope.get("headers", ())).get(b"x-key"))
            await app(scope, receive, send)

        return listens

    def play(url):
        configured = {"mcpServers": {"adding": {"url": f"{url}/mcp", "headers": {"X-Key": "${ADDING_KEY}"}}}}
        file = tmp_path / "mcp.json"
        file.write_text(json.dumps(configured))
        with ServerFunctions(read_configuration(file)) as tools:
            first = tools.functions["add"](a=1, b=2)
            tools.restart()
            return first, tools.functions["add"](a=2, b=2)

    async def listened():
        app = told_headers(own_server.make_server().streamable_http_app())
        async with listening(app, "127.0.0.1", 0) as (url, _):
            return await asyncio.to_thread(play, url)

    first, second = asyncio.run(listened())
    assert ("3" in str(first), "4" in str(second)) == (True, True)
    assert {key for key in told if key is not None} == {b"open sesame"}
