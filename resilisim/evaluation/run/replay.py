"""Playing one episode of a run again, alone: from its recorded replies, or asking the models anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from resilisim.chat import ChatModel, ChatReply, ChatRequest
from resilisim.chat.models import RoleModels
from resilisim.chat.types import ContextOverflowError
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.reply import Info
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError, one_line
from resilisim.evaluation.episode.play import PlaceInRun, on_branch, play_agent_episode, play_episode, play_in_own_loop
from resilisim.evaluation.episode.record import EpisodeRecord, FailureRecord, is_failure
from resilisim.evaluation.episode.texts import has_agent_texts, opened
from resilisim.evaluation.run.contestants import ModelSettings, PolicyMaker
from resilisim.evaluation.run.plan import library_of_run
from resilisim.evaluation.run.store import EpisodeJournal, JournalFolder, read_failures, read_manifest, read_records
from resilisim.policies.agent_record import Journal
from resilisim.policies.base import AgentFailed
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.run import CONTEXT_OVERFLOW
from resilisim.provenance import canonical_json
from resilisim.redaction import MARK
from resilisim.simulator.draws import Branch
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.worlds.base import world_task


def find_episode(directory: Path | str, wanted: str) -> EpisodeRecord | FailureRecord:
    """Return an episode of a run, or the last failure of one that is not finished.

    Wanted is its number ("17"), or its task's id, with the seed if there are several ("task_x:3"), and with policy and
    prompt type in the same way ("task_x:3:react:optimal").

    Raises:
        InvalidInputError: There is none, or more than one.
        StoreError: It is no folder of results.
    """
    records: list[EpisodeRecord | FailureRecord] = []
    for record in read_records(directory):
        if _is_wanted(record, wanted):
            records.append(record)
            if wanted.isdigit():
                return record
    if not records:
        failures = {failure["index"]: failure for failure in read_failures(directory)}
        records.extend(failure for failure in failures.values() if _is_wanted(failure, wanted))
    if len(records) == 1:
        return records[0]
    if records:
        several = ", ".join(
            f"{entry['instance_id']}:{entry['seed']}:{entry['policy']}:{entry['prompt_type']}" for entry in records[:3]
        )
        raise InvalidInputError(f"episode {wanted!r} could be {len(records)} episodes of {directory}: {several}, ...")
    planned = read_manifest(directory)["arguments"].get("num_episodes", 0)
    raise InvalidInputError(
        f"{directory} holds no episode {wanted!r}: expected a number from 0 to {planned - 1}, "
        "or TASK:SEED:POLICY:PROMPT"
    )


def finished(episode: EpisodeRecord | FailureRecord) -> EpisodeRecord | None:
    """Return the record of an episode that came to its end, None for a failure."""
    return None if is_failure(episode) else cast("EpisodeRecord", episode)


def _is_wanted(entry: Mapping[str, Any], wanted: str) -> bool:
    if wanted.isdigit():
        return bool(entry["index"] == int(wanted))
    traits = (entry["instance_id"], str(entry["seed"]), entry["policy"], entry["prompt_type"])
    return f"{':'.join(traits)}:".startswith(f"{wanted}:")


class RecordedReplies:
    """The replies of a recorded episode, for playing it again without its models.

    Raises:
        InvalidInputError: The run did not keep what was said in it.
    """

    def __init__(self, record: EpisodeRecord) -> None:
        record = opened(record)
        if not has_agent_texts(record):
            raise InvalidInputError(
                f"the run kept no texts of episode {record['index']} (--record-texts): ask the models anew (--live)"
            )
        agent = record["agent"]
        self._messages, self._calls = agent["messages"], agent["calls"]
        limits = [event["text"] for event in agent.get("events", ()) if event["kind"] == "limit"]
        self._overflow = limits[-1] if agent.get("ended_by") == CONTEXT_OVERFLOW and limits else None

    def recall(self, number: int, request: ChatRequest) -> ChatReply | None:
        """Return the recorded reply to a call; None after the last one.

        Raises:
            ContextOverflowError: It was refused as too long then.
            InvalidInputError: The agent asks something else than it did then.
        """
        if number >= len(self._calls):
            if number == len(self._calls) and self._overflow is not None:
                raise ContextOverflowError(self._overflow)
            return None
        call = self._calls[number]
        then = [self._messages[place]["content"] for place in call["messages"]]
        now = [message.content for message in request.messages]
        if then != now or call["role"] != request.role:
            raise InvalidInputError(
                f"call {number} of the model ({call['role']}) is not the recorded one: the agent, its prompts or its "
                "options have changed since; ask the models anew (--live)"
            )
        try:
            return replace(ChatReply.from_mapping(call["reply"]), from_cache=bool(call["from_cache"]))
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise InvalidInputError(
                f"the reply to call {number} of the model cannot be read: {one_line(error)}"
            ) from error

    def keep(self, number: int, request: ChatRequest, reply: ChatReply) -> None:
        """Keep nothing: the record has it."""


@dataclass(frozen=True, slots=True)
class _Unasked:
    """Stands for models that are not to be asked."""

    name: str

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Refuse."""
        raise InvalidInputError(
            f"the agent asks {self.name} for more than the record holds: ask the models anew (--live)"
        )

    async def aclose(self) -> None:
        """Do nothing."""


