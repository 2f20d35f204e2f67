"""A Python that has imported everything: what it runs are forks of one process, without two seconds of imports each.

`WarmPython.command` stands in the place of `sys.executable` before `-m MODULE`, `-c CODE` or a file. It is a small
program (`warm_run.py`), which hands its arguments, folder, environment and standard streams to that process, hands on
signals, and ends as the fork ends; where it is killed, so is the fork. Nothing that runs leaves a trace in the next.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
STREAMS = (0, 1, 2)
HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class WarmPython:
    """The process; use it in a `with` block.

    Attributes:
        command: What begins a command line, as `[sys.executable]` would.
    """

    def __enter__(self) -> WarmPython:
        self._folder = tempfile.TemporaryDirectory()
        path = str(Path(self._folder.name) / "warm")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(16)  # who comes early waits here
            code = f"from tests.warm import serve; serve({listener.fileno()})"
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, pass_fds=[listener.fileno()]
            )
        self.command = [sys.executable, "-S", "-E", str(ROOT / "tests" / "warm_run.py"), path]
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.communicate()  # closes its standard input
        self._folder.cleanup()


def serve(listening: int) -> None:
    """Run what is asked for, each in a fork, until whoever started this process closes its input, or is dead."""
    from resilisim import evaluate
    from resilisim.tool_library import default_library
    from resilisim.tool_library.retrieval import default_retriever

    importlib.import_module("resilisim.policies.ppo.training")
    importlib.import_module("resilisim.integrations.mcp.proxy")
    evaluate("plan-follower", 1, progress=False)  # imports, reads and compiles
    default_retriever(default_library()).search("read a file")  # the model is there for every fork
    gc.freeze()  # no fork looks among all this for garbage
    _Server(socket.socket(fileno=listening)).run()


class _Server:
    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._children: dict[int, socket.socket] = {}  # by process id, whoever waits for its end
        self._ended, self._wake = socket.socketpair()
        for end in (self._ended, self._wake):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno())
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(listener, selectors.EVENT_READ)
        self._waiting.register(self._ended, selectors.EVENT_READ)
        self._waiting.register(0, selectors.EVENT_READ)

    def run(self) -> None:
        while True:
            for key, _ in self._waiting.select():
                if key.fileobj is self._listener:
                    self._begin(self._listener.accept()[0])
                elif key.fileobj is self._ended:
                    self._reap()
                elif key.fileobj == 0:
                    return
                else:
                    self._hand_on(key.data)

    def _begin(self, asker: socket.socket) -> None:
        _, descriptors, _, _ = socket.recv_fds(asker, 1, len(STREAMS))
        length = int.from_bytes(_exactly(asker, 4))
        asked = json.loads(_exactly(asker, length))
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._waiting.close()
            for end in (self._listener, self._ended, self._wake, asker, *self._children.values()):
                end.close()
            _leave(_become(asked, dict(zip(asked["streams"], descriptors, strict=True))))
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[child] = asker
        self._waiting.register(asker, selectors.EVENT_READ, child)

    def _reap(self) -> None:
        self._ended.recv(1024)
        for child in list(self._children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                asker = self._children.pop(child)
                with contextlib.suppress(KeyError):
                    self._waiting.unregister(asker)
                with contextlib.suppress(OSError):  # who asked may have been killed
                    asker.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
                asker.close()

    def _hand_on(self, child: int) -> None:
        if child in self._children:  # it has not ended meanwhile
            numbers = self._children[child].recv(16)
            if not numbers:
                self._waiting.unregister(self._children[child])
            for number in numbers or [signal.SIGKILL]:
                os.kill(child, number)


def _exactly(asker: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = asker.recv(length - len(data))
        assert part, "whoever asked has gone"
        data += part
    return data


def _become(asked: dict[str, Any], streams: dict[int, int]) -> Callable[[], object]:
    """Make this process one that was started as it was asked for; return what it has to do."""
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    encoding, _, named = os.environ.get("PYTHONIOENCODING", "").partition(":")
    for number, name, mode, errors in (
        (0, "stdin", "r", "surrogateescape"),
        (1, "stdout", "w", "strict"),
        (2, "stderr", "w", "backslashreplace"),
    ):
        if number in streams:
            os.dup2(streams[number], number)
            stream = open(number, mode, encoding=encoding or "utf-8", errors=named or errors, closefd=False)  # noqa: SIM115
            if mode == "w":
                stream.reconfigure(line_buffering=name == "stderr" or stream.isatty())
            setattr(sys, name, stream)
        else:
            os.close(number)
            setattr(sys, name, None)
    for descriptor in streams.values():
        os.close(descriptor)
    for number in HANDED_ON:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    first, *others = asked["arguments"]
    sys.path[0:1] = [
        os.path.dirname(first) if not first.startswith("-") else "",
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
    ]
    sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-c":
        sys.argv = ["-c", *others[1:]]
        return lambda: exec(compile(others[0], "<string>", "exec"), sys.modules["__main__"].__dict__)
    if first == "-m":
        sys.argv = others
        return lambda: runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    sys.argv = [first, *others]
    return lambda: runpy.run_path(first, run_name="__main__")


def _leave(work: Callable[[], object]) -> NoReturn:
    """Work, and end this process as Python would, but for the third of a second that taking all apart takes."""
    code: object = 1
    interrupted = False
    try:
        try:
            work()
            code = 0
        except SystemExit as left:
            code = left.code or 0
            if not isinstance(code, int):
                print(code, file=sys.stderr)
        except BaseException as error:
            traceback.print_exc()
            interrupted = isinstance(error, KeyboardInterrupt)
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    finally:
        if interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code if isinstance(code, int) else 1)
