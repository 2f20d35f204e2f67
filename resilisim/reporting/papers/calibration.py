"""KPI-Chain's confidence threshold (section C.1): precision, recall and success by theta, read off records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.episode.texts import opened_if_whole
from resilisim.evaluation.extraction_judge import (
    DEFAULT_THETAS,
    JUDGED_AGENT,
    Course,
    ExtractionJudge,
    JudgedEntity,
    course_at,
    threshold_sweep,
)
from resilisim.reporting.papers.answers import Answers, Player
from resilisim.reporting.papers.paper_table import IN_PERCENT, KPI_CHAIN, PaperRow, PaperTable, Value, notes_of

COMPONENTS: Final = ("extractor", "reasoner")
_THETA: Final = re.compile(r"theta\s*=[^,\]]*,?\s*")


@dataclass
class _Played:
    """What a player with one threshold has brought."""

    player: Player
    entities: list[JudgedEntity] = field(default_factory=list)
    courses: list[tuple[float, dict[float, Course]]] = field(default_factory=list)  # score, and what becomes of it


class Calibration:
    """Takes in the episodes of KPI-Chain, to say what each threshold does.

    Args:
        judge: Says what is right.
        answers: What the runs say otherwise.
    """

    def __init__(self, judge: ExtractionJudge, answers: Answers) -> None:
        self._judge, self._answers = judge, answers
        # By agent without its threshold, and by threshold
        self._played: dict[Player, dict[float, _Played]] = {}
        self.in_pieces: set[str] = set()  # questions of which an output was read in pieces
        self._num_unread = 0  # episodes whose texts are not there, or make no sense

    def add(self, player: Player, record: EpisodeRecord) -> None:
        """Take in one episode of an agent."""
        agent = record["agent"]
        if agent["architecture"] != JUDGED_AGENT:
            return
        extractions = [event for event in agent["events"] if event["kind"] == "extraction"]
        if any(event.get("details", {}).get("pieces", 1) > 1 for event in extractions):
            self.in_pieces.add(record["instance_id"])
        if not agent["options"].get("entities", True):
            return
        whole, _ = opened_if_whole(record)
        try:
            theta = agent["options"]["theta"]
            entities = self._judge.judged(whole)
            courses = {limit: course_at(whole, limit) for limit in DEFAULT_THETAS}
        except (LookupError, TypeError, ValueError, AttributeError):  # one is not worth all the others
            self._num_unread += 1
            return
        family = player._replace(agent=without_theta(player.agent))
        played = self._played.setdefault(family, {}).setdefault(theta, _Played(player))
        played.entities += entities
        played.courses.append((self._answers.score_of(record), courses))

    def tables(self, published: Sequence[Sequence[Any]]) -> Iterator[PaperTable]:
        """Yield precision and recall by theta, and success by theta; nothing if KPI-Chain has not played."""
        if not self._played:
            return
        unread = (f"Left out: {self._num_unread:,} episodes whose texts are not kept.",) if self._num_unread else ()
        names = self._answers.name_columns
        rows = []
        for family, by_theta in self._played.items():
            lowest = min(by_theta)
            for component in COMPONENTS:
                entities = [entity for entity in by_theta[lowest].entities if entity.component == component]
                if any(entity.confidence is not None for entity in entities):
                    rows += [
                        PaperRow(
                            (*self._answers.names(family), component, f"{point.theta:g}"),
                            (point.present, point.accepted, point.precision, point.recall),
                        )
                        for point in threshold_sweep(entities)
                    ]
        for agent, model, theta, precision, recall in published:
            row = self._answers.published((agent, model), (None, None, precision, recall))
            rows.append(PaperRow((*row.names, "extractor", f"{theta:g}"), row.values, is_published=True))
        yield PaperTable(
            KPI_CHAIN,
            "Section C.1",
            "Entities accepted at a confidence of at least theta: how many of them are right, and how many of those "
            "that could be found are accepted, in percent, with 95% intervals clustered by task",
            (*names, "component", "theta"),
            ("could be found", "accepted", "precision", "recall"),
            tuple(rows),
            notes=(
                (
                    "Read off what was found, accepted or not, with the lowest theta that was played. Right is what "
                    "stands in the sentences on which the answer rests; of final answers, what is scored as right."
                ),
                *unread,
                *notes_of(KPI_CHAIN),
            ),
        )
        yield PaperTable(
            KPI_CHAIN,
            "Section C.1, success",
            "Success by theta in percent: as it was played, and as far as it can be read off the run with the lowest "
            "theta, from the episodes whose course is then known",
            (*names, "theta"),
            ("played", "known", "at least", "at most"),
            tuple(row for family, by_theta in self._played.items() for row in self._successes(family, by_theta)),
            form=IN_PERCENT,
            notes=(
                "Episodes whose tasks all pass or fail as they did go the same way.",
                "Those with a task that would fail are lost without replanning; with it nobody knows.",
            ),
        )

    def _successes(self, family: Player, by_theta: dict[float, _Played]) -> Iterator[PaperRow]:
        lowest = by_theta[min(by_theta)].courses
        for theta in sorted({*DEFAULT_THETAS, *by_theta}):
            played = self._answers.overall(by_theta[theta].player) if theta in by_theta else None
            values: tuple[Value, ...] = (None, None, None)
            if theta in DEFAULT_THETAS:
                known = [(score, courses[theta]) for score, courses in lowest if courses[theta] != "unknown"]
                share = len(known) / len(lowest)
                least = sum(score for score, course in known if course == "same") / len(lowest)
                values = (share, least, least + 1.0 - share)
            yield PaperRow((*self._answers.names(family), f"{theta:g}"), (played, *values))


def without_theta(agent: str) -> str:
    """Return the name of an agent without the option `theta`."""
    return _THETA.sub("", agent).replace(",]", "]").removesuffix("[]")
