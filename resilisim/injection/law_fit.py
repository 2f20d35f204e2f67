"""A law from recorded calls: how likely each tool succeeds, what lowers that, which errors come, what stays untold.

Calls come from `inject` and the MCP proxy (`calls.jsonl`), from `resilisim apis assess` (likewise), or from episodes
of any run. The law that is fitted has the form of the benchmark's: a base for each tool, factors for unmet dependencies
and for earlier failures. What that form leaves out is looked for and told, never put in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from typing_extensions import TypedDict  # pydantic cannot read that of `typing` before Python 3.12

from resilisim.errors import InvalidInputError, StoreError, count_of, unknown_name
from resilisim.evaluation.run.plan import library_of_run
from resilisim.evaluation.run.store import EPISODES_NAME, read_manifest, read_records, refuse_explored
from resilisim.injection.call import GONE, Outcome
from resilisim.injection.folder import CALLS_NAME, UNKNOWN_END
from resilisim.injection.law_signs import FittedCalls, errors_differ, signs_of_order, what_order_hides
from resilisim.inputs import validated
from resilisim.run_folder import MANIFEST_NAME, load_manifest, read_json_lines
from resilisim.simulator.law import Duration, Latency, Law, LostAnswer
from resilisim.simulator.rulebook.rules import RESULTS, UNANSWERED, UNANSWERED_LATE
from resilisim.statistics.estimates import fields_to_json
from resilisim.statistics.product_rates import Bounded, fit_product_rates
from resilisim.tool_library import ToolLibrary
from resilisim.tool_library.tool import DEPENDENCY_ERROR

# Which failures a law is fitted to: what callers met, what the tools themselves did, or what was injected.
Failures = Literal["all", "real", "injected"]

FACTORS = ("history", "failed", "not_executed")
FEW_CALLS = 10  # of a tool, or of calls to which a factor applied: fewer say next to nothing
PERCENTILES = (50, 90)
# By the caller, or with the caller, which says nothing of the tool.
_GIVEN_UP = ("cancelled", "CancelledError", "KeyboardInterrupt", "GeneratorExit", GONE[0], UNKNOWN_END)
_SHARES = 10  # durations that a law's latency has
_DIGITS = 6
_LOST_ANSWERS = (RESULTS[UNANSWERED], RESULTS[UNANSWERED_LATE])


class CallLine(TypedDict, total=False):
    """What is read of a line of `calls.jsonl`; lines hold more."""

    tool: str
    error: str | None
    seconds: float
    episode: int
    seed: int
    outcome: Outcome
    ran: bool
    forced: bool
    position: int  # messages before it in its episode; where none is said, calls


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call, with what had happened before it: what a law's factors count."""

    tool: str
    success: bool
    error: str | None
    seconds: float  # NaN if nobody measured them
    counts: tuple[int, ...]  # (len(FACTORS),)
    follows: bool  # whether the call before it stands before it in the same episode
    position: int  # messages, or else calls, before it in its episode
    own_failures: int  # of the same tool, likewise


@dataclass(frozen=True, slots=True)
class FittedTool:
    """What the calls of one tool say.

    Attributes:
        tool: Its name.
        calls: Calls that count.
        successes: How many succeeded.
        base: Chance of success with nothing against it, with its 95% interval.
        errors: Failures by code.
        seconds: Median and 90th percentile of how long calls took that succeeded; empty if none was measured.
    """

    tool: str
    calls: int
    successes: int
    base: Bounded
    errors: Mapping[str, int] = field(hash=False)
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class FittedLaw:
    """A law, what it rests on, and what the calls could not tell.

    Attributes:
        law: The law.
        calls: Calls that it was fitted to.
        tools: Each tool that was called.
        factors: The factors that could be estimated, of `FACTORS`.
        untold: What the calls do not tell, and what they show that the law leaves out; a sentence each.

    Example:
        >>> import tempfile, resilisim
        >>> from resilisim.injection import fit_law
        >>> folder = tempfile.mkdtemp()
        >>> tools = resilisim.inject([len], law={"base": 0.5, "history": 1.0}, seed=1, record=folder)
        >>> for _ in range(40):
        ...     try:
        ...         _ = tools[0]("abc")
        ...     except resilisim.InjectedFailure:
        ...         pass
        >>> tools.close()
        >>> found = fit_law(folder)
        >>> found.tools[0].base.holds(0.5), found.law.base
        (True, ...)
    """

    law: Law
    calls: int
    tools: tuple[FittedTool, ...]
    factors: Mapping[str, Bounded] = field(hash=False)
    untold: tuple[str, ...]

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return fields_to_json(self) | {"law": {"description": self.law.description, **self.law.to_mapping()}}

    def to_yaml(self) -> str:
        """Return the law as a law file, what it rests on in comments."""
        import yaml

        content = {name: value for name, value in self.law.to_mapping().items() if name != "hash"}
        lines = [f"{row.tool}: {row.successes} of {row.calls} calls, {_shown(row.base)}" for row in self.tools]
        lines += [f"{name}: {_shown(factor)}" for name, factor in self.factors.items()]
        head = "".join(f"# {line}\n" for line in (*lines, *self.untold))
        return head + str(
            yaml.safe_dump({"description": self.law.description, **content}, sort_keys=False, allow_unicode=True)
        )


