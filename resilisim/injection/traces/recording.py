"""Traces as episodes whose results are given: the record that `inject` writes, with what each call was worth."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from resilisim.errors import InvalidInputError, StoreError, unknown_name
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.injection.call_arguments import CallArguments
from resilisim.injection.folder import CALLS_NAME, UNKNOWN_END, InjectionFolder
from resilisim.injection.functions import inject
from resilisim.injection.inject_options import Fail, InjectionSettings
from resilisim.injection.injected_episode import InjectedEpisode
from resilisim.injection.law_fit import FittedLaw, fit_law
from resilisim.injection.traces.faults import Faults, faults_of
from resilisim.injection.traces.traced import Trace, TracedCall
from resilisim.provenance import encode_json_line
from resilisim.run_folder import write_file_atomically
from resilisim.simulator import FINISH, Law, LostAnswer, load_law
from resilisim.simulator.draws import Branch
from resilisim.simulator.failures import RATE_LIMIT_ERROR, Failure, PendingCall
from resilisim.simulator.goal import Counts
from resilisim.simulator.messages import AGENT_ERROR
from resilisim.simulator.rulebook.dynamics import Draw
from resilisim.simulator.rulebook.rules import LIMITED
from resilisim.tool_library import Tool, ToolLibrary
from resilisim.tool_library.names import given_name

FAULTS_NAME: Final = "faults.json"
_FITTED: Final = "fitted to these traces"


@dataclass(slots=True)
class Recorded(Branch):
    """Draws that a trace tells: each execution brings what it brought there.

    Under a law by which answers can be lost, those that were are taken to have been lost after the call had run.

    Attributes:
        call: The call that is made next.
    """

    call: TracedCall | None = None

    def draw(self, pending: PendingCall) -> tuple[Draw, Failure | None]:
        """Return what a call has brought (`Draws.draw`).

        Raises:
            InvalidInputError: The law says that this cannot happen.
        """
        assert self.call is not None
        has_passed = self.call.error is None
        options = self._options(pending)
        fitting = [pair for pair in options if pair[1].passes is has_passed]
        if self.call.error == RATE_LIMIT_ERROR:
            fitting = [pair for pair in fitting if pair[1].result == LIMITED] or fitting
        if not fitting and self.call.error == UNKNOWN_END:  # of which no law knows anything
            return options[0][1], None
        is_lost = self.call.kind == "lost"
        fitting = [pair for pair in fitting if pair[1].runs is (is_lost or has_passed)] or fitting
        if not fitting:
            became = "answered" if has_passed else f"failed with {self.call.error}"
            raise InvalidInputError(
                f"a call of {self.call.tool} {became}, which law {pending.problem.law.name!r} says cannot happen: "
                "expected another --law, or none, so that one is fitted"
            )
        _, draw = max(fitting, key=lambda pair: pair[0])
        return draw, None if has_passed else Failure(str(self.call.error), self.call.words)


class _Folder(InjectionFolder):
    """A folder for the traces of several agents."""

    def __init__(self, directory: Path, agents: list[str]) -> None:
        super().__init__(directory)
        self._agents = agents

    def begin(self, arguments: Mapping[str, Any]) -> tuple[int, str]:
        """Return the index of the next episode and the hash of the manifest, which names all agents."""
        return super().begin({**arguments, "policies": self._agents, "policy_names": self._agents})


@dataclass(frozen=True, slots=True)
class ReadTraces:
    """Traces that were recorded.

    Attributes:
        directory: The folder.
        law: The law by which they were judged.
        fitted: What it rests on, if it was fitted to them.
        faults: What went wrong, and by whom.
        records: The episodes, if there is a goal.
    """

    directory: Path
    law: Law
    fitted: FittedLaw | None
    faults: Faults
    records: tuple[EpisodeRecord, ...]


def record_traces(
    traces: Sequence[Trace],
    directory: Path,
    *,
    law: str | float | Path | Law | Mapping[str, Any] | None = None,
    library: ToolLibrary | None = None,
    required: Sequence[str] = (),
    goal: Counts = "answers",
    ordered: bool = True,
    once: Sequence[str] = (),
    fail: Fail = "before",
    checks: Mapping[str, str] | None = None,
    turns: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> ReadTraces:
    """Write traces into a folder as `inject` writes the calls of a program, and judge them if there is a goal.

    Args:
        traces: The traces.
        directory: A new folder.
        law: Law by which V* is computed; the one that fits these traces if omitted.
        library: Tools of which more is known, such as what they depend on.
        required: The goal: tools that had to answer. With it each trace is an episode with V*, regret and luck.
        goal: Whether they had to answer, or to have run ("effects").
        ordered: Whether in this order.
        once: Tools that must not run twice.
        fail: Whether calls whose answers were lost failed before they ran, or "after" it, which no trace tells. After
            it the law has the part `lost_answer`, whose share is that of such failures among those that refuse nothing.
        checks: For tools the one that tells how often they have run.
        turns: Calls that an episode has; those of the longest trace and one more if omitted, at least 10.
        advance: Called after each trace.

    Raises:
        InvalidInputError: A name is no tool of the traces, or the law rules out what has happened.
        StoreError: The folder holds something, or cannot be written.
    """
    if directory.exists() and any(directory.iterdir()):
        raise StoreError(f"{directory} holds something already: expected a new folder")
    named = [replace_names(trace) for trace in traces]
    tools = _tools(named, library, (*required, *once))
    fitted = None
    if law is None:
        fitted = _fitted(named, library)
        law = fitted.law
    longest = max(len(trace.calls) for trace in named)
    asked = inject(
        law=_with_lost_answers(law if isinstance(law, Law) else load_law(law), named, fail),
        required=required,
        goal=goal if required else None,
        ordered=None if goal == "effects" else ordered,
        once=once if required else (),
        checks=checks,
        turns=(turns or max(10, longest + 1)) if required else None,
        dependencies=_dependencies(tools, library),
    ).settings
    if required and asked.turns < longest:
        raise InvalidInputError(
            f"turns is {asked.turns}: expected at least {longest}, as many calls as the longest trace has"
        )
    described = ToolLibrary(asked.with_dependencies(tools))
    folder = _Folder(directory, list(dict.fromkeys(trace.agent for trace in named)))
    records = []
    try:
        for number, trace in enumerate(named):
            record = _record(trace, number, asked, described, folder)
            records += [] if record is None else [record]
            advance()
    finally:
        folder.close()
    faults = faults_of(named, once)
    if records:
        faults.lost = lost_points(records)
        if turns is None:
            faults.untold.append(
                f"The traces do not show how many calls agents had: V* is that of {asked.turns} (--turns)."
            )
        if any(call.kind == "lost" for trace in named for call in trace.calls):
            did = (
                "did not (--fail after: it did)" if asked.law.lost_answer is None else "did (--fail before: it did not)"
            )
            faults.untold.append(
                f"The traces do not show whether a call with a lost answer ran: V* assumes that it {did}."
            )
    made = {"schema": "resilisim-faults-1", "law": _FITTED if fitted else asked.law.name, **faults.to_mapping()}
    write_file_atomically(directory / FAULTS_NAME, (json.dumps(made, indent=1, ensure_ascii=False) + "\n").encode())
    return ReadTraces(directory, asked.law, fitted, faults, tuple(records))


def _with_lost_answers(law: Law, traces: Sequence[Trace], fail: Fail) -> Law:
    """Return a law by which as many answers are lost after the run as traces have lost answers."""
    if fail == "before" or law.lost_answer is not None:
        return law
    kinds = [call.kind for trace in traces for call in trace.calls if not call.is_misuse]
    failed = [kind for kind in kinds if kind in ("lost", "other")]
    return replace(law, lost_answer=LostAnswer(failed.count("lost") / len(failed) if failed else 0.0))


def replace_names(trace: Trace) -> Trace:
    """Return a trace whose tools have names that records can hold."""
    calls = [replace(call, tool=given_name(call.tool)) for call in trace.calls]
    return Trace(trace.source, calls, trace.agent, trace.error)


def lost_points(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Return how many points of 100 were lost, and of these how many by tools and how many by agents.

    They add up: what the best agent would have lost by expectation, less the luck that the draws brought, is the
    tools'; the regret of the agents' messages is theirs.
    """
    count = len(records)
    lost = sum(1.0 - record["outcome"] for record in records) / count
    agent = sum(record["regret"] for record in records) / count
    ceiling = sum(1.0 - record["optimum"] for record in records) / count
    luck = sum(record["luck"] for record in records) / count
    points = {"lost": lost, "tools": ceiling - luck, "agent": agent, "optimum": 1.0 - ceiling, "luck": luck}
    return {name: 100.0 * value for name, value in points.items()}


