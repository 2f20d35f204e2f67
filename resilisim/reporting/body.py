"""The page of a report: what was run, key figures, its sections, and how to read it all."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from resilisim.errors import count_of
from resilisim.evaluation.episode.record import ALL_LOSS_LABELS, LAW_LABELS, REAL_LOSS_LABELS
from resilisim.evaluation.robustness.points import OPTIMAL
from resilisim.evaluation.table.facts import RunFacts
from resilisim.evaluation.table.summary import SMALLEST_SHOWN, UNNEEDED_SEARCH, GroupSummary
from resilisim.reporting.agent_sections import agents_section, scaling_section
from resilisim.reporting.comparison_section import comparison_section
from resilisim.reporting.differences import differences_section
from resilisim.reporting.faults_section import faults_section
from resilisim.reporting.flaws import flaws_section
from resilisim.reporting.groups import PromptPools, difference, merit
from resilisim.reporting.losses import broken_episodes, broken_section, errors_section, losses_section
from resilisim.reporting.page import Card, Definitions, Fold, Page, Section, packaged_texts, plain, say
from resilisim.reporting.result_sections import (
    is_of_reference,
    must_search,
    repeats_section,
    results_section,
    task_types_section,
)
from resilisim.reporting.run_words import begun_on, law_words, names_of, run_name
from resilisim.statistics import Estimate
from resilisim.tables.numbers import interval_text, percent, signed_points
from resilisim.workflows.prompts import FLAWED

NOT_PRIVILEGED = "of policies that do not see the state"
MOST_ENTRIES = 40  # of a list among the arguments


def build_page(
    facts: RunFacts, directory: Path | str, episodes: Markup | None = None, compare_with: Path | str | None = None
) -> Page:
    """Return the page of a run, with the viewer of its episodes and compared with another run where these are given."""
    broken = broken_episodes(directory)
    done, planned = facts.table.num_episodes, facts.num_planned
    warnings = [say("unfinished", done=done, planned=planned)] if done < planned else []
    if broken:
        warnings.append(f"{count_of(len(broken), 'episode')} broke on infrastructure and are in no score.")
    figures: list[Card] = []
    sections: list[Section | None] = [broken_section(broken)]
    if facts.rows:
        pools = PromptPools(facts)
        figures = list(cards(pools))
        sections = [
            results_section(pools),
            comparison_section(facts, directory, compare_with) if compare_with is not None else None,
            faults_section(directory),
            differences_section(pools, directory),
            flaws_section(pools),
            task_types_section(pools),
            losses_section(pools),
            scaling_section(pools),
            repeats_section(pools),
            agents_section(facts),
            errors_section(pools),
            *sections,
            Section("episodes", "Episodes", [episodes]) if episodes is not None else None,
            reading_section(facts),
        ]
    else:
        warnings.append("No episode is finished yet.")
    policies = list(dict.fromkeys(row.policy for row in facts.rows))
    name, law = run_name(directory), law_words(facts.manifest["arguments"])
    played = [begun_on(facts.manifest), names_of(policies), law]
    return Page(
        f"{name}: {names_of(policies)}" if policies else name,
        "How far from the best possible?",
        say(
            "lead" if facts.world is None else "lead_in_world",
            by_chance=say("fails_by_chance" if facts.fails_by_chance else "nothing_fails_by_chance"),
            policies=count_of(len(policies), "policy", "policies"),
            tasks=count_of(len(facts.table.tasks), "task"),
            prompts=count_of(len({row.prompt_type for row in facts.rows}), "prompt type"),
            seeds=count_of(len(facts.manifest["arguments"].get("seeds", ())), "seed"),
            episodes=count_of(done, "episode"),
        ),
        warnings,
        figures,
        [section for section in sections if section is not None],
        say("ending"),
        name,
        " · ".join(filter(None, played)),
    )


def cards(pools: PromptPools) -> Iterator[Card]:
    """Yield the key figures: the best policy, its ceiling, the drop under flawed plans and the costliest mistake."""
    ordinary = [row for row in pools.rows if not row.privileged]
    best = min(ordinary or pools.rows, key=merit)
    yield _best(best, ordinary, len(pools.rows))
    if not math.isnan(best.ceiling.value):
        name = "ceiling_card_searching" if must_search(best) else "ceiling_card"
        name = "ceiling_card_reference" if is_of_reference(best) else name
        text = say(name, optimum=percent(best.optimum.value))
        yield Card("The ceiling", f"{percent(best.ceiling.value)}%", text)
    yield from _largest_drop(pools)
    # Finding out what a prompt does not say is no mistake: only what goes beyond the least that it costs counts.
    costs = [
        (row.avoidable_loss(label), label, row) for row in ordinary for label in row.losses if not row.has_no_ceiling
    ]
    loss, label, row = max(costs, key=lambda entry: entry[0], default=(0.0, "", best))
    if loss >= SMALLEST_SHOWN:
        interval = "" if label == "information" else f"{_interval_words(row.losses[label])}: "
        name = row.loss_name(label)
        text = f"{interval}{name if name == UNNEEDED_SEARCH else ALL_LOSS_LABELS.get(label, name)}"
        yield Card("Costliest mistake", f"{percent(loss)} points", text, _whose(row))


def _whose(row: GroupSummary) -> str:
    where = ", on this task" * row.is_on_one_task + ", exact on these tasks" * row.is_explored
    return f"{row.policy}, {plain(row.prompt_type)} prompt{where}"


def _interval_words(estimate: Estimate) -> str:
    """Return an interval for a sentence, or why there is none."""
    return "no interval" if math.isnan(estimate.low) else interval_text(estimate)


def _best(best: GroupSummary, ordinary: Sequence[GroupSummary], num_rows: int) -> Card:
    several = num_rows > 1
    among = f", the best {NOT_PRIVILEGED}" if ordinary and len(ordinary) < num_rows else ""
    raw = f"{percent(best.success.value)}%"
    if math.isnan(best.adjusted_share.value):
        text = say("best_raw", interval=_interval_words(best.success), among=among)
        return Card("Highest success" if several else "Success", raw, text, _whose(best))
    interval, luck = _interval_words(best.adjusted_share), signed_points(best.luck.value)
    text = say("best_adjusted", interval=interval, among=among, raw=raw, luck=luck)
    name = "Closest to the ceiling" if several else "Share of the ceiling"
    return Card(name, f"{percent(best.adjusted_share.value)}%", text, _whose(best))


def _largest_drop(pools: PromptPools) -> Iterator[Card]:
    """Yield how much the policy that stands out most loses under flawed plans, if any was shown both."""
    drops = []
    for policy in pools.ordinary:
        sound, flawed = pools.get(policy, OPTIMAL), pools.get(policy, FLAWED)
        if sound is not None and flawed is not None:
            adjusted, raw = difference(sound.adjusted, flawed.adjusted), difference(sound.success, flawed.success)
            is_raw = math.isnan(adjusted.value)
            drops.append((policy, "raw" if is_raw else "luck-adjusted", raw if is_raw else adjusted))
    drops = [entry for entry in drops if not math.isnan(entry[2].value)]
    if drops:
        policy, which, drop = max(drops, key=lambda entry: entry[2].value)
        text = say("largest_drop", interval=_interval_words(drop), which=which)
        name = "Largest drop under flawed plans" if len(drops) > 1 else "Drop under flawed plans"
        yield Card(name, f"{percent(drop.value)} points", text, policy)


def reading_section(facts: RunFacts) -> Section:
    """Return what the words of the report mean, and everything that decides the results."""
    manifest = facts.manifest
    arguments = {plain(name): _as_text(value) for name, value in sorted(manifest["arguments"].items())}
    versions = sorted(manifest.get("versions", {}).items())
    entries = arguments | {
        "hash of all these": str(manifest["hash"]),
        "versions": ", ".join(f"{name} {version}" for name, version in versions),
        "platform": str(manifest.get("platform", "")),
        "begun": str(manifest.get("created", "")),
        "largest error of the identity": f"{facts.table.largest_identity_error:.1e}",
    }
    adds_up = say("regret_adds_up")
    words = {word: text.format(regret_adds_up=adds_up) for word, text in packaged_texts("words.txt").items()}
    labels = {label for row in facts.rows for label in row.losses}
    elsewhere = {*LAW_LABELS, *REAL_LOSS_LABELS} - labels
    known = [label for label in ALL_LOSS_LABELS if label not in elsewhere]
    causes = {plain(label): f"Points lost by {ALL_LOSS_LABELS[label]}." for label in known}
    blocks = [
        Fold("What the words mean", [Definitions(words)]),
        Fold("All causes of lost points", [Definitions(causes)]),
        Fold("Everything that decides these results", [say("provenance"), Definitions(entries)]),
    ]
    return Section("reading", "Words and provenance", blocks)


def _as_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_as_text(entry)}" for name, entry in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) > 12 and list(value) == list(range(len(value))):
            return f"0 to {len(value) - 1:,}"
        texts = [_as_text(entry) for entry in value[:MOST_ENTRIES]]
        rest = f" and {len(value) - MOST_ENTRIES:,} more" if len(value) > MOST_ENTRIES else ""
        return ", ".join(texts) + rest
    return value if isinstance(value, str) else json.dumps(value)
