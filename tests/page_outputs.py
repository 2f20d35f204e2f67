"""Blocks of pages: how they are found and run; `python -m tests.page_outputs PAGE ...` fills in what they print.

Filling runs a page's blocks in order, as the tests do, and puts the output of each command below it. What differs from
run to run (times, folders of this machine) becomes `...`. A command without output keeps none, and an output that still
holds is left as it is, cut as it may be; `...` alone is filled.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chat.loopback import Answer, LoopbackServer, Seen, completion
from tests.doubles.slow_endpoint import reply

ROOT = Path(__file__).resolve().parent.parent
PLAIN_COMMAND = re.compile(r"resilisim [^|;&<>$`*?~]*\Z")  # which needs no shell
FILE_NAME = re.compile(r"# (\w+\.py)\n")
FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
VOLATILE = re.compile(r"(?<!\w)\d+(?:\.\d+)? (?:s|ms|seconds|minutes)\b(?! (?:of|a|each))|/tmp/\S+")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, in the order in which it stands."""

    language: str
    caption: str
    text: str

    @property
    def file(self) -> str:
        """Name of the file that the block is, or nothing: a caption, or a Python block's first comment."""
        name = FILE_NAME.match(self.text)
        return self.caption or (name.group(1) if self.language == "python" and name else "")


def block(fence: str, body: str) -> Block:
    """Return the block between a fence's first line and its last."""
    directive = re.fullmatch(r"\{code-block\} (\w+)", fence)
    caption = re.match(r":caption: (.+)\n", body)
    return Block(
        directive.group(1) if directive else fence,
        caption.group(1) if caption else "",
        body[caption.end() :] if caption else body,
    )


def blocks(text: str) -> list[Block]:
    """Return a page's fenced blocks."""
    return [block(fence, body) for fence, body in FENCED.findall(text)]


def commands(text: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with the output shown below it."""
    shown: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            shown.append((line[2:], ""))
        else:
            command, output = shown[-1]
            shown[-1] = (command, output + line + "\n")
    return shown


@contextmanager
def endpoint() -> Iterator[None]:
    """Serve a model that calls one tool after the other where the environment's variables say."""

    def answer(seen: Seen) -> Answer:
        return completion(reply(sum(message["role"] == "assistant" for message in seen.body["messages"])))

    with LoopbackServer(answer) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", server.base_url)
        patch.setenv("OPENAI_API_KEY", "key")
        yield


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with this interpreter's commands first in the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return subprocess.run(
        arguments,
        cwd=folder,
        env={
            **os.environ,
            "PATH": path,
            "COLUMNS": "84",
            "PYTEST_PLUGINS": "resilisim_pytest",
        },  # which an installation brings
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run_command(command: str, folder: Path, python: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a line of a console block."""
    if PLAIN_COMMAND.match(command):
        return run([*python, "-m", *shlex.split(command)], folder)
    return run(["bash", "-c", command], folder)


def holds(expected: str, output: str) -> bool:
    """Return whether a command prints what a page shows, where `...` stands for anything."""
    return doctest.OutputChecker().check_output(expected, output, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


def filled(page: str, folder: Path) -> str:
    """Return a page's text with the outputs of today; files of its blocks are written into the folder."""

    def again(match: re.Match[str]) -> str:
        here = block(match.group(1), match.group(2))
        if here.file:
            (folder / here.file).write_text(here.text, encoding="utf-8")
        elif here.language == "python":
            run([sys.executable, "-c", here.text], folder)
        if here.language != "console":
            return match.group(0)
        lines = []
        for command, shown in commands(here.text):
            done = run_command(command, folder, [sys.executable])
            if done.returncode:
                raise SystemExit(f"{command}\n{done.stdout}{done.stderr}")
            if shown and (shown.strip() == "..." or not holds(shown, done.stdout)):
                rows = [line.rstrip() for line in VOLATILE.sub("...", done.stdout).splitlines()]
                shown = "".join(f"{line}\n" for line in rows if line)
            lines += [f"$ {command}", *shown.splitlines()]
        return f"```{match.group(1)}\n" + "\n".join(lines) + "\n```"

    return FENCED.sub(again, page)


def main() -> None:
    """Fill the pages that are named."""
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder, endpoint():
            path = ROOT / name
            path.write_text(filled(path.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")
        print(name)


if __name__ == "__main__":
    main()
