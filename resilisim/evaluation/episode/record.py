"""The shape of an episode's record: one JSON line that holds everything needed to judge, re-score and replay it."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from contextlib import suppress
from typing import (
    Any,
    Final,
    Literal,
    NotRequired,
    TypedDict,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from resilisim.policies.llm.record import AgentRecord
from resilisim.workflows.prompts import PLANNED_PROMPT_TYPES

RECORD_SCHEMA: Final = "resilisim-episode-1"
FAILURE_SCHEMA: Final = "resilisim-failure-1"

# What a lost point can be put down to, in the order in which reports show it. The text completes "points lost by ...".
LOSS_LABELS: Final[dict[str, str]] = {
    "obeyed_flaw": "doing what a flaw in the plan of the prompt says",
    "missing_dependency_first": "running a tool before its dependencies had succeeded",
    "wrong_order": "running a required tool before an earlier required one",
    "unneeded_tool": "running a tool that the task does not need",
    "repeated_success": "running again a tool that had already succeeded",
    "suboptimal_choice": "another call than the best one, for none of the other reasons",
    "wasted_turn": "searching or asking although the prompt held a plan",
    "repeated_search": "searching or asking again what had been asked before",
    "format_error": "a message that could not be read",
    "rejected_call": "a call with an unknown tool or refused parameters",
    "gave_up_early": "stopping before the task was done",
    "no_completion_signal": "not saying that the task was done",
    "information": "finding out which tools to use, which the prompt did not say (a price, not a blame)",
}

# Below this a regret is rounding error of the solver and gets no label.
REGRET_TOLERANCE: Final = 1e-12


class StepRecord(TypedDict):
    """One message of an agent and what it cost.

    `value` is V* before the message, `action_value` is Q* of the message, regret = value - action_value (below 0 only
    where V* is a bound, see `optimum_gap`), luck = V* after the message - action_value. The five fields from `tool` to
    `success_probability` are None unless the message executed a tool, with two exceptions: `tool` also names what was
    asked for or rejected, and `error`, else the code of a failed execution, is the first problem of a message of kind
    "rejected" or "format_error" (older records lack it).
    """

    turn: int
    message: str
    kind: str
    tool: str | None
    attempt: int | None
    success: bool | None
    error: str | None
    success_probability: float | None
    value: float
    action_value: float
    regret: float
    luck: float
    label: str | None


class SpokenTexts(TypedDict):
    """What the environment said: the prompt, and its reply to each message (native messages as JSON text)."""

    prompt: str
    replies: list[str]


class EpisodeRecord(TypedDict):
    """One episode; the identity 1 - outcome = (1 - optimum) + regret - luck holds to 1e-9.

    `index` is the episode's place in the plan of its run, `manifest` the hash of the run's arguments. `protocol` is
    "native" if a message used a native tool call, else "text". `optimum` is V* of the start, `optimum_gap` by how
    much any V* of the task may be too low (0 where they are exact, as nearly always). Where the prompt does not
    tell the tools, the ceiling is `known_after_search`, V* with the turns that are left after `searches_needed`
    searches, the fewest that show every required tool. Both are None where the tools are told, and where nobody
    knows that number; `no_search_ceiling` then says why (older records lack all three). `regret` and `luck` are
    sums over the steps, `losses` splits `regret` by label. `required_outputs` are the output tools among the
    required ones: with them an episode can be scored again without its library. `flaw` is what is wrong with the
    plan in the prompt: type, method, severity, edits, and `plan`, the tools of that plan as they were shown (older
    records lack it). `agent` is there for LLM agents: every call of the model, every event, and the agent's own
    structure (`policies.llm.record.AgentRecord`). `texts` is what the environment said; on disk it is a text that
    holds this and what the agent was told and wrote, packed (`episode.texts.opened` puts it back), or absent if it
    was not kept.
    """

    schema: str
    index: int
    policy: str
    privileged: bool
    prompt_type: str
    planner: str | None
    flaw: dict[str, Any] | None
    protocol: str
    instance_id: str
    task_type: str
    complexity: str
    required_tools: list[str]
    required_outputs: list[str]
    seed: int
    steps: list[StepRecord]
    ended_by: str
    score: dict[str, Any]
    outcome: int
    optimum: float
    optimum_gap: float
    known_after_search: NotRequired[float | None]
    searches_needed: NotRequired[int | None]
    no_search_ceiling: NotRequired[str | None]
    regret: float
    luck: float
    losses: dict[str, float]
    law: dict[str, float]
    rules: dict[str, int]
    salt: str
    manifest: str
    agent: NotRequired[dict[str, Any]]
    texts: NotRequired[SpokenTexts | str]


class FailureRecord(TypedDict):
    """One try at an episode that did not come to its end.

    `calls` is how many calls of the model were answered before; their replies are kept, so that the next try goes on
    from there.
    """

    schema: str
    index: int
    policy: str
    prompt_type: str
    instance_id: str
    seed: int
    error: str
    reason: str
    calls: int


def is_failure(value: Mapping[str, Any]) -> TypeGuard[FailureRecord]:
    """Tell whether a JSON value is the record of a failure."""
    return value.get("schema") == FAILURE_SCHEMA


def tries_again(record: Mapping[str, Any]) -> bool:
    """Tell whether the agent of an episode may try again in fresh episodes: then its last try was no first one."""
    agent = record.get("agent")
    return agent is not None and (agent["restarts"] > 0 or agent["options"].get("trials") == "fresh")


# What the agent is told decides how high it can get: the name of the reference that is its ceiling (SPEC section 7).
Ceiling = Literal["known_probabilities", "known_after_search"]


def fitting_ceiling(prompt_type: str, tools: str = "discovery", privileged: bool = False) -> Ceiling:
    """Return which reference is the ceiling of an episode.

    V* where the tools are told: by the plan in the prompt, by a list in it, or because the policy sees the state. Else
    they must be found, and what is left after the fewest searches is all that can be reached.

    Args:
        prompt_type: Prompt type; with flaws also as "flawed:...".
        tools: Option `tools` of the environment, "discovery" or "listed". The protocol does not matter: native
            functions name no tool of the library.
        privileged: Whether the policy sees the state.
    """
    told = prompt_type.partition(":")[0] in PLANNED_PROMPT_TYPES or tools == "listed" or privileged
    return "known_probabilities" if told else "known_after_search"


def ceiling_of(record: Mapping[str, Any]) -> float:
    """Return the ceiling of an episode: what `fitting_ceiling` names, and V* where that is unknown."""
    after_search = record.get("known_after_search")
    return float(record["optimum"] if after_search is None else after_search)


def lacks_ceiling(record: Mapping[str, Any]) -> bool:
    """Tell whether V* stands in for the ceiling of an episode whose tools had to be found."""
    if "known_after_search" in record:
        return record.get("no_search_ceiling") is not None
    return fitting_ceiling(record["prompt_type"], privileged=record["privileged"]) == "known_after_search"


# What older records do not say of their ceiling.
CEILING_FIELDS: Final = ("known_after_search", "searches_needed", "no_search_ceiling")


class _ScoreShape(TypedDict):
    """What readers take from `score`."""

    level: str
    coverage: NotRequired[float]
    minimum: NotRequired[bool]
    order: NotRequired[bool]
    output: NotRequired[bool]
    completion: NotRequired[bool]
    ended_by: NotRequired[str]


class _FlawShape(TypedDict):
    """What readers take from `flaw`."""

    type: str
    method: NotRequired[str]
    severity: NotRequired[str]
    edits: NotRequired[list[dict[str, Any]]]
    plan: NotRequired[list[str]]


class _UsageShape(TypedDict):
    prompt_tokens: int
    completion_tokens: int


class _ReplyShape(TypedDict):
    text: str
    tool_calls: list[dict[str, Any]]
    usage: _UsageShape
    latency_seconds: float


class _CallShape(TypedDict):
    role: str
    model: str
    messages: list[int]
    reply: _ReplyShape
    from_cache: bool


class _EventShape(TypedDict):
    kind: str
    component: str
    text: str


# What stands within fields whose own type says no more than "an object" or "a list".
_SHAPES: Final[Mapping[str, Any]] = {
    "required_tools": list[str],
    "required_outputs": list[str],
    "score": _ScoreShape,
    "flaw": _FlawShape | None,
    "losses": dict[str, float],
    "law": dict[str, float],
    "rules": dict[str, int],
    "texts": str,  # on disk
    "agent": AgentRecord,
    "agent.messages": list[dict[str, Any]],
    "agent.calls": list[_CallShape],
    "agent.events": list[_EventShape],
    "agent.first_failure": _EventShape | None,
}
# Probabilities, and sums of their differences over the messages of an episode; anything larger is no figure of ours,
# and sums over it would run out of range.
_MOST_IN_STEP: Final = 1.0 + 1e-6
_MOST: Final = 1e6
_MOST_WHOLE: Final = 2**63


def _runtime_types(hint: Any) -> tuple[type, ...]:
    """Return what `isinstance` accepts for a field: an int where a float is expected, no mapping where a list is."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(accepted for part in get_args(hint) for accepted in _runtime_types(part))
    if is_typeddict(hint):
        return (dict,)
    return (float, int) if hint is float else (get_origin(hint) or hint,)


