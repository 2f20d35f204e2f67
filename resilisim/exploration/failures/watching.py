"""Playing an episode again with other results of its calls, while what each brings and could bring is noted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from resilisim.envs.session import not_repeated
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.simulator.draws import AFTER, BEFORE, CORRUPTED, KEYED, OK, Draws, Forced, Hidden
from resilisim.simulator.failures import (
    RATE_LIMIT_ERROR,
    SERVICE_UNAVAILABLE,
    TIMEOUT,
    Failure,
    PendingCall,
    documented_errors,
)
from resilisim.simulator.rulebook.build import weighed_errors
from resilisim.simulator.rulebook.dynamics import Draw
from resilisim.simulator.rulebook.lost_answers import shown_result
from resilisim.simulator.rulebook.rules import CORRUPT, DOWN, FAILURE, LIMITED, SLOW, SUCCESS, is_opened
from resilisim.simulator.state import TURNS_USED

_OF_THE_LAW = {LIMITED: RATE_LIMIT_ERROR, DOWN: SERVICE_UNAVAILABLE, SLOW: TIMEOUT}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something else than success that a call can bring.

    Attributes:
        result: "corrupt", or the code of an error, as `--force` takes it.
        kind: Number of the law's result (`rulebook.rules`): codes of one kind are told apart by words alone.
        chance: Its probability by what an agent can know.
    """

    result: str
    kind: int
    chance: float


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an episode: what it brought, and what it could have brought.

    Attributes:
        tool: Name of the tool.
        attempt: Which execution of the tool it was, from 1.
        turn: Number of the message that made it, from 1.
        result: What it brought: "ok", "corrupt", or the code of an error.
        kind: Number of the law's result.
        chance: How likely that was by what an agent can know, whatever the words: 0 of what was forced and could not
            happen.
        ran: Whether the tool has run, although its answer is lost.
        faults: What it could have brought instead of success.
        can_be_slow: Whether it could have succeeded, and taken time.
    """

    tool: str
    attempt: int
    turn: int
    result: str
    kind: int
    chance: float
    ran: bool
    faults: tuple[Fault, ...] = field(repr=False)
    can_be_slow: bool = False

    @property
    def place(self) -> tuple[str, int]:
        """Tool and number of the call."""
        return self.tool, self.attempt

    @property
    def has_failed_by_luck(self) -> bool:
        """Whether it went wrong where it could have gone right."""
        return self.result != OK and self.chance < 1.0

    @property
    def can_be_forced(self) -> bool:
        """Whether what it brought can be asked for: a failure that tells of dependencies cannot."""
        if self.kind == CORRUPT:
            return any(fault.kind == CORRUPT for fault in self.faults)
        return self.result == OK or any((fault.result, fault.kind) == (self.result, self.kind) for fault in self.faults)

    def __str__(self) -> str:
        """Return it as `--force` takes it."""
        return f"{self.tool}#{self.attempt}={self.result}"


class _Watched:
    """Draws that note what each call brought."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self.hidden = draws.hidden
        self.calls: list[Call] = []

    def draw(self, call: PendingCall) -> tuple[Draw, Failure | None]:
        """Return what a call brings (`Draws.draw`)."""
        draw, failure = self._draws.draw(call)
        chances = _chances(call)
        result = failure.code if failure is not None else OK
        faults = tuple(_faults(call, chances))
        name, attempt, turn = call.name, call.executions + 1, call.state.counters[TURNS_USED] + 1
        kind, is_lost = shown_result(draw.result), draw.runs and not draw.passes
        chance, side = chances.get(kind, 0.0), _sides(call, kind).get(is_lost)
        if side is not None:
            result, chance = f"{result}/{AFTER if is_lost else BEFORE}", chance * side
        if kind == CORRUPT:  # in the way that was said, if one was
            said = self._draws.said(name, attempt) or ""
            result = said if said.startswith(CORRUPTED) else CORRUPTED
        can_be_slow = call.dynamics.numbers.law.latency is not None and chances.get(SUCCESS, 0.0) > 0.0
        self.calls.append(Call(name, attempt, turn, result, kind, chance, is_lost, faults, can_be_slow))
        return draw, failure

    def said(self, tool: str, attempt: int) -> str | None:
        """Return what was said beforehand of a call (`Draws.said`)."""
        return self._draws.said(tool, attempt)


