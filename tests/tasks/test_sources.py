"""Where tasks come from: references, files, samples; and what statistics say about them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from resilisim.errors import InvalidInputError
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.composition import task_statistics
from resilisim.tasks.model import quotas, split_of
from resilisim.tasks.sources import read_tasks, sample_tasks
from resilisim.tool_library.library import ToolLibrary, default_library
from resilisim.tool_library.model import Tool

LIBRARY = default_library()
TASKS = benchmark_tasks()


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_the_benchmark_by_name_number_and_id() -> None:
    assert read_tasks("benchmark-v1", LIBRARY) == list(TASKS)
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
    path = write(tmp_path / "tasks.jsonl", TASKS[0].to_json(), "", '{"required_tools": ["file_operations_reader"]}')
    tasks = read_tasks(str(path), LIBRARY)
    assert tasks[0] == TASKS[0]
    assert tasks[1] == Task.from_mapping({"required_tools": ["file_operations_reader"]}, LIBRARY)
    assert read_tasks(path, LIBRARY) == tasks


def test_a_text_with_unusual_line_separators_stays_on_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "tasks.jsonl", '{"required_tools": ["file_operations_reader"], "description": "a\u2028b"}')
    assert read_tasks(path, LIBRARY)[0].description == "a\u2028b"


def test_refusals(tmp_path: Path) -> None:
    def refusal(ref: str | int | Path, library: ToolLibrary = LIBRARY) -> str:
        with pytest.raises(InvalidInputError) as caught:
            read_tasks(ref, library)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    one = '{"required_tools": ["file_operations_reader"]}'
    assert "5040" in refusal(5041)
    assert "from 1" in refusal(0)
    assert "benchmark-v1" in refusal("benchmark-v2")
    assert TASKS[0].instance_id in refusal(TASKS[0].instance_id[:-1] + "x")
    assert "line 2: not valid JSON" in refusal(write(tmp_path / "broken.jsonl", one, "{"))
    assert "line 1" in refusal(write(tmp_path / "unknown.jsonl", '{"required_tools": ["file_operations_redaer"]}'))
    assert "line 1 already" in refusal(write(tmp_path / "twice.jsonl", one, one))
    assert "holds no tasks" in refusal(write(tmp_path / "empty.jsonl", ""))
    assert "'" + str(tmp_path / "broken.jsonl") in refusal(tmp_path / "brokn.jsonl")
    assert "cannot be read" in refusal(tmp_path)
    assert "cannot be read" in refusal("a\0b")
    for nothing in ("", "  "):
        assert "no tasks were named" in refusal(nothing)
    for unusual in ("1" * 5000, "task_" + "x" * 5000):
        assert "\n" not in refusal(unusual)
    start = one.removesuffix("}")
    for name, field, problem in (
        ("deep", '"inputs": {"a": ' + "[" * 600 + "]" * 600 + "}", "nested too deeply"),
        ("deeper", '"inputs": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ("number", '"inputs": {"a": ' + "1" * 5000 + "}", "5000 digits"),
        ("surrogate", '"description": "a\\ud800b"', "not Unicode"),
        ("surrogate_id", '"instance_id": "a\\ud800b"', "not Unicode"),
        ("doubled", '"inputs": {"a": 1, "a": 2}', "'a' stands twice"),
        ("infinite", '"inputs": {"a": 1e999}', "not a finite number"),
    ):
        text = refusal(write(tmp_path / f"{name}.jsonl", one, start + ", " + field + "}"))
        assert f"{name}.jsonl, line 2" in text
        assert problem in text
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    assert "UTF-8" in refusal(tmp_path / "binary.jsonl")
    other = ToolLibrary([Tool("oven_heater", "Heats the oven.")])
    assert "needs another tool library" in refusal("benchmark-v1", other)


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
