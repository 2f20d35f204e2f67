"""V* and Q* of small problems under laws with parts, by their definition: every call in every state, over beliefs.

Written from docs/specification (3, 4, 7) and docs/environments/failure-models.md alone. It shares no code with the
simulator's transition or solvers: laws and libraries are read as the data that they are, a belief is an explicit
distribution over what is hidden, and nothing is left out because it looks useless.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from resilisim.simulator import EndRules, Event, Goal, Law
from resilisim.tool_library import ToolLibrary

NOT_EXECUTED, FAILED, SUCCEEDED = "n", "f", "s"
OPEN, CLOSED, REFUSED_INPUT = "o", "c", "r"  # of a tool; the last: there is an input that fails surely
NO_OUTPUT, SOUND, CORRUPT, UNCHECKED = "-", "s", "c", "?"  # of an output, as far as an agent can tell
SKIP, FINISH = -1, -2  # beside the numbers of tools: a message that calls nothing (any other than the last), the signal
AGAIN = 100  # added to the number of a tool: its call with the input that was refused last
DIGITS = 12  # of the probabilities by which beliefs are known again
INPUT_CODES = ("INVALID_INPUT", "FILE_NOT_FOUND", "CALCULATION_ERROR", "OVERFLOW")
ACCESS_CODES = ("PERMISSION_DENIED", "AUTHENTICATION_FAILED")


class TooMuchWorkError(Exception):
    """The problem is too large for this way of solving it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the law and the library say of one tool; shares are of failures that are not of dependencies."""

    needs: tuple[int, ...]
    base: float
    place: int | None
    rate_key: str | None
    group: str | None
    broken: float
    corrupt: float
    validates: bool
    opens: bool
    input_share: float
    access_share: float
    opened_input_share: float
    only_once: bool
    lost_share: float
    checker: int | None
    is_counted: bool  # whether it makes a difference how often it has run


class Known(NamedTuple):
    """What an agent can see of a running episode."""

    status: tuple[str, ...]
    done: int
    failures: int
    in_a_row: int
    used: int
    repeated: int | None  # the tool that the row of equal unproductive calls repeats
    times: int
    windows: tuple[tuple[bool, ...], ...]  # for each rate key which of the last messages called, the latest first
    access: tuple[str, ...]
    outputs: tuple[str, ...]
    time: int


class Hidden(NamedTuple):
    """What it cannot see."""

    down: tuple[bool, ...]
    broken: tuple[bool, ...]
    corrupt: tuple[bool, ...]
    runs: tuple[int, ...]  # of each tool, as far as it makes a difference: 0, 1, or 2 for more


class Seen(NamedTuple):
    """What a call shows.

    That is its result, how long it took where that is counted, which outputs were found corrupt, and how often tools
    have run of which it tells.
    """

    result: str
    took: int = 0
    found: tuple[bool, ...] | None = None
    told: tuple[int, ...] = ()
    hidden: Hidden | None = None  # what the informed see beside


Belief = tuple[tuple[Hidden, float], ...]


class Ended(NamedTuple):
    """An ended episode that failed, or one that cannot succeed any more."""


class Beliefs:
    """A problem, its rules and its values.

    Args:
        library: The tools.
        goal: What has to happen.
        law: The law.
        rules: The end rules.
        informed: Whether the agent sees what is hidden.
        most: Calls in a state with something hidden that may be looked at before `TooMuchWorkError` is raised.
    """

    def __init__(
        self,
        library: ToolLibrary,
        goal: Goal,
        law: Law,
        rules: EndRules,
        informed: bool = False,
        most: int = 1_000_000,
    ) -> None:
        self.names, self.law, self.rules, self.informed, self.most = library.names, law, rules, informed, most
        self.goal, self.num_required = goal, len(goal.required)
        self.tools = [_facts(library, name, goal, law) for name in self.names]
        self.keys = sorted({one.rate_key for one in self.tools if one.rate_key is not None})
        self.groups = sorted({one.group for one in self.tools if one.group is not None})
        self.durations = [(round(one.seconds * 1000), one.probability) for one in _durations(law)]
        self.values: dict[tuple[Known, Belief], float] = {}
        self.only_once = [tool for tool, one in enumerate(self.tools) if one.only_once]
        self._steps: dict[tuple[bool, ...], list[tuple[float, tuple[bool, ...]]]] = {}
        self.looked_at = 0

    # The start

    def start(self) -> Known:
        """Return what is known at the start."""
        size = len(self.tools)
        window = (False,) * (self.law.rate_limit.window - 1 if self.law.rate_limit else 0)
        kept = ((NOT_EXECUTED,) * size, 0, 0, 0, 0, None, 0, (window,) * len(self.keys))
        return Known(*kept, (OPEN,) * size, (NO_OUTPUT,) * size, 0)

    def first_belief(self) -> Belief:
        """Return what is believed at the start: outages in their long run, each tool broken by its own chance."""
        down = _share_down(self.law)
        belief = []
        for is_down in itertools.product((False, True), repeat=len(self.groups)):
            for is_broken in itertools.product((False, True), repeat=len(self.tools)):
                chance = 1.0
                for one in is_down:
                    chance *= down if one else 1.0 - down
                for tool, one in zip(self.tools, is_broken, strict=True):
                    chance *= tool.broken if one else 1.0 - tool.broken
                if chance > 0.0:
                    size = len(self.tools)
                    belief.append((Hidden(is_down, is_broken, (False,) * size, (0,) * size), chance))
        return tuple(belief)

    def start_value(self) -> float:
        """Return V* of the start; of the informed, the mean over what can be hidden."""
        if not self.informed:
            return self.value(self.start(), self.first_belief())
        return sum(chance * self.value(self.start(), ((hidden, 1.0),)) for hidden, chance in self.first_belief())

    # The law

    def chance(self, known: Known, tool: int, clean: bool = False) -> float:
        """Return the chance that a sound tool wins the draw of success; `clean`: if its dependencies were met."""
        facts, law = self.tools[tool], self.law
        drift = law.drift.per_message if law.drift is not None else 0.0
        chance = min(max(facts.base + drift * known.used, 0.0), 1.0)
        for needed in () if clean else facts.needs:
            if known.status[needed] == NOT_EXECUTED:
                chance *= law.not_executed
            elif known.status[needed] == FAILED:
                chance *= law.failed
        return chance * float(law.history) ** known.failures

    def is_limited(self, known: Known, tool: int) -> bool:
        """Return whether the rate limit refuses a call now."""
        key, limit = self.tools[tool].rate_key, self.law.rate_limit
        return key is not None and limit is not None and sum(known.windows[self.keys.index(key)]) >= limit.calls

    def is_opened(self, known: Known) -> bool:
        """Return whether a tool that opens what is closed has succeeded."""
        return any(one.opens and status == SUCCEEDED for one, status in zip(self.tools, known.status, strict=True))

    def limit_of_time(self) -> int | None:
        """Return how long a call may take by the timeout alone."""
        latency = self.law.latency
        return None if latency is None or latency.timeout is None else round(latency.timeout * 1000)

    def budget(self) -> int | None:
        """Return how long an episode may take."""
        latency = self.law.latency
        return None if latency is None or latency.budget is None else round(latency.budget * 1000)

    def is_over(self, known: Known) -> bool:
        """Return whether only the closing message is left."""
        budget = self.budget()
        return known.used >= self.rules.max_turns or (budget is not None and known.time >= budget)

    def results(self, known: Known, hidden: Hidden, tool: int, again: bool) -> Iterator[tuple[float, Seen, Hidden]]:
        """Yield chance, what is seen, and what is hidden afterwards, of a call where so much is hidden."""
        facts = self.tools[tool]
        if self.is_limited(known, tool):
            yield 1.0, Seen("rate_limited"), hidden
            return
        if facts.group is not None and hidden.down[self.groups.index(facts.group)]:
            yield 1.0, Seen("outage"), hidden
            return
        if again or (known.access[tool] == CLOSED and not self.is_opened(known)):
            yield 1.0, Seen("refused"), hidden
            return
        budget, limit = self.budget(), self.limit_of_time()
        if budget is not None:
            left = budget - known.time
            limit = left if limit is None else min(limit, left)
        for took, share in self.durations:
            counted = took if budget is not None else 0
            if limit is not None and took > limit:
                seen = Seen("too_slow", limit if budget is not None else 0)
                yield from self._either_side(hidden, tool, share, seen)
                continue
            success = 0.0 if hidden.broken[tool] else self.chance(known, tool)
            yield from self._successes(hidden, tool, share * success, counted)
            yield from self._failures(known, hidden, tool, share * (1.0 - success), counted)

    def run(self, hidden: Hidden, tool: int) -> Hidden:
        """Return what is hidden after a run of a tool."""
        if not self.tools[tool].is_counted:
            return hidden
        down, broken, corrupt, runs = hidden
        return Hidden(down, broken, corrupt, (*runs[:tool], min(runs[tool] + 1, 2), *runs[tool + 1 :]))

    def _either_side(
        self, hidden: Hidden, tool: int, chance: float, seen: Seen
    ) -> Iterator[tuple[float, Seen, Hidden]]:
        """Yield a failure before the run, and after it; a broken tool never runs."""
        share = 0.0 if hidden.broken[tool] else self.tools[tool].lost_share
        yield chance * (1.0 - share), seen, hidden
        if share > 0.0:
            yield chance * share, seen, self.run(hidden, tool)

    def _successes(self, hidden: Hidden, tool: int, chance: float, took: int) -> Iterator[tuple[float, Seen, Hidden]]:
        facts = self.tools[tool]
        shows = self.law.corrupt is None or self.law.corrupt.shows == "payload"
        told = tuple(
            runs if one.only_once else min(runs, 1)
            for one, runs in zip(self.tools, hidden.runs, strict=True)
            if one.checker == tool
        )
        after = self.run(hidden, tool)
        down, broken, before, runs = after
        for is_corrupt, share in ((False, 1.0 - facts.corrupt), (True, facts.corrupt)):
            if share <= 0.0:
                continue
            corrupt = (*before[:tool], is_corrupt, *before[tool + 1 :])
            result = "corrupt" if is_corrupt and shows else "success"
            found = corrupt if facts.validates and not shows else None
            yield chance * share, Seen(result, took, found, told), Hidden(down, broken, corrupt, runs)

    def _failures(
        self, known: Known, hidden: Hidden, tool: int, chance: float, took: int
    ) -> Iterator[tuple[float, Seen, Hidden]]:
        facts, kinds = self.tools[tool], {}
        if self.law.error_kinds is not None:
            # A failure is of the dependencies if with them the draw would have been won; broken tools show the same.
            won, clean = self.chance(known, tool), self.chance(known, tool, clean=True)
            of_a_kind = 1.0 if won >= 1.0 else (1.0 - clean) / (1.0 - won)
            if self.is_opened(known):
                kinds = {"input_failure": of_a_kind * facts.opened_input_share}
            else:
                kinds = {
                    "input_failure": of_a_kind * facts.input_share,
                    "access_failure": of_a_kind * facts.access_share,
                }
        for result, share in kinds.items():
            yield chance * share, Seen(result, took), hidden
        yield from self._either_side(hidden, tool, chance * (1.0 - sum(kinds.values())), Seen("failure", took))

    # What a message leads to

    def enter(self, known: Known, tool: int, again: bool, seen: Seen) -> Known | Ended:
        """Return what is known after a call that showed something."""
        facts, succeeds = self.tools[tool], seen.result in ("success", "corrupt")
        status, done, failures, in_a_row = list(known.status), known.done, known.failures, known.in_a_row
        is_unproductive = status[tool] == SUCCEEDED and known.outputs[tool] in (NO_OUTPUT, SOUND)
        if succeeds and self.goal.counts == "effects":
            status[tool], in_a_row = SUCCEEDED, 0
        elif succeeds:
            if status[tool] != SUCCEEDED and facts.place is not None and self.goal.ordered:
                if facts.place > done:
                    return Ended()  # the order is broken
                done += int(facts.place == done)
            elif facts.place is not None:
                filled = {one.place for one, state in zip(self.tools, status, strict=True) if state == SUCCEEDED}
                done += int(facts.place not in filled)
            status[tool], in_a_row = SUCCEEDED, 0
        else:
            if status[tool] != SUCCEEDED:
                status[tool] = FAILED
            failures, in_a_row = failures + 1, in_a_row + 1
            if in_a_row == self.rules.max_consecutive_failures:
                return Ended()
        times = 0
        if is_unproductive:
            times = known.times + 1 if known.repeated == tool else 1
            if times == self.rules.loop_length:
                return Ended()
        access = list(known.access)
        if seen.result == "access_failure":
            access[tool] = CLOSED
        elif seen.result == "input_failure":
            access[tool] = REFUSED_INPUT
        elif seen.result in ("success", "corrupt", "failure", "too_slow"):
            access[tool] = OPEN
        outputs = list(known.outputs)
        if succeeds and self.law.corrupt is not None:
            if self.law.corrupt.shows == "payload" or facts.corrupt == 0.0:
                outputs[tool] = CORRUPT if seen.result == "corrupt" else SOUND
            else:
                outputs[tool] = UNCHECKED
            for other in range(len(outputs)) if seen.found is not None else ():
                if outputs[other] == UNCHECKED and seen.found is not None:
                    outputs[other] = CORRUPT if seen.found[other] else SOUND
        called = facts.rate_key if seen.result != "rate_limited" else None
        return Known(
            tuple(status),
            done,
            failures,
            in_a_row,
            known.used + 1,
            tool if is_unproductive else None,
            times,
            self._pass(known, called),
            tuple(access),
            tuple(outputs),
            known.time + seen.took,
        )

    def skip(self, known: Known) -> Known:
        """Return what is known after a message that calls nothing; there is always one that differs from the last."""
        return known._replace(used=known.used + 1, repeated=None, times=0, windows=self._pass(known, None))

    def _pass(self, known: Known, called: str | None) -> tuple[tuple[bool, ...], ...]:
        return tuple(
            (key == called, *window)[: len(window)] for key, window in zip(self.keys, known.windows, strict=True)
        )

    def step(self, hidden: Hidden) -> Iterator[tuple[float, Hidden]]:
        """Yield what can be hidden at the next message, outages having gone on by a step."""
        outage, steps = self.law.outage, self._steps.get(hidden.down)
        if steps is None:
            steps = self._steps[hidden.down] = []
            for down in itertools.product((False, True), repeat=len(self.groups)):
                chance = 1.0
                for before, after in zip(hidden.down, down, strict=True):
                    goes_down = 0.0 if outage is None else 1.0 - outage.ends if before else outage.begins
                    chance *= goes_down if after else 1.0 - goes_down
                if chance > 0.0:
                    steps.append((chance, down))
        _, broken, corrupt, runs = hidden
        for chance, down in steps:
            yield chance, Hidden(down, broken, corrupt, runs)

    def after(self, known: Known, belief: Belief, action: int) -> dict[Seen, tuple[float, Known | Ended, Belief]]:
        """Return for everything that a message can show its chance, and what is known and believed then."""
        weights: dict[Seen, dict[Hidden, float]] = {}
        tool, again = action % AGAIN, action >= AGAIN
        self.looked_at += len(belief)
        if self.looked_at > self.most:
            raise TooMuchWorkError
        for hidden, share in belief:
            results: Any = [(1.0, Seen(""), hidden)]
            if action >= 0:
                results = self.results(known, hidden, tool, again)
            for chance, seen, then in results:
                if chance <= 0.0:
                    continue
                for odds, following in self.step(then):
                    label = seen._replace(hidden=following) if self.informed else seen
                    into = weights.setdefault(label, {})
                    into[following] = into.get(following, 0.0) + share * chance * odds
        found = {}
        for seen, into in weights.items():
            total = sum(into.values())
            following_known = self.skip(known) if action < 0 else self.enter(known, tool, again, seen)
            found[seen] = (total, following_known, tuple(sorted((one, w / total) for one, w in into.items())))
        return found

    # Values

    def finish_value(self, known: Known, belief: Belief) -> float:
        """Return the chance of full success if the episode is finished now."""
        if self.goal.counts == "effects":
            return sum(chance for hidden, chance in belief if self._has_run_well(hidden) and self._has_run_all(hidden))
        if known.done < self.num_required:
            return 0.0
        value = 0.0
        for hidden, chance in belief:
            if not self._has_run_well(hidden):
                continue
            sound = {
                one.place
                for one, status, corrupt in zip(self.tools, known.status, hidden.corrupt, strict=True)
                if one.place is not None and status == SUCCEEDED and not corrupt
            }
            value += chance if len(sound) == self.num_required else 0.0
        return value

    def _has_run_well(self, hidden: Hidden) -> bool:
        """Return whether nothing has run twice that may run only once."""
        return all(hidden.runs[tool] <= 1 for tool in self.only_once)

    def _has_run_all(self, hidden: Hidden) -> bool:
        """Return whether something has run for each place."""
        places = {one.place for one, runs in zip(self.tools, hidden.runs, strict=True) if runs > 0}
        return len(places - {None}) == self.num_required

    def actions(self, known: Known) -> list[int]:
        """Return every message that can be sent; what differs in words alone is one."""
        tools = range(len(self.tools))
        return [*tools, *(tool + AGAIN for tool in tools if known.access[tool] == REFUSED_INPUT), SKIP, FINISH]

    def value(self, known: Known | Ended, belief: Belief) -> float:
        """Return V*."""
        if isinstance(known, Ended):
            return 0.0
        if self.goal.counts == "answers" and self.rules.max_turns - known.used < self.num_required - known.done:
            return 0.0
        if self.only_once and not any(self._has_run_well(hidden) for hidden, _ in belief):
            return 0.0
        if self.is_over(known):
            return self.finish_value(known, belief)
        state = (known, tuple((hidden, round(chance, DIGITS)) for hidden, chance in belief))
        if state not in self.values:
            self.values[state] = max(self.action_value(known, belief, action) for action in self.actions(known))
        return self.values[state]

    def action_value(self, known: Known, belief: Belief, action: int) -> float:
        """Return Q*."""
        if action == FINISH:
            return self.finish_value(known, belief)
        if self.is_over(known):
            return 0.0  # a closing message without a signal
        following = self.after(known, belief, action).values()
        return sum(chance * self.value(after, believed) for chance, after, believed in following)

    def success_probability(self, known: Known, belief: Belief, tool: int, again: bool) -> float:
        """Return the chance that a call reports success."""
        return sum(
            share * chance
            for hidden, share in belief
            for chance, seen, _ in self.results(known, hidden, tool, again)
            if seen.result in ("success", "corrupt")
        )


class Watcher:
    """Keeps up with an episode by what agents are shown of it.

    Attributes:
        known: What is known, or `Ended`.
        belief: What is believed.
    """

    def __init__(self, beliefs: Beliefs) -> None:
        self.beliefs = beliefs
        self.known: Known | Ended = beliefs.start()
        self.belief = beliefs.first_belief()
        self._refused: dict[int, Mapping[str, Any]] = {}

    def action_of(self, tool: int, parameters: Mapping[str, Any]) -> int:
        """Return the action that a call is."""
        assert isinstance(self.known, Known)
        again = self.known.access[tool] == REFUSED_INPUT and self._refused.get(tool) == parameters
        return tool + AGAIN if again else tool

    def observe(self, event: Event) -> None:
        """Take in a message that did not finish the episode."""
        assert isinstance(self.known, Known)
        message, beliefs = event.message, self.beliefs
        if message.kind != "execute":
            _, self.known, self.belief = next(iter(beliefs.after(self.known, self.belief, SKIP).values()))
            return
        tool = beliefs.names.index(message.tool or "")
        action = self.action_of(tool, message.parameters)
        seen, after = self._seen(tool, event), beliefs.after(self.known, self.belief, action)
        # An episode is told of runs that make a difference, the beliefs of any.
        runs = event.output.get("metadata", {}).get("runs", {}) if event.success else {}
        checked = [name for name, one in zip(beliefs.names, beliefs.tools, strict=True) if one.checker == tool]
        _, self.known, self.belief = next(
            following
            for shown, following in after.items()
            if shown._replace(told=()) == seen
            and all(runs.get(name, told) == told for name, told in zip(checked, shown.told, strict=False))
        )
        if seen.result == "input_failure":
            self._refused[tool] = message.parameters

    def _seen(self, tool: int, event: Event) -> Seen:
        beliefs = self.beliefs
        took = 0 if beliefs.budget() is None else round((event.seconds or 0.0) * 1000)
        found = None
        corrupt, result = beliefs.law.corrupt, event.result or ""
        if event.success and corrupt is not None and corrupt.shows == "validators":
            result = "success"  # which of the two it was is in the record, and not shown
            if beliefs.tools[tool].validates:
                names = {violation.partition(":")[0] for violation in event.output["violations"]}
                found = tuple(name in names for name in beliefs.names)
        return Seen({"lost_answer": "failure", "too_slow_lost_answer": "too_slow"}.get(result, result), took, found)


def _durations(law: Law) -> Sequence[Any]:
    class Instant(NamedTuple):
        seconds: float = 0.0
        probability: float = 1.0

    return law.latency.distribution if law.latency is not None else (Instant(),)


def _share_down(law: Law) -> float:
    outage = law.outage
    return 0.0 if outage is None or outage.begins == 0.0 else outage.begins / (outage.begins + outage.ends)


def _holds(names: Sequence[str] | None, name: str, category: str) -> bool:
    return names is None or name in names or category in names


def _facts(library: ToolLibrary, name: str, goal: Goal, law: Law) -> Facts:
    tool, required = library[name], goal.required
    category, operation = tool.category, tool.operation
    place = required.index(name) if name in required else None
    for stood_for, others in law.equivalents.items():
        if name in others and stood_for in required:
            place = required.index(stood_for)
    limit, outage, corrupt, kinds = law.rate_limit, law.outage, law.corrupt, law.error_kinds
    group = None
    if outage is not None and isinstance(outage.groups, str):
        group = category if outage.groups == "category" else "all"
    elif outage is not None and not isinstance(outage.groups, str):
        group = next((key for key, members in outage.groups.items() if _holds(members, name, category)), None)
    lost = law.lost_answer
    checks = {} if lost is None else lost.checks
    only_once = name in goal.once
    validates = corrupt is not None and (
        operation == "validator" if corrupt.validators is None else _holds(corrupt.validators, name, category)
    )
    opens = kinds is not None and (
        operation == "authenticator" if kinds.opened_by is None else _holds(kinds.opened_by, name, category)
    )
    weights, opened = {"input": 0.0, "access": 0.0, "transient": 0.0}, {"input": 0.0, "transient": 0.0}
    if kinds is not None:
        for error in tool.failure_errors:
            if error.code in INPUT_CODES:  # a tool that takes no parameters cannot mean it
                weights["input"] += kinds.input if tool.parameters else 0.0
                opened["input"] += kinds.input if tool.parameters else 0.0
            elif error.code in ACCESS_CODES:
                weights["access"] += 0.0 if opens else kinds.access
            else:
                weights["transient"] += kinds.transient
                opened["transient"] += kinds.transient
    total, total_opened = sum(weights.values()), sum(opened.values())
    return Facts(
        needs=tuple(library.index(other) for other in tool.dependencies),
        base=law.bases.get(name, tool.success_probability or law.base),
        place=place,
        rate_key=None if limit is None else {"tool": name, "category": category, "all": "all"}[limit.per],
        group=group,
        broken=law.broken.probability if law.broken is not None and _holds(law.broken.tools, name, category) else 0.0,
        corrupt=corrupt.probability
        if corrupt is not None
        and not validates
        and name not in checks.values()
        and _holds(corrupt.tools, name, category)
        else 0.0,
        validates=validates,
        opens=opens,
        input_share=weights["input"] / total if total else 0.0,
        access_share=weights["access"] / total if total else 0.0,
        opened_input_share=opened["input"] / total_opened if total_opened else 0.0,
        only_once=only_once,
        lost_share=lost.share if lost is not None and _holds(lost.tools, name, category) else 0.0,
        checker=library.index(checks[name]) if name in checks else None,
        is_counted=only_once or name in checks or (goal.counts == "effects" and place is not None),
    )
