"""Figures that the authors of ResiliBench published, as reference rows beside a run's own.

Their scorer, tool texts, prompts and random numbers are others than here, and so are their systems; a figure below is
no result of this run and says little about a difference of a few points. They are kept as printed, in percent of runs.

Source: Ao, Min, Zhu, Yin and Wang, "ResiliBench: Evaluating Agentic Workflow Adaptation in Stochastic Environments",
tables 2, 3, 4 and 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from resilisim.evaluation.report.content import Fold, Table
from resilisim.evaluation.report.groups import LEVEL_NAMES

CITATION: Final = "Ao et al., ResiliBench"

# Full, partial, fail.
Levels = tuple[float, float, float]

# Table 2: model -> levels under the prompts baseline, chain of thought, optimal.
PROMPTS: Final[Mapping[str, tuple[Levels, Levels, Levels]]] = {
    "GPT-4o-mini": ((50.5, 46.5, 3.0), (56.1, 43.9, 0.0), (67.7, 31.2, 1.1)),
    "O3-0416-Global": ((52.7, 44.9, 2.4), (48.9, 45.6, 5.6), (58.5, 35.1, 6.4)),
    "Gemini-2.5-Flash": ((54.3, 44.5, 1.1), (51.1, 44.7, 4.2), (60.1, 36.7, 3.3)),
    "GPT-5-mini": ((52.0, 46.0, 2.0), (54.3, 45.7, 0.0), (60.7, 35.5, 3.8)),
    "Llama-3.3-70B": ((47.8, 42.5, 9.6), (43.6, 43.6, 12.7), (66.1, 30.9, 3.0)),
    "Qwen2.5-32B": ((52.5, 43.8, 3.7), (51.7, 45.0, 3.3), (65.0, 31.9, 3.1)),
    "DeepSeek-V3": ((50.0, 50.0, 0.0), (50.0, 46.9, 3.1), (56.8, 39.0, 4.2)),
}
PROMPTS_MEAN: Final[tuple[Levels, Levels, Levels]] = ((51.4, 45.5, 3.1), (50.8, 45.1, 4.1), (62.1, 34.3, 3.6))

# Table 3: model -> levels under the prompts optimal, flawed.
FLAWED: Final[Mapping[str, tuple[Levels, Levels]]] = {
    "GPT-4o-mini": ((67.7, 31.2, 1.1), (62.2, 34.6, 3.2)),
    "O3-0416-Global": ((58.5, 35.1, 6.4), (53.8, 39.2, 7.0)),
    "Gemini-2.5-Flash": ((60.1, 36.7, 3.3), (20.0, 12.8, 67.3)),
    "GPT-5-mini": ((60.7, 35.5, 3.8), (63.5, 36.1, 0.4)),
    "Llama-3.3-70B": ((66.1, 30.9, 3.0), (59.5, 36.2, 4.4)),
    "Qwen2.5-32B": ((65.0, 31.9, 3.1), (62.9, 35.9, 1.2)),
    "DeepSeek-V3": ((56.8, 39.0, 4.2), (58.4, 39.7, 1.9)),
}
FLAWED_MEAN: Final[tuple[Levels, Levels]] = ((62.1, 34.3, 3.6), (54.3, 33.5, 12.2))

# Table 4: models of the Qwen2.5 series -> levels.
SCALING: Final[Mapping[str, Levels]] = {
    "Qwen2.5-3B": (0.5, 0.5, 99.1),
    "Qwen2.5-7B": (63.5, 30.2, 6.3),
    "Qwen2.5-32B": (65.0, 31.9, 3.1),
    "Qwen2.5-72B": (65.0, 32.0, 3.0),
}

# Table 13: its own labels of task types -> success of each model.
TASK_TYPE_MODELS: Final = (
    "GPT-4o-mini",
    "GPT-5-mini",
    "Claude-Sonnet-4",
    "Gemini-2.5-Flash",
    "DeepSeek-V3",
    "DeepSeek-R1",
    "Qwen2.5-32B",
    "Llama-3.3-70B",
)
TASK_TYPES: Final[Mapping[str, tuple[float, ...]]] = {
    "Advanced processing": (55.2, 54.1, 51.4, 50.0, 48.3, 50.0, 52.4, 55.8),
    "API data retrieval": (59.0, 54.6, 50.0, 57.1, 49.5, 47.5, 57.1, 64.3),
    "Batch processing": (82.0, 58.7, 60.5, 64.6, 58.6, 50.0, 64.0, 59.8),
    "Content analysis": (77.9, 76.3, 66.0, 70.9, 70.0, 66.1, 82.1, 81.7),
    "Multi-step processing": (67.5, 62.1, 51.7, 59.5, 59.5, 47.3, 72.9, 65.3),
}

NOT_OURS: Final = (
    "Other systems, another scorer and another environment: reference figures, not results of this run, and no "
    "comparison with it. No intervals: the paper prints none."
)
OTHER_LABELS: Final = (
    "The paper's five labels here are not its five task types (basic file processing, simple data transformation, "
    "complex validation pipeline, complex network integration, advanced computation pipeline), and it gives no mapping "
    "between them; so no row stands beside a row of this run."
)


def prompts_reference() -> Fold:
    """Return table 2 of the paper."""
    return _levels_reference(2, "by prompt", ("baseline", "chain of thought", "optimal"), PROMPTS, PROMPTS_MEAN)


def flawed_reference() -> Fold:
    """Return table 3 of the paper, with the drop from optimal to flawed."""
    return _levels_reference(3, "under optimal and flawed plans", ("optimal", "flawed"), FLAWED, FLAWED_MEAN, drop=True)


def scaling_reference() -> Fold:
    """Return table 4 of the paper."""
    rows = [(name, *(f"{value:.1f}" for value in levels)) for name, levels in SCALING.items()]
    what = "full, partial and failed runs by size of the model"
    return _reference(4, what, Table("", ("model", *LEVEL_NAMES), rows))


def task_types_reference() -> Fold:
    """Return table 13 of the paper under its own labels."""
    rows = [(name, *(f"{value:.1f}" for value in values)) for name, values in TASK_TYPES.items()]
    headings = ("kind of task (the paper's label)", *TASK_TYPE_MODELS)
    return _reference(13, "success by kind of task", Table("", headings, rows, notes=(OTHER_LABELS,)))


def _levels_reference(
    number: int,
    what: str,
    prompts: tuple[str, ...],
    published: Mapping[str, tuple[Levels, ...]],
    mean: tuple[Levels, ...],
    drop: bool = False,
) -> Fold:
    rows = []
    for name, levels in (*published.items(), ("mean (as printed)", mean)):
        cells = [f"{value:.1f}" for level in levels for value in level]
        cells += [f"{levels[0][0] - levels[1][0]:.1f}".replace("-", "−")] * drop
        rows.append([name, *cells])
    headings = ("model", *LEVEL_NAMES * len(prompts), *["drop in points"] * drop)
    groups = (("", 1), *((prompt, len(LEVEL_NAMES)) for prompt in prompts), *[("", 1)] * drop)
    table = Table("", headings, rows, groups=groups, summary_rows=1)
    return _reference(number, f"full, partial and failed runs {what}", table)


def _reference(number: int, what: str, table: Table) -> Fold:
    source = f"{CITATION}, table {number}"
    caption = f"Published, not of this run: {what}, in percent ({source})"
    shown = replace(table, caption=caption, notes=(*table.notes, NOT_OURS))
    return Fold(f"Published figures of other systems ({source})", (shown,), is_published=True)
