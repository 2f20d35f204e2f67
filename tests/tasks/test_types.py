"""Tasks from mappings: what is filled in, what is refused, and in which order tools belong."""

from __future__ import annotations

import itertools
import json
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.tasks import COMPLEXITIES, MINIMUM_FOR_PARTIAL, TASK_TYPES, Task, minimum_for_partial
from resilisim.tasks.model import FIELD_NAMES, instance_id_of, sorted_by_dependencies
from resilisim.tool_library.library import default_library

LIBRARY = default_library()
READ_PARSE = ["file_operations_reader", "data_processing_parser"]


def refusal(mapping: object) -> str:
    with pytest.raises(InvalidInputError) as caught:
        Task.from_mapping(mapping, LIBRARY, "tasks.jsonl, line 3")
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(("tasks.jsonl, line 3", "unknown"))
    return text


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


@pytest.mark.parametrize(
    ("num_tools", "complexity"), [(1, "easy"), (3, "easy"), (4, "medium"), (5, "medium"), (6, "hard")]
)
def test_complexity_follows_from_the_number_of_tools(num_tools: int, complexity: str) -> None:
    names = ["file_operations_reader", *[name for name in LIBRARY.names if not LIBRARY.dependencies(name)][1:]]
    assert (
        Task.from_mapping({"required_tools": list(dict.fromkeys(names))[:num_tools]}, LIBRARY).complexity == complexity
    )


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


def test_a_mapping_of_a_task_is_a_copy() -> None:
    given_task = {"required_tools": READ_PARSE, "inputs": {"options": {"a": 1}}}
    task = Task.from_mapping(given_task, LIBRARY)
    given_task["inputs"]["options"]["a"] = 2
    task.to_mapping()["inputs"]["options"]["a"] = 3
    assert task.inputs == {"options": {"a": 1}}


def test_aliases_and_letter_case_become_names() -> None:
    task = Task.from_mapping({"required_tools": ["FILE_OPERATIONS_READER", "data_processing_merger"]}, LIBRARY)
    assert task.required_tools == ("file_operations_reader", "data_processing_aggregator")


def test_refusals_say_where_and_what_is_nearest() -> None:
    assert "'file_operations_reader'" in refusal({"required_tools": ["file_operation_reader"]})
    assert "'required_tools'" in refusal({"required_tool": READ_PARSE})
    assert "twice" in refusal({"required_tools": [*READ_PARSE, "file_operations_reader"]})
    assert "twice" in refusal({"required_tools": ["data_processing_aggregator", "data_processing_combiner"]})
    for nothing in ({"required_tools": []}, {}, {"required_tools": "file_operations_reader"}):
        assert "expected a non-empty array of strings" in refusal(nothing)
    assert "'hard'" in refusal({"required_tools": READ_PARSE, "complexity": "hardd"})
    assert "'inputs'" in refusal({"required_tools": READ_PARSE, "inputs": ["a"]})
    assert "'inputs'" in refusal({"required_tools": READ_PARSE, "inputs": {"a": float("nan")}})
    assert "'description'" in refusal({"required_tools": READ_PARSE, "description": 7})
    assert "expected an object" in refusal(["file_operations_reader"])
    assert "item 1: got 7; expected a string" in refusal({"required_tools": [7]})


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


def test_what_no_file_or_prompt_can_hold_is_refused() -> None:
    def field_refusal(**given_fields: object) -> str:
        return refusal({"required_tools": READ_PARSE, **given_fields})

    for levels in (65, 600, 2000, 100_000):
        text = field_refusal(inputs={"a": nested(levels - 1)})
        assert "field 'inputs': nested too deeply; expected at most 64 levels" in text
    assert "nested too deeply" in field_refusal(description=nested(2000))
    assert "nested too deeply" in field_refusal(required_tools=[nested(2000)])
    assert "expected an object with instance_id" in refusal([nested(60)])
    for name in ("instance_id", "task_type", "description", "original_description"):
        text = field_refusal(**{name: "a\ud800b"})
        assert f"field '{name}'" in text
        assert "not Unicode" in text
        text.encode("utf-8")
    assert "not Unicode" in field_refusal(metadata={"\udc00": 1})
    assert "not Unicode" in field_refusal(inputs={"a": [{"b": "\udfff"}]})
    assert "field 'inputs'" in field_refusal(inputs={"a": 10**5000})
    assert "at most 300 digits" in field_refusal(inputs={"a": -(10**300)})
    assert "got 100,001 characters; expected a string of at most 100,000 characters" in field_refusal(
        description="x" * 100_001
    )
    assert "field 'original_description'" in field_refusal(original_description="x" * 100_001)
    assert "field 'inputs': 100,006 characters of JSON; expected at most 100,000" in field_refusal(
        inputs={"a": "x" * 99_998}
    )
    assert "got 201 characters; expected a string of at most 200 characters" in field_refusal(task_type="x" * 201)
    assert "field 'instance_id'" in field_refusal(instance_id="x" * 201)
    assert len(field_refusal(required_tools=["x" * 100_000])) < 300
    assert len(field_refusal(**{"x" * 100_000: 1})) < 300


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
