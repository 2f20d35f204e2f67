"""`resilisim runs tables`, `export`, `rescore`, `judge` and `merge`: what is made of the folders of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from resilisim.bounds import Workers
from resilisim.chat import ChatModel
from resilisim.cli.options import MODEL_PANEL, JsonFlag, LibraryOption, OptionGroup, load, output_option, takes
from resilisim.cli.output import answer, error_console, note, plain, print_json, say
from resilisim.datasets.run_tables import export_run
from resilisim.errors import InvalidInputError
from resilisim.evaluation import ModelSettings
from resilisim.evaluation.answer_judge import JudgedAnswer, judge_agreement, judge_run, judged_accuracy
from resilisim.evaluation.run.merge import merge_runs
from resilisim.evaluation.run.progress import Progressing
from resilisim.evaluation.run.rescoring import RescoreSummary, rescore_run
from resilisim.evaluation.run.store import num_lines, num_planned, read_manifest
from resilisim.provenance import encode_json_line
from resilisim.reporting.papers import paper_tables
from resilisim.reporting.papers.paper_page import tables_csv, tables_markdown, write_tables_page
from resilisim.run_folder import write_file_atomically
from resilisim.statistics.estimates import fields_to_json
from resilisim.tables.table import Table


def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `resilisim evaluate` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder of the tables; those of the same run are replaced.")],
    as_json: JsonFlag = False,
) -> None:
    """Write a run, finished or not, as Parquet tables: episodes, steps, failures, and calls of language models."""
    with _counting("exporting episodes", directory) as progress:
        result = export_run(directory, out, progress=progress.advance)
    rows = [[facts.file, facts.num_records, facts.num_bytes] for facts in result.tables]
    notes = [f"not finished: {result.num_episodes:,} of {result.num_planned:,} episodes"]
    written = Table.of_values(f"tables in {out}", ["file", "rows", "bytes"], rows)
    answer(as_json, result.to_mapping(), written, notes=notes[result.num_episodes >= result.num_planned :])


def rescore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `resilisim evaluate` wrote.")],
    out: Annotated[
        Path | None, typer.Option(help="Write the rescored episodes to this new folder.", file_okay=False)
    ] = None,
    workers: Annotated[Workers, typer.Option(help="Processes.")] = 1,
    best: Annotated[
        bool, typer.Option("--best", help="With --out: record what would have been best at each message.")
    ] = False,
    library: LibraryOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Rescore saved episodes, without a model or an environment; the exit code is 1 if any result differs.

    How each episode ended, its score and, for each message, V*, Q*, regret, luck and the reason for a loss are computed
    again. With --out they are written to a new folder, whatever has changed, and the exit code is 0.
    """
    with _counting("scoring again", directory) as shown:
        summary = rescore_run(directory, out, library=load(library), workers=workers, best=best, progress=shown.advance)
    if as_json:
        print_json(summary.to_mapping())
    else:
        say(*_told(summary))
    if out is None and not summary.agrees:
        raise typer.Exit(1)


def _told(summary: RescoreSummary) -> Iterator[str]:
    yield f"{summary.num_agreeing:,} of {summary.num_episodes:,} episodes agree (numbers to 1e-9)"
    for number, what in (
        (summary.num_other_labels, "have the same numbers and other reasons of losses"),
        (summary.num_differing, "have another score or other numbers"),
        (summary.num_impossible, "cannot have happened as they stand there"),
    ):
        if number:
            yield f"{number:,} {what}"
    if summary.differences:
        yield "first differences:"
        yield from (f"  {difference}" for difference in summary.differences)
    if summary.directory is not None:
        yield f"scored again: {summary.directory}"


def merge(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of one run: its shards, or copies of it.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the merged run; the same command resumes it.")],
    as_json: JsonFlag = False,
) -> None:
    """Put the parts of a run into one folder, each episode once; folders of other runs are refused."""
    with _counting("merging episodes", directories[0]) as progress:
        result = merge_runs(directories, out, progress=progress.advance)
    what = "exploration" if result.explored else "episode"
    if as_json:
        print_json(result.to_mapping())
    else:
        new = "branches" if result.explored else "of them"
        say(f"{result.num_episodes:,} of {result.num_planned:,} {what}s in {out}, {result.num_new:,} {new} new")
    if not result.is_complete:
        missing = result.num_planned - result.num_episodes
        verb = "explore" if result.explored else "evaluate"
        note(
            f"not complete: {missing:,} of {result.num_planned:,} {what}s are missing, the first is {what} "
            f"{result.first_missing}; merge the folder that holds it, or {verb} into {out} to play what is missing"
        )
    if result.num_unfinished:
        note(f"{result.num_unfinished:,} of them were begun; their replies are kept")