def fit_law(
    records: str | Path | Sequence[str | Path],
    *,
    failures: Failures = "all",
    library: ToolLibrary | None = None,
    latency: bool = False,
    name: str = "fitted",
) -> FittedLaw:
    """Fit a law to recorded calls.

    Args:
        records: Folders that `inject`, the MCP proxy, `resilisim apis assess` or `evaluate` wrote, or their
            `calls.jsonl`.
        failures: Which failures count: "all" that callers met; those of the tools themselves ("real"), where calls
            that were made to fail before they ran are left out; or the "injected" ones, the law that acted.
        library: Says which tools depend on which; the records' own dependencies count if omitted.
        latency: Whether durations go into the law, too, as a part.
        name: Name of the law.

    Raises:
        InvalidInputError: There is no call to fit to.
        StoreError: A folder holds no such records, or cannot be read.

    Example:
        >>> import resilisim
        >>> run = resilisim.evaluate("random", 10, "optimal", seeds=5)
        >>> found = resilisim.fit_law(run.directory)
        >>> sorted(found.factors)
        ['history', 'not_executed']
    """
    if failures not in get_args(Failures):
        raise unknown_name("failures", failures, get_args(Failures))
    reading = _Reading(failures, library)
    for source in [records] if isinstance(records, str | Path) else records:
        reading.read(Path(source))
    if not reading.calls:
        raise InvalidInputError("the records hold no call that counts: expected at least one")
    return _fitted(reading, latency, name)


def _shown(estimate: Bounded) -> str:
    return f"{estimate.value:.3f}, 95% interval {estimate.low:.3f} to {estimate.high:.3f}"


