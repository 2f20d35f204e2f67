"""V* of many problems in one table that compiled code reads, for environments that play thousands of episodes at once.

Most entries of a `TabulatedOptimum` are 0: with so many turns left, tools done and statuses nothing can succeed any
more. Rows of zeros along the last three axes are left out here, which leaves about a quarter (145 MB for the train
split).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resilisim.simulator.compiled import scalar
from resilisim.simulator.exact.arena import OUT_OF_TABLE
from resilisim.simulator.exact.optimum import (
    NOT_KNOWN,
    TabulatedOptimum,
    loop_state,
    status_code,
    tabulate,
    value_without_table,
)
from resilisim.simulator.law import IntVector
from resilisim.simulator.problem import Problem
from resilisim.simulator.state import CONSECUTIVE_FAILURES, NEXT_PLACE, NUM_FAILURES, TURNS_USED


class ValueTables(NamedTuple):
    """The tables of some problems, which have a library and end rules in common, one behind the other.

    Attributes:
        entries: (num_problems,) where each problem's part begins and how long it is, with `slot` and `gap`.
        digits: int64 (sum of num_digits, 3), `Arena.digits`.
        compact: int32 (sum of num_status_codes,), `Arena.compact`.
        rows: int64 (sum of turns x codes x places,) where in `values` the row of a number of turns left, a code and a
            place begins, or OUT_OF_TABLE for a row of zeros.
        values: float64, rows of failures x consecutive failures x loop states each.
    """

    entries: NDArray[Any]
    digits: NDArray[np.int64]
    compact: NDArray[np.int32]
    rows: NDArray[np.int64]
    values: NDArray[np.float64]


def _entry_dtype(num_tools: int) -> np.dtype[Any]:
    counts = ("num_required", "max_turns", "max_consecutive_failures", "loop_length", "loop_tools")
    places = ("digits", "num_digits", "compact", "num_compact", "rows", "codes", "consecutive", "loops")
    numbers: list[tuple[Any, ...]] = [(name, np.int64) for name in (*counts, *places)]
    fields = np.dtype([*numbers, ("gap", np.float64), ("slot", np.int16, (num_tools,))])
    return np.dtype((np.record, fields))


def make_tables(problems: Sequence[Problem]) -> ValueTables:
    """Solve problems and return their tables; equal problems share theirs.

    Raises:
        ExactLimitError: One of them is too large to be solved exactly.
    """
    numbers = {problem: number for number, problem in enumerate(dict.fromkeys(problems))}
    distinct = np.zeros(len(numbers), dtype=_entry_dtype(problems[0].num_tools))
    parts: dict[str, list[NDArray[Any]]] = {"digits": [], "compact": [], "rows": [], "values": []}
    lengths = dict.fromkeys(parts, 0)
    for problem, number in numbers.items():
        entry = distinct[number]
        own = _part_of(tabulate(problem), entry)
        own["rows"][own["rows"] != OUT_OF_TABLE] += lengths["values"]
        for name, part in own.items():
            if name != "values":
                entry[name] = lengths[name]
            parts[name].append(part)
            lengths[name] += len(part)
    joined = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    return ValueTables(distinct[[numbers[problem] for problem in problems]], **joined)


def _part_of(optimum: TabulatedOptimum, entry: Any) -> dict[str, NDArray[Any]]:
    """Return a problem's part of each array, places in `values` counted from its own, and note its lengths."""
    problem, arena = optimum.problem, optimum.arena
    digits = np.array(arena.digits, dtype=np.int64).reshape(-1, 3)
    table = optimum.values[:, :, :-1].reshape(
        -1, int(np.prod(optimum.values.shape[3:]))
    )  # all done is 1, not looked up
    is_kept = table.any(axis=1)
    rows = np.full(len(table), OUT_OF_TABLE, dtype=np.int64)
    rows[is_kept] = np.arange(np.count_nonzero(is_kept)) * table.shape[1]
    entry["num_required"] = len(problem.required)
    entry["max_turns"] = problem.rules.max_turns
    entry["max_consecutive_failures"] = problem.rules.max_consecutive_failures
    entry["loop_length"] = problem.rules.loop_length
    entry["loop_tools"] = arena.loop_tools
    entry["num_digits"], entry["num_compact"] = len(digits), len(arena.compact)
    entry["codes"], entry["consecutive"], entry["loops"] = (optimum.values.shape[axis] for axis in (1, 4, 5))
    entry["gap"], entry["slot"] = optimum.gap, arena.slot
    return {"digits": digits, "compact": arena.compact, "rows": rows, "values": table[is_kept].ravel()}


@scalar
def tabulated_value(status: IntVector, counters: IntVector, entry: Any, tables: ValueTables) -> float:
    """Return V* of a running state, as `TabulatedOptimum.value` does; `entry` is the problem's."""
    known = value_without_table(counters, entry.num_required, entry.max_turns)
    if known != NOT_KNOWN:
        return known
    place = counters[NEXT_PLACE]
    code = status_code(status, place, tables.digits[entry.digits : entry.digits + entry.num_digits])
    column = tables.compact[entry.compact + code]
    if column == OUT_OF_TABLE:
        return 0.0
    turns_left = entry.max_turns - counters[TURNS_USED]
    row = tables.rows[entry.rows + (turns_left * entry.codes + column) * entry.num_required + place]
    if row == OUT_OF_TABLE:
        return 0.0
    consecutive = counters[CONSECUTIVE_FAILURES] if entry.max_consecutive_failures > 0 else 0
    loop = loop_state(status, counters, entry.slot, entry.loop_length) if entry.loop_tools and entry.loops > 1 else 0
    return float(tables.values[row + (counters[NUM_FAILURES] * entry.consecutive + consecutive) * entry.loops + loop])
