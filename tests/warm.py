"""Commands and code in forks of a process that has imported everything: processes without seconds of imports."""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SERVE = "from tests.warm import serve; serve()"


class WarmProcess:
    """The process; use it in a `with` block. What runs in a fork of it leaves no trace in the next."""

    def __enter__(self) -> WarmProcess:
        root = str(Path(__file__).resolve().parent.parent)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.communicate(timeout=300)

    def command(self, arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run `resilisim` with arguments in a folder."""
        return self._run(["resilisim", *arguments], {"arguments": list(arguments)}, folder)

    def code(self, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run Python code in a folder, as `python -c` does."""
        return self._run(["python", "-c", text], {"code": text}, folder)

    def _run(self, shown: list[str], what: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as written:
            out, err = Path(written) / "out", Path(written) / "err"
            asked = {**what, "folder": str(folder), "environment": dict(os.environ), "out": str(out), "err": str(err)}
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(shown, code, out.read_text("utf-8"), err.read_text("utf-8"))


def serve() -> None:
    """Run what is asked for, each in a fork, until nobody asks any more."""
    from resilisim import evaluate
    from resilisim.cli.main import main
    from resilisim.tool_library import default_library
    from resilisim.tool_library.retrieval import default_retriever

    importlib.import_module("resilisim.policies.ppo.training")
    evaluate("plan-follower", 1, progress=False)  # imports, reads and compiles
    default_retriever(default_library()).search("read a file")  # the model is there for every fork
    gc.freeze()  # no fork looks among all this for garbage
    requests, told = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")  # the standard streams are the children's
    for line in requests:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(asked)
            if "arguments" in asked:
                main(asked["arguments"])
            else:
                exec(compile(asked["code"], "<string>", "exec"), sys.modules["__main__"].__dict__)
            return
        told.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        told.flush()


def _become(asked: dict[str, Any]) -> None:
    """Make this process one that was started in a folder, with an environment and streams of its own."""
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, asked["out"], os.O_WRONLY | os.O_CREAT),
        (2, asked["err"], os.O_WRONLY | os.O_CREAT),
    ):
        os.dup2(os.open(path, flags), number)
    sys.argv = ["resilisim", *asked.get("arguments", ())]
    sys.path[0] = ""
    sys.modules["__main__"] = types.ModuleType("__main__")