def _chances(call: PendingCall) -> dict[int, float]:
    """Return how likely each kind of result is by what an agent can know; of answers, whether they are sound, too."""
    chances: dict[int, float] = {}
    for chance, draw in call.dynamics.draws(replace(call.state, hidden=()), call.tool, call.message):
        chances[draw.result] = chances.get(draw.result, 0.0) + chance
    rules = call.dynamics.rules
    if not rules.shows_payload and rules.corrupt_chance[call.tool] > 0.0 and SUCCESS in chances:
        chances[CORRUPT] = chances[SUCCESS] * float(rules.corrupt_chance[call.tool])
        chances[SUCCESS] -= chances[CORRUPT]
    return chances


def _faults(call: PendingCall, chances: Mapping[int, float]) -> Iterable[Fault]:
    """Yield what a call could bring instead of success; the codes of a kind share its chance by their weights."""
    for kind, weighed in _codes(call).items():
        shares = []
        for code, weight in weighed if chances.get(kind, 0.0) > 0.0 else ():
            draw, _ = Forced({(call.name, call.executions + 1): code}).draw(call)
            if shown_result(draw.result) == kind:  # a code that the law has a meaning for stands for that alone
                shares.append((code, weight))
        total = sum(weight for _, weight in shares)
        sides = _sides(call, kind)
        for code, weight in shares:
            chance = chances[kind] * weight / total
            for is_lost, side in sides.items():
                yield Fault(f"{code}/{AFTER if is_lost else BEFORE}", kind, chance * side)
            if not sides:
                yield Fault(code, kind, chance)


def _sides(call: PendingCall, kind: int) -> dict[bool, float]:
    """Return how likely a failure is to come before the run, or after it, where the law lets both happen."""
    lost = call.problem.law.lost_answer
    share = call.dynamics.rules.lost_share[call.tool] if kind in (FAILURE, SLOW) and lost is not None else 0.0
    if not 0.0 < share < 1.0:
        return {}
    share = call.dynamics.share_lost(replace(call.state, hidden=()), call.tool, kind)
    return {False: 1.0 - share, True: share}


def _codes(call: PendingCall) -> dict[int, list[tuple[str, float]]]:
    """Return by kind of result which codes it is shown with, each with its weight."""
    numbers = call.dynamics.numbers
    law = numbers.law
    codes = {kind: [(code, 1.0)] for kind, code in _OF_THE_LAW.items()} | {CORRUPT: [(CORRUPTED, 1.0)]}
    if law.corrupt is not None and law.corrupt.kinds is not None:
        codes[CORRUPT] = [(f"{CORRUPTED}:{kind}", 1.0) for kind in law.corrupt.kinds]
    if law.error_kinds is not None:
        opened = is_opened(call.dynamics.rules, call.state.status)
        for weighed in weighed_errors(law, call.described, numbers.facts[call.tool].is_opener, opened):
            codes.setdefault(weighed.result, []).append((weighed.error.code, weighed.weight))
        return codes
    specs = documented_errors(call)
    weights = [law.error_weight(spec.code) for spec in specs]
    if not sum(weights) > 0.0:
        weights = [1.0] * len(specs)
    codes[FAILURE] = [(spec.code, weight) for spec, weight in zip(specs, weights, strict=True) if weight > 0.0]
    return codes


@dataclass(frozen=True)
class Steady:
    """Draws by which every call succeeds that can, but for those of which something else is said.

    Attributes:
        calls: What calls bring, by tool and number of the call (`Forced`).
        lasting: By tool, from which call on it fails, and with what.
    """

    calls: Mapping[tuple[str, int], str]
    lasting: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    hidden: ClassVar[Hidden] = "drawn"

    def draw(self, call: PendingCall) -> tuple[Draw, Failure | None]:
        """Return what a call brings (`Draws.draw`)."""
        attempt = call.executions + 1
        result = self.said(call.name, attempt)
        if result is None and _chances(call).get(SUCCESS, 0.0) > 0.0:
            result = OK
        if result is None:
            return KEYED.draw(call)
        return Forced({(call.name, attempt): result}).draw(call)

    def said(self, tool: str, attempt: int) -> str | None:
        """Return what was said beforehand of a call (`Draws.said`)."""
        first, lasting = self.lasting.get(tool, (attempt + 1, OK))
        return self.calls.get((tool, attempt), lasting if attempt >= first else None)


