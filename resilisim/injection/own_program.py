"""`Program`: a program, the functions that it calls, and what begins an episode anew; whoever plays one, plays this."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

from resilisim.errors import InvalidInputError, ResiliSimError, StoreError, shown_value
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.injection.folder import InjectionFolder
from resilisim.injection.functions import Injected, inject
from resilisim.injection.inject_options import InjectionSettings
from resilisim.simulator.draws import Draws

Function: TypeAlias = Callable[..., Any]
Functions: TypeAlias = Iterable[Function] | Mapping[str, Function] | Function


@dataclass(frozen=True)
class Program:
    """A program whose functions stand under a law (`inject`), and that can be played again and again.

    Attributes:
        run: Takes the functions under the law (by place or name) and calls them; it may be `async`.
        functions: The functions, which are really called; by their names if they have names of their own.
        settings: Law, goal and all else that `inject` takes.
        options: What of that was asked for, as it was.
        reset: Called before each play, to undo what the one before has done.

    Example:
        >>> from resilisim.injection.own_program import Program
        >>> def loud(tools):
        ...     return tools["upper"]("abc")
        >>> program = Program.of(loud, [str.upper], law=1.0, required=["upper"])
        >>> program.settings.name, program.play()["outcome"]
        ('loud', 1)
    """

    run: Callable[[Injected], object]
    functions: tuple[Function, ...] | Mapping[str, Function]
    settings: InjectionSettings
    options: Mapping[str, Any]
    reset: Callable[[], object] | None = None

    @classmethod
    def of(
        cls,
        run: Callable[[Injected], object],
        functions: Functions,
        reset: Callable[[], object] | None = None,
        *,
        refused: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Self:
        """Return a program with a goal.

        Args:
            run: The program; it plays under its own name, unless there is an option `name`.
            functions: What `inject` takes.
            reset: Called before each play.
            refused: Options of `inject` that mean nothing to whoever plays it, each with what was expected instead.
            **options: Options of `inject`, `required` among them: what has to be reached.

        Raises:
            InvalidInputError: An option is unusable, or there is no goal.
        """
        for what, value in (("program", run), ("reset", reset)):
            if not callable(value) and (what == "program" or value is not None):
                raise InvalidInputError(f"{what} is {shown_value(value)}: expected a function")
        if inspect.isgeneratorfunction(run) or inspect.isasyncgenfunction(run):
            raise InvalidInputError(
                f"program {_name_of(run)} yields: expected a function that returns, which may be async"
            )
        for option, expected in (refused or {}).items():
            if option in options:
                raise InvalidInputError(f"{option} is an option of inject alone: expected {expected}")
        named: tuple[Function, ...] | Mapping[str, Function]
        if isinstance(functions, Mapping):
            named = functions
        else:
            named = (functions,) if callable(functions) else tuple(functions)
        settings = inject(named, **{"name": _name_of(run), **options}).settings
        if not settings.required:
            raise InvalidInputError("there is nothing to reach: expected required=[...]")
        return cls(run, named, settings, options, reset)

    def arguments(self) -> dict[str, Any]:
        """Return what the manifest of a folder says of its episodes."""
        return self.settings.arguments(Injected(self.settings, self.functions).library)

    def play(self, draws: Draws | None = None, folder: InjectionFolder | None = None, **changes: Any) -> EpisodeRecord:
        """Play an episode, and return its record; what the program raises has lost it if that is its own fault.

        Args:
            draws: Where the draws come from; those of the settings if omitted.
            folder: Where the episode is written, if others are written there, too.
            **changes: Settings that are others this time, such as `seed`.

        Raises:
            StoreError: The episode cannot be written.
            Exception: What the program raises and nobody can say it is its own fault, that it does not
                repeat what it has sent (`sent`), or what `reset` or the check of the end state has raised.
        """
        if self.reset is not None:
            self.reset()
        if draws is not None:
            changes["draws"] = draws
        tools = Injected(replace(self.settings, **changes), self.functions, folder)
        raised: BaseException | None = None
        try:
            with tools:
                answer = self.run(tools)
                if inspect.isawaitable(answer):
                    _run_to_its_end(_awaited(answer))
        except StoreError:  # what is not written down has not been played, though it has its record
            raise
        except (Exception, SystemExit) as error:
            raised = error
        try:
            return tools.record()
        except ResiliSimError as error:
            raise raised or error from error


def _name_of(run: object) -> str:
    """Return what a program is called, if it is called something."""
    while isinstance(run, functools.partial):
        run = run.func
    name = str(getattr(run, "__name__", type(run).__name__))
    return name if name.isidentifier() else "program"


async def _awaited(answer: Any) -> object:
    return await answer


def _run_to_its_end(coroutine: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine in an event loop of its own; where one runs already, as in notebooks, in another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(coroutine)
        return
    raised: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(coroutine)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
