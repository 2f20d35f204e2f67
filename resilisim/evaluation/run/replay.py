"""Playing one episode of a run again, alone: from its recorded replies, or asking the models anew."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from resilisim.evaluation.episode.rejudging import brought
from resilisim.evaluation.episode.texts import has_agent_texts, opened
from resilisim.evaluation.run.contestants import ModelSettings, PolicyMaker
from resilisim.evaluation.run.plan import library_of_run
from resilisim.evaluation.run.store import (
    EPISODES_NAME,
    EpisodeJournal,
    JournalFolder,
    read_failures,
    read_manifest,
    read_records,
)
from resilisim.policies.agent_record import Journal
from resilisim.policies.base import AgentFailed
from resilisim.policies.llm.agent_run import CONTEXT_OVERFLOW
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.provenance import canonical_json
from resilisim.redaction import SECRET_MARK
from resilisim.simulator.draws import KEYED, Branch, Draws, Forced
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.worlds.base import world_task


def find_episode(directory: Path | str, wanted: str) -> EpisodeRecord | FailureRecord:
    """Return an episode of a run, or the last failure of one that is not finished.

    Wanted is its number ("17"), or its task's id, with the seed if there are several ("task_x:3"), and with policy and
    prompt type in the same way ("task_x:3:react:optimal").

    Raises:
        InvalidInputError: There is none, or more than one.
        StoreError: It is not a folder of results.
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
    arguments = read_manifest(directory)["arguments"]
    numbers = f"a number from 0 to {arguments.get('num_episodes', 0) - 1}"
    if arguments.get("explored"):
        numbers = f"the number of a branch in {EPISODES_NAME}"
    raise InvalidInputError(f"{directory} holds no episode {wanted!r}: expected {numbers}, or TASK:SEED:POLICY:PROMPT")


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


@dataclass(frozen=True, slots=True)
class Rerun:
    """An episode of a run with all that it takes to play it again: the run's settings, its task, and who plays.

    Attributes:
        episode: The episode, or the failure of one that is not finished.
        env: An environment of the run.
        policy: Who plays.
        task: The task.
        manifest: Hash of the run's arguments.
        calls: What calls brought that was said beforehand, or given by the branch of an agent that was explored.
    """

    episode: EpisodeRecord | FailureRecord
    env: ConversationEnv
    policy: Any
    task: Task
    manifest: str
    calls: Mapping[tuple[str, int], str]

    @classmethod
    def of(
        cls,
        directory: Path | str,
        episode: EpisodeRecord | FailureRecord,
        find_task: Callable[[str], Task],
        library: ToolLibrary | None,
        models: ModelSettings | None = None,
        prices: str | None = None,
    ) -> Rerun:
        """Return an episode of a run, ready to be played again; the arguments are those of `replay_episode`.

        Raises:
            InvalidInputError: The library is not the run's, or a policy is not a text.
        """
        manifest = read_manifest(directory)
        arguments = manifest["arguments"]
        library = library_of_run(arguments, library, directory)
        settings = EnvironmentSettings(**arguments["environment"])
        env = ConversationEnv(settings, library=library)
        recorded = finished(episode)
        spec = arguments["policies"][list(arguments["policy_names"]).index(episode["policy"])]
        if SECRET_MARK in spec:
            raise InvalidInputError(
                f"policy {spec!r:.120} was played with a secret, which is not kept: it cannot be replayed"
            )
        asked = recorded_models(recorded) if recorded is not None and models is None else None
        models_to_ask = models if models is not None else ModelSettings(prices=prices)
        answering = models_to_ask.make() if asked is None else {asked.default.name: asked}
        policy = PolicyMaker(library, answering, models_to_ask.load_prices()).make(str(spec))
        task = find_task(episode["instance_id"]) if env.world is None else world_task(env.world, episode["instance_id"])
        calls = dict(Forced.of(settings.force).calls)
        if recorded is not None and "branch" in recorded:
            calls |= brought(recorded["steps"], library).calls
        return cls(episode, env, policy, task, manifest["hash"], calls)

    def forced(self, force: Iterable[str]) -> Draws:
        """Return the draws of the episode, but for calls of which it is said what they bring.

        Raises:
            InvalidInputError: What is said means nothing, or names what the tool cannot have.
        """
        calls = {**self.calls, **Forced.of(force).calls}
        settings = replace(self.env.settings, force=tuple(Forced(calls).to_texts()))
        return settings.draws(self.env.library) or KEYED

    def play(self, draws: Draws | None = None, journal: Journal | None = None) -> EpisodeRecord:
        """Play the episode; `draws` are where its draws come from, as in the run's environment if omitted.

        Raises:
            InfrastructureError: A model that is asked is down.
        """
        episode = self.episode
        prompt, seed = episode["prompt_type"], episode["seed"]
        place = PlaceInRun(index=episode["index"], name=episode["policy"], manifest=self.manifest)
        with contextlib.closing(self.env.twin(draws)) as env:
            if not isinstance(self.policy, LlmPolicy):
                return play_episode(env, self.policy, self.task, prompt, seed, **place)
            playing = play_agent_episode(env, self.policy, self.task, prompt, seed, journal, **place)
            return play_in_own_loop(self.policy, playing)


def replay_episode(
    directory: Path | str,
    episode: EpisodeRecord | FailureRecord,
    find_task: Callable[[str], Task],
    library: ToolLibrary | None,
    models: ModelSettings | None = None,
    prices: str | None = None,
    force: Sequence[str] = (),
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
        force: What calls bring other than then, such as "network_fetcher#2=TIMEOUT".

    Raises:
        InvalidInputError: The library is not the run's, a policy is not a text, the agent is not what it was, or what
            is
            forced cannot be.
        InfrastructureError: A model that is asked is down.
    """
    rerun = Rerun.of(directory, episode, find_task, library, models, prices)
    recorded = finished(episode)
    branch = None if recorded is None or "branch" not in recorded or force else Branch.of_texts(recorded["branch"])
    draws = rerun.forced(force) if force else branch
    journal: Journal | None = None
    if isinstance(rerun.policy, LlmPolicy):
        if recorded is not None and models is None and "agent" in recorded:
            again = play_again(rerun.env.twin(draws), recorded, rerun.task, rerun.policy)
            return _as_branch(again, recorded, branch)
        if recorded is None:
            identity = canonical_json(rerun.policy.models.identities())
            journal = EpisodeJournal(JournalFolder(directory).kept(episode["index"]), identity)
    return _as_branch(rerun.play(draws, journal), recorded, branch)


def _as_branch(again: EpisodeRecord, recorded: EpisodeRecord | None, branch: Branch | None) -> EpisodeRecord:
    """Write into a record what makes it that of a branch; what it left unplayed, the exploration alone knows."""
    if recorded is None or branch is None:
        return again
    again = on_branch(again, branch, recorded.get("dice", 1))
    if "unplayed" in recorded:
        again["unplayed"] = recorded["unplayed"]
    return again


def recorded_models(record: EpisodeRecord) -> RoleModels | None:
    """Return stand-ins for the models of a recorded episode, under their names; None if it asked none."""
    agent = record.get("agent")
    if agent is None:
        return None
    by_role: dict[str, ChatModel] = {call["role"]: _Unasked(call["model"]) for call in agent["calls"]}
    default = next(iter(by_role.values()), _Unasked("a model"))
    return RoleModels(default, by_role, agent["models"], agent.get("model_options", {}))
