"""What a call that succeeds returns: typed values as the tool documents them, made up.

They are a function of the episode's key: the same execution returns the same values whenever it is replayed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

from resilisim.provenance import canonical_json
from resilisim.seeding import PURPOSE_PAYLOAD
from resilisim.simulator.compiled import draw_bits
from resilisim.simulator.failures import PendingCall
from resilisim.simulator.problem import Problem
from resilisim.simulator.rulebook.dynamics import Draw
from resilisim.simulator.rulebook.rules import CORRUPT, UNCHECKED, UNSOUND
from resilisim.simulator.state import EpisodeState
from resilisim.tool_library import ReturnValue, Tool

PayloadSize = Literal["compact", "verbose"]

_VERBOSE_ROWS = 240  # about 90 characters a row: far above 3,000 tokens
_COLUMNS = ("record_id", "region", "status", "amount", "updated_at", "priority", "owner", "quantity")
_REGIONS = ("north", "south", "east", "west", "central")
_STATES = ("open", "closed", "pending", "review")


def synthesised_output(tool: Tool, key: tuple[int, int], attempt: int, size: PayloadSize) -> dict[str, Any]:
    """Return the documented values of a success, made from its key: a few lines, or verbose above 3,000 tokens."""
    bits = draw_bits(*key, attempt, PURPOSE_PAYLOAD)
    values = {value.name: _synthesise(tool, value, bits, size) for value in tool.returns}
    if size == "verbose":
        values["metadata"] = {**_metadata(tool, bits), "trace": _rows(bits, _VERBOSE_ROWS)}
    return values


def made_up_output(call: PendingCall, draw: Draw, size: PayloadSize) -> dict[str, Any]:
    """Return what a tool returns that does no work: documented values, with marks of time, corruption, validation."""
    problem, state, tool, _, key, _, _ = call
    dynamics, attempt = problem.dynamics, state.executions[tool]
    law = dynamics.numbers.law
    values = synthesised_output(problem.library[tool], key, attempt, size)
    if law.latency is None and law.corrupt is None and not dynamics.rules.is_checker[tool]:
        return values
    metadata = dict(values.get("metadata") or {})
    if law.latency is not None:
        metadata["duration_ms"] = draw.ticks
    if law.corrupt is not None and law.corrupt.shows == "payload":
        metadata["transfer"] = _transfer(values, draw.result == CORRUPT, attempt)
    if dynamics.rules.is_validator[tool]:
        checked = _checked(problem, state, draw)
        metadata["checked_outputs"] = list(checked)
        values["violations"] = [f"{name}: its output is corrupt" for name, corrupt in checked.items() if corrupt]
    if dynamics.rules.is_checker[tool]:
        names = problem.library.names
        metadata["runs"] = {names[other]: runs for other, runs in dynamics.known_runs(state, tool, draw.told).items()}
    if metadata:
        values["metadata"] = metadata
    return values


def _transfer(values: Mapping[str, Any], is_corrupt: bool, attempt: int) -> dict[str, Any]:
    """Return counts and checksums of what was sent and what arrived; of a corrupt output they contradict each other."""
    data = values.get("data")
    records = data["row_count"] if isinstance(data, Mapping) and "row_count" in data else len(values)
    digest = hashlib.sha256(canonical_json(values).encode()).hexdigest()
    sent = {"records": records, "checksum": digest[:8]}
    if not is_corrupt:
        return {"sent": sent, "received": dict(sent)}
    lost = 1 + int(digest[8:10], 16) % max(1, records // 2)
    return {"sent": sent, "received": {"records": records - lost, "checksum": digest[10:18]}}


def _checked(problem: Problem, state: EpisodeState, draw: Draw) -> dict[str, bool]:
    """Return which outputs a validator has looked at, and whether each is corrupt."""
    rules, found = problem.dynamics.rules, {}
    for tool, name in enumerate(problem.library.names):
        sound = state.parts[rules.at_sound + tool]
        if sound:
            found[name] = bool(draw.findings >> tool & 1) if sound == UNCHECKED else sound == UNSOUND
    return found


def _synthesise(tool: Tool, value: ReturnValue, bits: int, size: PayloadSize) -> Any:
    if value.name == "success":
        return True
    if value.name == "metadata":
        return _metadata(tool, bits)
    if value.name == "status_code" and value.type == "integer":  # a success leaves no choice about it
        return 200
    if value.name == "violations" and value.type == "array":
        return []
    if value.name == "data" and value.type == "object":
        rows = 40 + bits % 9000
        columns = list(_COLUMNS[: 4 + bits // 9000 % 5])
        return {"row_count": rows, "columns": columns, "sample": _rows(bits, 2, len(columns))}
    if value.type == "boolean":
        return True
    if value.type == "integer":
        return 1 + bits % 5000
    if value.type == "number":
        return round(bits % 1_000_000 / 1000.0, 3)
    if value.type == "array":
        return _rows(bits, 3, 3)
    if value.type == "string":
        return f"{value.name}-{bits % 16**8:08x}"
    return {"id": f"{bits % 16**6:06x}", "count": 1 + bits % 500}


def _metadata(tool: Tool, bits: int) -> dict[str, Any]:
    return {"tool": tool.name, "duration_ms": 20 + bits % 1800, "request_id": f"{bits % 16**10:010x}"}


def _rows(bits: int, count: int, width: int = len(_COLUMNS)) -> list[dict[str, Any]]:
    rows = []
    for number in range(count):
        value = (bits >> 7) + 7919 * number
        row = (
            1000 + number,
            _REGIONS[value % 5],
            _STATES[value // 5 % 4],
            value % 100_000 / 100.0,
            f"2025-{1 + value % 12:02d}-{1 + value // 12 % 28:02d}",
            1 + value // 3 % 5,
            f"team-{value // 11 % 20:02d}",
            value // 17 % 400,
        )
        rows.append(dict(zip(_COLUMNS[:width], row, strict=False)))
    return rows
