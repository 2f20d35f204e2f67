"""Any MCP server from the command line: agents answer questions with its tools, which are those of a real process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from resilisim.cli.main import main
from resilisim.errors import InvalidInputError
from resilisim.evaluation import evaluate
from resilisim.policies.registry import LLM_POLICIES
from resilisim.reporting import paper_tables
from resilisim.worlds import ToolError, load_world
from resilisim.worlds.base import WorldFailed
from tests.policies.llm.helpers import answer_task, extraction, plan_of, reasoning, ref, tool_task

pytest.importorskip("mcp.server.mcpserver")

HERE = Path(__file__).parent
OFFICE = "mayor of Brindle"
QUESTION = {
    "question": "Which office did the star of the film hold later?",
    "answers": [OFFICE, "mayor"],
    "tools": ["library_search", "library_search"],
    "evidence": ["The Paper Lantern (1950) stars Ada Quill.", "Ada Quill later was mayor of Brindle."],
}


def configured(folder: Path, server: str, *questions: dict[str, Any], command: str = sys.executable) -> str:
    """Write a client's configuration with questions, and return the name of its world."""
    path = folder / "mcp.json"
    servers = {"own": {"command": command, "args": [str(HERE / server)]}}
    path.write_text(json.dumps({"mcpServers": servers, "questions": list(questions)}), encoding="utf-8")
    return f"mcp:{path}"


def searched(query: str) -> str:
    return json.dumps({"query": query})


SEARCHES = [f"Thought: next.\nAction: library_search {searched(query)}" for query in ("film", "Ada Quill")]
FINISH = f'Thought: known.\nAction: finish {{"answer": "{OFFICE}"}}'
PLAN = plan_of(
    tool_task("T1", "film", "actress", tool_name="library_search"),
    tool_task("T2", ref("T1.actress"), "office", needs=("T1",), tool_name="library_search"),
    answer_task("T3", "T2.office"),
)
STEPS = {"steps": [{"step": 1, "task": "Find out which office it was.", "needs": []}]}
REPLIES: dict[str, list[str]] = {
    "direct": [
        *(f"<tool_call>library_search {searched(query)}</tool_call>" for query in ("film", "Ada Quill")),
        f"<finish>{OFFICE}</finish>",
    ],
    "react": [*SEARCHES, FINISH],
    "reflexion": [*SEARCHES, FINISH, "[SUCCESS]"],
    "plan-and-execute": [json.dumps(STEPS), *SEARCHES, FINISH, json.dumps({"answer": OFFICE})],
    "code-act": [
        '```python\nprint(library_search(query="film"))\nprint(library_search(query="Ada Quill"))\n```',
        f'```python\nfinish("{OFFICE}")\n```',
    ],
    "rp-react": [
        "<|begin_search_query|>Which office did the star of the film hold?<|end_search_query|>",
        *SEARCHES,
        FINISH,
        f"<Finish>{OFFICE}</Finish>",
    ],
    "kpi-chain": [
        PLAN,
        extraction(0.9, actress="Ada Quill"),
        extraction(0.9, office=OFFICE),
        reasoning("completed", 0.9, final_answer=OFFICE),
    ],
}


