"""What runs say, summed by who played and by what kind of question it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.run.contestants import split_name
from resilisim.evaluation.table.agents import AgentSums
from resilisim.reporting.papers.table import PaperRow, Value
from resilisim.statistics import Estimate
from resilisim.statistics.estimates import clustered_proportion


class Player(NamedTuple):
    """Who played: an agent with a model (a dash for policies without any) under a prompt."""

    agent: str
    model: str
    prompt: str


@dataclass
class Answers:
    """What runs say, summed by player and by what kind of question it was."""

    place_of: Callable[[EpisodeRecord], tuple[str, str]]  # heading of a table, and column, of an episode
    score_of: Callable[[EpisodeRecord], float]
    # [player, table, column][task] -> sum of scores, episodes
    scores: dict[tuple[Player, str, str], dict[str, list[float]]] = field(default_factory=dict)
    agents: dict[tuple[Player, str], AgentSums] = field(default_factory=dict)  # by player and column
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
            self.agents.setdefault((player, column), AgentSums(record["policy"], column)).add(record)

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