class _Reading:
    """Records as they are read: the calls that count, and what was seen of the others."""

    def __init__(self, failures: Failures, library: ToolLibrary | None) -> None:
        self.calls: list[RecordedCall] = []
        self.outcomes = Counter[str]()
        self.dependencies: dict[str, tuple[str, ...]] = {}
        self.has_order = False
        self.sides = Counter[bool]()  # injected failures, by whether the function had run
        self._loses_answers = False
        self._failures = failures
        self._library = library

    def read(self, source: Path) -> None:
        """Read a folder, or a file of calls."""
        folder, lines = (source.parent, source) if source.is_file() else (source, source / CALLS_NAME)
        if lines.is_file() and lines.name != EPISODES_NAME:
            manifest = load_manifest(folder / MANIFEST_NAME)
            self._read_calls(lines, {} if manifest is None else manifest["arguments"])
        elif (folder / EPISODES_NAME).is_file():
            arguments = read_manifest(folder)["arguments"]
            refuse_explored(folder, arguments, "a law is fitted to calls that were drawn")
            self._depend(library_of_run(arguments, self._library, folder))
            for record in read_records(folder):
                self._take(_of_episode(record["steps"]), True)
        else:
            raise StoreError(
                f"{source} holds no recorded calls: expected a folder with {CALLS_NAME} or {EPISODES_NAME}"
            )

    def _read_calls(self, path: Path, arguments: Mapping[str, Any]) -> None:
        program = dict(arguments.get("inject") or {})
        law = (arguments.get("environment") or {}).get("law") or {}
        self._loses_answers = program.get("fail") == "after" or "lost_answer" in law
        if self._library is not None:
            self._depend(self._library)
        elif program:
            self.dependencies |= {tool["name"]: tuple(tool["dependencies"]) for tool in program["functions"]}
        episodes: dict[int, list[CallLine]] = {}
        alone = []
        for number, line in enumerate(read_json_lines(path), start=1):
            call = _checked(line, f"line {number} of {path}")
            if "episode" in call:
                episodes.setdefault(call["episode"], []).append(call)
            else:
                alone.append(call)
        for calls in (episodes if self._failures == "real" else _of_other_draws(episodes)).values():
            self._take(calls, True)
        for call in alone:
            self._take([call], False)

    def _depend(self, library: ToolLibrary) -> None:
        self.dependencies |= {name: tuple(library.dependencies(name)) for name in library.names}

    def _take(self, calls: Iterable[CallLine], has_order: bool) -> None:
        """Take the calls of an episode, in order."""
        status: dict[str, bool] = {}
        failures = Counter[str]()
        follows = False
        self.has_order |= has_order
        for position, call in enumerate(calls):
            tool, outcome = call["tool"], _outcome(call)
            self.outcomes[outcome] += 1
            success = self._counts(call, outcome)
            if outcome == "injected" and self._failures == "injected" and not call.get("forced"):
                self.sides[call.get("ran", False)] += 1
            if success is not None:
                unmet = [status.get(needed) for needed in self.dependencies.get(tool, ())]
                counts = (failures.total(), unmet.count(False), unmet.count(None))
                seconds = call.get("seconds", math.nan)
                error = None if success else call["error"]
                place = call.get("position", position)
                self.calls.append(RecordedCall(tool, success, error, seconds, counts, follows, place, failures[tool]))
                follows = has_order
            # What tools do by themselves follows from what they did; a law that acts counts every failure there was.
            done = success if self._failures == "real" else None if outcome == "misuse" else outcome == "ok"
            if done is not None:
                status[tool] = done or status.get(tool, False)
                failures[tool] += not done

    def _counts(self, call: CallLine, outcome: Outcome) -> bool | None:
        """Return whether a call was a success in the sense that is asked for; None if it says nothing about it."""
        if call.get("forced") or outcome == "misuse" or (call["error"] in _GIVEN_UP and self._failures != "injected"):
            return None
        if self._failures == "all":
            return outcome == "ok"
        if self._failures == "real":
            return None if outcome == "injected" and not call.get("ran", True) else outcome != "real"
        # A function that ran and failed hides whether its answer would have been lost afterwards.
        return None if outcome == "real" and self._loses_answers else outcome != "injected"


def _of_other_draws(episodes: Mapping[int, list[CallLine]]) -> dict[int, list[CallLine]]:
    """Return the last episode of each seed: those before it had the same draws, which count once."""
    last = {calls[0].get("seed"): episode for episode, calls in episodes.items()}
    return {
        episode: calls
        for episode, calls in episodes.items()
        if "seed" not in calls[0] or last[calls[0]["seed"]] == episode
    }


def _checked(line: object, where: str) -> CallLine:
    call = validated(CallLine, line, where, error=StoreError)
    if "tool" not in call or "error" not in call:
        raise StoreError(f"{where} is no recorded call: expected at least the fields 'tool' and 'error'")
    return call


def _outcome(call: CallLine) -> Outcome:
    return call.get("outcome", "ok" if call["error"] is None else "real")


def _of_episode(steps: Iterable[Mapping[str, Any]]) -> Iterator[CallLine]:
    """Yield the executions of an episode as calls."""
    for position, step in enumerate(steps):
        if step["attempt"] is not None:
            outcome = "ok" if step["success"] else "real" if step.get("real") else "injected"
            measured = {"seconds": step["seconds"]} if "seconds" in step else {}
            ran = outcome != "injected" or step.get("result") in _LOST_ANSWERS
            line = {"tool": step["tool"], "error": step["error"], "outcome": outcome, "ran": ran}
            line |= {"forced": step.get("forced", False)}
            yield cast("CallLine", line | {"position": position} | measured)