@dataclass(frozen=True, slots=True)
class Watching:
    """One play of a case.

    Attributes:
        record: Its record.
        calls: Its calls.
    """

    record: EpisodeRecord
    calls: tuple[Call, ...]

    @property
    def is_lost(self) -> bool:
        """Whether it did not succeed."""
        return self.record["outcome"] == 0

    @property
    def probability(self) -> float:
        """How likely it is that the calls bring what they brought, durations and words apart, if they are made."""
        product = 1.0
        for call in self.calls:
            product *= call.chance
        return product

    def optimum_after(self, turn: int) -> float:
        """Return V* after a message, that of the start after message 0."""
        step = self.record["steps"][max(turn, 1) - 1]
        return step["action_value"] + step["luck"] if turn else step["value"]


class Playable:
    """An episode that can be played again with other results of its calls.

    Args:
        name: What it is, in words.
        play: Plays it with other draws.
        reproducing: Says in two lines how to play it with forced calls.
        forced: Returns its own draws, but for forced calls.
        calls: What it is said beforehand that calls bring, by tool and number of the call: in every play.
        recorded: The episode as it was, if it comes from a run.
        folder: What has to live as long as this.
        is_program: Whether it is a program, whose functions have run where their answers are lost.
        turned: Of a program, the same with failures on the other side of the run, if all are on one.
    """

    def __init__(
        self,
        name: str,
        play: Callable[[Draws], EpisodeRecord],
        reproducing: Callable[[Sequence[str]], tuple[str, str]],
        forced: Callable[[Sequence[str]], Draws],
        calls: Mapping[tuple[str, int], str],
        recorded: EpisodeRecord | None = None,
        folder: object = None,
        is_program: bool = False,
        turned: Playable | None = None,
    ) -> None:
        self.name, self.calls, self.recorded = name, calls, recorded
        self._play, self._reproducing, self._forced = play, reproducing, forced
        self.is_program, self.turned = is_program, turned
        self._folder = folder  # of replies that are kept as long as the case is
        self._messages: dict[tuple[object, ...], str] = {}  # by what was sent and brought before

    def play(self, force: Sequence[str] = ()) -> EpisodeRecord:
        """Play it again, and return the record; `force` says what calls bring, such as "network_fetcher#2=TIMEOUT".

        Raises:
            InvalidInputError: What is said means nothing, or names what the tool cannot have; or the agent does not
                repeat itself.
        """
        return self.watch_forced(force).record

    def watch(self, draws: Draws) -> Watching:
        """Play it with other draws.

        Raises:
            InvalidInputError: The agent has sent something else before when all was as it is now.
        """
        watched = _Watched(draws)
        played = Watching(self._play(watched), tuple(watched.calls))
        self._check_repeats(played)
        return played

    def _check_repeats(self, played: Watching) -> None:
        """Refuse a message that is another one than before, after the same messages that have brought the same."""
        brought = {call.turn: call.result for call in played.calls}
        history: tuple[object, ...] = ()
        for place, step in enumerate(played.record["steps"]):
            message = step["message"] or step["kind"]
            before = self._messages.setdefault(history, message)
            if before != message:
                raise not_repeated(place, message, before, self.name)
            history = (history, message, brought.get(place + 1), step["success"], step["error"], step.get("seconds"))

    def watch_forced(self, force: Sequence[str]) -> Watching:
        """Play it with its own draws, but for calls of which it is said what they bring."""
        return self.watch(self._forced(force))

    def reproducing(self, force: Sequence[str]) -> tuple[str, str]:
        """Return two lines that play it so: of a run a command or a call, of a program one after the other."""
        return self._reproducing(force)
