"""The space of Conversation-v0: all texts, as Gymnasium's own functions and other libraries read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast, overload

import gymnasium.spaces as gym_spaces
import gymnasium.vector.utils as vector_utils
import numpy as np
from numpy.typing import NDArray

from resilisim.errors import InvalidInputError

NO_CHARACTER = 0x110000  # one more than the last character of Unicode: what is behind a text's end
MAX_SHARED_LENGTH = 1_000_000  # shared memory is taken for the longest text there can be, four bytes a character

_SAMPLE_LENGTH = 60
# Ranges that samples are drawn from: ASCII, Latin with accents, Greek, CJK, emoji.
_SAMPLE_RANGES = ((0x20, 0x7E), (0xC0, 0x17F), (0x391, 0x3C9), (0x4E00, 0x4FFF), (0x1F600, 0x1F64F))
_CODE = "utf-32-le"

Function = TypeVar("Function", bound=Callable[..., Any])


class UnicodeText(gym_spaces.Text):
    """All texts up to a length; Gymnasium's own `Text` lists its characters, and there are too many to list.

    It flattens to code points, int32 (max_length,), with `NO_CHARACTER` behind the end.
    """

    def __init__(self, max_length: int, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(max_length, min_length=0, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Texts have no fixed size, so vectors of them are only padding."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a short random text; masks have no meaning here."""
        length = int(self.np_random.integers(0, min(_SAMPLE_LENGTH, self.max_length) + 1))
        characters = []
        for _ in range(length):
            low, high = _SAMPLE_RANGES[int(self.np_random.integers(len(_SAMPLE_RANGES)))]
            characters.append(chr(int(self.np_random.integers(low, high + 1))))
        return "".join(characters)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __eq__(self, other: object) -> bool:
        """Return whether the other space holds the same texts."""
        return isinstance(other, UnicodeText) and other.max_length == self.max_length

    def __repr__(self) -> str:
        """Return the constructor call."""
        return f"UnicodeText({self.max_length})"


def _registered(dispatcher: Any) -> Callable[[Function], Function]:
    """Return the decorator that makes a function what one of Gymnasium's does to a `UnicodeText`."""
    return cast("Callable[[Function], Function]", dispatcher.register(UnicodeText))


@_registered(gym_spaces.flatten_space)
def _flatten_space(space: UnicodeText) -> gym_spaces.Box:
    return gym_spaces.Box(0, NO_CHARACTER, (space.max_length,), np.int32)


@_registered(gym_spaces.flatten)
def _flatten(space: UnicodeText, x: str) -> NDArray[np.int32]:
    points = np.full(space.max_length, NO_CHARACTER, dtype=np.int32)
    code_points = np.frombuffer(x.encode(_CODE, "surrogatepass"), dtype="<i4")
    points[: len(code_points)] = code_points
    return points


@_registered(gym_spaces.unflatten)
def _unflatten(space: UnicodeText, x: NDArray[np.int32]) -> str:
    points = np.asarray(x)
    codes: bytes = points[points != NO_CHARACTER].astype("<i4").tobytes()
    return codes.decode(_CODE, "surrogatepass")


@_registered(vector_utils.create_shared_memory)
def _create_shared_memory(space: UnicodeText, n: int = 1, ctx: Any = None) -> Any:
    if space.max_length > MAX_SHARED_LENGTH:
        raise InvalidInputError(
            f"a text can have {space.max_length:,} characters in a world, too many for memory that processes share: "
            'expected AsyncVectorEnv(..., shared_memory=False), or vector_kwargs={"shared_memory": False} of make_vec'
        )
    shared = ctx.Array("i", n * space.max_length)
    np.frombuffer(shared.get_obj(), dtype=np.int32)[:] = NO_CHARACTER
    return shared


@_registered(vector_utils.read_from_shared_memory)
def _read_from_shared_memory(space: UnicodeText, shared_memory: Any, n: int = 1) -> SharedTexts:
    return SharedTexts(np.frombuffer(shared_memory.get_obj(), dtype=np.int32).reshape(n, space.max_length), space)


class SharedTexts(Sequence[str]):
    """The texts that stand in shared memory, int32 (number, max_length), as they are when they are looked at.

    Gymnasium reads shared memory once, at the start, so that what is read has to change with it; its deep copy, which
    `AsyncVectorEnv` hands out, is a tuple of the texts.
    """

    def __init__(self, rows: NDArray[np.int32], space: UnicodeText) -> None:
        self._rows = rows
        self._space = space

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...

    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(_unflatten(self._space, row) for row in self._rows[index])
        return _unflatten(self._space, self._rows[index])

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return self[:]