def _fitted(reading: _Reading, latency: bool, name: str) -> FittedLaw:
    calls = reading.calls
    names = sorted({call.tool for call in calls})
    factors, warnings = _estimable(calls, names, FACTORS if any(reading.dependencies.values()) else FACTORS[:1])
    places = [FACTORS.index(factor) for factor in factors]
    cells: dict[tuple[int, ...], list[int]] = {}
    for call in calls:
        cell = cells.setdefault((names.index(call.tool), *(call.counts[place] for place in places)), [0, 0])
        cell[0] += 1
        cell[1] += call.success
    keys, sums = zip(*sorted(cells.items()), strict=True)
    unit, counts = [key[0] for key in keys], [key[1:] for key in keys]
    rates = fit_product_rates(unit, counts, [one[0] for one in sums], [one[1] for one in sums])
    factor_estimates = dict(zip(factors, rates.factors, strict=True))
    tools = tuple(
        _tool(tool, [call for call in calls if call.tool == tool], base)
        for tool, base in zip(names, rates.bases, strict=True)
    )
    errors = sum((Counter(row.errors) for row in tools), Counter[str]())
    values = {name: round(one.value, _DIGITS) for name, one in factor_estimates.items()}
    law = Law(
        name=name,
        description=f"Fitted to {count_of(len(calls), 'call')} of {count_of(len(tools), 'tool')}.",
        base=round(sum(row.base.value * row.calls for row in tools) / len(calls), _DIGITS),
        not_executed=values.get("not_executed", 1.0),
        failed=values.get("failed", 1.0),
        history=values.get("history", 1.0),
        bases={row.tool: round(row.base.value, _DIGITS) for row in tools},
        errors=dict(errors.most_common()),
        latency=_latency(calls) if latency else None,
        lost_answer=_lost_answer(reading.sides),
    )
    warnings += _untold(reading, tools, law, factors)
    return FittedLaw(law, len(calls), tools, factor_estimates, tuple(warnings))


def _lost_answer(sides: Counter[bool]) -> LostAnswer | None:
    """Return how many of the injected failures came after the run; none if none did, or nobody wrote it down."""
    return LostAnswer(round(sides[True] / sides.total(), _DIGITS)) if sides[True] else None


def _tool(name: str, calls: Sequence[RecordedCall], base: Bounded) -> FittedTool:
    errors = Counter(str(call.error) for call in calls if not call.success and call.error != DEPENDENCY_ERROR)
    seconds = [call.seconds for call in calls if call.success and not math.isnan(call.seconds)]
    percentiles = tuple(float(percentile) for percentile in np.percentile(seconds, PERCENTILES)) if seconds else ()
    return FittedTool(name, len(calls), sum(call.success for call in calls), base, dict(errors), percentiles)


