"""What a run has come to so far, as a table beside its progress bar."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from resilisim.evaluation.failures import FailureRecord
from resilisim.evaluation.records import EpisodeRecord, ceiling_of

MOST_ROWS = 24  # a terminal shows no more beside the rest


@dataclass(slots=True)
class _Row:
    episodes: int = 0
    successes: int = 0
    optimum: float = 0.0
    ceiling: float = 0.0
    luck: float = 0.0
    calls: int = 0
    tokens: int = 0
    cost: float | None = 0.0
    broken: int = 0


class LiveTable:
    """Sums for a look at a run that is under way: one row for each policy and prompt.

    The numbers have no intervals, since they are none to draw conclusions from: what is finished first may not be
    typical of the rest.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Row] = {}

    def add(self, record: EpisodeRecord) -> None:
        """Count a finished episode."""
        row = self._row(record["policy"], record["prompt_type"])
        row.episodes += 1
        row.successes += record["outcome"]
        row.optimum += record["optimum"]
        row.ceiling += ceiling_of(record)
        row.luck += record["luck"]
        for used in record.get("agent", {}).get("components", {}).values():
            row.calls += used["calls"]
            row.tokens += used["prompt_tokens"] + used["completion_tokens"]
            row.cost = None if row.cost is None or used["cost"] is None else row.cost + used["cost"]

    def fail(self, failure: FailureRecord) -> None:
        """Count an episode that broke for reasons of infrastructure."""
        self._row(failure["policy"], failure["prompt_type"]).broken += 1

    def _row(self, policy: str, prompt_type: str) -> _Row:
        return self._rows.setdefault((policy, prompt_type), _Row())

    def __rich__(self) -> Table:
        """Return the table."""
        rows = list(self._rows.items())
        asks_models = any(row.calls for _, row in rows)
        any_broken = any(row.broken for _, row in rows)
        table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
        table.caption = "percent, so far; luck-adjusted with a slope of 1"
        table.add_column("policy", overflow="fold")
        table.add_column("prompt", overflow="fold")
        headings = ["episodes", "success", "ceiling", "V*", "adjusted"]
        headings += ["calls", "tokens", "dollars"] if asks_models else []
        headings += ["broken"] if any_broken else []
        for heading in headings:
            table.add_column(heading, justify="right", no_wrap=True)
        for (policy, prompt_type), row in rows[:MOST_ROWS]:
            cells = [f"{row.episodes:,}", *_percents(row)]
            if asks_models:
                cells += [f"{row.calls:,}", f"{row.tokens:,}", "?" if row.cost is None else f"{row.cost:.2f}"]
            if any_broken:
                cells.append(str(row.broken))
            table.add_row(Text(policy), Text(prompt_type), *(Text(cell) for cell in cells))
        if len(rows) > MOST_ROWS:
            table.caption += f"; {len(rows) - MOST_ROWS} more rows"
        return table


def _percents(row: _Row) -> list[str]:
    if row.episodes == 0:
        return ["", "", "", ""]
    shares = (row.successes, row.ceiling, row.optimum, row.successes - row.luck)
    return [f"{100.0 * share / row.episodes:.1f}" for share in shares]
