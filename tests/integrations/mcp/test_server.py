"""`resilisim mcp serve` and agents that are programs, met by real MCP clients over both transports."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from resilisim import ModelSettings, __version__, evaluate, open_session, read_results
from resilisim.cli.main import main
from resilisim.cli.mcp import TOKEN_VARIABLE
from resilisim.envs import ConversationEnv, EnvironmentSettings
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation import play_episode, read_records
from resilisim.evaluation.run.store import RunStore, read_failures
from resilisim.integrations.mcp import CommandAgent
from resilisim.integrations.mcp.host import Answer, EpisodeHost, Hosts, http_server
from resilisim.integrations.mcp.server import Episodes, ServedRun, serve_http
from resilisim.policies.function_agent import AgentFailed
from resilisim.simulator.scoring import rescore
from resilisim.tasks import Task
from resilisim.tasks.benchmark import find_task
from resilisim.tool_library import Tool, ToolLibrary, default_library
from tests.guards import WAITING_SECONDS

TASK = "task_c64444cae27fab46"
CALLS = ("file_operations_scanner", "network_fetcher", "network_validator", "data_processing_parser")
PROGRAM = """
import asyncio, json, os, sys
from mcp import Client

async def main():
    told = json.load(open(os.environ["RESILISIM_EPISODE"]))
    assert told == {"mcp_url": os.environ["RESILISIM_MCP_URL"], "prompt": os.environ["RESILISIM_PROMPT"]}
    async with Client(told["mcp_url"]) as client:
        for name in CALLS:
            await client.call_tool(name, {})
        await client.call_tool("episode_finish", {"answer": "done"})

if "fail" in sys.argv:
    sys.exit("nothing works here")
if "sleep" in sys.argv:
    import time; time.sleep(60)
