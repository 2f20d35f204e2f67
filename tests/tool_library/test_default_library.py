"""The default library against SPEC section 1, exactly."""

from __future__ import annotations

from collections import Counter
from importlib import resources

import pytest

from resilisim.tool_library import DEPENDENCY_ERROR, default_library
from resilisim.tool_library.model import SEMANTIC_TYPES

LIBRARY = default_library()

MATRIX = {
    "data_processing": "parser transformer validator aggregator filter",
    "file_operations": "reader writer scanner compressor converter",
    "network": "fetcher poster monitor validator router",
    "computation": "calculator analyzer optimizer simulator predictor",
    "integration": "connector authenticator mapper queue scheduler",
    "utility": "logger cache notifier tracker helper",
}
NAMES = [f"{category}_{operation}" for category, operations in MATRIX.items() for operation in operations.split()]

DEPENDENCIES = {
    "data_processing_transformer": ("data_processing_parser",),
    "data_processing_validator": ("data_processing_parser",),
    "data_processing_aggregator": ("data_processing_parser",),
    "computation_analyzer": ("data_processing_parser", "data_processing_aggregator"),
    "computation_calculator": ("data_processing_parser", "network_validator"),
    "file_operations_writer": ("data_processing_aggregator",),
    "network_poster": ("data_processing_aggregator",),
    "utility_notifier": ("data_processing_aggregator",),
    "network_validator": ("network_fetcher",),
    "file_operations_compressor": ("file_operations_reader",),
    "file_operations_converter": ("file_operations_reader",),
    "computation_optimizer": ("computation_analyzer",),
    "computation_predictor": ("computation_analyzer",),
    "computation_simulator": ("computation_calculator",),
    "integration_mapper": ("integration_connector",),
    "integration_queue": ("integration_connector",),
    "integration_scheduler": ("integration_queue",),
}

LEVELS = {
    1: "data_processing_transformer data_processing_validator data_processing_aggregator network_validator "
    "file_operations_compressor file_operations_converter integration_mapper integration_queue",
    2: "computation_analyzer computation_calculator file_operations_writer network_poster utility_notifier "
    "integration_scheduler",
    3: "computation_optimizer computation_predictor computation_simulator",
}

# Table 10 and its placement: type, and the holders by operation, or category.operation where one occurs twice.
COMMON_PARAMETERS = {
    "source": ("string", "reader scanner parser fetcher connector"),
    "data": ("object", "data_processing.validator network.validator transformer aggregator filter"),
    "timeout": ("number", "fetcher poster monitor network.validator router"),
    "retry_count": ("number", "fetcher poster monitor network.validator router"),
    "destination": ("string", "writer poster notifier router"),
    "input_format": ("string", "transformer converter mapper compressor"),
    "output_format": ("string", "transformer converter mapper compressor"),
    "schema": ("object", "data_processing.validator network.validator parser mapper"),
    "precision": ("number", "calculator optimizer simulator predictor"),
}


def test_the_thirty_names_stand_in_the_order_of_the_matrix() -> None:
    assert list(LIBRARY.names) == NAMES
    assert [f"{tool.category}_{tool.operation}" for tool in LIBRARY] == NAMES
    assert Counter(tool.category for tool in LIBRARY) == dict.fromkeys(MATRIX, 5)


def test_the_packaged_bytes_are_canonical_and_those_of_the_first_release() -> None:
    packaged = resources.files("resilisim.tool_library").joinpath("data/default.json").read_bytes()
    assert LIBRARY.to_json().encode("utf-8") == packaged
    assert LIBRARY.content_hash == "4fd573157f97c99ba046004b8e52eff2dd1bf1c221ca3321ad26a484e8a18699"


def test_dependencies_and_levels() -> None:
    assert {name: LIBRARY.dependencies(name) for name in NAMES if LIBRARY.dependencies(name)} == DEPENDENCIES
    for level, names in LEVELS.items():
        assert {tool.name for tool in LIBRARY if tool.dependency_metadata.level == level} == set(names.split())
    assert max(tool.dependency_metadata.level for tool in LIBRARY) == 3


def test_execution_order_respects_dependencies_and_starts_with_the_reader() -> None:
    order = {tool.name: tool.dependency_metadata.execution_order for tool in LIBRARY}
    assert sorted(order.values()) == list(range(30))
    assert order["file_operations_reader"] == 0
    for tool in LIBRARY:
        assert all(order[dependency] < order[tool.name] for dependency in tool.dependencies)
        assert tool.metadata["dependency_level"] == tool.dependency_metadata.level
        assert tool.metadata["execution_order"] == order[tool.name]
        assert tool.dependency_metadata.category == tool.category


