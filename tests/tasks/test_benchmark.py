"""benchmark-v1: distribution, form, and that every one of its 5,040 tasks can be solved from its text."""

from __future__ import annotations

import hashlib
import json
import re
from importlib import resources

import pytest

from benchmarks.shipped_data import benchmark_lines
from resilisim.tasks import Task
from resilisim.tasks import benchmark as benchmark_module
from resilisim.tasks.benchmark import BENCHMARK_SHA256, DATA_FILE, benchmark_bytes, benchmark_tasks
from resilisim.tasks.composition import task_statistics
from resilisim.tasks.matching import match_steps
from resilisim.tasks.scene import domains
from resilisim.tasks.task import FIELD_NAMES, SPLITS, TEMPLATES, instance_id_of, sorted_by_dependencies
from resilisim.tasks.wording import GENERAL_ITEMS, clauses, vocabulary_clauses
from resilisim.tool_library.library import default_library
from resilisim.tool_library.parameters import check_parameters
from resilisim.tool_library.retrieval import default_retriever

LIBRARY = default_library()
TASKS = benchmark_tasks()
JSON_TYPES = {"string": str, "number": (int, float), "integer": int, "boolean": bool, "object": dict, "array": list}


def test_the_distribution_is_exact() -> None:
    counts = task_statistics(TASKS)
    assert counts["by_type"] == {template.task_type: template.share for template in TEMPLATES}
    assert counts["distinct_tool_lists"] >= 300
    assert len(counts["by_domain"]) == len(domains()) >= 24
    for template in TEMPLATES:
        of_type = [task for task in TASKS if task.task_type == template.task_type]
        assert {len(task.required_tools) for task in of_type} == set(template.num_tools)
        assert {task.complexity for task in of_type} == {template.complexity}
    for split, share in zip(SPLITS, (0.70, 0.15, 0.15), strict=True):
        assert abs(counts["by_split"][split] / 5040 - share) < 0.03
        assert abs(counts["tool_sets_by_split"][split] / counts["distinct_tool_sets"] - share) < 0.03


def test_tasks_differ_in_more_than_their_number() -> None:
    """With ticket, dates, times and numbers taken out, next to all descriptions still differ; with times in, all do."""
    plain = {re.sub(r"[A-Z]+-\d{7}", "", task.description) for task in TASKS}
    assert len(plain) == len(TASKS)
    bare = {re.sub(r"[A-Z]+-\d{7}|\d+", "", task.description) for task in TASKS}
    assert len(bare) == len(TASKS)


def test_every_tool_was_a_candidate_of_its_operation() -> None:
    candidates = {step.operation: found for step, found in match_steps(LIBRARY, default_retriever(LIBRARY)).items()}
    for task in TASKS:
        prerequisites = 0
        for name, operation in zip(task.required_tools, task.metadata["operations"], strict=True):
            if operation == "prerequisite":
                prerequisites += 1
                others = [other for other in task.required_tools if other != name]
                assert name in LIBRARY.closure(others)
            else:
                assert name in candidates[operation]
        assert prerequisites == (len(task.required_tools) == 7)


def test_every_required_tool_has_a_clause_from_the_checked_pool_in_the_required_order() -> None:
    """`test_wording` shows that every clause of the pool has its tool among retrieval's first five, with a margin."""
    items_of_domain = {domain.key: [artefact.items for artefact in domain.artefacts] for domain in domains()}
    pool: dict[tuple[str, str], set[str]] = {}
    for key, items in items_of_domain.items():
        for name in LIBRARY.names:
            found = [clause for each in (*items, GENERAL_ITEMS) for clause in vocabulary_clauses(name, each)]
            pool[key, name] = set(found)
    for task in TASKS:
        waiting = list(task.required_tools)
        for clause in clauses(task.description):
            canonical = clause[:1].upper() + clause[1:]
            if waiting and canonical in pool[task.metadata["domain"], waiting[0]]:
                waiting.pop(0)
        assert not waiting, task.description


def test_the_recipe_gives_the_shipped_bytes_and_damage_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = benchmark_lines()
    assert hashlib.sha256(data).hexdigest() == BENCHMARK_SHA256
    assert data == benchmark_bytes()
    packed = resources.files("resilisim.tasks").joinpath(DATA_FILE).read_bytes()
    assert packed[4:8] == b"\0\0\0\0"  # the archive itself has no date
    monkeypatch.setattr(benchmark_module, "BENCHMARK_SHA256", "0" * 64)
    with pytest.raises(AssertionError, match="reinstall"):
        benchmark_bytes()


def test_every_task_is_whole_and_follows_from_its_content() -> None:
    lines = benchmark_bytes().decode("utf-8").splitlines()
    assert len(lines) == len(TASKS) == len({task.instance_id for task in TASKS})
    for index, (line, task) in enumerate(zip(lines, TASKS, strict=True)):
        assert line == task.to_json()
        assert set(json.loads(line)) == set(FIELD_NAMES)
        assert Task.from_mapping(task.to_mapping(), LIBRARY) == task
        assert task.instance_id == instance_id_of(
            task.task_type, task.required_tools, task.inputs, task.expected_outputs, task.original_description
        )
        assert len(set(task.required_tools)) == len(task.required_tools)
        assert sorted_by_dependencies(task.required_tools, LIBRARY) == task.required_tools
        assert task.constraints == {"timeout": 300, "max_retries": 3}
        assert task.original_description == task.description
        facts = dict(task.metadata)
        assert len(facts.pop("operations")) == len(task.required_tools)
        assert facts.pop("domain") in {domain.key for domain in domains()}
        assert facts.pop("layout")
        assert facts == {
            "template": task.task_type,
            "index": index,
            "generated_at": "2025-01-01T00:00:00+00:00",
            "seed": 0,
            "llm_generated": False,
            "inputs_generated_from": "rules",
            "semantic_generation": True,
        }


def test_inputs_fit_the_first_tool_outputs_the_last_and_both_are_told() -> None:
    for task in TASKS:
        assert check_parameters(LIBRARY[task.required_tools[0]], task.inputs, "strict") == []
        types = {value.name: value.type for value in LIBRARY[task.required_tools[-1]].returns}
        assert task.expected_outputs["success"] is True
        for name, value in task.expected_outputs.items():
            assert isinstance(value, JSON_TYPES[types[name]])
            assert isinstance(value, bool) == (types[name] == "boolean")
        told = [task.inputs.get(name, "") for name in ("source", "destination", "expression", "objective")]
        assert all(str(value) in task.description for value in told)
        assert task.expected_outputs.get("location", "") in task.description