asyncio.run(main())
""".replace("CALLS", repr(CALLS))


def same_calls(seed: int) -> dict[str, Any]:
    """Return the record of the same calls in a session."""
    with open_session(TASK, seed) as session:
        for name in CALLS:
            session.call(name)
        session.finish()
    return session.record()


async def said(client: Client, name: str, arguments: dict[str, Any] | None = None) -> Answer:
    result = await client.call_tool(name, arguments or {})
    return Answer(result.content[0].text, bool(result.is_error), result.structured_content)


async def played(client: Client, seed: int) -> Answer:
    assert (await said(client, "episode_start", {"task": TASK, "seed": seed})).data["turns"] == 10
    for name in CALLS:
        await said(client, name)
    return await said(client, "episode_finish", {"answer": "done"})


@asynccontextmanager
async def served(run: ServedRun, **options: Any) -> AsyncIterator[tuple[Callable[[str], Client], Episodes, Hosts]]:
    episodes = Episodes(run)
    hosts = Hosts(lambda name: episodes.host(repeats=False))
    async with http_server(hosts, **options) as (url, _):
        yield (lambda name: Client(f"{url}/episodes/{name}/mcp")), episodes, hosts
    episodes.close()


@pytest.mark.long
def test_32_episodes_at_once_over_http_are_those_of_sessions(tmp_path: Path) -> None:
    async def play_all() -> None:
        async with served(ServedRun([TASK], seeds=32, out=tmp_path)) as (connect, _, _):

            async def one(seed: int) -> None:
                async with connect(f"number-{seed}") as client:
                    score = await played(client, seed)
                assert score.data == same_calls(seed)["score"]

            await asyncio.gather(*map(one, range(32)))

    asyncio.run(play_all())
    records = {record["seed"]: record for record in read_records(tmp_path)}
    assert len(records) == 32
    for seed, record in records.items():
        mine = same_calls(seed)
        assert all(record[name] == mine[name] for name in ("outcome", "optimum", "regret", "luck", "losses", "score"))
        assert rescore(record).to_mapping() == record["score"]
    assert read_results(tmp_path).num_planned == 32
    with pytest.raises(InvalidInputError, match="is left: all were played"):
        Episodes(ServedRun([TASK], seeds=32, out=tmp_path)).begin({})


def test_misuse_is_told_in_one_line(tmp_path: Path) -> None:
    async def misuse() -> list[tuple[str, Answer]]:
        async with served(ServedRun(2, seeds=2, out=tmp_path)) as (connect, _, _), connect("one") as client:
            return [
                ("call episode_start first", await said(client, CALLS[0])),
                ("call episode_start first", await said(client, "episode_finish")),
                ("unknown task 'task_x'", await said(client, "episode_start", {"task": "task_x"})),
                ("seed is 7: expected one of 0, 1", await said(client, "episode_start", {"seed": 7})),
                ("seed is '7'", await said(client, "episode_start", {"seed": "7"})),
                ("unknown prompt 'optimal'", await said(client, "episode_start", {"prompt": "optimal"})),
                ("unknown argument 'tsk'", await said(client, "episode_start", {"tsk": 1})),
                ("unknown task '[1]'", await said(client, "episode_start", {"task": [1]})),
                ("# Task", Answer(f"{(await said(client, 'episode_start')).text[:6]}", True)),
                ("an episode is under way", await said(client, "episode_start")),
                ("did you mean 'network_fetcher'", await said(client, "network_fetchr")),
                ("unknown parameter 'nope'", await said(client, "network_fetcher", {"nope": 1})),
                ("expected string", await said(client, "network_fetcher", {"source": [[["deep"]]]})),
                ("unknown argument 'x'", await said(client, "episode_finish", {"x": 1})),
                ('"ended_by": "completion"', Answer((await said(client, "episode_finish")).text, True)),
                ("the episode is over", await said(client, CALLS[0])),
                ("the next one needs another URL", await said(client, "episode_start")),
            ]

    for expected, answer in asyncio.run(misuse()):
        assert expected in answer.text
        assert answer.is_error


@pytest.mark.long
def test_one_that_vanishes_or_never_ends_is_lost_and_its_draws_are_not_handed_out_again(tmp_path: Path) -> None:
    async def vanish() -> None:
        run = ServedRun([TASK], seeds=4, out=tmp_path, episode_seconds=3.0)
        async with served(run) as (connect, episodes, hosts):
            async with connect("quick") as client:
                await played(client, 0)
            async with connect("vanishes") as client:
                await said(client, "episode_start", {"seed": 1})
                await said(client, CALLS[0])
            await asyncio.sleep(3.3)
            async with connect("vanishes") as client:
                late = await said(client, CALLS[0])
            assert "the episode is over" in late.text
            async with connect("again") as client:
                assert "is left" in (await said(client, "episode_start", {"seed": 1})).text
                await said(client, "episode_start", {"seed": 2})
                hosts.abandon("gone")
                assert [failure["seed"] for failure in read_failures(tmp_path)] == [0, 1, 2], "before the first reply"
            assert (episodes.num_played, episodes.num_lost) == (1, 2)

    asyncio.run(vanish())
    ended = [(record["seed"], record["ended_by"], record["outcome"]) for record in read_records(tmp_path)]
    assert ended == [(0, "completion", ended[0][2]), (1, "agent_error", 0), (2, "agent_error", 0)]


def test_an_episode_whose_server_was_killed_is_lost(tmp_path: Path) -> None:
    """What a killed server has handed out is lost when the folder is opened again."""
    run = ServedRun([TASK], seeds=2, out=tmp_path)
    killed = Episodes(run)
    killed.begin({"seed": 0})
    killed._store.close()  # and nothing more is written
    again = Episodes(run)
    with pytest.raises(InvalidInputError, match="is left"):
        again.begin({"seed": 0})
    again.begin({"seed": 1})
    again.close()
    (record,) = read_records(tmp_path)
    assert (record["seed"], record["ended_by"], record["outcome"]) == (0, "agent_error", 0)


def test_where_no_plan_is_kept_the_client_chooses() -> None:
    async def choose() -> list[Answer]:
        host = Episodes(ServedRun(2)).host(repeats=True)
        answers = []
        for given in ({"seed": 4}, {"seed": 4, "prompt": "optimal"}, {"task": TASK}, {"prompt": "flawed:missing_step"}):
            answers.append(await host.call("episode_start", given))
            await host.call("network_fetcher", {})
            answers.append(await host.call("episode_finish", {}))
        for given in ({"seed": -1}, {"seed": "4"}, {"prompt": "optmal"}, {"task": "task_x"}):
            answers.append(await host.call("episode_start", given))
        fixed = Episodes(ServedRun(2, seeds=[3])).host(repeats=True)
        answers.append(await fixed.call("episode_start", {"seed": 4}))
        return answers

    answers = asyncio.run(choose())
    assert not any(answer.is_error for answer in answers[:8]), answers
    assert all(answer.is_error for answer in answers[8:]), answers
    assert "expected one of 3" in answers[-1].text


def test_tools_of_the_library_that_are_called_like_those_of_the_episode_can_be_called() -> None:
    names = ["episode_start", "episode_finish", "finish", "tool_call", "fs/read", "search the web"]
    library = ToolLibrary([Tool(name, f"Does {name}.") for name in names])
    task = Task.from_mapping(
        {"instance_id": "own", "task_type": "basic_task", "description": "Do all.", "required_tools": names}, library
    )

    async def play() -> Any:
        run = ServedRun([task], library=library, environment=EnvironmentSettings(base=1.0))
        host = Episodes(run).host(repeats=False)
        listed = [tool["name"] for tool in host.tools]
        assert len(set(listed)) == len(listed) == 8
        assert {"tool_episode_start", "tool_episode_finish", "fs/read", "search the web"} <= set(listed)
        await host.call("episode_start", {})
        for tool in listed[2:]:
            answer = await host.call(tool, {})
            assert not answer.is_error, (tool, answer)
        return (await host.call("episode_finish", {})).data

    assert asyncio.run(play())["level"] == "full_success"


def test_the_command_over_stdio_plays_one_episode_after_the_other(tmp_path: Path, python: list[str]) -> None:
    arguments = [*python[1:], "-m", "resilisim", "mcp", "serve", "--tasks", "2", "--name", "mine", "--out"]
    command = StdioServerParameters(command=python[0], args=[*arguments, str(tmp_path / "run")], env=dict(os.environ))

    async def play() -> None:
        async with Client(command) as client:
            listed = [tool.name for tool in (await client.list_tools()).tools]
            assert listed[:2] == ["episode_start", "episode_finish"]
            assert len(listed) == 32
            assert "the tool episode_finish" in (await said(client, "episode_start")).text
            await said(client, CALLS[0])
            assert (await said(client, "episode_finish")).data["level"] == "failure"
            await said(client, "episode_start")
            await said(client, CALLS[0])  # and the client leaves: the agent has stopped

    asyncio.run(play())
    records = list(read_records(tmp_path / "run"))
    assert [(record["policy"], record["ended_by"]) for record in records] == [
        ("mine", "completion"),
        ("mine", "stopped"),
    ]


def status_of(url: str, headers: dict[str, str]) -> int:
    try:
        return int(urllib.request.urlopen(urllib.request.Request(url, b"{}", headers)).status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_signal_ends_the_command_over_stdio_and_what_is_under_way_is_written(
    tmp_path: Path, python: list[str]
) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "network_fetcher"}}
    begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    lines = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": begin},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        message,
    ]
    command = [*python, "-m", "resilisim", "mcp", "serve", "--tasks", "1", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for line in lines:
            server.stdin.write(json.dumps(line).encode() + b"\n")
        server.stdin.flush()
        server.stdout.readline()
        assert json.loads(server.stdout.readline())["id"] == 1
        server.send_signal(signal.SIGINT)  # its standard input stays open, as in a terminal
        assert server.wait(WAITING_SECONDS) == 0
    assert [failure["reason"] for failure in read_failures(tmp_path)] == ["begun"]
    assert [record["ended_by"] for record in read_records(tmp_path)] == ["agent_error"]


@pytest.mark.long
def test_a_client_that_closes_its_reading_end_leaves_no_traceback_and_odd_lines_are_answered(
    tmp_path: Path, python: list[str]
) -> None:
    begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": begin}
    start = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "episode_start", "arguments": {}}}
    odd = ['{"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "\\ud800"}}', "nonsense"]
    command = [*python, "-m", "resilisim", "mcp", "serve", "--tasks", "1", "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stderr is not None
        initialized = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})
        for line in (json.dumps(hello), initialized, *odd):
            server.stdin.write(line.encode() + b"\n")
        server.stdin.flush()
        heard = [json.loads(server.stdout.readline()) for _ in range(3)]
        assert {said["id"]: "cannot be read" in str(said) for said in heard} == {0: False, 5: True, None: True}
        (greeting,) = [said["result"]["serverInfo"] for said in heard if said["id"] == 0]
        assert greeting == {"name": "resilisim", "version": __version__}
        server.stdout.close()
        for number in range(1, 4):
            server.stdin.write(json.dumps(start | {"id": number}).encode() + b"\n")
        server.stdin.flush()
        assert server.wait(WAITING_SECONDS) == 0
        assert b"Traceback" not in server.stderr.read()
        with contextlib.suppress(BrokenPipeError):
            server.stdin.close()


def test_what_a_full_disk_does_not_take_is_kept_and_nothing_more_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreError("no space is left")

    async def play() -> None:
        episodes = Episodes(ServedRun([TASK], seeds=3, out=tmp_path))
        host = episodes.host(repeats=True)
        with monkeypatch.context() as disk:
            disk.setattr(RunStore, "append_encoded", full)
            await host.call("episode_start", {})
            assert not (await host.call("episode_finish", {})).is_error
            assert await host.call("episode_start", {}) == Answer("no space is left", is_error=True)
            assert not list(read_records(tmp_path))
        assert not (await host.call("episode_start", {})).is_error
        assert [record["seed"] for record in read_records(tmp_path)] == [0]
        monkeypatch.setattr(RunStore, "append_encoded", full)
        await host.call("episode_finish", {})
        with pytest.raises(StoreError, match="no space is left"):
            episodes.close()

    asyncio.run(play())


def test_the_command_over_http_wants_its_token_and_ends_with_a_signal(tmp_path: Path, python: list[str]) -> None:
    arguments = [*python, "-m", "resilisim", "mcp", "serve", "--host", "0.0.0.0", "--tasks", "2"]
    process = subprocess.Popen(
        [*arguments, "--out", str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, TOKEN_VARIABLE: "s3"},
    )
    try:
        assert process.stderr is not None
        address = re.search(r"http://[\d.]+(:\d+)", process.stderr.readline())
        assert address is not None
        url = f"http://127.0.0.1{address[1]}/episodes/x/mcp"
        assert status_of(url, {}) == 401
        assert status_of(url, {"Authorization": "Bearer s3"}) not in (200, 401)  # let in, and told that it says nothing
        process.send_signal(signal.SIGTERM)
        assert "0 episodes played" in process.stderr.read()
        assert process.wait() == 0
    finally:
        process.kill()


def test_others_come_in_only_with_a_token() -> None:
    with pytest.raises(InvalidInputError, match="expected a token"):
        serve_http(ServedRun(1), "0.0.0.0", 0)
    with pytest.raises(InvalidInputError, match="cannot listen on 127"):
        serve_http(ServedRun(1), "127.0.0.1", 99999)


def test_programs_play_and_what_breaks_them_is_lost(tmp_path: Path, python: list[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    start = f"command:{shlex.join(python)} {program}"
    sound, failing, sleeping = [f"{start}{argument}" for argument in ("", " fail", " sleep")]
    out = tmp_path / "run"
    run = evaluate(agents=[sound, failing], tasks=[TASK], seeds=2, out=out)
    assert (run.num_episodes, run.call.num_failures) == (4, 0)
    for record in run.records():
        if record["policy"].endswith("fail"):
            assert (record["ended_by"], record["outcome"]) == ("agent_error", 0)
            assert "nothing works here" in record["steps"][-1]["error"]
            continue
        mine = same_calls(record["seed"])
        assert all(record[name] == mine[name] for name in ("outcome", "optimum", "regret", "luck", "losses", "score"))
        assert record["agent"]["answer"] == "done"
    slow = evaluate(agents=sleeping, tasks=[TASK], model=ModelSettings(episode_seconds=0.5))
    (told,) = slow.call.agent_errors
    assert (slow.num_episodes, told.first) == (1, "the agent took longer than 0.5 seconds")
    with pytest.raises(InvalidInputError, match="expected a program that can be started"):
        evaluate(agents="command:no-such-program-anywhere", tasks=1)


IMPATIENT = """
import asyncio, os
from mcp import Client

