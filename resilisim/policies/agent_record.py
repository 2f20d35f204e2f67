"""The agent's part of an episode's record: every call of the model, every event, and the agent's own structure.

Messages stand once in a table and calls name them by number: a conversation that grows by one message a call would
otherwise be written down over and over.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Final, Protocol, cast

from annotated_types import Ge, Le
from typing_extensions import TypedDict  # pydantic cannot read that of `typing` before Python 3.12

from resilisim.chat import ChatMessage, ChatReply, ChatRequest

AGENT_SCHEMA: Final = "resilisim-agent-1"

# What can happen inside an agent. The text completes "what it is".
EVENT_KINDS: Final[dict[str, str]] = {
    "malformed_reply": "a reply of the model that could not be read",
    "cut_reply": "a reply of the model that was cut off at its limit of tokens",
    "invalid_action": "an action that is none of those offered",
    "warning": "a fallback was taken",
    "failure": "a component gave up; the first one is what a failed episode is put down to",
    "limit": "a limit of the agent ended the episode",
    "plan": "a plan was made",
    "replan": "a plan was changed after a failure",
    "task_done": "a task of the plan succeeded",
    "task_failed": "a task of the plan failed",
    "memory": "something was remembered",
    "reflection": "a diagnosis after a failed trial",
    "verdict": "the evaluator's judgement of a trial",
    "extraction": "entities were found, in an output or by reasoning",
    "resolution": "references were turned into values",
    "offload": "a long output was put into a variable",
    "code": "a block of code was run",
    "subquestion": "a question from planner to executor",
    "prediction": "what the agent expected of a step",
    "restart": "the trial began anew in a fresh episode",
    "answer": "the agent's answer",
}
_ALWAYS: Final = ("role", "content")  # of a message; the rest stands there if it has any
WARNING_KINDS: Final = frozenset({"malformed_reply", "cut_reply", "invalid_action", "warning", "failure", "limit"})

# Who can be the first to fail.
FAILING_COMPONENTS: Final = (
    "planner",
    "replanner",
    "tool",
    "extractor",
    "reasoner",
    "executor",
    "reflector",
    "evaluator",
    "agent",
    "sandbox",
)


# Anything larger is no figure of ours, and sums over it would run out of range.
Number = Annotated[float, Ge(-1e6), Le(1e6)]
WholeNumber = Annotated[int, Ge(-(2**63)), Le(2**63 - 1)]


class ComponentUsage(TypedDict, total=False):
    """Calls of one component: their number, tokens, seconds, how many came from a cache, and US dollars if known."""

    calls: WholeNumber
    prompt_tokens: WholeNumber
    completion_tokens: WholeNumber
    is_estimate: bool
    latency_seconds: Number
    from_cache: WholeNumber
    cost: Number | None


class UsageRecord(TypedDict, total=False):
    """Tokens of one call."""

    prompt_tokens: WholeNumber
    completion_tokens: WholeNumber
    is_estimate: bool


class ReplyRecord(TypedDict, total=False):
    """The reply to one call (`ChatReply.to_mapping`); a record on disk holds its texts packed."""

    text: str
    tool_calls: list[dict[str, Any]]
    thoughts: str
    usage: UsageRecord
    finish_reason: str
    model: str
    latency_seconds: Number
    attempts: WholeNumber
    dropped: list[str]


class CallRecord(TypedDict, total=False):
    """One call of a model; `messages` are places in the table of the agent's record."""

    role: str
    model: str
    messages: list[WholeNumber]
    tools: list[str]
    settings: dict[str, Any]
    reply: ReplyRecord
    from_cache: bool
    turn: WholeNumber
    cost: Number | None


class EventRecord(TypedDict, total=False):
    """What happened in an agent."""

    kind: str
    component: str
    text: str
    call: WholeNumber
    turn: WholeNumber
    details: dict[str, Any]


