"""What `@pytest.mark.resilisim` does with a test: it is played branch by branch until its verdict is certain.

pytest itself is not imported here: the plugin (`resilisim_pytest`) hands over what is to be played.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from resilisim.bounds import Count, checked
from resilisim.envs.session import NotRepeatedError, not_repeated
from resilisim.errors import InvalidInputError, check_number, unknown_argument
from resilisim.evaluation.episode.record import EpisodeRecord, weight_of
from resilisim.evaluation.table.gate import ROOMS, luck_within
from resilisim.exploration import Case, explore_program
from resilisim.exploration.failures.pattern import Pattern
from resilisim.exploration.failures.watching import Watching
from resilisim.exploration.programs import ExploredProgram
from resilisim.injection import inject
from resilisim.injection.functions import Injected, NamedFunctions
from resilisim.injection.own_program import Functions, Program
from resilisim.simulator.draws import Branch
from resilisim.statistics.sequential import Measure, mean_bounds
from resilisim.tables.numbers import percent

BELOW_OPTIMUM: Final = 0.05
PLAYS: Final = 200
ALPHA: Final = 0.01  # of tests that are sampled: many stand in a suite
CHECKS: Final = 2  # plays of the likeliest branch, beside its own, that tell whether a test repeats itself
_OWN: Final = ("below_optimum", "plays", "seeds", "alpha", "reset")
_ROUNDING: Final = 1e-9


class InjectedTools(NamedFunctions):
    """The functions under a law that a test is handed: the same objects in every play, by place or by name.

    Attributes:
        functions: The functions themselves.
        calls: The calls of the play under way.
    """

    def __init__(self, functions: Functions) -> None:
        self.functions = functions if isinstance(functions, Mapping) or callable(functions) else tuple(functions)
        self._injected: Injected | None = None
        listed = (self.functions,) if callable(self.functions) else self.functions
        each = listed.values() if isinstance(listed, Mapping) else listed
        named = zip((wrapped.__name__ for wrapped in inject(self.functions)), each, strict=True)
        self._wrapped = {name: self._delegate(name, function) for name, function in named}

    def begin(self, injected: Injected) -> None:
        """Let the functions be those of an episode from now on."""
        self._injected = injected

    @property
    def calls(self) -> Sequence[Any]:
        """The calls of the play under way, in the order in which they ended."""
        return () if self._injected is None else self._injected.calls

    def _delegate(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def current() -> Callable[..., Any]:
            if self._injected is None:
                raise InvalidInputError(f"{name} was called before the test began: expected calls in its body alone")
            return self._injected[name]

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def handed(*args: Any, **kwargs: Any) -> Any:
                return await current()(*args, **kwargs)

        else:

            @functools.wraps(function)
            def handed(*args: Any, **kwargs: Any) -> Any:
                return current()(*args, **kwargs)

        return handed


@dataclass(frozen=True, slots=True)
class JudgedTest:
    """What became of a test.

    Attributes:
        passed: Whether it is good enough, as far as known.
        text: What is said of it.
        properties: Numbers for reports.
        is_open: Whether it passed although nobody can tell.
    """

    passed: bool
    text: str
    properties: Mapping[str, object] = field(default_factory=dict)
    is_open: bool = False


def judge_test(
    body: Callable[[], object], tools: InjectedTools, options: Mapping[str, Any], nodeid: str, force: Sequence[str] = ()
) -> JudgedTest:
    """Play a test under its law, and say whether its success rate is close enough to the best possible one.

    Args:
        body: The test; it calls the tools.
        tools: What it calls.
        options: Those of the marker, but for the tools.
        nodeid: What pytest calls it.
        force: What calls bring, said beforehand: it is then played once, and raises what it raises.

    Raises:
        InvalidInputError: An option is unusable.
        Exception: What the test raises, where calls are forced or nobody can say that it is its own fault.
    """
    settings = _checked(options)
    for_inject = {name: value for name, value in settings.items() if name not in _OWN}

    def program(injected: Injected) -> object:
        tools.begin(injected)
        return body()

    program.__name__ = body.__name__
    if force:
        return _forced(program, tools, settings, {**for_inject, "force": [*for_inject.get("force", ()), *force]})
    if settings["seeds"] is not None:
        return _sampled(program, tools, settings, for_inject)
    below: float = settings["below_optimum"]
    plays: int = settings["plays"]
    played = 0

    def is_settled(low: float, high: float, optimum: float) -> bool:
        nonlocal played
        played += 1
        least = optimum - below - _ROUNDING
        return low >= least or high < least or played >= plays

    try:
        explored = explore_program(
            program,
            tools.functions,
            reset=settings["reset"],
            plays=plays,
            until=is_settled,
            progress=False,
            **for_inject,
        )
        again = Case.of_program(program, tools.functions, reset=settings["reset"], **for_inject)
        return _told(explored, again, settings, nodeid)
    except NotRepeatedError as error:
        text = (
            f"the test does not repeat itself, so its success rate cannot be computed: {error}\n"
            "Make it repeat itself (fixed seeds, kept replies of models), or sample it: "
            "@pytest.mark.resilisim(..., seeds=100)"
        )
        return JudgedTest(False, text)


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with what was left out.

    Raises:
        InvalidInputError: One is unusable.
    """
    known = {name for name in inspect.signature(inject).parameters if name not in ("functions", "record", "seed")}
    for name in options:
        if name not in known | set(_OWN):
            raise unknown_argument("the marker resilisim", name, sorted(known | {*_OWN, "tools"}))
    settings: dict[str, Any] = {
        "below_optimum": BELOW_OPTIMUM,
        "plays": PLAYS,
        "seeds": None,
        "alpha": ALPHA,
        "reset": None,
    }
    settings |= options
    check_number("below_optimum", settings["below_optimum"], 0.0, below=1.0)
    check_number("alpha", settings["alpha"], above=0.0, below=1.0)
    checked(Count, "plays", settings["plays"])
    if settings["seeds"] is not None:
        checked(Count, "seeds", settings["seeds"])
    for name in ("required", "once"):
        if isinstance(settings.get(name), Sequence) and not isinstance(settings[name], str):
            settings[name] = [getattr(each, "__name__", each) for each in settings[name]]
    return settings


