"""The page of a robustness profile: how policies do as tools, turns and plans get worse, in one file."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from resilisim.errors import count_of
from resilisim.evaluation.report.cells import interval_text, percent, plain
from resilisim.evaluation.report.content import Card, Definitions, Page, Section
from resilisim.evaluation.report.html_page import whole_page
from resilisim.evaluation.report.markdown import page_markdown
from resilisim.evaluation.report.profile.sections import axis_section, flaws_section, summary_section
from resilisim.evaluation.report.profile.tables import runs_table
from resilisim.evaluation.report.profile.texts import READING
from resilisim.evaluation.robustness.results import ProfileResult
from resilisim.provenance import write_file_atomically

PAGE_NAME = "profile.html"


def write_profile_page(result: ProfileResult, path: Path | str | None = None) -> Path:
    """Write the page of a profile, `profile.html` in its folder if no path is given, and return its path.

    Raises:
        StoreError: It cannot be written.
    """
    target = Path(path) if path is not None else result.directory / PAGE_NAME
    style = resources.files(__package__).joinpath("profile.css").read_text(encoding="utf-8")
    write_file_atomically(target, whole_page(profile_page(result), style))
    return target


def write_profile_markdown(result: ProfileResult, path: Path | str) -> Path:
    """Write the tables of a profile as Markdown, and return the path.

    Raises:
        StoreError: It cannot be written.
    """
    target = Path(path)
    write_file_atomically(target, page_markdown(profile_page(result)).encode("utf-8"))
    return target


def profile_page(result: ProfileResult) -> Page:
    """Return what the page says."""
    policies = _policies(result)
    names = ", ".join(policies) if len(policies) <= 4 else count_of(len(policies), "policy", "policies")
    unfinished = [run for run in result.runs if not run.is_finished]
    warnings = []
    if unfinished:
        missing = sum(run.num_planned - run.num_episodes for run in unfinished)
        warnings.append(
            f"Not finished: {count_of(missing, 'episode')} of {count_of(len(unfinished), 'run')} are missing. Run "
            "the same command again to resume."
        )
    if result.optimum_gap > 0.0:
        warnings.append(f"Some V* are lower bounds, at most {percent(result.optimum_gap, 2)} points too low.")
    sections = [axis_section(axis, result) for axis in result.axes]
    if result.flaws is not None:
        sections.append(flaws_section(result.flaws))
    summary = summary_section(result)
    return Page(
        title=f"ResiliSim robustness profile: {names}",
        heading="How does it do as things get worse?",
        lead=f"{count_of(len(policies), 'policy', 'policies')} on {count_of(result.num_tasks, 'task')} with "
        f"{count_of(result.num_seeds, 'seed')} each, in {count_of(len(result.runs), 'setting')}: "
        f"{count_of(result.num_episodes, 'episode')}. Each setting changes one thing; tasks, seeds and luck stay the "
        "same, and the best that any agent could reach is computed exactly for each.",
        warnings=warnings,
        cards=_cards(result),
        sections=[
            *([summary] if summary.blocks else []),
            *sections,
            Section("runs", "Runs", [runs_table(result)]),
            Section("reading", "How to read this", [Definitions(tuple(READING.items()))]),
            Section("provenance", "Provenance", [Definitions(_provenance(result))]),
        ],
        ending="Made by ResiliSim. This file needs no network; every number in it follows from the runs' episodes.",
    )


def _cards(result: ProfileResult) -> list[Card]:
    cards = []
    most_of = "the most of any that does not see the state" if _any_privileged(result) else "the most of any"
    for axis in result.axes:
        ordinary = [curve for curve in axis.curves if not curve.who.privileged and curve.area.better.value >= 0.0]
        if ordinary:
            best = max(ordinary, key=lambda curve: curve.area.better.value)
            area = best.area.better
            detail = f"{interval_text(area)}, {most_of}: {best.who.policy} under {plain(best.who.prompt)}"
            cards.append(Card(f"Of V* along {axis.axis}", f"{percent(area.value)}%", detail))
    if result.flaws is not None:
        flawed = [policy for policy in result.flaws.policies if not policy.who.privileged]
        flawed = [policy for policy in flawed if policy.drop.better.value == policy.drop.better.value]
        if flawed:
            least = min(flawed, key=lambda policy: policy.drop.better.value)
            drop, back = least.drop.better, least.recovered.better
            detail = f"{interval_text(drop)}, {most_of.replace('most', 'least')}: {least.who.policy}"
            cards.append(Card("Drop under flawed plans", f"{percent(drop.value)} points", detail))
            most = max(flawed, key=lambda policy: policy.recovered.better.value)
            back = most.recovered.better
            detail = f"{interval_text(back)} of what obeying gives away, {most_of}: {most.who.policy}"
            cards.append(Card("Won back from flaws", f"{percent(back.value)}%", detail))
    return cards


def _any_privileged(result: ProfileResult) -> bool:
    return any(curve.who.privileged for axis in result.axes for curve in axis.curves) or (
        result.flaws is not None and any(policy.who.privileged for policy in result.flaws.policies)
    )


def _policies(result: ProfileResult) -> list[str]:
    names = [curve.who.policy for axis in result.axes for curve in axis.curves]
    names += [policy.who.policy for policy in result.flaws.policies] if result.flaws is not None else []
    return list(dict.fromkeys(names))


def _provenance(result: ProfileResult) -> list[tuple[str, str]]:
    return [(name, json.dumps(value, ensure_ascii=False)) for name, value in sorted(result.arguments.items())]