def script(folder: Path, agent: str) -> str:
    path = folder / f"{agent}.jsonl"
    path.write_text("".join(json.dumps({"reply": reply}) + "\n" for reply in REPLIES[agent]), encoding="utf-8")
    return f"scripted:{path}"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The world of a server whose tools are listed once."""
    return configured(tmp_path_factory.mktemp("library"), "adding_server.py", QUESTION)


@pytest.mark.long
def test_kpi_chain_from_the_command_line(library: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = ["evaluate", "--policy", "kpi-chain", "--model", script(tmp_path, "kpi-chain"), "--tasks", library]
    with pytest.raises(SystemExit) as left:
        main([*words, "--out", str(out), "--json"])
    assert left.value.code == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert (row["policy"], row["success"]["value"], row["optimum"]["value"]) == ("kpi-chain", 1.0, 1.0)
    (record,) = map(json.loads, (out / "episodes.jsonl").read_text(encoding="utf-8").splitlines())
    assert record["answer"] == OFFICE
    assert [step["tool"] for step in record["steps"] if step["kind"] == "execute"] == ["library_search"] * 2
    # KPI-Chain's threshold can be chosen by questions of one's own.
    tables = {table.name: table for table in paper_tables([out])}
    points = {row.names[2:]: row.values for row in tables["Section C.1"].rows if not row.is_published}
    for theta in ("0.5", "0.9"):
        there, accepted, precision, recall = points["extractor", theta]
        assert (there, accepted, precision.value, recall.value) == (2, 2, 1.0, 1.0)
    assert points["reasoner", "0.9"][:2] == (1, 1)
    assert tables["Table 1"].rows[0].values[5].value == 1.0
    assert tables["Table 1"].columns[5:] == ("own questions", "average")
    assert record["score"]["grade"] == {"correct": True, "score": 1.0, "criteria": {"exact_match": True, "f1": 1.0}}


OTHERS = [
    pytest.param(agent, marks=() if agent in ("direct", "react") else pytest.mark.long)
    for agent in LLM_POLICIES
    if agent != "kpi-chain"
]


@pytest.mark.parametrize("agent", OTHERS)
def test_every_agent_plays_on_the_tools_of_a_server(agent: str, library: str, tmp_path: Path) -> None:
    (record,) = evaluate(agent, library, model=script(tmp_path, agent), out=tmp_path / "run").records()
    assert (record["outcome"], record["answer"]) == (1, OFFICE), record["agent"]["events"]
    assert [step["tool"] for step in record["steps"] if step["kind"] == "execute"] == ["library_search"] * 2


@pytest.mark.long
def test_calls_stand_under_a_law_and_the_reference_has_its_exact_chance(tmp_path: Path) -> None:
    reference = [{"tool": "library_search", "parameters": {"query": query}} for query in ("film", "Ada Quill")]
    question = {"question": QUESTION["question"], "answers": QUESTION["answers"], "reference": reference}
    world = configured(tmp_path, "adding_server.py", question)
    rules = {"base": 0.8, "history": 1.0, "not_executed": 1.0, "failed": 1.0, "max_turns": 3}
    result = evaluate("reference", world, seeds=2, out=tmp_path / "run", **rules)
    for record in result.records():
        assert record["optimum"] == pytest.approx(0.8**2 * (1 + 2 * 0.2)), "two of at most three calls have to pass"
        assert record["outcome"] == (record["answer"] == OFFICE)


@pytest.mark.long
def test_results_refusals_and_the_end_of_a_server(tmp_path: Path) -> None:
    world = load_world(configured(tmp_path, "own_server.py", {"question": "?", "tools": ["add"]}))
    (task,) = world.tasks()
    assert "add" in world.library.names
    workspace = world.open(task, 0)
    assert workspace.call("add", {"a": 2, "b": 3}) == {"result": "5"}
    with pytest.raises(ToolError, match="nothing works here"):
        workspace.call("fails", {})
    with pytest.raises(ToolError, match="did you mean 'add'"):
        workspace.call("addd", {})
    with pytest.raises(Exception, match="did not answer") as raised:
        workspace.call("dies", {})
    assert not isinstance(raised.value, ToolError | WorldFailed), "who plays the episode says that the world failed"
    workspace.close()
    again = world.open(task, 0)  # with a server of its own
    assert again.call("add", {"a": 1, "b": 1}) == {"result": "2"}
    again.close()


def test_without_right_answers_an_answer_counts_and_lists_are_scored_as_such(tmp_path: Path) -> None:
    listed = {"question": "All?", "answers": ["a", "b"], "form": "list", "tools": ["add"]}
    world = load_world(configured(tmp_path, "adding_server.py", {"question": "?", "tools": ["add"]}, listed))
    asked, of_list = world.tasks()
    assert [world.grade(asked, answer, ()).correct for answer in ("x", " ", None)] == [True, False, False]
    assert world.grade(of_list, "b; a", ()).correct
    assert world.grade(of_list, "a", ()).score == pytest.approx(2 / 3)


def test_whoever_reads_tasks_starts_nothing_and_refusals_say_what_was_expected(tmp_path: Path) -> None:
    world = load_world(configured(tmp_path, "x", QUESTION, command="no-such-command-here"))
    assert len(world.tasks()) == 1
    with pytest.raises(InvalidInputError, match="cannot be started"):
        world.library.names  # noqa: B018
    refused: list[tuple[list[Any], str]] = [
        ([], 'holds no question: expected "questions"'),
        ([{"question": "?", "form": "turns"}], "question 1.*form"),
        ([{"ask": "?"}], "question 1.*'ask'"),
        ([{"question": "?", "reference": [{"tol": "add"}]}], "question 1.*reference"),
    ]
    for number, (questions, problem) in enumerate(refused):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "mcp.json").write_text(
            json.dumps({"servers": {"a": {"url": "http://127.0.0.1:9/mcp"}}, "questions": questions}), encoding="utf-8"
        )
        with pytest.raises(InvalidInputError, match=problem):
            load_world(f"mcp:{folder / 'mcp.json'}")
    with pytest.raises(InvalidInputError, match="needs a file: expected mcp:FILE"):
        load_world("mcp")


@pytest.mark.long
def test_a_question_on_the_command_line(tmp_path: Path) -> None:
    server = tmp_path / "one_tool.py"
    server.write_text(
        "from mcp.server.mcpserver import MCPServer\nserver = MCPServer('one')\n\n\n@server.tool()\n"
        "def library_search(query: str) -> str:\n    '''Finds an article.'''\n    return 'mayor of Brindle'\n\n\n"
        "server.run()\n",
        encoding="utf-8",
    )
    world = configured(tmp_path, str(server))
    (record,) = evaluate(
        "react", f"{world}?Who is it?", model=script(tmp_path, "react"), out=tmp_path / "run"
    ).records()
    assert (record["outcome"], record["answer"], record["required_tools"]) == (1, OFFICE, ["library_search"])
    several = load_world(f"{configured(tmp_path, 'adding_server.py')}?Who?")
    with pytest.raises(InvalidInputError, match=r'the servers have 3 tools: expected "tools"'):
        several.tasks()
    # Whoever makes tables of a run starts none of its servers.
    Path(world.removeprefix("mcp:")).unlink()
    (tmp_path / "mcp.json").write_text(
        json.dumps({"mcpServers": {"own": {"command": "no-such-command-here"}}}), encoding="utf-8"
    )
    load_world.cache_clear()
    table, *_ = paper_tables([tmp_path / "run"])
    assert "Without sections C.1 and D.2: the questions of this world are not there." in table.notes
