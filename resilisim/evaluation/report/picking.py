"""Which episodes the report tells message by message."""

from __future__ import annotations

from resilisim.evaluation.episode.record import EpisodeRecord


class ExamplePicker:
    """Keeps, for each policy, the episode in which its calls cost most (if none cost anything, the unluckiest one)."""

    def __init__(self) -> None:
        self.chosen: dict[str, EpisodeRecord] = {}

    def add(self, record: EpisodeRecord) -> None:
        """Look at one episode; ties go to the lower index, so that the choice does not hang on the order of arrival."""
        best = self.chosen.get(record["policy"])
        if best is None or _interest(record) > _interest(best):
            self.chosen[record["policy"]] = record


def _interest(record: EpisodeRecord) -> tuple[float, float, int]:
    # Rounded, so that sums that differ in the last bit count as equal.
    return (round(record["regret"], 9), -round(record["luck"], 9), -record["index"])
