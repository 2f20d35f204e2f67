"""What both checks of real servers behind the proxy share: its command, and what has to come out."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resilisim import inject

ROOT = Path(__file__).resolve().parents[1]
PYTHON = os.environ.get("SERVER_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
LAW = {"base": 0.7, "history": 1.0}
SEEDS = (0, 1, 2, 3)


def proxy(folder: Path, seed: int, server: Sequence[str], *options: str) -> list[str]:
    """Return the command line of a proxy that records into a folder, in front of a server (a command, or --url URL)."""
    law = folder.with_name("law.json")
    law.write_text(json.dumps({"name": "check", **LAW}))
    asked = ["--law", str(law), "--seed", str(seed), "--record", str(folder), *options]
    behind = server if server[0] == "--url" else ["--", *server]
    return [PYTHON, "-m", "resilisim", "mcp", "proxy", *asked, *behind]


@contextmanager
def over_http(command: Sequence[str]) -> Iterator[str]:
    """Start a proxy over HTTP and yield the URL that names of episodes are put to."""
    process = subprocess.Popen([*command[:5], "--http", "127.0.0.1:0", *command[5:]], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r"http://[\d.:]+", process.stderr.readline())
        assert found is not None
        yield f"{found[0]}/episodes"
    finally:
        process.terminate()
        told = process.stderr.read() if process.stderr is not None else ""
        assert process.wait() == 0, told


def expected(names: Sequence[str], seed: int, order: Sequence[str]) -> list[bool]:
    """Return which calls of functions with these names pass: those of `resilisim.inject`, made in the same order."""

    def named(name: str) -> Any:
        def function() -> None: ...

        function.__name__ = name
        return function

    tools = inject([named(name) for name in names], law=LAW, seed=seed, raises=TimeoutError)
    passed = []
    for name in order:
        try:
            tools[name]()
            passed.append(True)
        except TimeoutError:
            passed.append(False)
    return passed


def calls_of(folder: Path, episode: int | None = None) -> list[dict[str, Any]]:
    """Return the calls that a folder holds."""
    lines = [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
    return [line for line in lines if episode is None or line["episode"] == episode]
