"""The split depends on the set of required tools alone and comes near 70/15/15."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.model import SPLITS, split_of
from resilisim.tool_library.library import default_library

NAMES = default_library().names


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_order_and_repetition_do_not_matter(names: list[str], random: object) -> None:
    shuffled = [*names, names[0]]
    random.shuffle(shuffled)
    assert split_of(shuffled) == split_of(names) == split_of(frozenset(names)) == split_of(iter(names))


def test_known_values_stay_as_they_are() -> None:
    """A change here would move tasks between train and test: it needs a new version of the benchmark."""
    assert split_of(["file_operations_reader"]) == "train"
    assert split_of(["file_operations_reader", "data_processing_parser"]) == "train"
    assert split_of(["network_fetcher", "data_processing_parser", "network_poster"]) == "train"
    assert split_of(["data_processing_filter", "file_operations_scanner"]) == "test"


def test_sets_of_three_tools_are_divided_70_15_15() -> None:
    """4,060 sets: the standard error of a share is at most 0.0072; four of them are allowed."""
    counts = Counter(split_of(names) for names in itertools.combinations(NAMES, 3))
    total = sum(counts.values())
    for split, share in zip(SPLITS, (0.70, 0.15, 0.15), strict=True):
        assert abs(counts[split] / total - share) < 0.029


def test_the_benchmark_is_divided_near_70_15_15_by_tasks_and_by_sets() -> None:
    tasks = benchmark_tasks()
    sets = {frozenset(task.required_tools) for task in tasks}
    by_task = Counter(split_of(task.required_tools) for task in tasks)
    by_set = Counter(split_of(names) for names in sets)
    for split, share in zip(SPLITS, (0.70, 0.15, 0.15), strict=True):
        assert abs(by_task[split] / len(tasks) - share) < 0.03
        assert abs(by_set[split] / len(sets) - share) < 0.03
