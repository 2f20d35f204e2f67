"""`resilisim runs leaderboard`: the policies of runs, ranked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from resilisim.cli import options, output
from resilisim.cli.runs.compare import counted_as_lost, digits_of, interval_of
from resilisim.evaluation.table.agents import mixture_note
from resilisim.evaluation.table.leaderboard import Leaderboard, Row, read_leaderboard
from resilisim.evaluation.table.summary import adjustment_notes, ceiling_note, overshoot_note
from resilisim.run_folder import write_file_atomically
from resilisim.statistics.comparison import NO_EPISODE_DIFFERS
from resilisim.tables.markdown import escape_markdown, markdown_lines
from resilisim.tables.numbers import NO_NUMBER, p_value, signed_points
from resilisim.tables.table import Cell, Column, Table


def _ranks(row: Row) -> str:
    first, last = row.rank_range
    return str(first) if first == last else f"{first}-{last}"


def _behind_above(row: Row) -> Cell:
    difference = row.behind_above
    if difference is None:
        return Cell(NO_NUMBER)
    digits = digits_of(difference)
    return Cell(signed_points(difference.difference, digits), detail=interval_of(difference, digits))


def _label(row: Row) -> Cell:
    summary = row.entry.summary
    return Cell(row.label, mark=" ".join(["*"] * summary.privileged + ["†"] * summary.tries_again))


LEADERBOARD: Sequence[Column[Row]] = (
    ("rank", "rank"),
    ("ranks", _ranks),
    ("policy", _label),
    ("episodes", "entry.summary.num_episodes"),
    ("success", "entry.summary.success"),
    ("reference", "entry.summary.ceiling.value"),
    ("V*", "entry.summary.optimum.value"),
    ("of reference", "entry.summary.adjusted_share.value"),
    ("luck-adjusted", "entry.summary.luck_adjusted"),
    ("to the row above", _behind_above),
    ("p, Holm", lambda row: p_value(row.p_value)),
)
OPTIONAL = ("rank", "V*", "reference", "episodes", "of reference")  # where a terminal is narrow


def leaderboard(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs.")],
    prompt: Annotated[str | None, typer.Option(help="Only this prompt type.")] = None,
    markdown: Annotated[
        Path | None, options.output_option(help="Markdown file to write the same tables to.", dir_okay=False)
    ] = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Rank the policies of runs by luck-adjusted success, and say which ranks the noise leaves open.

    Only runs of one benchmark version, law, end rules, salt and library stand in one table.
    """
    with output.error_console().status("reading episodes"):
        board = read_leaderboard(directories, prompt)
    if as_json:
        output.print_json(board.to_mapping())
        return
    notes, written = _board_notes(board), []
    for name, rows in board.sections.items():
        section = Table.of(f"prompt {name}", rows, LEADERBOARD, text_columns=(2,), optional=OPTIONAL)
        output.console().print(section)
        written += [f"### Prompt {escape_markdown(name)}", "", *markdown_lines(replace(section, caption="")), ""]
    output.say(*notes, style="dim")
    if markdown is not None:
        written += [f"{escape_markdown(line)}\n" for line in notes]
        write_file_atomically(markdown, "\n".join(written).encode("utf-8"))
        output.note(f"Markdown: {markdown}")


def _board_notes(board: Leaderboard) -> list[str]:
    summaries = [row.entry.summary for rows in board.sections.values() for row in rows]
    differences = [row.behind_above for rows in board.sections.values() for row in rows if row.behind_above is not None]
    legend = (
        "Percent and points, with 95% intervals clustered by task, sorted by luck-adjusted success (raw where there is "
        'none); "of reference" is luck-adjusted, too. ranks: the places that the tests leave possible. Differences to '
        "the row above are paired on common draws and luck-adjusted; p is corrected for all pairs of rows under one "
        "prompt (Holm)."
    )
    notes = [legend, ceiling_note(summaries, shown=True), *adjustment_notes(summaries)]
    if any(signed_points(difference.difference, digits_of(difference)).startswith("+") for difference in differences):
        notes.append(
            "A row can be ahead of the one above it by the difference: scores have the luck of their own row "
            "removed, differences that of both together, on the episodes that both have. Trust the difference."
        )
    if any(difference.note == NO_EPISODE_DIFFERS for difference in differences):
        notes.append(
            "Where no episode of two rows came out differently, the interval of their difference is that of "
            "differences too rare to turn up in that many tasks."
        )
    overshoot = overshoot_note(summaries)
    if overshoot is not None:
        notes.append(overshoot)
    mixture = mixture_note({row.label: row.entry.sampling for rows in board.sections.values() for row in rows})
    if mixture is not None:
        notes.append(mixture)
    if any(summary.privileged for summary in summaries):
        notes.append("* privileged: sees the state.")
    if any(summary.tries_again for summary in summaries):
        notes.append("† tries again in fresh episodes: no ceiling, no luck adjustment, compared by plain pairing.")
    if not board.same_episodes:
        notes.append(
            "Rows are about different episodes: their scores are not about the same tasks, their differences are about "
            "the episodes that both have."
        )
    for run, missing in board.num_unfinished.items():
        notes.append(f"{run} is not finished: {missing:,} of its episodes are missing.")
    for row in (row for rows in board.sections.values() for row in rows if row.entry.num_counted_as_lost):
        notes_of_row = counted_as_lost(row.entry.num_counted_as_lost)
        notes.append(f"{row.label} under {row.entry.summary.prompt_type}: {notes_of_row}.")
    return notes
