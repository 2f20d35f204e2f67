"""The trajectory viewer: a section of the report in which episodes are searched, filtered and read turn by turn."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from markupsafe import Markup

from resilisim.errors import count_of
from resilisim.evaluation.episode.record import ALL_LOSS_LABELS, EpisodeRecord, StepRecord
from resilisim.reporting.charts.lines import SHOWN_CHANGE, trace_chart
from resilisim.reporting.losses import message_line
from resilisim.reporting.page import render, say
from resilisim.reporting.result_sections import loss_style
from resilisim.reporting.viewer.packing import Packer
from resilisim.tables.numbers import percent, signed_points
from resilisim.tasks.benchmark import find_task, version_of

# In this order: each uses functions of those before it.
SCRIPTS = ("dom.js", "pack.js", "search.js", "said.js", "list.js", "trace.js", "turns.js", "episode.js", "viewer.js")
BLOCK_TYPE = "application/x-resilisim-pack"  # no script to a browser: it keeps the text and does nothing
MOST_EXAMPLES = 6  # for readers without a script
MOST_STEPS = 40  # of an example: an episode of a run with a hundred turns is cut there, not in its record
MESSAGE_LENGTH = 160


def viewer_section(directory: Path | str, packer: Packer, examples: Sequence[EpisodeRecord] = ()) -> Markup:
    """Return what a page needs of a run's episodes: the place of the viewer, and blocks that hold the episodes.

    The packer has taken in all of them; of the examples, which are for readers whose browser runs no script, the first
    few are shown.
    """

    def message(step: StepRecord) -> str:
        return message_line(step["message"], MESSAGE_LENGTH)

    command = f"resilisim runs episode {shlex.quote(Path(directory).resolve().name)}"
    return render(
        "viewer.html",
        command=command,
        pack=packer.pack(command, {name: find_task(name).description for name in packer.tasks if version_of(name)}),
        block_type=BLOCK_TYPE,
        examples=examples[:MOST_EXAMPLES],
        most_steps=MOST_STEPS,
        shown=SHOWN_CHANGE,
        causes=ALL_LOSS_LABELS,
        count_of=count_of,
        say=say,
        percent=percent,
        points=signed_points,
        message=message,
        trace=trace_chart,
    )


def viewer_assets() -> tuple[str, str]:
    """Return style and script of the viewer; the script belongs at the end of a page's body."""
    folder = resources.files(__package__)
    causes = {label: {"style": loss_style(label), "text": text} for label, text in ALL_LOSS_LABELS.items()}
    parts = [f"const CAUSES = new Map(Object.entries({json.dumps(causes)}));\n"]
    parts += [folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = '(() => {\n"use strict";\n\n' + "\n".join(parts) + "})();\n"
    return folder.joinpath("viewer.css").read_text(encoding="utf-8"), script
