"""The code blocks of README and guides are run as they stand, so that they cannot drift from the software.

- A `python` block that begins with the comment `# name.py` is written to that file; any other is run.
- A `json` block with a caption is written to the file of that name.
- Each `$` line of a `console` block is run in the same folder; the text below it, where `...` stands for anything, is
  compared with the output.
- Each `make` line of a `sh` block must name a target of the Makefile.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from typing_extensions import get_type_hints

from resilisim import benchmark_tasks
from resilisim.envs import public_info
from tests.page_outputs import FENCED, ROOT, blocks, commands, endpoint, holds, run, run_command


def run_python(code: str, folder: Path, python: list[str]) -> None:
    """Run a block; comments at its end say what it prints."""
    done = run([*python, "-c", code], folder)
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    assert done.stdout.strip(), code
    shown = re.search(r"((?:^# .*\n)+)\Z", code, flags=re.MULTILINE)
    if shown is not None:
        assert done.stdout == re.sub(r"^# ", "", shown.group(1), flags=re.MULTILINE)


def run_console(block: str, folder: Path, python: list[str]) -> None:
    """Run the commands of a console block and compare what they print."""
    for command, expected in commands(block):
        done = run_command(command, folder, python)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if expected:
            assert holds(expected, done.stdout), f"{command}\n{done.stdout}"


FOLDERS = ("guides", "reference/commands")
PAGES = ["docs/start.md"]
PAGES += sorted(str(path.relative_to(ROOT)) for folder in FOLDERS for path in ROOT.glob(f"docs/{folder}/*.md"))
COMMANDS = [page for page in PAGES if "/commands/" in page]
QUICK = ("start", "your-agent", "evaluate-agents")  # the first that people try; the others are long


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[] if Path(page).stem in QUICK else [pytest.mark.long]) for page in PAGES],
)
def test_blocks_run_in_the_order_in_which_they_stand(page: str, tmp_path: Path, python: list[str]) -> None:
    found = blocks((ROOT / page).read_text(encoding="utf-8"))
    assert page in COMMANDS or any(block.language in ("python", "console") for block in found)
    with endpoint():
        for block in found:
            if block.file:
                (tmp_path / block.file).write_text(block.text, encoding="utf-8")
            elif block.language == "python":
                run_python(block.text, tmp_path, python)
            elif block.language == "console":
                run_console(block.text, tmp_path, python)


def test_the_blocks_of_the_readme_are_blocks_of_pages_that_are_run() -> None:
    pages = {block for page in PAGES for block in blocks((ROOT / page).read_text(encoding="utf-8"))}
    shown = [block for block in blocks((ROOT / "README.md").read_text(encoding="utf-8")) if block.language != "sh"]
    assert len(shown) >= 4
    assert not [block.text for block in shown if block not in pages]


@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_make_targets_exist(page: str) -> None:
    shell = [block.text for block in blocks((ROOT / page).read_text(encoding="utf-8")) if block.language == "sh"]
    targets = re.findall(r"^make (\w+)", "".join(shell), flags=re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets == ["demo", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_readme_is_short_and_its_links_lead_to_files() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    for target in re.findall(r"\]\(([^)#:]+)\)", FENCED.sub("", text)):
        assert (ROOT / target).is_file(), target


def test_every_package_with_public_names_has_a_reference_page() -> None:
    packages = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "resilisim").rglob("__init__.py")
        if "__all__" in path.read_text(encoding="utf-8")
    }
    pages = {path.stem for path in (ROOT / "docs/reference/api").glob("resilisim*.md")}
    assert pages == packages


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """Return the rows of the table that follows a text of a page: the key of each, and its other cells."""
    text = (ROOT / page).read_text(encoding="utf-8")
    table = re.search(rf"{re.escape(heading)}\n.*?((?:^\|[^\n]*\|\n)+)", text, flags=re.MULTILINE | re.DOTALL)
    assert table is not None
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.group(1).splitlines()[2:]]
    return {line[0].strip("`"): line[1:] for line in cells}


def test_the_keys_of_info_of_conversations_are_those_of_their_page() -> None:
    env = gymnasium.make("resilisim/Conversation-v0", search="lexical")
    _, info = env.reset(seed=2, options={"prompt": "flawed", "task": benchmark_tasks()[0].instance_id})
    infos = [info]
    writer = "<tool_call>file_operations_writer</tool_call>"  # under this seed a dependency is to blame for its failure
    messages = ["<tool_search>x</tool_search>", "<tool_info>file_operations_reader</tool_info>", "hm"]
    for message in [*messages, "<tool_call>nothing</tool_call>", writer, "<finish/>"]:
        infos.append(env.step(message)[-1])
    native = gymnasium.make("resilisim/Conversation-v0", search="lexical", protocol="native", reward="value")
    infos += [native.reset(seed=2)[-1], native.step("<finish/>")[-1]]
    keys = rows("docs/environments/conversation.md", "## Keys of `info`")
    assert keys.keys() == {key for info in infos for key in info}
    assert {key for key, cells in keys.items() if cells[0] in ("always", "at the start")} == set(infos[0])
    assert {key for key, cells in keys.items() if cells[0] == "always"} == set.intersection(*map(set, infos))
    assert {key for key, cells in keys.items() if cells[1] == "yes"} == {
        key for one in infos for key in public_info(one)
    }
    forced = gymnasium.make("resilisim/Conversation-v0", search="lexical", force=("file_operations_writer#1=ok",))
    forced.reset(seed=2)
    execution = forced.step(writer)[-1]["execution"]
    real = ["real"]  # of worlds, where tools fail by themselves
    assert list(rows("docs/environments/conversation.md", '`info["execution"]`:')) == [*execution, *real]


def test_the_keys_that_laws_add_are_those_of_their_page() -> None:
    law = {"error_kinds": {"transient": 0, "input": 0}, "rate_limit": {"calls": 9, "window": 9}}
    law["latency"] = {"distribution": [{"seconds": 1, "probability": 1}]}
    env, plain = (gymnasium.make("resilisim/Conversation-v0", **options) for options in ({"law": law}, {}))
    calls = ["<tool_call>integration_connector</tool_call>"] * 9
    seen, known = (
        [one.reset(seed=4)[1], *(one.step(call)[-1] for call in calls[:3])] for one in (env.unwrapped, plain.unwrapped)
    )
    keys = rows("docs/environments/conversation.md", "A [failure model](../guides/failure-models.md) with parts adds:")
    assert keys.keys() == {key for info in seen for key in info} - {key for info in known for key in info}
    assert {key for key, cells in keys.items() if cells[1] == "yes"} == keys.keys() & {
        key for info in seen for key in public_info(info)
    }


def test_the_keys_of_info_of_workflows_are_those_of_their_page() -> None:
    env = gymnasium.make("resilisim/Workflow-v0")
    observation, start = env.reset(seed=0)
    terminated, info = False, start
    while not terminated:
        observation, _, terminated, _, info = env.step(observation["action_mask"].argmax())
    keys = rows("docs/environments/workflow.md", "## Keys of `info`")
    assert keys.keys() == info.keys()
    assert {key for key, cells in keys.items() if cells[0] == "always"} == set(start)


def found(target: str) -> Any:
    """Return what `module:name` names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def test_the_keys_of_records_are_those_of_their_page() -> None:
    text = (ROOT / "docs/reference/episodes.md").read_text(encoding="utf-8")
    tables = re.findall(r"^```\{record-keys\} (\S+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert len(tables) >= 10
    for target, body in tables:
        assert {line.partition(": ")[0] for line in body.splitlines()} == get_type_hints(found(target)).keys(), target


CODE = ("resilisim", "tests", "verification", "benchmarks", "examples", "integrations")
PATH = re.compile(rf"`((?:{'|'.join(CODE)}|docs)/[\w./-]+(?:\.\w+|/)|[\w./-]+\.py)`")
PAGES_THAT_NAME_CODE = sorted(
    path
    for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    # Guides and tutorials name files that their reader makes; a built site may be of another day.
    if not {"guides", "tutorials", "_build"} & {*path.parts}
)


def test_files_that_pages_name_exist() -> None:
    every = "\n".join(f"/{path.relative_to(ROOT)}" for folder in (*CODE, "docs") for path in (ROOT / folder).rglob("*"))
    missing = [
        f"{page.relative_to(ROOT)}: {path}"
        for page in PAGES_THAT_NAME_CODE
        for path in PATH.findall(page.read_text(encoding="utf-8"))
        if "NAME" not in path and not re.search(rf"/{re.escape(path.rstrip('/'))}(?:/|$)", every, flags=re.MULTILINE)
    ]
    assert missing == []


@pytest.fixture(scope="module")
def words_of_the_code() -> set[str]:
    """Every word of every Python file."""
    paths = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    return {word for path in paths for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("page", sorted((ROOT / "docs/development").glob("*.md")), ids=lambda page: page.stem)
def test_names_that_pages_for_developers_use_exist(page: Path, words_of_the_code: set[str]) -> None:
    quoted = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    said = [text for text in quoted if not PATH.fullmatch(f"`{text}`") and "NAME" not in text]
    names = {name for text in said for name in re.findall(r"\b[A-Za-z]\w*_\w+|\b[A-Z][a-z]+[A-Z]\w*", text)}
    assert sorted(names - words_of_the_code) == []
