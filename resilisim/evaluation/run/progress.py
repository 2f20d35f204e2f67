"""How far a run is, how fast it goes and how long it will take, on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter

from rich import box
from rich.console import Console, ConsoleRenderable, Group, RichCast
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from resilisim.evaluation.episode.record import FailureRecord
from resilisim.evaluation.table.facts import RunCollector
from resilisim.statistics.estimates import FloatArray

QUIET_SECONDS = 2.0  # a run that takes no longer says nothing
RATE_SECONDS = 2.0  # a rate that was measured for less time is no basis for an estimate
# Nor is one from a few episodes, of which some load a model or compile, unless episodes are slow themselves.
RATE_EPISODES = 10
SLOW_SECONDS = 60.0
REFRESHES_PER_SECOND = 4
LINE_SECONDS = 10.0  # between two lines where there is no terminal
STARTING = "starting"  # until an episode has ended: processes start, models load, prompts are made


class RunProgress:
    """Shows the progress of a run once it has taken a while: a bar in a terminal, else a line now and then.

    A thread says that the run is starting if no episode has ended when QUIET_SECONDS are over.

    Args:
        total: Episodes of the run.
        finished: How many were there when it began.
        show: True or False to insist; None shows it only for runs of more than QUIET_SECONDS.
        table: What a terminal shows above the bar.
    """

    def __init__(
        self,
        total: int,
        finished: int,
        show: bool | None = None,
        table: ConsoleRenderable | RichCast | None = None,
    ) -> None:
        self._total = total
        self._finished = finished
        self._counted_from = finished  # episodes at the moment from which the rate is measured
        self._clock_start: float | None = None
        self._stream = sys.stderr
        self._began = self._last_line = time.monotonic()
        self._quiet = 0.0 if show else QUIET_SECONDS
        self._enabled = show is not False and finished < total
        self._table = table
        self._live: Live | None = None
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._has_spoken = False
        self._started = threading.Event()  # an episode has ended, or nobody wants to hear of it any more
        self._lock = threading.Lock()  # of everything above: the thread and the run both speak
        if self._enabled:
            threading.Thread(target=self._tell_that_it_starts, daemon=True).start()

    def advance(self) -> None:
        """Count one more finished episode."""
        self._started.set()
        with self._lock:
            self._finished += 1
            if self._enabled:
                self._show(time.monotonic())

    def _show(self, now: float) -> None:
        if self._clock_start is None:
            # Starting processes and compiling takes seconds that the other episodes do not need again.
            self._clock_start, self._counted_from = now, self._finished
        if self._bar is not None:
            self._bar.update(self._task, completed=self._finished, estimate=self._estimate(now))
        elif now - self._began >= self._quiet:
            if self._stream.isatty():
                self._open_bar(now)
            elif now - self._last_line >= LINE_SECONDS:
                self._last_line = now
                self._say(self._line(now))

    def close(self) -> None:
        """Take the bar away, or say in a last line how it went, if anything was said before."""
        self._started.set()
        with self._lock:
            if self._bar is not None:
                if self._live is not None:
                    self._live.stop()
                self._live = self._bar = None
            elif self._enabled and self._has_spoken:
                self._say(self._line(time.monotonic()))
            self._enabled = False

    def _tell_that_it_starts(self) -> None:
        if self._started.wait(QUIET_SECONDS):
            return
        with self._lock:
            if not self._enabled or self._started.is_set():
                return
            now = time.monotonic()
            if self._stream.isatty():
                self._open_bar(now)
            else:
                self._last_line = now
                self._say("starting: no episode has ended yet")

    def _say(self, line: str) -> None:
        self._has_spoken = True
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except OSError:
            self._enabled = False  # nobody listens any more, which is no reason to stop the run

    def _open_bar(self, now: float) -> None:
        columns = (TextColumn("episodes"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[estimate]}"))
        self._bar = Progress(*columns)
        self._task = self._bar.add_task(
            "episodes", total=self._total, completed=self._finished, estimate=self._estimate(now)
        )
        content = self._bar if self._table is None else Group(self._table, self._bar)
        self._live = Live(
            content, console=Console(file=self._stream), transient=True, refresh_per_second=REFRESHES_PER_SECOND
        )
        self._live.start()

    def _estimate(self, now: float) -> str:
        """Return rate and time left, or nothing as long as there is no basis for them."""
        if not self._started.is_set():
            return STARTING
        measured = 0.0 if self._clock_start is None else now - self._clock_start
        done = self._finished - self._counted_from
        if measured < RATE_SECONDS or done < (RATE_EPISODES if measured < SLOW_SECONDS else 1):
            return ""
        rate = done / measured
        return f"{rate:,.1f}/s, {_duration((self._total - self._finished) / rate)} left"

    def _line(self, now: float) -> str:
        count = f"{self._finished:,} of {self._total:,} episode{'' if self._total == 1 else 's'}"
        estimate = self._estimate(now)
        return f"{count}, {estimate}" if estimate else count


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


MOST_ROWS = 24  # a terminal shows no more beside the rest


class LiveTable:
    """A look at a run that is under way: one row for each policy and prompt that a collector has taken in.

    The numbers have no intervals, since they are none to draw conclusions from: what is finished first may not be
    typical of the rest.
    """

    def __init__(self, collector: RunCollector) -> None:
        self._collector = collector
        self._broken: Counter[tuple[str, str]] = Counter()

    def fail(self, failure: FailureRecord) -> None:
        """Count an episode that broke for reasons of infrastructure."""
        self._broken[failure["policy"], failure["prompt_type"]] += 1

    def __rich__(self) -> Table:
        """Return the table."""
        with self._collector.lock:  # another thread draws than takes in episodes
            totals = self._collector.table.totals("count", "outcome", "ceiling", "optimum", "luck")
            used = {
                names: (int(sums.total("calls")), int(sums.tokens), sums.cost)
                for names, sums in self._collector.agents.items()
            }
        rows = [*totals, *(names for names in self._broken if names not in totals)]
        asks_models = any(calls for calls, _, _ in used.values())
        table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
        table.caption = "percent, so far; luck-adjusted with a slope of 1"
        table.add_column("policy", overflow="fold")
        table.add_column("prompt", overflow="fold")
        headings = ["episodes", "success", "ceiling", "V*", "adjusted"]
        headings += ["calls", "tokens", "dollars"] if asks_models else []
        headings += ["broken"] if self._broken else []
        for heading in headings:
            table.add_column(heading, justify="right", no_wrap=True)
        for names in rows[:MOST_ROWS]:
            cells = _percents(totals.get(names))
            if asks_models:
                calls, tokens, cost = used.get(names, (0, 0, 0.0))
                cells += [f"{calls:,}", f"{tokens:,}", "?" if cost is None else f"{cost:.2f}"]
            if self._broken:
                cells.append(str(self._broken[names]))
            table.add_row(*map(Text, (*names, *cells)))
        if len(rows) > MOST_ROWS:
            table.caption += f"; {len(rows) - MOST_ROWS} more rows"
        return table


def _percents(totals: FloatArray | None) -> list[str]:
    if totals is None:
        return ["0", "", "", "", ""]
    count, outcome, ceiling, optimum, luck = totals.tolist()
    return [f"{count:,.0f}", *(f"{100.0 * share / count:.1f}" for share in (outcome, ceiling, optimum, outcome - luck))]
