"""The pages of `resilisim view`: the list of runs, two agents compared, and one episode of both side by side.

Whatever comes from a run is escaped, as in reports; addresses hold everything that a page shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import zip_longest
from typing import Any, Final
from urllib.parse import urlencode

from markupsafe import Markup

from resilisim.errors import count_of
from resilisim.evaluation.episode.record import EpisodeRecord, StepRecord
from resilisim.evaluation.table.comparing import RunComparison
from resilisim.evaluation.table.first_difference import said
from resilisim.evaluation.table.summary import GroupSummary
from resilisim.reporting.comparison_section import differences_table, methods_table
from resilisim.reporting.page import Fold, packaged_file, page_policy, plain, render
from resilisim.reporting.view.side_by_side import PAIR_CHOICES, Choice, Pair, ShownEpisode
from resilisim.reporting.view.viewed_runs import State, ViewedRun
from resilisim.tables.numbers import interval_text, percent, signed_points

PAIRS_A_PAGE: Final = 100
STATES: Final[tuple[State, ...]] = ("under way", "stopped", "finished", "broken")
ORDERS: Final = ("newest", "name", "best")


def link(path: str, **values: object) -> str:
    """Return the address of a page; what is None or empty is left out."""
    shown = {name: value for name, value in values.items() if value not in (None, "")}
    return f"{path}?{urlencode(shown)}" if shown else path


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs are listed, and in which order; it stands in the address.

    Attributes:
        words: What name, agents or law have to hold, in any case of letters.
        agent: An agent that has to be among those that play; any if empty.
        state: How far a run has to be; any if empty.
        order: "newest", "name" or "best" (share of the ceiling).
    """

    words: str = ""
    agent: str = ""
    state: str = ""
    order: str = "newest"

    @classmethod
    def of(cls, query: Mapping[str, str]) -> RunFilter:
        """Return the filter of an address; what it does not know counts as not said."""
        state, order = query.get("state", ""), query.get("order", "newest")
        return cls(
            query.get("words", "").strip(),
            query.get("agent", ""),
            state if state in STATES else "",
            order if order in ORDERS else "newest",
        )

    def listed(self, runs: Sequence[ViewedRun]) -> list[ViewedRun]:
        """Return the runs that are listed, in their order."""
        shown = [run for run in runs if self._holds(run)]
        if self.order == "name":
            return sorted(shown, key=lambda run: run.label)
        if self.order == "best":
            return sorted(shown, key=lambda run: (-best_share(run), run.label))
        return sorted(shown, key=lambda run: run.sort_key, reverse=True)

    def _holds(self, run: ViewedRun) -> bool:
        text = " ".join((run.label, *run.policies, run.law, run.begun)).casefold()
        return (
            all(word in text for word in self.words.casefold().split())
            and self.agent in ("", *run.policies)
            and self.state in ("", run.state)
        )


def best_share(run: ViewedRun) -> float:
    """Return the highest share of the ceiling in a run, of agents that do not see the state; -1 if there is none."""
    shares = [share_of(row) for row in run.rows if not row.privileged]
    return max((share for share in shares if not math.isnan(share)), default=-1.0)


def share_of(row: GroupSummary) -> float:
    """Return the share of the ceiling, luck taken out; NaN where nobody knows it."""
    return math.nan if row.has_no_ceiling else row.adjusted_share.value


def share_text(row: GroupSummary) -> str:
    """Return what is shown of a row: its share of the ceiling with the interval, or its success rate."""
    share = row.adjusted_share
    if math.isnan(share_of(row)):
        return f"{percent(row.success.value)}% success"
    interval = "" if math.isnan(share.low) or row.is_optimum else f" {interval_text(share)}"
    return f"{percent(share.value)}%{interval}"


def runs_page(root: str, runs: Sequence[ViewedRun], is_complete: bool, query: RunFilter) -> bytes:
    """Return the list of runs."""
    agents = sorted({policy for run in runs for policy in run.policies})
    return _page(
        "view-runs.html",
        title=f"{root}: runs",
        root=root,
        runs=query.listed(runs),
        num_runs=len(runs),
        is_complete=is_complete,
        query=query,
        agents=agents,
        contestants=[
            (run, policy) for run in sorted(runs, key=lambda run: run.sort_key, reverse=True) for policy in run.policies
        ],
        states=STATES,
        orders=ORDERS,
        share_text=share_text,
        is_live=not is_complete or any(run.state == "under way" or not run.is_read for run in runs),
    )


