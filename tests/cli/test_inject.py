"""`resilisim inject run`: a program and its tools named on the command line, or those of a client's servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command

AGENT = '''
import resilisim

sold = []


def find(name: str) -> int:
    """Finds a price."""
    return 40


def charge(amount: int) -> str:
    """Charges a card."""
    sold.append(amount)
    return "receipt"


TOOLS = {"shop/find": find, "charge": charge}


def again(function, *arguments, **named):
    while True:
        try:
            return function(*arguments, **named)
        except TimeoutError:
            pass


def buys(tools):
    again(tools["charge"], again(tools["shop/find"], "lamp"))


def asks_twice(tools):
    for name, argument in (("shop/find", "lamp"), ("charge", 40)):
        for _ in range(2):
            try:
                tools[name](argument)
                break
            except resilisim.InjectedFailure:
                pass


async def adds(tools):
    for _ in range(5):
        try:
            return await tools["add"](a=2, b=3)
        except resilisim.InjectedFailure:
            pass


def asks(tools):
    for _ in range(9):
        try:
            return tools["b b/ü:library_search"](query="film")
        except resilisim.InjectedFailure:
            pass
'''
SERVER = Path(__file__).parents[1] / "integrations" / "mcp" / "adding_server.py"


def test_a_program_and_its_functions(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_agent_1.py").write_text(AGENT, encoding="utf-8")
    words = ["inject", "run", "own_agent_1:buys", "--tools", "own_agent_1:TOOLS", "--law", "0.8"]
    words += ["--required", "shop/find,charge", "--once", "charge", "--raises", "builtins:TimeoutError"]
    words += ["--reset", "own_agent_1:sold.clear", "--out", "run", "--fail", "after"]
    told = command(*words, "--seeds", "5", "--json").json()
    assert told["num_episodes"] == 5
    assert told["results"][0]["policy"] == "buys"
    assert told["results"][0]["optimum"]["value"] == pytest.approx(0.8)
    shown = command(*words, "--seeds", "8")
    assert shown.code == 0
    assert "luck-" in shown.out
    assert "5 of 8 episodes already there" in shown.err
    assert "resilisim report run" in shown.err
    replayed = command("runs", "replay", "run", "6")
    assert replayed.code == 0
    assert "the same as recorded, to the last digit" in replayed.err
    assert (
        "expected an episode that has ended, and neither --live nor --force"
        in command("runs", "replay", "run", "6", "--force", "charge#1=ok").refusal()
    )


@pytest.mark.long
def test_a_program_is_explored_and_taken_apart(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_agent_3.py").write_text(AGENT, encoding="utf-8")
    program = [
        "own_agent_3:asks_twice",
        "--tools",
        "own_agent_3:TOOLS",
        "--law",
        "0.8",
        "--required",
        "shop/find,charge",
    ]
    (row,) = command("inject", "explore", *program, "--json").json()["rows"]
    assert row["low"] == row["high"] == pytest.approx(0.96**2)
    assert row["plays"] == 9
    shrunk = command("inject", "shrink", *program, "--json").json()
    assert len(shrunk["failures"]) == 2
    attack = command("inject", "adversary", *program, "--above", "0.9")
    assert "loses with 2 failures" in attack.out
    assert "law='0.8', required=['shop/find', 'charge'], seed=0, force=['shop/find#1=" in attack.out.replace("\n", " ")
    cells = command("inject", "matrix", *program, "--json").json()["cells"]
    assert {cell["outcome"] for cell in cells if not cell["lasting"]} == {1}
    assert {cell["outcome"] for cell in cells if cell["lasting"]} == {0}
    assert "expected one to shrink" in command("inject", "shrink", *program, "--law", "1.0").refusal()


@pytest.mark.long
def test_the_servers_of_a_client(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp.server.mcpserver")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_agent_2.py").write_text(AGENT, encoding="utf-8")
    monkeypatch.setenv("OWN_SERVER", str(SERVER))
    server = {"command": sys.executable, "args": ["${OWN_SERVER}"], "type": "stdio"}
    Path("mcp.json").write_text(json.dumps({"mcpServers": {"one": server}}), encoding="utf-8")
    words = ["inject", "run", "own_agent_2:adds", "--from", "mcp.json", "--law", "0.5", "--required", "add"]
    told = command(*words, "--seeds", "2", "--out", "one", "--json").json()
    assert (told["num_episodes"], told["num_failures"]) == (2, 0)
    assert told["results"][0]["success"]["value"] == 1.0
    # Two servers that have tools of the same names: each is called by the name of its server, too.
    Path("two.json").write_text(json.dumps({"servers": {"a": server, "b b/ü": server}}), encoding="utf-8")
    words = ["inject", "run", "own_agent_2:asks", "--from", "two.json", "--required", "b b/ü:library_search"]
    told = command(*words, "--law", "0.9", "--out", "two", "--seeds", "1", "--json").json()
    assert told["results"][0]["success"]["value"] == 1.0


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", "holds no server"),
        ('{"mcpServers": {"x": {}}}', "either a command or a url"),
        ('{"mcpServers": {"x": {"command": "no-such-command-here"}}}', "cannot be started"),
        ('{"mcpServers": {"x": {"command": "python", "args": ["${NO_SUCH_VARIABLE}"]}}}', "NO_SUCH_VARIABLE"),
        ("[", "mcp.json"),
    ],
)
def test_configurations_that_are_none(
    content: str, problem: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mcp.json").write_text(content, encoding="utf-8")
    words = ["inject", "run", "shutil:which", "--from", "mcp.json", "--required", "x", "--out", "run"]
    assert problem in command(*words).refusal()


@pytest.mark.long
def test_a_server_that_ends_is_no_fault_of_the_program_and_the_next_episode_has_a_new_one(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcp.server.mcpserver")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "def ends(tools):\n    tools['dies']() if tools.settings.seed == 0 else tools['add'](a=1, b=2)\n"
    Path("own_agent_dies.py").write_text(text, encoding="utf-8")
    server = {"command": sys.executable, "args": [str(SERVER.with_name("own_server.py"))]}
    Path("mcp.json").write_text(json.dumps({"mcpServers": {"own": server}}), encoding="utf-8")
    words = ["inject", "run", "own_agent_dies:ends", "--from", "mcp.json", "--law", "1.0", "--required", "add"]
    shown = command(*words, "--seeds", "2", "--out", "run")
    assert (shown.code, "1 episode broke" in shown.err) == (3, True), shown.err
    (record,) = map(json.loads, Path("run/episodes.jsonl").read_text(encoding="utf-8").splitlines())
    assert (record["seed"], record["outcome"]) == (1, 1)
    (failure,) = map(json.loads, Path("run/failures.jsonl").read_text(encoding="utf-8").splitlines())
    assert (failure["seed"], failure["fault"]) == (0, "infrastructure")
