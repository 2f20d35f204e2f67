"""How the one readable law becomes compiled code.

`scalar` leaves a function as it is for Python and lets Numba inline it into kernels, so there is one text for both.
`kernel` compiles a loop over such functions. With NUMBA_DISABLE_JIT=1 everything below runs as plain Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba
from numba.extending import register_jitable

P = ParamSpec("P")
R = TypeVar("R")


def scalar(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a small function over numbers and plain arrays as callable from kernels; Python calls it unchanged."""
    marked: Callable[P, R] = register_jitable(function)
    return marked


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call, releasing the interpreter lock, and keep the result on disk if possible."""
    try:
        compiled: Callable[P, R] = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # Numba found no folder that it may write its cache to
        compiled = numba.njit(nogil=True)(function)
    return compiled
