"""Preference pairs of worlds: the reference solution's next message, and a plausible one that does not bring it on.

Chosen is the next call of the reference solution, or its answer at the end. Its Q is the ceiling in that state: the
chance of completing the reference from there, each call again until it goes through. Rejected is a message that leaves
the reference where it is, or ends the episode without the right answer; its Q counts the turn that it takes and nothing
else, so it is never too low: a call that also spoils the workspace is worse still.

That a rejected call is wrong is tried out: in a fresh workspace, after the calls that are done, it has to return
something else than the chosen one, and nothing that holds the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from resilisim.datasets.mistakes import Alternative, draw_alternative, mistaken_texts
from resilisim.datasets.pairs import Pair
from resilisim.datasets.rollout import Stage
from resilisim.envs.reply import Info
from resilisim.policies.base import call_message, succeeded_tool
from resilisim.policies.scripted import ReferencePolicy
from resilisim.seeding import Draws
from resilisim.simulator import Message
from resilisim.simulator.exact import solve
from resilisim.simulator.exact.values import Values
from resilisim.simulator.problem import branches
from resilisim.simulator.state import NEXT_PLACE, EpisodeState
from resilisim.tasks import Task
from resilisim.worlds.answers import normalized
from resilisim.worlds.base import ToolError, World, called, graded, load_world, opened, reference_calls

NUM_DRAWN = 3  # calls of other questions that are tried in each state, of the same tool and of others
OTHER_ARGUMENTS = "other_arguments"
_REASONS = {"finish": "gave_up_early", "format_error": "format_error", "rejected": "rejected_call"}

Call = tuple[str, Mapping[str, Any]]


class ReferencePairs:
    """The pairs along an episode of a world, in which its reference solution is played."""

    gap = 0.0

    def __init__(
        self,
        stage: Stage,
        task: Task,
        seed: int,
        min_margin: float,
        calls: Sequence[tuple[Task, Call]],
        info: Info,
        observation: str,
    ) -> None:
        self._stage, self._task, self._seed, self._min_margin = stage, task, seed, min_margin
        self._world, self._calls = load_world(str(stage.settings.world)), calls
        self._values = solve(info["problem"])
        self._player = ReferencePolicy()
        self._player.reset(observation, info)
        self._done: list[Call] = []  # calls of the reference that have gone through
        self._worse_ones: list[Alternative] = []  # beside the last message
        self._draws = Draws(
            "resilisim/datasets/world-preferences", stage.settings.salt, task.instance_id, info["prompt_type"], seed
        )

    def value(self, info: Info) -> float:
        """Return the chance of completing the reference from here."""
        return self._values.value(info["state"])

    def act(self, observation: str, info: Info) -> str:
        """Return the reference's next message."""
        return str(self._player.act(observation, info))

    def pair(self, said: Message, info: Info) -> Pair | None:
        """Return the reference's message with one that is really wrong."""
        value = self.value(info)
        self._worse_ones = self._worse(info["state"], said)
        rejected = self._first_wrong(
            [worse for worse in self._worse_ones if value - worse.action_value >= self._min_margin], said
        )
        return None if rejected is None else Pair(value, rejected, _text_of(rejected.message))

    def mistake(self, said: Message, info: Info, share: float) -> str | None:
        """Return one that runs nothing: a wrong call could change what later calls find."""
        harmless = [worse for worse in self._worse_ones if worse.message.kind in ("format_error", "rejected")]
        if not harmless or self._draws.uniform() >= share:
            return None
        return _text_of(draw_alternative(harmless, self._draws).message)

    def follow(self, said: Message, info: Info) -> None:
        """Count a call of the reference that has gone through."""
        if said.kind == "execute" and succeeded_tool(info) is not None:
            self._done.append((said.tool or "", said.parameters))

    def _worse(self, state: EpisodeState, said: Message) -> list[Alternative]:
        """Return messages that do not bring the reference on, in an order that never changes."""
        values, done, draws = self._values, self._done, self._draws
        worse: list[tuple[Message, str]] = []
        if said.kind == "execute":
            worse += [(self._read_call(*call), "repeated_success") for call in done[-1:]]
            worse += [(self._read_call(*call), OTHER_ARGUMENTS) for call in self._of_others(said.tool)]
            worse += [(self._read_call(*call), "unneeded_tool") for call in self._of_others(None)]
        if said.kind == "finish" or done:
            answers = self._answers_of_others()
            worse += [(self._stage.read(f"<finish>{answer}</finish>"), "wrong_answer") for answer in answers]
        texts = mistaken_texts(self._stage, values.problem, state, lambda _: said.parameters, said, draws)
        for message in map(self._stage.read, texts):
            # No search, as a world tells its tools, and no call that can do without the parameter that was left out.
            if message.kind in _REASONS:
                worse.append((message, _REASONS[message.kind]))
        kinds = {"wrong_answer": "finish", OTHER_ARGUMENTS: "execute", "unneeded_tool": "execute"}
        return [
            Alternative(message, _worth_of_detour(values, state, message), reason)
            for message, reason in worse
            if message.kind == kinds.get(reason, message.kind) and message != said
        ]

    def _first_wrong(self, worse: Sequence[Alternative], said: Message) -> Alternative | None:
        """Draw until a message is really wrong; None where none is."""
        left = list(worse)
        right: Mapping[str, Any] | None = None
        while left:
            drawn = draw_alternative(left, self._draws)
            left.remove(drawn)
            message = drawn.message
            if message.kind == "execute":
                if right is None:
                    right = self._tried(said)
                output = self._tried(message)
                if output == right or (output is not None and _tells(output, self._task)):
                    continue
            elif drawn.label == "wrong_answer" and graded(self._world, self._task, message.answer, []).score >= 0.5:
                continue
            return drawn
        return None

    def _tried(self, message: Message) -> dict[str, Any] | None:
        """Return what a call brings after those that are done, in a fresh workspace; None where the tool refuses it."""
        workspace = opened(self._world, self._task, self._seed)
        try:
            for tool, parameters in self._done:
                called(workspace, tool, parameters)
            return called(workspace, message.tool or "", message.parameters)
        except ToolError:
            return None
        finally:
            workspace.close()

    def _read_call(self, tool: str, parameters: Mapping[str, Any]) -> Message:
        return self._stage.read(call_message(tool, parameters))

    def _of_others(self, tool: str | None) -> list[Call]:
        """Draw calls of other questions: of a tool, in questions of the task's type, or of tools it does not need."""
        task = self._task
        if tool is not None:
            needed = [(call.tool, call.parameters) for call in reference_calls(task)]
            pool = [call for own, call in self._calls if call[0] == tool and own.task_type == task.task_type]
            pool = [call for call in pool if call not in needed]
        else:
            pool = [call for _, call in self._calls if call[0] not in task.required_tools]
        return [self._draws.choice(pool) for _ in range(NUM_DRAWN)] if pool else []

    def _answers_of_others(self) -> list[str]:
        others = [other for other in self._world.tasks() if other.task_type == self._task.task_type]
        pool = [answer for other in others if "${" not in (answer := str(other.metadata["answers"][0]))]
        return [self._draws.choice(pool) for _ in range(NUM_DRAWN)] if pool else []


