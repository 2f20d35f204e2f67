"""The benchmark: distribution, form, and that every one of its 5,040 tasks can be solved from its text."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from importlib import resources

import pytest

from benchmarks.shipped_data import benchmark_lines
from resilisim.errors import InvalidInputError
from resilisim.tasks import Task
from resilisim.tasks import benchmark as benchmark_module
from resilisim.tasks.benchmark import (
    BENCHMARK_VERSION,
    BENCHMARKS,
    benchmark_bytes,
    benchmark_file,
    benchmark_identity,
    benchmark_tasks,
    find_task,
    version_of,
)
from resilisim.tasks.composition import task_statistics
from resilisim.tasks.matching import match_steps
from resilisim.tasks.scene import domains
from resilisim.tasks.split import SPLITS, split_of
from resilisim.tasks.task import FIELD_NAMES, TEMPLATES, instance_id_of, sorted_by_dependencies
from resilisim.tasks.wording import GENERAL_ITEMS, clauses, vocabulary_clauses
from resilisim.tool_library.library import default_library
from resilisim.tool_library.parameters import check_parameters
from resilisim.tool_library.retrieval import default_retriever
from resilisim.tool_library.tool import SEMANTIC_TYPES

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


def of_type(name: str) -> list[Task]:
    return [task for task in TASKS if task.task_type == name]


def test_every_tool_is_required_by_many_tasks_and_each_of_the_thirty_in_every_split() -> None:
    counts = task_statistics(TASKS)["by_tool"]
    assert set(counts) == set(LIBRARY.names)
    assert min(counts.values()) >= 100
    for split in SPLITS:
        own = {name for task in TASKS if split_of(task.required_tools) == split for name in task.required_tools}
        assert own == set(LIBRARY.names)


def test_complex_tasks_have_tools_that_were_matched_by_meaning() -> None:
    candidates = {step.operation: found for step, found in match_steps(LIBRARY, default_retriever(LIBRARY)).items()}
    for task in TASKS:
        if task.complexity == "medium":
            for name, operation in zip(task.required_tools, task.metadata["operations"], strict=True):
                assert name in candidates[operation]
            assert task.metadata["semantic_generation"]


def test_basic_tasks_draw_any_tools_alike() -> None:
    tasks = of_type("basic_file_processing")
    counts = Counter(name for task in tasks for name in task.required_tools)
    share = sum(counts.values()) / len(LIBRARY)
    # Beyond five standard deviations one tool in a million draws would be.
    assert all(abs(count - share) < 5.0 * share**0.5 for count in counts.values())
    assert not any(task.metadata["semantic_generation"] for task in tasks)


def test_simple_tasks_are_of_one_tool_of_each_category_with_a_check_or_a_log_or_of_any_two() -> None:
    tasks = of_type("simple_data_transformation")
    alone = Counter(LIBRARY[task.required_tools[0]].category for task in tasks if len(task.required_tools) == 1)
    assert set(alone) == {tool.category for tool in LIBRARY}
    assert min(alone.values()) >= 5
    extras = Counter(
        (operation, name)
        for task in tasks
        for name, operation in zip(task.required_tools, task.metadata["operations"], strict=True)
        if operation in ("validate", "log")
    )
    assert set(extras) == {
        ("validate", "data_processing_validator"),
        ("validate", "network_validator"),
        ("log", "utility_logger"),
    }
    assert min(extras.values()) >= 10
    drawn = [task for task in tasks if len(task.required_tools) == 2 and not task.metadata["semantic_generation"]]
    assert len(drawn) > 120
    assert len({task.required_tools for task in drawn}) > 100


def test_hard_tasks_are_chains_of_paths_of_the_dependency_graph() -> None:
    lengths: Counter[int] = Counter()
    for task in of_type("advanced_computation_pipeline"):
        names = task.required_tools
        depends = {name: [other for other in LIBRARY.dependencies(name) if other in names] for name in names}
        needed = {other for others in depends.values() for other in others}
        # Where a path begins nothing is needed that the library has, and no tool stands by itself.
        assert all(depends[name] or not LIBRARY.dependencies(name) for name in names)
        assert all(depends[name] or name in needed for name in names)
        ends = [
            name for name, operation in zip(names, task.metadata["operations"], strict=True) if operation == "compute"
        ]
        assert len(ends) == 1
        assert LIBRARY[ends[0]].category == "computation"
        depth: dict[str, int] = {}
        for name in names:
            depth[name] = 1 + max((depth[other] for other in depends[name]), default=0)
        lengths[max(depth.values())] += 1
    assert set(lengths) == {3, 4}
    assert lengths[4] > 320


def test_work_orders_that_no_skeleton_orders_go_as_data_flows() -> None:
    for task in (*of_type("basic_file_processing"), *of_type("simple_data_transformation")):
        roles = [LIBRARY[name].semantic_type for name in task.required_tools]
        flow = [role for role in roles if role in ("sources", "outputs", "utilities")]
        assert flow == sorted(flow, key=tuple(SEMANTIC_TYPES).index)


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


@pytest.mark.long
def test_the_recipe_gives_the_shipped_bytes_and_damage_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = benchmark_lines()
    assert hashlib.sha256(data).hexdigest() == BENCHMARKS[BENCHMARK_VERSION]
    assert data == benchmark_bytes()
    packed = resources.files("resilisim.tasks").joinpath(benchmark_file(BENCHMARK_VERSION)).read_bytes()
    assert packed[4:8] == b"\0\0\0\0"  # the archive itself has no date
    monkeypatch.setattr(benchmark_module, "BENCHMARKS", {BENCHMARK_VERSION: "0" * 64})
    with pytest.raises(AssertionError, match="reinstall"):
        benchmark_bytes()


def test_the_version_before_stays_readable_and_no_task_is_in_both() -> None:
    before = benchmark_tasks("benchmark-v1")
    assert len(before) == 5040
    assert before[0] is benchmark_tasks("benchmark-v1")[0]
    assert not {task.instance_id for task in before} & {task.instance_id for task in TASKS}
    for version, task in (("benchmark-v1", before[7]), (BENCHMARK_VERSION, TASKS[7])):
        assert version_of(task.instance_id) == version
        assert find_task(task.instance_id) is task
        assert benchmark_identity([task])["version"] == version
        assert benchmark_identity([task])["sha256"] == BENCHMARKS[version]
    assert version_of("task_of_somebody") is None
    with pytest.raises(InvalidInputError, match="benchmark-v1 and benchmark-v2 in one run"):
        benchmark_identity([before[0], TASKS[0]])
    with pytest.raises(InvalidInputError, match="did you mean 'benchmark-v2'"):
        benchmark_tasks("benchmark-2")


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
        assert isinstance(facts.pop("semantic_generation"), bool)
        assert facts == {
            "template": task.task_type,
            "index": index,
            "generated_at": "2025-01-01T00:00:00+00:00",
            "seed": 0,
            "llm_generated": False,
            "inputs_generated_from": "rules",
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
