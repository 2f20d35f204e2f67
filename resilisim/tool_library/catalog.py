"""The default library by rules: category-operation matrix, dependencies, parameters, returns (seed 004, C.1.1).

`build_default_library()` makes the library that ships as `data/default.json`; `python -m
resilisim.tool_library.catalog` writes that file anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from resilisim.tool_library.library import ToolLibrary
from resilisim.tool_library.parsing import CREATED_AT, DEFAULT_VERSION
from resilisim.tool_library.semantics import SEMANTIC_TYPES, semantic_type_of
from resilisim.tool_library.standard_errors import standard_errors
from resilisim.tool_library.types import Differentiation, Parameter, ReturnValue, Tool
from resilisim.tool_library.wording import WORDINGS

__all__ = ["ALIASES", "DEPENDENCY_RULES", "MATRIX", "SEMANTIC_TYPES", "build_default_library", "semantic_type_of"]

MATRIX: Mapping[str, tuple[str, ...]] = {
    "data_processing": ("parser", "transformer", "validator", "aggregator", "filter"),
    "file_operations": ("reader", "writer", "scanner", "compressor", "converter"),
    "network": ("fetcher", "poster", "monitor", "validator", "router"),
    "computation": ("calculator", "analyzer", "optimizer", "simulator", "predictor"),
    "integration": ("connector", "authenticator", "mapper", "queue", "scheduler"),
    "utility": ("logger", "cache", "notifier", "tracker", "helper"),
}

# SPEC section 1, table of dependencies; a tool that is not named here has none.
DEPENDENCY_RULES: Mapping[str, tuple[str, ...]] = {
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

ALIASES: Mapping[str, tuple[str, ...]] = {
    "data_processing_aggregator": ("data_processing_combiner", "data_processing_merger"),
    "file_operations_writer": ("file_operations_exporter",),
}

_NOT_EMPTY = {"minLength": 1}
_FORMATS = {"minLength": 1, "examples": ["csv", "json", "xml", "parquet", "text"]}

# The common parameters (seed 004, Table 10), in the order in which a tool lists them, each with the operations or
# categories that have it. `options` comes last and belongs to every category but utility.
_COMMON_PARAMETERS: tuple[tuple[Parameter, frozenset[str]], ...] = (
    (
        Parameter("source", "string", "Location or identifier that the input comes from.", constraints=_NOT_EMPTY),
        frozenset({"reader", "scanner", "parser", "fetcher", "connector"}),
    ),
    (
        Parameter("data", "object", "Records or values to work on."),
        frozenset({"validator", "transformer", "aggregator", "filter"}),
    ),
    (
        Parameter("destination", "string", "Location or identifier that the output goes to.", constraints=_NOT_EMPTY),
        frozenset({"writer", "poster", "notifier", "router"}),
    ),
    (
        Parameter("input_format", "string", "Format of the input.", constraints=_FORMATS),
        frozenset({"transformer", "converter", "mapper", "compressor"}),
    ),
    (
        Parameter("output_format", "string", "Format that the output should have.", constraints=_FORMATS),
        frozenset({"transformer", "converter", "mapper", "compressor"}),
    ),
    (
        Parameter("schema", "object", "Fields with their types and rules."),
        frozenset({"validator", "parser", "mapper"}),
    ),
    (
        Parameter(
            "precision",
            "number",
            "Decimal places of the result.",
            required=False,
            default=6,
            constraints={"minimum": 0, "maximum": 15},
        ),
        frozenset({"calculator", "optimizer", "simulator", "predictor"}),
    ),
    (
        Parameter(
            "timeout",
            "number",
            "Seconds to wait for an answer.",
            required=False,
            default=30,
            constraints={"exclusiveMinimum": 0, "maximum": 3600},
        ),
        frozenset({"network"}),
    ),
    (
        Parameter(
            "retry_count",
            "number",
            "How often to try again after a failure.",
            required=False,
            default=3,
            constraints={"minimum": 0, "maximum": 10},
        ),
        frozenset({"network"}),
    ),
)
_OPTIONS = Parameter("options", "object", "Further settings by name.", required=False, default={})

# Parameters beyond Table 10: what a tool could not be asked for its work without.
_OWN_PARAMETERS: Mapping[str, tuple[Parameter, ...]] = {
    "aggregator": (
        Parameter("group_by", "array", "Fields that form groups.", False, constraints={"items": {"type": "string"}}),
    ),
    "filter": (Parameter("condition", "string", "What a record must meet to be kept.", False),),
    "writer": (Parameter("content", "object", "What to write.", False),),
    "compressor": (Parameter("path", "string", "File or folder to compress.", False),),
    "converter": (Parameter("path", "string", "File to convert.", False),),
    "scanner": (Parameter("pattern", "string", "File name pattern, such as *.csv.", False),),
    "poster": (Parameter("payload", "object", "What to send.", False),),
    "monitor": (Parameter("target", "string", "Host, service or connection to watch.", constraints=_NOT_EMPTY),),
    "router": (Parameter("message", "object", "What to forward.", False),),
    "calculator": (Parameter("expression", "string", "Formula to evaluate.", constraints=_NOT_EMPTY),),
    "analyzer": (Parameter("dataset", "object", "Data to analyze."),),
    "optimizer": (Parameter("objective", "string", "Quantity to improve, and the direction.", constraints=_NOT_EMPTY),),
    "simulator": (Parameter("scenario", "object", "Assumptions of the model."),),
    "predictor": (Parameter("history", "object", "Past values that the forecast rests on."),),
    "authenticator": (Parameter("credentials", "object", "Identity and secret, or a reference to them."),),
    "queue": (Parameter("message", "object", "Work item to put in line."),),
    "scheduler": (Parameter("schedule", "string", "Time or cron expression of the runs.", constraints=_NOT_EMPTY),),
    "logger": (
        Parameter("message", "string", "What to record.", constraints=_NOT_EMPTY),
        Parameter(
            "level", "string", "Severity.", False, "info", {"enum": ["debug", "info", "warning", "error", "critical"]}
        ),
    ),
    "cache": (
        Parameter("key", "string", "Name under which the value is kept.", constraints=_NOT_EMPTY),
        Parameter("value", "object", "Value to keep; left out to look the key up.", False),
    ),
    "notifier": (Parameter("message", "string", "What to tell the recipients.", False),),
    "tracker": (Parameter("item", "string", "What to follow.", constraints=_NOT_EMPTY),),
    "helper": (Parameter("request", "string", "What is wanted, in words.", constraints=_NOT_EMPTY),),
}

_SUCCESS = ReturnValue("success", "boolean", "Whether the operation succeeded.")
_METADATA = ReturnValue("metadata", "object", "Facts about the execution: duration, sizes, counts.")

# `data` is returned by readers, fetchers, scanners, every processor and every aggregator.
_DATA_OF_OPERATION: Mapping[str, str] = {
    "reader": "Content of the file.",
    "fetcher": "Body of the answer.",
    "scanner": "Files found, with path, size and date.",
    "parser": "Structured records.",
    "transformer": "Records in their new shape.",
    "validator": "The data that were checked.",
    "aggregator": "One summary record for each group.",
    "analyzer": "Findings with their statistics.",
    "calculator": "Results by name.",
    "filter": "The records that were kept.",
}
_OWN_RETURNS: Mapping[str, tuple[ReturnValue, ...]] = {
    "validator": (
        ReturnValue("valid", "boolean", "Whether no rule was violated."),
        ReturnValue("violations", "array", "What was found wrong, and where."),
    ),
    "filter": (ReturnValue("kept_count", "integer", "How many records were kept."),),
    "writer": (
        ReturnValue("location", "string", "Where the file lies."),
        ReturnValue("bytes_written", "integer", "Size of the file."),
    ),
    "scanner": (ReturnValue("file_count", "integer", "How many files were found."),),
    "compressor": (
        ReturnValue("archive", "string", "Where the archive lies."),
        ReturnValue("compression_ratio", "number", "Size of the archive over the size before."),
    ),
    "converter": (ReturnValue("converted_file", "string", "Where the converted file lies."),),
    "poster": (
        ReturnValue("status_code", "integer", "HTTP status of the answer."),
        ReturnValue("response", "object", "Body of the answer."),
    ),
    "monitor": (
        ReturnValue("status", "string", "State of the target."),
        ReturnValue("measurements", "array", "Values over time."),
    ),
    "router": (ReturnValue("route", "string", "The destination that was chosen."),),
    "calculator": (ReturnValue("result", "number", "The main result."),),
    "optimizer": (
        ReturnValue("solution", "object", "The best values found."),
        ReturnValue("objective_value", "number", "What the objective is worth there."),
    ),
    "simulator": (ReturnValue("outcomes", "array", "Outcome of each run."),),
    "predictor": (ReturnValue("predictions", "array", "Predicted values with their bands."),),
    "connector": (ReturnValue("connection_id", "string", "Identifier of the open session."),),
    "authenticator": (
        ReturnValue("access_token", "string", "Reference to the token obtained."),
        ReturnValue("expires_in", "integer", "Seconds until the token expires."),
    ),
    "mapper": (ReturnValue("mapping", "object", "Field of the one system to field of the other."),),
    "queue": (
        ReturnValue("queue_id", "string", "Identifier of the work item."),
        ReturnValue("position", "integer", "Place in the line."),
    ),
    "scheduler": (
        ReturnValue("job_id", "string", "Identifier of the job."),
        ReturnValue("next_run", "string", "When it runs next."),
    ),
    "logger": (ReturnValue("entry_id", "string", "Identifier of the log entry."),),
    "cache": (
        ReturnValue("hit", "boolean", "Whether the key was known."),
        ReturnValue("value", "object", "The value under the key."),
    ),
    "notifier": (
        ReturnValue("notification_id", "string", "Identifier of the notification."),
        ReturnValue("delivered", "boolean", "Whether all recipients were reached."),
    ),
    "tracker": (
        ReturnValue("status", "string", "State of the item."),
        ReturnValue("progress", "number", "Share that is done, 0 to 1."),
    ),
    "helper": (ReturnValue("suggestions", "array", "What was worked out."),),
}


def build_default_library() -> ToolLibrary:
    """Build the 30 tools by the rules of this module; equal at every call and on every machine."""
    return ToolLibrary(
        (_tool(category, operation) for category, operations in MATRIX.items() for operation in operations),
        source="default tool library",
    )


def _tool(category: str, operation: str) -> Tool:
    name = f"{category}_{operation}"
    wording = WORDINGS[name]
    return Tool(
        name=name,
        description=f"{wording.purpose} {wording.detail}",
        parameters=_parameters(category, operation),
        returns=_returns(operation),
        errors=standard_errors(category),
        dependencies=DEPENDENCY_RULES.get(name, ()),
        metadata={
            "category": category,
            "operation": operation,
            "version": DEFAULT_VERSION,
            "created_at": CREATED_AT,
        },
        canonical_name=name,
        aliases=ALIASES.get(name, ()),
        differentiation=Differentiation(wording.purpose, wording.differentiators, wording.keywords),
        original_description=wording.purpose,
    )


def _parameters(category: str, operation: str) -> tuple[Parameter, ...]:
    common = [parameter for parameter, holders in _COMMON_PARAMETERS if operation in holders or category in holders]
    own = _OWN_PARAMETERS.get(operation, ())
    options = () if category == "utility" else (_OPTIONS,)
    required = [parameter for parameter in (*common, *own) if parameter.required]
    optional = [parameter for parameter in (*common, *own) if not parameter.required]
    return (*required, *optional, *options)


def _returns(operation: str) -> tuple[ReturnValue, ...]:
    data = _DATA_OF_OPERATION.get(operation)
    first = (_SUCCESS,) if data is None else (_SUCCESS, ReturnValue("data", "object", data))
    return (*first, *_OWN_RETURNS.get(operation, ()), _METADATA)


def main() -> None:
    """Write the packaged default library anew."""
    path = Path(__file__).with_name("data") / "default.json"
    path.write_text(build_default_library().to_json(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
