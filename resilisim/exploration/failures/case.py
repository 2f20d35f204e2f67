"""`Case`: an episode of a run, or of a program, and which failures make it lost."""

from __future__ import annotations

import inspect
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.run.contestants import ModelSettings
from resilisim.evaluation.run.replay import Rerun, find_episode, finished
from resilisim.exploration.failures.adversary import Attack, find_attack
from resilisim.exploration.failures.fault_matrix import FaultMatrix, fault_matrix
from resilisim.exploration.failures.shrinking import Shrunk, shrunk
from resilisim.exploration.failures.watching import Playable
from resilisim.injection.functions import Injected
from resilisim.injection.inject_options import Fail, with_lost_answers
from resilisim.injection.own_program import Functions, Program
from resilisim.simulator.draws import Draws, Forced
from resilisim.tasks import Task
from resilisim.tasks.benchmark import find_task as find_benchmark_task
from resilisim.tool_library import ToolLibrary


class Case(Playable):
    """An episode of an agent or a program, to be played again with other results of its calls.

    Made by `of_run` or `of_program`. The agent has to do the same whenever it is told the same.

    Attributes:
        name: What it is, in words.
        calls: What it is said beforehand that calls bring, by tool and number of the call: in every play.
        recorded: The episode as it was, if it comes from a run.
        is_program: Whether it is a program, whose functions have run where their answers are lost.
        turned: Of a program, the same with failures on the other side of the run, if all are on one.

    Example:
        >>> import resilisim
        >>> from resilisim.exploration import Case
        >>> def read() -> str:
        ...     return "text"
        >>> def program(tools):
        ...     try:
        ...         tools["read"]()
        ...     except resilisim.InjectedFailure as failure:
        ...         if failure.code == "TIMEOUT":
        ...             tools["read"]()
        >>> case = Case.of_program(program, [read], law=0.9, required=["read"])
        >>> case.play()["outcome"], case.play(["read#1=OPERATION_FAILED"])["outcome"]
        (1, 0)
        >>> faults = case.matrix()
        >>> {cell.fault: cell.outcome for cell in faults.cells if not cell.lasting}["TIMEOUT"], faults.outcome
        (1, 1)
        >>> round(faults.without, 3), round(faults.single, 3), round(faults.cost, 3)
        (0.9, 0.095, 0.05)
        >>> attack = case.adversary(above=0.9)
        >>> [(failure.result, round(failure.optimum_after, 2)) for failure in attack.pattern.failures]
        [('OPERATION_FAILED', 1.0)]
    """

    @classmethod
    def of_run(
        cls,
        directory: Path | str,
        episode: str | int,
        *,
        find_task: Callable[[str], Task] = find_benchmark_task,
        library: ToolLibrary | None = None,
        model: ModelSettings | None = None,
        options: Sequence[str] = (),
    ) -> Case:
        """Return an episode of a run, of `evaluate` or `explore`.

        Args:
            directory: The run's folder.
            episode: Its number, or its task's id, with the seed, the policy and the prompt type if there are several
                ("task_x:3:react:optimal").
            find_task: Returns the task of an id; among those of the benchmark if omitted.
            library: The run's tool library, if it is not the default one.
            model: The language models of an LLM agent, which are asked anew; the first reply to a conversation is the
                reply to it from then on.
            options: What `resilisim runs replay` has to be told besides, such as `--tasks FILE`: it stands in the line
                that plays the episode again.

        Raises:
            InvalidInputError: There is no such episode, it did not come to its end, or it cannot be played again.
            StoreError: It is not a folder of results.
        """
        recorded = finished(find_episode(directory, str(episode)))
        if recorded is None:
            raise InvalidInputError(f"episode {episode} of {directory} is not finished: expected one that is")
        folder = None
        if model is not None and model.cache is None:
            folder = tempfile.TemporaryDirectory(prefix="resilisim-")
            model = replace(model, cache=folder.name)
        rerun = Rerun.of(directory, recorded, find_task, library, model)

        def reproducing(force: Sequence[str]) -> tuple[str, str]:
            number = recorded["index"]
            words = [*options, *(word for text in force for word in ("--force", text))]
            is_whole = find_task is find_benchmark_task and library is None and model is None
            more = "" if is_whole or not options else ", ..."
            return (
                shlex.join(["resilisim", "runs", "replay", str(directory), str(number), *words]),
                f"Case.of_run({str(directory)!r}, {number}{more}).play({list(force)!r})",
            )

        what = f"{recorded['policy']} on {recorded['instance_id']}, prompt {recorded['prompt_type']}"
        name = f"{what}, seed {recorded['seed']}"
        said = Forced.of(rerun.env.settings.force).calls
        return cls(name, rerun.play, reproducing, rerun.forced, said, recorded, folder)

    @classmethod
    def of_program(
        cls,
        program: Callable[[Injected], object],
        functions: Functions,
        *,
        reset: Callable[[], object] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Case:
        """Return the episode of a seed of a program whose functions stand under a law (`inject`).

        Args:
            program: Takes the functions under the law (by place or name) and calls them; it may be `async`.
            functions: What `inject` takes. They are really called.
            reset: Called before each play, to undo what the one before has done.
            seed: The seed.
            **options: Options of `inject`, `required` among them: what has to be reached.

        Raises:
            InvalidInputError: An option is unusable, or there is no goal.
        """
        refused = {"record": "a call without it"}
        played = Program.of(program, functions, reset, refused=refused, **options, seed=seed)
        settings, named = played.settings, functions if callable(functions) else played.functions

        def forced(force: Sequence[str]) -> Draws:
            # What is forced is checked where the episode begins.
            return Forced({**Forced.of(settings.force).calls, **Forced.of(force).calls})

        def made(fail: Fail | None, turned: Case | None) -> Case:
            law = settings.law if fail is None else with_lost_answers(settings.law, fail, options.get("checks"))

            def play(draws: Draws) -> EpisodeRecord:
                return played.play(draws, law=law)

            def reproducing(force: Sequence[str]) -> tuple[str, str]:
                said = {**options, "seed": seed, "force": list(force)}
                if fail is not None:
                    said["fail"] = fail
                arguments = ", ".join(f"{option}={_spelt(value)}" for option, value in said.items())
                calls = f"{_spelt(program)}(tools)"
                return (
                    f"tools = resilisim.inject({_spelt(named)}, {arguments})",
                    f"with tools: {f'asyncio.run({calls})' if inspect.iscoroutinefunction(program) else calls}",
                )

            name, calls = f"{settings.name}, seed {seed}", Forced.of(settings.force).calls
            return cls(name, play, reproducing, forced, calls, is_program=True, turned=turned)

        share = 0.0 if settings.law.lost_answer is None else settings.law.lost_answer.share
        other: Fail = "after" if share == 0.0 else "before"
        return made(None, None if 0.0 < share < 1.0 else made(other, None))

    def shrink(self, *, plays: int = 1000, progress: bool | None = None) -> Shrunk:
        """Find the fewest failures that lose an episode, by turning failed calls into successes (delta debugging).

        Failures are turned into successes all at once, in groups, and one after the other, as long as the episode stays
        lost with fewer of them; the others stay. Failures of calls that are only made then are turned as well; all else
        is drawn by the episode's own key. So no single failure that is left can be spared, but there may be another
        pattern that is smaller. A call that was sure to fail is no bad luck, and stays.

        Args:
            plays: Maximum number of episodes to play.
            progress: Whether to show progress; None shows it for what takes more than two seconds.

        Raises:
            InvalidInputError: The episode was not lost, or the agent does not repeat itself: the line names the
                message.
        """
        return shrunk(self, plays, progress)

    def adversary(self, *, above: float = 0.5, plays: int = 2000, progress: bool | None = None) -> Attack:
        """Find the fewest failures with which an agent loses although V* after the last of them is still above a level.

        All calls succeed that can, but for some that fail: first none, then each one alone, then pairs, and so on. A
        call fails in each way that the law knows for it (transient, of the input, an outage, corrupt, ...) and with
        each error code. Among as many failures those with the likeliest code of each way come first, and then those
        that are likelier. Texts and durations are those of the case's seed.

        Args:
            above: The level.
            plays: Maximum number of episodes to play.
            progress: Whether to show progress; None shows it for what takes more than two seconds.

        Raises:
            InvalidInputError: A limit is none, nobody knows V* of the task, or the agent does not repeat itself.
        """
        return find_attack(self, above, plays, progress)

    def matrix(self, *, progress: bool | None = None) -> FaultMatrix:
        """Try one fault of each kind at each call of an agent, everything else succeeding.

        Faults are what the law lets happen to the call, each error code by itself, so that one sees which of them an
        agent copes with; and its tool failing from there on, as in an outage that lasts. Durations are those of the
        case's seed; weights leave them out, so under a time budget they hold for these durations alone. Of a program
        failures are tried before and after the function has run, when its answer is lost: those that the law does not
        draw (`fail` of `inject`) have no weight.

        Args:
            progress: Whether to show progress; None shows it for what takes more than two seconds.

        Raises:
            InvalidInputError: The agent does not repeat itself.
        """
        return fault_matrix(self, progress)


def _spelt(value: object) -> str:
    """Return a value as source code: functions by their names, and what has none by dots."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_spelt(key)}: {_spelt(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_spelt, value)) + "]"
    if not callable(value):
        return repr(value)
    name = str(getattr(value, "__name__", "..."))
    return name if name.isidentifier() else "..."
