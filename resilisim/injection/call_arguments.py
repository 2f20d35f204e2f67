"""What a function was called with: a text for records, which may be cut, and a digest of all of it, which never is.

The digest decides whether two calls have the same input. It follows the values and not their texts: order within
mappings and sets, the way in which an argument was given (by place, by name, by default) and where an object lies in
memory change nothing. What an object is made of is asked of the object, as `copy` does; nothing is pickled. What tells
nothing about itself (an open file, a lock) is the same as long as it is the same object.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import hashlib
import inspect
import itertools
import math
import struct
import types
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Set
from typing import Any, Final, TypeAlias, cast

import numpy as np

LONGEST_ARGUMENTS: Final = 500  # characters of a call's arguments that records keep
CUT: Final = "... (cut)"  # how a text ends that was longer
_SIZE: Final = 16  # bytes of a digest
_HOLDING: Final = frozenset({dict, list, tuple, set})
_MOST_OBJECTS: Final = 100_000  # that are asked what they are made of; further ones are told apart by identity
_MOST_HELD: Final = 1000  # objects that are kept only so that no other comes to stand in their place

# What asks for the digests of the values that something is made of, and returns its own.
_Encoder: TypeAlias = Generator[Any, bytes, bytes]


class CallArguments:
    """The arguments of one call; texts of those that cannot change are only made when somebody asks.

    Args:
        args: Those by place.
        kwargs: Those by name.
        values: All of them by the names of parameters, if these are known (`bound_to`).
    """

    __slots__ = ("_args", "_digest", "_kwargs", "_shown", "_values")

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], values: Any) -> None:
        self._args, self._kwargs, self._values = args, kwargs, values
        self._shown: str | None = None
        self._digest: str | None = None
        for each in args if not kwargs else (*args, *kwargs.values()):
            if type(each) not in _SMALL and not (type(each) is str and len(each) <= LONGEST_ARGUMENTS):
                self._settle()  # it may change, or is too large to be kept
                break

    @classmethod
    def of(
        cls,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        signature: inspect.Signature | None = None,
    ) -> CallArguments:
        """Return what stands for arguments; with the function's signature it does not matter how they were given."""
        named = dict(kwargs or {})
        values: Any = (args, named) if args else named
        if signature is not None:
            with contextlib.suppress(TypeError):  # the function does not take them
                values = bound_to(signature, args, named)
        return cls(args, named, values)

    @classmethod
    def recorded(cls, shown: str, digest: str) -> CallArguments:
        """Return what stands for arguments of which a record holds text and digest."""
        arguments = cls((), {}, None)
        arguments._shown, arguments._digest = shown, digest
        return arguments

    @property
    def shown(self) -> str:
        """The arguments as text, at most `LONGEST_ARGUMENTS` characters; one that is cut ends with `CUT`."""
        if self._shown is None:
            self._settle()
        return cast("str", self._shown)

    @property
    def digest(self) -> str:
        """Hexadecimal text that stands for the whole of them."""
        if self._digest is None:
            self._settle()
        return cast("str", self._digest)

    def _settle(self) -> None:
        self._shown, self._digest = _shown(self._args, self._kwargs), digest_of(self._values)
        self._args, self._kwargs, self._values = (), {}, None


_SMALL: Final = frozenset({int, float, bool, type(None)})


