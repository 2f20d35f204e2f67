"""One worker process with one namespace, driven step by step.

The package's asynchronous interface is not used: its threads touch Python objects shortly after they have answered, and
a program that ends in this moment is aborted. Here the blocking calls are made in threads of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import importlib
import keyword
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from resilisim.errors import InfrastructureError, InvalidInputError, MissingExtraError
from resilisim.policies.llm.literals import without_surrogates
from resilisim.policies.llm.sandbox.limits import SandboxLimits
from resilisim.policies.llm.sandbox.results import cut_error, shown_value
from resilisim.policies.llm.sandbox.values import JsonValue, NotJsonError, json_value

Returned = TypeVar("Returned")
HostFunction = Callable[[list[JsonValue], dict[str, JsonValue]], Awaitable[Any]]
"""What the host offers: called with positional and named arguments, returns a JSON value or raises HostCallError."""

_MIB = 1 << 20
_MOST_THREADS = 16  # for all workers; a block takes well under a millisecond, and only a runaway one keeps a thread
_INSTALL = "pip install 'resilisim[llm]'"
# The clock of the sandbox stands still and its random numbers begin with the same seed, so that an episode that is
# run again runs alike. Sleeping takes no time.
_FROZEN_CLOCK = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_SEED = 0


class HostCallError(Exception):
    """A function of the host failed in a way that the code in the sandbox may handle: there it is a RuntimeError."""


class RoundTripsError(Exception):
    """A block asked the host for something too often."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a block ended.

    Attributes:
        printed: Everything that it printed.
        value: Its last expression's value as it would be shown.
        error: A short traceback, or None.
        calls: How many functions of the host were called.
        is_alive: Whether the namespace can still be used.
    """

    printed: str
    value: str
    error: str | None
    calls: int
    is_alive: bool


def load_monty() -> Any:
    """Return the package that the sandbox is made of.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return importlib.import_module("pydantic_monty")
    except ImportError as error:
        raise MissingExtraError(f"running model-written code needs 'pydantic_monty' ({error}): {_INSTALL}") from error


