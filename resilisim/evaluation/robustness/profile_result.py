"""What a robustness profile says about each policy: curves along the axes, the flaws, and a few summary numbers.

One of them is how agents recover from what a part of the law does to them. A *setback* is an execution that failed, or
that reported success with wrong data. It is *mended* if later in the episode a tool in the same place succeeds with a
sound output. Of each way only those setbacks count from which it can lead out; the share of them that was mended in
this way is what an agent is worth there.

| way | setbacks | mended |
|---|---|---|
| waiting | refused by a rate limit or an outage | the tool worked after a message that waited |
| equivalents | calls that failed of a tool in whose place another can stand | another tool worked in its place |
| checking | outputs that were corrupt | the tool was called again until its output was sound |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from resilisim.errors import unknown_name
from resilisim.evaluation.episode.record import Ceiling
from resilisim.statistics import Estimate
from resilisim.statistics.estimates import FloatArray, clustered_proportion, fields_to_json, to_json

WAYS = ("waiting", "equivalents", "checking")
CAN_WAIT_OUT = ("rate_limited", "outage")

Key = tuple[str, str]  # policy and prompt


@dataclass(frozen=True, slots=True)
class Recovery:
    """The share of setbacks that were mended in each way; without any, its value is NaN."""

    waiting: Estimate
    equivalents: Estimate
    checking: Estimate


@dataclass(frozen=True, slots=True, eq=False)
class Setbacks:
    """Setbacks of one policy under one prompt, and how many were mended: (num_ways, num_tasks) each."""

    count: FloatArray
    mended: FloatArray

    def recovery(self) -> Recovery:
        """Return the shares, tasks being the units that vary; what an estimate calls episodes are setbacks."""
        recoveries = []
        for count, mended in zip(self.count, self.mended, strict=True):
            present = count > 0.0
            recoveries.append(clustered_proportion(mended[present], count[present]))
        return Recovery(*recoveries)


def count_setbacks(records: Iterable[Mapping[str, Any]], place_of: Mapping[str, int]) -> dict[Key, Setbacks]:
    """Return the setbacks of each policy under each prompt; `place_of` are the places of the tasks, by id."""
    setbacks: dict[Key, Setbacks] = {}
    for record in records:
        key = (record["policy"], record["prompt_type"])
        if key not in setbacks:
            setbacks[key] = Setbacks(*np.zeros((2, len(WAYS), len(place_of))))
        count, mended = setbacks_of(record["steps"], record["required_tools"], record["law"])
        setbacks[key].count[:, place_of[record["instance_id"]]] += count
        setbacks[key].mended[:, place_of[record["instance_id"]]] += mended
    return setbacks


def setbacks_of(
    steps: Sequence[Mapping[str, Any]], required: Sequence[str], law: Mapping[str, Any]
) -> tuple[list[int], list[int]]:
    """Return how many setbacks an episode has from which each of the WAYS can lead out, and how many it mended."""
    equivalents = law.get("equivalents", {})
    stands_for = {other: tool for tool in reversed(required) for other in equivalents.get(tool, ())}
    stands_for |= {tool: tool for tool in required}
    count, mended = [0] * len(WAYS), [0] * len(WAYS)
    for place, step in enumerate(steps):
        result = step.get("result")
        if step["kind"] != "execute" or result in (None, "success"):
            continue
        tool = step["tool"]
        others = {
            other for other, stood_for in stands_for.items() if stood_for == stands_for.get(tool) and other != tool
        }
        later = steps[place + 1 :]
        again = _first_sound(later, {tool})
        waited = again is not None and any(other["kind"] == "wait" for other in later[:again])
        ways = (
            (result in CAN_WAIT_OUT, waited),
            (bool(others) and result != "corrupt", again is None and _first_sound(later, others) is not None),
            (result == "corrupt", again is not None),
        )
        for way, (can, did) in enumerate(ways):
            count[way] += can
            mended[way] += can and did
    return count, mended


def _first_sound(steps: Sequence[Mapping[str, Any]], tools: set[str]) -> int | None:
    """Return the place of the first success of one of some tools with a sound output."""
    return next(
        (place for place, step in enumerate(steps) if step["tool"] in tools and step.get("result") == "success"), None
    )


NO_SEVERITY = "none"  # in the place of a severity: the plan without a flaw


@dataclass(frozen=True, slots=True)
class Twofold:
    """One quantity estimated from raw outcomes, and from outcomes with luck removed."""

    raw: Estimate
    adjusted: Estimate

    @property
    def better(self) -> Estimate:
        """The luck-adjusted estimate where there is one, else the raw one."""
        return self.raw if math.isnan(self.adjusted.value) else self.adjusted

    def to_mapping(self) -> dict[str, Any]:
        """Return both as JSON values."""
        return {"raw": to_json(self.raw), "luck_adjusted": to_json(self.adjusted)}


@dataclass(frozen=True, slots=True)
class ProfiledPolicy:
    """Whose results they are."""

    policy: str
    prompt: str  # prompt, as the command names it
    privileged: bool  # whether the policy sees the state: no fair comparison with others
    tries_again: bool  # whether it may try again in fresh episodes: no ceiling, no luck adjustment


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A policy's results at one point of an axis."""

    value: float
    success: Estimate  # share of full successes
    adjusted: Estimate  # the same with luck removed
    share_of_ceiling: Estimate  # successes divided by the sum of the ceilings
    # Success here minus success in the standard setting, task by task; None in the standard setting itself
    change: Twofold | None
    recovery: Recovery | None = None  # on the axis of a part of the law, where it has any strength

    def to_mapping(self) -> dict[str, Any]:
        """Return the point as JSON values."""
        mapping = {name.replace("adjusted", "luck_adjusted"): value for name, value in fields_to_json(self).items()}
        return mapping if self.recovery is not None else {k: v for k, v in mapping.items() if k != "recovery"}


