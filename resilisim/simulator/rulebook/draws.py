"""One execution under a law with parts: what luck brings, the error that an agent reads, the output that it gets.

All of it is a function of the tool's luck key and the number of the execution, as in `simulator.outcomes`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from resilisim.provenance import canonical_json
from resilisim.seeding import PURPOSE_FAILURE
from resilisim.simulator.compiled import draw_bits
from resilisim.simulator.failure_model import TICKS_PER_SECOND
from resilisim.simulator.messages import Message
from resilisim.simulator.outcomes import Errors, Failure, dependency_failure, drawn_error, filled
from resilisim.simulator.rulebook.build import weighed_errors
from resilisim.simulator.rulebook.luck import OF_DEPENDENCIES, draw_result
from resilisim.simulator.rulebook.play import NOTHING, Draw, Dynamics
from resilisim.simulator.rulebook.rules import (
    CORRUPT,
    DOWN,
    LIMITED,
    REFUSED,
    SLOW,
    SUCCESS,
    UNCHECKED,
    is_opened,
    is_refused,
    messages_until_free,
)
from resilisim.simulator.state import EpisodeState

if TYPE_CHECKING:
    from resilisim.simulator.problem import Problem

RATE_LIMIT_ERROR = "RATE_LIMIT_ERROR"
SERVICE_UNAVAILABLE = "SERVICE_UNAVAILABLE"
TIMEOUT = "TIMEOUT"


def draw_execution(
    problem: Problem,
    dynamics: Dynamics,
    state: EpisodeState,
    tool: int,
    message: Message,
    key: tuple[int, int],
    errors: Errors = "documented",
) -> tuple[Draw, Failure | None]:
    """Return what luck brings to an execution, and the failure that is shown, if it is one.

    Args:
        problem: The task.
        dynamics: Its law.
        state: The state with what is hidden.
        tool: Index of the tool.
        message: The call.
        key: Luck key of the tool.
        errors: Which errors failures draw where they have no kinds.
    """
    rules, described = dynamics.rules, problem.library[tool]
    result, ticks, error = draw_result(
        rules,
        dynamics.numbers.tables,
        dynamics.numbers.luck,
        state.status,
        state.counters,
        state.parts or NOTHING,
        state.hidden or NOTHING,
        tool,
        dynamics.digest(tool, message),
        *key,
        state.executions[tool],
    )
    draw = Draw(result, ticks)
    if result in (SUCCESS, CORRUPT):
        tells = result == SUCCESS and rules.is_validator[tool] and not rules.shows_payload
        return (replace(draw, findings=dynamics.true_findings(state)) if tells else draw), None
    if result == LIMITED:
        return draw, _limited(dynamics, tool, messages_until_free(rules, state.parts, tool))
    if result == DOWN:
        return draw, Failure(SERVICE_UNAVAILABLE, f"Service unavailable: {dynamics.groups[rules.group[tool]]} is down")
    if result == REFUSED:
        return draw, _refused(problem, dynamics, state, tool)
    if result == SLOW:
        return draw, Failure(TIMEOUT, f"No result within {ticks / TICKS_PER_SECOND:g} seconds")
    if error == OF_DEPENDENCIES:
        return draw, dependency_failure(problem, state, tool)
    if dynamics.numbers.law.error_kinds is None:  # the code that the law draws without parts
        return draw, Failure(*drawn_error(dynamics.numbers.law, described, key, state.executions[tool], errors))
    is_opener = dynamics.numbers.facts[tool].is_opener
    spec = weighed_errors(dynamics.numbers.law, described, is_opener, is_opened(rules, state.status))[error].error
    return draw, Failure(spec.code, filled(spec, draw_bits(*key, state.executions[tool], PURPOSE_FAILURE)))


def _limited(dynamics: Dynamics, tool: int, wait: int) -> Failure:
    limit = dynamics.numbers.law.rate_limit
    assert limit is not None
    calls = f"{limit.calls} call{'s' if limit.calls > 1 else ''}"
    when = "with the next message" if wait == 1 else f"after {wait - 1} more message{'s' if wait > 2 else ''}"
    scope = dynamics.numbers.facts[tool].rate_key
    text = f"Rate limit of {scope} reached: {calls} in any {limit.window} messages (works again {when})"
    return Failure(RATE_LIMIT_ERROR, text)


def _refused(problem: Problem, dynamics: Dynamics, state: EpisodeState, tool: int) -> Failure:
    """Return the failure of a closed tool, or of an input that was refused before."""
    kinds, described = dynamics.numbers.law.error_kinds, problem.library[tool]
    assert kinds is not None
    is_closed = is_refused(dynamics.rules, state.status, state.parts, tool, 0)
    codes = kinds.access_codes if is_closed else kinds.input_codes
    code = next((error.code for error in described.failure_errors if error.code in codes), codes[0])
    if not is_closed:
        return Failure(code, "The same input was refused before: a parameter has to change")
    names = [one.name for one in dynamics.numbers.facts if one.is_opener]
    what = f"until {' or '.join(names)} has succeeded" if names else "in this episode"
    return Failure(code, f"Access to {described.name} stays closed {what}")


def output_under_parts(
    problem: Problem,
    dynamics: Dynamics,
    state: EpisodeState,
    tool: int,
    draw: Draw,
    output: Mapping[str, Any],
    key: tuple[int, int],
) -> Mapping[str, Any]:
    """Return an output with the marks of time, corruption and validation that it carries."""
    law, values = dynamics.numbers.law, dict(output)
    metadata = dict(values.get("metadata") or {})
    if law.latency is not None:
        metadata["duration_ms"] = draw.ticks
    if law.corrupt is not None and law.corrupt.shows == "payload":
        metadata["transfer"] = _transfer(values, draw.result == CORRUPT, state.executions[tool])
    if dynamics.rules.is_validator[tool]:
        checked = _checked(problem, dynamics, state, draw)
        metadata["checked_outputs"] = list(checked)
        values["violations"] = [f"{name}: its output is corrupt" for name, corrupt in checked.items() if corrupt]
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


def _checked(problem: Problem, dynamics: Dynamics, state: EpisodeState, draw: Draw) -> dict[str, bool]:
    """Return which outputs a validator has looked at, and whether each is corrupt."""
    rules, found = dynamics.rules, {}
    for tool, name in enumerate(problem.library.names):
        sound = state.parts[rules.at_sound + tool]
        if sound:
            found[name] = bool(draw.findings >> tool & 1) if sound == UNCHECKED else sound == 2
    return found
