"""Full, partial and failed episodes by policy and prompt, laid out as in table 2 of the ResiliBench paper."""

from __future__ import annotations

from resilisim.evaluation.report.cells import NOTHING, PRIVILEGED_NOTE, name_cell, plain, with_interval
from resilisim.evaluation.report.content import CellLike, Table
from resilisim.evaluation.report.facts import RunFacts, count_of
from resilisim.evaluation.report.pooling import Rate, level_rates, mean_of
from resilisim.evaluation.report.published import LEVEL_NAMES
from resilisim.evaluation.report.rows import PromptPools
from resilisim.statistics import Estimate, clustered_proportion

MEANS_HAVE_NONE = "With one task only, a mean or difference has no interval."


def levels_table(facts: RunFacts, pools: PromptPools) -> Table:
    """Return full, partial and failed episodes of each policy under each prompt, with the mean over policies."""
    num_tasks = len(facts.sums.tasks)
    rows: list[list[CellLike]] = []
    means: dict[tuple[str, int], list[Rate]] = {}
    for policy in pools.policies:
        privileged = pools.is_privileged(policy)
        cells: list[CellLike] = [name_cell(policy, privileged)]
        for prompt in pools.prompts:
            found = pools.get(policy, prompt)
            if found is None:
                cells += [NOTHING] * len(LEVEL_NAMES)
                continue
            for level, rate in enumerate(level_rates(found.group, num_tasks)):
                cells.append(with_interval(proportion(rate)))
                if not privileged:
                    means.setdefault((prompt, level), []).append(rate)
        rows.append(cells)
    num_ordinary = sum(not pools.is_privileged(policy) for policy in pools.policies)
    notes = [PRIVILEGED_NOTE] if num_ordinary < len(pools.policies) else []
    if num_ordinary > 1:
        name = f"mean of {count_of(num_ordinary, 'policy', 'policies')}"
        mean: list[CellLike] = [f"{name} without *" if num_ordinary < len(pools.policies) else name]
        for prompt in pools.prompts:
            for level in range(len(LEVEL_NAMES)):
                rates = means.get((prompt, level))
                mean.append(with_interval(mean_of(rates)) if rates else NOTHING)
        rows.append(mean)
        if num_tasks < 2:
            notes.append(MEANS_HAVE_NONE)
    return Table(
        "Full success, partial success and failure in percent of episodes, with 95% intervals clustered by task",
        ("policy", *LEVEL_NAMES * len(pools.prompts)),
        rows,
        groups=(("", 1), *((plain(prompt), len(LEVEL_NAMES)) for prompt in pools.prompts)),
        is_stacked=True,
        notes=notes,
        summary_rows=1 if num_ordinary > 1 else 0,
    )


def proportion(rate: Rate) -> Estimate:
    """Return a rate of episodes with its interval, over the tasks that have any."""
    present = rate.denominators > 0
    return clustered_proportion(rate.numerators[present], rate.denominators[present])
