"""`explore_program`: the success rate of a program whose functions stand under a law, computed branch by branch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from resilisim.errors import MAX_COUNT, InvalidInputError
from resilisim.evaluation.episode.play import on_branch
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.run.progress import Progressing
from resilisim.evaluation.run.store import read_records
from resilisim.evaluation.run_results import folder_of
from resilisim.exploration.exploration_folder import explored_arguments, explored_into
from resilisim.exploration.explored import rates_table
from resilisim.exploration.exploring import ExplorationLimits, ExploredRow, Exploring
from resilisim.exploration.playing import row_line
from resilisim.injection.functions import Injected
from resilisim.injection.inject_options import PROMPT_TYPE
from resilisim.injection.own_program import Functions, Program
from resilisim.provenance import content_hash, encode_json_line
from resilisim.tables.table import Table

# Options of `inject` that mean nothing here: every result is played, and what is played is returned.
_NOT_HERE: Final = ("force", "record")


@dataclass(frozen=True, slots=True)
class ExploredProgram:
    """What is known of a program.

    Attributes:
        row: Its success rate, V*, and what was lost by cause.
        records: Every branch that was played, its `weight` in it, in the order in which they were played: the likeliest
            first, but for those that leave a likelier one.
    """

    row: ExploredRow
    records: tuple[EpisodeRecord, ...] = field(repr=False)

    def table(self) -> Table:
        """Return the rate as a table."""
        return rates_table([self.row])

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the table."""
        return self.table()._repr_html_()


def explore_program(
    program: Callable[[Injected], object],
    functions: Functions,
    *,
    reset: Callable[[], object] | None = None,
    plays: int = 2000,
    width: float = 0.0,
    until: Callable[[float, float, float], bool] | None = None,
    seed: int = 0,
    out: Path | str | None = None,
    progress: bool | None = None,
    **options: Any,
) -> ExploredProgram:
    """Compute how often a program succeeds whose functions fail as a law says (`inject`), branch by branch (`explore`).

    The program is called anew for each branch, and has to make the same calls wherever they have brought the same.

    Args:
        program: Takes the functions under the law (by place or name) and calls them; it may be `async`.
        functions: What `inject` takes. They are really called.
        reset: Called before each play, to undo what the one before has done.
        plays: Maximum number of runs of the program.
        width: Where to stop before that: the most that the bracket may be wide.
        until: Told the bracket and V* after each play; where it says so, enough is known. Plays then go to branches
            alone, and none to an estimate.
        seed: Seed of the wording of failures.
        out: Folder of the records, as `explore` writes it: for reports, comparisons and gates. The same call resumes
            it: what was played is played again, as far as it goes, and has to come to the same.
        progress: Whether to show progress; None shows it for what takes more than two seconds.
        **options: Options of `inject`, `required` among them: what has to be reached.

    Raises:
        StoreError: The folder holds another run, or cannot be written.
        RunInterrupted: Ctrl-C; what was played is kept in the folder.
        InvalidInputError: An option is unusable, there is no goal, or the program does not repeat itself: the line
            names the call, and what it was before.
        Exception: What the program raises and nobody can say it is its own fault.

    Example:
        >>> from resilisim.exploration import explore_program
        >>> def read() -> str:
        ...     return "text"
        >>> def post(text: str) -> int:
        ...     return len(text)
        >>> def program(tools):
        ...     for _ in range(3):
        ...         try:
        ...             return tools["post"](tools["read"]())
        ...         except resilisim.InjectedFailure:
        ...             pass
        >>> import resilisim
        >>> found = explore_program(program, [read, post], law=0.8, required=["read", "post"])
        >>> found.row.is_exact, round(found.row.low, 6), found.row.plays
        (True, 0.953344, 15)
    """
    limits = ExplorationLimits(plays=plays, width=width)
    if until is not None:
        limits = replace(limits, plays=MAX_COUNT)
    refused = dict.fromkeys(_NOT_HERE, "a call without it")
    played = Program.of(program, functions, reset, refused=refused, **options, seed=seed)
    if out is None:
        with Progressing("plays", plays, 0, progress) as shown:
            branches, records = _Branches(played, seed, limits, until), []
            for record in branches.play():
                shown.advance()
                records += [] if record is None else [record]
                if len(records) == plays:
                    break
        return ExploredProgram(branches.exploring.row(), tuple(records))
    if until is not None:
        raise InvalidInputError("out and until are both given: expected one, as a folder holds what was played wholly")
    directory = folder_of(out)
    arguments = explored_arguments(played.arguments(), limits, 1, plays)
    manifest = content_hash(arguments)

    def play(pending: Sequence[int]) -> Generator[Any, None, None]:
        for number in pending:
            branches = _Branches(played, seed, limits, None)
            kept = filter(None, branches.play())
            for place, record in enumerate(kept, start=number * plays):
                record["index"], record["manifest"] = place, manifest
                yield record, encode_json_line(record)
            row = row_line(number * plays, branches.exploring.row())
            yield row, encode_json_line(row)

    rows, _, _ = explored_into(directory, arguments, [0], plays, play, progress)
    return ExploredProgram(rows[0], tuple(read_records(directory)))


class _Branches:
    """The branches of a program, played one after the other."""

    def __init__(
        self,
        program: Program,
        seed: int,
        limits: ExplorationLimits,
        until: Callable[[float, float, float], bool] | None,
    ) -> None:
        self._program, self._until = program, until
        self.exploring = Exploring(program.settings.name, PROMPT_TYPE, PROMPT_TYPE, seed, limits)

    def play(self) -> Iterator[EpisodeRecord | None]:
        """Play until enough is known; yield each record of a branch of its own, None for one that was drawn."""
        while (play := self.exploring.next()) is not None:
            record = self._program.play(play.branch, sent=play.sent)
            yield on_branch(record, play.branch) if self.exploring.enter(record) else None
            if self._until is not None and self._until(*self.exploring.bracket, record["optimum"]):
                break
