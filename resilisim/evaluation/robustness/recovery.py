"""How agents recover from what a part of the law does to them: by waiting, by equivalents, by checking results.

A *setback* is an execution that failed, or that reported success with wrong data. It is *mended* if later in the
episode a tool in the same place succeeds with a sound output. Of each way only those setbacks count from which it can
lead out; the share of them that was mended in this way is what an agent is worth there.

| way | setbacks | mended |
|---|---|---|
| waiting | refused by a rate limit or an outage | the tool worked after a message that waited |
| equivalents | calls that failed of a tool in whose place another can stand | another tool worked in its place |
| checking | outputs that were corrupt | the tool was called again until its output was sound |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilisim.statistics import Estimate, clustered_proportion
from resilisim.statistics.estimates import FloatArray

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
        found = []
        for count, mended in zip(self.count, self.mended, strict=True):
            present = count > 0.0
            found.append(clustered_proportion(mended[present], count[present]))
        return Recovery(*found)


def count_setbacks(records: Iterable[Mapping[str, Any]], place_of: Mapping[str, int]) -> dict[Key, Setbacks]:
    """Return the setbacks of each policy under each prompt; `place_of` are the places of the tasks, by id."""
    found: dict[Key, Setbacks] = {}
    for record in records:
        key = (record["policy"], record["prompt_type"])
        if key not in found:
            found[key] = Setbacks(*np.zeros((2, len(WAYS), len(place_of))))
        count, mended = setbacks_of(record["steps"], record["required_tools"], record["law"])
        found[key].count[:, place_of[record["instance_id"]]] += count
        found[key].mended[:, place_of[record["instance_id"]]] += mended
    return found


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
        others = {other for other, one in stands_for.items() if one == stands_for.get(tool) and other != tool}
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