def calls_of(world: World) -> list[tuple[Task, Call]]:
    """Return all calls of reference solutions that refer to no earlier result, with the questions that need them."""
    return [
        (task, (call.tool, call.parameters))
        for task in world.tasks()
        for call in reference_calls(task)
        if "${" not in json.dumps(dict(call.parameters))
    ]


def _tells(output: Mapping[str, Any], task: Task) -> bool:
    """Tell whether an answer stands in an output."""
    words = f" {normalized(json.dumps(output, ensure_ascii=False))} "
    return any(f" {normalized(str(answer))} " in words for answer in task.metadata["answers"])


def _worth_of_detour(values: Values, state: EpisodeState, message: Message) -> float:
    """Return Q* of a message that brings the reference no further, though it may call the tool of its next call."""
    done, worth = state.counters[NEXT_PLACE], 0.0
    for chance, after in branches(values.problem, replace(state, hidden=()), message):
        counters = (*after.counters[:NEXT_PLACE], done, *after.counters[NEXT_PLACE + 1 :])
        worth += chance * values.value(replace(after, counters=counters))
    return worth


def _text_of(message: Message) -> str:
    if message.kind == "execute":
        return call_message(message.tool or "", message.parameters)
    return message.text if message.answer is None else f"<finish>{message.answer}</finish>"
