"""The numbers of every table, against values worked out from the records here."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from resilisim.evaluation.report import agents, losses, results
from resilisim.evaluation.report.flaws import drops_table, flaw_costs, flaw_pools, flaws_section, flaws_table
from resilisim.evaluation.report.groups import PromptPools
from resilisim.evaluation.report.losses import broken_episodes, broken_section
from resilisim.evaluation.report.page import Cell, Fold, Section, Table
from resilisim.evaluation.table.facts import RunFacts, read_facts
from resilisim.evaluation.table.summary import format_percent
from resilisim.provenance import encode_json_line
from tests.evaluation.report.agent_records import AGENTS, MODELS, PROMPTS, agent_records
from tests.evaluation.report.pages import text_of, write_run
from tests.evaluation.synthetic import synthetic_run

Record = Mapping[str, Any]
FLAWS = (("tool_misuse", "light"), ("tool_misuse", "severe"), ("missing_step", "light"))


@pytest.fixture
def records() -> list[dict[str, Any]]:
    """Return a run under three prompts, of which the flawed ones name their flaws."""
    prompts = ("baseline", "optimal", "flawed:a", "flawed:b")
    found: list[dict[str, Any]] = []
    for record in synthetic_run(prompts=prompts, num_tasks=10, num_seeds=3):
        flaw = None
        if record["prompt_type"].startswith("flawed"):
            kind, severity = FLAWS[record["index"] % len(FLAWS)]
            flaw = {"type": kind, "severity": severity, "method": "category_mismatch", "edits": []}
        found.append({**record, "flaw": flaw})
    return found


@pytest.fixture
def facts(tmp_path: Path, records: list[dict[str, Any]]) -> RunFacts:
    return read_facts(write_run(tmp_path, records))


def share(records: Sequence[Record], what: Callable[[Record], bool]) -> str:
    """Return how many of the records something holds for, in percent."""
    return format_percent(sum(map(what, records)) / len(records))


def level_shares(records: Sequence[Record]) -> list[str]:
    names = ("full_success", "partial_success", "failure")
    return [share(records, lambda record, name=name: record["score"]["level"] == name) for name in names]


def chosen(records: Sequence[Record], policy: str, prompt: str) -> list[Record]:
    return [
        record for record in records if record["policy"] == policy and record["prompt_type"].partition(":")[0] == prompt
    ]


def tables_of(section: Section | None) -> list[Table]:
    assert section is not None
    blocks = [inner for block in section.blocks for inner in (block.blocks if isinstance(block, Fold) else [block])]
    return [block for block in blocks if isinstance(block, Table)]


def test_levels_are_the_shares_of_the_records(facts: RunFacts, records: list[Record]) -> None:
    table = results.levels_table(PromptPools(facts))
    assert [name for name, _ in table.groups] == ["", "baseline", "optimal", "flawed"]
    for row in table.rows[:-1]:
        expected = [
            cell
            for prompt in ("baseline", "optimal", "flawed")
            for cell in level_shares(chosen(records, text_of(row[0]), prompt))
        ]
        assert [text_of(cell) for cell in row[1:]] == expected
    ordinary = ["repairing-follower", "plan-follower", "random"]
    assert "mean of 3 policies without *" in text_of(table.rows[-1][0])
    for place, prompt in enumerate(("baseline", "optimal", "flawed")):
        rates = [statistics.fmean(r["outcome"] for r in chosen(records, policy, prompt)) for policy in ordinary]
        assert text_of(table.rows[-1][1 + 3 * place]) == format_percent(statistics.fmean(rates))


def test_every_rate_has_an_interval(facts: RunFacts) -> None:
    pools = PromptPools(facts)
    for table in (results.success_table(facts.rows), results.levels_table(pools), drops_table(pools)):
        assert table is not None
        for row in table.rows:
            for cell in row[1:]:
                if isinstance(cell, Cell) and cell.text not in {"–", ""}:
                    assert cell.detail.startswith("["), row


def test_task_types_have_the_shares_of_their_tasks(facts: RunFacts, records: list[Record]) -> None:
    counts = Counter(task.task_type for task in facts.table.tasks)
    table = results.shares_table(PromptPools(facts), counts)
    *rows, searching, known, tasks = table.rows
    assert [text_of(cell) for cell in tasks[2:]] == [f"{count}" for count in counts.values()]
    assert len(rows) == 4 * 3
    optimum = {record["instance_id"]: (record["task_type"], record["optimum"]) for record in records}
    for place, name in enumerate(counts, start=2):
        mean = statistics.fmean(value for kind, value in optimum.values() if kind == name)
        assert [text_of(known[place]), text_of(searching[place])] == [format_percent(mean), format_percent(0.75 * mean)]
        for row in rows:
            policy, prompt = text_of(row[0]), text_of(row[1])
            own = [record for record in chosen(records, policy, prompt) if record["task_type"] == name]
            if policy == "exact-optimum":  # its luck is all that there is between V* and its outcome
                assert text_of(row[place]) == "100.0"
            elif not any(record["outcome"] or abs(record["luck"]) > 1e-9 for record in own):
                assert text_of(row[place]) == "0.0"


def test_drops_are_differences_of_the_same_episodes(facts: RunFacts, records: list[Record]) -> None:
    table = drops_table(PromptPools(facts))
    assert table is not None
    for row in table.rows[:-1]:
        policy = text_of(row[0])
        sound, flawed = chosen(records, policy, "optimal"), chosen(records, policy, "flawed")
        assert [text_of(cell) for cell in row[1:7]] == level_shares(sound) + level_shares(flawed)
        drop = statistics.fmean(r["outcome"] for r in sound) - statistics.fmean(r["outcome"] for r in flawed)
        assert text_of(row[7]).lstrip("+−") == format_percent(abs(drop))
        assert text_of(row[7]).startswith("−") == (drop < 0)


def test_flaws_by_severity_are_the_shares_of_their_records(facts: RunFacts, records: list[Record]) -> None:
    table = flaws_table(flaw_pools(facts), flaw_costs(facts), PromptPools(facts))
    seen = set()
    for row in table.rows:
        flaw, severity, policy = (text_of(cell) for cell in row[:3])
        own = [
            record
            for record in records
            if record["policy"] == policy
            and record["flaw"]
            and (record["flaw"]["type"].replace("_", " "), record["flaw"]["severity"]) == (flaw, severity)
        ]
        assert text_of(row[4]) == f"{len(own):,}"
        assert text_of(row[5]) == share(own, lambda record: record["outcome"] == 1)
        seen.add((flaw, severity))
    assert seen == {(flaw.replace("_", " "), severity) for flaw, severity in FLAWS}
    assert any("not known" in note for note in table.notes)  # these tasks are nobody's


def test_totals_of_lost_points_are_sums_over_messages(facts: RunFacts, records: list[Record]) -> None:
    ordinary = [record for record in records if not record["privileged"]]
    table = losses.totals_table(PromptPools(facts), "tool")
    assert table is not None
    for row in table.rows:
        steps = [step for record in ordinary for step in record["steps"] if step["tool"] == text_of(row[0])]
        if text_of(row[0]).startswith("none"):
            continue
        assert text_of(row[3]) == f"{len(steps):,}"
        lost = math.fsum(step["regret"] for step in steps if step["label"])
        assert text_of(row[4]) == format_percent(lost / len(ordinary))
    table = losses.totals_table(PromptPools(facts), "policy")
    assert table is not None
    for row in table.rows:
        own = [record for record in records if record["policy"] == text_of(row[0])]
        assert text_of(row[4]) == format_percent(math.fsum(r["regret"] for r in own) / len(own))


def test_the_costliest_calls_lead_to_their_episodes(facts: RunFacts, records: list[Record]) -> None:
    table = losses.costliest_calls(facts)[0]
    assert isinstance(table, Table)
    costs = [
        step["regret"] for record in records for step in record["steps"] if step["label"] not in {None, "information"}
    ]
    assert [text_of(row[-1]) for row in table.rows] == [
        format_percent(cost) for cost in sorted(costs, reverse=True)[: len(table.rows)]
    ]
    for row in table.rows:
        assert isinstance(row[0], Cell)
        assert row[0].link == f"#episode-{row[0].text}"
        record = records[int(row[0].text)]
        assert (record["policy"], record["prompt_type"]) == (text_of(row[1]), text_of(row[2]))


def test_errors_are_counts_of_failed_executions(facts: RunFacts, records: list[Record]) -> None:
    errors, messages = tables_of(losses.errors_section(PromptPools(facts)))
    steps = [step for record in records for step in record["steps"]]
    failures = Counter(step["error"] for step in steps if not step["success"])
    assert {text_of(row[0]): text_of(row[1]) for row in errors.rows[:-1]} == {
        name: f"{count:,}" for name, count in failures.items()
    }
    assert text_of(errors.rows[-1][3]) == f"{100 * failures.total() / len(steps):.1f}"
    for row in messages.rows:
        own = [record for record in records if record["policy"] == text_of(row[0])]
        assert text_of(row[1]) == f"{sum(len(record['steps']) for record in own) / len(own):.2f}"


def test_pass_at_k_and_pass_hat_k_of_k_1_are_success(facts: RunFacts) -> None:
    (table,) = tables_of(results.repeats_section(PromptPools(facts)))
    assert [text_of(heading) for heading in table.headings[3:]] == ["k = 1", "k = 2", "k = 3"]
    by_group = {(row.policy, row.prompt_type): row for row in facts.rows}
    for row in table.rows:
        expected = by_group[text_of(row[0]), text_of(row[1])].success
        assert text_of(row[3]) == format_percent(expected.value)
        numbers = [float(text_of(cell)) for cell in row[3:]]
        assert numbers == sorted(numbers, reverse=text_of(row[2]) == "pass^k")


def test_a_run_without_flaws_models_or_repeats_has_no_such_section(tmp_path: Path) -> None:
    facts = read_facts(write_run(tmp_path, list(synthetic_run(num_tasks=3, num_seeds=1))))
    assert flaws_section(PromptPools(facts)) is None
    assert results.repeats_section(PromptPools(facts)) is None
    assert agents.agents_section(facts) is None
    assert agents.scaling_section(PromptPools(facts)) is None


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
    assert agents.model_size(name) == size


def test_models_are_ordered_by_size_and_their_measures_are_those_of_their_rates(tmp_path: Path) -> None:
    records = agent_records()
    facts = read_facts(write_run(tmp_path, records))
    by_model, evenness, _ = tables_of(agents.scaling_section(PromptPools(facts)))
    assert [text_of(row[1]) for row in by_model.rows] == list(MODELS) * len(AGENTS)
    assert [text_of(row[2]) for row in by_model.rows[:4]] == ["3B", "14B", "72B", "–"]
    for row in by_model.rows:
        name = f"{text_of(row[0])}@{text_of(row[1])}"
        expected = [cell for prompt in PROMPTS for cell in level_shares(chosen(records, name, prompt))]
        assert [text_of(cell) for cell in row[3:]] == expected
    for row in evenness.rows:
        agent, prompt = text_of(row[0]), text_of(row[1])
        rates = [
            statistics.fmean(r["outcome"] for r in chosen(records, f"{agent}@{model}", prompt)) for model in MODELS
        ]
        saturation = 1.0 - (max(rates) - statistics.fmean(rates))
        measures = (max(rates), statistics.fmean(rates), statistics.stdev(rates), saturation, saturation * max(rates))
        assert [text_of(cell) for cell in row[3:]] == [format_percent(value) for value in measures]
    assert any("No intervals" in note for note in evenness.notes)


def test_the_use_of_models_is_that_of_the_records(tmp_path: Path) -> None:
    records = agent_records(num_tasks=3)
    facts = read_facts(write_run(tmp_path, records))
    usage, giving_up, replans = tables_of(agents.agents_section(facts))
    rows = [row for row in usage.rows if text_of(row[2]) == "executor"]
    assert rows
    for row in rows:
        assert [text_of(cell) for cell in row[3:9]] == ["3.0", "900", "60", "320", "1.5", "33%"]
    assert {text_of(row[9]) for row in usage.rows if text_of(row[2]) == "all"} == {"0.0300"}
    for row in giving_up.rows:
        own = [r for r in records if (r["policy"], r["prompt_type"]) == (text_of(row[0]), text_of(row[1]))]
        assert text_of(row[5]) == f"{sum(1 - r['outcome'] for r in own)} of {len(own)}"
    counts = Counter(r["agent"]["counters"]["replans"] for r in records if r["policy"].startswith("rp-react"))
    shown: Counter[int] = Counter()
    for row in replans.rows:
        shown[int(text_of(row[2]))] += int(text_of(row[3]))
    assert shown == counts


def test_what_broke_and_is_not_finished_is_told_apart(tmp_path: Path) -> None:
    records = list(synthetic_run(("random",), ("baseline",), num_tasks=4, num_seeds=1))
    folder = write_run(tmp_path, records, planned=6)
    assert broken_section(broken_episodes(folder)) is None
    failure = {
        "schema": "resilisim-failure-1",
        "policy": "random",
        "prompt_type": "baseline",
        "instance_id": "task_x",
        "seed": 0,
        "error": "http://x does not answer",
        "reason": "down",
        "calls": 0,
    }
    lines = [encode_json_line({**failure, "index": index}) for index in (5, 0, 5, 4)]
    (folder / "failures.jsonl").write_bytes(b"".join(lines))
    broken = broken_episodes(folder)
    assert [entry["index"] for entry in broken] == [4, 5]  # 0 was finished by a later try
    (table,) = tables_of(broken_section(broken))
    assert [[text_of(cell) for cell in row] for row in table.rows] == [
        ["random", "baseline", "http://x does not answer", "2"]
    ]
