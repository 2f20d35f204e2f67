"""One execution under a law with parts: what luck brings, the error that an agent reads, the output that it gets.

All of it is a function of the tool's luck key and the number of the execution, as in `simulator.outcomes`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from resilisim.provenance import canonical_json
from resilisim.seeding import (
    PURPOSE_CORRUPT,
    PURPOSE_DURATION,
    PURPOSE_ERROR_CODE,
    PURPOSE_FAILURE,
    PURPOSE_SUCCESS,
    UNIFORM_BITS,
)
from resilisim.simulator.compiled import draw_bits
from resilisim.simulator.failure_model import TICKS_PER_SECOND
from resilisim.simulator.law import success_threshold
from resilisim.simulator.messages import Message
from resilisim.simulator.outcomes import Errors, Failure, dependency_failure, drawn_error, filled, weighted_choice
from resilisim.simulator.parts.build import WeighedError, weighed_errors
from resilisim.simulator.parts.play import UNIT, Draw, LawParts
from resilisim.simulator.parts.rules import (
    CORRUPT,
    DOWN,
    FAILURE,
    LIMITED,
    REFUSED,
    SLOW,
    SUCCESS,
    UNCHECKED,
    clean_probability,
    is_opened,
    is_refused,
    law_probability,
    messages_until_free,
    time_limit,
)
from resilisim.simulator.state import EpisodeState

if TYPE_CHECKING:
    from resilisim.simulator.problem import Problem

RATE_LIMIT_ERROR = "RATE_LIMIT_ERROR"
SERVICE_UNAVAILABLE = "SERVICE_UNAVAILABLE"
TIMEOUT = "TIMEOUT"


def draw_execution(
    problem: Problem,
    parts: LawParts,
    state: EpisodeState,
    tool: int,
    message: Message,
    key: tuple[int, int],
    errors: Errors = "documented",
) -> tuple[Draw, Failure | None]:
    """Return what luck brings to an execution, and the failure that is shown, if it is one.

    Args:
        problem: The task.
        parts: Its law.
        state: The state with what is hidden.
        tool: Index of the tool.
        message: The call.
        key: Luck key of the tool.
        errors: Which errors failures draw where they have no kinds.
    """
    rules = parts.rules
    wait = messages_until_free(rules, state.parts, tool)
    if wait > 0:
        return Draw(LIMITED), _limited(parts, tool, wait)
    group = rules.group[tool]
    if group >= 0 and state.hidden[rules.at_down + group]:
        text = f"Service unavailable: {parts.groups[group]} is down"
        return Draw(DOWN), Failure(SERVICE_UNAVAILABLE, text)
    if is_refused(rules, state.status, state.parts, tool, parts.digest(tool, message)):
        return Draw(REFUSED), _refused(problem, parts, state, tool)
    attempt = state.executions[tool]
    ticks = _duration(parts, key, attempt)
    limit = time_limit(rules, state.parts)
    if 0 <= limit < ticks:
        return Draw(SLOW, limit), Failure(TIMEOUT, f"No result within {limit / TICKS_PER_SECOND:g} seconds")
    probability = law_probability(rules, parts.numbers.tables, state.status, state.counters, tool)
    threshold = success_threshold(probability)
    luck_bits = draw_bits(*key, attempt, PURPOSE_SUCCESS)
    is_broken = rules.at_broken >= 0 and bool(state.hidden[rules.at_broken + tool])
    if luck_bits < threshold and not is_broken:
        is_corrupt = draw_bits(*key, attempt, PURPOSE_CORRUPT) * UNIT < rules.corrupt_chance[tool]
        findings = 0
        if rules.is_validator[tool] and not rules.shows_payload:
            findings = parts.true_findings(state)
        return Draw(CORRUPT if is_corrupt else SUCCESS, ticks, findings), None
    if is_broken and threshold < 1 << UNIFORM_BITS:  # it fails as an unlucky tool does, so that its errors tell nothing
        luck_bits = threshold + ((luck_bits * ((1 << UNIFORM_BITS) - threshold)) >> UNIFORM_BITS)
    if luck_bits < success_threshold(clean_probability(rules, parts.numbers.tables, state.counters, tool)):
        return Draw(FAILURE, ticks), dependency_failure(problem, state, tool)
    if parts.numbers.law.error_kinds is None:  # the code that the law draws without parts
        return Draw(FAILURE, ticks), Failure(
            *drawn_error(parts.numbers.law, problem.library[tool], key, attempt, errors)
        )
    weighed = _error_of_a_kind(problem, parts, state, tool, key, attempt)
    return Draw(weighed.result, ticks), Failure(
        weighed.error.code, filled(weighed.error, draw_bits(*key, attempt, PURPOSE_FAILURE))
    )


def _duration(parts: LawParts, key: tuple[int, int], attempt: int) -> int:
    if parts.numbers.law.latency is None:
        return 0
    uniform = draw_bits(*key, attempt, PURPOSE_DURATION) * UNIT
    pairs = list(zip(parts.rules.duration_ticks, parts.rules.duration_chance, strict=True))
    for ticks, chance in pairs:
        uniform -= chance
        if uniform < 0.0:
            return int(ticks)
    return int(pairs[-1][0])


def _error_of_a_kind(
    problem: Problem, parts: LawParts, state: EpisodeState, tool: int, key: tuple[int, int], attempt: int
) -> WeighedError:
    """Return the error that a failure shows where errors mean what they say."""
    is_opener = parts.numbers.facts[tool].is_opener
    weighed = weighed_errors(parts.numbers.law, problem.library[tool], is_opener, is_opened(parts.rules, state.status))
    return weighted_choice(
        weighed, [one.weight for one in weighed], draw_bits(*key, attempt, PURPOSE_ERROR_CODE) * UNIT
    )


def _limited(parts: LawParts, tool: int, wait: int) -> Failure:
    limit = parts.numbers.law.rate_limit
    assert limit is not None
    calls = f"{limit.calls} call{'s' if limit.calls > 1 else ''}"
    when = "with the next message" if wait == 1 else f"after {wait - 1} more message{'s' if wait > 2 else ''}"
    scope = parts.numbers.facts[tool].rate_key
    text = f"Rate limit of {scope} reached: {calls} in any {limit.window} messages (works again {when})"
    return Failure(RATE_LIMIT_ERROR, text)


def _refused(problem: Problem, parts: LawParts, state: EpisodeState, tool: int) -> Failure:
    """Return the failure of a closed tool, or of an input that was refused before."""
    kinds, described = parts.numbers.law.error_kinds, problem.library[tool]
    assert kinds is not None
    is_closed = is_refused(parts.rules, state.status, state.parts, tool, 0)
    codes = kinds.access_codes if is_closed else kinds.input_codes
    code = next((error.code for error in described.failure_errors if error.code in codes), codes[0])
    if not is_closed:
        return Failure(code, "The same input was refused before: a parameter has to change")
    names = [one.name for one in parts.numbers.facts if one.is_opener]
    what = f"until {' or '.join(names)} has succeeded" if names else "in this episode"
    return Failure(code, f"Access to {described.name} stays closed {what}")


def output_under_parts(
    problem: Problem,
    parts: LawParts,
    state: EpisodeState,
    tool: int,
    draw: Draw,
    output: Mapping[str, Any],
    key: tuple[int, int],
) -> Mapping[str, Any]:
    """Return an output with the marks of time, corruption and validation that it carries."""
    law, values = parts.numbers.law, dict(output)
    metadata = dict(values.get("metadata") or {})
    if law.latency is not None:
        metadata["duration_ms"] = draw.ticks
    if law.corrupt is not None and law.corrupt.shows == "payload":
        metadata["transfer"] = _transfer(values, draw.result == CORRUPT, state.executions[tool])
    if parts.rules.is_validator[tool]:
        checked = _checked(problem, parts, state, draw)
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


def _checked(problem: Problem, parts: LawParts, state: EpisodeState, draw: Draw) -> dict[str, bool]:
    """Return which outputs a validator has looked at, and whether each is corrupt."""
    rules, found = parts.rules, {}
    for tool, name in enumerate(problem.library.names):
        sound = state.parts[rules.at_sound + tool]
        if sound:
            found[name] = bool(draw.findings >> tool & 1) if sound == UNCHECKED else sound == 2
    return found
