"""How the one readable law becomes compiled code.

`scalar` leaves a function as it is for Python and lets Numba inline it into kernels, so there is one text for both.
`kernel` compiles a loop over such functions, and the draws of an episode, which were the largest part of an environment
step in plain Python. With NUMBA_DISABLE_JIT=1 everything below runs as plain Python.
`prefetch` asks for memory before it is needed, and `unlikely` says that a condition mostly does not hold, so that what
it guards is laid out beside the hot path; neither changes a value.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic, overload, register_jitable
from numpy.typing import NDArray

from resilisim.seeding import WORD_MASK, hash_words, threefry2x32, uniform_bits

P = ParamSpec("P")
R = TypeVar("R")


def scalar(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a small function over numbers and plain arrays as callable from kernels; Python calls it unchanged."""
    marked: Callable[P, R] = register_jitable(function)
    return marked


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function as `scalar` does, and have it inlined whatever its size, for the one hot loop that calls it."""
    marked: Callable[P, R] = register_jitable(forceinline=True)(function)
    return marked


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call, releasing the interpreter lock, and keep the result on disk if possible.

    What is kept goes when a source that the function is made of changes, wherever it stands (`compiled_sources`); Numba
    alone would look at the function's own file.
    """
    try:
        compiled = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # Numba found no folder that it may write its cache to
        uncached: Callable[P, R] = numba.njit(nogil=True)(function)
        return uncached
    kept = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if kept is not None and hasattr(kept, "_source_stamp"):  # not there with NUMBA_DISABLE_JIT
        kept._source_stamp = stamp_of(function)
    kernel_function: Callable[P, R] = compiled
    return kernel_function


# What kernels are made of, below the package's folder.
COMPILED_SOURCES = ("seeding.py", "simulator", "envs/workflow")
_PACKAGE = Path(__file__).resolve().parent.parent
# An import at the margin: compiled functions see no other names than those of their modules.
_IMPORT = re.compile(r"^(?:from (resilisim[.\w]*) import (\([^)]*\)|.*)|import (resilisim[.\w]*))", re.MULTILINE)


def stamp_of(function: Callable[..., Any]) -> str:
    """Return a hash of every source file that a compiled function comes from."""
    digest = hashlib.blake2b(digest_size=16)
    for path in compiled_sources(Path(function.__code__.co_filename).resolve()):
        digest.update(f"{path.relative_to(_PACKAGE)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def compiled_sources(source: Path) -> tuple[Path, ...]:
    """Return the sources that compiled functions of a source are made of: it, this one, and what they import."""
    sources = {source, Path(__file__).resolve()}
    waiting = [*sources]
    while waiting:
        new = _imported(waiting.pop()) - sources
        sources |= new
        waiting += new
    return tuple(sorted(sources))


@functools.cache
def _imported(source: Path) -> frozenset[Path]:
    """Return those of COMPILED_SOURCES that a source imports."""
    imported: set[Path] = set()
    for package, names, module in _IMPORT.findall(source.read_text(encoding="utf-8")):
        place = _place(module or package)
        within = [_place(f"{package}.{name}") for name in re.findall(r"\w+", names)]
        if place.name != "__init__.py":
            imported.add(place)
        elif package and all(path.is_file() for path in within):
            imported.update(within)
        else:  # a name that the package hands on, from whichever of its modules
            imported.update(place.parent.rglob("*.py"))
    roots = [_PACKAGE / name for name in COMPILED_SOURCES]
    return frozenset(path for path in imported if any(path.is_relative_to(root) for root in roots))


def _place(module: str) -> Path:
    """Return the file of a module; of a package, that of its own module."""
    path = _PACKAGE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


inlined_threefry = inlined(threefry2x32)  # in loops over many draws several are computed side by side
inlined_bits = inlined(uniform_bits)
threefry = kernel(inlined_threefry)
draw_bits = kernel(inlined_bits)
_name_words = functools.lru_cache(maxsize=4096)(hash_words)  # the same few names in every episode


def episode_luck_key(salt: str, seed: int, instance_id: str) -> tuple[int, int]:
    """Return `seeding.episode_key` of the same arguments."""
    task0, task1 = _name_words(salt, instance_id)
    return threefry(task0, task1, seed & WORD_MASK, seed >> 32)


def tool_luck_key(episode0: int, episode1: int, tool_name: str) -> tuple[int, int]:
    """Return `seeding.tool_key` of the same arguments."""
    name0, name1 = _name_words(tool_name)
    return threefry(episode0, episode1, name0, name1)


_codes: Any = cgutils  # without type information
_READ_OR_WRITE, _KEEP_IN_ALL_CACHES, _DATA = 1, 3, 1


def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Write LLVM's instruction of that name for an array and an index."""
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    place = builder.bitcast(builder.gep(data, [arguments[1]]), _codes.voidptr_t)
    number = _codes.int32_t
    kind = _codes.ir.FunctionType(_codes.ir.VoidType(), [_codes.voidptr_t, number, number, number])
    instruction = _codes.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(instruction, [place, *(number(flag) for flag in (_READ_OR_WRITE, _KEEP_IN_ALL_CACHES, _DATA))])
    return context.get_dummy_value()


def _typed(typing_context: Any, array: Any, index: Any) -> Any:
    return types.none(array, types.intp), _generate


_prefetch: Any = intrinsic(_typed)


def _expect(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    bit = _codes.ir.IntType(1)
    kind = _codes.ir.FunctionType(bit, [bit, bit])
    instruction = _codes.get_or_insert_function(builder.module, kind, "llvm.expect.i1")
    return builder.call(instruction, [arguments[0], bit(0)])


def _expect_typed(typing_context: Any, condition: Any) -> Any:
    return types.boolean(types.boolean), _expect


_unlikely: Any = intrinsic(_expect_typed)


def unlikely(condition: bool) -> bool:
    """Return a condition that mostly does not hold; what it guards is compiled out of the way of what mostly runs."""
    return condition


@overload(unlikely, inline="always")
def _compile_unlikely(condition: Any) -> Any:
    def tell(condition: Any) -> Any:
        return _unlikely(condition != 0)

    return tell


def prefetch(array: NDArray[Any], index: int) -> None:
    """Ask for the memory of an entry of an array of one axis; nothing happens in plain Python."""


@overload(prefetch)
def _compile_prefetch(array: Any, index: Any) -> Any:
    def ask(array: Any, index: Any) -> Any:
        return _prefetch(array, index)

    return ask
