"""A small language model evaluated exactly: `python -m benchmarks.language_model MODEL FOLDER [TASKS]`.

Explores MODEL (`local:runs/lm`) on held-out tasks in six settings: optimal plans, flawed ones, none, the shipped tools
under names that no model has seen, a library of its own from a file, and in the form of ReAct. The model always says
the same after the same words, so each branch is played once, the likeliest first, at most PLAYS of a task, and the rate
lies in a bracket that is certain. Replies are kept by what was said before them in FOLDER/replies, so that branches
share what they have in common and a command that was stopped goes on.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from resilisim.seeding import Draws
from resilisim.tasks import Task, benchmark_tasks, generate_tasks, sample_tasks, write_tasks
from resilisim.tasks.split import split_of_task
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.tool_library.generator import generate_library
from resilisim.tool_library.renaming import renamed_library

# Names, not words, are new to a model: some of the words also stand in descriptions, work orders and drawn names.
SUBJECTS = ("ledger", "depot", "crew", "meter", "ticket", "parcel", "roster", "sensor", "invoice", "harbour")
ACTIONS = ("open", "sync", "weigh", "stamp", "rank", "merge", "quote", "seal", "chart", "trace", "audit", "route")
OWN_TOOLS, OWN_SEED = 60, 2**50  # of a library that no training draws: theirs have smaller seeds
NUM_TASKS = 8
WIDTH, PLAYS = 0.1, 60
DIRECT, REACT = "direct[max_tokens=48]", "react[max_tokens=64,steps=12]"
EXPLORED = (
    *("--prompt-style", "terse", "--local-threads", "1", "--local-reuse-prompts", "--concurrency", "1"),
    *("--width", str(WIDTH), "--plays", str(PLAYS)),
)


def renamed(tasks: Sequence[Task]) -> tuple[ToolLibrary, list[Task]]:
    """Return the shipped library under other names, and tasks in these."""
    names_of_tools = [f"{subject}_{action}" for subject in SUBJECTS for action in ACTIONS]
    names = dict(zip(default_library().names, Draws("renamed library").shuffled(names_of_tools), strict=False))
    moved = [replace(task, required_tools=tuple(names[name] for name in task.required_tools)) for task in tasks]
    return renamed_library(default_library(), names), moved


def own_library(num_tasks: int) -> tuple[ToolLibrary, list[Task]]:
    """Return a library made by rules, and tasks of its test split."""
    library = generate_library(OWN_TOOLS, seed=OWN_SEED)
    drawn = generate_tasks(OWN_SEED, 20 * num_tasks, library)
    return library, list(itertools.islice((task for task in drawn if split_of_task(task) == "test"), num_tasks))


def settings(folder: Path, num_tasks: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each setting, and what its command says beside model and policy."""
    held_out = sample_tasks(benchmark_tasks(), num_tasks, split="test")
    files: Mapping[str, tuple[ToolLibrary, list[Task]]] = {
        "shipped": (default_library(), held_out),
        "renamed": renamed(held_out),
        "own": own_library(num_tasks),
    }
    options: dict[str, list[str]] = {}
    for name, (library, tasks) in files.items():
        tools, listed = folder / f"{name}-tools.json", folder / f"{name}-tasks.jsonl"
        tools.write_text(library.to_json(), encoding="utf-8")
        write_tasks(listed, tasks)
        options[name] = ["--library", str(tools), "--tasks", str(listed)]
    for prompt in ("optimal", "flawed", "baseline"):
        yield prompt, ["--policy", DIRECT, "--prompt", prompt, *options["shipped"]]
    for name in ("renamed", "own"):
        yield name, ["--policy", DIRECT, "--prompt", "optimal", *options[name]]
    yield "react", ["--policy", REACT, "--prompt", "optimal", *options["shipped"]]


def main(model: str, folder: Path, num_tasks: int = NUM_TASKS) -> None:
    """Explore the model in each setting, and say how long each took."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in settings(folder, num_tasks):
        command = [sys.executable, "-m", "resilisim", "explore", *options, "--model", model, *EXPLORED]
        command += ["--cache", str(folder / "replies"), "--out", str(folder / name)]
        print(f"\n## {name}\n", *command[2:], flush=True)
        began = time.monotonic()
        subprocess.run(command, check=True)
        print(f"{(time.monotonic() - began) / num_tasks:.0f} seconds a task", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:4]))
