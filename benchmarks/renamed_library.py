"""The shipped library under names that no model has seen, and sixty tasks of the test split: nothing is known by heart.

`python -m benchmarks.renamed_library FOLDER` writes tools.json and tasks.jsonl.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from resilisim.seeding import Draws
from resilisim.tasks import benchmark_tasks, sample_tasks
from resilisim.tool_library import default_library
from resilisim.tool_library.renaming import renamed_library

# Names, not words, are new to a model: some of the words also stand in descriptions, work orders and drawn names.
SUBJECTS = ("ledger", "depot", "crew", "meter", "ticket", "parcel", "roster", "sensor", "invoice", "harbour")
ACTIONS = ("open", "sync", "weigh", "stamp", "rank", "merge", "quote", "seal", "chart", "trace", "audit", "route")
NUM_TASKS = 60


def renamed() -> dict[str, str]:
    """Return the new name of each tool."""
    names = [f"{subject}_{action}" for subject in SUBJECTS for action in ACTIONS]
    drawn = Draws("renamed library").shuffled(names)
    return dict(zip(default_library().names, drawn, strict=False))


def main(folder: Path) -> None:
    """Write library and tasks."""
    names = renamed()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tools.json").write_text(renamed_library(default_library(), names).to_json(), encoding="utf-8")
    with (folder / "tasks.jsonl").open("w", encoding="utf-8") as file:
        for task in sample_tasks(benchmark_tasks(), NUM_TASKS, split="test"):
            required = [names[name] for name in task.required_tools]
            file.write(json.dumps({"required_tools": required, "description": task.description}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
