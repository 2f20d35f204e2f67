"""The page of a report, put together from its sections."""

from __future__ import annotations

from pathlib import Path

from resilisim.evaluation.episode.record import FailureRecord
from resilisim.evaluation.report import frame
from resilisim.evaluation.report.agents import agents_section
from resilisim.evaluation.report.broken import broken_episodes, broken_section
from resilisim.evaluation.report.by_task_type import task_types_section
from resilisim.evaluation.report.comparison import comparison_section
from resilisim.evaluation.report.content import Page, Section
from resilisim.evaluation.report.examples import examples_without_script
from resilisim.evaluation.report.facts import RunFacts, count_of
from resilisim.evaluation.report.flaws import flaws_section
from resilisim.evaluation.report.key_figures import cards
from resilisim.evaluation.report.losses import losses_section
from resilisim.evaluation.report.markup import Markup
from resilisim.evaluation.report.repeats import repeats_section
from resilisim.evaluation.report.results import results_section
from resilisim.evaluation.report.rows import PromptPools
from resilisim.evaluation.report.scaling import scaling_section
from resilisim.evaluation.report.tool_errors import errors_section


def build_page(
    facts: RunFacts, directory: Path | str, episodes: Markup | None = None, compare_with: Path | str | None = None
) -> Page:
    """Return the page of a run.

    Args:
        facts: The run's facts.
        directory: Its folder.
        episodes: The viewer of its episodes, where there is one.
        compare_with: Folder of another run to compare it with.

    Raises:
        StoreError: A folder cannot be read.
        InvalidInputError: The other run cannot be compared with this one.
    """
    broken = broken_episodes(directory)
    if not facts.rows:
        warnings = [*_warnings(facts, broken), "No episode is finished yet."]
        left = [section for section in (broken_section(broken),) if section is not None]
        return Page(frame.report_title(facts), frame.HEADING, frame.lead(facts), warnings, [], left, frame.ENDING)
    pools = PromptPools(facts)
    sections = [
        results_section(facts, pools),
        comparison_section(facts, directory, compare_with) if compare_with is not None else None,
        flaws_section(facts, pools),
        task_types_section(facts, pools),
        losses_section(facts),
        scaling_section(facts, pools),
        repeats_section(facts),
        agents_section(facts),
        errors_section(facts),
        broken_section(broken),
        _episodes_section(facts, episodes),
        frame.reading_section(facts),
    ]
    return Page(
        frame.report_title(facts),
        frame.HEADING,
        frame.lead(facts),
        _warnings(facts, broken),
        cards(pools),
        [section for section in sections if section is not None],
        frame.ENDING,
    )


def _warnings(facts: RunFacts, broken: list[FailureRecord]) -> list[str]:
    found = []
    done, planned = facts.sums.num_episodes, facts.num_planned
    if done < planned:
        found.append(f"Not finished: {done:,} of {planned:,} episodes are here. Run the same command again to resume.")
    if broken:
        found.append(f"{count_of(len(broken), 'episode')} broke on infrastructure and are in no score.")
    return found


def _episodes_section(facts: RunFacts, episodes: Markup | None) -> Section | None:
    if episodes is None:
        return None
    return Section("episodes", "Episodes", [episodes, examples_without_script(facts)])
