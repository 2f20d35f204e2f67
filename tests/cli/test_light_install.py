"""Commands on an install without the extra `retrieval`: refused with both ways out, or done with `--search lexical`."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any

import pytest

from resilisim.errors import MissingExtraError, install_line
from resilisim.tool_library.embeddings import OTHER_WAY
from resilisim.tool_library.retrieval import ToolRetriever
from tests.cli.conftest import Command

TASK = "task_c64444cae27fab46"
TYPED = "s read a file\n<finish/>\n"
SEARCHING = "tests.evaluation.toy_policies:Searching"
# Commands that search; OUT is a folder for what they write.
COMMANDS = f"""
tools search "read a file"
play --task {TASK}
evaluate --policy {SEARCHING} --tasks 2 --out OUT
evaluate --policy plan-follower --prompt flawed:semantic_drift:light:semantic_mismatch --tasks 2 --out OUT
tasks prompts generate --tasks 2 --out OUT.jsonl
tasks prompts show --task {TASK} --prompt-type flawed --flaw semantic_drift --method semantic_mismatch
tasks prompts costs --tasks 2
tasks generate --count 3 --out OUT.jsonl
runs profile --policy plan-follower --tasks 2 --axis flaws --flaw semantic_drift --severity light --out OUT
dataset export --kind conversations --tasks 2 --out OUT
"""


@pytest.fixture(autouse=True)
def light_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every search by meaning fail as it does without the extra; standard input is a person at `play`."""

    def missing(*arguments: Any) -> Any:
        raise MissingExtraError(f"semantic tool search needs 'faiss': {install_line('retrieval')}, {OTHER_WAY}")

    for name in ("embed", "similarities", "tool_similarities"):
        monkeypatch.setattr(ToolRetriever, name, missing)
    monkeypatch.setattr("sys.stdin", io.StringIO(TYPED))


@pytest.mark.parametrize("line", COMMANDS.strip().splitlines())
def test_a_command_that_searches_names_both_ways_out_and_words_are_one(
    line: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = command(*shlex.split(line.replace("OUT", str(tmp_path / "refused"))))
    assert refused.code != 0
    assert f'{install_line("retrieval")}, or use lexical search: search="lexical" (--search lexical' in refused.err
    monkeypatch.setattr("sys.stdin", io.StringIO(TYPED))
    done = command(*shlex.split(line.replace("OUT", str(tmp_path / "done"))), "--search", "lexical")
    assert done.code == 0, done.err


def test_bounds_say_why_a_ceiling_is_missing_and_words_give_it(command: Command, tmp_path: Path) -> None:
    own = tmp_path / "tasks.jsonl"
    own.write_text('{"instance_id": "own", "required_tools": ["network_fetcher"], "description": "Fetch the page."}\n')
    bound = ["bound", "--task", "own", "--tasks", own, "--clairvoyant-seeds", "0", "--json"]
    assert "lexical search" in command(*bound).json()["no_search_ceiling"]
    found = command(*bound, "--search", "lexical").json()
    assert (found["searches_needed"], found["no_search_ceiling"]) == (1, None)
    every = ["bound", "--task", "all", *bound[3:], "--search", "lexical"]
    assert command(*every).json()[-1]["searches_needed"] == 1.0


def test_datasets_say_what_answered_searches_and_whether_there_were_any(command: Command, tmp_path: Path) -> None:
    export = ["dataset", "export", "--kind", "conversations", "--tasks", "2"]
    assert command(*export, "--out", tmp_path / "a", "--search", "lexical", "--no-look-up").code == 0
    card = (tmp_path / "a" / "README.md").read_text(encoding="utf-8")
    assert '"search": "lexical"' in card
    assert '"search": false' in card
    assert "--no-look-up" in card
    assert "--search lexical" in card
    refused = command(*export, "--out", tmp_path / "a", "--no-look-up").refusal()
    assert 'environment.search is "lexical" there and "semantic" here' in refused
