"""What stands about a trained policy in `policy.json`, and how it is read when a stranger wrote it.

A network is one of two known kinds with a few bounded numbers; nothing in the file names code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, TypeAlias

from resilisim.envs.workflow.actions import ACTION_TYPES, META_ACTIONS
from resilisim.envs.workflow.columns import STATUSES, TASK_COLUMNS, TOOL_COLUMNS
from resilisim.errors import InvalidInputError, unknown_name
from resilisim.inputs import read_json, shown
from resilisim.policies.ppo.features import TASK_GROUPS, TOOL_GROUPS
from resilisim.policies.ppo.mlp import WorkflowMLP
from resilisim.policies.ppo.network import Layer, WorkflowTransformer
from resilisim.provenance import content_hash
from resilisim.tasks.benchmark import BENCHMARK_SHA256, BENCHMARK_VERSION
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.json_fields import Fields, object_fields

DESCRIPTION_FILE = "policy.json"
CHECKPOINT_FORMAT = "resilisim-policy-1"
# To be raised when a network computes something else from weights of the same names and shapes.
NETWORKS_VERSION = 1

_FIELDS = (
    "format",
    "network",
    "weights_sha256",
    "layout",
    "library",
    "benchmark",
    "training",
    "provenance",
    "results",
)
Network: TypeAlias = "WorkflowTransformer | WorkflowMLP"


@dataclass(frozen=True, slots=True)
class _Range:
    """The whole numbers that an argument of a network can be, and whether it can be null."""

    least: int
    most: int
    or_null: bool = False

    def holds(self, value: Any) -> bool:
        if value is None:
            return self.or_null
        return type(value) is int and self.least <= value <= self.most

    def __str__(self) -> str:
        return f"a whole number from {self.least:,} to {self.most:,}" + (" or null" if self.or_null else "")


class _Flag:
    """An argument that is true or false."""

    def holds(self, value: Any) -> bool:
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "true or false"


# The kinds of networks, by the names that `network` knows, and what each of their arguments can be.
NETWORK_ARGUMENTS: Mapping[str, Mapping[str, _Range | _Flag]] = {
    "transformer": {
        "num_tools": _Range(1, 100_000),
        "width": _Range(1, 4096),
        "layers": _Range(1, 64),
        "heads": _Range(1, 64),
        "attention_tokens": _Range(1, 100_000, or_null=True),
        "tool_embeddings": _Flag(),
    },
    "mlp": {"num_tools": _Range(1, 100_000), "width": _Range(1, 4096)},
}


@cache
def layout_version() -> str:
    """Return a hash of what the columns of observations, networks and their inputs, and the numbers of actions mean.

    A policy that was trained on another layout would read nonsense, so it is refused.
    """
    return content_hash(
        {
            "tools": TOOL_COLUMNS,
            "task": TASK_COLUMNS,
            "statuses": STATUSES,
            "inputs": [asdict(group) for group in (*TOOL_GROUPS, *TASK_GROUPS)],
            "networks": NETWORKS_VERSION,
            "actions": ACTION_TYPES,
            "meta_actions": META_ACTIONS,
        }
    )


@dataclass(frozen=True, slots=True)
class PolicyDescription:
    """What stands about a policy in `policy.json`.

    Attributes:
        kind: Kind of the network, one of `NETWORK_ARGUMENTS`.
        arguments: Arguments that the network is built with.
        library_hash: Content hash of the tool library that it was trained on.
        benchmark: Version and SHA-256 of the task set that it was trained on.
        training: Configuration of the training.
        provenance: Command, versions, platform, time.
        results: What was measured with it.
        layout: Version of observations and actions, see `layout_version`.
    """

    kind: str
    arguments: Mapping[str, int | bool | None]
    library_hash: str
    benchmark: Mapping[str, str] = field(
        default_factory=lambda: {"version": BENCHMARK_VERSION, "sha256": BENCHMARK_SHA256}
    )
    training: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    layout: str = field(default_factory=layout_version)

    def to_mapping(self, weights_sha256: str) -> dict[str, Any]:
        """Return the description as plain JSON values.

        Args:
            weights_sha256: SHA-256, in hex, of the file with the weights that it belongs to.
        """
        return {
            "format": CHECKPOINT_FORMAT,
            "network": {"kind": self.kind, "arguments": dict(self.arguments)},
            "weights_sha256": weights_sha256,
            "layout": self.layout,
            "library": self.library_hash,
            "benchmark": dict(self.benchmark),
            "training": dict(self.training),
            "provenance": dict(self.provenance),
            "results": dict(self.results),
        }


def describe_policy(
    network: Network,
    library: ToolLibrary,
    training: Mapping[str, Any],
    provenance: Mapping[str, Any],
    results: Mapping[str, Any],
) -> PolicyDescription:
    """Return the description of a network that was trained on a library; the rest is free JSON objects."""
    arguments: dict[str, int | bool | None] = {"num_tools": network.num_tools}
    if isinstance(network, WorkflowMLP):
        kind = "mlp"
        arguments["width"] = network.hidden.out_features
    else:
        kind = "transformer"
        layers = [layer for layer in network.layers if isinstance(layer, Layer)]
        arguments |= {
            "width": network.context.out_features,
            "layers": len(layers),
            "heads": layers[0].heads,
            "attention_tokens": network.attention_tokens,
            "tool_embeddings": network.tool_vectors is not None,
        }
    return PolicyDescription(
        kind,
        arguments,
        library.content_hash,
        training=training,
        provenance=provenance,
        results=results,
    )


def read_description(data: bytes, where: str) -> tuple[PolicyDescription, str]:
    """Return a description and the hash of the weights that it belongs to.

    Args:
        data: The file.
        where: What the checkpoint is called in messages.

    Raises:
        InvalidInputError: It is no description, or not one for this version's observations and actions.
    """
    place = f"{where}, {DESCRIPTION_FILE}"
    fields = object_fields(read_json(decode_text(data, place), place), place, _FIELDS)
    found = fields.text("format", required=True)
    if found != CHECKPOINT_FORMAT:
        fields.fail("format", f"got {shown(found)}", f"{CHECKPOINT_FORMAT!r}")
    for name in _FIELDS:
        if name not in fields.values:
            fields.fail(name, "is missing", "the fields " + ", ".join(_FIELDS))
    network = object_fields(fields.values["network"], f"{place}, field 'network'", ("kind", "arguments"))
    kind = network.text("kind", required=True)
    if kind not in NETWORK_ARGUMENTS:
        raise unknown_name("kind of network", kind[:100], NETWORK_ARGUMENTS, place)
    layout = fields.text("layout", required=True)
    if layout != layout_version():
        problem = f"{shown(layout, 20)} is for other observations or actions"
        fields.fail("layout", problem, f"{layout_version()[:12]}..., trained with this version of ResiliSim")
    benchmark = object_fields(fields.values["benchmark"], f"{place}, field 'benchmark'", ("version", "sha256"))
    description = PolicyDescription(
        kind=kind,
        arguments=_arguments(network, NETWORK_ARGUMENTS[kind]),
        library_hash=fields.text("library", required=True),
        benchmark={name: benchmark.text(name, required=True) for name in ("version", "sha256")},
        training=fields.mapping("training"),
        provenance=fields.mapping("provenance"),
        results=fields.mapping("results"),
        layout=layout,
    )
    return description, fields.text("weights_sha256", required=True)


def _arguments(network: Fields, known: Mapping[str, _Range | _Flag]) -> dict[str, int | bool | None]:
    arguments = object_fields(network.mapping("arguments"), f"{network.where}, field 'arguments'", tuple(known))
    for name, allowed in known.items():
        if name not in arguments.values:
            arguments.fail(name, "is missing", str(allowed))
        if not allowed.holds(arguments.values[name]):
            arguments.fail(name, f"got {shown(arguments.values[name])}", str(allowed))
    return dict(arguments.values)


def decode_text(data: bytes, place: str) -> str:
    """Return the text of a file or of a part of it; `place` is what it is called in messages."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{place}: not UTF-8 text at byte {error.start:,}: expected JSON") from error
