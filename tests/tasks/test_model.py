"""Tasks from mappings, the five types and their shares, and the part of the data that a task belongs to."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.tasks import Task
from resilisim.tasks.generation import type_sequence
from resilisim.tasks.split import SPLITS, split_of
from resilisim.tasks.task import (
    COMPLEXITIES,
    FIELD_NAMES,
    MINIMUM_FOR_PARTIAL,
    TASK_TYPES,
    TEMPLATES,
    instance_id_of,
    minimum_for_partial,
    quotas,
    sorted_by_dependencies,
)
from resilisim.tool_library.library import default_library

LIBRARY = default_library()
READ_PARSE = ["file_operations_reader", "data_processing_parser"]


def test_only_the_tools_are_needed_and_everything_else_is_filled_in() -> None:
    task = Task.from_mapping({"required_tools": READ_PARSE}, LIBRARY)
    assert task.required_tools == ("file_operations_reader", "data_processing_parser")
    assert task.task_type == "custom"
    assert task.complexity == "easy"
    assert task.inputs == {}
    assert task.expected_outputs == {"success": True}
    assert task.constraints == {"timeout": 300, "max_retries": 3}
    assert task.metadata == {}
    assert task.description == task.original_description
    assert all(name in task.description for name in READ_PARSE)
    assert task.instance_id == instance_id_of("custom", READ_PARSE, {}, {"success": True}, task.description)
    alone = [name for name in LIBRARY.names if not LIBRARY.dependencies(name)]
    sized = [Task.from_mapping({"required_tools": alone[:number]}, LIBRARY).complexity for number in range(1, 7)]
    assert sized == ["easy"] * 3 + ["medium"] * 2 + ["hard"]
    aliases = Task.from_mapping({"required_tools": ["FILE_OPERATIONS_READER", "data_processing_merger"]}, LIBRARY)
    assert aliases.required_tools == ("file_operations_reader", "data_processing_aggregator")


def test_to_mapping_and_back_is_the_same_task_and_the_same_json() -> None:
    given_task = {
        "instance_id": "mine",
        "task_type": "complex_validation_pipeline",
        "description": "Ä work order",
        "inputs": {"source": "a.csv", "nested": {"b": [1, 2]}},
        "expected_outputs": {"success": True},
        "required_tools": READ_PARSE,
        "constraints": {"timeout": 5},
        "complexity": "hard",
        "metadata": {"who": "me"},
        "original_description": "longer",
    }
    task = Task.from_mapping(given_task, LIBRARY)
    assert task.to_mapping() == given_task
    assert tuple(task.to_mapping()) == FIELD_NAMES
    again = Task.from_mapping(json.loads(task.to_json()), LIBRARY)
    assert again == task
    assert hash(again) == hash(task)
    assert again.to_json() == task.to_json()
    given_task["inputs"]["nested"]["b"].append(3)
    task.to_mapping()["inputs"]["nested"]["b"].append(4)
    assert again == task  # a mapping is a copy


def test_an_order_against_the_dependencies_is_accepted_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="'data_processing_transformer' is required before 'data_processing_parser'"):
        task = Task.from_mapping({"required_tools": ["data_processing_transformer", "data_processing_parser"]}, LIBRARY)
    assert task.required_tools == ("data_processing_transformer", "data_processing_parser")
    with pytest.warns(UserWarning, match="computation_predictor"):  # the dependency leads through the analyzer
        Task.from_mapping({"required_tools": ["computation_predictor", "data_processing_parser"]}, LIBRARY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Task.from_mapping({"required_tools": ["data_processing_parser", "data_processing_transformer"]}, LIBRARY)


def test_the_id_depends_on_content_and_not_on_a_later_description() -> None:
    task = Task.from_mapping({"required_tools": READ_PARSE, "original_description": "a", "description": "b"}, LIBRARY)
    rewritten = Task.from_mapping(
        {"required_tools": READ_PARSE, "original_description": "a", "description": "c"}, LIBRARY
    )
    assert task.instance_id == rewritten.instance_id
    others = [
        {"required_tools": READ_PARSE[:1], "original_description": "a"},
        {"required_tools": READ_PARSE, "original_description": "other"},
        {"required_tools": READ_PARSE, "original_description": "a", "inputs": {"x": 1}},
        {"required_tools": READ_PARSE, "original_description": "a", "expected_outputs": {}},
        {"required_tools": READ_PARSE, "original_description": "a", "task_type": "t"},
    ]
    ids = {Task.from_mapping(mapping, LIBRARY).instance_id for mapping in others}
    assert len(ids | {task.instance_id}) == 6


def test_minimum_for_partial_success() -> None:
    assert [MINIMUM_FOR_PARTIAL[task_type] for task_type in TASK_TYPES] == [1, 1, 3, 3, 4]
    assert [minimum_for_partial("custom", number) for number in range(1, 8)] == [1, 1, 2, 2, 3, 3, 4]
    assert minimum_for_partial("advanced_computation_pipeline", 7) == 4
    assert COMPLEXITIES == ("easy", "medium", "hard")


@given(st.lists(st.sampled_from(LIBRARY.names), min_size=1, max_size=5, unique=True))
def test_sorting_by_dependencies_is_the_first_of_all_allowed_orders(names: list[str]) -> None:
    def allowed(order: tuple[str, ...]) -> bool:
        pairs = itertools.combinations(order, 2)
        return not any(later in LIBRARY.closure((earlier,)) for earlier, later in pairs)

    place = {name: index for index, name in enumerate(names)}
    orders = [order for order in itertools.permutations(names) if allowed(order)]
    assert sorted_by_dependencies(names, LIBRARY) == min(orders, key=lambda order: [place[name] for name in order])


def nested(levels: int) -> object:
    value: object = []
    for _ in range(levels - 1):
        value = {"a": value}
    return value


DEEP = "nested too deeply; expected at most 64 levels"
NO_TOOLS = "expected a non-empty array of strings"
# Fields of a task, or what is no mapping at all, and words of the refusal.
REFUSED = [
    ({"required_tools": ["file_operation_reader"]}, "'file_operations_reader'"),
    ({"required_tools": None, "required_tool": READ_PARSE}, "'required_tools'"),
    ({"required_tools": [*READ_PARSE, "file_operations_reader"]}, "twice"),
    ({"required_tools": ["data_processing_aggregator", "data_processing_combiner"]}, "twice"),
    ({"required_tools": []}, NO_TOOLS),
    ({"required_tools": None}, NO_TOOLS),
    ({"required_tools": "file_operations_reader"}, NO_TOOLS),
    ({"required_tools": [7]}, "item 1: got 7; expected a string"),
    ({"required_tools": [nested(2000)]}, DEEP),
    ({"required_tools": ["x" * 100_000]}, "unknown tool"),
    (["file_operations_reader"], "expected an object"),
    ([nested(60)], "expected an object with instance_id"),
    ({"complexity": "hardd"}, "'hard'"),
    ({"inputs": ["a"]}, "'inputs'"),
    ({"description": 7}, "'description'"),
    ({"x" * 100_000: 1}, "unknown field"),
    # What no file or prompt can hold.
    *(({"inputs": {"a": nested(levels - 1)}}, f"field 'inputs': {DEEP}") for levels in (65, 2000, 100_000)),
    ({"description": nested(2000)}, DEEP),
    *(({name: "a\ud800b"}, "not Unicode") for name in ("instance_id", "task_type", "description")),
    ({"metadata": {"\udc00": 1}}, "not Unicode"),
    ({"inputs": {"a": [{"b": "\udfff"}]}}, "not Unicode"),
    ({"inputs": {"a": float("nan")}}, "'inputs'"),
    ({"inputs": {"a": -(10**300)}}, "at most 300 digits"),
    ({"inputs": {"a": "x" * 99_998}}, "field 'inputs': 100,006 characters of JSON; expected at most 100,000"),
    ({"original_description": "x" * 100_001}, "got 100,001 characters; expected a string of at most 100,000"),
    ({"task_type": "x" * 201}, "got 201 characters; expected a string of at most 200 characters"),
]


@pytest.mark.parametrize(("given_task", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_task_is_refused_in_a_short_line(given_task: object, words: str) -> None:
    mapping = given_task
    if isinstance(given_task, dict):
        fields = {"required_tools": READ_PARSE} | given_task
        mapping = {name: value for name, value in fields.items() if (name, value) != ("required_tools", None)}
    with pytest.raises(InvalidInputError) as caught:
        Task.from_mapping(mapping, LIBRARY, "tasks.jsonl, line 3")
    text = str(caught.value)
    assert words in text
    assert text.startswith(("tasks.jsonl, line 3", "unknown"))
    assert "\n" not in text
    assert len(text.encode()) < 300


def test_what_is_just_within_the_limits_is_accepted() -> None:
    given_task = {
        "required_tools": READ_PARSE,
        "instance_id": "i" * 200,
        "description": "x" * 100_000,
        "inputs": {"a": nested(63), "number": 10**299},
        "metadata": {"a": "x" * 99_992},
    }
    task = Task.from_mapping(given_task, LIBRARY)
    assert Task.from_mapping(json.loads(task.to_json()), LIBRARY) == task


def test_the_five_templates() -> None:
    rows = [
        (
            template.task_type,
            template.share,
            template.complexity,
            " ".join(step.operation for step in template.steps),
            min(template.num_tools),
            max(template.num_tools),
            template.minimum_for_partial,
        )
        for template in TEMPLATES
    ]
    assert rows == [
        ("basic_file_processing", 1200, "easy", "input process", 2, 3, 1),
        ("simple_data_transformation", 320, "easy", "read process output", 1, 2, 1),
        ("complex_validation_pipeline", 1520, "medium", "read validate transform aggregate write", 4, 5, 3),
        ("complex_network_integration", 1360, "medium", "fetch parse validate transform post", 3, 5, 3),
        ("advanced_computation_pipeline", 640, "hard", "read validate transform compute aggregate write", 5, 7, 4),
    ]


@given(st.integers(0, 10_000), st.lists(st.integers(1, 500), min_size=1, max_size=8))
def test_quotas_are_largest_remainders(count: int, weights: list[int]) -> None:
    total = sum(weights)
    result = quotas(count, weights)
    assert sum(result) == count
    exact = [count * weight / total for weight in weights]
    assert all(
        math.floor(share + 1e-9) <= got <= math.ceil(share - 1e-9) for got, share in zip(result, exact, strict=True)
    )
    raised = [share % 1 for got, share in zip(result, exact, strict=True) if got > share]
    lowered = [share % 1 for got, share in zip(result, exact, strict=True) if got < share]
    assert not raised or not lowered or min(raised) >= max(lowered) - 1e-9


@pytest.mark.parametrize("count", [1, 2, 10, 63, 100, 5040])
def test_the_sequence_meets_the_quotas_and_every_beginning_is_balanced(count: int) -> None:
    sequence = [template.task_type for template in type_sequence(count)]
    wanted = dict(zip((template.task_type for template in TEMPLATES), quotas(count), strict=True))
    assert Counter(sequence) == Counter(wanted)
    seen: Counter[str] = Counter()
    for place, task_type in enumerate(sequence, start=1):
        seen[task_type] += 1
        for name, number in wanted.items():
            assert abs(seen[name] - number * place / count) < 1.5


NAMES = default_library().names


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_order_and_repetition_do_not_matter(names: list[str], random: object) -> None:
    shuffled = [*names, names[0]]
    random.shuffle(shuffled)
    assert split_of(shuffled) == split_of(names) == split_of(frozenset(names)) == split_of(iter(names))


def test_known_values_stay_as_they_are() -> None:
    """A change here would move tasks between train and test: it needs a new version of the benchmark."""
    assert split_of(["file_operations_reader"]) == "train"
    assert split_of(["file_operations_reader", "data_processing_parser"]) == "train"
    assert split_of(["network_fetcher", "data_processing_parser", "network_poster"]) == "train"
    assert split_of(["data_processing_filter", "file_operations_scanner"]) == "test"


def test_sets_of_three_tools_are_divided_70_15_15() -> None:
    """4,060 sets: the standard error of a share is at most 0.0072; four of them are allowed."""
    counts = Counter(split_of(names) for names in itertools.combinations(NAMES, 3))
    total = sum(counts.values())
    for split, share in zip(SPLITS, (0.70, 0.15, 0.15), strict=True):
        assert abs(counts[split] / total - share) < 0.029
