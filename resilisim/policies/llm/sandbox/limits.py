"""How much a block of model-written code may use before it is stopped."""

from __future__ import annotations

import math
from dataclasses import dataclass

from resilisim.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Limits of one sandbox; all are above 0.

    Attributes:
        seconds: Running time of one block. The clock stands still while the host answers a call, so slow tools cost
            nothing.
        memory_mib: Heap of the sandbox in MiB; a value that is to be shown needs its space twice.
        recursion_depth: Deepest stack of calls; going deeper is an ordinary RecursionError.
        printed_bytes: What one block may print; far more than is shown, so only a flood meets it.
        round_trips: How often one block may ask the host for something (a function, a file, a module).
        code_characters: Longest block.
        shown_characters: How much of the output is shown.
    """

    seconds: float = 5.0
    memory_mib: int = 64
    recursion_depth: int = 200
    printed_bytes: int = 1_000_000
    round_trips: int = 1_000
    code_characters: int = 100_000
    shown_characters: int = 2_000

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in self.__slots__:
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidInputError(f"sandbox limit {name}={value!r}: expected a number above 0")