def _told(explored: ExploredProgram, case: Case, settings: Mapping[str, Any], nodeid: str) -> JudgedTest:
    row, below = explored.row, settings["below_optimum"]
    optimum = explored.records[0]["optimum"]
    for _ in range(CHECKS):
        _again(case, explored.records[0])
    least = optimum - below - _ROUNDING
    properties = {"resilisim_low": row.low, "resilisim_high": row.high, "resilisim_optimum": optimum}
    properties["resilisim_plays"] = row.plays
    rate = f"{percent(row.low)}%" if row.is_exact else f"{percent(row.low)}% to {percent(row.high)}%"
    known = f"success rate {rate}{' exactly' if row.is_exact else ''} after {row.plays} plays, V* {percent(optimum)}%"
    if row.low >= least:
        return JudgedTest(True, f"{known}: at most {100.0 * below:g} points below it", properties)
    if row.high < least:
        lines = [f"{known}: more than {100.0 * below:g} points below the best possible rate"]
    else:
        open_yet = (
            f"whether that is more than {100.0 * below:g} points below it cannot be told in {settings['plays']} plays"
        )
        lines = [f"{known}: {open_yet}; give it more (plays={2 * settings['plays']}, or --resilisim-plays)"]
    lines += [f"  lost to {cause.replace('_', ' ')}: {percent(loss)} points" for cause, loss in _largest(row.losses)]
    lines += _patterns(explored, case, settings["plays"], nodeid)
    return JudgedTest(False, "\n".join(lines), properties)


