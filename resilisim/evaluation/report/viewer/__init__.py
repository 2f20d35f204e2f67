"""The trajectory viewer: a section of the report in which episodes are searched, filtered and read turn by turn."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from markupsafe import Markup

from resilisim.errors import count_of
from resilisim.evaluation.episode.record import LOSS_LABELS, EpisodeRecord, StepRecord
from resilisim.evaluation.report.charts.lines import trace_chart
from resilisim.evaluation.report.losses import message_line
from resilisim.evaluation.report.page import draw, plain, render, say, signed_points
from resilisim.evaluation.report.results import loss_style
from resilisim.evaluation.report.viewer.packing import Pack, Packer
from resilisim.evaluation.table.summary import format_percent
from resilisim.tasks.benchmark import benchmark_tasks

# In this order: each uses functions of those before it.
SCRIPTS = ("dom.js", "pack.js", "search.js", "said.js", "list.js", "trace.js", "turns.js", "episode.js", "viewer.js")
BLOCK_TYPE = "application/x-resilisim-pack"  # no script to a browser: it keeps the text and does nothing
MOST_EXAMPLES = 6  # for readers without a script
MOST_STEPS = 40  # of an example: an episode of a run with a hundred turns is cut there, not in its record
MESSAGE_LENGTH = 160


def viewer_section(directory: Path | str, packer: Packer, examples: Sequence[EpisodeRecord] = ()) -> Markup:
    """Return what a page needs of a run's episodes: the place of the viewer, and blocks that hold the episodes.

    Args:
        directory: Folder of the results.
        packer: Has taken in all episodes.
        examples: Episodes for readers whose browser runs no script; the first few are shown.
    """
    command = f"resilisim episode show {shlex.quote(Path(directory).resolve().name)}"
    pack = packer.pack(command, {task.instance_id: task.description for task in benchmark_tasks()})
    blocks = {"pack-index": pack.index}
    for kind in ("steps", "texts", "talks"):
        blocks |= {f"pack-{kind}-{number}": block for number, block in enumerate(getattr(pack, kind))}
    return render(
        "viewer.html",
        command=command,
        coverage=_coverage(pack),
        block_type=BLOCK_TYPE,
        # Base64 holds nothing that needs to be escaped, and in this element nothing may be.
        blocks={name: Markup(block) for name, block in blocks.items()},
        examples=[_example(record) for record in examples[:MOST_EXAMPLES]],
        regret_adds_up=say("regret_adds_up"),
    )


def _example(record: EpisodeRecord) -> dict[str, object]:
    """Return what the template shows of an episode without a script: a line above, its trace, its messages."""
    steps = record["steps"][:MOST_STEPS]
    return {
        "record": record,
        "outcome": "success" if record["outcome"] else plain(record["score"]["level"]),
        "ended_by": plain(record["ended_by"]),
        "required": " → ".join(record["required_tools"]),
        "ceiling": format_percent(record["optimum"]),
        "lost": format_percent(record["regret"]),
        "luck": signed_points(record["luck"]),
        "chart": draw("chart", trace_chart(record, MOST_STEPS)),
        "steps": [_step(step) for step in steps],
        "hidden": len(record["steps"]) - len(steps),
    }


def _step(step: StepRecord) -> dict[str, object]:
    result = plain(step["kind"])
    if step["kind"] == "execute" and step["success"] is not None:
        result = "succeeded" if step["success"] else step["error"] or "failed"
    label, chance = step["label"], step["success_probability"]
    costly = step["regret"] >= 0.0005
    return {
        "turn": step["turn"],
        "message": message_line(step["message"], MESSAGE_LENGTH),
        "result": result,
        "style": "good" if step["success"] else "bad" if step["success"] is False else "muted",
        "chance": "" if chance is None else f"{format_percent(chance, 0)}%",
        "value": format_percent(step["value"]),
        "action_value": format_percent(step["action_value"]),
        "regret": format_percent(step["regret"]) if costly else "",
        "luck": signed_points(step["luck"]) if abs(step["luck"]) >= 0.0005 else "",
        "costly": costly,
        "label": plain(label or ""),
        "explanation": LOSS_LABELS.get(label, label) if label else "",
    }


def viewer_assets() -> tuple[str, str]:
    """Return style and script of the viewer; the script belongs at the end of a page's body."""
    folder = resources.files(__package__)
    causes = {label: {"style": loss_style(label), "text": text} for label, text in LOSS_LABELS.items()}
    parts = [f"const CAUSES = new Map(Object.entries({json.dumps(causes)}));\n"]
    parts += [folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = '(() => {\n"use strict";\n\n' + "\n".join(parts) + "})();\n"
    return folder.joinpath("viewer.css").read_text(encoding="utf-8"), script


def _coverage(pack: Pack) -> str:
    """Say which episodes, which messages and which conversations are in the page, and what went first."""
    every = count_of(pack.num_episodes, "episode")
    parts = []
    if pack.num_packed < pack.num_episodes:
        parts.append(say("episodes_some", all=every, packed=pack.num_packed))
    if pack.num_with_texts < pack.num_packed:
        parts.append(say("episodes_texts", texts=pack.num_with_texts))
    parts = parts or [say("episodes_all", all=every)]
    if pack.num_talks == 0:
        parts.append(say("talks_none"))
    elif pack.num_with_talks < pack.num_talks:
        parts.append(say("talks_some", kept=pack.num_talks, packed=pack.num_with_talks))
    elif pack.num_talks < pack.num_episodes:
        parts.append(say("talks_partly", kept=pack.num_talks))
    else:
        parts.append(say("talks_all"))
    return " ".join(parts)
