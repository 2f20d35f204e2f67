"""What tasks and tools are made of: counts, and one image with the four panels of the ResiliBench paper's figure 2."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilisim.errors import InvalidInputError, import_extra
from resilisim.run_folder import write_file_atomically
from resilisim.tasks.split import SPLITS, split_of
from resilisim.tasks.task import COMPLEXITIES, TASK_TYPES, Task
from resilisim.tool_library import ToolLibrary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURE_FORMATS: Mapping[str, str] = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
# What would make two files of the same content differ, such as the time.
_METADATA: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}

WIDTH = 7.2  # inches, the width of a page of text
ROW_HEIGHT = 0.19  # inches
MAX_ROWS = 16
MAX_LABEL_LENGTH = 32  # characters
DOTS_PER_INCH = 200

# From the palette of Okabe and Ito, whose colours people with any colour vision can tell apart; in grey, too.
_COLOUR = "#0072B2"
_LIGHT_COLOUR = "#A9CFE5"
_TEXT_COLOUR = "#222222"
_STYLE: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "text.color": _TEXT_COLOUR,
    "axes.labelcolor": _TEXT_COLOUR,
    "axes.edgecolor": _TEXT_COLOUR,
    "axes.linewidth": 0.6,
    "xtick.color": _TEXT_COLOUR,
    "ytick.color": _TEXT_COLOUR,
    "svg.hashsalt": "resilisim",
    "pdf.fonttype": 42,
}


@dataclass(frozen=True, slots=True)
class _Bar:
    """One row of a panel: what is counted, how many, and how many of them are marked."""

    label: str
    count: int
    marked: int


def task_statistics(tasks: Iterable[Task]) -> dict[str, Any]:
    """Count tasks by type, complexity, number of tools, split, domain and tool, in one pass.

    Args:
        tasks: Any number of tasks; memory grows with the number of distinct tool lists only.

    Returns:
        JSON values: `tasks`, `by_type`, `by_complexity`, `by_num_tools` (keys are texts, as JSON has it), `by_split`,
        `by_domain`, `by_tool` (in how many tasks each stands), `distinct_tool_lists`, `distinct_tool_sets`, and
        `tool_sets_by_split`.
    """
    counters: dict[str, Counter[str]] = {
        key: Counter() for key in ("type", "complexity", "num_tools", "split", "domain", "tool")
    }
    total = 0
    lists: set[tuple[str, ...]] = set()
    for task in tasks:
        total += 1
        lists.add(task.required_tools)
        counters["type"][task.task_type] += 1
        counters["complexity"][task.complexity] += 1
        counters["num_tools"][str(len(task.required_tools))] += 1
        counters["split"][split_of(task.required_tools)] += 1
        counters["domain"][str(task.metadata.get("domain", "unknown"))] += 1
        counters["tool"].update(task.required_tools)
    sets = {tuple(sorted(names)) for names in lists}
    return {
        "tasks": total,
        "by_type": _ordered(counters["type"], TASK_TYPES),
        "by_complexity": _ordered(counters["complexity"], COMPLEXITIES),
        "by_num_tools": {key: counters["num_tools"][key] for key in sorted(counters["num_tools"], key=int)},
        "by_split": _ordered(counters["split"], SPLITS),
        "by_domain": dict(sorted(counters["domain"].items())),
        "by_tool": dict(sorted(counters["tool"].items())),
        "distinct_tool_lists": len(lists),
        "distinct_tool_sets": len(sets),
        "tool_sets_by_split": _ordered(Counter(split_of(names) for names in sets), SPLITS),
    }


def _ordered(counter: Counter[str], first: Iterable[str]) -> dict[str, int]:
    """Return the counts, known keys first in their own order, others after them by name; what is absent is left out."""
    known = [key for key in first if counter[key]]
    return {key: counter[key] for key in (*known, *sorted(counter.keys() - set(known))) if counter[key]}


def library_statistics(library: ToolLibrary) -> dict[str, Any]:
    """Count a library's tools by category and, the most frequent first, by parameter, with how many require it."""
    having: Counter[str] = Counter()
    requiring: Counter[str] = Counter()
    for tool in library:
        for parameter in tool.parameters:
            having[parameter.name] += 1
            requiring[parameter.name] += parameter.required
    return {
        "tools": len(library),
        "by_category": dict(Counter(tool.category for tool in library)),
        "by_parameter": {name: {"tools": count, "required": requiring[name]} for name, count in having.most_common()},
    }


def check_figure_path(path: Path) -> str:
    """Return the format that a file's suffix stands for; an InvalidInputError tells one that stands for none."""
    suffix = path.suffix.lower()
    if suffix not in FIGURE_FORMATS:
        expected = ", ".join(FIGURE_FORMATS)
        raise InvalidInputError(f"unknown suffix {path.suffix!r} of plot {str(path)!r}: expected one of {expected}")
    return FIGURE_FORMATS[suffix]