@pytest.mark.parametrize("name", COMMON_PARAMETERS)
def test_common_parameters_have_the_type_and_stand_where_table_10_says(name: str) -> None:
    kind, holders = COMMON_PARAMETERS[name]
    expected = {
        next(tool.name for tool in LIBRARY if holder in (tool.operation, f"{tool.category}.{tool.operation}"))
        for holder in holders.split()
    }
    found = {tool.name: parameter for tool in LIBRARY for parameter in tool.parameters if parameter.name == name}
    assert found.keys() == expected
    for parameter in found.values():
        assert parameter.type == kind
        assert parameter.required == (name not in ("timeout", "retry_count", "precision"))


def test_semantic_types() -> None:
    assert {role: set(operations) for role, operations in SEMANTIC_TYPES.items()} == {
        "sources": {"reader", "fetcher", "scanner", "authenticator"},
        "processors": {"parser", "transformer", "validator", "analyzer", "calculator"},
        "aggregators": {"aggregator", "combiner", "merger"},
        "outputs": {"writer", "poster", "exporter", "notifier"},
        "utilities": {"logger", "cache", "tracker", "monitor"},
    }
    assert Counter(tool.semantic_type for tool in LIBRARY) == {
        "sources": 4,
        "processors": 6,
        "aggregators": 1,
        "outputs": 3,
        "utilities": 4,
        None: 12,
    }
    assert LIBRARY.outputs == {"file_operations_writer", "network_poster", "utility_notifier"}


def test_every_message_template_can_be_filled_from_its_slots() -> None:
    for tool in LIBRARY:
        for error in tool.errors:
            assert error.description
            for pick in (0, -1):
                message = error.message({slot: options[pick] for slot, options in error.slots.items()})
                assert message
                assert "{" not in message
                assert "}" not in message
            assert all(options and "{" + slot + "}" in error.template for slot, options in error.slots.items())
    timeout = LIBRARY["utility_helper"].error("TIMEOUT")
    assert timeout is not None
    assert "26 seconds" in timeout.message({"seconds": "26"})


def test_aliases() -> None:
    assert LIBRARY.resolve("data_processing_combiner") == "data_processing_aggregator"
    assert LIBRARY.resolve("Data_Processing_Merger") == "data_processing_aggregator"
    assert LIBRARY.resolve("file_operations_exporter") == "file_operations_writer"
    assert LIBRARY.resolve("UTILITY_HELPER") == "utility_helper"
    assert LIBRARY.resolve("utility_oracle") is None


def test_tools_have_the_parameters_returns_errors_and_texts_of_the_definition() -> None:
    common = {"INVALID_INPUT", "OPERATION_FAILED", "TIMEOUT"}
    own = {
        "file_operations": {"FILE_NOT_FOUND", "PERMISSION_DENIED"},
        "network": {"NETWORK_ERROR", "RATE_LIMIT_ERROR"},
        "computation": {"CALCULATION_ERROR", "OVERFLOW"},
        "integration": {"AUTHENTICATION_FAILED"},
    }
    table_11 = (
        "name description parameters returns errors dependencies dependency_metadata metadata canonical_name aliases "
        "differentiation original_description differentiation_enhanced"
    )
    for tool in LIBRARY:
        assert set(tool.to_mapping()) == set(table_11.split())
        options = [parameter for parameter in tool.parameters if parameter.name == "options"]
        assert len(options) == (tool.category != "utility")
        assert all(parameter.type == "object" and not parameter.required for parameter in options)
        types = {value.name: value.type for value in tool.returns}
        assert (types["success"], types["metadata"]) == ("boolean", "object")
        if tool.operation in ("reader", "fetcher", "scanner") or tool.semantic_type in ("processors", "aggregators"):
            assert types["data"] == "object"
        assert {error.code for error in tool.failure_errors} == common | own.get(tool.category, set())
        assert tool.error(DEPENDENCY_ERROR) is not None
        assert tool.description.startswith(tool.original_description)
        assert len(tool.differentiation.usage_keywords) >= 3
        assert (tool.differentiation_enhanced, tool.success_probability) == (False, None)
        assert all(entry.description for entry in (*tool.parameters, *tool.returns))
    assert len({tool.description for tool in LIBRARY}) == 30
