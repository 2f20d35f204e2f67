"""Running Python that a model wrote, outside of the simulator's process.

The sandbox is `pydantic-monty`: an interpreter of a subset of Python, made for such code, in worker processes. What it
lacks (inheritance of classes, `del`, generators, most of the standard library) is told to the model as an error of its
block. Measured on two shared cores: 10 ms (45 ms at worst) until the first block has run, 0.5 ms for a block, 0.4 ms
for a call of a host's function, 1 ms to end; 0.25 ms of each is this process's own; 12 MB for a worker. 256 sandboxes
that start within 3 s hold the event loop up for at most 13 ms, 256 that start at one moment for 80 to 400 ms. A process
in which every block ended by itself goes to the next sandbox, where it begins anew: 0.2 ms instead of 4 of processor
time. A few wait so; what met a limit is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import keyword
import math
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self, TypeVar

from resilisim.errors import InfrastructureError, InvalidInputError, MissingExtraError, import_extra, install_line
from resilisim.provenance import without_surrogates

Returned = TypeVar("Returned")
JsonValue = None | bool | int | float | str | list[Any] | dict[str, Any]
HostFunction = Callable[[list[JsonValue], dict[str, JsonValue]], Awaitable[Any]]
"""What the host offers: called with positional and named arguments, returns a JSON value or raises HostCallError."""

NOTHING_PRINTED = "(no output)"
RESTARTED = "The sandbox was stopped. All variables and functions of earlier blocks are gone; a new namespace starts."

_MIB = 1 << 20
_MOST_IDLE = 4  # processes that wait for the next sandbox
_MOST_THREADS = 16  # for all workers; a block takes well under a millisecond, and only a runaway one keeps a thread
# The clock of the sandbox stands still and its random numbers begin with the same seed, so that an episode that is
# run again runs alike. Sleeping takes no time.
_FROZEN_CLOCK = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_SEED = 0
_NOTHING = "None"  # an empty block would be skipped, with the variables that are to be set before it

_SHOWN_OF_ERROR = 1_500  # characters of a traceback; the rest of a deep one repeats itself
_HEAD_OF_ERROR = 500

_MOST_BITS = 1024  # of an integer; more digits than that are an attack and no argument
_DEEPEST = 64
_MOST_ITEMS = 50_000  # of all lists and objects together; whoever waits for the host waits for the walk through them


class HostCallError(Exception):
    """A function of the host failed in a way that the code in the sandbox may handle: there it is a RuntimeError."""


class NotJsonError(ValueError):
    """A value has no form in JSON; the text says which and where."""


class _RoundTripsError(Exception):
    """A block asked the host for something too often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """How much a block of model-written code may use before it is stopped; all limits are above 0."""

    seconds: float = 5.0  # of running; the clock stands still while the host answers a call, so slow tools cost nothing
    memory_mib: int = 64  # heap of the sandbox; a value that is to be shown needs its space twice
    recursion_depth: int = 200  # going deeper is an ordinary RecursionError
    printed_bytes: int = 1_000_000  # far more than is shown, so only a flood meets it
    round_trips: int = 1_000  # how often a block may ask the host for something (a function, a file, a module)
    code_characters: int = 100_000
    shown_characters: int = 2_000


@dataclass(frozen=True, slots=True)
class CodeResult:
    """What one block came to."""

    output: str  # what it printed, or the value of its last expression if it printed nothing; cut, with a mark
    error: str | None = None  # a short traceback
    restarted: bool = False  # whether the sandbox was stopped, so that the namespace is a new one
    calls: int = 0  # functions of the host that were called
    kept: tuple[str, ...] = ()  # variables of the host that are there again after a restart

    @property
    def observation(self) -> str:
        """All of it as one text, never empty."""
        parts = [self.output.rstrip("\n")] if self.output.strip() else []
        if self.error is not None:
            parts.append(self.error)
        if self.restarted:
            kept = f" Put in again: {', '.join(self.kept)}." if self.kept else ""
            parts.append(RESTARTED + kept)
        return "\n".join(parts) or NOTHING_PRINTED

    @property
    def reason(self) -> str | None:
        """The last line of the error, which says what is wrong; None if nothing is."""
        return None if self.error is None else self.error.rpartition("\n")[2]