@dataclass(frozen=True, slots=True)
class Curve:
    """A policy's results along an axis."""

    who: ProfiledPolicy
    points: tuple[CurvePoint, ...]  # one for each value of the axis
    area: Twofold  # mean success along the axis as a share of the mean ceiling along it
    ceiling: Ceiling  # which reference that is (`records.fitting_ceiling`)

    def to_mapping(self) -> dict[str, Any]:
        """Return the curve as JSON values."""
        mapping = fields_to_json(self)
        return {**mapping.pop("who"), **mapping}


@dataclass(frozen=True, slots=True)
class AxisProfile:
    """One axis of numbers. The references are exact for the tasks at hand, so they have no interval."""

    axis: str  # "reliability", "turns", or a part of the law, whose values are strengths
    standard: float  # its value in the standard setting
    values: tuple[float, ...]  # its points, ascending; shape (num_values,), as the references
    optimum: tuple[float, ...]  # mean V*
    # Mean V* after the fewest searches that show the tools, with V* where they are unknown; that of V* where no
    # prompt leaves the tools to be found
    after_search: tuple[float, ...]
    plan_following: tuple[float, ...]  # mean chance of the required tools in order, each repeated until it succeeds
    informed: tuple[float, ...]  # the values at which some V* are those of an agent that also sees what the law hides
    curves: tuple[Curve, ...]  # one for each policy and prompt

    @property
    def searches(self) -> bool:
        """Whether `after_search` is anybody's ceiling."""
        return any(curve.ceiling == "optimum_after_searches" for curve in self.curves)

    def ceiling_of(self, curve: Curve) -> tuple[float, ...]:
        """Return the mean ceiling of a curve at each point."""
        return self.after_search if curve.ceiling == "optimum_after_searches" else self.optimum

    def to_mapping(self) -> dict[str, Any]:
        """Return the axis as JSON values."""
        mapping = fields_to_json(self) | {"after_search": list(self.after_search) if self.searches else None}
        return {name.replace("after_search", "optimum_after_searches"): value for name, value in mapping.items()}


@dataclass(frozen=True, slots=True)
class FlawReference:
    """What is exact about a flaw of one severity in the plans of the tasks at hand."""

    flaw: str
    severity: str  # severity; "none" for the sound plans of the same tasks
    num_tasks: int  # tasks whose plans carry the flaw
    left_out: int  # tasks whose plans cannot
    obey: float  # mean chance of full success of doing the plan to the letter; NaN without tasks
    deviate: float  # mean V*


@dataclass(frozen=True, slots=True)
class FlawCell:
    """A policy's results under one flaw of one severity."""

    reference: FlawReference  # the flaw, its tasks, what is exact about it
    success: Estimate  # share of full successes
    adjusted: Estimate  # the same with luck removed
    change: Twofold | None  # success minus that under the sound plans of the same tasks; None for these
    recovered: Twofold | None  # (success - obey) / (deviate - obey); None for sound plans

    def to_mapping(self) -> dict[str, Any]:
        """Return the cell as JSON values."""
        return {
            **{name: getattr(self.reference, name) for name in ("flaw", "severity", "num_tasks")},
            "success": to_json(self.success),
            "luck_adjusted": to_json(self.adjusted),
            "change": to_json(self.change),
            "recovered": to_json(self.recovered),
        }