def compare_page(
    sides: tuple[tuple[ViewedRun, str], tuple[ViewedRun, str]],
    prompt: str | None,
    comparison: RunComparison | str,
    sentence: str,
    pairs: Sequence[Pair],
    choice: Choice,
    first: int,
) -> bytes:
    """Return the comparison of two agents.

    Args:
        sides: The run and the name of each.
        prompt: The only prompt type that counts; None if all do.
        comparison: What differs; or why they cannot be compared.
        sentence: The same in a sentence.
        pairs: Their pairs.
        choice: Which of them are listed.
        first: Which of those that are listed comes first on the page, from 0.
    """
    listed = [pair for pair in pairs if pair.is_listed(choice)]
    tables = [] if isinstance(comparison, str) else _tables(comparison)
    prompts = sorted({each.prompt for run, _ in sides for each in [*run.episodes.values()]})
    return _page(
        "view-compare.html",
        title=f"{sides[0][1]} and {sides[1][1]}",
        sides=sides,
        prompt=prompt,
        prompts=prompts,
        sentence=sentence,
        tables=tables,
        pairs=listed[first : first + PAIRS_A_PAGE],
        first=first,
        num_listed=len(listed),
        choice=choice,
        choices=[(name, words, sum(pair.is_listed(name) for pair in pairs)) for name, words in PAIR_CHOICES.items()],
        page_size=PAIRS_A_PAGE,
        is_explored=any(run.is_explored for run, _ in sides),
        is_live=any(run.state == "under way" for run, _ in sides),
        here=_compare_link(sides, prompt),
        episode_link=lambda pair: _pair_link(sides, pair, prompt, choice),
    )


def _tables(comparison: RunComparison) -> list[Any]:
    return [differences_table(comparison), Fold("By every method", [methods_table(comparison)])]


def _compare_link(sides: Sequence[tuple[ViewedRun, str]], prompt: str | None) -> Callable[..., str]:
    (run_a, policy_a), (run_b, policy_b) = sides
    fixed = {"a": run_a.name, "agent_a": policy_a, "b": run_b.name, "agent_b": policy_b}
    return lambda **more: link("/compare", **{**fixed, "prompt": prompt, **more})


def _pair_link(sides: Sequence[tuple[ViewedRun, str]], pair: Pair, prompt: str | None, choice: str) -> str:
    (run_a, policy_a), (run_b, policy_b) = sides
    fixed = {"a": run_a.name, "agent_a": policy_a, "b": run_b.name, "agent_b": policy_b}
    return link("/episodes", **fixed, prompt=prompt, choice=choice, of_a=pair.a.number, of_b=pair.b.number)


@dataclass(frozen=True, slots=True)
class Side:
    """One of two episodes that are shown beside each other.

    Attributes:
        name: Who played.
        run: The run.
        shown: The episode.
        can_go_on: Whether the optimum can play on from each of its turns.
    """

    name: str
    run: ViewedRun
    shown: ShownEpisode
    can_go_on: bool = True

    @property
    def record(self) -> EpisodeRecord:
        """The record of the episode."""
        return self.shown.record


def episodes_page(
    sides: tuple[Side, Side],
    sentence: str,
    links: Mapping[str, str | None],
) -> bytes:
    """Return two episodes turn by turn.

    Args:
        sides: The episodes.
        sentence: What they are to each other.
        links: Where "back", "previous" and "next" lead.
    """
    a, b = (side.shown.turns for side in sides)
    steps = ([each.step for each in turns] for turns in (a, b))
    parting = next(
        (number for number, (mine, its) in enumerate(zip_longest(*steps)) if not _same(mine, its)),
        None,
    )
    return _page(
        "view-episodes.html",
        title=f"{sides[0].name} and {sides[1].name}: {sides[0].record['instance_id']}",
        sides=sides,
        sentence=sentence,
        turns=list(zip_longest(a, b)),
        parting=parting,
        links=links,
        is_live=False,
        points_lost=_points_lost,
    )


def _same(one: StepRecord | None, other: StepRecord | None) -> bool:
    return one is not None and other is not None and said(one) == said(other)


def problem_page(problem: str) -> bytes:
    """Return the page that says why there is no other."""
    return _page("view-problem.html", title="ResiliSim", problem=problem, is_live=False)


def _points_lost(record: EpisodeRecord) -> str:
    """Say how the points of an episode add up."""
    if "no_ceiling" in record:
        return f"V* is not known: {record['no_ceiling']}"
    return (
        f"V* {percent(record['optimum'])}%, lost by calls {percent(record['regret'])} points, "
        f"luck {signed_points(record['luck'])} points"
    )


def _page(template: str, **values: Any) -> bytes:
    folder = resources.files("resilisim.reporting.view")
    script = folder.joinpath("view.js").read_text(encoding="utf-8")
    style = packaged_file("style.css") + folder.joinpath("view.css").read_text(encoding="utf-8")
    common = {
        "policy": f"{page_policy(script)}; connect-src 'self'; form-action 'self'; base-uri 'none'",
        "style": Markup(style),
        "script": Markup(script),
        "link": link,
        "plain": plain,
        "count_of": count_of,
        "percent": percent,
        "points": signed_points,
    }
    return render(template, **common, **values).encode("utf-8")
