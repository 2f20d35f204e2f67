"""Conversations to train on: whole episodes of the exact optimum (or another policy), each message with its worth.

Nothing is filtered: good play with bad luck stays good play, and each turn says what it was worth. Once full success is
out of reach (value 0) all messages are equal, and the player goes on: who trains on the records leaves such turns out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from resilisim.datasets.demonstrator import Demonstrator
from resilisim.datasets.rollout import EPISODES_GROUP, FLAW_TYPE, ArgumentsForm, RolloutSpec, Searcher, Stage, Start
from resilisim.datasets.schema import Column, Record, RecordSchema
from resilisim.datasets.transcript import Transcript, message_type, schema_name, tools_column
from resilisim.envs.session import Info
from resilisim.evaluation import EpisodeRecord, play_episode
from resilisim.options import option
from resilisim.policies.base import Policy, is_privileged, policy_name
from resilisim.policies.registry import make_policy
from resilisim.tasks import Task
from resilisim.tasks.model import split_of
from resilisim.tool_library import ToolLibrary

DEMONSTRATOR = "exact-optimum"


@dataclass(frozen=True, slots=True)
class ConversationSpec(RolloutSpec):
    """What conversations are made of; the records are a function of it and of the task.

    Attributes:
        policy: Who plays: "exact-optimum" (`demonstrator.Demonstrator`, which `search` and `pass_parameters` are
            about), or any policy that `make_policy` knows, for worse demonstrations with their regrets.
    """

    kind: ClassVar[str] = "conversations"
    policy: str = option(DEMONSTRATOR, "Who plays conversations: exact-optimum, or any policy.", group=EPISODES_GROUP)

    def make(self, library: ToolLibrary) -> ConversationSource:
        """Return the source of the records.

        Raises:
            InvalidInputError: The policy does not exist, or the environment refuses an option.
        """
        return ConversationSource(self, library)


class ConversationSource:
    """Plays the episodes of one task after the other.

    Args:
        spec: What to play.
        library: The tool library.
        searcher: What answers searches; retrieval over the library if omitted.
    """

    def __init__(self, spec: ConversationSpec, library: ToolLibrary, searcher: Searcher | None = None) -> None:
        self.schema = conversation_schema(spec.environment.protocol, spec.call_arguments)
        self._spec = spec
        self._stage = Stage(library, spec, searcher)
        self._policy = None if spec.policy == DEMONSTRATOR else make_policy(spec.policy, offered={"library": library})

    def records(self, task: Task) -> Iterator[Record]:
        """Yield one record for each prompt type and seed, prompt types outermost.

        Raises:
            ExactLimitError: The task is too large to be solved exactly.
        """
        spec, stage = self._spec, self._stage
        player = self._policy or Demonstrator(stage, task, spec.search, spec.pass_parameters)
        for start in stage.starts(task):
            recorder = _Recorder(player, stage)
            episode = play_episode(
                stage.environment, recorder, task, start.prompt, start.seed, salt=spec.environment.salt
            )
            yield self._record(episode, start, recorder)

    def _record(self, episode: EpisodeRecord, start: Start, recorder: _Recorder) -> Record:
        return {
            "instance_id": episode["instance_id"],
            "task_type": episode["task_type"],
            "complexity": episode["complexity"],
            "split": split_of(episode["required_tools"]),
            "required_tools": episode["required_tools"],
            "prompt_type": episode["prompt_type"],
            "planner": episode["planner"],
            "flaw": start.flaw_column(),
            "protocol": self._stage.protocol,
            "policy": episode["policy"],
            "seed": episode["seed"],
            "salt": episode["salt"],
            "messages": recorder.transcript.column(),
            "tools": self._stage.tools_column,
            "reward": float(episode["outcome"]),
            "success": episode["outcome"] == 1,
            "level": episode["score"]["level"],
            "ended_by": episode["ended_by"],
            "num_turns": len(episode["steps"]),
            "optimum": episode["optimum"],
            "optimum_gap": episode["optimum_gap"],
            "regret": episode["regret"],
            "luck": episode["luck"],
            "turns": [
                {"message_index": place, **{name: step[name] for name in _TURN_TYPES}}
                for step, place in zip(map(dict, episode["steps"]), recorder.places, strict=True)
            ],
        }


class _Recorder:
    """Passes on what a policy reads and says, and keeps it as chat messages."""

    def __init__(self, policy: Policy, stage: Stage) -> None:
        self.name = policy_name(policy)
        self.privileged = is_privileged(policy)
        self.places: list[int | None] = []  # for each turn the place of its message, None where the policy stopped
        self._policy = policy
        self._stage = stage

    def reset(self, observation: str, info: Info) -> None:
        self.transcript = Transcript(self._stage, observation)
        self._policy.reset(observation, info)

    def act(self, observation: str, info: Info) -> Any:
        if self.places:
            self.transcript.hear(observation)
        action: str | Mapping[str, Any] | None = self._policy.act(observation, info)
        if action is None:
            self.places.append(None)
            return None
        self.places.append(len(self.transcript.messages))
        return self.transcript.say(action)


# What a turn's entry takes from the step of the episode's record; its types are those of the schema below.
_TURN_TYPES = {
    "turn": "int64",
    "kind": "string",
    "tool": "string",
    "success": "bool",
    "success_probability": "float64",
    "value": "float64",
    "action_value": "float64",
    "regret": "float64",
    "luck": "float64",
    "label": "string",
}


def conversation_schema(protocol: str, arguments: ArgumentsForm) -> RecordSchema:
    """Return the columns of a conversation; messages and tools depend on the protocol and the form of arguments."""
    columns = (
        Column("instance_id", "string", "Id of the task."),
        Column("task_type", "string", "Type of the task."),
        Column("complexity", "string", "easy, medium or hard."),
        Column("split", "string", "Part of the data that the task's set of tools belongs to: train, validation, test."),
        Column("required_tools", ["string"], "Tools that have to succeed, in this order."),
        Column("prompt_type", "string", "Type of the prompt, the first message."),
        Column("planner", "string", "Who made the plan in the prompt; null without one."),
        Column("flaw", FLAW_TYPE, "What is wrong with that plan; null unless prompt_type is flawed."),
        Column("protocol", "string", "text (calls are tags in the text) or native (calls are function calls)."),
        Column("policy", "string", "Who plays the assistant: the name that the policy gives itself."),
        Column("seed", "int64", "Seed of the episode."),
        Column("salt", "string", "Salt of the luck; with seed and task it fixes every draw."),
        Column("messages", [message_type(protocol, arguments)], "The episode up to the assistant's last message."),
        tools_column(protocol, arguments),
        Column("reward", "float64", "1.0 for full success, else 0.0."),
        Column("success", "bool", "Whether the episode was a full success."),
        Column("level", "string", "full_success, partial_success or failure (table of values)."),
        Column("ended_by", "string", "completion, turns, consecutive_failures, loop or stopped (table of values)."),
        Column("num_turns", "int64", "The assistant's messages, a stop counted as one."),
        Column("optimum", "float64", "V* of the start: chance of full success of the best agent."),
        Column(
            "optimum_gap", "float64", "How far V* may lie below the optimum; 0 where it is exact, as nearly always."
        ),
        Column("regret", "float64", "What the choices gave away, summed: 1 - reward = (1 - optimum) + regret - luck."),
        Column("luck", "float64", "What the draws brought, summed."),
        Column(
            "turns",
            [{"message_index": "int64", **_TURN_TYPES}],
            "The assistant's messages: place in `messages`, what each did (kind), V* before it (value; 0 where the "
            "episode is lost already), its Q* (action_value), regret and luck, and why it cost something (label; null "
            "if it cost nothing).",
        ),
    )
    return RecordSchema(schema_name("conversations", protocol, arguments), columns)
