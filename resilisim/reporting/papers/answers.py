"""What runs say, summed by who played and by what kind of question it was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.run.contestants import split_name
from resilisim.evaluation.table.agents import AgentSums, mixture_note
from resilisim.reporting.papers.paper_table import PaperRow, Value
from resilisim.statistics import Estimate
from resilisim.statistics.comparison import mean_difference
from resilisim.statistics.estimates import clustered_proportion


class Player(NamedTuple):
    """Who played: an agent with a model (a dash for policies without any) under a prompt."""

    agent: str
    model: str
    prompt: str


class Setup(NamedTuple):
    """What an agent with a model is: its kind, and its options."""

    architecture: str
    options: Mapping[str, Any]


@dataclass(slots=True)
class Costs:
    """What the episodes of a task took: their number, calls and tokens of models, seconds of calls, calls of tools."""

    episodes: int = 0
    calls: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    tool_calls: float = 0

    def add(self, other: Costs) -> None:
        """Add those of other episodes."""
        self.episodes += other.episodes
        self.calls += other.calls
        self.tokens += other.tokens
        self.seconds += other.seconds
        self.tool_calls += other.tool_calls

    def per_episode(self) -> Costs:
        """Return the means, of one episode."""
        count = self.episodes
        return Costs(1, self.calls / count, self.tokens / count, self.seconds / count, self.tool_calls / count)


@dataclass
class Answers:
    """What runs say, summed by player and by what kind of question it was."""

    place_of: Callable[[EpisodeRecord], tuple[str, str]]  # heading of a table, and column, of an episode
    score_of: Callable[[EpisodeRecord], float]
    # [player, table, column][task] -> sum of scores, episodes
    scores: dict[tuple[Player, str, str], dict[str, list[float]]] = field(default_factory=dict)
    agents: dict[tuple[Player, str], AgentSums] = field(default_factory=dict)  # by player and column, "" for all
    setups: dict[Player, Setup] = field(default_factory=dict)
    costs: dict[Player, dict[str, Costs]] = field(default_factory=dict)  # by task
    # Takes in every episode of an agent too, for whoever looks at more than sums
    collectors: Sequence[Callable[[Player, EpisodeRecord], None]] = ()
    _places: dict[Player, tuple[int, int, int]] = field(default_factory=dict)
    _seen: set[tuple[Player, str, int]] = field(default_factory=set)

    @property
    def players(self) -> list[Player]:
        """Who has played, in the order of the runs and of the commands that made them."""
        return sorted(self._places, key=lambda player: self._places[player])

    def add(self, record: EpisodeRecord, directory: str, place: tuple[int, int, int]) -> None:
        """Take in one episode; `place` is that of its run, of its policy and of its prompt there."""
        agent, model = split_name(record["policy"])
        if "agent" in record:
            model = model or " + ".join(sorted(set(record["agent"]["models"].values()))) or None
        player = Player(agent, model or "–", record["prompt_type"])
        self._places[player] = min(self._places.get(player, place), place)
        if (player, record["instance_id"], record["seed"]) in self._seen:
            raise InvalidInputError(
                f"{directory} has an episode of {record['policy']!r} that another run has, too (task "
                f"{record['instance_id']}, seed {record['seed']}): expected other agents, models, tasks or seeds"
            )
        self._seen.add((player, record["instance_id"], record["seed"]))
        table, column = self.place_of(record)
        of_task = self.scores.setdefault((player, table, column), {}).setdefault(record["instance_id"], [0.0, 0.0])
        of_task[0] += self.score_of(record)
        of_task[1] += 1.0
        if "agent" in record:
            self._add_agent(player, column, record)

    def _add_agent(self, player: Player, column: str, record: EpisodeRecord) -> None:
        for of_columns in (column, ""):
            self.agents.setdefault((player, of_columns), AgentSums(record["policy"], of_columns)).add(record)
        agent = record["agent"]
        self.setups.setdefault(player, Setup(agent["architecture"], agent["options"]))
        used = agent["components"].values()
        costs = Costs(
            1,
            sum(usage["calls"] for usage in used),
            sum(usage["prompt_tokens"] + usage["completion_tokens"] for usage in used),
            sum(usage["latency_seconds"] for usage in used),
            sum(step["kind"] == "execute" for step in record["steps"]),
        )
        self.costs.setdefault(player, {}).setdefault(record["instance_id"], Costs()).add(costs)
        for collect in self.collectors:
            collect(player, record)

    def scores_of(self, player: Player) -> dict[str, tuple[float, float]]:
        """Return the sum of the scores and the number of episodes of each task that a player has played."""
        return {
            task: (score, count)
            for (who, _, _), tasks in self.scores.items()
            if who == player
            for task, (score, count) in tasks.items()
        }

    def overall(self, player: Player, tasks: Collection[str] | None = None) -> Estimate:
        """Return the mean score over all columns, or over some tasks."""
        scores = self.scores_of(player)
        played = sorted(scores if tasks is None else scores.keys() & set(tasks))
        return clustered_proportion([scores[task][0] for task in played], [scores[task][1] for task in played])

    def difference(self, player: Player, other: Player, tasks: Collection[str] | None = None) -> Estimate:
        """Return by how much a player's mean score is higher than another's, on the tasks that both have played."""
        ours, theirs = self.scores_of(player), self.scores_of(other)
        shared = sorted(ours.keys() & theirs.keys() & (ours.keys() if tasks is None else set(tasks)))
        means = [ours[task][0] / ours[task][1] - theirs[task][0] / theirs[task][1] for task in shared]
        return mean_difference(means, [1.0] * len(means))

    def mean_costs(self, player: Player, tasks: Collection[str] | None = None) -> Costs:
        """Return what a question costs a player on average, over all tasks or over some."""
        total = Costs()
        for task, costs in self.costs.get(player, {}).items():
            if tasks is None or task in tasks:
                total.add(costs)
        return total.per_episode() if total.episodes else total

    def rate(self, player: Player, table: str, column: str) -> Estimate | None:
        """Return the mean score of a player, with tasks as the units that vary; None without any."""
        score = self.scores.get((player, table, column))
        if score is None:
            return None
        scores, counts = zip(*(score[task] for task in sorted(score)), strict=True)
        return clustered_proportion(scores, counts)

    def names(self, player: Player) -> tuple[str, ...]:
        """Return the names of a player's rows."""
        return tuple(player if self.has_prompts else player[:2])

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of the runs: whether their agents were sampled differently."""
        note = mixture_note({player.agent: sums.sampling for (player, _), sums in self.agents.items()})
        return () if note is None else (note,)

    @property
    def has_prompts(self) -> bool:
        """Whether there are several prompt types, so that rows have to tell theirs."""
        return len({player.prompt for player in self.players}) > 1

    @property
    def name_columns(self) -> tuple[str, ...]:
        """The headings of the names of rows."""
        return ("agent", "model", "prompt")[: 2 + self.has_prompts]

    def published(self, names: Sequence[str], values: Iterable[Value]) -> PaperRow:
        """Return a published row under the same headings."""
        return PaperRow((*names, *["–"] * self.has_prompts), tuple(values), is_published=True)