def _estimable(
    calls: Sequence[RecordedCall], names: Sequence[str], wanted: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the factors that the calls can tell from each other, and why others cannot be told."""
    seen = sorted({(names.index(call.tool), *call.counts) for call in calls})
    design = np.eye(len(names))[[cell[0] for cell in seen]]
    estimable, warnings = [], []
    for place, factor in enumerate(wanted):
        applied = sum(call.counts[place] > 0 for call in calls)
        more = np.column_stack([design, [cell[1 + place] for cell in seen]])
        if applied < FEW_CALLS:
            warnings.append(f"{_CASES[factor]} ({count_of(applied, 'call')}): {factor} is left at 1.")
        elif np.linalg.matrix_rank(more) <= design.shape[1]:
            warnings.append(f"{factor} cannot be told from what else differs between calls: it is left at 1.")
        else:
            design = more
            estimable.append(factor)
    return estimable, warnings


_CASES: Mapping[str, str] = {
    "history": "Too few calls came after a failure in the same episode",
    "failed": "Too few calls were made while a tool that they depend on had failed",
    "not_executed": "Too few calls were made before a tool that they depend on",
}


def _untold(reading: _Reading, tools: Sequence[FittedTool], law: Law, factors: Sequence[str]) -> list[str]:
    """Return what the calls do not tell, and what they show that the law leaves out."""
    calls, warnings = reading.calls, []
    seen = reading.outcomes
    if seen["misuse"]:
        warnings.append(f"{count_of(seen['misuse'], 'call')} with arguments that the tool does not take are left out.")
    if seen["injected"] and seen["real"]:
        warnings.append(
            f"Of the failures {seen['injected']} were injected and {seen['real']} the tools' own; which of them count "
            "is what --failures (failures=) says."
        )
    few = [row.tool for row in tools if row.calls < FEW_CALLS]
    if few:
        warnings.append(f"Fewer than {FEW_CALLS} calls: {', '.join(few)}; their intervals say how little is known.")
    if never := [row.tool for row in tools if row.successes == 0]:
        warnings.append(f"Never succeeded: {', '.join(never)}; the law gives the chance of half a success.")
    if missing := [name for name in reading.dependencies if name not in law.bases]:
        warnings.append(f"Never called: {', '.join(missing)}; the law gives them the mean of the others.")
    if not any(reading.dependencies.values()):
        warnings.append("No dependencies are known, so nothing is said about which tool needs which (--library).")
    needy = {call.tool for call in calls if call.counts[1] or call.counts[2]}
    if always := [row.tool for row in tools if reading.dependencies.get(row.tool) and row.tool not in needy]:
        warnings.append(
            f"Never called before what they depend on: {', '.join(always)}; the factors are those of others."
        )
    if not reading.has_order:
        warnings.append("These calls have no order, so nothing is said about what one changes for the next.")
    if reading.has_order:
        with_chances = _with_chances(calls, law, factors)
        signs = list(signs_of_order(with_chances))
        warnings += signs
        warnings += what_order_hides(with_chances)
        if signs:
            warnings.append(
                "Where calls do not look as if the law drew them, intervals are narrower than they should be."
            )
    return [*warnings, *_of_errors(tools), *_of_latency(tools, law)]


def _with_chances(calls: Sequence[RecordedCall], law: Law, factors: Sequence[str]) -> FittedCalls:
    counts = np.array([[call.counts[FACTORS.index(factor)] for factor in factors] for call in calls], dtype=np.float64)
    bases = np.array([law.bases[call.tool] for call in calls])
    names = list(law.bases)
    of_tools = np.eye(len(names))[[names.index(call.tool) for call in calls]]
    return FittedCalls(
        success=np.array([call.success for call in calls], dtype=np.float64),
        chance=bases * np.prod(np.array([getattr(law, factor) for factor in factors]) ** counts, axis=1),
        design=np.hstack([of_tools, counts]),
        position=np.array([call.position for call in calls], dtype=np.float64),
        own_failures=np.array([call.own_failures for call in calls], dtype=np.float64),
        follows=np.array([call.follows for call in calls], dtype=bool),
    )


def _of_errors(tools: Sequence[FittedTool]) -> Iterator[str]:
    if limited := sum(row.errors.get("RATE_LIMIT_ERROR", 0) for row in tools):
        yield f"RATE_LIMIT_ERROR came {count_of(limited, 'time')}: the law draws it, and knows no limit behind it."
    if errors_differ([row.errors for row in tools]):
        yield "Tools differ in their errors; the law draws codes alike for all that document them."


def _of_latency(tools: Sequence[FittedTool], law: Law) -> Iterator[str]:
    medians = [row.seconds[0] for row in tools if row.seconds]
    if not medians:
        yield "Nobody measured how long calls took."
    elif law.latency is None:
        yield "How long calls took is no part of the law (--latency puts it there)."
    elif max(medians) > 2.0 * min(medians):
        yield (
            f"Medians of the tools' durations go from {min(medians):.3g} to {max(medians):.3g} seconds; the law has "
            "one distribution for all."
        )


def _latency(calls: Sequence[RecordedCall]) -> Latency | None:
    """Return ten durations, all equally likely, of calls that succeeded."""
    seconds = [call.seconds for call in calls if call.success and not math.isnan(call.seconds)]
    if not seconds:
        return None
    shares = 100.0 * (np.arange(_SHARES) + 0.5) / _SHARES
    counted = Counter(round(float(duration), 3) for duration in np.percentile(seconds, shares))
    return Latency(tuple(Duration(duration, count / _SHARES) for duration, count in sorted(counted.items())))
