"""`resilisim.run_program`: a program under a law, seed after seed, into a folder that the same call resumes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from resilisim.errors import told_error
from resilisim.evaluation.run.arguments import check_seeds
from resilisim.evaluation.run.limits import CallOutcome
from resilisim.evaluation.run.progress import Progressing
from resilisim.evaluation.run.runner import RunInterrupted
from resilisim.evaluation.run_results import EvaluationResult, folder_of
from resilisim.evaluation.table.facts import read_facts
from resilisim.injection.folder import InjectionFolder
from resilisim.injection.functions import Injected
from resilisim.injection.own_program import Functions, Program

_NOT_HERE: Final = {"seed": "seeds=...", "record": "out=..."}


def run_program(
    program: Callable[[Injected], object],
    tools: Functions,
    seeds: int | Iterable[int] = 20,
    *,
    reset: Callable[[], object] | None = None,
    out: Path | str | None = None,
    progress: bool | None = None,
    **options: Any,
) -> EvaluationResult:
    """Play a program whose tools stand under a law (`inject`), one episode a seed, and return the results.

    The program may be killed at any moment: the same call on the same folder goes on from there, and no seed counts
    twice. An exception that comes out of the program loses the episode. What looks as if something outside has failed
    leaves it without a score, and the same call tries it again.

    Args:
        program: Takes the tools under the law (by place or name) and calls them; it may be `async`.
        tools: Its functions, as `inject` takes them. They are really called.
        seeds: Number of episodes (seeds 0, 1, ...), or the seeds themselves.
        reset: Called before each episode, to undo what the one before has done.
        out: Folder of the results, for `resilisim report` and `compare_runs`; without it, one that vanishes with the
            result object.
        progress: Whether to show progress; None shows it for runs of more than two seconds.
        **options: Options of `inject`: `law`, `required` (what has to be reached), `once`, `check`, and so on.

    Returns:
        The results, those of earlier calls on the same folder included.

    Raises:
        InvalidInputError: An argument is unusable, or there is no goal.
        StoreError: The folder holds another program's calls, or cannot be written.
        RunInterrupted: Ctrl-C; what is finished is kept.
        Exception: What `reset` or the check of the end state has raised.

    Example:
        >>> import resilisim
        >>> def read() -> str:
        ...     return "text"
        >>> def tries_twice(tools):
        ...     for _ in range(2):
        ...         try:
        ...             return tools["read"]()
        ...         except resilisim.InjectedFailure:
        ...             pass
        >>> result = resilisim.run_program(tries_twice, [read], seeds=50, law=0.7, required=["read"])
        >>> row = result.rows[0]
        >>> row.policy, row.num_episodes, round(row.optimum.value, 3), row.success.value
        ('tries_twice', 50, 1.0, 0.96)
    """
    wanted = check_seeds(seeds)
    played = Program.of(program, tools, reset, refused=_NOT_HERE, **options)
    temporary = tempfile.TemporaryDirectory(prefix="resilisim-") if out is None else None
    directory = folder_of(temporary.name if temporary is not None else out)
    num_failures, last_error = 0, ""
    folder = InjectionFolder(directory)
    try:
        folder.open(played.arguments())
        pending = [seed for seed in wanted if not folder.has_played(seed)]
        with Progressing("episodes", len(wanted), len(wanted) - len(pending), progress) as shown:
            for seed in pending:
                try:
                    played.play(folder=folder, seed=seed)
                except (Exception, SystemExit) as error:
                    if not folder.has_failed(seed):
                        raise
                    num_failures, last_error = num_failures + 1, told_error(error)
                shown.advance()
    except KeyboardInterrupt as error:
        kept = sum(folder.has_played(seed) for seed in wanted) if temporary is None else 0
        raise RunInterrupted(kept, len(wanted)) from error
    finally:
        folder.close()
    call = CallOutcome(len(wanted) - len(pending), num_failures, last_error)
    return EvaluationResult(directory, read_facts(directory), call, temporary)
