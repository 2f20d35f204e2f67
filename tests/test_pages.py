"""The code blocks of README and guides are run as they stand, so that they cannot drift from the software.

- A `python` block that begins with the comment `# name.py` is written to that file; any other is run.
- A `json` block with a caption is written to the file of that name.
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
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FILE_NAME = re.compile(r"# (\w+\.py)\n")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, in the order in which it stands."""

    language: str
    caption: str
    text: str


def blocks(text: str) -> list[Block]:
    """Return a page's fenced blocks."""
    found = []
    for fence, body in re.findall(r"^```([^\n]*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        directive = re.fullmatch(r"\{code-block\} (\w+)", fence)
        caption = re.match(r":caption: (.+)\n", body)
        found.append(
            Block(
                directive.group(1) if directive else fence,
                caption.group(1) if caption else "",
                body[caption.end() :] if caption else body,
            )
        )
    return found


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


def run_python(code: str, folder: Path) -> None:
    """Run a block; comments at its end say what it prints."""
    done = run([sys.executable, "-c", code], folder)
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    assert done.stdout.strip(), code
    shown = re.search(r"((?:^# .*\n)+)\Z", code, flags=re.MULTILINE)
    if shown is not None:
        assert done.stdout == re.sub(r"^# ", "", shown.group(1), flags=re.MULTILINE)


def run_console(block: str, folder: Path) -> None:
    """Run the commands of a console block and compare what they print."""
    for command, expected in commands(block):
        done = run(["bash", "-c", command], folder)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if expected:
            assert doctest.OutputChecker().check_output(expected, done.stdout, FLAGS), f"{command}\n{done.stdout}"


PAGES = ["docs/start.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/guides/*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run_in_the_order_in_which_they_stand(page: str, tmp_path: Path) -> None:
    found = blocks((ROOT / page).read_text(encoding="utf-8"))
    assert any(block.language in ("python", "console") for block in found)
    for block in found:
        name = FILE_NAME.match(block.text)
        if block.caption or (block.language == "python" and name):
            (tmp_path / (block.caption or name.group(1))).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            run_python(block.text, tmp_path)
        elif block.language == "console":
            run_console(block.text, tmp_path)


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
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).is_file(), target


def test_every_package_with_public_names_has_a_reference_page() -> None:
    packages = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "resilisim").rglob("__init__.py")
        if "__all__" in path.read_text(encoding="utf-8")
    }
    pages = {path.stem for path in (ROOT / "docs/reference/api").glob("resilisim*.md")}
    assert pages == packages
