"""The hint at the nearest valid name."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable

import gymnasium
import pytest

from resilisim import bound, evaluate
from resilisim.envs.workflow.vector import WorkflowVectorEnv
from resilisim.errors import InvalidInputError, nearest_name, unknown_name
from resilisim.tasks.generation import generate_tasks

NAMES = ("file_operations_reader", "file_operations_writer", "data_processing_parser")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("FILE_OPERATIONS_READER", "file_operations_reader"),
        ("file_operations_reeder", "file_operations_reader"),
        ("reader", "file_operations_reader"),
        ("Parser", "data_processing_parser"),
        ("data", "data_processing_parser"),
        ("file", None),  # two names have it
        ("read", None),  # no whole word
        ("", None),
        ("_", None),
        ("nonsense", None),
        ("operations.writer", "file_operations_writer"),  # words that stand together
    ],
)
def test_a_name_that_resembles_or_the_only_one_with_that_word(value: str, expected: str | None) -> None:
    assert nearest_name(value, NAMES) == expected


def test_a_long_value_is_compared_with_nothing_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def note(value: str, names: list[str], **options: object) -> list[str]:
        compared.append(len(value) * sum(map(len, names)))
        return []

    monkeypatch.setattr(difflib, "get_close_matches", note)
    long = "file_operations_raeder" * 40_000
    assert nearest_name(long, NAMES) is None
    assert nearest_name("file_operations_raeder", [*NAMES, long]) is None  # names may be an agent's, too
    assert compared == [22 * 66]
    assert len(str(unknown_name("tool", long, NAMES))) < 500


HUGE = [10**12, 10**30, 10**5000]


@pytest.mark.parametrize("value", [*HUGE, -1, 0.5, "3.5", True, math.nan, None], ids=range(9))
@pytest.mark.parametrize(
    "use",
    [
        lambda value: evaluate("random", 1, seeds=value),
        lambda value: evaluate("random", 1, workers=value),
        lambda value: evaluate("random", value),
        lambda value: gymnasium.make("resilisim/Conversation-v0", max_turns=value),
        lambda value: gymnasium.make("resilisim/Conversation-v0", loop_length=value),
        lambda value: gymnasium.make("resilisim/Conversation-v0", base="x" if value in (0.5, True) else value),
        lambda value: WorkflowVectorEnv(num_envs=value),
        lambda value: bound(["file_operations_reader"], clairvoyant_seeds=value),
        lambda value: next(generate_tasks(count=value)),
    ],
    ids=range(9),
)
def test_numbers_that_nobody_means_are_refused_in_a_line(use: Callable[[object], object], value: object) -> None:
    with pytest.raises(InvalidInputError) as refused:
        use(value)
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)
