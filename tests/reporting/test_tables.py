"""The numbers of every table, against values worked out from the records here."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.table.comparing import compare_runs
from resilisim.evaluation.table.facts import RunFacts, read_facts
from resilisim.provenance import encode_json_line
from resilisim.reporting import agent_sections, comparison_section, losses, result_sections, write_report
from resilisim.reporting.flaws import drops_table, flaw_costs, flaw_pools, flaws_section, flaws_table
from resilisim.reporting.groups import PromptPools
from resilisim.reporting.page import Fold, Section
from resilisim.statistics.comparison import COMPARISON_METHODS, METHOD_NAMES
from resilisim.tables.numbers import p_value, percent, signed_interval, signed_points
from resilisim.tables.table import Cell, Table
from tests.evaluation.synthetic import synthetic_record, synthetic_run
from tests.reporting.agent_records import AGENTS, MODELS, PROMPTS, agent_records
from tests.reporting.pages import check, facts_of, text_of, write_run

Record = Mapping[str, Any]
FLAWS = (("tool_misuse", "light"), ("tool_misuse", "severe"), ("missing_step", "light"))
LEVELS = ("full_success", "partial_success", "failure")
SHOWN_PROMPTS = ("baseline", "optimal", "flawed")


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    """Return a run under three prompts, of which the flawed ones name their flaws."""
    found: list[dict[str, Any]] = []
    for record in synthetic_run(prompts=("baseline", "optimal", "flawed:a", "flawed:b"), num_tasks=10, num_seeds=3):
        kind, severity = FLAWS[record["index"] % len(FLAWS)]
        flaw = {"type": kind, "severity": severity, "method": "category_mismatch", "edits": []}
        found.append({**record, "flaw": flaw if record["prompt_type"].startswith("flawed") else None})
    return found


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]]) -> RunFacts:
    return facts_of(tmp_path_factory.mktemp("run"), records)


@pytest.fixture(scope="module")
def pools(facts: RunFacts) -> PromptPools:
    return PromptPools(facts)


def share(records: Sequence[Record], what: Callable[[Record], bool]) -> str:
    """Return how many of the records something holds for, in percent."""
    return percent(sum(map(what, records)) / len(records))


def level_shares(records: Sequence[Record]) -> list[str]:
    return [share(records, lambda record, name=name: record["score"]["level"] == name) for name in LEVELS]


def chosen(records: Sequence[Record], policy: str, *prompts: str) -> list[Record]:
    """Return the records of a policy, under any of some prompts if they are given."""
    own = [record for record in records if record["policy"] == policy]
    return [record for record in own if not prompts or record["prompt_type"].partition(":")[0] in prompts]


def success_of(records: Sequence[Record]) -> float:
    return statistics.fmean(record["outcome"] for record in records)


def texts(row: Sequence[Any]) -> list[str]:
    return list(map(text_of, row))


def tables_of(section: Section | None) -> list[Table]:
    assert section is not None
    blocks = [inner for block in section.blocks for inner in (block.blocks if isinstance(block, Fold) else [block])]
    return [block for block in blocks if isinstance(block, Table)]


def test_levels_are_the_shares_of_the_records(pools: PromptPools, records: list[Record]) -> None:
    table = result_sections.levels_table(pools)
    assert [name for name, _ in table.groups] == ["", *SHOWN_PROMPTS]
    *rows, means = map(texts, table.rows)
    for policy, *levels in rows:
        assert levels == [cell for prompt in SHOWN_PROMPTS for cell in level_shares(chosen(records, policy, prompt))]
    assert "mean of 3 policies without *" in means[0]
    for place, prompt in enumerate(SHOWN_PROMPTS):
        ordinary = ("repairing-follower", "plan-follower", "random")
        rates = [success_of(chosen(records, policy, prompt)) for policy in ordinary]
        assert means[1 + 3 * place] == percent(statistics.fmean(rates))


def test_every_rate_has_an_interval(pools: PromptPools) -> None:
    for table in (
        result_sections.success_table(pools.facts.rows),
        result_sections.levels_table(pools),
        drops_table(pools),
    ):
        assert table is not None
        cells = [cell for row in table.rows for cell in row[1:] if isinstance(cell, Cell)]
        without = [cell for cell in cells if cell.text not in {"–", ""} and not cell.detail.startswith("[")]
        # The share of the exact optimum is what it is.
        assert {(cell.text, cell.detail) for cell in without} <= {("100.0", "–")}


def test_task_types_have_the_shares_of_their_tasks(pools: PromptPools, records: list[Record]) -> None:
    counts = Counter(task.task_type for task in pools.facts.table.tasks)
    *rows, searching, known, tasks = map(texts, result_sections.shares_table(pools, counts).rows)
    assert tasks[2:] == [f"{count}" for count in counts.values()]
    assert len(rows) == 4 * 3
    optimum = {record["instance_id"]: (record["task_type"], record["optimum"]) for record in records}
    for place, name in enumerate(counts, start=2):
        mean = statistics.fmean(value for kind, value in optimum.values() if kind == name)
        assert [known[place], searching[place]] == [percent(mean), percent(0.75 * mean)]
        for row in rows:
            own = [record for record in chosen(records, row[0], row[1]) if record["task_type"] == name]
            if row[0] == "exact-optimum":  # its luck is all that there is between V* and its outcome
                assert row[place] == "100.0"
            elif not any(record["outcome"] or abs(record["luck"]) > 1e-9 for record in own):
                assert row[place] == "0.0"


def test_drops_are_differences_of_the_same_episodes(pools: PromptPools, records: list[Record]) -> None:
    table = drops_table(pools)
    assert table is not None
    for policy, *cells in map(texts, table.rows[:-1]):
        sound, flawed = (chosen(records, policy, prompt) for prompt in ("optimal", "flawed"))
        assert cells[:6] == level_shares(sound) + level_shares(flawed)
        drop = success_of(sound) - success_of(flawed)
        assert cells[6].lstrip("+−") == percent(abs(drop))
        assert cells[6].startswith("−") == (drop < 0)


def test_flaws_by_severity_are_the_shares_of_their_records(pools: PromptPools, records: list[Record]) -> None:
    table = flaws_table(flaw_pools(pools.facts), flaw_costs(pools.facts), pools)
    seen = set()
    for flaw, severity, policy, _, episodes, success, *_ in map(texts, table.rows):
        names = (flaw.replace(" ", "_"), severity)
        flawed = (record for record in chosen(records, policy) if record["flaw"])
        own = [record for record in flawed if (record["flaw"]["type"], record["flaw"]["severity"]) == names]
        assert (episodes, success) == (f"{len(own):,}", share(own, lambda record: record["outcome"] == 1))
        seen.add(names)
    assert seen == set(FLAWS)
    assert any("not known" in note for note in table.notes)  # these tasks are nobody's


def test_totals_of_lost_points_are_sums_over_messages(pools: PromptPools, records: list[Record]) -> None:
    ordinary = [record for record in records if not record["privileged"]]
    by_tool, by_policy = (losses.totals_table(pools, dimension) for dimension in ("tool", "policy"))
    assert by_tool is not None
    assert by_policy is not None
    for tool, _, _, calls, lost, *_ in map(texts, by_tool.rows):
        steps = [step for record in ordinary for step in record["steps"] if step["tool"] == tool]
        regret = math.fsum(step["regret"] for step in steps if step["label"])
        assert tool.startswith("none") or (calls, lost) == (f"{len(steps):,}", percent(regret / len(ordinary)))
    for policy, _, _, _, lost in map(texts, by_policy.rows):
        assert lost == percent(statistics.fmean(record["regret"] for record in chosen(records, policy)))


def test_the_costliest_calls_lead_to_their_episodes(facts: RunFacts, records: list[Record]) -> None:
    table = losses.costliest_calls(facts)[0]
    assert isinstance(table, Table)
    steps = [step for record in records for step in record["steps"] if step["label"] not in {None, "information"}]
    costs = sorted((step["regret"] for step in steps), reverse=True)[: len(table.rows)]
    assert [text_of(row[-1]) for row in table.rows] == list(map(percent, costs))
    for row in table.rows:
        assert isinstance(row[0], Cell)
        assert row[0].link == f"#episode-{row[0].text}"
        record = records[int(row[0].text)]
        assert [record["policy"], record["prompt_type"]] == texts(row[1:3])


def test_errors_are_counts_of_failed_executions(pools: PromptPools, records: list[Record]) -> None:
    errors, messages = tables_of(losses.errors_section(pools))
    steps = [step for record in records for step in record["steps"]]
    failures = Counter(step["error"] for step in steps if not step["success"])
    *rows, every = map(texts, errors.rows)
    assert {name: count for name, count, *_ in rows} == {name: f"{count:,}" for name, count in failures.items()}
    assert every[3] == f"{100 * failures.total() / len(steps):.1f}"
    for policy, per_episode in map(texts, messages.rows):
        assert per_episode == f"{statistics.fmean(len(record['steps']) for record in chosen(records, policy)):.2f}"


def test_pass_at_k_and_pass_hat_k_of_k_1_are_success(pools: PromptPools, records: list[Record]) -> None:
    (table,) = tables_of(result_sections.repeats_section(pools))
    assert texts(table.headings[3:]) == ["k = 1", "k = 2", "k = 3"]
    for policy, prompt, which, *cells in map(texts, table.rows):
        own = [record for record in chosen(records, policy) if record["prompt_type"] == prompt]
        assert cells[0] == percent(success_of(own))
        numbers = list(map(float, cells))
        assert numbers == sorted(numbers, reverse=which == "pass^k")


def test_a_run_without_flaws_models_or_repeats_has_no_such_section(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, list(synthetic_run(num_tasks=3, num_seeds=1)))
    for section in (flaws_section, result_sections.repeats_section, agent_sections.scaling_section):
        assert section(PromptPools(facts)) is None
    assert agent_sections.agents_section(facts) is None


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("openai:Qwen2.5-7B-Instruct", 7e9),
        ("SmolLM2-135M", 135e6),
        ("qwen:0.5b", 5e8),
        ("mixtral-8x7B", 56e9),
        ("Qwen3-30B-A3B", 30e9),
        ("gpt-4o-mini", None),
        ("o3", None),
        ("Llama-3.3-70Base", None),
    ],
)
def test_the_size_of_a_model_is_what_its_name_states(name: str, size: float | None) -> None:
    assert agent_sections.model_size(name) == size


def test_models_are_ordered_by_size_and_their_measures_are_those_of_their_rates(tmp_path: Path) -> None:
    records = agent_records()
    by_model, evenness, _ = tables_of(agent_sections.scaling_section(PromptPools(facts_of(tmp_path, records))))
    rows = list(map(texts, by_model.rows))
    assert [row[1] for row in rows] == list(MODELS) * len(AGENTS)
    assert [row[2] for row in rows[:4]] == ["3B", "14B", "72B", "–"]
    for agent, model, _, *cells in rows:
        own = [chosen(records, f"{agent}@{model}", prompt) for prompt in PROMPTS]
        assert cells == [cell for shown in own for cell in level_shares(shown)]
    for agent, prompt, _, *cells in map(texts, evenness.rows):
        rates = [success_of(chosen(records, f"{agent}@{model}", prompt)) for model in MODELS]
        saturation = 1.0 - (max(rates) - statistics.fmean(rates))
        measures = (max(rates), statistics.fmean(rates), statistics.stdev(rates), saturation, saturation * max(rates))
        assert cells == list(map(percent, measures))
    assert any("No intervals" in note for note in evenness.notes)


def test_the_use_of_models_is_that_of_the_records(tmp_path: Path) -> None:
    records = agent_records(num_tasks=3)
    usage, giving_up, replans = tables_of(agent_sections.agents_section(facts_of(tmp_path, records)))
    executors = [row[3:9] for row in map(texts, usage.rows) if row[2] == "executor"]
    assert executors == [["3.0", "900", "60", "320", "1.5", "33%"]] * len(MODELS) * len(PROMPTS)
    assert {row[9] for row in map(texts, usage.rows) if row[2] == "all"} == {"0.0300"}
    for row in map(texts, giving_up.rows):
        own = chosen(records, *row[:2])
        assert row[5] == f"{sum(1 - record['outcome'] for record in own)} of {len(own)}"
    counts = Counter(r["agent"]["counters"]["replans"] for r in records if r["policy"].startswith("rp-react"))
    shown: Counter[int] = Counter()
    for row in map(texts, replans.rows):
        shown[int(row[2])] += int(row[3])
    assert shown == counts


def test_what_broke_and_is_not_finished_is_told_apart(tmp_path: Path) -> None:
    records = list(synthetic_run(("random",), ("baseline",), num_tasks=4, num_seeds=1))
    folder = write_run(tmp_path, records, planned=6)
    assert losses.broken_section(losses.broken_episodes(folder)) is None
    names = {"policy": "random", "prompt_type": "baseline", "instance_id": "task_x", "seed": 0}
    failure = {
        "schema": "resilisim-failure-1",
        **names,
        "error": "http://x does not answer",
        "reason": "down",
        "calls": 0,
    }
    lines = [encode_json_line({**failure, "index": index}) for index in (5, 0, 5, 4)]
    (folder / "failures.jsonl").write_bytes(b"".join(lines))
    broken = losses.broken_episodes(folder)
    assert [entry["index"] for entry in broken] == [4, 5]  # 0 was finished by a later try
    (table,) = tables_of(losses.broken_section(broken))
    assert list(map(texts, table.rows)) == [["random", "baseline", "http://x does not answer", "2"]]


POLICIES = ("plan-follower", "repairing-follower")
RECORDS = list(synthetic_run(POLICIES, num_tasks=8, num_seeds=3))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return two runs of the same policies, of which the second is more careless and has fewer seeds."""
    careless = [
        synthetic_record(record["index"], record["policy"], record["prompt_type"], task, record["seed"], 0.8)
        for record in RECORDS
        if record["seed"] < 2
        for task in [int(record["instance_id"].removeprefix("task_"), 16)]
    ]
    return write_run(tmp_path / "a", RECORDS), write_run(tmp_path / "b", careless)


