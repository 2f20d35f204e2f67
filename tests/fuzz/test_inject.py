"""Random programs under `inject`: nested, concurrent and broken in every way; none hangs, none is booked wrongly."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim import InjectedFailure, inject, read_results
from resilisim.evaluation.episode.attribution import identity_error
from resilisim.injection.functions import Injected
from tests.simulator.goal_by_hand import GoalByHand

GUARD = 60.0  # seconds, after which something hangs
FUEL = 24  # bodies that run in one program

Kind = Literal["sync", "async", "decorated", "generator", "async generator", "future", "context"]
KINDS: tuple[Kind, ...] = ("sync", "async", "decorated", "generator", "async generator", "future", "context")


@dataclass(frozen=True)
class Action:
    """What a body or the program does next: call a function, or raise."""

    function: int | None
    catches: bool = True
    in_thread: bool = False
    beside: int | None = None  # another function that is called at the same time


@dataclass(frozen=True)
class Program:
    kinds: tuple[Kind, ...]
    bodies: tuple[tuple[Action, ...], ...]
    main: tuple[Action, ...]
    is_async: bool
    options: dict[str, Any]


def actions(draws: random.Random, size: int, most: int) -> tuple[Action, ...]:
    found = []
    for _ in range(draws.randint(0, most)):
        if draws.random() < 0.15:
            found.append(Action(None))
        else:
            beside = draws.randrange(size) if draws.random() < 0.2 else None
            found.append(Action(draws.randrange(size), draws.random() < 0.8, draws.random() < 0.3, beside))
    return tuple(found)


def drawn(draws: random.Random) -> Program:
    size = draws.randint(1, 4)
    names = [f"f{number}" for number in range(size)]
    order = draws.sample(range(size), size)
    required = draws.sample(names, draws.randint(1, size)) if draws.random() < 0.8 else []
    law: Any = draws.choice((1.0, 0.8, 0.5, {"base": 0.9}, {"base": 0.7, "not_executed": 0.1, "history": 0.5}))
    options: dict[str, Any] = {
        "law": law,
        "seed": draws.randrange(1000),
        "required": required,
        "fail": draws.choice(("before", "after")),
        "once": [name for name in names if draws.random() < 0.3] if required else [],
        "dependencies": {
            names[function]: [names[other] for other in order[:place] if draws.random() < 0.4]
            for place, function in enumerate(order)
        },
    }
    if required:
        options |= {"ordered": draws.random() < 0.6, "turns": draws.randint(1, 6)}
        if draws.random() < 0.3:
            options |= {"check": draws.choice((lambda: True, lambda: False, lambda: 1 / 0)), "goal": "answers"}
    kinds = tuple(draws.choice(KINDS) for _ in names)
    bodies = tuple(actions(draws, size, 2) for _ in names)
    return Program(kinds, bodies, actions(draws, size, 6), draws.random() < 0.5, options)


class Played:
    """One run of a program, and what its functions saw."""

    def __init__(self, program: Program, folder: Path) -> None:
        self.program = program
        self.began = Counter[str]()
        self._fuel = FUEL
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(FUEL * 4)
        functions = {f"f{number}": self._function(number) for number in range(len(program.kinds))}
        self.tools: Injected = inject(functions, record=folder, **program.options)

    def run(self) -> None:
        with contextlib.suppress(RuntimeError, InjectedFailure, ZeroDivisionError), self.tools:
            if self.program.is_async:
                asyncio.run(self._act_later(self.program.main))
            else:
                self._act(self.program.main)
        self._pool.shutdown()

    def _begin(self, number: int) -> bool:
        with self._lock:
            self.began[f"f{number}"] += 1
            self._fuel -= 1
            return self._fuel > 0

    def _body(self, number: int, goes_on: bool | None = None) -> None:
        if self._begin(number) if goes_on is None else goes_on:
            self._act(self.program.bodies[number])

    async def _body_later(self, number: int, goes_on: bool | None = None) -> None:
        if self._begin(number) if goes_on is None else goes_on:
            await self._act_later(self.program.bodies[number])

    def _function(self, number: int) -> Callable[[], Any]:
        kind = self.program.kinds[number]

        async def later(goes_on: bool | None = None) -> int:
            await self._body_later(number, goes_on)
            return number

        def items() -> Any:
            self._body(number)
            yield number
            yield number

        async def items_later() -> Any:
            await self._body_later(number)
            yield number
            yield number

        def sync() -> int:
            self._body(number)
            return number

        @contextlib.contextmanager
        def opened() -> Any:
            self._body(number)
            yield number

        return {
            "sync": sync,
            "async": later,
            "decorated": lambda: later(self._begin(number)),
            "generator": items,
            "async generator": items_later,
            "future": lambda: self._pool.submit(self._body, number, self._begin(number)),
            "context": opened,
        }[kind]

    def _act(self, todo: tuple[Action, ...]) -> None:
        for action in todo:
            if action.function is None:
                raise RuntimeError("broken")
            with contextlib.suppress(*(RuntimeError, InjectedFailure) if action.catches else ()):
                others = [] if action.beside is None else [self._pool.submit(self._call, action.beside)]
                if action.in_thread:
                    self._pool.submit(self._call, action.function).result()
                else:
                    self._call(action.function)
                for other in others:
                    other.result()

    async def _act_later(self, todo: tuple[Action, ...]) -> None:
        for action in todo:
            if action.function is None:
                raise RuntimeError("broken")
            with contextlib.suppress(*(RuntimeError, InjectedFailure) if action.catches else ()):
                if action.in_thread:
                    await asyncio.to_thread(self._call, action.function)
                elif action.beside is not None:
                    both = (self._call_later(each) for each in (action.function, action.beside))
                    for result in await asyncio.gather(*both, return_exceptions=True):
                        if isinstance(result, BaseException):
                            raise result
                else:
                    await self._call_later(action.function)

    def _call(self, number: int) -> None:
        """Call a function from anywhere, and take the whole of its answer."""
        result = self.tools[number]()
        if isinstance(result, Future):
            result.result()
        elif isinstance(result, contextlib.AbstractContextManager):
            with result:
                pass
        elif hasattr(result, "__next__"):
            for _ in result:
                pass
        elif hasattr(result, "__await__") or hasattr(result, "__anext__"):
            self._pool.submit(asyncio.run, _taken(result)).result()

    async def _call_later(self, number: int) -> None:
        if self.program.kinds[number] in ("async", "decorated", "async generator"):
            await _taken(self.tools[number]())
        else:
            self._call(number)


async def _taken(promise: Any) -> None:
    if hasattr(promise, "__anext__"):
        async for _ in promise:
            pass
    else:
        await promise


def in_time(work: Callable[[], None]) -> None:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(GUARD)
    assert not thread.is_alive(), "it hangs"
    if raised:
        raise raised[0]


def reached(record: dict[str, Any], runs_first: bool) -> bool:
    """Whether the goal was reached, from the steps alone, in the order in which they began."""
    goal, answered, ran = record["goal"], [], Counter[str]()
    for step in record["steps"]:
        if step["kind"] == "execute":
            if step["success"] and step["tool"] not in answered:
                answered.append(step["tool"])
            drawn_to_pass = step["success"] or step.get("real", False)
            if drawn_to_pass or runs_first:
                if step["tool"] in goal["once"] and ran[step["tool"]]:
                    return False
                ran[step["tool"]] += not step.get("real", False)
    first = [name for name in answered if name in goal["required"]]
    return first == goal["required"] if goal["ordered"] else sorted(first) == sorted(goal["required"])


def check(program: Program) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        played = Played(program, folder)
        in_time(played.run)
        tools, calls = played.tools, played.tools.calls
        # Every call has one record, and what ran is what the functions saw.
        assert Counter(call.tool for call in calls if call.ran) == +played.began
        for function in {call.tool for call in calls}:
            attempts = [call.attempt for call in calls if call.tool == function]
            assert sorted(attempts) == list(range(1, len(attempts) + 1))
        lines = [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
        assert Counter((line["tool"], line["attempt"], line["outcome"]) for line in lines) == Counter(
            (call.tool, call.attempt, call.outcome) for call in calls
        )
        assert sorted(line["call"] for line in lines) == list(range(1, len(lines) + 1))
        for call in calls:
            assert call.ran == (call.outcome != "injected" or program.options["fail"] == "after")
        if not program.options["required"]:
            assert tools.score is None
            return
        record: Any = tools.record()
        steps = record["steps"]
        assert identity_error(record) < 1e-9
        assert len(steps) == len(calls) + 1
        assert len(calls) <= program.options["turns"]
        for step in steps:
            # A failure of the function itself may be worth more than its answer; nothing else has regret below 0.
            assert step["regret"] > -1e-9 or step.get("real", False)
        if not any(step.get("real", False) for step in steps):
            for before, step in itertools.pairwise(steps):
                assert step["value"] == pytest.approx(before["action_value"] + before["luck"], abs=1e-9)
        fine = record["ended_by"] in ("completion", "stopped")
        vetoed = record["score"]["grade"]["criteria"]["check"] is False
        assert record["outcome"] == (reached(record, program.options["fail"] == "after") and fine and not vetoed)
        (line,) = (folder / "episodes.jsonl").read_text().splitlines()
        assert json.loads(line)["outcome"] == record["outcome"]
        assert read_results(folder).num_episodes == 1
        assert record["optimum"] == pytest.approx(by_hand(program).value(), abs=1e-9)


def by_hand(program: Program) -> GoalByHand:
    options, size = program.options, len(program.kinds)
    law = options["law"]
    constants = {"not_executed": 1.0, "failed": 1.0, "history": 1.0, "base": law}
    if isinstance(law, dict):
        constants = {"not_executed": 0.5, "failed": 0.7, "history": 0.9} | law
    return GoalByHand(
        bases=(constants["base"],) * size,
        needs=tuple(tuple(int(other[1:]) for other in options["dependencies"][f"f{number}"]) for number in range(size)),
        factors=(constants["not_executed"], constants["failed"], constants["history"]),
        required=tuple(int(name[1:]) for name in options["required"]),
        calls=options["turns"],
        ordered=options["ordered"],
        once=tuple(int(name[1:]) for name in options["once"]),
        after=options["fail"] == "after",
    )


@settings(max_examples=80, deadline=None)
@given(st.randoms(use_true_random=False))
def test_random_programs_neither_hang_nor_are_booked_wrongly(draws: random.Random) -> None:
    check(drawn(draws))


@pytest.mark.fuzz
def test_many_random_programs_neither_hang_nor_are_booked_wrongly() -> None:
    for number in range(3000):
        try:
            check(drawn(random.Random(number)))
        except BaseException as error:
            error.add_note(f"program {number}")
            raise
