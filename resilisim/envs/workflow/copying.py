"""Copying and filling of small arrays inside compiled code, where `target[:] = ...` is several times as slow."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from resilisim.simulator.compiled import scalar


@scalar
def copy_table(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy `source` to `target`, both of the same two axes."""
    for row in range(target.shape[0]):
        for column in range(target.shape[1]):
            target[row, column] = source[row, column]


@scalar
def copy_row(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy `source` to `target`, both of the same single axis."""
    for column in range(len(target)):
        target[column] = source[column]


@scalar
def fill(target: NDArray[Any], value: int) -> None:
    """Write one value to every entry of an array of one axis."""
    for column in range(len(target)):
        target[column] = value
