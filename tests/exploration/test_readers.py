"""Every reader of runs weighs the branches of an agent that was explored, or says in one line why it does not."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from resilisim import explore, write_report
from resilisim.chat import ScriptedChatModel
from resilisim.datasets.run_tables import export_run, run_frame
from resilisim.errors import InvalidInputError
from resilisim.evaluation import compare_runs, gate_runs, judge_run, merge_runs, read_results
from resilisim.evaluation.episode.rejudging import compare_records
from resilisim.evaluation.extension import extend_run
from resilisim.evaluation.run.replay import find_episode, replay_episode
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.evaluation.run.store import read_records
from resilisim.evaluation.submission import check_submission, define_set
from resilisim.evaluation.table.facts import read_facts
from resilisim.evaluation.table.gate import gate_pilot
from resilisim.evaluation.table.leaderboard import read_leaderboard
from resilisim.injection.law_fit import fit_law
from resilisim.injection.real_apis import real_api_tables
from resilisim.reporting import paper_tables
from resilisim.reporting.groups import PromptPools
from resilisim.reporting.view.viewed_runs import ViewedRun
from resilisim.reporting.viewer.packing import Packer
from resilisim.statistics.power import independent_luck_episodes, plan_sample
from resilisim.tables.numbers import percent
from resilisim.tasks.benchmark import benchmark_tasks, find_task
from resilisim.tool_library import default_library

AGENTS = ("plan-follower", "three_tries")
Rates = dict[str, float]  # by agent


@dataclass(frozen=True)
class Explored:
    """A run of two agents on two tasks, all of whose branches were played, with what `explore` said of it."""

    folder: Path
    rates: Rates
    regrets: Rates


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Explored:
    """Return the run: rates and regrets are means over its tasks."""
    folder = tmp_path_factory.mktemp("explored") / "run"
    tasks = [task for task in benchmark_tasks("benchmark-v1") if len(task.required_tools) == 2][:2]
    agent = "tests.exploration.agents:three_tries"
    rows = explore("plan-follower", tasks, "optimal", agents=agent, out=folder, max_turns=4).rows
    assert all(row.is_exact and not row.unplayed for row in rows)
    of = {name: [row for row in rows if row.policy == name] for name in AGENTS}
    means = {name: math.fsum(row.estimate for row in own) / len(own) for name, own in of.items()}
    lost = {name: math.fsum(math.fsum(row.losses.values()) for row in own) / len(own) for name, own in of.items()}
    records = list(read_records(folder))
    alike = {name: [record["outcome"] for record in records if record["policy"] == name] for name in AGENTS}
    for name, outcomes in alike.items():  # else nobody would see which of the two a reader does
        assert abs(math.fsum(outcomes) / len(outcomes) - means[name]) > 0.1
    return Explored(folder, means, lost)


def of_facts(run: Explored, _: Path) -> Rates:
    facts = read_facts(run.folder)
    regrets = {row.policy: row.regret.value for row in facts.rows}
    assert regrets == pytest.approx(run.regrets, abs=1e-12)
    by_policy = {row.key: math.fsum(row.losses.values()) / row.episodes for row in facts.breakdown.totals("policy")}
    assert by_policy == pytest.approx(run.regrets, abs=1e-12)
    costly = dict.fromkeys(AGENTS, 0.0)
    for call in facts.breakdown.costliest:
        costly[call.policy] += call.regret / len(facts.table.tasks)
    assert costly == pytest.approx(run.regrets, abs=1e-12)
    return {row.policy: row.success.value for row in facts.rows}


def of_agents(run: Explored, _: Path) -> Rates:
    """What agents used and where they gave up: of the follower, which is none, nothing is known."""
    (sums,) = read_results(run.folder).agents()
    assert sums.num_episodes == pytest.approx(2.0, abs=1e-12)
    assert math.fsum(sums.endings.values()) == pytest.approx(2.0, abs=1e-12)
    assert math.fsum(sums.first_failures.values()) == pytest.approx(2.0 - sums.num_right, abs=1e-12)
    return {sums.policy: sums.num_right / sums.num_episodes, "plan-follower": run.rates["plan-follower"]}


def of_report(run: Explored, folder: Path) -> Rates:
    """Of a page nothing is left but the digits that it shows."""
    facts = read_facts(run.folder)
    write_report(run.folder, folder / "report.html", markdown=folder / "report.md")
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert all(percent(rate) in text for rate in run.rates.values())
    pools = PromptPools(facts)
    return {
        entry.summary.policy: entry.summary.success.value for entry in (pools.get(name, "optimal") for name in AGENTS)
    }


def of_viewer(run: Explored, _: Path) -> Rates:
    """The viewer is told the weight of each branch; what it makes of it, a browser shows elsewhere."""
    packer, sums = Packer(), dict.fromkeys(AGENTS, 0.0)
    for record in read_records(run.folder):
        sums[record["policy"]] += record["outcome"] * (packer._packed(record).row[-1] or 0.0) / 2.0
    return sums


def of_view(run: Explored, _: Path) -> Rates:
    viewed = ViewedRun(run.folder, "run")
    assert viewed.update()
    return {row.policy: row.success.value for row in viewed.rows}


def of_compare(run: Explored, _: Path) -> Rates:
    pooled = compare_runs(run.folder, run.folder, *AGENTS).pooled
    assert pooled.best.difference == pytest.approx(run.rates[AGENTS[0]] - run.rates[AGENTS[1]], abs=1e-12)
    assert math.isnan(independent_luck_episodes(pooled))
    return dict(zip(AGENTS, (pooled.success_a.value, pooled.success_b.value), strict=True))


def of_gate(run: Explored, _: Path) -> Rates:
    (row,) = gate_runs(run.folder, run.folder, baseline_policy=AGENTS[0], candidate_policy=AGENTS[1]).rows
    assert row.is_exact
    assert row.difference == pytest.approx(run.rates[AGENTS[1]] - run.rates[AGENTS[0]], abs=1e-12)
    return {row.baseline: row.success_baseline, row.candidate: row.success_candidate}


def of_leaderboard(run: Explored, _: Path) -> Rates:
    rows = read_leaderboard([run.folder]).sections["optimal"]
    assert all(row.entry.score == row.entry.summary.success.value for row in rows)
    return {row.entry.summary.policy: row.entry.score for row in rows}


def of_tables(run: Explored, folder: Path) -> Rates:
    """Parquet files, and the same in memory; calls are weighed by the episodes that they are joined with."""
    export_run(run.folder, folder)
    rows = parquet.read_table(folder / "episodes.parquet").to_pylist()
    assert run_frame(run.folder).to_pylist() == rows
    weight = {row["index"]: row["weight"] for row in rows}
    steps = parquet.read_table(folder / "steps.parquet").to_pylist()
    of_steps = {
        name: math.fsum(weight[step["index"]] * step["regret"] for step in steps if step["policy"] == name) / 2.0
        for name in AGENTS
    }
    assert of_steps == pytest.approx(run.regrets, abs=1e-12)
    return {
        name: math.fsum(row["weight"] * row["outcome"] for row in rows if row["policy"] == name) / 2.0
        for name in AGENTS
    }


def of_merged(run: Explored, folder: Path) -> Rates:
    assert merge_runs([run.folder], folder / "merged").is_complete
    return of_facts(Explored(folder / "merged", run.rates, run.regrets), folder)


def of_rescored(run: Explored, folder: Path) -> Rates:
    assert rescore_run(run.folder, folder / "again", best=True).agrees
    return of_facts(Explored(folder / "again", run.rates, run.regrets), folder)


def of_replayed(run: Explored, _: Path) -> Rates:
    record = max(read_records(run.folder), key=lambda record: sum(result != "success" for result in record["branch"]))
    again = replay_episode(run.folder, find_episode(run.folder, str(record["index"])), find_task, default_library())
    assert compare_records(record, again) == ("agreeing", None)
    return run.rates


@pytest.mark.parametrize(
    "reader",
    [
        *(of_facts, of_agents, of_report, of_viewer, of_view, of_compare, of_gate, of_leaderboard, of_tables),
        *(of_merged, of_rescored, of_replayed),
    ],
)
def test_the_mean_is_the_rate_that_was_explored(
    reader: Callable[[Explored, Path], Rates], explored: Explored, tmp_path: Path
) -> None:
    assert reader(explored, tmp_path) == pytest.approx(explored.rates, abs=1e-12)


REFUSED: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "power": (
        lambda run, out: plan_sample(compare_runs(run, run, *AGENTS).pooled, 0.03),
        "both were explored: no luck is in their difference",
    ),
    "gate --plan": (
        lambda run, out: gate_pilot(run, run, baseline_policy=AGENTS[0], candidate_policy=AGENTS[1]),
        "both were explored: their difference is exact",
    ),
    "extend": (
        lambda run, out: extend_run(run, out, find_task, policy=AGENTS[0], options={}, max_turns=9),
        "branches of unequal weight: episodes are played again one by one",
    ),
    "a branch that is not there": (
        lambda run, out: find_episode(run, "123456"),
        "expected the number of a branch in episodes.jsonl",
    ),
    "submit define": (lambda run, out: define_set(run, "mine"), "branches of unequal weight: a set is of episodes"),
    "judge": (
        lambda run, out: asyncio.run(judge_run(run, ScriptedChatModel([]))),
        "branches of unequal weight: agreement is counted",
    ),
    "law fit": (lambda run, out: fit_law(run), "branches of unequal weight: a law is fitted to calls that were drawn"),
    "tables": (lambda run, out: paper_tables([run]), "branches of unequal weight: the papers count episodes"),
    "apis tables": (lambda run, out: real_api_tables(run), "branches of unequal weight: the paper counts episodes"),
}


@pytest.mark.parametrize("reader", REFUSED)
def test_what_needs_a_sample_refuses_branches_in_one_line(reader: str, explored: Explored, tmp_path: Path) -> None:
    read, why = REFUSED[reader]
    with pytest.raises(InvalidInputError, match=why) as refusal:
        read(explored.folder, tmp_path)
    assert "\n" not in str(refusal.value)


def test_branches_cannot_be_submitted(explored: Explored) -> None:
    check = check_submission(explored.folder)
    assert not check.is_accepted
    assert [refusal.text for refusal in check.refusals] == [
        "it was explored, expected episodes that were played on the draws of the set"
    ]
