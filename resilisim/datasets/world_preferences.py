"""Preference pairs of worlds: the reference solution's next message, and a plausible one that does not bring it on.

Chosen is the next call of the reference solution, or its answer at the end. Its Q is the ceiling in that state: the
chance of completing the reference from there, each call again until it goes through. Rejected is a message that leaves
the reference where it is, or ends the episode without the right answer; its Q counts the turn that it takes and nothing
else, so it is never too low: a call that also spoils the workspace is worse still.

That a rejected call is wrong is tried out: in a fresh workspace, after the calls that are done, it has to return
something else than the chosen one, and nothing that holds the answer.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from resilisim.datasets.conversations import Transcript, episode_schema
from resilisim.datasets.mistakes import Alternative, draw_alternative, mistaken_texts
from resilisim.datasets.preferences import PreferenceSpec
from resilisim.datasets.rollout import Stage, Start
from resilisim.datasets.schema import Record
from resilisim.envs.conversation import reference_of
from resilisim.envs.session import Session
from resilisim.policies.base import call_message, succeeded_tool
from resilisim.policies.scripted import ReferencePolicy
from resilisim.seeding import Draws
from resilisim.simulator import Message
from resilisim.simulator.exact import ReferenceSolution
from resilisim.simulator.state import EpisodeState
from resilisim.tasks import Task
from resilisim.tasks.model import split_of_task
from resilisim.tasks.wording import Searcher
from resilisim.tool_library import ToolLibrary
from resilisim.worlds.answers import normalized
from resilisim.worlds.base import ToolError, World, called, graded, load_world, opened, reference_calls

NUM_DRAWN = 3  # calls of other questions that are tried in each state, of the same tool and of others
OTHER_ARGUMENTS = "other_arguments"
_REASONS = {"finish": "gave_up_early", "format_error": "format_error", "rejected": "rejected_call"}

_Call = tuple[str, Mapping[str, Any]]


class WorldPreferenceSource:
    """Plays the reference solution of one task after the other, and pairs its messages with worse ones."""

    def __init__(self, spec: PreferenceSpec, library: ToolLibrary, searcher: Searcher | None = None) -> None:
        self.schema = episode_schema(spec.kind, spec.environment.protocol, spec.call_arguments)
        self._spec = spec
        self._stage = Stage(library, spec, searcher)
        self._world: World = load_world(str(spec.environment.world))

    def records(self, task: Task) -> Iterator[Record]:
        """Yield at most one pair for each state of each episode, prompt types outermost, then seeds, then turns."""
        for start in self._stage.starts(task):
            yield from self._episode(task, start)

    def _episode(self, task: Task, start: Start) -> Iterator[Record]:
        spec, stage = self._spec, self._stage
        session = Session(stage.environment, task, start.prompt, start.seed, privileged=True)
        observation, info = session.reply.observation, session.reply.info
        solution = reference_of(info["problem"], task)
        assert solution is not None  # a world's problem has one
        draws = Draws(
            "resilisim/datasets/world-preferences",
            spec.environment.salt,
            task.instance_id,
            info["prompt_type"],
            start.seed,
        )
        player, transcript = ReferencePolicy(), Transcript(stage, observation)
        player.reset(observation, info)
        done: list[_Call] = []  # calls of the reference that have gone through
        num_mistakes = 0
        while not session.ended and (value := solution.value(info["state"], len(done))) > 0.0:
            text = str(player.act(observation, info))
            said = stage.read(text)
            worse = self._worse(task, start.seed, solution, info["state"], said, done, draws)
            enough = [one for one in worse if value - one.action_value >= spec.min_margin]
            rejected = self._first_wrong(task, start.seed, enough, said, done, draws)
            if rejected is not None:
                yield {
                    "instance_id": task.instance_id,
                    "task_type": task.task_type,
                    "complexity": task.complexity,
                    "split": split_of_task(task),
                    "prompt_type": info["prompt_type"],
                    "planner": info["planner"] or "",
                    "flaw": start.flaw_column(),
                    "protocol": stage.protocol,
                    "seed": start.seed,
                    "salt": spec.environment.salt,
                    "turn": info["turn"] + 1,
                    "num_mistakes": num_mistakes,
                    "prompt": transcript.column(),
                    "chosen": transcript.column([transcript.assistant_message(text)]),
                    "rejected": transcript.column([transcript.assistant_message(_text_of(rejected.message))]),
                    "tools": stage.tools_column,
                    "value": value,
                    "optimum_gap": 0.0,
                    "chosen_action_value": value,
                    "rejected_action_value": rejected.action_value,
                    "margin": value - rejected.action_value,
                    "chosen_tool": said.tool or "",
                    "rejected_tool": rejected.message.tool or "",
                    "rejected_kind": rejected.message.kind,
                    "rejected_reason": rejected.label,
                }
            # A wrong call could change what later calls find, so mistakes on the way are those that run nothing.
            harmless = [one for one in worse if one.message.kind in ("format_error", "rejected")]
            makes_mistake = bool(harmless) and draws.uniform() < spec.explore
            if makes_mistake:
                text = _text_of(draw_alternative(harmless, draws).message)
                num_mistakes += 1
            reply = session.send(transcript.say(text))
            observation, info = reply.observation, reply.info
            if said.kind == "execute" and not makes_mistake and succeeded_tool(info) is not None:
                done.append((said.tool or "", said.parameters))
            transcript.hear(observation)

    def _worse(
        self,
        task: Task,
        seed: int,
        solution: ReferenceSolution,
        state: EpisodeState,
        said: Message,
        done: Sequence[_Call],
        draws: Draws,
    ) -> list[Alternative]:
        """Return messages that do not bring the reference on, in an order that never changes."""
        found: list[tuple[Message, str]] = []
        if said.kind == "execute":
            found += [(self._read_call(*call), "repeated_success") for call in done[-1:]]
            found += [(self._read_call(*call), OTHER_ARGUMENTS) for call in self._of_others(task, said.tool, draws)]
            found += [(self._read_call(*call), "unneeded_tool") for call in self._of_others(task, None, draws)]
        if said.kind == "finish" or done:
            answers = self._answers_of_others(task, draws)
            found += [(self._stage.read(f"<finish>{answer}</finish>"), "wrong_answer") for answer in answers]
        texts = mistaken_texts(self._stage, solution.problem, state, lambda _: said.parameters, said, draws)
        for message in map(self._stage.read, texts):
            # No search, as a world tells its tools, and no call that can do without the parameter that was left out.
            if message.kind in _REASONS:
                found.append((message, _REASONS[message.kind]))
        kinds = {"wrong_answer": "finish", OTHER_ARGUMENTS: "execute", "unneeded_tool": "execute"}
        return [
            Alternative(message, solution.action_value(state, message, len(done)), reason)
            for message, reason in found
            if message.kind == kinds.get(reason, message.kind) and message != said
        ]

    def _first_wrong(
        self, task: Task, seed: int, worse: Sequence[Alternative], said: Message, done: Sequence[_Call], draws: Draws
    ) -> Alternative | None:
        """Draw until a message is really wrong; None where none is."""
        left = list(worse)
        right: Mapping[str, Any] | None = None
        while left:
            drawn = draw_alternative(left, draws)
            left.remove(drawn)
            message = drawn.message
            if message.kind == "execute":
                if right is None:
                    right = self._tried(task, seed, done, said)
                output = self._tried(task, seed, done, message)
                if output == right or (output is not None and _tells(output, task)):
                    continue
            elif drawn.label == "wrong_answer" and graded(self._world, task, message.answer, []).score >= 0.5:
                continue
            return drawn
        return None

    def _tried(self, task: Task, seed: int, done: Sequence[_Call], message: Message) -> dict[str, Any] | None:
        """Return what a call brings after others in a fresh workspace; None where the tool refuses it."""
        workspace = opened(self._world, task, seed)
        try:
            for tool, parameters in done:
                called(workspace, tool, parameters)
            return called(workspace, message.tool or "", message.parameters)
        except ToolError:
            return None
        finally:
            workspace.close()

    def _read_call(self, tool: str, parameters: Mapping[str, Any]) -> Message:
        return self._stage.read(call_message(tool, parameters))

    def _of_others(self, task: Task, tool: str | None, draws: Draws) -> list[_Call]:
        """Draw calls of other questions: of a tool, in questions of the task's type, or of tools it does not need."""
        if tool is not None:
            needed = [(call.tool, call.parameters) for call in reference_calls(task)]
            pool = [call for own, call in self._calls if call[0] == tool and own.task_type == task.task_type]
            pool = [call for call in pool if call not in needed]
        else:
            pool = [call for _, call in self._calls if call[0] not in task.required_tools]
        return [draws.choice(pool) for _ in range(NUM_DRAWN)] if pool else []

    def _answers_of_others(self, task: Task, draws: Draws) -> list[str]:
        others = [other for other in self._world.tasks() if other.task_type == task.task_type]
        pool = [answer for other in others if "${" not in (answer := str(other.metadata["answers"][0]))]
        return [draws.choice(pool) for _ in range(NUM_DRAWN)] if pool else []

    @functools.cached_property
    def _calls(self) -> list[tuple[Task, _Call]]:
        """All calls of reference solutions that refer to no earlier result."""
        return [
            (task, (call.tool, call.parameters))
            for task in self._world.tasks()
            for call in reference_calls(task)
            if "${" not in json.dumps(dict(call.parameters))
        ]


def _tells(output: Mapping[str, Any], task: Task) -> bool:
    """Tell whether an answer stands in an output."""
    words = f" {normalized(json.dumps(output, ensure_ascii=False))} "
    return any(f" {normalized(str(answer))} " in words for answer in task.metadata["answers"])


def _text_of(message: Message) -> str:
    if message.kind == "execute":
        return call_message(message.tool or "", message.parameters)
    return message.text if message.answer is None else f"<finish>{message.answer}</finish>"
