"""Two agents on the same draws: which episodes came out differently, where they part, and both turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, Literal

from resilisim.envs import ConversationEnv
from resilisim.envs.reply import Info
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError, ResiliSimError, shown_value
from resilisim.evaluation.episode.play import PlaceInRun, play_episode
from resilisim.evaluation.episode.record import ALL_LOSS_LABELS, EpisodeRecord, StepRecord
from resilisim.evaluation.episode.rejudging import message_reader, rejudged
from resilisim.evaluation.episode.texts import opened_if_whole, replies_of
from resilisim.evaluation.run.plan import library_of_run
from resilisim.evaluation.run.replay import RecordedMessages
from resilisim.evaluation.table.first_difference import did
from resilisim.policies.scripted import ExactOptimumPolicy
from resilisim.reporting.view.viewed_runs import Episode, ViewedRun
from resilisim.simulator.draws import Branch
from resilisim.tables.numbers import percent
from resilisim.tasks import Task
from resilisim.tool_library import ToolLibrary
from resilisim.worlds.base import STARTS_PROGRAMS, WORLDS, world_task

Choice = Literal["apart", "a", "b", "all"]
# Which pairs are listed, and what the list is called.
PAIR_CHOICES: Final[Mapping[Choice, str]] = {
    "apart": "came out differently",
    "a": "only A succeeded",
    "b": "only B succeeded",
    "all": "all pairs",
}

FindTask = Callable[[str], Task]


@dataclass(frozen=True, slots=True)
class Pair:
    """The episodes of two agents on one task, with one seed and under one prompt type.

    Attributes:
        a: The episode of the one.
        b: That of the other.
        parting: Number of the first message that differs, from 1; None if none does.
    """

    a: Episode
    b: Episode
    parting: int | None

    @property
    def messages(self) -> tuple[str, str]:
        """The first messages that differ, in few words; of an episode that has ended there, that it has."""
        return self._at_parting(self.a), self._at_parting(self.b)

    def _at_parting(self, episode: Episode) -> str:
        if self.parting is None:
            return ""
        return episode.did[self.parting - 1] if self.parting <= len(episode.did) else did(None)

    def is_listed(self, choice: Choice) -> bool:
        """Tell whether it belongs to a list."""
        if choice == "all":
            return True
        winner = {1: "a", -1: "b", 0: ""}[self.a.outcome - self.b.outcome]
        return bool(winner) if choice == "apart" else winner == choice


def pairs_of(run_a: ViewedRun, policy_a: str, run_b: ViewedRun, policy_b: str, prompt: str | None) -> list[Pair]:
    """Return the pairs of two agents: those that came out differently first, those where most was lost on top.

    Branches of explored agents are no pairs: each agent has its own.
    """
    if run_a.is_explored or run_b.is_explored:
        return []
    others = {_key(each): each for each in [*run_b.episodes.values()] if each.policy == policy_b}
    pairs = []
    for each in [*run_a.episodes.values()]:
        other = others.get(_key(each))
        if each.policy != policy_a or other is None or prompt not in (None, each.prompt):
            continue
        apart = (turn for turn, (mine, its) in enumerate(zip_longest(each.said, other.said), 1) if mine != its)
        pairs.append(Pair(each, other, next(apart, None)))
    return sorted(pairs, key=_weight)


def _key(episode: Episode) -> tuple[str, int, str]:
    return (episode.task, episode.seed, episode.prompt)


def _weight(pair: Pair) -> tuple[bool, float, int]:
    return (pair.a.outcome == pair.b.outcome, -abs(pair.a.regret - pair.b.regret), pair.a.number)


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of an episode, as it is shown.

    Attributes:
        step: What the record says of it.
        words: What it was, in few words.
        came_to: What came of it: "success", an error code, nothing.
        reply: What the environment answered; None if it was not kept.
        cause: Why it cost something; None if it did not.
    """

    step: StepRecord
    words: str
    came_to: str
    reply: str | None
    cause: str | None


@dataclass(frozen=True, slots=True)
class ShownEpisode:
    """An episode ready to be shown.

    Attributes:
        record: Its record, opened.
        turns: Its messages.
        problem: What could not be found out about it; None if nothing is missing.
    """

    record: EpisodeRecord
    turns: list[Turn]
    problem: str | None


