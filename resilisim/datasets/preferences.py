"""Preference pairs: from one state of an episode a best message and a worse one, and by how much it is worse (Q*).

The states lie along episodes of the demonstrator, some of whose steps are mistakes on purpose, so that there are also
states after a mistake: dependencies that failed, tools that nobody needed, rows of failures.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from resilisim.datasets.alternatives import Alternative, draw_alternative, preferring_named, worse_alternatives
from resilisim.datasets.demonstrator import Demonstrator
from resilisim.datasets.rollout import EPISODES_GROUP, FLAW_TYPE, ArgumentsForm, RolloutSpec, Searcher, Stage, Start
from resilisim.datasets.schema import Column, DataType, Record, RecordSchema
from resilisim.datasets.transcript import MISTAKEN_REASONS, Transcript, message_type, schema_name, tools_column
from resilisim.envs.session import Info, Session
from resilisim.errors import InvalidInputError
from resilisim.options import option
from resilisim.policies import messages
from resilisim.seeding import Draws
from resilisim.simulator import Message
from resilisim.simulator.exact import Optimum, solve
from resilisim.simulator.exact.optimum import TIE_TOLERANCE
from resilisim.simulator.state import EpisodeState
from resilisim.tasks import Task
from resilisim.tasks.model import split_of
from resilisim.tool_library import ToolLibrary


@dataclass(frozen=True, slots=True)
class PreferenceSpec(RolloutSpec):
    """What preference pairs are made of; the records are a function of it and of the task."""

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
        """Refuse numbers out of range.

        Raises:
            InvalidInputError: As for `RolloutSpec`, and for `explore` and `min_margin`.
        """
        RolloutSpec.__post_init__(self)
        if not 0.0 <= self.explore <= 1.0:
            raise InvalidInputError(f"explore is {self.explore!r}: expected a share from 0 to 1")
        if not 0.0 < self.min_margin < 1.0:
            raise InvalidInputError(f"min_margin is {self.min_margin!r}: expected a number above 0 and below 1")

    def make(self, library: ToolLibrary) -> PreferenceSource:
        """Return the source of the records.

        Raises:
            InvalidInputError: The environment refuses an option.
        """
        return PreferenceSource(self, library)


class PreferenceSource:
    """Plays the episodes of one task after the other, and compares messages in each state.

    Args:
        spec: What to play and to compare.
        library: The tool library.
        searcher: What answers searches; retrieval over the library if omitted.
    """

    def __init__(self, spec: PreferenceSpec, library: ToolLibrary, searcher: Searcher | None = None) -> None:
        self.schema = preference_schema(spec.environment.protocol, spec.call_arguments)
        self._spec = spec
        self._stage = Stage(library, spec, searcher)

    def records(self, task: Task) -> Iterator[Record]:
        """Yield at most one pair for each state of each episode, prompt types outermost, then seeds, then turns.

        There is none where the best message would call a tool that the demonstrator has not read of, where no message
        is worse by the margin, and where nothing can succeed any more.

        Raises:
            ExactLimitError: The task is too large to be solved exactly.
        """
        for start in self._stage.starts(task):
            yield from self._episode(task, start)

    def _episode(self, task: Task, start: Start) -> Iterator[Record]:
        spec = self._spec
        agent = Demonstrator(self._stage, task, spec.search, spec.pass_parameters)
        session = Session(self._stage.environment, task, start.prompt, start.seed, privileged=True)
        observation, info = session.reply.observation, session.reply.info
        draws = Draws(
            "resilisim/datasets/preferences", spec.environment.salt, task.instance_id, info["prompt_type"], start.seed
        )
        optimum = solve(info["problem"])
        transcript = Transcript(self._stage, observation)
        agent.reset(observation, info)
        num_mistakes = 0
        while not session.ended and optimum.value(info["state"]) > 0.0:
            text = agent.act(observation, info)
            said = self._stage.read(text)
            plan_in_prompt = info["planner"] is not None
            worse = worse_alternatives(self._stage, optimum, info["state"], agent, said, plan_in_prompt, draws)
            # Without searching, right calls name tools that were never read of, and wrong ones may as well.
            named = agent.known_tools if spec.search else frozenset(self._stage.library.names)
            chosen = _with_action_value(optimum, info["state"], said)
            rejected = None if chosen is None else self._draw_rejected(worse, chosen, named, optimum.gap, draws)
            rejected_text = None if rejected is None else self._say(rejected, said, agent, info)
            if chosen is not None and rejected is not None and rejected_text is not None:
                yield {
                    **self._origin(task, start, info, num_mistakes),
                    "prompt": transcript.column(),
                    "chosen": transcript.column([transcript.assistant_message(text)]),
                    "rejected": transcript.column([transcript.assistant_message(rejected_text)]),
                    "tools": self._stage.tools_column,
                    **_comparison(optimum, info["state"], chosen, rejected),
                }
            mistakes = [alternative for alternative in worse if alternative.message.kind == "execute"]
            if draws.uniform() < spec.explore and mistakes:
                text = _text_of(draw_alternative(preferring_named(mistakes, named), draws), said, agent, info)
                num_mistakes += 1
            reply = session.send(transcript.say(text))
            observation, info = reply.observation, reply.info
            transcript.hear(observation)

    def _draw_rejected(
        self,
        worse: Sequence[Alternative],
        chosen: tuple[Message, float],
        named: Collection[str],
        gap: float,
        draws: Draws,
    ) -> Alternative | None:
        """Draw among the messages that are worse by the margin, also if every value is wrong by the optimum's gap."""
        least = max(self._spec.min_margin, gap)
        enough = [alternative for alternative in worse if chosen[1] - alternative.action_value >= least]
        return draw_alternative(preferring_named(enough, named), draws) if enough else None

    def _say(self, alternative: Alternative, said: Message, agent: Demonstrator, info: Info) -> str | None:
        """Return the text of a message; None if the environment would refuse a call that should be executed.

        In strict mode that happens where no plan knows parameters that fit.
        """
        text = _text_of(alternative, said, agent, info)
        return text if self._stage.read(text).kind == alternative.message.kind else None

    def _origin(self, task: Task, start: Start, info: Info, num_mistakes: int) -> Record:
        return {
            "instance_id": task.instance_id,
            "task_type": task.task_type,
            "complexity": task.complexity,
            "split": split_of(task.required_tools),
            "prompt_type": info["prompt_type"],
            "planner": info["planner"],
            "flaw": start.flaw_column(),
            "protocol": self._stage.protocol,
            "seed": start.seed,
            "salt": self._spec.environment.salt,
            "turn": info["turn"] + 1,
            "num_mistakes": num_mistakes,
        }


