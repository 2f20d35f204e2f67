"""What the pages of `resilisim view` say in one sentence."""

from __future__ import annotations

from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.tables.numbers import percent


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
