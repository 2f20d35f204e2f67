"""Sums over an episode whose mean is zero, whatever its agent does: what luck-adjusted scores are fitted on.

The law says with what chance each call succeeds, so 1 - chance of a call that did, and -chance of one that did not, has
mean zero, and so has any multiple of it by something that was known before the call. The luck of a message is such a
multiple. The others are chosen so that they add up to what an agent that chooses badly makes of its luck: an agent that
gives up at its first failure, say, is worth the chance that every tool that is still missing succeeds at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from resilisim.statistics.luck_adjustment import NUM_MORE

_MOST_MISSING: Final = 4  # required tools that are told apart by their number
_USUAL_TURNS: Final = 10  # where episodes have no limit
_OF_LUCK: Final = 4  # controls that are weighted luck
_OF_FIRST_DRAWS, _OF_LATER_DRAWS = _OF_LUCK, _OF_LUCK + 1 + _MOST_MISSING
assert _OF_LATER_DRAWS + 1 + _MOST_MISSING == NUM_MORE


def more_controls(record: Mapping[str, Any]) -> list[float]:
    """Return the sums beside the luck; shape (NUM_MORE,).

    Four are luck weighted by V*, V*^2, the share of turns that were used, and V* times that. Ten are draws of required
    tools that were still missing, by how many others were missing, from none to four and more: first those before any
    failure, then those after one.

    Args:
        record: An episode's record.
    """
    sums = [0.0] * NUM_MORE
    turns = record.get("rules", {}).get("max_turns") or _USUAL_TURNS
    missing = set(record["required_tools"])
    draws_at = _OF_FIRST_DRAWS
    for step in record["steps"]:
        if step.get("success") is None:
            continue
        value, luck, used = step["value"], step["luck"], (step["turn"] - 1) / turns
        sums[0] += luck * value
        sums[1] += luck * value * value
        sums[2] += luck * used
        sums[3] += luck * value * used
        succeeded = step["success"] or step.get("real", False)  # a tool's own failure was no bad draw
        if step["tool"] in missing:
            chance = step["success_probability"]
            if chance is not None and value > 0.0 and not step.get("forced", False):
                sums[draws_at + min(len(missing) - 1, _MOST_MISSING)] += succeeded - chance
            if step["success"]:
                missing.discard(step["tool"])
        if not step["success"]:
            draws_at = _OF_LATER_DRAWS
    return sums
