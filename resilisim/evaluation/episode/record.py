"""The shape of an episode's record: one JSON line that holds everything needed to judge, re-score and replay it.

`EpisodeRecord` and what stands in it are the only description of that shape: records are built, read and checked by it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired, TypeGuard, cast

from annotated_types import Ge, Gt, Le, MinLen
from typing_extensions import TypedDict  # pydantic cannot read that of `typing` before Python 3.12

from resilisim.errors import StoreError
from resilisim.inputs import validated
from resilisim.policies.agent_record import AgentRecord, Number, WholeNumber
from resilisim.workflows.prompts import PLANNED_PROMPT_TYPES

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator

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
    "agent_error": "an exception, an error code or a time limit of the agent, which ended the episode",
    "no_completion_signal": "not saying that the task was done",
    "information": "finding out which tools to use, which the prompt did not say (a price, not a blame)",
    "rate_limited_call": "calling a tool that its rate limit was sure to refuse",
    "repeated_invalid_call": "repeating a call whose input was refused, unchanged",
    "call_without_access": "calling a closed tool before what opens it had succeeded",
    "kept_at_broken_tool": "calling a tool again that was probably broken, although another could stand in for it",
    "believed_corrupt_data": "going on although an output was wrong, or had to be checked",
    "did_not_wait": "calling a tool when it was better to wait",
    "waited_in_vain": "waiting when there was something better to do",
}
# Those that only laws with parts have.
LAW_LABELS: Final = tuple(LOSS_LABELS)[-7:]
# And where calls really do something: in worlds, and in programs under `inject`.
REAL_LOSS_LABELS: Final[dict[str, str]] = {
    "wrong_answer": "finishing with an answer that was not right",
    "refused_call": "a call that the tool itself refused, though the law let it through",
    "ran_again": "running again a function that may run only once",
    "called_again_in_doubt": "calling again what may have run already and must not run twice",
    "wrong_end_state": "ending in a state that the check refuses",
}
ALL_LOSS_LABELS: Final = LOSS_LABELS | REAL_LOSS_LABELS

# Below this a regret is rounding error of the solver and gets no label.
REGRET_TOLERANCE: Final = 1e-12


NO_REFERENCE: Final = "the task has no reference solution"  # by which alone V* is known in worlds

# A number that is not negative, of which sums stay in range.
NaturalNumber = Annotated[int, Ge(0), Le(2**63 - 1)]
# A probability, or what a message changed of one.
SignedShare = Annotated[float, Ge(-1.000001), Le(1.000001)]
# The same with what a tool's own failure cost, or brought, although the law let the call through.
Price = Annotated[float, Ge(-2.000001), Le(2.000001)]


class Worth(TypedDict):
    """What one message was worth.

    `value` is V* before it, `action_value` its Q*, regret = value - action_value (below 0 only where V* is a bound, see
    `optimum_gap`, or where a tool's own failure was better than its answer), luck = V* after it - action_value. `label`
    says why it cost something (a key of `LOSS_LABELS`), None if it did not.
    """

    value: SignedShare
    action_value: Price
    regret: Price
    luck: SignedShare
    label: str | None


class StepRecord(Worth):
    """One message of an agent and what it cost.

    The five fields from `tool` to `success_probability` are None unless the message executed a tool, with two
    exceptions: `tool` also names what was asked for or rejected, and `error`, else the code of a failed execution, is
    the first problem of a message of kind "rejected" or "format_error" (older records lack it), and how the agent broke
    in a step of kind "agent_error", which is no message. In worlds `real` is there, and true, where the tool itself
    failed although the law let the call through; `forced` likewise where its result was forced and no luck. Of
    executions under a law with parts, `result` is what luck brought (`rulebook.rules.RESULTS`: "corrupt" is a success
    with wrong data), and under one with latency `seconds` how long it took. `best` is there where it was asked for
    (`rescore_run`): a best message in place of this one, "call TOOL", "finish" or "wait", whose Q* is `value`.

    Example:
        >>> from resilisim import evaluate
        >>> step = next(evaluate("plan-follower", 1, "optimal").records())["steps"][0]
        >>> step["kind"], step["tool"], step["attempt"], step["regret"]
        ('execute', 'file_operations_reader', 1, 0.0)
    """

    turn: WholeNumber
    message: str
    kind: str
    tool: str | None
    attempt: WholeNumber | None
    success: bool | None
    error: str | None
    success_probability: Number | None
    result: NotRequired[str]
    seconds: NotRequired[Number]
    real: NotRequired[bool]
    forced: NotRequired[bool]
    best: NotRequired[str]


class GradeRecord(TypedDict):
    """How good an answer was, by a world's own measure (`worlds.Grade`)."""

    correct: bool
    score: Number
    criteria: dict[str, Any]


class ScoreRecord(TypedDict):
    """The score (SPEC section 4): its level, and the criteria that held; in a world its `grade` decides the level."""

    level: str
    coverage: NotRequired[Number]
    minimum: NotRequired[bool]
    order: NotRequired[bool]
    output: NotRequired[bool]
    completion: NotRequired[bool]
    ended_by: NotRequired[str]
    grade: NotRequired[GradeRecord]


class FlawRecord(TypedDict):
    """What is wrong with the plan in a prompt, and that plan as it was shown.

    `edits` are those of `workflows.flaws.Edit`; `plan` are the tools of the steps, `limits` their `max_tries`
    and `skip_from`, left out if no step has any.
    """

    type: str
    method: NotRequired[str]
    severity: NotRequired[str]
    edits: NotRequired[list[dict[str, Any]]]
    plan: NotRequired[list[str]]
    limits: NotRequired[list[list[Any]]]


class SpokenTexts(TypedDict):
    """What the environment said: the prompt, and its reply to each message (native messages as JSON text)."""

    prompt: str
    replies: list[str]


class UnplayedRecord(TypedDict):
    """What an episode on a branch has changed of what was not played yet, which at first is everything.

    `most` is the most of it that can succeed by V*, 1 at first, and `losses` what was lost on the way to it, by cause:
    over the records of a policy, prompt type and task they add up to what is known of the rest.
    """

    most: Number
    losses: dict[str, Number]


class Totals(TypedDict):
    """What the steps of an episode come to, by the exact optimum.

    `optimum` is V* of the start; under a law of whose state agents cannot see everything, `optimum_knowledge` says
    whether it is that of an agent that sees what agents see ("observing"), or a bound above it. `optimum_gap` is by how
    much any V* of the task may be too low (0 where they are exact, as nearly always). Where the prompt does not tell
    the tools, shares are of `optimum_after_searches`, V* with the turns that are left after `searches_needed` searches,
    the fewest clauses of the work order that show every required tool. It bounds agents that search so, and no others:
    who knows the names from elsewhere can reach V*. Both are None where the tools are told, and where nobody knows that
    number; `no_search_ceiling` then says why (older records lack all three, or call the first `known_after_search`).
    `regret` and `luck` are sums over the steps, `losses` splits `regret` by label.
    `no_ceiling` is there where nobody knows V*, and says why (a task of a world without a reference solution): the
    values are then those of an agent that cannot fail, which only keep the sum, and tables show none of them.
    """

    optimum: Number
    optimum_gap: Number
    optimum_knowledge: NotRequired[Literal["observing", "informed"]]
    optimum_after_searches: NotRequired[Number | None]
    searches_needed: NotRequired[WholeNumber | None]
    no_search_ceiling: NotRequired[str | None]
    no_ceiling: NotRequired[str]
    regret: Number
    luck: Number
    losses: dict[str, Number]


class EpisodeFacts(TypedDict):
    """What an episode's record holds that does not follow from what happened in it; fields as in `EpisodeRecord`."""

    index: NaturalNumber
    policy: str
    privileged: bool
    prompt_type: str
    planner: str | None
    flaw: FlawRecord | None
    protocol: str
    instance_id: str
    task_type: str
    complexity: str
    required_tools: list[str]
    seed: NaturalNumber
    salt: str
    search: NotRequired[str]
    errors: NotRequired[str]
    goal: NotRequired[dict[str, Any]]
    world: NotRequired[str]
    answer: NotRequired[str | None]
    manifest: str
    weight: NotRequired[Annotated[float, Gt(0.0), Le(1.0)]]
    branch: NotRequired[list[str]]
    dice: NotRequired[NaturalNumber]
    unplayed: NotRequired[UnplayedRecord]
    agent: NotRequired[AgentRecord]
    texts: NotRequired[SpokenTexts | str]


class EpisodeRecord(EpisodeFacts, Totals):
    """One episode; the identity 1 - outcome = (1 - optimum) + regret - luck holds to 1e-9.

    `index` is the episode's place in the plan of its run, `manifest` the hash of the run's arguments. `protocol` is
    "native" if a message used a native tool call, else "text". `required_outputs` are the output tools among the
    required ones: with them an episode can be scored again without its library. `flaw` is what is wrong with the
    plan in the prompt: type, method, severity, edits, and `plan`, the tools of that plan as they were shown (older
    records lack it). `law` holds the constants of the benchmark's, or a law with parts as a whole, with its name and
    hash (`Law.to_mapping`). `search` is there if searches were not answered by meaning, `errors` if failures showed
    transient errors only. `agent` is there for LLM agents: every call of the model, every event, and the agent's own
    structure (`AgentRecord`). `texts` is what the environment said; on disk it is a text that holds
    this and what the agent was told and wrote, packed (`episode.texts.opened` puts it back), or absent if it was not
    kept. In a world, `world` is its name, `answer` what completion was signalled with, and `optimum`, values and
    regrets are measured by the task's reference solution (`simulator.exact.program`). Of an agent that was explored,
    `weight` is the probability of the episode: those of one policy, prompt type and task come to at most 1, and what is
    missing was not played. `branch` is what its uncertain calls brought (`draws.Branch.to_texts`). `dice` is there
    where its model's replies are one of so many sets, among which the weights are shared out. `unplayed` is by how much
    the episode has changed what was not played yet.

    Example:
        >>> from resilisim import evaluate
        >>> record = next(evaluate("plan-follower", 1, "optimal").records())
        >>> round((1 - record["optimum"]) + record["regret"] - record["luck"], 9) == 1 - record["outcome"]
        True
    """

    schema: Literal["resilisim-episode-1"]
    required_outputs: list[str]
    steps: Annotated[list[StepRecord], MinLen(1)]
    ended_by: str
    score: ScoreRecord
    outcome: Annotated[int, Ge(0), Le(1)]
    law: dict[str, Any]
    rules: dict[str, WholeNumber]


class FailureRecord(TypedDict):
    """One try at an episode that did not come to its end, and is not the agent's loss (docs/specification, section 9).

    `calls` is how many calls of the model were answered before; their replies are kept, so that the next try goes on
    from there. `traceback` is there if an agent of somebody else's raised something, which `reason` names. `fault` says
    whose fault it was, as far as that can be told (older ones lack it: unclear); where it is unclear, `messages` are
    what the agent had sent, which the next try has to send again, and `optimum` is V* of the episode. "begun" is the
    reason of an episode that was handed out, and is lost if it is never finished.
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
    fault: NotRequired[Literal["infrastructure", "unclear"]]
    messages: NotRequired[list[str | None]]
    optimum: NotRequired[Number]
    traceback: NotRequired[str]


def failure_record(
    index: int,
    policy: str,
    prompt_type: str,
    instance_id: str,
    seed: int,
    *,
    error: str,
    reason: str,
    fault: Literal["infrastructure", "unclear"],
    calls: int = 0,
) -> FailureRecord:
    """Return the record of an episode that did not come to its end; the fields are those of `FailureRecord`."""
    return FailureRecord(
        schema=FAILURE_SCHEMA,
        index=index,
        policy=policy,
        prompt_type=prompt_type,
        instance_id=instance_id,
        seed=seed,
        error=error,
        reason=reason,
        calls=calls,
        fault=fault,
    )


def is_failure(value: Mapping[str, Any]) -> TypeGuard[FailureRecord]:
    """Tell whether a JSON value is the record of a failure."""
    return value.get("schema") == FAILURE_SCHEMA


def tries_again(record: Mapping[str, Any]) -> bool:
    """Tell whether the agent of an episode may try again in fresh episodes: then its last try was no first one."""
    agent = record.get("agent")
    return agent is not None and (agent["restarts"] > 0 or agent["options"].get("trials") == "fresh")


def is_branch(record: Mapping[str, Any]) -> bool:
    """Tell whether an episode is a branch of an agent that was explored, and no sample."""
    return "weight" in record


def weight_of(record: Mapping[str, Any]) -> float:
    """Return how much an episode counts in any sum: a branch by its probability, one that was sampled once."""
    weight: float = record.get("weight", 1)
    return weight


def has_no_ceiling(record: Mapping[str, Any]) -> bool:
    """Tell whether nobody knows V* of an episode's task."""
    return "no_ceiling" in record


def gap_of_optimum(record: Mapping[str, Any]) -> float:
    """Return by how much V* of the start may be too low: by no more than any V* of the episode, nor beyond 1."""
    return float(min(record["optimum_gap"], 1.0 - record["optimum"]))


# What the agent is told decides what its success is a share of: the name of that reference (SPEC section 7). V* is a
# ceiling; the optimum after searches bounds only agents that search clause by clause. In a world it is the chance of
# completing the reference solution.
Ceiling = Literal["optimum", "optimum_after_searches", "reference_solution"]


def fitting_ceiling(prompt_type: str, tools: str = "discovery", privileged: bool = False) -> Ceiling:
    """Return which reference the success of an episode is a share of.

    V* where the tools are told: by the plan in the prompt, by a list in it, by functions, or because the policy
    sees the state. Else
    they must be found, and the reference is what the best agent reaches that reads the work order and searches for its
    clauses, as few as show the tools.

    The protocol alone does not matter: unless each tool is a function, functions name no tool of the library.
    """
    told = prompt_type.partition(":")[0] in PLANNED_PROMPT_TYPES or tools in ("listed", "native") or privileged
    return "optimum" if told else "optimum_after_searches"


def ceiling_of(record: Mapping[str, Any]) -> float:
    """Return the ceiling of an episode: what `fitting_ceiling` names, and V* where that is unknown."""
    after_search = record.get("optimum_after_searches")
    return float(record["optimum"] if after_search is None else after_search)


def lacks_ceiling(record: Mapping[str, Any]) -> bool:
    """Tell whether V* stands in for the ceiling of an episode whose tools had to be found."""
    if "optimum_after_searches" in record:
        return record.get("no_search_ceiling") is not None
    return fitting_ceiling(record["prompt_type"], privileged=record["privileged"]) == "optimum_after_searches"


_OLD_REFERENCE = "known_after_search"  # what records before 0.2 call `optimum_after_searches`
# What older records do not say of their ceiling.
CEILING_FIELDS: Final = ("optimum_after_searches", "searches_needed", "no_search_ceiling")


def differences(then: object, now: object, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the places where two JSON values differ, with both values there; None is a value that is not there.

    Lists that are not equally long are told whole.
    """
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys((*then, *now)):
            yield from differences(then.get(name), now.get(name), f"{where}.{name}" if where else name)
    elif isinstance(then, list | tuple) and isinstance(now, list | tuple) and len(then) == len(now):
        for number, (old, new) in enumerate(zip(then, now, strict=True)):
            yield from differences(old, new, f"{where}[{number}]")
    elif then != now:
        yield where, then, now


def checked_record(value: object, where: str) -> EpisodeRecord:
    """Return a JSON value that is an episode's record as it stands on disk, the same object.

    Raises:
        StoreError: It is none; the text names the first field that is not as it should be.
    """
    schema = value.get("schema") if isinstance(value, Mapping) else None
    if isinstance(value, dict) and _OLD_REFERENCE in value and "optimum_after_searches" not in value:
        value["optimum_after_searches"] = value.pop(_OLD_REFERENCE)
    if schema != RECORD_SCHEMA:
        raise StoreError(f"{where} is not an episode: it has the schema {schema!r:.60}, expected {RECORD_SCHEMA!r}")
    if not _validator().isinstance_python(value, strict=True):
        validated(EpisodeRecord, value, where, error=StoreError)
    record = cast("EpisodeRecord", value)
    missing = _missing_field(record)
    if missing is not None:
        raise StoreError(f"{where}, field {missing}: is missing")
    return record


# What every record of an agent, and of a flawed plan, has had from the first on, though their types leave it open.
_OF_AGENTS: Final = ("architecture", "models", "options", "restarts")
_OF_FLAWS: Final = ("severity", "method")


def _missing_field(record: EpisodeRecord) -> str | None:
    """Return the first field that a record of the right types lacks all the same; None if it is whole."""
    flaw, agent = record["flaw"], record.get("agent")
    if agent is not None:
        lacking = next((name for name in _OF_AGENTS if name not in agent), None)
        if lacking is not None:
            return f"'agent', field {lacking!r}"
    if flaw is not None:
        lacking = next((name for name in _OF_FLAWS if name not in flaw), None)
        if lacking is not None:
            return f"'flaw', field {lacking!r}"
    for number, step in enumerate(record["steps"], start=1):
        if step["success"] is not None and step["tool"] is None:
            return f"'steps', item {number}, field 'tool'"
    return None


@functools.cache
def _validator() -> SchemaValidator:
    from pydantic import TypeAdapter

    return cast("SchemaValidator", TypeAdapter(EpisodeRecord).validator)
