"""Episodes that broke for reasons outside of agent and simulator, and are not finished yet: told apart from scores."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from resilisim.evaluation.episode.record import FailureRecord
from resilisim.evaluation.report.content import CellLike, Section, Table
from resilisim.evaluation.report.facts import count_of
from resilisim.evaluation.run.store import EPISODES_NAME, FAILURES_NAME, read_failures
from resilisim.provenance import read_json_lines

MOST_REASONS = 12
REASON_LENGTH = 160


def broken_episodes(directory: Path | str) -> list[FailureRecord]:
    """Return the last failure of each episode that broke and was not finished by a later try, by place in the plan.

    Raises:
        StoreError: A file cannot be read.
    """
    last = {failure["index"]: failure for failure in read_failures(directory)}
    path = Path(directory) / EPISODES_NAME
    if last and path.exists():
        # Only a run in which something broke pays for this look at its episodes.
        for record in read_json_lines(path):
            last.pop(record.get("index"), None)
    return [last[index] for index in sorted(last)]


def broken_section(broken: list[FailureRecord]) -> Section | None:
    """Return what broke, or None if nothing did."""
    if not broken:
        return None
    text = (
        f"{count_of(len(broken), 'episode')} broke on infrastructure (an endpoint that was down, for instance). They "
        "are in no score above or below; the same command tries them again."
    )
    return Section("broken", "Broken episodes", [text, broken_table(broken)])


def broken_table(broken: list[FailureRecord]) -> Table:
    """Return broken episodes by policy, prompt and reason."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for failure in broken:
        reason = " ".join(failure["error"].split())
        short = reason if len(reason) <= REASON_LENGTH else reason[: REASON_LENGTH - 1] + "…"
        counts[failure["policy"], failure["prompt_type"], short] += 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows: list[list[CellLike]] = [[*names, f"{count:,}"] for names, count in ordered[:MOST_REASONS]]
    hidden = len(ordered) - MOST_REASONS
    notes = [f"{count_of(hidden, 'rarer reason')} left out; all stand in {FAILURES_NAME}."] if hidden > 0 else []
    return Table(
        "Episodes that broke and are not finished",
        ("policy", "prompt", "reason", "episodes"),
        rows,
        text_columns=3,
        notes=notes,
    )
