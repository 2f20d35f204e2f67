"""Values between two bounds: solvers of laws with parts that have no room to be exact, though a problem is small."""

import math
from collections import OrderedDict

import pytest

from resilisim.simulator.exact import optimum, reachable

TOLERANCE = 0.05


def give_little_room(monkeypatch: pytest.MonkeyPatch, tolerance: float = TOLERANCE) -> None:
    """Let whatever is solved from now on, and not what was before, leave out calls that gain no more than that."""
    monkeypatch.setattr(optimum, "_solved", OrderedDict())
    monkeypatch.setattr(reachable, "TOLERANCES", {0.0: 1e-9, tolerance: 1.0, math.inf: 1.0})