class Sandbox:
    """Runs Python that a model wrote, in a process of its own.

        async with Sandbox(functions={"add": add}) as box:
            result = await box.run("total = add(1, 2)")

    The code reaches no file, no network, no environment variable and no object of the host. What it defines stays for
    the blocks after it. When a block meets a limit, its process is ended and the next block finds a new namespace,
    which `CodeResult.restarted` tells. The process is had from the first block to the end of the `async with`, also
    when that is cancelled; another sandbox may have it then, and finds nothing of this one. One block runs at a time;
    any number of sandboxes run side by side. A block may overwrite a function of the host for itself; the next finds it
    again. Every new namespace begins with the prelude.
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        functions: Mapping[str, HostFunction] | None = None,
        prelude: str = "",
    ) -> None:
        self.limits = limits or SandboxLimits()
        self._functions = dict(functions or {})
        self._prelude = prelude
        self._variables: dict[str, JsonValue] = {}
        self._worker: _Worker | None = None
        for name in self._functions:
            _check_identifier(name)

    async def __aenter__(self) -> Self:
        """Look whether the sandbox can be had at all; `MissingExtraError` if not."""
        _load_monty()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the process back, or end it."""
        await self._stop()

    @property
    def process_id(self) -> int | None:
        """The worker's process between two blocks; None before the first one."""
        return None if self._worker is None else self._worker.process_id

    async def run(self, code: str, variables: Mapping[str, Any] | None = None) -> CodeResult:
        """Run a block in the namespace; what a function of the host raises beside HostCallError ends the process.

        `variables` are set before it, JSON values by name, and are not put in again after a restart.
        """
        inputs = {name: self._checked(name, value) for name, value in (variables or {}).items()}
        if len(code) > self.limits.code_characters:
            most = self.limits.code_characters
            return CodeResult("", f"SyntaxError: the block has {len(code):,} characters; at most {most:,} are run")
        return await self._run(code, inputs)

    async def assign(self, name: str, value: Any) -> CodeResult:
        """Set a variable, which is put in again after a restart; the result says if it does not fit into the memory."""
        checked = self._checked(name, value)
        result = await self._run(_NOTHING, {name: checked})
        if result.error is None:
            self._variables[name] = checked
        return result

    def _checked(self, name: str, value: Any) -> JsonValue:
        _check_identifier(name)
        if name in self._functions:
            raise InvalidInputError(f"sandbox name {name!r}: a function of the host has this name")
        return json_value(value, name)

    async def _run(self, code: str, variables: Mapping[str, JsonValue]) -> CodeResult:
        try:
            worker = await self._running()
            result = await worker.run(code, variables)
            if result.restarted:
                await self._stop()
        except BaseException:  # the host's own, or a cancellation: the block will never be answered
            await self._stop()
            raise
        return replace(result, kept=tuple(self._variables)) if result.restarted else result

    async def _running(self) -> _Worker:
        if self._worker is None:
            self._worker = await _Worker.start(self.limits, self._functions)
            begun = await self._worker.run(f"{self._prelude}\n{_NOTHING}", self._variables)
            if begun.error is not None:
                raise RuntimeError(f"the sandbox's prelude fails: {begun.error}")
        return self._worker

    async def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()


class BlockingSandbox:
    r"""A sandbox without functions of the host for callers that wait, whether or not an event loop runs around them."""

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        self._box = Sandbox(limits)

    def run(self, code: str, variables: Mapping[str, Any] | None = None) -> CodeResult:
        """Run a block as `Sandbox.run` does."""
        return self._wait(self._box.run(code, variables))

    def close(self) -> None:
        """Give the process back, or end it."""
        self._wait(self._box.__aexit__(None, None, None))

    def _wait(self, work: Coroutine[Any, Any, Returned]) -> Returned:
        return asyncio.run_coroutine_threadsafe(work, _loop(os.getpid())).result()