def _tools(traces: Sequence[Trace], library: ToolLibrary | None, named: Sequence[str]) -> dict[str, Tool]:
    called = dict.fromkeys(call.tool for trace in traces for call in trace.calls)
    known = {} if library is None else {tool.name: tool for tool in library}
    for name in named:
        if name not in called and name not in known:
            raise unknown_name("tool", name, [*called, *known])
    wanted = dict.fromkeys((*called, *named))
    if library is not None:
        wanted |= dict.fromkeys(library.closure([name for name in wanted if name in known]))
    return {name: known.get(name) or Tool(name, f"The tool {name}.") for name in wanted}


def _dependencies(tools: Mapping[str, Tool], library: ToolLibrary | None) -> dict[str, tuple[str, ...]]:
    if library is None:
        return {}
    return {name: library.dependencies(name) for name in tools if name in library and library.dependencies(name)}


def _fitted(traces: Sequence[Trace], library: ToolLibrary | None) -> FittedLaw:
    """Return the law that fits the calls of traces."""
    with tempfile.TemporaryDirectory(prefix="resilisim-") as folder:
        path = Path(folder, CALLS_NAME)
        with path.open("wb") as file:
            for number, trace in enumerate(traces):
                for call in trace.calls:
                    outcome = "misuse" if call.is_misuse else "ok" if call.error is None else "real"
                    line = {
                        "tool": call.tool,
                        "error": call.error,
                        "episode": number,
                        "seed": number,
                        "outcome": outcome,
                    }
                    measured = {} if call.seconds is None else {"seconds": call.seconds}
                    file.write(encode_json_line({**line, **measured}))
        return fit_law(path, library=library, name="traces")


def _record(
    trace: Trace, number: int, asked: InjectionSettings, library: ToolLibrary, folder: InjectionFolder
) -> EpisodeRecord | None:
    """Play a trace as an episode, and write it down; return its record if there is a goal."""
    draws = Recorded()
    episode = InjectedEpisode(replace(asked, seed=number, name=trace.agent, draws=draws), library, folder)
    for call in trace.calls:
        if isinstance(call.arguments, Mapping):
            arguments = CallArguments.of((), {str(name): value for name, value in call.arguments.items()})
        else:
            arguments = CallArguments.of(() if call.arguments is None else (call.arguments,))
        if call.is_misuse:
            episode.misused(call.tool, arguments, str(call.error), call.words)
            continue
        draws.call = call
        drawn = episode.draw(call.tool, arguments)
        failure = None if call.error is None else (call.error, call.words)
        has_run = drawn.failure is not None and drawn.runs
        episode.settle(call.tool, arguments, drawn, failure, True, call.seconds or 0.0, undone=not has_run)
    if trace.error is not None:
        episode.end(AGENT_ERROR, "agent_error", trace.error)
    else:
        episode.end(FINISH)
    return episode.record
