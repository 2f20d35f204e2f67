"""How much is done side by side on a GPU: half as much, with one warning, where its memory does not hold it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from resilisim.errors import InvalidInputError

T = TypeVar("T")


class SideBySide:
    """A number of things that are computed with at once, halved as often as the GPU runs out of memory.

    Args:
        what: What they are, in the plural, for the warning.
        size: How many at first.
        setting: The setting that says so, for the advice.
    """

    def __init__(self, what: str, size: int, setting: str) -> None:
        self.size = size
        self._what, self._setting = what, setting
        self._has_warned = False

    def attempt(self, work: Callable[[int], T], most: int) -> T:
        """Return what work gives for as many at once as memory holds, of `most` that there are.

        Where memory runs out, work begins anew with half as many.

        Raises:
            InvalidInputError: Memory does not hold even one.
        """
        size = first = max(1, min(self.size, most))
        while True:
            try:
                done = work(size)
                break
            except torch.OutOfMemoryError as error:
                if size == 1:
                    raise InvalidInputError(
                        f"{self._setting}: the GPU's memory does not hold even one of the {self._what}: expected a "
                        "larger GPU, or device cpu"
                    ) from error
            self.size = size = (size + 1) // 2  # out here nothing holds the tensors of what failed any more
            torch.cuda.empty_cache()
        if size < first and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the GPU's memory does not hold {first} {self._what} side by side: continues with {size} "
                f"({self._setting})",
                UserWarning,
                stacklevel=2,
            )
        return done
