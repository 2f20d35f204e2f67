"""The saved net, and how a cell is compared with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NET = Path(__file__).parent / "net.npz"
LARGEST_ERROR = 1e-12  # of sums that another order of operations may round otherwise


def load() -> dict[str, NDArray[np.float64]]:
    """Return the saved cells: float64 (rows, 5) each."""
    if not NET.exists():
        return {}
    with np.load(NET) as saved:
        return {name: saved[name] for name in saved.files}


def compare(saved: NDArray[np.float64], rows: NDArray[np.float64]) -> str | None:
    """Say how rows differ from the saved ones; None if they do not."""
    if saved.shape != rows.shape:
        return f"{len(rows)} rows, expected {len(saved)}"
    distance = np.abs(saved - rows)
    # NaN stands for what has no value; it is the same only as itself.
    distance = np.where(np.isnan(saved) & np.isnan(rows), 0.0, np.where(np.isnan(distance), np.inf, distance))
    wrong = (distance > LARGEST_ERROR).any(axis=1)
    if not wrong.any():
        return None
    columns = ("outcome", "optimum", "regret", "luck", "messages")
    worst = {name: float(column.max()) for name, column in zip(columns, distance.T, strict=True) if column.max() > 0}
    return f"{int(wrong.sum())} of {len(rows)} rows differ, at most by {worst}"