class RecordedMessages:
    """Sends the messages of a record once more, and breaks where its agent broke; after the last one it stops."""

    def __init__(self, record: EpisodeRecord) -> None:
        self.name = record["policy"]
        self._steps = record["steps"]

    def reset(self, observation: str, info: Info) -> None:
        """Begin with the first message."""
        self._left = iter(self._steps)

    def act(self, observation: str, info: Info) -> str | None:
        """Return the next message, or break where the agent broke."""
        step = next(self._left, None)
        if step is not None and step["kind"] == "agent_error":
            raise AgentFailed(step["error"] or "")
        return None if step is None or step["kind"] == "stop" else step["message"]


def play_again(
    env: ConversationEnv, record: EpisodeRecord, task: Task, agent: LlmPolicy[Any] | None = None
) -> EpisodeRecord:
    """Play a recorded episode again: the environment is sent the same messages, or an agent is told the same words.

    Args:
        env: An environment of the run.
        record: The episode, with its texts if it is one of an agent.
        task: Its task.
        agent: The agent that plays, with the recorded replies in place of models (`recorded_models`); without one the
            recorded messages are sent.

    Raises:
        InvalidInputError: The agent asks something else than it did then, or for more than was recorded.
    """
    place = PlaceInRun(index=record["index"], name=record["policy"], manifest=record["manifest"])
    start = (task, record["prompt_type"], record["seed"])
    if agent is None:
        return play_episode(env, RecordedMessages(record), *start, **place)
    return play_in_own_loop(agent, play_agent_episode(env, agent, *start, RecordedReplies(record), **place))


def replay_episode(
    directory: Path | str,
    episode: EpisodeRecord | FailureRecord,
    find_task: Callable[[str], Task],
    library: ToolLibrary,
    models: ModelSettings | None = None,
    prices: str | None = None,
) -> EpisodeRecord:
    """Play an episode of a run again, with the run's settings; nothing is written.

    That of a failure, one that is not finished, goes on from the replies it has.

    Args:
        directory: The run's folder.
        episode: The episode.
        find_task: Returns the task of an id.
        library: The run's tool library.
        models: Models to ask anew; None takes the recorded replies.
        prices: File with the prices of models, if the models' settings name none.

    Raises:
        InvalidInputError: The library is not the run's, a policy is no text, or the agent is not what it was.
        InfrastructureError: A model that is asked is down.
    """
    manifest = read_manifest(directory)
    arguments = manifest["arguments"]
    library = library_of_run(arguments, library, directory)
    settings = EnvironmentSettings(**arguments["environment"])
    env = ConversationEnv(settings, library=library)
    recorded = finished(episode)
    branch = None if recorded is None or "branch" not in recorded else Branch.of_texts(recorded["branch"])
    dice = 1 if recorded is None else recorded.get("dice", 1)
    if branch is not None:
        env = env.twin(branch)
    spec = arguments["policies"][list(arguments["policy_names"]).index(episode["policy"])]
    if MARK in spec:
        raise InvalidInputError(
            f"policy {spec!r:.120} was played with a secret, which is not kept: it cannot be replayed"
        )
    asked = recorded_models(recorded) if recorded is not None and models is None else None
    models_to_ask = models if models is not None else ModelSettings(prices=prices)
    answering = models_to_ask.make() if asked is None else {asked.default.name: asked}
    policy = PolicyMaker(library, answering, models_to_ask.load_prices()).make(str(spec))
    task = find_task(episode["instance_id"]) if env.world is None else world_task(env.world, episode["instance_id"])
    prompt, seed = episode["prompt_type"], episode["seed"]
    place = PlaceInRun(index=episode["index"], name=episode["policy"], manifest=manifest["hash"])
    if not isinstance(policy, LlmPolicy):
        return on_branch(play_episode(env, policy, task, prompt, seed, **place), branch, dice)
    if recorded is not None and models is None and "agent" in recorded:
        return on_branch(play_again(env, recorded, task, policy), branch, dice)
    journal: Journal | None = None
    if recorded is None:
        identity = canonical_json(policy.models.identities())
        journal = EpisodeJournal(JournalFolder(directory).kept(episode["index"]), identity)
    again = play_in_own_loop(policy, play_agent_episode(env, policy, task, prompt, seed, journal, **place))
    return on_branch(again, branch, dice)


def recorded_models(record: EpisodeRecord) -> RoleModels | None:
    """Return stand-ins for the models of a recorded episode, under their names; None if it asked none."""
    agent = record.get("agent")
    if agent is None:
        return None
    by_role: dict[str, ChatModel] = {call["role"]: _Unasked(call["model"]) for call in agent["calls"]}
    default = next(iter(by_role.values()), _Unasked("a model"))
    return RoleModels(default, by_role, agent["models"])
