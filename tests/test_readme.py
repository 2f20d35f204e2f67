"""The README's code blocks are run as they stand, so that they cannot drift from the software.

- A `python` block that begins with the comment `# name.py` is written to that file; any other is run.
- The two `json` blocks are written to `tools.json` and `tasks.jsonl`.
- Each `$` line of a `console` block is run in the same folder; the text below it, where `...` stands for anything, is
  compared with the output.
- Each `make` line of a `sh` block must name a target of the Makefile.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the README's fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with the output shown below it."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        else:
            command, output = found[-1]
            found[-1] = (command, output + line + "\n")
    return found


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with this interpreter's commands first in the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return subprocess.run(
        arguments,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the files which the README shows."""
    made = tmp_path_factory.mktemp("readme")
    for block in blocks("python"):
        name = re.match(r"# (\w+\.py)\n", block)
        if name:
            (made / name.group(1)).write_text(block, encoding="utf-8")
    library, task = blocks("json")
    (made / "tools.json").write_text(library, encoding="utf-8")
    (made / "tasks.jsonl").write_text(task, encoding="utf-8")
    return made


RUNNABLE = [block for block in blocks("python") if not re.match(r"# \w+\.py\n", block)]
COMMANDS = [command for block in blocks("console") for command in commands(block)]


def test_readme_holds_the_blocks_that_these_tests_are_about() -> None:
    assert len(RUNNABLE) >= 1
    assert len(COMMANDS) >= 4


@pytest.fixture(scope="module")
def done_commands(folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """The commands of the README, run in the order in which they stand."""
    return [run(["bash", "-c", command], folder) for command, _ in COMMANDS]


@pytest.mark.parametrize("block", RUNNABLE, ids=range(len(RUNNABLE)))
@pytest.mark.usefixtures("done_commands")  # some blocks read what commands wrote
def test_python_block_runs(block: str, folder: Path) -> None:
    done = run([sys.executable, "-c", block], folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    shown = re.search(r"((?:^# .*\n)+)\Z", block, flags=re.MULTILINE)
    if shown is not None:  # comments at the end say what is printed
        assert done.stdout == re.sub(r"^# ", "", shown.group(1), flags=re.MULTILINE)


def test_console_blocks_run_in_the_order_in_which_they_stand(
    done_commands: list[subprocess.CompletedProcess[str]],
) -> None:
    checker = doctest.OutputChecker()
    for (command, expected), done in zip(COMMANDS, done_commands, strict=True):
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if expected:
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            assert checker.check_output(expected, done.stdout, flags), f"{command}\n{done.stdout}"


def test_make_targets_exist() -> None:
    targets = re.findall(r"^make (\w+)", "".join(blocks("sh")), flags=re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets == ["demo", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_two_commands_stand_on_the_first_screen() -> None:
    first_screen = "\n".join(README.splitlines()[:25])
    assert "make demo" in first_screen
    assert "make test" in first_screen


def test_links_lead_to_files() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).is_file(), target
