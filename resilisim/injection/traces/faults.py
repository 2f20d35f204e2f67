"""Whose faults the failures in traces are: those of tools, and what agents made of them.

An agent's fault is a call (or the lack of one) that what it had been told before speaks against; no law is needed to
see it. What it cost is another question, which V* answers (`judging`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from resilisim.errors import count_of
from resilisim.injection.call_arguments import digest_of
from resilisim.injection.folder import UNKNOWN_END
from resilisim.injection.traces.traced import Trace, TracedCall, seconds_to_wait

FaultKind = Literal["repeated_invalid_call", "did_not_wait", "ran_again", "gave_up_early", "invalid_call"]

# What each fault of an agent is, for people.
FAULT_WORDS: Final[Mapping[str, str]] = {
    "invalid_call": "called with arguments that the tool does not accept, or called a tool that does not exist",
    "repeated_invalid_call": "repeated unchanged after an input error",
    "did_not_wait": "called again before the error's waiting time was over",
    "ran_again": "repeated, without looking, a call that must not run twice after its answer was lost",
    "gave_up_early": "stopped after a failure without trying the tool again",
}
_MOST_PLACES: Final = 1000  # of faults of one kind that are listed


@dataclass(frozen=True, slots=True)
class AgentFault:
    """One fault of an agent.

    Attributes:
        kind: What it was.
        episode: Number of the trace.
        call: Number of the call in it, from 1; one behind the last if it is the end.
        tool: The tool.
        words: What the agent had been told.
        source: Where the trace stands.
    """

    kind: FaultKind
    episode: int
    call: int
    tool: str
    words: str
    source: str


@dataclass(slots=True)
class Faults:
    """What went wrong in traces, and by whom.

    Attributes:
        traces: How many traces there are.
        calls: How many calls.
        tools: For each tool its calls, and its own failures by what they ask for.
        agent: The agents' faults, in order.
        untold: What the traces do not tell; a sentence each.
        lost: Points that were lost by tools and by agents, if there is a goal.
    """

    traces: int
    calls: int
    tools: dict[str, Counter[str]] = field(default_factory=dict)
    agent: list[AgentFault] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)
    lost: dict[str, float] | None = None

    def counted(self) -> dict[FaultKind, int]:
        """Return how often each fault of an agent occurred, the most frequent first."""
        return dict(Counter(fault.kind for fault in self.agent).most_common())

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        listed: list[dict[str, Any]] = []
        seen = Counter[str]()
        for fault in self.agent:
            seen[fault.kind] += 1
            if seen[fault.kind] <= _MOST_PLACES:
                listed.append(asdict(fault))
        return {
            "traces": self.traces,
            "calls": self.calls,
            "tools": {tool: dict(counts) for tool, counts in self.tools.items()},
            "agent": dict(self.counted()),
            "faults": listed,
            "untold": list(self.untold),
            **({} if self.lost is None else {"lost": self.lost}),
        }


def faults_of(traces: Sequence[Trace], once: Collection[str] = ()) -> Faults:
    """Return what went wrong in traces.

    Args:
        traces: The traces.
        once: Names of the tools that must not run twice.
    """
    faults = Faults(len(traces), sum(len(trace.calls) for trace in traces))
    for number, trace in enumerate(traces):
        faults.agent += _of_agent(trace, number, once)
        for call in trace.calls:
            counts = faults.tools.setdefault(call.tool, Counter())
            counts["calls"] += 1
            if call.kind is not None:
                counts["misuse" if call.is_misuse else call.kind] += 1
    faults.untold = list(_untold(traces, once))
    return faults


def _of_agent(trace: Trace, number: int, once: Collection[str]) -> Iterator[AgentFault]:
    failed: dict[str, tuple[TracedCall, str]] = {}  # the last failure of each tool, with its input
    lost_inputs: set[tuple[str, str]] = set()
    for place, call in enumerate(trace.calls, start=1):
        given = "" if call.arguments is None else digest_of(call.arguments)

        def fault(kind: FaultKind, words: str, place: int = place, tool: str = call.tool) -> AgentFault:
            return AgentFault(kind, number, place, tool, words, trace.source)

        before, before_input = failed.get(call.tool, (None, ""))
        is_same = bool(given) and given == before_input
        if before is not None and before.kind == "input" and is_same:
            yield fault("repeated_invalid_call", before.words)
        elif call.is_misuse:
            yield fault("invalid_call", call.words)
        if before is not None and before.kind == "wait" and _came_too_early(before, call):
            yield fault("did_not_wait", before.words)
        if call.tool in once and (call.tool, given) in lost_inputs:
            yield fault("ran_again", before.words if before is not None else "")
        if call.error is None:
            failed.pop(call.tool, None)
        else:
            failed[call.tool] = call, given
            if call.kind == "lost" and given:
                lost_inputs.add((call.tool, given))
    last = trace.calls[-1]
    if last.error is not None and last.error != UNKNOWN_END and trace.error is None:
        yield AgentFault("gave_up_early", number, len(trace.calls) + 1, last.tool, last.words, trace.source)


def _came_too_early(before: TracedCall, call: TracedCall) -> bool:
    wait = seconds_to_wait(before.words)
    if wait is None or before.start is None or call.start is None:
        return False
    return call.start < before.start + (before.seconds or 0.0) + wait


def _untold(traces: Sequence[Trace], once: Collection[str]) -> Iterator[str]:
    calls = [call for trace in traces for call in trace.calls]
    if number := sum(call.arguments is None for call in calls):
        yield f"The arguments of {count_of(number, 'call')} are not told, nor whether they were repeated."
    if number := sum(not call.has_status for call in calls):
        yield f"Of {count_of(number, 'call')} it is not told whether they failed: an answer counts as a success."
    if number := sum(call.error == UNKNOWN_END for call in calls):
        yield f"No answer is told of {count_of(number, 'call')}: its result is unknown; the law is fitted without it."
    waits = [call for call in calls if call.kind == "wait"]
    if waits and all(seconds_to_wait(call.words) is None or call.start is None for call in waits):
        yield "No error says for how long to wait, or no call says when it was made: whether agents waited is open."
    if not once and any(call.kind == "lost" for call in calls):
        yield "Answers were lost, and no tool is named that must not run twice (--once): repeats are not sought."
    if any(call.start is None for call in calls):
        yield "Not every call says when it was made: they count in the order in which they stand."