class AgentRecord(TypedDict, total=False):
    """What an LLM agent did in one episode.

    `protocol` says how the model called tools: "text" or "native". `models` is component -> model,
    `model_options`, where there are some, component -> fields of its requests. `messages` is the
    table that `calls[].messages` points into. `events` are in order; each has `kind` (`EVENT_KINDS`), `component`,
    `text`, `call` (calls made before it), `turn` (messages sent before it). `first_failure` is the first event of kind
    "failure", or None. `ended_by` is "answer", "gave_up", "environment" (the episode ended under the agent),
    "agent_error" (it broke), or the cap that was hit.
    """

    schema: str
    architecture: str
    options: dict[str, Any]
    prompts: str
    protocol: str
    models: dict[str, str]
    model_options: dict[str, dict[str, Any]]
    messages: list[dict[str, Any]]
    calls: list[CallRecord]
    events: list[EventRecord]
    counters: dict[str, WholeNumber]
    components: dict[str, ComponentUsage]
    first_failure: EventRecord | None
    structure: dict[str, Any]
    answer: str | None
    ended_by: str
    restarts: WholeNumber
    oracle: bool


def empty_part(architecture: str, ended_by: str = "environment") -> AgentRecord:
    """Return the part of an agent of which nothing more is known."""
    return {
        "schema": AGENT_SCHEMA,
        "architecture": architecture,
        "options": {},
        "prompts": "",
        "protocol": "native",
        "models": {},
        "messages": [],
        "calls": [],
        "events": [],
        "counters": {},
        "components": {},
        "first_failure": None,
        "structure": {},
        "answer": None,
        "ended_by": ended_by,
        "restarts": 0,
        "oracle": False,
    }


class Transcript:
    """Collects what an agent does during one episode."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.calls: list[CallRecord] = []
        self.events: list[EventRecord] = []
        self.counters: Counter[str] = Counter()
        self.total_tokens = 0
        self.restarts = 0
        self._numbers: dict[ChatMessage, int] = {}

    def add_call(self, request: ChatRequest, reply: ChatReply, model: str, turn: int, cost: float | None) -> None:
        """Write down one call of a model."""
        self.total_tokens += reply.usage.prompt_tokens + reply.usage.completion_tokens
        self.calls.append(
            {
                "role": request.role,
                "model": model,
                "messages": [self._number(message) for message in request.messages],
                "tools": [tool["function"]["name"] for tool in request.tools],
                "settings": {name: value for name, value in request.settings().items() if value not in (None, [])},
                "reply": cast("ReplyRecord", reply.to_mapping()),
                "from_cache": reply.from_cache,
                "turn": turn,
                "cost": cost,
            }
        )

    def add_event(self, kind: str, component: str, text: str, turn: int, details: dict[str, Any]) -> None:
        """Write down one event."""
        event = EventRecord(kind=kind, component=component, text=text, call=len(self.calls), turn=turn)
        if details:
            event["details"] = details
        self.events.append(event)

    def first_failure(self) -> EventRecord | None:
        """Return the first event in which a component gave up."""
        return next((event for event in self.events if event["kind"] == "failure"), None)

    def components(self, order: tuple[str, ...]) -> dict[str, ComponentUsage]:
        """Return what each component used, those of `order` first."""
        asked = [call["role"] for call in self.calls]
        roles = dict.fromkeys([*(role for role in order if role in asked), *asked])
        return {role: _usage_of([call for call in self.calls if call["role"] == role]) for role in roles}

    def _number(self, message: ChatMessage) -> int:
        number = self._numbers.setdefault(message, len(self.messages))
        if number == len(self.messages):
            mapping = message.to_mapping()
            kept = {name: value for name, value in mapping.items() if name in _ALWAYS or value not in (None, [])}
            self.messages.append(kept)
        return number


def _usage_of(calls: list[CallRecord]) -> ComponentUsage:
    usages = [call["reply"]["usage"] for call in calls]
    costs = [call["cost"] for call in calls]
    return {
        "calls": len(calls),
        "prompt_tokens": sum(usage["prompt_tokens"] for usage in usages),
        "completion_tokens": sum(usage["completion_tokens"] for usage in usages),
        "is_estimate": any(usage["is_estimate"] for usage in usages),
        "latency_seconds": sum(call["reply"]["latency_seconds"] for call in calls),
        "from_cache": sum(call["from_cache"] for call in calls),
        "cost": None if None in costs else sum(cast("list[float]", costs)),
    }


class Journal(Protocol):
    """Keeps the replies of an episode under way, so that a broken one goes on where it was."""

    def recall(self, number: int, request: ChatRequest) -> ChatReply | None:
        """Return the reply to call `number` (from 0) if it was kept and the request is the same."""
        ...

    def keep(self, number: int, request: ChatRequest, reply: ChatReply) -> None:
        """Keep the reply to a call."""
        ...