def test_every_method_of_every_match_stands_in_the_tables(folders: tuple[Path, Path]) -> None:
    compared = compare_runs(*folders)
    main, methods = comparison_section.differences_table(compared), comparison_section.methods_table(compared)
    assert len(main.rows) == len(compared.comparisons) + 1 == 5
    assert len(methods.rows) == len(COMPARISON_METHODS) * 5
    corrected = compared.holm_p_values("paired_luck_adjusted")
    for place, (row, one) in enumerate(zip(main.rows, compared.comparisons, strict=False)):
        best = one.differences["paired_luck_adjusted"]
        assert isinstance(row[5], Cell)
        assert (row[5].text, row[5].detail) == (signed_points(best.difference), signed_interval(*best.interval))
        assert [text_of(cell) for cell in row[6:]] == [p_value(p) for p in (best.p_value, corrected[place])]
        for step, method in enumerate(METHOD_NAMES):
            shown = methods.rows[len(COMPARISON_METHODS) * place + step]
            assert text_of(shown[4]) == signed_points(one.differences[method].difference)
            assert text_of(shown[6]) == p_value(one.differences[method].p_value)
    tasks = comparison_section.tasks_table(read_facts(folders[0]), compared)
    assert tasks is not None
    sizes = [abs(float(text_of(row[-1]).replace("−", "-"))) for row in tasks.rows]
    assert sizes == sorted(sizes, reverse=True)
    assert {text_of(row[2]) for row in tasks.rows} == {"8"}  # 2 policies, 2 prompts, 2 common seeds