def check_variable_name(name: str, taken: Mapping[str, object]) -> None:
    """Refuse a name that is no variable's or that a function of the host has.

    Raises:
        InvalidInputError: It is one of these.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidInputError(f"sandbox name {name!r}: expected a Python identifier")
    if name in taken:
        raise InvalidInputError(f"sandbox name {name!r}: a function of the host has this name")


class Worker:
    """A worker process; use `Worker.start` and `close`.

    Attributes:
        process_id: Of the worker, for tests and diagnostics.
    """

    def __init__(self, limits: SandboxLimits, functions: Mapping[str, HostFunction]) -> None:
        self.process_id: int | None = None
        self._monty = load_monty()
        self._limits = limits
        self._functions = functions
        self._placeholders = {name: _placeholder(name) for name in functions}
        self._stack = contextlib.ExitStack()
        self._session: Any = None
        self._under_way: Future[Any] | None = None

    @classmethod
    async def start(cls, limits: SandboxLimits, functions: Mapping[str, HostFunction]) -> Worker:
        """Start a process with an empty namespace.

        Raises:
            MissingExtraError: The package or its program is not installed.
            InfrastructureError: The process does not start.
        """
        worker = cls(limits, functions)
        try:
            await worker._off_loop(worker._open)
        except BaseException as error:
            await worker.close()
            if isinstance(error, FileNotFoundError):
                raise MissingExtraError(f"the sandbox's program is missing ({error}): {_INSTALL}") from error
            if isinstance(error, (worker._monty.MontyError, OSError, RuntimeError)):
                raise InfrastructureError(f"the sandbox's process does not start: {error}") from error
            raise
        return worker

    def _open(self) -> None:
        pool = self._stack.enter_context(self._monty.Monty(min_processes=1, max_processes=1))
        checkout = pool.checkout(limits=_limits(self._limits), os_policy=_policy(), script_name="block.py")
        self._session = self._stack.enter_context(checkout)
        self.process_id = self._session.worker_pid

    async def _off_loop(self, function: Callable[..., Returned], *args: Any, **kwargs: Any) -> Returned:
        """Call something that blocks in a thread; one call of a worker at a time."""
        self._under_way = _threads(os.getpid()).submit(function, *args, **kwargs)
        return await asyncio.wrap_future(self._under_way)

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended by itself."""
        return self._session.worker_pid is None

    async def close(self) -> None:
        """End the process, whatever it is doing."""
        under_way = self._under_way
        if under_way is not None and not under_way.done() and self.process_id is not None:
            # Here and not in a thread: all of them may be kept by blocks such as the one that is to end.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process_id, getattr(signal, "SIGKILL", signal.SIGTERM))
        await asyncio.wrap_future(_threads(os.getpid()).submit(self._finish, under_way))

    def _finish(self, under_way: Future[Any] | None) -> None:
        if under_way is not None:
            wait((under_way,))
        self._stack.close()

    async def run(self, code: str, variables: Mapping[str, JsonValue] | None = None) -> Outcome:
        """Run a block.

        Args:
            code: Python.
            variables: Set before it runs.

        Raises:
            BaseException: What a function of the host raises beside HostCallError; the worker cannot be used further.
        """
        monty = self._monty
        printed = monty.CollectString(max_bytes=self._limits.printed_bytes)
        counted = _Counted()
        # The functions are bound anew before every block, so a block that overwrites one does it for itself alone.
        inputs = {**(variables or {}), **self._placeholders}
        try:
            snapshot = await self._off_loop(self._session.feed_start, code, inputs=inputs, print_callback=printed)
            while not isinstance(snapshot, monty.MontyComplete):
                snapshot = await self._answered(snapshot, counted)
            value, error, is_alive = shown_value(snapshot.output), None, True
        except monty.MontyError as failure:
            value = ""
            error, is_alive = self._explained(failure)
        except RoundTripsError as failure:
            value, error, is_alive = "", f"RuntimeError: {failure}", False
        return Outcome(printed.output, value, error, counted.calls, is_alive)

    async def _answered(self, snapshot: Any, counted: _Counted) -> Any:
        """Give the sandbox what it waits for."""
        monty = self._monty
        counted.round_trips += 1
        if counted.round_trips > self._limits.round_trips:
            raise RoundTripsError(f"the block called out more than {self._limits.round_trips:,} times and was stopped")
        if isinstance(snapshot, monty.NameLookupSnapshot):
            return await self._off_loop(snapshot.resume)  # undefined: a NameError
        if isinstance(snapshot, monty.FutureSnapshot):
            awaited = {call: counted.promised.pop(call) for call in snapshot.pending_call_ids}
            return await self._off_loop(snapshot.resume, awaited)
        if snapshot.is_os_function:
            return await self._off_loop(snapshot.resume_not_handled)  # files, environment, modules: refused
        answer = await self._called(str(snapshot.function_name), snapshot.args, snapshot.kwargs, counted)
        if snapshot.allow_eager_await:  # the code wrote `await tool(...)`, which is as good as `tool(...)`
            counted.promised[snapshot.call_id] = answer
            answer = {"future": ...}
        return await self._off_loop(snapshot.resume, answer)

    async def _called(self, name: str, args: Any, kwargs: Any, counted: _Counted) -> dict[str, Any]:
        function = self._functions.get(name)
        if function is None:
            return {"exc_type": "NameError", "message": f"name '{name}' is not defined"}
        counted.calls += 1
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
        return cut_error(display() if display else str(failure)), not self.is_gone


@functools.cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Return the threads that all workers of a process share; those of a parent are no use to a forked child."""
    return ThreadPoolExecutor(_MOST_THREADS, "sandbox")


@dataclass(slots=True)
class _Counted:
    """What a block has asked for so far, and answers to calls that it awaits."""

    calls: int = 0
    round_trips: int = 0
    promised: dict[int, dict[str, Any]] = field(default_factory=dict)


def _placeholder(name: str) -> Callable[[], None]:
    """Return a function of a name: its name is all that reaches the sandbox, where calling it asks the host."""

    def placeholder() -> None:
        raise AssertionError(f"{name} is called through the worker")

    placeholder.__name__ = name
    return placeholder


def _limits(limits: SandboxLimits) -> dict[str, Any]:
    return {
        "max_feed_duration_secs": limits.seconds,
        "max_memory": limits.memory_mib * _MIB,
        "max_recursion_depth": limits.recursion_depth,
        # Of a whole session; ours is of one block and stops the namespace, which theirs does not.
        "max_suspensions": 2**31 - 1,
    }


def _policy() -> dict[str, Any]:
    return {"datetime": _FROZEN_CLOCK, "sleep": "zero", "random_start": {"seed": _SEED}}
