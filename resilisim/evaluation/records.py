"""The shape of an episode's record: one JSON line that holds everything needed to judge, re-score and replay it."""

from __future__ import annotations

import types
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Literal, NotRequired, TypedDict, Union, get_args, get_origin, get_type_hints

from resilisim.workflows.prompts import PLANNED_PROMPT_TYPES

RECORD_SCHEMA: Final = "resilisim-episode-1"

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
    holds this and what the agent was told and wrote, packed (`evaluation.texts.opened` puts it back), or absent if it
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

# Fields that only some episodes have; their types are checked where they are there.
_OPTIONAL_FIELDS: Final = frozenset({"agent", "texts", *CEILING_FIELDS})


def _accepted_types(schema: type) -> dict[str, tuple[type, ...]]:
    """Return what `isinstance` accepts for each field: an int where a float is expected, no mapping where a list is."""
    return {name: _runtime_types(hint) for name, hint in get_type_hints(schema).items()}


def _runtime_types(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(accepted for part in get_args(hint) for accepted in _runtime_types(part))
    return (float, int) if hint is float else (get_origin(hint) or hint,)


_RECORD_TYPES = _accepted_types(EpisodeRecord)
_OPTIONAL_TYPES = {name: _RECORD_TYPES.pop(name) for name in _OPTIONAL_FIELDS}
_OPTIONAL_TYPES["texts"] = (str,)  # on disk
_STEP_TYPES = _accepted_types(StepRecord)


def record_problem(value: object) -> str | None:
    """Say in a few words why a JSON value is no episode record, or return None if it is one."""
    if not isinstance(value, Mapping) or value.get("schema") != RECORD_SCHEMA:
        found = value.get("schema") if isinstance(value, Mapping) else None
        return f"has the schema {found!r:.60}, expected {RECORD_SCHEMA!r}"
    there = {name: kinds for name, kinds in _OPTIONAL_TYPES.items() if name in value}
    problem = _field_problem(value, _RECORD_TYPES, "") or _field_problem(value, there, "")
    if problem is not None:
        return problem
    if not value["steps"]:
        return "field 'steps' is empty"
    for number, step in enumerate(value["steps"]):
        if not isinstance(step, Mapping):
            return f"field 'steps[{number}]' is {step!r:.60}, expected an object"
        problem = _field_problem(step, _STEP_TYPES, f"steps[{number}].")
        if problem is not None:
            return problem
    if not isinstance(value["score"].get("level"), str):
        return "field 'score.level' is missing or no text"
    for label, loss in value["losses"].items():
        if not isinstance(loss, float | int):
            return f"field 'losses.{label}' is {loss!r:.60}, expected a number"
    return None


def _field_problem(value: Mapping[str, Any], accepted: Mapping[str, tuple[type, ...]], where: str) -> str | None:
    # Files hold whole records but for accidents, so the loop that finds words for one is begun only after one.
    with suppress(KeyError):
        if all(map(isinstance, map(value.__getitem__, accepted), accepted.values())):
            return None
    for name, kinds in accepted.items():
        if name not in value:
            return f"lacks the field '{where}{name}'"
        if not isinstance(value[name], kinds):
            expected = " or ".join(dict.fromkeys(_JSON_NAMES[kind] for kind in kinds))
            return f"field '{where}{name}' is {value[name]!r:.60}, expected {expected}"
    return None


_JSON_NAMES: Final[Mapping[type, str]] = {
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    types.NoneType: "null",
}
