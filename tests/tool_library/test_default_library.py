"""The default library against SPEC section 1; all that it says of parameters, results and errors is in its bytes."""

from collections import Counter
from importlib import resources

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


def test_the_packaged_bytes_are_canonical_and_those_of_the_first_release():
    packaged = resources.files("resilisim.tool_library").joinpath("data/default.json").read_bytes()
    assert LIBRARY.to_json().encode("utf-8") == packaged
    assert LIBRARY.content_hash == "4fd573157f97c99ba046004b8e52eff2dd1bf1c221ca3321ad26a484e8a18699"


def test_thirty_tools_in_the_order_of_the_matrix_with_their_dependencies():
    assert list(LIBRARY.names) == [f"{tool.category}_{tool.operation}" for tool in LIBRARY] == NAMES
    assert {name: LIBRARY.dependencies(name) for name in NAMES if LIBRARY.dependencies(name)} == DEPENDENCIES
    order = sorted(LIBRARY, key=lambda tool: tool.dependency_metadata.execution_order)
    assert order[0].name == "file_operations_reader"
    assert Counter(tool.dependency_metadata.level for tool in LIBRARY) == {0: 13, 1: 8, 2: 6, 3: 3}


def test_semantic_types_follow_from_operations():
    assert {role: set(operations) for role, operations in SEMANTIC_TYPES.items()} == {
        "sources": {"reader", "fetcher", "scanner", "authenticator"},
        "processors": {"parser", "transformer", "validator", "analyzer", "calculator"},
        "aggregators": {"aggregator", "combiner", "merger"},
        "outputs": {"writer", "poster", "exporter", "notifier"},
        "utilities": {"logger", "cache", "tracker", "monitor"},
    }
    for tool in LIBRARY:
        assert tool.semantic_type == next((role for role, of in SEMANTIC_TYPES.items() if tool.operation in of), None)
    assert LIBRARY.outputs == {"file_operations_writer", "network_poster", "utility_notifier"}


def test_every_message_template_can_be_filled_from_its_slots():
    for tool in LIBRARY:
        assert tool.error(DEPENDENCY_ERROR) is not None
        for error in tool.errors:
            assert error.description
            for pick in (0, -1):
                message = error.message({slot: options[pick] for slot, options in error.slots.items()})
                assert message
                assert not {"{", "}"} & set(message)
            assert all(options and "{" + slot + "}" in error.template for slot, options in error.slots.items())
    assert "26 seconds" in LIBRARY["utility_helper"].error("TIMEOUT").message({"seconds": "26"})


def test_aliases():
    for alias, name in {
        "data_processing_combiner": "data_processing_aggregator",
        "Data_Processing_Merger": "data_processing_aggregator",
        "file_operations_exporter": "file_operations_writer",
        "UTILITY_HELPER": "utility_helper",
        "utility_oracle": None,
    }.items():
        assert LIBRARY.resolve(alias) == name
