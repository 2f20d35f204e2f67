"""The hint at the nearest valid name."""

from __future__ import annotations

import pytest

from resilisim.errors import nearest_name, unknown_name

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
    ],
)
def test_a_name_that_resembles_or_the_only_one_with_that_word(value: str, expected: str | None) -> None:
    assert nearest_name(value, NAMES) == expected


def test_words_that_stand_together_count_as_one_part() -> None:
    assert nearest_name("a.b", ["something_long_a_b_c", "something_long_a_c_b"]) == "something_long_a_b_c"


def test_the_error_asks_for_the_name_found_by_its_part() -> None:
    assert str(unknown_name("tool", "reader", NAMES)) == (
        "unknown tool 'reader': did you mean 'file_operations_reader'?"
    )
