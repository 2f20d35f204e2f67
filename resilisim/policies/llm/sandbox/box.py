"""A sandbox for the code of one episode: a namespace that outlives its worker process where it can."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from resilisim.policies.llm.sandbox.limits import SandboxLimits
from resilisim.policies.llm.sandbox.results import CodeResult, cut_output
from resilisim.policies.llm.sandbox.values import JsonValue, json_value
from resilisim.policies.llm.sandbox.worker import HostFunction, Outcome, Worker, check_variable_name, load_monty

_NOTHING = "None"  # an empty block would be skipped, with the variables that are to be set before it


class Sandbox:
    """Runs Python that a model wrote, in a process of its own.

    So::

        async with Sandbox(functions={"add": add}) as box:
            result = await box.run("total = add(1, 2)")
            result = await box.run("print(total)")

    The code reaches no file, no network, no environment variable and no object of the host. What it defines stays for
    the blocks after it. When a block meets a limit, its process is ended and the next block finds a new namespace,
    which `CodeResult.restarted` tells. The process starts with the first block and ends with the `async with`, also
    when that is cancelled. One block runs at a time; any number of sandboxes run side by side.

    Args:
        limits: What a block may use.
        functions: Functions of the host by name. A block may overwrite one for itself; the next finds it again.
        prelude: Code that every new namespace begins with; it must run without an error.

    Raises:
        InvalidInputError: A function's name is no identifier.
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
        self._worker: Worker | None = None
        for name in self._functions:
            check_variable_name(name, {})

    async def __aenter__(self) -> Self:
        """Look whether the sandbox can be had at all.

        Raises:
            MissingExtraError: The package is not installed.
        """
        load_monty()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        await self._stop()

    @property
    def process_id(self) -> int | None:
        """The worker's process between two blocks; None before the first one."""
        return None if self._worker is None else self._worker.process_id

    async def run(self, code: str) -> CodeResult:
        """Run a block in the namespace.

        Raises:
            InfrastructureError: The process does not start.
            BaseException: Whatever a function of the host raised beside HostCallError; the process is ended then.
        """
        if len(code) > self.limits.code_characters:
            most = self.limits.code_characters
            return CodeResult("", f"SyntaxError: the block has {len(code):,} characters; at most {most:,} are run")
        return await self._run(code, {})

    async def assign(self, name: str, value: Any) -> CodeResult:
        """Set a variable; it is put in again after a restart.

        Returns:
            A result whose error says that the value does not fit into the sandbox's memory, where that is so.

        Raises:
            InvalidInputError: The name is no identifier or a function's.
            NotJsonError: The value has no form in JSON.
        """
        check_variable_name(name, self._functions)
        checked = json_value(value, name)
        result = await self._run(_NOTHING, {name: checked})
        if result.error is None:
            self._variables[name] = checked
        return result

    async def _run(self, code: str, variables: Mapping[str, JsonValue]) -> CodeResult:
        try:
            worker = await self._running()
            outcome = await worker.run(code, variables)
            if not outcome.is_alive:
                await self._stop()
        except BaseException:  # the host's own, or a cancellation: the block will never be answered
            await self._stop()
            raise
        return self._told(outcome)

    async def _running(self) -> Worker:
        if self._worker is None:
            self._worker = await Worker.start(self.limits, self._functions)
            outcome = await self._worker.run(f"{self._prelude}\n{_NOTHING}", self._variables)
            if outcome.error is not None:
                raise RuntimeError(f"the sandbox's prelude fails: {outcome.error}")
        return self._worker

    async def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.close()

    def _told(self, outcome: Outcome) -> CodeResult:
        return CodeResult(
            output=cut_output(outcome.printed or outcome.value, self.limits.shown_characters),
            error=outcome.error,
            restarted=not outcome.is_alive,
            calls=outcome.calls,
            kept=() if outcome.is_alive else tuple(self._variables),
        )