class _Worker:
    """One worker process with one namespace, driven step by step; use `_Worker.start` and `close`.

    The package's asynchronous interface is not used: its threads touch Python objects shortly after they have answered,
    and a program that ends in this moment is aborted. Here the blocking calls are made in threads of ours.
    """

    def __init__(self, limits: SandboxLimits, functions: Mapping[str, HostFunction]) -> None:
        self.process_id: int | None = None
        self._monty = _load_monty()
        self._limits = limits
        self._functions = functions
        self._placeholders = {name: _placeholder(name) for name in functions}
        self._stack = contextlib.ExitStack()
        self._pool: Any = None
        self._session: Any = None
        self._is_clean = True  # every block so far has ended by itself
        self._under_way: Future[Any] | None = None

    @classmethod
    async def start(cls, limits: SandboxLimits, functions: Mapping[str, HostFunction]) -> _Worker:
        """Start a process with an empty namespace."""
        worker = cls(limits, functions)
        try:
            await worker._off_loop(worker._open)
        except BaseException as error:
            await worker.close()
            if isinstance(error, FileNotFoundError):
                raise MissingExtraError(f"the sandbox's program is missing ({error}): {install_line('llm')}") from error
            if isinstance(error, (worker._monty.MontyError, OSError, RuntimeError)):
                raise InfrastructureError(f"the sandbox's process does not start: {error}") from error
            raise
        return worker

    def _open(self) -> None:
        limits = {
            "max_feed_duration_secs": self._limits.seconds,
            "max_memory": self._limits.memory_mib * _MIB,
            "max_recursion_depth": self._limits.recursion_depth,
            # Of a whole session; ours is of one block and stops the namespace, which theirs does not.
            "max_suspensions": 2**31 - 1,
        }
        policy = {"datetime": _FROZEN_CLOCK, "sleep": "zero", "random_start": {"seed": _SEED}}

        def enter(pool: Any) -> None:
            self._pool = pool
            checkout = pool.checkout(limits=limits, os_policy=policy, script_name="block.py")
            self._session = self._stack.enter_context(checkout)

        for waiting in iter(_taken, None):
            try:
                enter(waiting)
                break
            except self._monty.MontyCrashedError:  # killed while it waited
                waiting.__exit__(None, None, None)
        else:
            enter(self._monty.Monty(min_processes=1, max_processes=1).__enter__())
        self.process_id = self._session.worker_pid

    async def _off_loop(self, function: Callable[..., Returned], *args: Any, **kwargs: Any) -> Returned:
        """Call something that blocks in a thread; one call of a worker at a time."""
        self._under_way = _threads(os.getpid()).submit(function, *args, **kwargs)
        return await asyncio.wrap_future(self._under_way)

    async def close(self) -> None:
        """Give the process back where all its blocks ended by themselves, or end it, whatever it is doing."""
        under_way = self._under_way
        if under_way is not None and not under_way.done() and self.process_id is not None:
            # Here and not in a thread: all of them may be kept by blocks such as the one that is to end.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process_id, getattr(signal, "SIGKILL", signal.SIGTERM))

        def finish() -> None:
            if under_way is not None:
                wait((under_way,))
            self._stack.close()
            idle = _idle(os.getpid())
            if self._is_clean and self._session is not None and len(idle) < _MOST_IDLE:
                idle.append(self._pool)
            elif self._pool is not None:
                self._pool.__exit__(None, None, None)

        await asyncio.wrap_future(_threads(os.getpid()).submit(finish))

    async def run(self, code: str, variables: Mapping[str, JsonValue]) -> CodeResult:
        """Run a block, with variables that are set before it; after any exception the worker cannot be used further."""
        monty = self._monty
        printed = monty.CollectString(max_bytes=self._limits.printed_bytes)
        asked = _Asked()
        value, error, is_alive, self._is_clean = "", None, True, False
        # The functions are bound anew before every block, so a block that overwrites one does it for itself alone.
        inputs = {**variables, **self._placeholders}
        try:
            snapshot = await self._off_loop(self._session.feed_start, code, inputs=inputs, print_callback=printed)
            while not isinstance(snapshot, monty.MontyComplete):
                snapshot = await self._answered(snapshot, asked)
            value = _shown_value(snapshot.output)
        except monty.MontyError as failure:
            error, is_alive = self._explained(failure)
        except _RoundTripsError as failure:
            error, is_alive = f"RuntimeError: {failure}", False
        self._is_clean = is_alive
        output = cut_output(printed.output or value, self._limits.shown_characters)
        return CodeResult(output, error, not is_alive, asked.calls)

    async def _answered(self, snapshot: Any, asked: _Asked) -> Any:
        """Give the sandbox what it waits for."""
        monty = self._monty
        asked.round_trips += 1
        if asked.round_trips > self._limits.round_trips:
            most = self._limits.round_trips
            raise _RoundTripsError(f"the block called out more than {most:,} times and was stopped")
        if isinstance(snapshot, monty.NameLookupSnapshot):
            return await self._off_loop(snapshot.resume)  # undefined: a NameError
        if isinstance(snapshot, monty.FutureSnapshot):
            awaited = {call: asked.promised.pop(call) for call in snapshot.pending_call_ids}
            return await self._off_loop(snapshot.resume, awaited)
        if snapshot.is_os_function:
            return await self._off_loop(snapshot.resume_not_handled)  # files, environment, modules: refused
        answer = await self._called(str(snapshot.function_name), snapshot.args, snapshot.kwargs, asked)
        if snapshot.allow_eager_await:  # the code wrote `await tool(...)`, which is as good as `tool(...)`
            asked.promised[snapshot.call_id] = answer
            answer = {"future": ...}
        return await self._off_loop(snapshot.resume, answer)

    async def _called(self, name: str, args: Any, kwargs: Any, asked: _Asked) -> dict[str, Any]:
        function = self._functions.get(name)
        if function is None:
            return {"exc_type": "NameError", "message": f"name '{name}' is not defined"}
        asked.calls += 1
        try:
            positional = [json_value(value, f"argument {place} of {name}") for place, value in enumerate(args, 1)]
            named = {key: json_value(value, f"argument {key!r} of {name}") for key, value in kwargs.items()}
        except NotJsonError as failure:
            return {"exc_type": "TypeError", "message": str(failure)}
        try:
            returned = await function(positional, named)
            return {"return_value": json_value(returned, f"what {name} returned")}
        except (HostCallError, NotJsonError) as failure:
            return {"exc_type": "RuntimeError", "message": without_surrogates(str(failure))}

    def _explained(self, failure: Any) -> tuple[str, bool]:
        """Return what the agent is told, and whether the namespace can still be used.

        A limit stops the interpreter in the middle of something, so nothing is run in that namespace again.
        """
        if isinstance(failure, self._monty.MontyCrashedError):
            return "RuntimeError: the sandbox's process ended while the block ran", False
        cause, limits = failure.exception(), self._limits
        if isinstance(cause, TimeoutError) and "time limit exceeded" in str(cause):
            return f"TimeoutError: the block ran for more than {limits.seconds:g} s and was stopped", False
        if isinstance(cause, MemoryError) and str(cause).endswith(f"> {limits.printed_bytes} bytes"):
            return f"MemoryError: the block printed more than {limits.printed_bytes:,} bytes and was stopped", False
        if isinstance(cause, MemoryError) and "memory limit" in str(cause):
            return f"MemoryError: the block needed more than {limits.memory_mib} MiB and was stopped", False
        # What has no traceback (a conversion, a limit that is not listed above) says what it is about in its text.
        display = getattr(failure, "display", None)
        return cut_error(display() if display else str(failure)), self._session.worker_pid is not None