def shown_episode(run: ViewedRun, record: EpisodeRecord, library: ToolLibrary | None) -> ShownEpisode:
    """Return an episode with what would have been best at each turn, as far as that can be computed."""
    record, problem = opened_if_whole(record)
    if "no_ceiling" not in record and not all("best" in step for step in record["steps"]):
        try:
            used = _library_of(run, record, library)
            reader = message_reader(used, run.arguments.get("environment", {}))
            record = rejudged(record, used, reader, best=True)
        except ResiliSimError as error:
            problem = problem or f"what would have been best is not known: {error}"
    turns = []
    for step, reply in zip(record["steps"], replies_of(record), strict=True):
        came_to = "success" if step["success"] else step["error"] or ("" if step["success"] is None else "failure")
        if step.get("result") == "corrupt":
            came_to = "success, with wrong data"
        label = step["label"]
        cause = None if label is None else ALL_LOSS_LABELS.get(label, label.replace("_", " "))
        turns.append(Turn(step, did(step), came_to, reply, cause))
    return ShownEpisode(record, turns, problem)


class _GoesOn:
    """Sends the first messages of a record once more, and then what is best."""

    name = "recorded, then exact-optimum"
    privileged = True

    def __init__(self, record: EpisodeRecord, num_recorded: int) -> None:
        self._recorded = RecordedMessages({**record, "steps": record["steps"][:num_recorded]})
        self._optimum = ExactOptimumPolicy()
        self._left = num_recorded

    def reset(self, observation: str, info: Info) -> None:
        """Begin with the first message."""
        self._recorded.reset(observation, info)
        self._optimum.reset(observation, info)

    def act(self, observation: str, info: Info) -> str | None:
        """Return the next message."""
        if self._left > 0:
            self._left -= 1
            return self._recorded.act(observation, info)
        return self._optimum.act(observation, info)


def gone_on(
    run: ViewedRun, record: EpisodeRecord, turn: int, find_task: FindTask, library: ToolLibrary | None
) -> EpisodeRecord:
    """Return an episode as it would have gone if from a turn on the optimum had played, on the same draws.

    Args:
        run: The run.
        record: The episode.
        turn: The first message that the optimum sends, from 1.
        find_task: Returns the task of an id.
        library: The run's library, if it is not the default one.

    Raises:
        InvalidInputError: The episode cannot be played again, or has no such turn.
    """
    if not 1 <= turn <= len(record["steps"]):
        raise InvalidInputError(f"turn is {turn}: expected one from 1 to {len(record['steps'])}, as the episode has")
    used = _library_of(run, record, library)
    settings = EnvironmentSettings(**run.arguments["environment"])
    draws = Branch.of_texts(record["branch"]) if "branch" in record else None
    place = PlaceInRun(index=record["index"], name=_GoesOn.name, manifest=record["manifest"])
    with closing(ConversationEnv(settings, library=used).twin(draws)) as env:
        instance_id = record["instance_id"]
        task = find_task(instance_id) if env.world is None else world_task(env.world, instance_id)
        return play_episode(env, _GoesOn(record, turn - 1), task, record["prompt_type"], record["seed"], **place)


def _library_of(run: ViewedRun, record: EpisodeRecord, library: ToolLibrary | None) -> ToolLibrary:
    """Return the library of a run; a folder may come from anybody, so no code that it names is loaded.

    Raises:
        InvalidInputError: It was made with another one, or in a world that is none of this package's.
    """
    for world in (run.arguments.get("environment", {}).get("world"), record.get("world")):
        if world is not None and str(world).partition(":")[0] not in WORLDS.keys() - STARTS_PROGRAMS:
            raise InvalidInputError(
                f"{run.label} was played in {shown_value(world)}, which is no world of this package, or starts programs"
            )
    return library_of_run(run.arguments, library, run.directory)


def episodes_sentence(name_a: str, a: EpisodeRecord, name_b: str, b: EpisodeRecord) -> str:
    """Say what became of two episodes on the same draws."""
    if a["outcome"] == b["outcome"]:
        both = "Both succeeded" if a["outcome"] else "Both lost"
        if "no_ceiling" in a or "no_ceiling" in b:
            return f"{both} on the same draws"
        lost = [percent(record["regret"]) for record in (a, b)]
        return f"{both} on the same draws; calls cost {name_a} {lost[0]} points, {name_b} {lost[1]}"
    won, lost_by = (name_a, name_b) if a["outcome"] else (name_b, name_a)
    return f"{won} succeeded where {lost_by} lost, on the same draws"
