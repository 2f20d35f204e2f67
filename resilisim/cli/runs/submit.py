"""`resilisim runs submit`: published sets, and the check of runs that were played on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from resilisim.cli import options, output
from resilisim.cli.output import command_group
from resilisim.errors import count_of
from resilisim.evaluation.run.progress import Progressing
from resilisim.evaluation.submission import (
    OPEN_SET,
    SHOWN_OF_A_KIND,
    SubmissionCheck,
    check_submission,
    define_set,
    load_set,
    write_set,
)
from resilisim.evaluation.submitted_episode import REASONS_TO_REFUSE
from resilisim.inputs import read_text
from resilisim.tasks.sources import read_tasks

app = command_group("Check submitted runs: were they played on a published set, to the last draw?")

EXIT_REFUSED = 1  # exit code of a run that is not taken


@app.command()
def check(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `resilisim evaluate` wrote.")],
    published: Annotated[
        str, typer.Option("--set", metavar="NAME|FILE", help="The set that the run was played on.")
    ] = OPEN_SET,
    salt_file: Annotated[
        Path | None,
        typer.Option(help="File with the salt of a private set, which names only its hash.", dir_okay=False),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="JSON Lines file of the set's tasks, if they are no benchmark tasks.")
    ] = None,
    workers: options.WorkersOption = 1,
    library: options.LibraryOption = None,
    as_json: options.JsonFlag = False,
) -> None:
    """Check that a run was played on a published set; the exit code is 1 if it is not accepted.

    Every episode is judged again from its record, with the draws that the salt gives, and its messages are sent to the
    environment once more. Nothing that the run names is imported or asked.
    """
    published_set, own_library = load_set(published), options.load(library)
    salt = None if salt_file is None else read_text(salt_file, "salt file", "a file with the salt").rstrip("\r\n")
    own_tasks = None if tasks is None else read_tasks(tasks, own_library)
    with Progressing("checking episodes", published_set.num_episodes) as shown:
        submission = check_submission(
            directory,
            published_set,
            salt=salt,
            tasks=own_tasks,
            library=own_library,
            workers=workers,
            progress=shown.advance,
        )
    if as_json:
        output.print_json(submission.to_mapping())
    else:
        output.say(*_told(submission))
    if not submission.is_accepted:
        raise typer.Exit(EXIT_REFUSED)


def _told(submission: SubmissionCheck) -> Iterator[str]:
    named = ", ".join(submission.policies)
    if submission.is_accepted:
        yield f"accepted: {count_of(submission.num_episodes, 'episode')} of {named} on {submission.set_name}"
    else:
        yield (
            f"refused: {submission.num_episodes:,} of {count_of(submission.num_expected, 'episode')} of {named} on "
            f"{submission.set_name}"
        )
    for kind, heading in REASONS_TO_REFUSE.items():
        number = submission.num_refusals.get(kind, 0)
        if number:
            yield f"{heading} ({number:,}):"
            yield from (f"  {refusal}" for refusal in submission.refusals if refusal.kind == kind)
        if number > SHOWN_OF_A_KIND:
            yield f"  and {number - SHOWN_OF_A_KIND:,} more"
    for luck in submission.luck:
        yield (
            f"luck of {luck.policy} under {luck.prompt_type}: {luck.total:+.1f} in "
            f"{count_of(luck.num_episodes, 'episode')} (standard deviation {luck.variance**0.5:.1f})"
        )
    yield from submission.notes
    if submission.claims:
        yield "claimed, not checked:"
        yield from (f"  {claim}" for claim in submission.claims)


@app.command()
def define(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a run; the set becomes what it was played on.")
    ],
    name: Annotated[str, typer.Option(help="What it is called, with its version, such as spring-v1.")],
    out: Annotated[Path, typer.Option(help="File to write.", dir_okay=False)],
    private: Annotated[
        bool, typer.Option("--private", help="Publish only the hash of the salt, so that nobody else can play the set.")
    ] = False,
) -> None:
    """Write the set that a run was played on: its tasks, seeds, prompts, environment and salt."""
    with output.error_console().status("reading episodes"):
        published = define_set(directory, name, private=private)
    write_set(out, published)
    output.say(f"{published.num_episodes:,} episodes of each policy: {out}")


@app.command()
def show(
    published: Annotated[str, typer.Argument(metavar="[SET]", help="Name or file of a set.")] = OPEN_SET,
    as_json: options.JsonFlag = False,
) -> None:
    """Show what a set fixes."""
    published_set = load_set(published)
    if as_json:
        output.write_json(published_set.to_json().decode())
        return
    environment = ", ".join(f"{name} {value}" for name, value in published_set.environment.items())
    output.say(
        f"{published_set.name}: {len(published_set.tasks)} tasks x {len(published_set.seeds)} seeds x "
        f"{len(published_set.prompts)} prompts = "
        f"{published_set.num_episodes:,} episodes of each policy",
        f"benchmark: {published_set.benchmark.get('version')}, texts {published_set.benchmark.get('texts')}",
        f"tasks: SHA-256 {published_set.tasks_sha256}",
        f"seeds: {', '.join(map(str, published_set.seeds))}",
        f"prompts: {', '.join(published_set.prompts)}",
        f"environment: {environment}",
        f"salt: {'private, ' if published_set.is_private else ''}SHA-256 {published_set.salt_sha256}",
    )
