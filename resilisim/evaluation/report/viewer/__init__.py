"""The trajectory viewer: a section of the report in which episodes are searched, filtered and read turn by turn."""

from __future__ import annotations

import json
import shlex
from importlib import resources
from pathlib import Path

from resilisim.evaluation.episode.record import LOSS_LABELS
from resilisim.evaluation.report.facts import count_of
from resilisim.evaluation.report.legend import loss_style
from resilisim.evaluation.report.markup import Child, Markup, element
from resilisim.evaluation.report.viewer.packing import Pack, Packer
from resilisim.evaluation.run.store import read_records
from resilisim.tasks.benchmark import benchmark_tasks

__all__ = ["Packer", "viewer_assets", "viewer_section"]

# In this order: each uses functions of those before it.
SCRIPTS = ("dom.js", "pack.js", "search.js", "said.js", "list.js", "trace.js", "turns.js", "episode.js", "viewer.js")
BLOCK_TYPE = "application/x-resilisim-pack"  # no script to a browser: it keeps the text and does nothing


def viewer_section(directory: Path | str, packer: Packer | None = None) -> Markup:
    """Return what a page needs of a run's episodes: the place of the viewer, and blocks that hold the episodes.

    Args:
        directory: Folder of the results.
        packer: Has taken in all episodes; if omitted, the folder's episodes are read once, one at a time.

    Raises:
        StoreError: The folder cannot be read.
    """
    if packer is None:
        packer = Packer()
        for record in read_records(directory):
            packer.add(record)
    command = f"resilisim episode show {shlex.quote(Path(directory).resolve().name)}"
    pack = packer.pack(command, {task.instance_id: task.description for task in benchmark_tasks()})
    missing = (
        "The list of episodes needs JavaScript, which is off here. In a terminal, ",
        element("code", f"{command} NUMBER"),
        " shows an episode turn by turn.",
    )
    return Markup(
        element("div", element("p", "Unpacking the episodes…", class_="note"), id="viewer", class_="viewer")
        + element("noscript", element("p", missing, class_="warning"))
        + element("p", _coverage(pack), class_="note")
        + _blocks(pack)
    )


def viewer_assets() -> tuple[str, str]:
    """Return style and script of the viewer; the script belongs at the end of a page's body."""
    folder = resources.files(__package__)
    causes = {label: {"style": loss_style(label), "text": text} for label, text in LOSS_LABELS.items()}
    parts = [f"const CAUSES = new Map(Object.entries({json.dumps(causes)}));\n"]
    parts += [folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = '(() => {\n"use strict";\n\n' + "\n".join(parts) + "})();\n"
    return folder.joinpath("viewer.css").read_text(encoding="utf-8"), script


def _coverage(pack: Pack) -> Child:
    """Say which episodes, which messages and which conversations are in the page, and what went first."""
    chosen = "failures first, then those whose calls cost most"
    parts = []
    if pack.num_packed < pack.num_episodes:
        parts.append(f"Of {count_of(pack.num_episodes, 'episode')} {pack.num_packed:,} are listed here, {chosen}.")
    if pack.num_with_texts < pack.num_packed:
        parts.append(f"What was sent is in this file for {pack.num_with_texts:,} of them, chosen in the same way.")
    if not parts:
        parts.append(f"In this file: {count_of(pack.num_episodes, 'episode')} with all that was sent.")
    if pack.num_talks == 0:
        parts.append("The records kept no prompts, thoughts and replies (--record-texts).")
    elif pack.num_with_talks < pack.num_talks:
        parts.append(
            "Prompts, thoughts and replies are the first to go where room is short: of the "
            f"{pack.num_talks:,} episodes that have them, they are here for {pack.num_with_talks:,}, {chosen}."
        )
    elif pack.num_talks < pack.num_episodes:
        parts.append(f"Prompts, thoughts and replies are here for the {pack.num_talks:,} whose records kept them.")
    else:
        parts.append("So are prompts, thoughts and replies; only very long texts are cut.")
    return " ".join(parts)


def _blocks(pack: Pack) -> Markup:
    blocks = {"pack-index": pack.index}
    blocks |= {f"pack-steps-{number}": block for number, block in enumerate(pack.steps)}
    blocks |= {f"pack-texts-{number}": block for number, block in enumerate(pack.texts)}
    blocks |= {f"pack-talks-{number}": block for number, block in enumerate(pack.talks)}
    # Base64 holds nothing that needs to be escaped, and in this element nothing may be.
    return Markup(
        "\n".join(f'<script type="{BLOCK_TYPE}" id="{name}">{block}</script>' for name, block in blocks.items())
    )
