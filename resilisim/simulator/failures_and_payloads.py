"""What an execution returns: a typed result, or an error as the tool documents it.

Everything is a function of the episode's key: the same execution returns the same text whenever it is replayed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from resilisim.provenance import canonical_json
from resilisim.seeding import PURPOSE_ERROR_CODE, PURPOSE_FAILURE, PURPOSE_PAYLOAD, UNIFORM_BITS
from resilisim.simulator.compiled import draw_bits
from resilisim.simulator.law import TICKS_PER_SECOND, Law
from resilisim.simulator.messages import Message
from resilisim.simulator.problem import Problem
from resilisim.simulator.rulebook.build import weighed_errors
from resilisim.simulator.rulebook.dynamics import Draw, Dynamics
from resilisim.simulator.rulebook.luck import OF_DEPENDENCIES
from resilisim.simulator.rulebook.rules import (
    CORRUPT,
    DOWN,
    FAILURE,
    LIMITED,
    REFUSED,
    SLOW,
    UNCHECKED,
    UNSOUND,
    is_opened,
    is_refused,
    messages_until_free,
)
from resilisim.simulator.rulebook.runs import shown_result
from resilisim.simulator.state import EpisodeState
from resilisim.simulator.tool_status import FAILED, NOT_EXECUTED
from resilisim.tool_library import ErrorSpec, ReturnValue, Tool
from resilisim.tool_library.tool import DEPENDENCY_ERROR

T = TypeVar("T")
PayloadSize = Literal["compact", "verbose"]
# Whether failures draw any error that the tool documents, or only those after which calling again is sensible.
Errors = Literal["documented", "transient"]

TRANSIENT_CODES = ("TIMEOUT", "NETWORK_ERROR", "RATE_LIMIT_ERROR", "OPERATION_FAILED")
RATE_LIMIT_ERROR = "RATE_LIMIT_ERROR"
SERVICE_UNAVAILABLE = "SERVICE_UNAVAILABLE"
TIMEOUT = "TIMEOUT"
# What a tool that documents none of them fails with where failures are transient.
_NO_ANSWER = ErrorSpec("TIMEOUT", "The tool did not answer in time.", "The tool did not answer in time")

_VERBOSE_ROWS = 240  # about 90 characters a row: far above 3,000 tokens
_COLUMNS = ("record_id", "region", "status", "amount", "updated_at", "priority", "owner", "quantity")
_REGIONS = ("north", "south", "east", "west", "central")
_STATES = ("open", "closed", "pending", "review")


class Failure(NamedTuple):
    """A failure: a code from the tool's documentation, or DEPENDENCY_ERROR, and its text, slots filled.

    One that is `real` was not drawn from the law: the tool itself refused or failed (`worlds.ToolError`).
    """

    code: str
    message: str
    not_executed: tuple[str, ...] = ()  # dependencies that never were (DEPENDENCY_ERROR only)
    failed: tuple[str, ...] = ()  # dependencies that were executed and have not succeeded (likewise)
    real: bool = False


class PendingCall(NamedTuple):
    """A call that is made and not drawn yet: all that what it brings depends on.

    Attributes:
        problem: The task.
        state: The state in which the call is made.
        tool: Index of the tool.
        message: The call; its whole parameters tell inputs apart.
        key: Luck key of the tool.
        errors: Which errors failures draw where they have no kinds.
        unseen: What the state leaves open and has happened here (`Episode.unseen`).
    """

    problem: Problem
    state: EpisodeState
    tool: int
    message: Message
    key: tuple[int, int]
    errors: Errors
    unseen: Sequence[int] = ()

    @property
    def name(self) -> str:
        """Name of the tool."""
        return self.problem.library.names[self.tool]

    @property
    def described(self) -> Tool:
        """The tool as its library describes it."""
        return self.problem.library[self.tool]

    @property
    def dynamics(self) -> Dynamics:
        """The law of the problem."""
        return self.problem.dynamics

    @property
    def executions(self) -> int:
        """How often the tool was executed before."""
        return self.state.executions[self.tool]


def shown_failure(call: PendingCall, draw: Draw, error: int) -> Failure | None:
    """Return the failure that a call shows; None if the law lets it through.

    Args:
        call: The call.
        draw: What luck brought to it.
        error: Number of the error that it shows, OF_DEPENDENCIES, or OTHER_ERROR.
    """
    if error == OF_DEPENDENCIES:
        return _dependency_failure(call)
    dynamics, state, tool = call.dynamics, call.state, call.tool
    rules, law, result = dynamics.rules, dynamics.numbers.law, shown_result(draw.result)
    if result == FAILURE and law.error_kinds is None:  # the codes have no meaning
        return Failure(*drawn_error(law, documented_errors(call), call.key, call.executions))
    if draw.passes:
        return None
    if draw.result == LIMITED:
        return _limited(dynamics, tool, messages_until_free(rules, state.parts, tool))
    if draw.result == DOWN:
        return Failure(SERVICE_UNAVAILABLE, f"Service unavailable: {dynamics.groups[rules.group[tool]]} is down")
    if draw.result == REFUSED:
        return _refused(call)
    if result == SLOW:
        return Failure(TIMEOUT, f"No result within {draw.ticks / TICKS_PER_SECOND:g} seconds")
    is_opener = dynamics.numbers.facts[tool].is_opener
    spec = weighed_errors(law, call.described, is_opener, is_opened(rules, state.status))[error].error
    return filled_failure(call, spec)


def filled_failure(call: PendingCall, spec: ErrorSpec) -> Failure:
    """Return the failure that a call shows by an error of its tool."""
    return Failure(spec.code, _filled(spec, draw_bits(*call.key, call.executions, PURPOSE_FAILURE)))


def _limited(dynamics: Dynamics, tool: int, wait: int) -> Failure:
    limit, wait = dynamics.numbers.law.rate_limit, max(wait, 1)
    assert limit is not None
    calls = f"{limit.calls} call{'s' if limit.calls > 1 else ''}"
    when = "with the next message" if wait == 1 else f"after {wait - 1} more message{'s' if wait > 2 else ''}"
    scope = dynamics.numbers.facts[tool].rate_key
    text = f"Rate limit of {scope} reached: {calls} in any {limit.window} messages (works again {when})"
    return Failure(RATE_LIMIT_ERROR, text)


def _refused(call: PendingCall) -> Failure:
    """Return the failure of a closed tool, or of an input that was refused before."""
    dynamics, described = call.dynamics, call.described
    kinds = dynamics.numbers.law.error_kinds
    assert kinds is not None
    is_closed = is_refused(dynamics.rules, call.state.status, call.state.parts, call.tool, 0)
    codes = kinds.access_codes if is_closed else kinds.input_codes
    code = next((error.code for error in described.failure_errors if error.code in codes), codes[0])
    if not is_closed:
        return Failure(code, "The same input was refused before: a parameter has to change")
    names = [one.name for one in dynamics.numbers.facts if one.is_opener]
    what = f"until {' or '.join(names)} has succeeded" if names else "in this episode"
    return Failure(code, f"Access to {described.name} stays closed {what}")


def drawn_error(law: Law, specs: Sequence[ErrorSpec], key: tuple[int, int], attempt: int) -> tuple[str, str]:
    """Return code and message of one of the errors of a tool, by the weights of the law."""
    bits = draw_bits(*key, attempt, PURPOSE_FAILURE)
    weights = [law.error_weight(spec.code) for spec in specs] if law.errors else ()
    if not weights or not sum(weights) > 0.0:
        spec, bits = specs[bits % len(specs)], bits // len(specs)
    else:
        spec = weighted_choice(specs, weights, draw_bits(*key, attempt, PURPOSE_ERROR_CODE) * 2.0**-UNIFORM_BITS)
    return spec.code, _filled(spec, bits)


def weighted_choice(options: Sequence[T], weights: Sequence[float], uniform: float) -> T:
    """Return the option that a uniform number from [0, 1) falls on, each as likely as its weight says."""
    target = uniform * sum(weights)
    for option, weight in zip(options, weights, strict=True):
        target -= weight
        if target < 0.0:
            return option
    return options[-1]


def _dependency_failure(call: PendingCall) -> Failure:
    """Return the failure that lists the dependencies of a tool that were not executed or failed."""
    names, status, not_executed, failed = call.problem.library.names, call.state.status, [], []
    for dependency in call.problem.dependencies[call.tool]:
        if status[dependency] == NOT_EXECUTED:
            not_executed.append(names[dependency])
        elif status[dependency] == FAILED:
            failed.append(names[dependency])
    parts = [f"{name} has not been executed" for name in not_executed]
    parts += [f"{name} was executed but failed" for name in failed]
    return Failure(DEPENDENCY_ERROR, f"Unmet dependencies: {'; '.join(parts)}", tuple(not_executed), tuple(failed))


def _filled(error: ErrorSpec, bits: int) -> str:
    """Return the message of an error, its slots filled as the bits say."""
    values = {}
    for slot, options in error.slots.items():
        bits, which = divmod(bits, len(options))
        values[slot] = options[which]
    return error.message(values)


def possible_errors(tool: Tool, errors: Errors = "documented") -> tuple[ErrorSpec, ...]:
    """Return the errors that a failure of a tool is drawn from; it may document no transient one."""
    if errors == "documented":
        return tool.failure_errors
    return tuple(error for error in tool.failure_errors if error.code in TRANSIENT_CODES) or (_NO_ANSWER,)


def documented_errors(call: PendingCall) -> tuple[ErrorSpec, ...]:
    """Return the errors that a failure of a call is drawn from where they have no kinds."""
    if call.errors == "documented":
        return call.dynamics.numbers.documented[call.tool]
    return possible_errors(call.described, call.errors)


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