def write_task_figure(path: Path, tasks: Mapping[str, Any], library: Mapping[str, Any]) -> None:
    """Draw what `task_statistics` and `library_statistics` returned into one file, whose suffix says the format."""
    write_file_atomically(path, draw_task_figure(tasks, library, check_figure_path(path)))


def draw_task_figure(tasks: Mapping[str, Any], library: Mapping[str, Any], file_format: str) -> bytes:
    """Return the image ("png", "svg" or "pdf") as bytes: the same for the same counts and version of matplotlib."""
    matplotlib = _matplotlib()
    left = [
        ("a", "Tasks by type", _plain_bars(tasks["by_type"]), tasks["tasks"]),
        ("b", "Tasks by complexity", _plain_bars(tasks["by_complexity"]), tasks["tasks"]),
        ("c", "Tools by category", _plain_bars(library["by_category"]), None),
    ]
    parameters = [_Bar(name, counts["tools"], counts["required"]) for name, counts in library["by_parameter"].items()]
    heights = [_rows(bars) for _, _, bars, _ in left]
    with matplotlib.rc_context(dict(_STYLE)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box then stands for the letter
        height = max(sum(heights) + 2 * len(left), _rows(parameters) + 4) * ROW_HEIGHT
        figure = _matplotlib(".figure").Figure(figsize=(WIDTH, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.06, h_pad=0.05, wspace=0.04)
        left_part, right_part = figure.subfigures(1, 2, width_ratios=[1.2, 1.0])
        panels = left_part.subplots(len(left), 1, height_ratios=heights)
        for panel, (letter, title, bars, total) in zip(panels, left, strict=True):
            _draw_panel(panel, letter, title, bars, total)
        _draw_panel(right_part.subplots(), "d", "Tools by parameter", parameters, None)
        patch = _matplotlib(".patches").Patch
        shades = [patch(color=_COLOUR, label="required"), patch(color=_LIGHT_COLOUR, label="optional")]
        right_part.legend(handles=shades, loc="outside lower right", ncols=2, frameon=False, handlelength=1.2)
        image = io.BytesIO()
        figure.savefig(image, format=file_format, dpi=DOTS_PER_INCH, metadata=dict(_METADATA[file_format]))
    return image.getvalue()


def _plain_bars(counts: Mapping[str, int]) -> list[_Bar]:
    return [_Bar(label, count, count) for label, count in counts.items()]


def _rows(bars: list[_Bar]) -> int:
    return max(1, len(_shown(bars)))


def _shown(bars: list[_Bar]) -> list[_Bar]:
    """Return the bars that fit: where not all do, the longest, without dividing equal ones if that leaves enough."""
    if len(bars) <= MAX_ROWS:
        return bars
    longest_first = sorted(bars, key=lambda bar: -bar.count)
    kept = [bar for bar in longest_first if bar.count > longest_first[MAX_ROWS].count]
    return kept if len(kept) >= MAX_ROWS // 2 else longest_first[:MAX_ROWS]


def _draw_panel(panel: Axes, letter: str, title: str, bars: list[_Bar], total: int | None) -> None:
    """Draw horizontal bars, the marked part dark and the rest light, with their counts and shares of a total."""
    shown = _shown(bars)
    places = range(len(shown))
    longest = max((bar.count for bar in shown), default=1)
    panel.set_title(f"({letter})  {title}", loc="left", fontsize=8.5, fontweight="bold", pad=4)
    marked = [bar.marked for bar in shown]
    panel.barh(places, marked, height=0.72, color=_COLOUR)
    rest = [bar.count - bar.marked for bar in shown]
    panel.barh(places, rest, height=0.72, left=marked, color=_LIGHT_COLOUR)
    for place, bar in zip(places, shown, strict=True):
        share = "" if total is None else f" ({bar.count / total:.1%})"
        panel.text(bar.count + 0.015 * longest, place, f"{bar.count:,}{share}", va="center", ha="left")
    panel.set_yticks(places, [_label(bar.label) for bar in shown])
    for text in panel.get_yticklabels():
        text.set_parse_math(False)  # a name may hold dollar signs
    panel.set_xlim(0, (1.14 if total is None else 1.4) * longest)
    panel.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    panel.set_xticks([])
    panel.tick_params(left=False)
    panel.spines[["top", "right", "bottom"]].set_visible(False)
    note = "" if bars else "none"
    if len(shown) < len(bars):
        hidden = sorted((bar.count for bar in bars), reverse=True)[len(shown) :]
        note = f"and {len(hidden):,} more with at most {hidden[0]:,} each"
    panel.set_xlabel(note, loc="left", style="italic")


def _label(name: str) -> str:
    """Return a name as one line that leaves room for the bars."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())
    return line if len(line) <= MAX_LABEL_LENGTH else line[: MAX_LABEL_LENGTH - 1] + "…"


def _matplotlib(module: str = "") -> Any:
    return import_extra(f"matplotlib{module}", "a plot needs", "plots")
