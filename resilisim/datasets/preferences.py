"""Preference pairs: from one state of an episode a best message and a worse one, and by how much it is worse (Q*).

The states lie along episodes of the demonstrator, some of whose steps are mistakes on purpose, so that there are also
states after a mistake: dependencies that failed, tools that nobody needed, rows of failures. In a world they lie along
its reference solutions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt, Lt

from resilisim.bounds import Share
from resilisim.datasets.conversations import Transcript, episode_schema
from resilisim.datasets.pairs import OptimumPairs, Pairs
from resilisim.datasets.rollout import EPISODES_GROUP, RolloutSpec, Stage, Start
from resilisim.datasets.schema import Record, RecordSource
from resilisim.datasets.world_pairs import Call, ReferencePairs, calls_of
from resilisim.envs.session import Session
from resilisim.options import option
from resilisim.tasks import Task
from resilisim.tasks.split import split_of_task
from resilisim.tasks.wording import Searcher
from resilisim.tool_library import ToolLibrary
from resilisim.worlds.base import load_world


@dataclass(frozen=True, slots=True)
class PreferenceSpec(RolloutSpec):
    """What preference pairs are made of; the records are a function of it and of the task.

    In a world the pairs lie along its reference solutions (`world_pairs`).
    """

    kind: ClassVar[str] = "preferences"
    explore: Share = option(
        0.3,
        "Share of the steps on the way to preference pairs that are mistakes on purpose.",
        group=EPISODES_GROUP,
    )
    min_margin: Annotated[float, Gt(0.0), Lt(1.0)] = option(
        0.01, "Smallest difference in Q* between the two messages of a pair.", group=EPISODES_GROUP
    )

    def make(self, library: ToolLibrary) -> RecordSource:
        """Return the source of the records."""
        return PreferenceSource(self, library)


class PreferenceSource:
    """Plays the episodes of one task after the other, and compares messages in each state."""

    def __init__(self, spec: PreferenceSpec, library: ToolLibrary, searcher: Searcher | None = None) -> None:
        self.schema = episode_schema(spec.kind, spec.environment.protocol, spec.call_arguments)
        self._spec = spec
        self._stage = Stage(library, spec, searcher)

    def records(self, task: Task) -> Iterator[Record]:
        """Yield at most one pair for each state of each episode, prompt types outermost, then seeds, then turns.

        There is none where no message is worse by the margin, and where nothing can succeed any more.
        """
        split = split_of_task(task)
        stage, task = self._stage.of_task(task)
        for start in stage.starts(task):
            yield from self._episode(stage, task, start, split)

    @functools.cached_property
    def _calls_of_world(self) -> list[tuple[Task, Call]]:
        return calls_of(load_world(str(self._spec.environment.world)))

    def _episode(self, stage: Stage, task: Task, start: Start, split: str) -> Iterator[Record]:
        spec = self._spec
        session = Session(stage.environment, task, start.prompt, start.seed, privileged=True)
        observation, info = session.reply.observation, session.reply.info
        pairs: Pairs = (
            OptimumPairs(stage, task, spec, start.seed, spec.min_margin, info, observation)
            if spec.environment.world is None
            else ReferencePairs(stage, task, start.seed, spec.min_margin, self._calls_of_world, info, observation)
        )
        transcript = Transcript(stage, session.reply)
        num_mistakes = 0
        while not session.ended and (value := pairs.value(info)) > 0.0:
            text = pairs.act(observation, info)
            said = stage.read(text)
            pair = pairs.pair(said, info)
            if pair is not None:
                rejected = pair.rejected
                yield {
                    "instance_id": task.instance_id,
                    "task_type": task.task_type,
                    "complexity": task.complexity,
                    "split": split,
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
                    "rejected": transcript.column([transcript.assistant_message(pair.rejected_text)]),
                    "tools": stage.tools_column,
                    "value": value,
                    "optimum_gap": pairs.gap,
                    "chosen_action_value": pair.best,
                    "rejected_action_value": rejected.action_value,
                    "margin": pair.best - rejected.action_value,
                    "chosen_tool": said.tool or "",
                    "rejected_tool": rejected.message.tool or "",
                    "rejected_kind": rejected.message.kind,
                    "rejected_reason": rejected.label,
                }
            mistake = pairs.mistake(said, info, spec.explore)
            reply = session.send(transcript.say(text if mistake is None else mistake))
            observation, info = reply.observation, reply.info
            if mistake is None:
                pairs.follow(said, info)
            else:
                num_mistakes += 1
            transcript.hear(reply)
