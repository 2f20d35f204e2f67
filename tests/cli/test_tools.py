"""`resilisim tools generate` and `tools import`: files, servers, documents at a URL, and what is none of these."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from resilisim.integrations.mcp.host import listening
from resilisim.tool_library import ToolLibrary, default_library, load_library
from tests.chat.loopback import Answer, LoopbackServer, Seen, completion
from tests.cli.conftest import Command
from tests.integrations.mcp.adding_server import server
from tests.tool_library.test_differentiation import answer as differentiated

PROGRAM = Path(__file__).parents[1] / "integrations" / "mcp" / "adding_server.py"
LISTED = {
    "tools": [
        {"name": "pay", "inputSchema": {"type": "object"}, "annotations": {"destructiveHint": True}},
        {"name": "list/payments", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    ]
}


def test_a_server_is_asked_for_its_tools_by_command_and_by_url(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "tools.json"
    assert "3 tools, in" in command("tools", "import", "--out", out, "--", sys.executable, PROGRAM).err
    library = load_library(out)
    assert library["add"].input_schema is not None
    assert library["add"].input_schema["required"] == ["a"]

    async def by_url() -> str:
        async with listening(server.streamable_http_app(), "127.0.0.1", 0) as (url, _):
            asked = await asyncio.to_thread(command, "tools", "import", f"{url}/mcp", "--header", "X-Key: 1")
        assert asked.code == 0, asked.err
        return asked.out

    assert ToolLibrary.from_json(asyncio.run(by_url())) == library


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [("application/json", 200, ""), ("text/html", 200, "is a web page"), ("application/json", 403, "answers 403")],
)
def test_a_document_at_a_url(command: Command, kind: str, status: int, words: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(LISTED).encode()
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as there:
        threading.Thread(target=there.serve_forever, daemon=True).start()
        asked = command("tools", "import", f"http://ada:secretword@127.0.0.1:{there.server_port}/tools.json")
        there.shutdown()
    assert "secretword" not in asked.err
    if words:
        assert asked.code != 0
        assert words in asked.err
    else:
        assert ToolLibrary.from_json(asked.out).names == ("pay", "list/payments")


def test_files_are_imported_with_proposals(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    file.write_text(json.dumps(LISTED))
    asked = command("tools", "import", file)
    assert ToolLibrary.from_json(asked.out) == load_library(file)
    assert "a proposal for once, as their annotations say (may do harm if it runs twice): pay" in asked.err
    assert "what has happened): list/payments" in asked.err
    out = tmp_path / "mcp.json"
    assert command("tools", "export", "--library", file, "--format", "mcp", "--out", out).code == 0
    assert load_library(out) == load_library(file)


def test_what_is_no_source_of_tools_is_refused(command: Command, tmp_path: Path) -> None:
    assert "does not exist" in command("tools", "import", tmp_path / "tols.json").refusal()
    assert "cannot be started" in command("tools", "import", "--", "no-such-program-anywhere").refusal()
    assert "--header is sent to a URL" in command("tools", "import", "x.json", "--header", "A: b").refusal()
    assert "cannot be reached" in command("tools", "import", "http://127.0.0.1:9/x").refusal(3)


def test_a_library_is_made_by_rules_and_taken_by_whatever_takes_one(command: Command, tmp_path: Path) -> None:
    assert command("tools", "generate").out == default_library().to_json()
    words, library, tasks = tmp_path / "words.yaml", tmp_path / "own.json", tmp_path / "tasks.jsonl"
    words.write_text("categories: {hr: [reader, parser, writer], billing: [fetcher, aggregator, notifier]}")
    generate = ("tools", "generate", "--vocabulary", words, "--size", 9, "--reliability", "0.7:0.9", "--out", library)
    assert "9 tools in 3 categories" in command(*generate).err
    made = load_library(library)
    assert made["hr_writer"].dependencies == ("billing_aggregator",)
    lexical = ("--library", library, "--search", "lexical")
    assert command("tasks", "generate", *lexical, "--count", 3, "--out", tasks).code == 0
    explored = command("explore", "--policy", "exact-optimum", *lexical, "--tasks", tasks, "--json").json()
    assert [row["low"] == row["high"] for row in explored["rows"]] == [True] * 3
    assert "expected two numbers" in command("tools", "generate", "--reliability", "0.7").refusal()
    assert "did you mean 'reader'" in command("tools", "generate", "--vocabulary", _misspelt(tmp_path)).refusal()


def test_a_model_words_tools_anew_and_the_same_command_takes_its_answers_from_the_cache(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-0123456789")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    library, out = tmp_path / "small.json", tmp_path / "enhanced.json"
    command("tools", "generate", "--size", 6, "--seed", 1, "--out", library)
    tools = load_library(library)

    def answers(seen: Seen) -> Answer:
        tool = next(tool for tool in tools if f'"{tool.original_description}"' in seen.body["messages"][1]["content"])
        return completion("no" if tool == tools[0] else differentiated(tool))

    with LoopbackServer(answers) as endpoint:
        reached = ("--model", "openai:small", "--base-url", endpoint.base_url, "--cache", tmp_path / "cache")
        enhance = ("tools", "enhance", *reached, "--library", library, "--search", "lexical", "--out", out)
        forecast = command(*enhance, "--dry-run", "--json").json()
        assert (forecast["calls"], forecast["most_calls"]) == (6, 12)
        assert "option --out is missing" in command(*enhance[:-2]).refusal()
        assert endpoint.num_requests == 0
        first = command(*enhance)
        num_asked = endpoint.num_requests
        written = out.read_bytes()
        assert "not json" in first.out
        assert "found first by what they are for" in first.err
        again = command(*enhance, "--json").json()
        assert (again["enhanced"], again["refusals"]) == (5, {"not_json": 1})
        assert command(*enhance, "--dry-run", "--json").json()["cached"] == 6
        assert (endpoint.num_requests, out.read_bytes()) == (num_asked, written)
    assert [tool.differentiation_enhanced for tool in load_library(out)] == [False, *[True] * 5]


def _misspelt(tmp_path: Path) -> Path:
    file = tmp_path / "misspelt.json"
    file.write_text('{"categories": {"hr": ["raeder"]}}')
    return file
