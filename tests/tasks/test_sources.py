"""Where tasks come from, what they are made of, and the figure of it."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from resilisim.errors import InvalidInputError, MissingExtraError, StoreError
from resilisim.tasks import Task
from resilisim.tasks.benchmark import BENCHMARK_VERSION, benchmark_tasks
from resilisim.tasks.composition import (
    MAX_LABEL_LENGTH,
    MAX_ROWS,
    check_figure_path,
    draw_task_figure,
    library_statistics,
    task_statistics,
    write_task_figure,
)
from resilisim.tasks.sources import read_tasks, sample_tasks
from resilisim.tasks.split import split_of
from resilisim.tasks.task import quotas
from resilisim.tool_library.library import ToolLibrary, default_library
from resilisim.tool_library.tool import Tool

LIBRARY = default_library()
TASKS = benchmark_tasks()


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_the_benchmark_by_name_number_and_id() -> None:
    assert read_tasks(BENCHMARK_VERSION, LIBRARY) == list(TASKS)
    before = benchmark_tasks("benchmark-v1")
    assert read_tasks("benchmark-v1", LIBRARY) == list(before)
    assert read_tasks("benchmark-v1:7", LIBRARY) == list(before[:7])
    assert read_tasks("benchmark-v2:7", LIBRARY) == list(TASKS[:7])
    assert read_tasks(10, LIBRARY) == read_tasks("10", LIBRARY) == list(TASKS[:10])
    assert read_tasks(TASKS[3].instance_id, LIBRARY) == [TASKS[3]]
    assert Counter(task.task_type for task in read_tasks(63, LIBRARY)) == {
        "basic_file_processing": 15,
        "simple_data_transformation": 4,
        "complex_validation_pipeline": 19,
        "complex_network_integration": 17,
        "advanced_computation_pipeline": 8,
    }


def test_a_file_of_tasks(tmp_path: Path) -> None:
    other = '{"required_tools": ["file_operations_reader"], "description": "a\u2028b"}'  # on its line whatever it holds
    path = write(tmp_path / "tasks.jsonl", TASKS[0].to_json(), "", other)
    tasks = read_tasks(str(path), LIBRARY)
    assert tasks == [TASKS[0], Task.from_mapping(json.loads(other), LIBRARY)]
    assert read_tasks(path, LIBRARY) == tasks


ONE = '{"required_tools": ["file_operations_reader"]}'
WRONG_FILES = {
    "second": (f"{ONE}\n{{", "line 2: not valid JSON"),
    "unknown": ('{"required_tools": ["file_operations_redaer"]}', "line 1"),
    "twice": (f"{ONE}\n{ONE}", "line 1 already"),
    "deep": (ONE.replace("}", ', "inputs": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}"), "nested too deeply"),
    "empty": ("", "holds no tasks"),
}
WRONG_NAMES: list[tuple[str | int, str]] = [
    (5041, "5040"),
    (0, "from 1"),
    ("benchmark-v9", BENCHMARK_VERSION),
    (TASKS[0].instance_id[:-1] + "x", TASKS[0].instance_id),
    ("a\0b", "cannot be read"),
    ("", "no tasks were named"),
    ("  ", "no tasks were named"),
    ("1" * 5000, "1111"),
    ("task_" + "x" * 5000, "xxx"),
]


def test_what_is_no_source_is_refused_in_a_line(tmp_path: Path) -> None:
    wrong: list[tuple[str | int | Path, str]] = [*WRONG_NAMES, (tmp_path, "cannot be read")]
    for name, (text, words) in WRONG_FILES.items():
        wrong.append((write(tmp_path / f"{name}.jsonl", text), words))
    wrong.append((tmp_path / "secnd.jsonl", "'" + str(tmp_path / "second.jsonl")))
    for ref, words in wrong:
        with pytest.raises(InvalidInputError, match=re.escape(words)) as caught:
            read_tasks(ref, LIBRARY)
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidInputError, match="needs another tool library"):
        read_tasks("benchmark-v1", ToolLibrary([Tool("oven_heater", "Heats the oven.")]))


def test_a_sample_is_seeded_and_proportional() -> None:
    sample = sample_tasks(TASKS, 126, seed=4)
    assert sample == sample_tasks(TASKS, 126, seed=4)
    assert sample != sample_tasks(TASKS, 126, seed=5)
    assert len({task.instance_id for task in sample}) == 126
    assert sorted(Counter(task.task_type for task in sample).values()) == sorted(quotas(126))
    places = [task.metadata["index"] for task in sample]
    assert places == sorted(places)


def test_a_sample_of_a_split() -> None:
    sample = sample_tasks(TASKS, 40, split="test")
    assert {split_of(task.required_tools) for task in sample} == {"test"}
    everything = [task for task in TASKS if split_of(task.required_tools) == "validation"]
    assert sample_tasks(TASKS, len(everything), split="validation") == everything
    with pytest.raises(InvalidInputError, match="'validation'"):
        sample_tasks(TASKS, 5, split="valid")
    with pytest.raises(InvalidInputError, match=f"from 1 to {len(everything)}"):
        sample_tasks(TASKS, len(everything) + 1, split="validation")
    with pytest.raises(InvalidInputError, match="from 1"):
        sample_tasks(TASKS, 0)


def test_statistics_of_a_few_tasks() -> None:
    names = [["file_operations_reader"], ["file_operations_reader", "data_processing_parser"]]
    reverse = {"required_tools": ["data_processing_parser", "file_operations_reader"], "complexity": "hard"}
    tasks = [Task.from_mapping({"required_tools": tools}, LIBRARY) for tools in names]
    counts = task_statistics(iter([*tasks, Task.from_mapping(reverse, LIBRARY)]))
    splits = Counter([split_of(names[0]), split_of(names[1]), split_of(names[1])])
    assert counts == {
        "tasks": 3,
        "by_type": {"custom": 3},
        "by_complexity": {"easy": 2, "hard": 1},
        "by_num_tools": {"1": 1, "2": 2},
        "by_split": dict(splits),
        "by_domain": {"unknown": 3},
        "by_tool": {"data_processing_parser": 2, "file_operations_reader": 3},
        "distinct_tool_lists": 3,
        "distinct_tool_sets": 2,
        "tool_sets_by_split": dict(Counter(split_of(tools) for tools in names)),
    }


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
    equal = tasks_of_types([f"type {number}" for number in range(MAX_ROWS + 3)], library)
    assert "and 3 more with at most 1 each" in texts(task_statistics(equal), library_statistics(library))


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"
    path.write_text("before", encoding="utf-8")
    write_task_figure(path, benchmark_counts(), library_statistics(default_library()))
    assert path.read_bytes().startswith(b"<?xml")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(StoreError, match="no such file"):
        write_task_figure(tmp_path / "nowhere" / "a.png", benchmark_counts(), library_statistics(default_library()))


@pytest.mark.long
def test_a_figure_is_the_same_bytes_and_needs_a_known_suffix_and_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, library = benchmark_counts(), library_statistics(default_library())
    for file_format in ("png", "svg", "pdf"):
        assert draw_task_figure(counts, library, file_format) == draw_task_figure(counts, library, file_format)
    for name, words in (("a.gif", ".png, .svg, .pdf"), ("a.sgv", "'.sgv'"), ("a", ".png")):
        with pytest.raises(InvalidInputError, match=re.escape(words)):
            check_figure_path(Path(name))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"'\.\[plots\]'"):
        draw_task_figure(counts, library, "svg")
