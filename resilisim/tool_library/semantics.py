"""The second layer of the library: operations grouped by their role in a workflow (seed 004, section C.1.1)."""

from __future__ import annotations

from collections.abc import Mapping

# An alias of an operation has the role of that operation: combiner and merger stand for aggregator, exporter for
# writer or converter.
SEMANTIC_TYPES: Mapping[str, tuple[str, ...]] = {
    "sources": ("reader", "fetcher", "scanner", "authenticator"),
    "processors": ("parser", "transformer", "validator", "analyzer", "calculator"),
    "aggregators": ("aggregator", "combiner", "merger"),
    "outputs": ("writer", "poster", "exporter", "notifier"),
    "utilities": ("logger", "cache", "tracker", "monitor"),
}
OUTPUT_OPERATIONS: frozenset[str] = frozenset(SEMANTIC_TYPES["outputs"])

_TYPE_OF_OPERATION = {operation: role for role, operations in SEMANTIC_TYPES.items() for operation in operations}
_RANK_OF_TYPE = {role: rank for rank, role in enumerate(SEMANTIC_TYPES)}


def semantic_type_of(operation: str) -> str | None:
    """Return the semantic type of an operation, or None if it has none."""
    return _TYPE_OF_OPERATION.get(operation)


def semantic_rank(operation: str) -> int:
    """Return the place of an operation's semantic type in the usual flow of data; operations without one come last."""
    return _RANK_OF_TYPE.get(_TYPE_OF_OPERATION.get(operation, ""), len(_RANK_OF_TYPE))
