"""Small tables of episodes with any outcomes and lucks, and matched pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.table.episodes import EpisodeTable, table_of
from tests.evaluation.synthetic import synthetic_record

# One pair: task, outcome of A, outcome of B, luck of A, luck of B.
Pair = tuple[int, int, int, float, float]
lucks = st.floats(-0.9, 0.9).map(lambda luck: round(luck, 3))
pair_lists = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 1), st.integers(0, 1), lucks, lucks), min_size=2, max_size=40
)


def record(policy: str, task: int, seed: int, outcome: int, luck: float, index: int = 0) -> EpisodeRecord:
    """Return a record with the given outcome and luck."""
    base = synthetic_record(index, policy, "optimal", task, seed, 0.2)
    level = "full_success" if outcome else "failure"
    changed = {"outcome": outcome, "luck": luck, "score": {**base["score"], "level": level}}
    return EpisodeRecord(**{**base, **changed})


def tables_of(pairs: Sequence[Pair]) -> tuple[EpisodeTable, EpisodeTable]:
    """Return the tables of A and B; the seed of a pair is its place in the list."""
    sides = []
    for side, policy in enumerate(("a", "b")):
        records = (record(policy, pair[0], seed, pair[1 + side], pair[3 + side]) for seed, pair in enumerate(pairs))
        sides.append(table_of(records, {}))
    return sides[0], sides[1]


def shuffled(table: EpisodeTable, seed: int) -> EpisodeTable:
    """Return the table with its episodes in another order."""
    order = np.random.default_rng(seed).permutation(len(table))
    return table.where(order)


def with_tries(table: EpisodeTable) -> EpisodeTable:
    """Return the table of an agent that tries again."""
    return dataclasses.replace(table, tries_again=np.ones(len(table), dtype=np.bool_))
