"""The world "apis-v1": eight tasks in which what one API returns is what the next is asked for.

Calls go to a twin without faults in this process, whose answers hold words that nobody guesses; failures are the law's
then. "apis-v1:faults" is a twin with the faults of table 16, "apis-v1:live" the real hosts; their failures are real.
Answers cannot be known before the episode: a task's answer is a template like the parameters of its reference, and an
episode is graded by whether each call was given what an earlier one had really returned.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.inputs import read_json
from resilisim.tasks import Task
from resilisim.worlds.apis.api import api_library, find_api
from resilisim.worlds.apis.api_client import MOST_CALLS_A_HOST, Address, ApiClient
from resilisim.worlds.apis.twin import Twin, TwinLaw
from resilisim.worlds.base import DoneCall, Grade, ReferenceCall, ToolError, reference_calls, resolve_parameters

NAME = "apis-v1"
_MODES = ("", "faults", "live")
FAULTS_SPEED = 30.0  # a call without an answer takes a second, far more than one with an answer
_EARLIER = re.compile(r"\$\{([\w-]+)\.([^{}]+)\}")
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?", re.IGNORECASE)
_RELATIVE = 1e-3  # rounding of a number that is passed on is no invention

Results = Mapping[str, Sequence[Mapping[str, Any]]]


class ApiWorld:
    """Eight tasks over the 23 APIs.

    Args:
        mode: "" for a twin without faults, "faults" for one with those of table 16, "live" for the real hosts.
    """

    def __init__(self, mode: str = "") -> None:
        if mode not in _MODES:
            raise unknown_name("kind of apis-v1", mode, _MODES[1:])
        self.name = f"{NAME}:{mode}" if mode else NAME
        self.library = api_library()
        self._mode = mode

    def tasks(self) -> tuple[Task, ...]:
        """Return the eight tasks."""
        return _tasks(self.name)

    def open(self, task: Task, seed: int) -> ApiWorkspace:
        """Return what calls of an episode go to; the same task and seed get the same answers of a twin."""
        return ApiWorkspace(_lines(self._mode), f"{task.instance_id}/{seed}")

    def grade(self, task: Task, answer: str | None, calls: Sequence[DoneCall]) -> Grade:
        """Grade an episode: were the right values passed on, and does the answer hold what the calls returned?"""
        return grade_flow(task, answer, calls)


class ApiWorkspace:
    """The calls of one episode, each API's attempts counted."""

    def __init__(self, lines: _Lines, stream: str) -> None:
        self._lines = lines
        self._stream = stream
        self._attempts: defaultdict[str, int] = defaultdict(int)

    def call(self, tool: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        """Call an API and return its output; ToolError if it fails or the parameters do not fit it."""
        attempt, self._attempts[tool] = self._attempts[tool], self._attempts[tool] + 1
        try:
            done = self._lines.run(self._lines.client.call(find_api(tool), parameters, attempt, self._stream))
        except InvalidInputError as error:
            raise ToolError("INVALID_INPUT", str(error)) from None
        if done.output is None:
            raise ToolError(done.error or "OPERATION_FAILED", done.message)
        output: Mapping[str, Any] = done.output
        return output

    def close(self) -> None:
        """Do nothing: connections are kept for other episodes."""


class _Lines:
    """Connections, and the twin behind them, in a thread of their own: what is asynchronous, for who is not."""

    def __init__(self, mode: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name=f"resilisim-apis-{mode}").start()
        self.client: ApiClient = self.run(self._opened(mode))

    def run(self, work: Any) -> Any:
        """Run a coroutine in that thread and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _opened(self, mode: str) -> ApiClient:
        if mode == "live":
            return ApiClient()
        # Without latencies: a busy machine makes no sound call a TIMEOUT, so episodes can be replayed.
        law, speed = TwinLaw(median_seconds=0.0), FAULTS_SPEED
        if mode != "faults":
            law, speed = TwinLaw(success=1.0, median_seconds=0.0), 1.0
        twin = await Twin(law, speed=speed).__aenter__()  # listens as long as the process lives
        return ApiClient(Address(twin.url, speed=speed), MOST_CALLS_A_HOST)


@functools.lru_cache(maxsize=len(_MODES))
def _lines(mode: str) -> _Lines:
    return _Lines(mode)


@functools.lru_cache(maxsize=len(_MODES))
def _tasks(world: str) -> tuple[Task, ...]:
    text = resources.files("resilisim.worlds.apis").joinpath("tasks.json").read_text(encoding="utf-8")
    return tuple(_task(entry, world) for entry in read_json(text, "tasks.json"))


def _task(entry: Mapping[str, Any], world: str) -> Task:
    reference = [{"parameters": {}, **call} for call in entry["reference"]]
    fields = {
        "task_type": entry["task_type"],
        "description": entry["description"],
        "inputs": entry["inputs"],
        "expected_outputs": {"answer": "a text with everything that is asked for, as the calls returned it"},
        "required_tools": list(dict.fromkeys(call["tool"] for call in reference)),
        "metadata": {"world": world, "answers": [entry["answer"]], "reference": reference},
    }
    return Task.from_mapping(fields, api_library())


def grade_flow(task: Task, answer: str | None, calls: Sequence[DoneCall]) -> Grade:
    """Grade calls by the values that went from one to the next, and an answer by the values in it.

    A call does a step of the reference if it succeeded and each of its parameters is what the reference says: a value
    that an earlier call, which did its own step, really returned, or what the task gives. The answer has to hold the
    values that the task's answer template names.

    Returns:
        correct: every step was done, and the answer holds every value. The score is half the share of steps that take a
        value from an earlier one and were done, half the share of values that the answer holds.
    """
    steps = reference_calls(task)
    results: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    done = set()
    for call in calls:
        for place, step in enumerate(steps):
            if call.success and call.tool == step.tool and _does(call, step, results):
                done.add(place)
                if step.save is not None and call.output is not None:
                    results[step.save].append(call.output)
    linked = {place for place, step in enumerate(steps) if _saves_in(step.parameters)}
    passed_on = len(done & linked) / len(linked) if linked else 1.0
    wanted = _EARLIER.findall(task.metadata["answers"][0])
    held = [any(_holds(answer or "", result[name]) for result in results[save]) for save, name in wanted]
    in_answer = sum(held) / len(held) if held else 1.0
    correct = len(done) == len(steps) and all(held)
    criteria = {"passed_on": passed_on, "in_answer": in_answer}
    return Grade(correct, (passed_on + in_answer) / 2.0, criteria)


def _saves_in(template: Mapping[str, Any]) -> list[str]:
    """Return the names of earlier results that parameters take values of."""
    return list(dict.fromkeys(save for text in template.values() for save, _ in _EARLIER.findall(str(text))))


def _does(call: DoneCall, step: ReferenceCall, results: Results) -> bool:
    """Tell whether a call has the parameters of a step, with values of one result for each name."""
    saves = _saves_in(step.parameters)
    combinations: Iterator[tuple[Mapping[str, Any], ...]] = itertools.product(*(results[save] for save in saves))
    return any(_fits(call, step, dict(zip(saves, each, strict=True))) for each in combinations)


def _fits(call: DoneCall, step: ReferenceCall, results: Mapping[str, Mapping[str, Any]]) -> bool:
    for name, wanted in step.parameters.items():
        value_sent = call.parameters.get(name)
        if isinstance(wanted, str) and _EARLIER.search(wanted) and not _EARLIER.fullmatch(wanted):
            # A text that the agent composes: what counts is that it holds the values.
            if not all(_holds(str(value_sent), results[save][path]) for save, path in _EARLIER.findall(wanted)):
                return False
        elif not _is_same(value_sent, resolve_parameters({name: wanted}, results)[name]):
            return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_same(shown: Any, value: Any) -> bool:
    if _is_number(value):
        number = _read_number(shown) if isinstance(shown, str) else shown
        return number is not None and _is_number(number) and math.isclose(number, value, rel_tol=_RELATIVE)
    return isinstance(shown, str) and _plain(shown) == _plain(str(value))


def _holds(text: str, value: Any) -> bool:
    """Tell whether a text holds a value: a number as a number, another value as it is written, in whole words."""
    if _is_number(value):
        return any(_is_same(number, value) for number in _NUMBER.findall(text))
    return re.search(rf"(?<!\w){re.escape(_plain(str(value)))}(?!\w)", _plain(text)) is not None


def _read_number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
