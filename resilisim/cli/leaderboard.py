"""`resilisim leaderboard`: the policies of several runs in one table, with what the noise allows to say about ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from resilisim.cli.compare import digits_of, interval_text, p_text, points
from resilisim.cli.options import OUTPUT_PANEL, JsonFlag
from resilisim.cli.output import console, error_console, plain, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from resilisim.evaluation.table.leaderboard import Leaderboard, Row

COLUMNS = (
    "rank",
    "ranks",
    "policy",
    "episodes",
    "success",
    "ceiling",
    "V*",
    "of ceiling",
    "luck-adjusted",
    "to the row above",
    "p, Holm",
)
WIDE = 130  # characters below which intervals go to a second line
NARROW = 100  # and below which these columns are left out
LEFT_OUT = ("rank", "episodes", "ceiling", "V*", "of ceiling")


def leaderboard(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs.")],
    prompt: Annotated[str | None, typer.Option("--prompt", help="Only this prompt type.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown instead of a table.", rich_help_panel=OUTPUT_PANEL)
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Rank the policies of runs by luck-adjusted success, and say which ranks the noise leaves open.

    Only runs of one benchmark version, law, end rules, salt and library stand in one table.
    """
    from resilisim.evaluation.table.leaderboard import read_leaderboard

    with error_console().status("reading episodes"):
        board = read_leaderboard(directories, prompt)
    if as_json:
        print_json(board.to_mapping())
        return
    if markdown:
        typer.echo(_markdown(board), nl=False)
        return
    show = console()
    for name, rows in board.sections.items():
        show.print(_section_table(name, rows))
    for line in _notes(board):
        show.print(plain(line, "dim"), soft_wrap=True)


def _cells(row: Row, separator: str = " ") -> list[str]:
    from resilisim.evaluation.table.summary import format_interval, format_percent

    summary, against = row.entry.summary, row.behind_above
    first, last = row.rank_range
    above = "–"
    if against is not None:
        digits = digits_of(against)
        above = f"{points(against.difference, digits)}{separator}{interval_text(against, digits)}"
    return [
        str(row.rank),
        str(first) if first == last else f"{first}-{last}",
        row.label + " *" * summary.privileged + " †" * summary.tries_again,
        f"{summary.num_episodes:,}",
        f"{format_percent(summary.success.value)}{separator}{format_interval(summary.success)}",
        format_percent(summary.ceiling.value),
        format_percent(summary.optimum.value),
        format_percent(summary.adjusted_share.value),
        f"{format_percent(summary.luck_adjusted.value)}{separator}{format_interval(summary.luck_adjusted)}",
        above,
        p_text(row.p_value),
    ]


def _section_table(name: str, rows: tuple[Row, ...]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=plain(f"prompt {name}", "bold"),
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    width = console().width
    separator = " " if width >= WIDE else "\n"
    shown = [column for column in COLUMNS if width >= NARROW or column not in LEFT_OUT]
    for column in shown:
        is_name = column == "policy"
        table.add_column(
            column if width >= WIDE else column.replace(" row ", " row\n").replace("luck-", "luck-\n"),
            justify="left" if is_name else "right",
            overflow="fold",
            min_width=18 if is_name else None,
        )
    for row in rows:
        cells = dict(zip(COLUMNS, _cells(row, separator), strict=True))
        table.add_row(*(plain(cells[column]) for column in shown))
    return table


def _markdown(board: Leaderboard) -> str:
    lines: list[str] = []
    for name, rows in board.sections.items():
        lines += [f"### Prompt {_escaped(name)}", "", "| " + " | ".join(COLUMNS) + " |"]
        lines.append("|" + "|".join(" --- " if column == "policy" else " ---: " for column in COLUMNS) + "|")
        lines += ["| " + " | ".join(_escaped(cell) for cell in _cells(row)) + " |" for row in rows]
        lines.append("")
    return "\n".join([*lines, *(f"{_escaped(line)}\n" for line in _notes(board))])


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it stands."""
    for mark in "\\`*_|<>[]":
        text = text.replace(mark, f"\\{mark}")
    return text


def _notes(board: Leaderboard) -> list[str]:
    from resilisim.evaluation.table.summary import ceiling_note, overshoot_note
    from resilisim.statistics import NO_EPISODE_DIFFERS

    summaries = [row.entry.summary for rows in board.sections.values() for row in rows]
    differences = [row.behind_above for rows in board.sections.values() for row in rows if row.behind_above is not None]
    legend = (
        "Percent and points, with 95% intervals clustered by task, sorted by luck-adjusted success (raw where there is "
        'none); "of ceiling" is luck-adjusted, too. ranks: the places that the tests leave possible. Differences to '
        "the row above are paired on common luck and luck-adjusted; p is corrected for all pairs of rows under one "
        "prompt (Holm)."
    )
    notes = [legend, ceiling_note(summaries, shown=True)]
    if any(points(found.difference, digits_of(found)).startswith("+") for found in differences):
        notes.append(
            "A row can be ahead of the one above it by the difference: scores take luck off each row alone, "
            "differences off both together, on the episodes that both have. Believe the difference."
        )
    if any(found.note == NO_EPISODE_DIFFERS for found in differences):
        notes.append(
            "Where no episode of two rows came out differently, the interval of their difference is that of "
            "differences too rare to turn up in that many tasks."
        )
    overshoot = overshoot_note(summaries)
    if overshoot is not None:
        notes.append(overshoot)
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
    return notes