def _largest(losses: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(((cause, loss) for cause, loss in losses.items() if loss > 0.0005), key=lambda entry: -entry[1])[:3]


def _patterns(explored: ExploredProgram, case: Case, plays: int, nodeid: str) -> list[str]:
    """Return the likeliest and the smallest losing pattern in words, and the lines that play the latter again."""
    lost = [record for record in explored.records if not record["outcome"] and record["regret"] > _ROUNDING]
    if not lost:
        return []
    likeliest = max(lost, key=weight_of)
    watched = _again(case, likeliest)
    force = [str(call) for call in watched.calls if call.chance < 1.0 and call.can_be_forced]
    pattern = Pattern.of(case, watched, force)
    smallest = case.adversary(above=0.0, plays=plays, progress=False).pattern or pattern
    lines = [f"  likeliest loss, {percent(weight_of(likeliest))}% of all runs: {_failures(pattern)}"]
    lines += [f"    {words}" for words in _raised(likeliest)]
    if len(smallest.failures) >= len(pattern.failures):
        smallest = pattern
    else:
        left = smallest.failures[-1].optimum_after if smallest.failures else smallest.optimum
        after = "" if left is None else f", V* still {percent(left)}%"
        lines.append(f"  smallest loss{after}: {_failures(smallest)}")
    words = [word for text in smallest.force for word in ("--resilisim-force", text)]
    line = shlex.join(["pytest", nodeid, *words]) if words else shlex.join(["pytest", nodeid])
    return [*lines, "  again:", f"    {line}", *(f"    {each}" for each in smallest.reproduce)]


def _again(case: Case, record: EpisodeRecord) -> Watching:
    """Play a branch again.

    Raises:
        NotRepeatedError: Other calls are made, or it ends otherwise.
    """
    watched = case.watch(Branch.of_texts(record["branch"]))
    calls, before = ([step["message"] for step in each["steps"]] for each in (watched.record, record))
    for place, (now, then) in enumerate(itertools.zip_longest(calls, before)):
        if now != then:
            raise not_repeated(place, now, then, "it")
    if watched.record["outcome"] != record["outcome"]:
        raise NotRepeatedError("it succeeds and fails where its calls bring the same")
    return watched


def _failures(pattern: Pattern) -> str:
    failures = [f"{failure.tool}#{failure.attempt}={failure.result}" for failure in pattern.failures]
    return ", ".join(failures) or "although no call fails by luck"


def _raised(record: EpisodeRecord) -> list[str]:
    step = record["steps"][-1]
    return [step["error"]] if step["kind"] == "agent_error" and step["error"] else []


def _forced(
    program: Callable[[Injected], object],
    tools: InjectedTools,
    settings: Mapping[str, Any],
    for_inject: Mapping[str, Any],
) -> JudgedTest:
    """Play a test once, with what calls bring said beforehand."""
    raised: list[BaseException] = []

    def noting(injected: Injected) -> object:
        try:
            answer = program(injected)
        except BaseException as error:
            raised.append(error)
            raise
        return _noted(answer, raised) if inspect.isawaitable(answer) else answer

    noting.__name__ = program.__name__
    record = Program.of(noting, tools.functions, settings["reset"], **for_inject).play()
    if raised and isinstance(raised[0], Exception):
        raise raised[0]
    if record["outcome"]:
        return JudgedTest(True, "it succeeds with these results of its calls")
    return JudgedTest(False, f"it is lost with these results of its calls: {record['score']}")


async def _noted(answer: Any, raised: list[BaseException]) -> object:
    try:
        return await answer
    except BaseException as error:
        raised.append(error)
        raise


def _sampled(
    program: Callable[[Injected], object],
    tools: InjectedTools,
    settings: Mapping[str, Any],
    for_inject: Mapping[str, Any],
) -> JudgedTest:
    """Play a test with one seed after the other, until bounds that hold however often one looks say enough."""
    below, alpha, seeds = settings["below_optimum"], settings["alpha"], settings["seeds"]
    played = Program.of(program, tools.functions, settings["reset"], **for_inject)
    raw: list[float] = []
    adjusted: list[list[float]] = []
    low, high, optimum = -1.0, 1.0, 0.0
    for seed in range(seeds):
        record = played.play(seed=seed)
        optimum = record["optimum"]
        raw.append(record["outcome"] - optimum)
        adjusted.append([record["outcome"] - optimum - luck_within(record, room) for room in ROOMS])
        number = seed + 1
        if number == seeds or number % max(8, number // 4) == 0:
            measures = [Measure(np.array(raw), 1.0)]
            measures += [
                Measure(np.array(each), 1.0 + room)
                for room, each in zip(ROOMS, zip(*adjusted, strict=True), strict=True)
            ]
            low, high = mean_bounds(measures, np.zeros(number, dtype=np.int64), np.arange(number), alpha)
            if low >= -below or high < -below:
                break
    rate = float(np.mean(raw)) + optimum
    known = (
        f"success rate {percent(rate)}% in {len(raw)} plays, V* {percent(optimum)}%: surely "
        f"{percent(max(-high, 0.0))} to {percent(max(-low, 0.0))} points below it, but for {100.0 * alpha:g}%"
    )
    properties = {"resilisim_rate": rate, "resilisim_optimum": optimum, "resilisim_plays": len(raw)}
    if high < -below:
        return JudgedTest(False, f"{known}; {100.0 * below:g} points were allowed", properties)
    is_open = low < -below
    more = f"; whether {100.0 * below:g} points are kept cannot be told: more seeds=... will" if is_open else ""
    return JudgedTest(True, known + more, properties, is_open)
