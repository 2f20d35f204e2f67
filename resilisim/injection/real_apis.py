"""Real APIs as results: tables 5, 14, 15 and 16 of a run beside the published ones.

The published figures are those of the ResiliBench paper (sections 4.5, E.2 to E.4). They were measured with other
tasks, other APIs and real hosts, so they stand beside ours as marked rows and are never compared with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from resilisim.errors import InvalidInputError
from resilisim.evaluation.run.store import refuse_explored
from resilisim.evaluation.table.episodes import EpisodeTable
from resilisim.evaluation.table.facts import RunFacts, read_facts
from resilisim.simulator.end_rules import EndRules
from resilisim.simulator.exact import solve
from resilisim.simulator.law import load_law
from resilisim.simulator.problem import build_problem, start_state
from resilisim.statistics.estimates import clustered_proportion
from resilisim.tables.markdown import markdown_lines
from resilisim.tables.numbers import NO_NUMBER, percent
from resilisim.tables.table import Cell, Table
from resilisim.workflows.prompts import PROMPT_TYPES
from resilisim.worlds.apis.api import api_library
from resilisim.worlds.apis.twin import PUBLISHED_FAILURES

LAW_NAME = "public-apis"
PUBLISHED_MARK = "†"
HEADINGS: Mapping[str, str] = {
    "baseline": "Baseline",
    "chain_of_thought": "Chain-of-thought",
    "optimal": "Optimal",
    "flawed": "Flawed",
}
# Full success, partial success and failure in percent, for each prompt type (table 14; table 5 is a part of it).
TABLE_14: Mapping[str, tuple[tuple[float, float, float], ...]] = {
    "GPT-4o-mini": ((38.9, 38.9, 22.2), (41.7, 41.7, 16.7), (42.1, 38.6, 19.3), (34.3, 34.3, 31.4)),
    "Gemini-2.5-Flash": ((33.3, 33.3, 33.3), (39.5, 39.5, 21.1), (55.3, 41.2, 3.5), (34.1, 33.5, 32.4)),
    "GPT-5-mini": ((38.9, 38.9, 22.2), (41.7, 41.7, 16.7), (47.6, 45.2, 7.1), (36.6, 36.3, 27.0)),
    "Llama-3.3-70B": ((16.7, 16.7, 66.7), (16.7, 16.7, 66.7), (39.6, 27.1, 33.3), (25.4, 25.4, 49.3)),
    "Qwen2.5-32B": ((41.7, 41.7, 16.7), (43.9, 40.4, 15.8), (55.3, 44.7, 0.0), (42.3, 38.8, 18.9)),
    "DeepSeek-V3": ((32.1, 30.9, 37.0), (37.8, 35.3, 26.9), (40.2, 39.3, 20.5), (36.0, 35.4, 28.6)),
    "Average": ((33.6, 33.4, 33.0), (36.9, 35.9, 27.3), (46.7, 39.4, 13.9), (34.8, 34.0, 31.3)),
}
TABLE_15: Mapping[str, tuple[float, float, float]] = {
    "Qwen2.5-3B": (5.0, 1.7, 93.3),
    "Qwen2.5-7B": (37.7, 34.2, 28.1),
    "Qwen2.5-14B": (35.0, 35.0, 30.0),
    "Qwen2.5-32B": (55.3, 44.7, 0.0),
}


def real_api_tables(directory: Path | str) -> str:
    """Return tables 5, 14, 15 and 16 of a run on apis-v1 as Markdown, the published figures beside, marked.

    Raises:
        InvalidInputError: The run has other tasks, or was explored, or no episode is finished.
        StoreError: It is not a folder of results.
    """
    facts = read_facts(directory)
    refuse_explored(directory, facts.manifest["arguments"], "the paper counts episodes")
    foreign = {tool for task in facts.table.tasks for tool in task.required_tools} - set(api_library().names)
    if foreign or not facts.table.num_episodes:
        what = f"has tasks with the tool {min(foreign)!r}" if foreign else "has no finished episode"
        raise InvalidInputError(f"{directory} {what}: expected a run on apis-v1")
    tables = [*_prompt_tables(facts), _scaling_table(facts), _error_table(facts)]
    lines = [
        line
        for table in tables
        for line in (f"## {table.caption}", "", *markdown_lines(replace(table, caption="", notes=())), "", *table.notes)
    ]
    return "\n".join([*lines, *_notes(facts)]) + "\n"


def _prompt_tables(facts: RunFacts) -> Iterator[Table]:
    for number, title, kinds in (
        (5, "Performance on the real-API tasks", PROMPT_TYPES[2:]),
        (14, "Performance by prompt type", PROMPT_TYPES),
    ):
        headings = [f"{HEADINGS[kind]}: {what}" for kind in kinds for what in ("full", "partial", "fail")]
        rows: list[list[object]] = [
            [policy, *(cell for kind in kinds for cell in _outcomes(facts.table, policy, kind))]
            for policy in facts.table.policies
        ]
        if len(rows) > 1:
            rows.append(["Average", *map(_mean, zip(*(row[1:] for row in rows), strict=True))])
        for model, by_kind in TABLE_14.items():
            rows.append(_published(model, [figure for three in by_kind[-len(kinds) :] for figure in three]))
        yield Table(f"Table {number}. {title}", ["Agent", *headings], rows)


def _published(model: str, figures: Sequence[float]) -> list[object]:
    """Return a row of the paper; its figures are in percent."""
    return [Cell(model, mark=PUBLISHED_MARK), *(f"{figure:.1f}" for figure in figures)]


def _mean(rates: Sequence[Any]) -> float | None:
    """Return the mean of rates, each agent weighing the same; None where one has none."""
    values = [getattr(rate, "value", rate) for rate in rates]
    return None if None in values else float(np.mean(values))


def _scaling_table(facts: RunFacts) -> Table:
    rows = [[policy, *_outcomes(facts.table, policy, "optimal")] for policy in facts.table.policies]
    rows += [_published(model, figures) for model, figures in TABLE_15.items()]
    return Table("Table 15. By model size, optimal prompt", ["Agent or model", "full", "partial", "fail"], rows)


def _error_table(facts: RunFacts) -> Table:
    counted: Counter[str] = Counter()
    for (_, _, code), count in facts.breakdown.errors.items():
        counted[code] += round(count)
    failures, published = counted.total(), sum(PUBLISHED_FAILURES.values())
    executions = sum(facts.breakdown.executions.values())
    rows: list[list[object]] = []
    for code in dict.fromkeys([*PUBLISHED_FAILURES, *sorted(counted)]):
        theirs = (
            [PUBLISHED_FAILURES[code], PUBLISHED_FAILURES[code] / published]
            if code in PUBLISHED_FAILURES
            else [None, None]
        )
        rows.append([code, counted[code], counted[code] / failures if failures else None, *theirs])
    rate = f"{percent(1.0 - failures / executions)}%" if executions else NO_NUMBER
    return Table(
        "Table 16. Types of error",
        ["Error", "count", "% of failures", f"count {PUBLISHED_MARK}", f"% {PUBLISHED_MARK}"],
        rows,
        notes=[f"{executions:,.0f} calls of APIs, {rate} of them succeeded ({PUBLISHED_MARK} 948 calls, 52.7%).", ""],
    )


def _notes(facts: RunFacts) -> Iterator[str]:
    yield "Percent; of ours, the 95% interval of full success in brackets, with tasks as the units that vary. "
    theirs = "Figures of the ResiliBench paper: other tasks, other APIs, real hosts. They are no comparison."
    yield f"{PUBLISHED_MARK} {theirs}\n"
    settings = facts.manifest["arguments"]["environment"]
    rules = EndRules(**{name: settings[name] for name in EndRules().to_mapping()})
    values = [_ceiling(task.required_tools, rules) for task in facts.table.tasks]
    yield (
        f"Where calls succeed by the law `{LAW_NAME}`, an agent that always makes the right call completes the tasks "
        f"within {rules.max_turns} turns with probability {np.mean(values):.3f} on average ({min(values):.3f} to "
        f"{max(values):.3f}): the ceiling of the reference solutions."
    )


def _ceiling(required: Sequence[str], rules: EndRules) -> float:
    """Return the chance of completing tools in order under the law of the paper's APIs."""
    problem = build_problem(api_library(), required, load_law(LAW_NAME), rules)
    return solve(problem).value(start_state(problem))


def _outcomes(table: EpisodeTable, policy: str, kind: str) -> list[object]:
    """Return full, partial and failure of a policy under a prompt type, flaws of all kinds together."""
    prompts = [place for place, name in enumerate(table.prompts) if name.partition(":")[0] == kind]
    is_of_policy = (table.policy == table.policies.index(policy)) & np.isin(table.prompt, prompts)
    count = int(table.count[is_of_policy].sum())
    if not count:
        return [None] * 3
    outcomes, counts = (
        np.bincount(table.task[is_of_policy], weights=sums[is_of_policy]) for sums in (table.outcome, table.count)
    )
    full = clustered_proportion(outcomes[counts > 0], counts[counts > 0])
    partial = float(table.partial[is_of_policy].sum()) / count
    return [full, partial, 1.0 - full.value - partial]