def _counting(what: str, directory: Path) -> Progressing:
    arguments = read_manifest(directory)["arguments"]
    return Progressing(what, num_planned(arguments, num_lines(directory) if arguments.get("explored") else 0))


def tables(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs in one world; each may hold other models.")
    ],
    out: Annotated[
        Path | None, output_option("--out", help="HTML file to write, with charts of the figures.", dir_okay=False)
    ] = None,
    markdown: Annotated[Path | None, output_option(help="Markdown file for the tables.", dir_okay=False)] = None,
    csv: Annotated[
        Path | None, output_option("--csv", help="CSV file for the tables, one figure a line.", dir_okay=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make the tables of the KPI-Chain and RP-ReAct papers, with the published figures, from runs on their worlds.

    Runs on pages (pages-v1, HotpotQA, LOFT) or tools of MCP servers give table 1 and figures 3 and 4 of KPI-Chain, its
    ablations, latency and calls by component, gain by hops, and precision, recall and success by the confidence
    threshold; runs on records (records-v1, ToolQA) give tables 1 to 3 of RP-ReAct.
    """
    with error_console().status("reading episodes"):
        made = paper_tables(directories)
    written = []
    if out is not None:
        write_tables_page(made, out)
        written.append(f"page: {out}")
    for path, text, what in ((markdown, tables_markdown, "Markdown"), (csv, tables_csv, "CSV")):
        if path is not None:
            write_file_atomically(path, text(made).encode("utf-8"))
            written.append(f"{what}: {path}")
    shown = [replace(table.table(), notes=()) for table in made]
    notes = dict.fromkeys(note for table in made for note in table.notes)
    answer(
        as_json, [table.to_mapping() for table in made], *shown, *(plain(note, "dim") for note in notes), notes=written
    )


JUDGE = OptionGroup(
    ModelSettings,
    [
        "models",
        "base_url",
        "concurrency",
        "retries",
        "timeout_seconds",
        "requests_per_minute",
        "tokens_per_minute",
        "cache",
    ],
    MODEL_PANEL,
    changed={
        "models": {"help": "The judge: openai:NAME, local, local:PATH, scripted:FILE."},
        "concurrency": {"help": "Answers judged at once."},
    },
)


@takes(settings=JUDGE)
def judge(
    *,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run in a world.")],
    settings: ModelSettings,
    out: Annotated[
        Path | None, output_option("--out", help="JSON Lines file for the verdict of each answer.", dir_okay=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Let a language model judge the answers of a run in a world, and say how far it agrees with the exact score.

    The exact score remains the one that counts. With --cache, answers that were judged before are not sent again.
    """
    made = list(settings.make().values())
    if len(made) != 1:
        raise InvalidInputError(
            f"{len(made)} models were given as the judge: expected one, such as --model openai:NAME"
        )
    with _counting("judging answers", directory) as progress:
        judged = asyncio.run(_judged(directory, made[0].default, settings.concurrency, progress))
    if out is not None:
        write_file_atomically(out, b"".join(encode_json_line(judged_answer.to_mapping()) for judged_answer in judged))
    policies: dict[str, list[JudgedAnswer]] = {}
    for judged_answer in judged:
        policies.setdefault(judged_answer.policy, []).append(judged_answer)
    results: list[dict[str, Any]] = []
    for policy, answers in policies.items():
        verdicts, exact = (
            [judged_answer.verdict for judged_answer in answers],
            [judged_answer.exact for judged_answer in answers],
        )
        agreement = judge_agreement(verdicts, exact)
        accuracy = judged_accuracy(verdicts).accuracy
        shares = {"policy": policy, "exact": sum(exact) / len(exact), "judge": accuracy}
        results.append({**shares, **fields_to_json(agreement)})
    names = {
        "policy": "policy",
        "exact": "exact score",
        "judge": "judge",
        "agreement": "agreement",
        "kappa": "kappa",
        "num_both": "both right",
        "num_judge_only": "only the judge",
        "num_exact_only": "only the score",
        "num_neither": "neither",
        "num_unreadable": "unreadable",
    }
    rows = [[result[name] for name in names] for result in results]
    notes = [] if out is None else [f"verdicts: {out}"]
    answer(
        as_json, results, Table.of_values(f"{len(judged):,} answers", list(names.values()), rows, digits=3), notes=notes
    )


async def _judged(directory: Path, model: ChatModel, concurrency: int, progress: Progressing) -> list[JudgedAnswer]:
    try:
        return await judge_run(directory, model, concurrency=concurrency, told=lambda: progress.advance(1))
    finally:
        await model.aclose()
