"""PPO on Workflow-v0: network, policy for sb3-contrib's MaskablePPO, training, checkpoints.

Nothing is imported here, so that torch is loaded only by whoever asks for one of the modules.
"""

import re

SHIPPED_CHECKPOINTS = ("default", "benchmark")  # the names of trained policies that ship
_LOOKS_AHEAD = re.compile(r"(?P<checkpoint>.+)\+(?P<calls>\d+)\Z", re.DOTALL)


def split_look_ahead(name: str) -> tuple[str, int]:
    """Return the checkpoint that a name means, and how many calls it looks ahead: `default+2` is default and 2."""
    match = _LOOKS_AHEAD.match(name)
    return (name, 0) if match is None else (match["checkpoint"], int(match["calls"]))
