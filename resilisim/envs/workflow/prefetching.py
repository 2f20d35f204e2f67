"""Asking for memory before it is needed; changes no value, and plain Python leaves it out."""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

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


def prefetch(array: NDArray[Any], index: int) -> None:
    """Ask for the memory of an entry of an array of one axis; nothing happens in plain Python."""


@overload(prefetch)
def _compile_prefetch(array: Any, index: Any) -> Any:
    def ask(array: Any, index: Any) -> Any:
        return _prefetch(array, index)

    return ask