@dataclass(frozen=True, slots=True)
class FlawProfile:
    """A policy's results under all flaws."""

    who: ProfiledPolicy
    optimal: Estimate  # success under the sound plans of all tasks
    cells: tuple[FlawCell, ...]  # one for each flaw and severity, sound plans first
    drop: Twofold  # success under sound plans minus that under flawed ones, over all flaws and severities
    drop_by_severity: Mapping[str, Twofold]  # the same for each severity
    drop_by_flaw: Mapping[str, Twofold]  # the same for each flaw
    recovered: Twofold  # (success - obey) / (deviate - obey) over all flaws and severities
    # The flaws with the lowest success, in the order of the cells; empty if no plan carries any
    worst: tuple[FlawReference, ...]
    worst_success: Estimate  # its success, with an interval that allows for its being the lowest of many (Bonferroni)

    def cell(self, flaw: str, severity: str) -> FlawCell | None:
        """Return the results under a flaw, or None if no plan carries it."""
        cells = (cell for cell in self.cells if (cell.reference.flaw, cell.reference.severity) == (flaw, severity))
        return next(cells, None)

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        mapping = fields_to_json(self)
        who, cells = mapping.pop("who"), mapping.pop("cells")
        worst = [{"flaw": worst.flaw, "severity": worst.severity} for worst in self.worst]
        return {
            **{name: who[name] for name in ("policy", "privileged", "tries_again")},
            **mapping,
            "worst": worst,
            "cells": cells,
        }


@dataclass(frozen=True, slots=True)
class FlawsProfile:
    """The axis of the flaws."""

    flaws: tuple[str, ...]
    severities: tuple[str, ...]
    references: tuple[FlawReference, ...]  # one for each flaw and severity, sound plans ("none") first
    policies: tuple[FlawProfile, ...]  # one for each policy

    def reference(self, flaw: str, severity: str) -> FlawReference:
        """Return what is exact about a flaw of a severity."""
        return next(each for each in self.references if (each.flaw, each.severity) == (flaw, severity))


@dataclass(frozen=True, slots=True)
class RunState:
    """How far one run of a profile is."""

    name: str  # its folder
    title: str  # what it changes
    num_tasks: int
    left_out: int  # tasks that cannot be part of it
    num_episodes: int  # episodes that are finished
    num_planned: int  # episodes that it has when it is finished
    num_failures: int  # episodes that broke in this call for reasons of infrastructure

    @property
    def is_finished(self) -> bool:
        """Whether every episode is there."""
        return self.num_episodes >= self.num_planned


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """A robustness profile.

    Attributes:
        directory: Its folder, which holds a folder for every run.
        arguments: What all runs have in common.
        num_tasks: Tasks of the profile.
        num_seeds: Episodes of each task, policy and prompt in each run.
        runs: How far each run is, the standard one first.
        axes: Reliability and turns, if they were varied.
        flaws: The flaws, if they were.
        optimum_gap: By how much any V* may be too low; 0 where all are exact.
        last_error: What the last episode broke on that broke for reasons of infrastructure in this call.
    """

    directory: Path
    arguments: Mapping[str, Any]
    num_tasks: int
    num_seeds: int
    runs: tuple[RunState, ...]
    axes: tuple[AxisProfile, ...]
    flaws: FlawsProfile | None
    optimum_gap: float
    last_error: str

    @property
    def is_finished(self) -> bool:
        """Whether all their episodes are there."""
        return all(run.is_finished for run in self.runs)

    @property
    def num_failures(self) -> int:
        """Episodes that broke in this call for reasons of infrastructure."""
        return sum(run.num_failures for run in self.runs)

    @property
    def num_episodes(self) -> int:
        """Episodes that are finished."""
        return sum(run.num_episodes for run in self.runs)

    def axis(self, name: str) -> AxisProfile:
        """Return the axis of that name.

        Raises:
            InvalidInputError: The profile has none of that name.
        """
        axes = {axis.axis: axis for axis in self.axes}
        if name not in axes:
            raise unknown_name("axis", name, axes)
        return axes[name]

    def to_mapping(self) -> dict[str, Any]:
        """Return everything as JSON values; NaN becomes None."""
        return {
            "directory": str(self.directory),
            "arguments": dict(self.arguments),
            "num_tasks": self.num_tasks,
            "num_seeds": self.num_seeds,
            "num_episodes": self.num_episodes,
            "num_failures": self.num_failures,
            "last_error": self.last_error or None,
            "finished": self.is_finished,
            "optimum_gap": self.optimum_gap,
            "runs": to_json(self.runs),
            "axes": {axis.axis: axis.to_mapping() for axis in self.axes},
            "flaws": to_json(self.flaws),
        }
