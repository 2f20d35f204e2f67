"""The figure of a task set: what it counts, the same bytes each time, and no name that can break it."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from resilisim import benchmark_tasks, default_library
from resilisim.errors import InvalidInputError, MissingExtraError, StoreError
from resilisim.tasks import Task
from resilisim.tasks.composition import (
    MAX_LABEL_LENGTH,
    MAX_ROWS,
    check_figure_path,
    draw_task_figure,
    library_statistics,
    task_statistics,
    write_task_figure,
)
from resilisim.tool_library import ToolLibrary

SVG_TEXT = re.compile(r"<!-- (.*?) -->", re.DOTALL)  # what matplotlib draws as paths stands beside them as a comment


def benchmark_counts() -> dict[str, Any]:
    return task_statistics(benchmark_tasks())


def texts(tasks: Any, library: Any) -> list[str]:
    """Return the texts of the drawn image, and prove that it is well-formed."""
    image = draw_task_figure(tasks, library, "svg").decode("utf-8")
    ElementTree.fromstring(image)
    return SVG_TEXT.findall(image)


def small_library() -> ToolLibrary:
    return ToolLibrary.from_json(json.dumps({"tools": [{"name": "mend", "description": "Mends."}]}))


def tasks_of_types(types: list[str], library: ToolLibrary) -> list[Task]:
    return [
        Task.from_mapping({"required_tools": ["mend"], "task_type": name, "description": f"Job {number}."}, library)
        for number, name in enumerate(types)
    ]


def test_a_library_is_counted_by_category_and_parameter() -> None:
    counts = library_statistics(default_library())
    assert counts["tools"] == 30
    assert set(counts["by_category"].values()) == {5}
    assert len(counts["by_category"]) == 6
    parameters = counts["by_parameter"]
    # Table 10 of the paper gives these numbers; the seed's caption calls them required, which four are not.
    assert {name: parameters[name]["tools"] for name in list(parameters)[:5]} == {
        "options": 25,
        "source": 5,
        "data": 5,
        "timeout": 5,
        "retry_count": 5,
    }
    assert parameters["options"]["required"] == parameters["timeout"]["required"] == 0
    assert parameters["source"]["required"] == 5
    assert parameters["message"] == {"tools": 4, "required": 2}
    numbers = [entry["tools"] for entry in parameters.values()]
    assert numbers == sorted(numbers, reverse=True)
    assert library_statistics(small_library()) == {"tools": 1, "by_category": {"general": 1}, "by_parameter": {}}


def test_the_four_panels_show_the_numbers_of_the_benchmark() -> None:
    shown = texts(benchmark_counts(), library_statistics(default_library()))
    for text in (
        "1,520 (30.2%)",
        "2,880 (57.1%)",
        "320 (6.3%)",
        "complex_network_integration",
        "hard",
        "utility",
        "25",
    ):
        assert text in shown
    assert shown.count("5") >= 6 + 4  # tools in each category, and tools with source, data, timeout, retry_count
    assert "required" in shown
    assert "and 18 more with at most 1 each" in shown
    assert [text for text in shown if re.match(r"\([a-z]\)", text)] == [
        "(a)  Tasks by type",
        "(b)  Tasks by complexity",
        "(c)  Tools by category",
        "(d)  Tools by parameter",
    ]


@pytest.mark.parametrize("file_format", ["png", "svg", "pdf"])
def test_the_same_counts_give_the_same_bytes(file_format: str) -> None:
    counts, library = benchmark_counts(), library_statistics(default_library())
    assert draw_task_figure(counts, library, file_format) == draw_task_figure(counts, library, file_format)


def test_any_names_and_any_number_of_them_are_drawn() -> None:
    library = small_library()
    odd = ["$\\frac{a}{b$", "two\nlines\x07", "<b>&amp;", "x" * 150, "日本語"]
    types = odd * 4 + [f"type {number}" for number in range(40)] + ["type 3", "type 4"]
    shown = texts(task_statistics(tasks_of_types(types, library)), library_statistics(library))
    assert any("lines" in text and "\n" not in text for text in shown)
    assert "x" * (MAX_LABEL_LENGTH - 1) + "…" in shown
    assert not any(text.startswith("x" * MAX_LABEL_LENGTH) for text in shown)
    assert "none" in shown  # the library has no parameters
    # Five odd types and two others have more than one task.
    assert f"and {45 - MAX_ROWS} more with at most 1 each" in shown


def test_where_many_are_equal_some_of_them_are_left_out() -> None:
    library = small_library()
    tasks = tasks_of_types([f"type {number}" for number in range(MAX_ROWS + 3)], library)
    shown = texts(task_statistics(tasks), library_statistics(library))
    assert "and 3 more with at most 1 each" in shown


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"
    path.write_text("before", encoding="utf-8")
    write_task_figure(path, benchmark_counts(), library_statistics(default_library()))
    assert path.read_bytes().startswith(b"<?xml")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(StoreError, match="no such file"):
        write_task_figure(tmp_path / "nowhere" / "a.png", benchmark_counts(), library_statistics(default_library()))


@pytest.mark.parametrize(("name", "words"), [("a.gif", ".png, .svg, .pdf"), ("a.sgv", "'.sgv'"), ("a", ".png")])
def test_an_unknown_suffix_is_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(words)):
        check_figure_path(Path(name))


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"resilisim\[plots\]"):
        draw_task_figure(benchmark_counts(), library_statistics(default_library()), "svg")