def test_the_page_and_the_text_show_the_comparison(folders: tuple[Path, Path], tmp_path: Path) -> None:
    page = check(write_report(folders[0], tmp_path / "page.html", folders[1], markdown=tmp_path / "page.md"))
    assert "comparison" in page.ids
    for text in ("Compared with another run", "32 episodes of A and 0 of B have", "Differences between the two runs"):
        assert text in page.text
    assert "## Compared with another run" in (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "comparison" not in check(write_report(folders[0], tmp_path / "alone.html")).ids


def test_a_run_compared_with_its_own_copy_differs_nowhere(folders: tuple[Path, Path], tmp_path: Path) -> None:
    compared = compare_runs(folders[0], write_run(tmp_path / "copy", RECORDS))
    assert comparison_section.tasks_table(read_facts(folders[0]), compared) is None
    assert {text_of(row[5]) for row in comparison_section.differences_table(compared).rows} == {"0.0"}


def test_runs_that_cannot_be_compared_are_refused_at_once(folders: tuple[Path, Path], tmp_path: Path) -> None:
    others = write_run(tmp_path / "others", list(synthetic_run(("random",), num_tasks=2, num_seeds=1)))
    with pytest.raises(InvalidInputError, match="none of this run's policies"):
        write_report(folders[0], tmp_path / "page.html", others)
    salted = write_run(tmp_path / "salted", RECORDS, environment={"salt": "mine"})
    with pytest.raises(InvalidInputError, match="cannot be compared"):
        write_report(folders[0], tmp_path / "page.html", salted)
    with pytest.raises(StoreError, match="not a folder of results"):
        write_report(folders[0], tmp_path / "page.html", tmp_path / "nowhere")
    assert not (tmp_path / "page.html").exists()


def test_one_policy_each_is_compared_whatever_the_names(tmp_path: Path) -> None:
    a, b = (
        write_run(tmp_path / policy, list(synthetic_run((policy,), ("optimal",), num_tasks=5, num_seeds=2)))
        for policy in POLICIES
    )
    text = check(write_report(a, tmp_path / "page.html", b)).text
    for which, policy in zip(("A is this run", "B is another one"), POLICIES, strict=True):
        assert f"{which} ({policy}, {policy})" in text
