"""Episodes come to what they came to before the rebuilding: a part of the net here, all of it among long tests."""

from __future__ import annotations

import numpy as np
import pytest

from tests.golden_net.cells import all_cells
from tests.golden_net.net import compare, load

QUICK = (
    "inject once",
    "inject after",
    "direct · public-apis",
    "reference · none · records",
    "exact-optimum · public-apis",
)
CELLS = all_cells()


def test_the_net_and_its_cells_are_the_same() -> None:
    assert set(load()) == set(CELLS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name.startswith(QUICK) else [pytest.mark.long]) for name in CELLS]
)
def test_episodes_come_to_what_they_came_to(name: str) -> None:
    rows = np.array(CELLS[name](), dtype=np.float64).reshape(-1, 5)
    assert len(rows)
    assert compare(load()[name], rows) is None
