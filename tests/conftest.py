"""Settings for every test."""

from __future__ import annotations

from hypothesis import settings

# Compiling and the first solving of a problem take seconds, so a time limit per example would only measure the machine.
# The same examples in every run: a red suite is red for everybody.
settings.register_profile("resilisim", deadline=None, derandomize=True)
settings.load_profile("resilisim")