def bound_to(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each parameter by its name, with defaults.

    Raises:
        TypeError: The function does not take these arguments.
    """
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


class Binder:
    """What finds the values of a function's parameters, without asking its signature for each call.

    Args:
        signature: The signature.
    """

    def __init__(self, signature: inspect.Signature) -> None:
        self._signature = signature
        parameters = list(signature.parameters.values())
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._names = [each.name for each in parameters] if all(each.kind in by_place for each in parameters) else None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value of each parameter (`bound_to`); TypeError if the function does not take the arguments."""
        if self._names is not None and not kwargs and len(args) == len(self._names):
            return dict(zip(self._names, args, strict=True))
        return bound_to(self._signature, args, kwargs)


def _shown(args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
    """Return arguments as text, cut; values that cannot be shown are named by their class."""
    parts: list[str] = []
    left = LONGEST_ARGUMENTS
    for value in args:
        parts.append(_repr(value))
        left -= len(parts[-1]) + 2
        if left < 0:
            break
    if kwargs and left >= 0:
        for name, value in kwargs.items():
            parts.append(f"{name}={_repr(value)}")
            left -= len(parts[-1]) + 2
            if left < 0:
                break
    text = parts[0] if len(parts) == 1 else ", ".join(parts)
    if len(text) > LONGEST_ARGUMENTS:
        text = text[: LONGEST_ARGUMENTS - len(CUT)] + CUT
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def digest_of(value: object) -> str:
    """Return a hexadecimal text that is the same for values that are made of the same."""
    return (_of_flat(value) or _Digest().of(value)).hex()


def _of_flat(value: object) -> bytes | None:
    """Return the digest of a mapping from names to values that hold no others, as arguments mostly are; else None."""
    if type(value) is not dict:
        return None
    pairs = []
    for key, item in value.items():
        if type(key) is not str or (part := _of_atom(item)) is None:
            return None
        pairs.append(_of_name(key) + part)
    if len(pairs) > 1:
        pairs.sort()
    return _hashed("mapping", *pairs)


@functools.lru_cache(maxsize=1000)
def _of_name(name: str) -> bytes:
    return _hashed("text", _encoded(name))


class _Digest:
    """The digests of one value and of all that it is made of, however deep that goes."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, object]] = {}  # with the object, which keeps its number as long as it lives
        self._path: dict[int, int] = {}  # what is being looked into, and how deep that is
        self._num_objects = 0

    def of(self, value: object) -> bytes:
        """Return the digest of a value."""
        waiting: list[tuple[object, _Encoder]] = []  # a stack of our own: values may be deeper than Python nests
        answer = self._at_once(value)
        if answer is not None:
            return answer
        self._begin(value, waiting)
        while waiting:
            asker, encoder = waiting[-1]
            try:
                asked = next(encoder) if answer is None else encoder.send(answer)
            except StopIteration as done:
                answer = cast("bytes", done.value)
            except Exception:  # an object of somebody else's that cannot say what it is made of
                answer = _by_identity(asker)
            else:
                answer = self._at_once(asked)
                if answer is None:
                    self._begin(asked, waiting)
                continue
            waiting.pop()
            del self._path[id(asker)]
            self._known[id(asker)] = answer, asker
        assert answer is not None
        return answer

    def _at_once(self, value: object) -> bytes | None:
        answer = _of_atom(value)
        if answer is None and id(value) in self._known:
            return self._known[id(value)][0]
        if answer is None and id(value) in self._path:  # it holds itself
            return _hashed("above", str(len(self._path) - self._path[id(value)]).encode())
        return answer

    def _begin(self, value: object, waiting: list[tuple[object, _Encoder]]) -> None:
        self._path[id(value)] = len(self._path)
        waiting.append((value, self._encoder(value)))

    def _encoder(self, value: Any) -> _Encoder:
        """Ask for the digests of what a value is made of, and return its own."""
        kind = _name_of(type(value))
        if isinstance(value, np.generic) and value.dtype.kind in "biufc":
            return (yield value.item())
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return _hashed("array", _encoded(value.dtype.str), repr(value.shape).encode(), value.tobytes())
        if isinstance(value, memoryview):
            return _hashed("bytes", value.tobytes())
        if isinstance(value, Mapping):
            pairs = []
            for key, item in list(value.items()):
                pairs.append((yield key) + (yield item))
            return _hashed("mapping", *sorted(pairs))
        if isinstance(value, Set):
            return _hashed("set", *sorted((yield from _each(list(value)))))
        if isinstance(value, list) or (isinstance(value, tuple) and not hasattr(value, "_fields")):
            return _hashed("sequence", *(yield from _each(list(value))))
        if dataclasses.is_dataclass(value):
            fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
            return _hashed("object", kind, (yield fields))
        if hasattr(type(value), "__pydantic_fields__"):
            return _hashed("object", kind, (yield {**vars(value), **(value.__pydantic_extra__ or {})}))
        if isinstance(value, types.CodeType):
            return _hashed("code", value.co_code, *(yield from _each((value.co_names, value.co_consts))))
        if isinstance(value, types.FunctionType):
            kept = [cell.cell_contents for cell in value.__closure__ or ()]
            made_of = (value.__code__, kept, value.__defaults__, value.__kwdefaults__)
            return _hashed("function", _name_of(value), *(yield from _each(made_of)))
        if isinstance(value, types.MethodType):
            return _hashed("method", *(yield from _each((value.__self__, value.__func__))))
        self._num_objects += 1
        if type(value) is object or isinstance(value, Generator) or self._num_objects > _MOST_OBJECTS:
            return _by_identity(value)
        made = value.__reduce_ex__(4)  # how `copy` asks what an object is made of
        if isinstance(made, str):
            return _hashed("global", kind, _encoded(made))
        function, args, state, items, pairs_of = (*made, None, None, None)[:5]
        listed = [None if each is None else list(each) for each in (items, pairs_of)]
        return _hashed("object", kind, *(yield from _each((function, args, state, *listed))))


def _each(values: Iterable[Any]) -> Generator[Any, bytes, list[bytes]]:
    texts = []
    for value in values:
        texts.append((yield value))
    return texts


def _of_atom(value: Any) -> bytes | None:
    """Return the digest of a value that holds no others; None of one that may."""
    kind = type(value)
    if kind in _HOLDING:
        return None
    if kind is str:
        return _hashed("text", _encoded(value))
    if kind is int:
        return _hashed("number", int.to_bytes(value, value.bit_length() // 8 + 1, "little", signed=True))
    if isinstance(value, enum.Enum):
        return _hashed("enum", _name_of(type(value)), _encoded(str(value.name)))
    if isinstance(value, str):
        return _hashed("text", _encoded(value))
    if value is None or isinstance(value, bool):
        return _hashed(repr(value))
    if isinstance(value, int):
        return _hashed("number", int.to_bytes(value, value.bit_length() // 8 + 1, "little", signed=True))
    if isinstance(value, float):
        return _hashed("float", b"nan" if math.isnan(value) else struct.pack("<d", value))
    if isinstance(value, bytes | bytearray):
        return _hashed("bytes", bytes(value))
    if isinstance(value, type | types.ModuleType):
        return _hashed("name", _name_of(value))
    if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType | None):
        return _hashed("name", _name_of(value))
    return None


def _hashed(kind: str, *parts: bytes) -> bytes:
    text = kind.encode()
    for part in parts:
        text += len(part).to_bytes(8, "little") + part
    return hashlib.blake2b(text, digest_size=_SIZE).digest()


def _encoded(text: str) -> bytes:
    return str.encode(text, "utf-8", "surrogatepass")


def _name_of(value: Any) -> bytes:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    return _encoded(f"{getattr(value, '__module__', '')}.{name}")


_serials: Final = itertools.count()
_seen: Final[dict[int, tuple[Callable[[], Any], int]]] = {}  # by place in memory: what returns the object, its number
_held: Final = deque[object]()  # what nothing would tell the end of


def _by_identity(value: Any) -> bytes:
    """Return what stands for an object as long as it lives: its place in memory is another's afterwards."""
    place = id(value)
    there = _seen.get(place)
    if there is None or there[0]() is not value:
        try:
            lives: Callable[[], Any] = weakref.ref(value, functools.partial(_forget, place))
        except TypeError:
            lives = functools.partial(_itself, value)
            _held.append(value)
            if len(_held) > _MOST_HELD:
                _seen.pop(id(_held[0]), None)
                _held.popleft()
        there = _seen[place] = lives, next(_serials)
    return _hashed("itself", str(there[1]).encode())


def _itself(value: Any) -> Any:
    return value


def _forget(place: int, gone: Callable[[], Any]) -> None:
    there = _seen.get(place)
    if there is not None and there[0] is gone:
        del _seen[place]
