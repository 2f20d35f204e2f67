"""Check (b): the draws are uniform, and independent along every part of their key.

The draws are computed as arrays; that the simulator compares its probabilities with exactly these numbers is shown
first, by episodes that succeed with the smallest probability that exceeds the draw and fail with the largest that does
not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.seeding import (
    EVALUATION_SALT,
    PURPOSE_FAILURE,
    PURPOSE_PAYLOAD,
    PURPOSE_SUCCESS,
    TRAINING_SALT,
    UNIFORM_BITS,
    VALIDATION_SALT,
    Draws,
    episode_key,
    hash_words,
    threefry2x32,
    tool_key,
    uniform_bits,
)
from resilisim.simulator import EndRules, Episode, Law, build_problem, execution
from resilisim.tool_library import default_library
from verification.findings import Finding
from verification.statistics import (
    TestResult,
    chi_square_of_rows,
    chi_square_of_scores,
    chi_square_of_table,
    too_many,
    uniform_correlation,
)

SOURCE = "SPEC 3, luck"
NUM_TASKS, NUM_SEEDS, NUM_TOOLS, NUM_ATTEMPTS = 40, 200, 30, 10
JOBS = 8  # pieces of the grid, by task
PAIR_BINS = 16

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def grid(
    salt: str, tasks: Sequence[str], seeds: Sequence[int], attempts: int, purpose: int = PURPOSE_SUCCESS
) -> IntArray:
    """Return the 53 bits of every draw: int64 (num_tasks, num_seeds, num_tools, num_attempts)."""
    keys = np.array([[episode_key(salt, seed, task) for seed in seeds] for task in tasks], dtype=np.int64)
    names = np.array([hash_words(name) for name in default_library().names], dtype=np.int64)
    tool0, tool1 = threefry2x32(keys[:, :, None, 0], keys[:, :, None, 1], names[:, 0], names[:, 1])
    index = np.arange(attempts, dtype=np.int64)
    return np.asarray(uniform_bits(tool0[..., None], tool1[..., None], index, np.int64(purpose)))


def _unit(bits: IntArray) -> FloatArray:
    """Return the draws as numbers in [0, 1)."""
    return np.asarray(bits * 2.0**-UNIFORM_BITS, dtype=np.float64)


def _task_names(piece: int) -> list[str]:
    # Ids that differ in their last character: the hardest neighbours.
    each = NUM_TASKS // JOBS
    return [f"task_{number:06x}" for number in range(piece * each, (piece + 1) * each)]


def jobs(shift: int) -> list[tuple[str, int, int]]:
    """Return (kind, piece, shift) of every piece of work."""
    return [
        *(("grid", piece, shift) for piece in range(JOBS)),
        ("keys", 0, shift),
        ("purposes", 0, shift),
        ("named", 0, shift),
        ("engine", 0, shift),
    ]


def work(job: tuple[str, int, int]) -> Any:
    """Do one piece of work; grids come back as their counts, so that little travels between processes."""
    kind, piece, shift = job
    if kind == "grid":
        return _grid_counts(piece, shift)
    return {"keys": _between_keys, "purposes": _between_purposes, "named": _named_draws, "engine": _engine}[kind](shift)


def _grid_counts(piece: int, shift: int) -> dict[str, Any]:
    bits = grid(f"verification/luck/{shift}", _task_names(piece), range(NUM_SEEDS), NUM_ATTEMPTS)
    uniforms = _unit(bits)
    counts: dict[str, Any] = {
        "fine": np.bincount((bits >> (UNIFORM_BITS - 12)).ravel(), minlength=4096),
        "low": np.bincount((bits & 4095).ravel(), minlength=4096),
        "tool": _rows(uniforms, 2),
        "attempt": _rows(uniforms, 3),
        "seed": _rows(uniforms.reshape(uniforms.shape[0], 20, -1, *uniforms.shape[2:]), 1),
        "task": _rows(uniforms, 0),
        "bits": _bit_products(bits),
        "number": bits.size,
        "hashes": np.unique(bits),
    }
    for axis, name in enumerate(AXES):
        even, odd = _neighbours(uniforms, axis)
        counts["pairs of neighbouring " + name] = (_pairs(even, odd), _cross(even, odd), even.size)
    return counts


AXES = ("tasks", "seeds", "tools", "executions of a tool (k)")


def _rows(uniforms: FloatArray, axis: int, bins: int = 64) -> IntArray:
    """Count (size of the axis, bins)."""
    moved = np.moveaxis(uniforms, axis, 0).reshape(uniforms.shape[axis], -1)
    return np.stack([np.bincount((row * bins).astype(np.int64), minlength=bins) for row in moved])


def _neighbours(uniforms: FloatArray, axis: int) -> tuple[FloatArray, FloatArray]:
    """Return disjoint pairs of neighbours along an axis: overlapping ones would not be independent counts."""
    even = uniforms.take(range(0, uniforms.shape[axis] - 1, 2), axis)
    odd = uniforms.take(range(1, uniforms.shape[axis], 2), axis)
    return even.ravel(), odd.ravel()


def _pairs(one: FloatArray, other: FloatArray) -> IntArray:
    cells = (one * PAIR_BINS).astype(np.int64) * PAIR_BINS + (other * PAIR_BINS).astype(np.int64)
    return np.bincount(cells, minlength=PAIR_BINS**2)


def _cross(one: FloatArray, other: FloatArray) -> float:
    return 12.0 * float((one - 0.5) @ (other - 0.5))


def _bit_products(bits: IntArray) -> FloatArray:
    """Return the sums of products of all pairs of bits taken as -1 and 1, with a first column that is always 1."""
    flat = bits.ravel()
    signs = np.ones((flat.size, UNIFORM_BITS + 1), dtype=np.float32)
    for place in range(UNIFORM_BITS):
        signs[:, place + 1] = ((flat >> place) & 1) * 2 - 1
    # float32 sums of so few ones are exact
    return np.asarray(signs.T @ signs, dtype=np.float64)


def _pair_findings(name: str, one: FloatArray, other: FloatArray) -> list[Finding]:
    table = chi_square_of_table(_pairs(one, other))
    correlation = uniform_correlation(one, other)
    return [
        Finding(f"{name}: table of pairs", SOURCE, table.text, table.p_value),
        Finding(f"{name}: correlation", SOURCE, correlation.text, correlation.p_value),
    ]


def _between_keys(shift: int) -> list[Finding]:
    """Compare the same draws under two salts, and under seeds that differ in one bit."""
    tasks, seeds = _task_names(0)[:4], range(100)
    private = f"verification/luck/{shift}"
    salts = (private, EVALUATION_SALT, VALIDATION_SALT, TRAINING_SALT)
    uniforms = [_unit(grid(salt, tasks, seeds, NUM_ATTEMPTS)).ravel() for salt in salts]
    findings = []
    for (name, one), (other_name, other) in pairwise(
        zip(("own", "evaluation", "validation", "training"), uniforms, strict=True)
    ):
        findings += _pair_findings(f"salts {name} and {other_name}", one, other)
    seed = Draws("verification/luck/seed", shift).bits()
    plain = grid(private, tasks, [seed] * 63, NUM_ATTEMPTS)

    flipped = grid(private, tasks, [seed ^ (1 << place) for place in range(63)], NUM_ATTEMPTS)
    # Each is compared with its neighbour, since pairs with the one plain seed would not be independent counts.

    findings += _pair_findings("seeds that differ in two bits", *_neighbours(_unit(flipped), 1))
    same = int(np.count_nonzero(plain == flipped))
    findings.append(Finding("no draw survives the flip of a seed's bit", SOURCE, f"{same} do", exact=same == 0))
    return findings


def _between_purposes(shift: int) -> list[Finding]:
    """Compare the draws made for success, kind of failure and payload of the same execution."""
    salt, tasks, seeds = f"verification/luck/{shift}", _task_names(1)[:4], range(100)
    purposes = {"success": PURPOSE_SUCCESS, "failure": PURPOSE_FAILURE, "payload": PURPOSE_PAYLOAD}
    drawn = {name: _unit(grid(salt, tasks, seeds, NUM_ATTEMPTS, purpose)).ravel() for name, purpose in purposes.items()}
    findings = []
    for one, other in (("success", "failure"), ("success", "payload"), ("failure", "payload")):
        findings += _pair_findings(f"purposes {one} and {other}", drawn[one], drawn[other])
    return findings


def _named_draws(shift: int) -> list[Finding]:
    """Test `Draws`, which makes all choices that are not luck."""
    sequences = [Draws("verification/named", shift, number) for number in range(2000)]
    values = np.array([[draws.uniform() for _ in range(20)] for draws in sequences])
    flat = chi_square_of_table(np.bincount((values.ravel() * 256).astype(np.int64), minlength=256))
    orders = [draws.shuffled((0, 1, 2, 3)) for draws in sequences for _ in range(5)]
    numbers: dict[tuple[int, ...], int] = {}
    for order in orders:
        numbers[tuple(order)] = numbers.get(tuple(order), 0) + 1
    shuffles = chi_square_of_table([*numbers.values(), *([0] * (24 - len(numbers)))])
    below = chi_square_of_table(np.bincount([draws.below(7) for draws in sequences for _ in range(5)], minlength=7))
    return [
        Finding("named draws: 256 bins", "ARCHITECTURE, seeding", flat.text, flat.p_value),
        Finding("named draws: 24 orders of a shuffle", "ARCHITECTURE, seeding", shuffles.text, shuffles.p_value),
        Finding("named draws: integers below 7", "ARCHITECTURE, seeding", below.text, below.p_value),
        *_pair_findings("named draws, neighbouring names", *_neighbours(values, 0)),
        *_pair_findings("named draws, one after the other", *_neighbours(values, 1)),
    ]


def _engine(shift: int) -> list[Finding]:
    """Show that episodes use these draws: success iff draw < p, at the two probabilities next to the draw."""
    library, salt = default_library(), f"verification/luck/{shift}"
    rules = EndRules(max_turns=4, max_consecutive_failures=0, loop_length=0)
    draws = Draws("verification/engine", shift)
    wrong = episodes = 0
    for number in range(150):
        tool, seed, attempt = draws.choice(library.names), draws.bits(), draws.below(4)
        task = f"task_{number}"
        bits = int(uniform_bits(*tool_key(*episode_key(salt, seed, task), tool), attempt, PURPOSE_SUCCESS))
        for threshold, expected in ((bits + 1, True), (bits, False)):
            if threshold == 0:
                continue
            # With factors of 1 the probability is the base in every state.
            law = Law(base=threshold * 2.0**-UNIFORM_BITS, not_executed=1.0, failed=1.0, history=1.0)
            episode = Episode(build_problem(library, [tool], law, rules), task, seed, salt)
            for _ in range(attempt):
                episode.apply(execution(tool))
            wrong += episode.apply(execution(tool)).success is not expected
            episodes += 1
    return [
        Finding(
            f"episodes succeed iff U(salt, seed, task, tool, k) < p ({episodes} at the edge)",
            SOURCE,
            f"{wrong} do not",
            exact=wrong == 0,
        )
    ]


def judge(pieces: Sequence[Any]) -> list[Finding]:
    """Judge the grid as a whole, and pass on what the other pieces found."""
    grids = [piece for piece in pieces if isinstance(piece, dict)]
    findings = [finding for piece in pieces if isinstance(piece, list) for finding in piece]
    number = sum(piece["number"] for piece in grids)

    def total(name: str) -> Any:
        return sum(piece[name] for piece in grids)

    def add(name: str, result: TestResult) -> None:
        findings.append(Finding(name, SOURCE, result.text, result.p_value))

    add(f"uniform: 4,096 bins of the high bits ({number:,} draws)", chi_square_of_table(total("fine")))
    add("uniform: 4,096 values of the low bits", chi_square_of_table(total("low")))
    for name in ("tool", "attempt", "seed"):
        add(f"uniform for every {'k' if name == 'attempt' else name}", chi_square_of_rows(total(name)))
    add("uniform for every task", chi_square_of_rows(np.concatenate([piece["task"] for piece in grids])))
    products = total("bits") / np.sqrt(number)
    upper = np.triu_indices(UNIFORM_BITS + 1, 1)
    single = upper[0] == 0
    add("balance of each of the 53 bits", chi_square_of_scores(products[upper][single]))
    add("independence of each pair of the 53 bits", chi_square_of_scores(products[upper][~single]))
    for axis in AXES:
        name = "pairs of neighbouring " + axis
        table = sum(piece[name][0] for piece in grids)
        score = sum(piece[name][1] for piece in grids) / np.sqrt(sum(piece[name][2] for piece in grids))
        add(f"neighbouring {axis}: table of pairs", chi_square_of_table(table))
        add(f"neighbouring {axis}: correlation", chi_square_of_scores([score]))
    distinct = np.unique(np.concatenate([piece["hashes"] for piece in grids])).size
    add("equal draws anywhere in the grid", too_many(number - distinct, number**2 / 2.0 ** (UNIFORM_BITS + 1)))
    findings.append(_control())
    return findings


@lru_cache(maxsize=1)
def _control() -> Finding:
    """Test draws in which the tool is missing from the key: tools next to each other then share their luck."""
    tasks, seeds = _task_names(0)[:1], range(40)
    uniforms = _unit(grid("verification/control", tasks, seeds, NUM_ATTEMPTS))

    uniforms[:, :, 1::2] = uniforms[:, :, ::2]
    result = chi_square_of_table(_pairs(*_neighbours(uniforms, 2)))
    return Finding("control: the tool is missing from the key", SOURCE, result.text, result.p_value, control=True)