def _with_action_value(optimum: Optimum, state: EpisodeState, said: Message) -> tuple[Message, float] | None:
    """Return the demonstrator's message with its Q*, if it is a best one and no search."""
    if said.kind not in ("execute", "finish"):
        return None
    action_value = optimum.action_value(state, said)
    return (said, action_value) if optimum.value(state) - action_value <= TIE_TOLERANCE else None


def _text_of(alternative: Alternative, said: Message, agent: Demonstrator, info: Info) -> str:
    """Return the text of a message; a call is filled in as the one that it stands beside."""
    message, tool = alternative.message, alternative.message.tool
    text = message.text
    if message.kind == "execute" and tool is not None:
        beside = said.tool if said.kind == "execute" and said.tool is not None else tool
        text = messages.call(tool, agent.parameters_like(tool, beside))
    return agent.explain(MISTAKEN_REASONS[alternative.label], text, info)


def _comparison(optimum: Optimum, state: EpisodeState, chosen: tuple[Message, float], rejected: Alternative) -> Record:
    message, action_value = chosen
    return {
        "value": optimum.value(state),
        "optimum_gap": optimum.gap,
        "chosen_action_value": action_value,
        "rejected_action_value": rejected.action_value,
        "margin": action_value - rejected.action_value,
        "chosen_tool": message.tool,
        "rejected_tool": rejected.message.tool,
        "rejected_kind": rejected.message.kind,
        "rejected_reason": rejected.label,
    }


def preference_schema(protocol: str, arguments: ArgumentsForm) -> RecordSchema:
    """Return the columns of a preference pair; messages and tools depend on the protocol and the form of arguments."""
    messages: DataType = [message_type(protocol, arguments)]
    columns = (
        Column("instance_id", "string", "Id of the task."),
        Column("task_type", "string", "Type of the task."),
        Column("complexity", "string", "easy, medium or hard."),
        Column("split", "string", "Part of the data that the task's set of tools belongs to: train, validation, test."),
        Column("prompt_type", "string", "Type of the prompt, the first message."),
        Column("planner", "string", "Who made the plan in the prompt; null without one."),
        Column("flaw", FLAW_TYPE, "What is wrong with that plan; null unless prompt_type is flawed."),
        Column("protocol", "string", "text (calls are tags in the text) or native (calls are function calls)."),
        Column("seed", "int64", "Seed of the episode."),
        Column("salt", "string", "Salt of the luck; with seed and task it fixes every draw."),
        Column("turn", "int64", "Number of the message that is compared, from 1."),
        Column("num_mistakes", "int64", "Messages before it that are mistakes on purpose."),
        Column("prompt", messages, "The episode so far."),
        Column("chosen", messages, "One message of the assistant, of the highest Q*."),
        Column("rejected", messages, "One message of the assistant, of a lower Q*."),
        tools_column(protocol, arguments),
        Column("value", "float64", "V* of the state: chance of full success of the best agent from here on."),
        Column(
            "optimum_gap", "float64", "How far V* may lie below the optimum; 0 where it is exact, as nearly always."
        ),
        Column("chosen_action_value", "float64", "Q* of the chosen message."),
        Column("rejected_action_value", "float64", "Q* of the rejected message."),
        Column("margin", "float64", "chosen_action_value - rejected_action_value."),
        Column("chosen_tool", "string", "Tool that the chosen message runs; null where it reports completion."),
        Column("rejected_tool", "string", "Tool of the rejected message; null if it names none."),
        Column("rejected_kind", "string", "What it is: execute, search, finish, rejected (a call), format_error."),
        Column("rejected_reason", "string", "Why it is worse, as in the labels of evaluations (table of values)."),
    )
    return RecordSchema(schema_name("preferences", protocol, arguments), columns)
