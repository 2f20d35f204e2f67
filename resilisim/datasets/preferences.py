"""Preference pairs: from one state of an episode a best message and a worse one, and by how much it is worse (Q*).

The states lie along episodes of the demonstrator, some of whose steps are mistakes on purpose, so that there are also
states after a mistake: dependencies that failed, tools that nobody needed, rows of failures.

Worse messages are calls and, some of them, messages that execute nothing where a call is due; these are worded and
filled in like the call that they stand beside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from resilisim.datasets.conversations import Transcript, episode_schema
from resilisim.datasets.demonstrator import Demonstrator
from resilisim.datasets.mistakes import (
    Alternative,
    draw_alternative,
    mistake,
    preferring_named,
    text_of,
    worse_alternatives,
)
from resilisim.datasets.rollout import EPISODES_GROUP, RolloutSpec, Stage, Start
from resilisim.datasets.schema import Record, RecordSource
from resilisim.envs.session import Session
from resilisim.errors import InvalidInputError
from resilisim.options import option
from resilisim.seeding import Draws
from resilisim.simulator import Message
from resilisim.simulator.exact import Solved, solve
from resilisim.simulator.exact.optimum import TIE_TOLERANCE
from resilisim.simulator.state import EpisodeState
from resilisim.tasks import Task
from resilisim.tasks.model import split_of_task
from resilisim.tasks.wording import Searcher
from resilisim.tool_library import ToolLibrary


@dataclass(frozen=True, slots=True)
class PreferenceSpec(RolloutSpec):
    """What preference pairs are made of; the records are a function of it and of the task.

    In a world the pairs lie along its reference solutions (`world_preferences`).

    Example:
        >>> from resilisim.datasets.preferences import PreferenceSpec
        >>> PreferenceSpec(prompts=("optimal",), min_margin=0.05).explore
        0.3
    """

    kind: ClassVar[str] = "preferences"
    explore: float = option(
        0.3,
        "Share of the steps on the way to preference pairs that are mistakes on purpose.",
        least=0.0,
        most=1.0,
        group=EPISODES_GROUP,
    )
    min_margin: float = option(0.01, "Least difference in Q* between the two of a pair.", group=EPISODES_GROUP)

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        RolloutSpec.__post_init__(self)
        if not 0.0 < self.min_margin < 1.0:
            raise InvalidInputError(f"min_margin is {self.min_margin!r}: expected a number above 0 and below 1")

    def make(self, library: ToolLibrary) -> RecordSource:
        """Return the source of the records."""
        if self.environment.world is not None:
            from resilisim.datasets.world_preferences import WorldPreferenceSource  # which needs this module

            return WorldPreferenceSource(self, library)
        return PreferenceSource(self, library)


class PreferenceSource:
    """Plays the episodes of one task after the other, and compares messages in each state."""

    def __init__(self, spec: PreferenceSpec, library: ToolLibrary, searcher: Searcher | None = None) -> None:
        self.schema = episode_schema(spec.kind, spec.environment.protocol, spec.call_arguments)
        self._spec = spec
        self._stage = Stage(library, spec, searcher)

    def records(self, task: Task) -> Iterator[Record]:
        """Yield at most one pair for each state of each episode, prompt types outermost, then seeds, then turns.

        There is none where the best message would call a tool that the demonstrator has not read of, where no message
        is worse by the margin, and where nothing can succeed any more.
        """
        split = split_of_task(task)
        stage, task = self._stage.of_task(task)
        for start in stage.starts(task):
            yield from self._episode(stage, task, start, split)

    def _episode(self, stage: Stage, task: Task, start: Start, split: str) -> Iterator[Record]:
        spec = self._spec
        agent = Demonstrator(stage, task, spec.search, spec.pass_parameters)
        session = Session(stage.environment, task, start.prompt, start.seed, privileged=True)
        observation, info = session.reply.observation, session.reply.info
        draws = Draws(
            "resilisim/datasets/preferences", spec.environment.salt, task.instance_id, info["prompt_type"], start.seed
        )
        optimum = solve(info["problem"])
        transcript = Transcript(stage, observation)
        agent.reset(observation, info)
        num_mistakes = 0
        while not session.ended and optimum.value(info["state"]) > 0.0:
            text = agent.act(observation, info)
            said = stage.read(text)
            worse = worse_alternatives(stage, optimum, info, agent, said, draws)
            # Without searching, right calls name tools that were never read of, and wrong ones may as well.
            named = agent.known_tools if spec.search else frozenset(stage.library.names)
            best = _best_value(optimum, info["state"], said)
            rejected = None if best is None else self._draw_rejected(worse, best, named, optimum.gap, draws)
            rejected_text = "" if rejected is None else text_of(rejected, said, agent, info)
            # In strict mode a call that should be executed may be refused, where no plan knows parameters that fit.
            fits = rejected is not None and stage.read(rejected_text).kind == rejected.message.kind
            if best is not None and rejected is not None and fits:
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
                    "rejected": transcript.column([transcript.assistant_message(rejected_text)]),
                    "tools": stage.tools_column,
                    "value": optimum.value(info["state"]),
                    "optimum_gap": optimum.gap,
                    "chosen_action_value": best,
                    "rejected_action_value": rejected.action_value,
                    "margin": best - rejected.action_value,
                    "chosen_tool": said.tool or "",
                    "rejected_tool": rejected.message.tool or "",
                    "rejected_kind": rejected.message.kind,
                    "rejected_reason": rejected.label,
                }
            wrong = mistake(worse, said, agent, info, named, draws) if draws.uniform() < spec.explore else None
            if wrong is not None:
                text = wrong
                num_mistakes += 1
            reply = session.send(transcript.say(text))
            observation, info = reply.observation, reply.info
            transcript.hear(observation)

    def _draw_rejected(
        self, worse: Sequence[Alternative], best: float, named: Collection[str], gap: float, draws: Draws
    ) -> Alternative | None:
        """Draw among the messages that are worse by the margin, also if every value is wrong by the optimum's gap."""
        least = max(self._spec.min_margin, gap)
        enough = [alternative for alternative in worse if best - alternative.action_value >= least]
        return draw_alternative(preferring_named(enough, named), draws) if enough else None


def _best_value(optimum: Solved, state: EpisodeState, said: Message) -> float | None:
    """Return the Q* of the demonstrator's message, if it is a best one and no search."""
    if said.kind not in ("execute", "finish"):
        return None
    action_value = optimum.action_value(state, said)
    return action_value if optimum.value(state) - action_value <= TIE_TOLERANCE else None
