"""`resilisim demo`: the whole chain once, small: tasks, bounds, policies and a model on held-out tasks, a report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from annotated_types import Ge, Le
from rich.console import Console

from resilisim.bounds import Count, CountOrNone, Workers
from resilisim.chat.local import SHIPPED_ADAPTER, make_local_model
from resilisim.chat.middleware import ChatModelSettings
from resilisim.cli.options import JsonFlag, RecordTextsOption
from resilisim.cli.output import console, error_console, plain, print_json
from resilisim.cli.runs.compare import comparison_table
from resilisim.errors import MAX_COUNT, InvalidInputError, MissingExtraError, count_of
from resilisim.evaluation.run.contestants import ModelSettings
from resilisim.evaluation.run_results import EvaluationResult, evaluate
from resilisim.evaluation.table.comparing import compare_tables
from resilisim.evaluation.table.episodes import read_episode_table
from resilisim.reporting import write_report
from resilisim.simulator.exact import bound
from resilisim.tables.table import Table
from resilisim.tasks import Task
from resilisim.tasks.benchmark import BENCHMARK_VERSION, benchmark_tasks
from resilisim.tasks.composition import task_statistics
from resilisim.tasks.sources import sample_tasks

POLICIES = ("plan-follower", "repairing-follower", "policy:default", "exact-optimum")
PROMPTS = ("optimal", "flawed")
COMPARED = ("plan-follower", "repairing-follower", "flawed")
MOST_WORKERS = 4
# Who plays beside the language model, on the same draws, and where its episodes go in the folder of the results.
BESIDE_MODEL = ("plan-follower", "exact-optimum")
MODEL_FOLDER = "language-model"
# References that are shown, and the heads of their columns.
BOUNDS = {
    "optimum": "best possible",
    "plan_following": "only the required tools, in order",
    "first_call": "best first call",
}


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("demo-results"),
    tasks: Annotated[int, Ge(5), Le(MAX_COUNT), typer.Option(help="Held-out tasks to evaluate on.")] = 120,
    seeds: Annotated[Count, typer.Option(help="Episodes of each task.")] = 4,
    model_tasks: Annotated[
        CountOrNone, typer.Option(help="How many of these tasks a language model plays, at about ten seconds each.")
    ] = 6,
    workers: Annotated[Workers | None, typer.Option(help="Processes; as many as cores, up to 4.")] = None,
    record_texts: RecordTextsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what ResiliSim does: tasks, bounds, policies, a report.

    Four policies and a small language model play held-out tasks.
    """
    held_out = sample_tasks(benchmark_tasks(), tasks, split="test")
    show = error_console() if as_json else console()
    show.print(
        f"[bold]1. Tasks[/bold]  {BENCHMARK_VERSION} ships with the package; agents are tested on combinations of"
    )
    show.print("   tools that nothing was trained on (the test split).")
    statistics = task_statistics(benchmark_tasks())
    title = f"{statistics['tasks']} tasks, {statistics['by_split']['test']} of them held out"
    show.print(Table.of_values(title, ["type", "tasks"], list(statistics["by_type"].items())))
    show.print(
        "\n[bold]2. Bounds[/bold]  Tools fail by a known law, so the best possible success rate is solved exactly."
    )
    examples = one_of_each_complexity(held_out)
    bounds = {task.instance_id: bound(task.required_tools, clairvoyant_seeds=0) for task in examples}
    rows = [
        [task.complexity, ", ".join(task.required_tools), *(bounds[task.instance_id][name] for name in BOUNDS)]
        for task in examples
    ]
    show.print(Table.of_values("One task of each complexity", ["task", "required tools", *BOUNDS.values()], rows))
    workers = workers or min(os.cpu_count() or 1, MOST_WORKERS)
    show.print(
        f"\n[bold]3. Agents[/bold]  {len(POLICIES)} policies on {tasks} held-out tasks, with a sound plan in the "
        f"prompt and with a flawed\n   one, {count_of(seeds, 'seed')} each, all on the same draws."
    )
    result = evaluate(POLICIES, held_out, PROMPTS, seeds, out=out, workers=workers, record_texts=record_texts)
    show.print(result.table())
    first, second, prompt = COMPARED
    episodes = read_episode_table(out)
    comparison = compare_tables(episodes.group(first, prompt), episodes.group(second, prompt))
    show.print(
        "\n[bold]4. Comparison[/bold]  The luck of each draw is known, so most of the noise between two agents can be "
        "removed."
    )
    show.print(comparison_table(comparison))
    with error_console().status("writing the report"):
        report = write_report(out)
    show.print("\n[bold]5. Report[/bold]  Open it in a browser; it needs no network:")
    show.print(plain(f"   {report.resolve()}"), soft_wrap=True)
    played = _language_model(held_out[:model_tasks], out, show) if model_tasks else None
    if as_json:
        print_json(
            {
                "tasks": statistics,
                "bounds": [{"instance_id": name, **references} for name, references in bounds.items()],
                **result.to_mapping(),
                "comparison": comparison.to_mapping(),
                "language_model": None if played is None else played.to_mapping(),
                "report": str(report),
            }
        )
        return
    show.print("\n[bold]Where to look next[/bold]")
    for command, what in (
        (f"resilisim play --task {held_out[0].instance_id}", "be the agent yourself, and see what each call cost"),
        (f"resilisim bound --task {held_out[0].instance_id}", "the bounds of any task, or of any list of tools"),
        ("resilisim evaluate --policy my_module:MyPolicy ...", "your own policy, on the same draws (README.md)"),
        ("resilisim runs compare RUN_A RUN_B", "which of two agents is better, and how certain that is"),
        ("resilisim --help", "everything else"),
    ):
        show.print(plain(f"   {command:<54} {what}"), soft_wrap=True)


def _language_model(tasks: list[Task], out: Path, show: Console) -> EvaluationResult | None:
    """Let the model that ships play where it is installed, and show how; None where it is not."""
    show.print(
        "\n[bold]6. A language model[/bold]  SmolLM2 with 135 million parameters, fine-tuned by `resilisim train lm`, "
        f"plays {count_of(len(tasks), 'task')}\n   on this machine, in the shortest prompt style."
    )
    try:
        make_local_model(SHIPPED_ADAPTER, ChatModelSettings())
    except (MissingExtraError, InvalidInputError) as error:
        show.print(plain(f"   Not here: {error}"), soft_wrap=True)
        return None
    chat = ChatModelSettings(local_reuse_prompts=True)
    result = evaluate(
        ("direct[max_tokens=96]", *BESIDE_MODEL),
        tasks,
        "optimal",
        out=out / MODEL_FOLDER,
        model=ModelSettings((f"local:{SHIPPED_ADAPTER}",), chat, concurrency=1),
        prompt_style="terse",
    )
    show.print(result.table())
    report = write_report(out / MODEL_FOLDER)
    show.print("   What it said in each episode, and what that gave away:")
    show.print(plain(f"   {report.resolve()}"), soft_wrap=True)
    return result


def one_of_each_complexity(tasks: list[Task]) -> list[Task]:
    """Return the first task of each complexity, in the order in which they were met."""
    first: dict[str, Task] = {}
    for task in tasks:
        first.setdefault(task.complexity, task)
    return list(first.values())