async def main():
    async with Client(os.environ["RESILISIM_MCP_URL"]) as client:
        for name in CALLS:
            while True:
                try:
                    result = await client.call_tool(name, {}, read_timeout_seconds=1.0)
                except Exception as error:
                    print(type(error).__name__)
                    continue
                if not result.is_error:
                    break

asyncio.run(main())
"""


def test_failures_of_a_program_hang_or_cut_its_connection_and_its_goal_stands_under_a_law_with_parts(
    tmp_path: Path, python: list[str]
) -> None:
    tools = ["file_operations_scanner", "network_fetcher"]
    program = tmp_path / "program.py"
    program.write_text(IMPATIENT.replace("CALLS", repr(tools)))
    agent = f"command:{shlex.join(python)} {program}"
    task = {**find_task(TASK).to_mapping(), "instance_id": "two", "required_tools": tools}
    law = {"base": 0.9, "rate_limit": {"calls": 3, "window": 4}, "broken": {"probability": 0.1}}
    law_file = tmp_path / "law.json"
    law_file.write_text(json.dumps(law))
    settings: dict[str, Any] = {
        "law": str(law_file),
        "max_turns": 12,
        "force": ["file_operations_scanner#1=TIMEOUT", "network_fetcher#1=OPERATION_FAILED"],
    }
    ways = ["TIMEOUT=hang", "OPERATION_FAILED=cut"]
    (record,) = evaluate(agents=agent, tasks=[task], seeds=[3], fails_by=ways, **settings).records()
    assert record["outcome"] == 1, record["agent"]
    made = [step["tool"] for step in record["steps"] if step["kind"] == "execute"]
    with open_session(Task.from_mapping(task, default_library()), 3, **settings) as session:
        for name in made:
            session.call(name)
    same = session.record()
    assert all(record[name] == same[name] for name in ("outcome", "optimum", "regret", "luck", "losses"))
    assert [step.get("result") for step in record["steps"]] == [step.get("result") for step in same["steps"]]
    assert record["steps"][0]["error"] == "TIMEOUT"
    for refused in ({"fails_by": ["hang"]}, {"fails_by": ["TIMOUT=hang"], "agents": agent}):
        with pytest.raises(InvalidInputError, match=r"nobody plays over MCP|did you mean 'TIMEOUT'"):
            evaluate(**{"agents": same_calls, "tasks": 1, **refused})


def test_a_child_that_a_program_leaves_behind_keeps_nobody_waiting() -> None:
    program = "command:sh -c 'sleep 9 & setsid sleep 9 & sleep 0.1'"
    run = evaluate(agents=program, tasks=1, model=ModelSettings(episode_seconds=8))
    assert [record["ended_by"] for record in run.records()] == ["stopped"]


DETACHED = """
import os, sys, time
for name in ("child", "grandchild"):
    if os.fork() == 0:
        os.setsid()
        if name == "grandchild" and os.fork():
            os._exit(0)
        open(os.path.join(sys.argv[1], name), "w").write(str(os.getpid()))
        time.sleep(600)
