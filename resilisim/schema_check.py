"""JSON Schemas that come from outside, checked within a limit of time.

A pattern can take longer than the age of the world for thirty characters, and a few references to each other as long;
Python can be interrupted in neither. So what is not harmless by its form is checked in another process, which is ended
when it takes too long. References to other documents are never followed.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, Final

from resilisim.schema_worker import first_problem

CHECK_SECONDS: Final = 2.0
_START_SECONDS: Final = 20.0  # for the first job of a process, on a busy machine
_HARMLESS: Final = frozenset(
    {"$schema", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "format"}
    | {"type", "properties", "required", "items", "additionalProperties", "enum", "const", "anyOf"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"}
    | {"minItems", "maxItems", "minProperties", "maxProperties", "$defs", "definitions"}
)
_MOST_HARMLESS: Final = 2_000  # parts of a schema
_SHORT_TEXT: Final = 12  # characters on which no pattern takes long
_SHORT_PATTERN: Final = 200
_REPEATS: Final = re.compile(r"[*+{]|\\[1-9]|\(\?P=")


class TooSlowError(Exception):
    """A check took longer than there is time for it."""


def schema_problem(schema: Any, value: Any, seconds: float = CHECK_SECONDS) -> str | None:
    """Return what a schema of somebody else's says against a value; None if nothing, or if it is no schema.

    Args:
        schema: The schema.
        value: A JSON value.
        seconds: How long it may take.

    Raises:
        TooSlowError: It takes longer.
    """
    if is_harmless(schema):
        return first_problem(schema, value)
    problem: str | None = _PROCESS.ask({"schema": schema, "value": value}, seconds)
    return problem


def found_in(pattern: str, text: str) -> bool:
    """Return whether a pattern of somebody else's occurs in a text.

    Raises:
        TooSlowError: It takes longer to find out than there is time.
        re.error: It is no pattern.
    """
    is_quick = len(pattern) <= _SHORT_PATTERN and len(_REPEATS.findall(pattern)) <= 1
    if is_quick or len(text) <= _SHORT_TEXT:
        return re.search(pattern, text) is not None
    re.compile(pattern)
    return bool(_PROCESS.ask({"pattern": pattern, "text": text}, CHECK_SECONDS))


def is_harmless(schema: Any) -> bool:
    """Return whether checking by a schema cannot take long, by the words that it is made of."""
    waiting, parts = [schema], 0
    while waiting:
        part = waiting.pop()
        parts += 1
        if isinstance(part, bool):
            continue
        if not isinstance(part, Mapping) or parts > _MOST_HARMLESS:
            return False
        for word, value in part.items():
            if word not in _HARMLESS and not word.startswith("x-"):
                return False
            if word == "properties" and isinstance(value, Mapping):
                waiting.extend(value.values())
            elif word == "anyOf" and isinstance(value, list):
                waiting.extend(value)
            elif word in ("items", "additionalProperties"):
                waiting.append(value)
            elif word in ("enum", "const", "default", "examples") and len(str(value)) > 10 * _MOST_HARMLESS:
                return False
    return True


class _Process:
    """The process that checks, started when it is needed first, and anew when it had to be ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._answers: SimpleQueue[str] = SimpleQueue()

    def ask(self, job: Mapping[str, Any], seconds: float) -> Any:
        """Return the answer to a job; TooSlowError if it does not come in time."""
        text = json.dumps({**job, "seconds": seconds}) + "\n"
        with self._lock:
            is_new = self._process is None or self._process.poll() is not None
            process = self._start() if is_new or self._process is None else self._process
            try:
                threading.Thread(target=_write, args=(process.stdin, text), daemon=True).start()
                answer = self._answers.get(timeout=seconds + (_START_SECONDS if is_new else 0.0))
            except Empty:
                answer = ""
            if not answer:  # too late, or ended by what it was asked
                process.kill()
                process.wait()
                self._process = None
                raise TooSlowError(f"it takes longer than {seconds:g} s")
        return json.loads(answer)

    def _start(self) -> subprocess.Popen[str]:
        worker = str(Path(__file__).with_name("schema_worker.py"))
        self._answers = SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-P", worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        threading.Thread(target=_read, args=(self._process.stdout, self._answers), daemon=True).start()
        return self._process


def _write(stream: IO[str] | None, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        if stream is not None:
            stream.write(text)
            stream.flush()


def _read(stream: IO[str] | None, answers: SimpleQueue[str]) -> None:
    with contextlib.suppress(OSError, ValueError):
        for line in stream or ():
            answers.put(line)
    answers.put("")  # it has ended


_PROCESS: Final = _Process()