@dataclass(slots=True)
class _Asked:
    """What a block has asked for so far, and answers to calls that it awaits."""

    calls: int = 0
    round_trips: int = 0
    promised: dict[int, dict[str, Any]] = field(default_factory=dict)


@functools.cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Return the threads that all workers of a process share; those of a parent are no use to a forked child."""
    return ThreadPoolExecutor(_MOST_THREADS, "sandbox")


@functools.cache
def _idle(process: int) -> list[Any]:
    """Return pools of one process each that wait for the next sandbox, whose checkout gives it a new interpreter.

    They belong to one process: what a child was forked with is not its own.
    """
    return []


def _taken() -> Any:
    """Return a pool that waits, for its taker alone; None if there is none."""
    try:
        return _idle(os.getpid()).pop()
    except IndexError:
        return None


def end_idle_processes() -> None:
    """End the processes that wait for the next sandbox."""
    for pool in iter(_taken, None):
        pool.__exit__(None, None, None)


@functools.cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """Return the event loop, in a thread of its own, that drives all sandboxes of those who wait in a process."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="sandboxes", daemon=True).start()
    return loop


def _load_monty() -> Any:
    return import_extra("pydantic_monty", "running model-written code needs", "llm")


def _check_identifier(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidInputError(f"sandbox name {name!r}: expected a Python identifier")


def _placeholder(name: str) -> Callable[[], None]:
    """Return a function of a name: its name is all that reaches the sandbox, where calling it asks the host."""

    def placeholder() -> None:
        raise AssertionError(f"{name} is called through the worker")

    placeholder.__name__ = name
    return placeholder


def cut_output(text: str, most: int) -> str:
    """Return the beginning of a text, with a mark that says how much is left out."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[output cut: the first {most:,} of {len(text):,} characters]"


def cut_error(text: str) -> str:
    """Return a traceback's beginning and end, with a mark in place of a long middle."""
    if len(text) <= _SHOWN_OF_ERROR:
        return text
    left_out = len(text) - _SHOWN_OF_ERROR
    tail = text[-(_SHOWN_OF_ERROR - _HEAD_OF_ERROR) :]
    return f"{text[:_HEAD_OF_ERROR]}\n[{left_out:,} characters left out]\n{tail}"


def _shown_value(value: Any) -> str:
    """Return how a prompt would show the value of an expression; nothing for None."""
    if value is None:
        return ""
    try:
        return repr(value)
    except (ValueError, RecursionError):  # an integer of too many digits, a value nested too deep
        return f"<a value of type {type(value).__name__} that is too large to be shown>"


def json_value(value: Any, where: str = "value") -> JsonValue:
    """Return a value as JSON has it, all that passes between a sandbox and its host: tuples become lists."""
    items = 0

    def converted(value: Any, place: str, depth: int) -> JsonValue:
        nonlocal items
        if depth > _DEEPEST:
            raise NotJsonError(f"{where} is nested deeper than {_DEEPEST} levels")
        if isinstance(value, str):
            return without_surrogates(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and value.bit_length() <= _MOST_BITS:
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        if not isinstance(value, (list, tuple, Mapping)):
            raise NotJsonError(f"{place} is {_described(value)}, which is no JSON value")
        items += len(value)
        if items > _MOST_ITEMS:
            raise NotJsonError(f"{where} holds more than {_MOST_ITEMS:,} items")
        if isinstance(value, Mapping):
            if (key := next((key for key in value if not isinstance(key, str)), None)) is not None:
                raise NotJsonError(f"a key of {place} is {_described(key)}; expected a string")
            return {without_surrogates(key): converted(item, place, depth + 1) for key, item in value.items()}
        return [converted(item, f"{place}[{number}]", depth + 1) for number, item in enumerate(value)]

    return converted(value, where, 0)


def _described(value: Any) -> str:
    if isinstance(value, int):
        return f"an integer of {value.bit_length():,} bits"
    if isinstance(value, float):
        return f"the number {value}"
    return f"of type {type(value).__name__}"
