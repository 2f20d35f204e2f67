"""Deprecated: what makes flawed plans is in `resilisim.workflows.flaws`."""

import warnings

from resilisim.workflows.flaws import *  # noqa: F403

warnings.warn(
    "resilisim.workflows.perturbation is deprecated: use resilisim.workflows.flaws", DeprecationWarning, stacklevel=2
)