while len(os.listdir(sys.argv[1])) < 2:
    time.sleep(0.01)
time.sleep(600 if "hangs" in sys.argv else 0)
"""


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere children with a session of their own stay")
@pytest.mark.parametrize("ending", ["ends", "hangs"])
def test_children_with_a_session_of_their_own_end_with_their_program(ending: str, tmp_path: Path) -> None:
    program, told = tmp_path / "program.py", tmp_path / "told"
    program.write_text(DETACHED)
    told.mkdir()
    agent = f"command:{sys.executable} {program} {told} {ending}"
    seconds = 4.0 if ending == "hangs" else None
    run = evaluate(agents=agent, tasks=1, model=ModelSettings(episode_seconds=seconds))
    assert [record["ended_by"] for record in run.records()] == ["stopped" if ending == "ends" else "agent_error"]
    assert sorted(path.name for path in told.iterdir()) == ["child", "grandchild"]
    for path in told.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)


def test_a_program_finds_its_server_in_every_loop_and_may_be_gone(tmp_path: Path) -> None:
    connects = "from urllib.parse import urlsplit; import os, socket; url = urlsplit(os.environ['RESILISIM_MCP_URL'])"
    agent = CommandAgent(f'{sys.executable} -c "{connects}; socket.create_connection((url.hostname, url.port))"')
    env = ConversationEnv(protocol="native", tools="native")
    for seed in range(2):
        assert play_episode(env, agent, find_task(TASK), "optimal", seed)["ended_by"] == "stopped"
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    gone = CommandAgent(str(program))
    program.unlink()
    with pytest.raises(AgentFailed, match=r"cannot be started: .* No such file"):
        play_episode(env, gone, find_task(TASK), "optimal", 0)


def test_strict_parameters_are_required_and_lenient_ones_are_not() -> None:
    for mode, required in (("lenient", False), ("strict", True)):
        host: EpisodeHost = Episodes(ServedRun(1, environment=EnvironmentSettings(parameters=mode))).host(repeats=True)
        reader = next(tool for tool in host.tools if tool["name"] == "file_operations_reader")
        assert ("required" in reader["inputSchema"]) == required
        assert json.dumps(host.tools)


ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted((ROOT / "examples/agents").glob("*.py"))
LONGEST_FUNCTION = 15  # lines; of a class beside it, too


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short_and_shown_in_the_guide(path: Path) -> None:
    definitions = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if hasattr(node, "name")]
    assert "agent" in [node.name for node in definitions]
    assert all(node.end_lineno - node.lineno < LONGEST_FUNCTION for node in definitions)
    assert f"../../examples/agents/{path.name}" in (ROOT / "docs/guides/your-agent.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_an_example_on_the_command_line_gives_the_episodes_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATE_TASKS", "3")
    monkeypatch.syspath_prepend(str(ROOT / "integrations"))
    gate: Any = importlib.import_module("gate")  # `make integrations` plays all of it, with every framework
    played = {}
    with gate.Endpoint() as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        for player in ("follower", "stubborn"):
            monkeypatch.setenv("AGENT_MODEL", player)
            options = ["--prompt", gate.PROMPT, "--tasks", "3", "--seeds", "3", "--out", str(tmp_path / player)]
            with pytest.raises(SystemExit) as left:
                main(["evaluate", "--agent", "examples.agents.openai_loop:agent", *options])
            assert left.value.code == 0
            for record in read_records(tmp_path / player):
                played[player, record["instance_id"], record["seed"]] = record
                tokens = record["agent"]["components"]["agent"]["prompt_tokens"]
                assert tokens == gate.USAGE["prompt_tokens"] * len(record["agent"]["calls"])
    gate.compare("the command line", played, ("follower", "stubborn"))