@functools.lru_cache(maxsize=64)
def _fields_of(shape: type) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field of a `TypedDict`, and whether it may be missing."""
    hints = get_type_hints(shape, include_extras=True)
    return {
        name: (get_args(hint)[0], True) if get_origin(hint) is NotRequired else (hint, False)
        for name, hint in hints.items()
    }


_STEP_TYPES: Final = {name: _runtime_types(hint) for name, hint in get_type_hints(StepRecord).items()}


def record_problem(value: object) -> str | None:
    """Say in a few words why a JSON value is no episode record, or return None if it is one."""
    if not isinstance(value, Mapping) or value.get("schema") != RECORD_SCHEMA:
        found = value.get("schema") if isinstance(value, Mapping) else None
        return f"has the schema {found!r:.60}, expected {RECORD_SCHEMA!r}"
    problem = _problem(value, EpisodeRecord, "")
    if problem is not None:
        return problem
    if not value["steps"]:
        return "field 'steps' is empty"
    if value["outcome"] not in (0, 1):
        return f"field 'outcome' is {value['outcome']!r:.60}, expected 0 or 1"
    for name in ("index", "seed"):
        if value[name] < 0:
            return f"field '{name}' is {value[name]!r:.60}, expected 0 or more"
    return None


def _problem(given: object, hint: Any, place: str) -> str | None:
    """Say what is wrong with a value of a record, at any depth.

    Args:
        given: A JSON value.
        hint: Its type.
        place: The field's name; empty for the whole record.
    """
    value: Any = given
    hint = _SHAPES.get(place, hint)
    kinds = _runtime_types(hint)
    if Any in kinds:
        return None
    if not isinstance(given, kinds) or (isinstance(given, bool) and bool not in kinds):
        expected = " or ".join(dict.fromkeys(_JSON_NAMES[kind] for kind in kinds))
        return f"field '{place}' is {value!r:.60}, expected {expected}"
    if isinstance(given, int | float):
        most = _MOST_WHOLE if int in kinds and float not in kinds else _MOST
        within = -most <= value <= most  # false for NaN
        return None if within else f"field '{place}' is {value!r:.60}, expected a number up to {most:g}"
    if get_origin(hint) in (Union, types.UnionType):
        hint = next((part for part in get_args(hint) if isinstance(given, _runtime_types(part))), Any)
    if is_typeddict(hint):
        return _problem_of_fields(value, hint, place)
    inner = (*get_args(hint), Any)[0 if isinstance(given, list) else -2] if get_args(hint) else Any
    if inner is StepRecord:
        found = (_problem_of_step(step, number) for number, step in enumerate(value))
    elif isinstance(given, list):
        found = (_problem(item, inner, f"{place}[{number}]") for number, item in enumerate(value))
    elif isinstance(given, dict):
        found = (_problem(item, inner, f"{place}.{name}") for name, item in value.items())
    else:
        return None
    return next((problem for problem in found if problem is not None), None)


def _problem_of_fields(value: Mapping[str, Any], shape: type, place: str) -> str | None:
    where = f"{place}." if place else ""
    for name, (hint, may_be_missing) in _fields_of(shape).items():
        if name not in value:
            if may_be_missing or place.startswith("agent"):  # what an agent tells has grown with the versions
                continue
            return f"lacks the field '{where}{name}'"
        problem = _problem(value[name], hint, f"{where}{name}")
        if problem is not None:
            return problem
    return None


def _problem_of_step(step: Any, number: int) -> str | None:
    # Files hold whole records but for accidents, so the loop that finds words for one is begun only after one.
    with suppress(KeyError, TypeError, AttributeError):
        if all(map(isinstance, map(step.__getitem__, _STEP_TYPES), _STEP_TYPES.values())) and (
            max(map(abs, (step["value"], step["action_value"], step["regret"], step["luck"]))) <= _MOST_IN_STEP
        ):
            return None
    place = f"steps[{number}]"
    if not isinstance(step, dict):
        return f"field '{place}' is {step!r:.60}, expected an object"
    problem = _problem_of_fields(step, StepRecord, place)
    if problem is not None:
        return problem
    name = max(("value", "action_value", "regret", "luck"), key=lambda name: abs(step[name]))
    return f"field '{place}.{name}' is {step[name]!r:.60}, expected a number from -1 to 1"


_JSON_NAMES: Final[Mapping[type, str]] = {
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    types.NoneType: "null",
}
