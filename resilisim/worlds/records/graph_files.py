"""ToolQA's files of graphs, read as data: they are pickles, which as programs could run anything.

Nothing is unpickled. The opcodes are gone through one by one; they make plain values, and where a pickle would import
or call something there is an inert `_Made`, with a name and what it was made of. In the end a graph is built from the
attributes of what calls itself a graph of networkx, by exact pairs of module and name; anything else that is left in
its nodes and edges is a refusal.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from resilisim.errors import InvalidInputError, import_extra, one_line

_GRAPHS: Final[Mapping[tuple[str, str], bool]] = {  # and whether it is directed
    ("networkx.classes.graph", "Graph"): False,
    ("networkx.classes.digraph", "DiGraph"): True,
}
_SETS: Final = frozenset({("builtins", "set"), ("builtins", "frozenset"), ("__builtin__", "set")})
_DICTS: Final = frozenset({("builtins", "dict"), ("__builtin__", "dict"), ("collections", "OrderedDict")})
_REBUILDERS: Final = frozenset({("copyreg", "_reconstructor"), ("copy_reg", "_reconstructor")})
_MOST_VALUES: Final = 50_000_000  # in the nodes and edges of a graph, aliases of one value counted each time
_DEEPEST: Final = 16  # lists and objects within each other


class UnreadableGraphError(ValueError):
    """A file is no pickle of a graph or of plain values."""


class _Name(NamedTuple):
    module: str
    name: str


class _Made:
    """What a pickle would have made by a call: of what, from what, and its attributes. Nothing is called."""

    __slots__ = ("arguments", "of", "state")

    def __init__(self, of: _Name, arguments: tuple[Any, ...]) -> None:
        self.of, self.arguments = of, arguments
        self.state: Any = None


def read_graph(file: Path) -> Any:
    """Return the graph of networkx that a file holds.

    Raises:
        InvalidInputError: It holds something else, or cannot be read.
    """
    networkx = import_extra("networkx", "graphs of worlds need", "worlds")
    try:
        made = _loaded(file)
        of = made.of if isinstance(made, _Made) else None
        if of is None or of not in _GRAPHS:
            raise UnreadableGraphError(f"it holds {_told(made)}; expected a graph of networkx")
        return _graph(networkx, made.state, _GRAPHS[of])
    except (UnreadableGraphError, OSError) as error:
        raise _refused(file, error) from None


def read_names(file: Path) -> dict[Any, str]:
    """Return what a file calls each id.

    Raises:
        InvalidInputError: It holds something else, or cannot be read.
    """
    try:
        made = _loaded(file)
        if not isinstance(made, dict) or not all(isinstance(name, str) for name in made.values()):
            raise UnreadableGraphError(f"it holds {_told(made)}; expected names by their ids")
        if not all(isinstance(node, str | int) for node in made):
            raise UnreadableGraphError("an id is neither a text nor a number")
        return made
    except (UnreadableGraphError, OSError) as error:
        raise _refused(file, error) from None


def _refused(file: Path, error: Exception) -> InvalidInputError:
    return InvalidInputError(f"ToolQA file {str(file)!r} cannot be read: {one_line(error)}")


def _loaded(file: Path) -> Any:
    """Return the value of a file."""
    data = file.read_bytes()
    try:
        return _Reader(data).value()
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, struct.error, MemoryError) as error:
        if isinstance(error, UnreadableGraphError):
            raise
        raise UnreadableGraphError(f"it is no pickle of a graph ({type(error).__name__}: {error})") from None


def _told(value: Any) -> str:
    if isinstance(value, _Made):
        return f"what {value.of.module}.{value.of.name} makes"
    return f"{value.module}.{value.name}" if isinstance(value, _Name) else f"a {type(value).__name__}"


def _graph(networkx: Any, state: Any, is_directed: bool) -> Any:
    """Return a graph with the nodes and edges of its attributes."""
    nodes = state.get("_node", state.get("node")) if isinstance(state, dict) else None
    edges = state.get("_adj", state.get("adj")) if isinstance(state, dict) else None
    if not isinstance(nodes, dict) or not isinstance(edges, dict):
        raise UnreadableGraphError("its graph has no nodes and edges; expected one of networkx 2 or later")
    graph = networkx.DiGraph() if is_directed else networkx.Graph()
    copied = _Copier()
    for node, about in nodes.items():
        graph.add_node(_id(node), **_attributes(about, copied))
    for node, near in edges.items():
        if not isinstance(near, dict):
            raise UnreadableGraphError(f"an edge is {_told(near)}")
        for other, about in near.items():
            if _id(node) not in graph or _id(other) not in graph:
                raise UnreadableGraphError("an edge has an end that is no node")
            if is_directed or not graph.has_edge(node, other):  # an undirected one stands at both of its ends
                graph.add_edge(node, other, **_attributes(about, copied))
    return graph


def _id(node: Any) -> str | int:
    if not isinstance(node, str | int):
        raise UnreadableGraphError(f"a node is {_told(node)}; expected a text or a number")
    return node


def _attributes(about: Any, copied: _Copier) -> dict[str, Any]:
    plain = copied(about)
    if not isinstance(plain, dict):
        raise UnreadableGraphError(f"the attributes of a node or an edge are {_told(about)}")
    return plain


class _Copier:
    """Copies values as JSON has them; what is none is a refusal, as is more than anybody's graph holds."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def __call__(self, value: Any, depth: int = 0) -> Any:
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            raise UnreadableGraphError("its nodes and edges hold more values, or deeper ones, than graphs have")
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, dict):
            return {str(name): self(item, depth + 1) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self(item, depth + 1) for item in value]
        if isinstance(value, set | frozenset):
            return [self(item, depth + 1) for item in sorted(value, key=str)]
        return _refuse(value)


def _refuse(value: Any) -> Any:
    raise UnreadableGraphError(f"it names {_told(value)}")


_MARK: Final = object()
_MOST_DIGITS: Final = 32  # bytes of a whole number


class _Reader:
    """Goes through the opcodes of a pickle (protocols 0 to 5)."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def value(self) -> Any:
        """Return what the pickle stands for."""
        stack, memo = self._stack, self._memo
        while True:
            code = self._take(1)
            if code in _SIZED:
                layout, decode = _SIZED[code]
                stack.append(decode(self._take(self._number(layout))))
            elif code in _NUMBERS:
                stack.append(self._number(_NUMBERS[code]))
            elif code in _CONSTANTS:
                stack.append(_CONSTANTS[code])
            elif code in _EMPTY:
                stack.append(_EMPTY[code]())
            elif code in _TUPLES:
                count = _TUPLES[code]
                stack[-count:] = [tuple(stack[-count:])] if len(stack) >= count else _refuse(code)
            elif code == b"\x94":
                memo[len(memo)] = stack[-1]
            elif code in _PUTS:
                memo[self._number(_PUTS[code]) if _PUTS[code] else int(self._line())] = stack[-1]
            elif code in _GETS:
                stack.append(memo[self._number(_GETS[code]) if _GETS[code] else int(self._line())])
            elif code == b".":
                return stack.pop()
            elif code in (b"\x80", b"\x95"):  # protocol, and the length of a frame
                self._take(1 if code == b"\x80" else 8)
            else:
                self._act(code)

    def _act(self, code: bytes) -> None:
        stack = self._stack
        if code in (b"e", b"u", b"\x90", b"l", b"t", b"d", b"\x91", b"1"):
            self._gather(code, self._marked())
        elif code == b"a":
            item = stack.pop()
            self._top(list).append(item)
        elif code == b"s":
            item, name = stack.pop(), stack.pop()
            self._top(dict)[_key(name)] = item
        elif code == b"0":
            stack.pop()
        elif code == b"2":
            stack.append(stack[-1])
        elif code == b"c":
            stack.append(_Name(self._line().decode(), self._line().decode()))
        elif code == b"\x93":
            name, module = stack.pop(), stack.pop()
            stack.append(_Name(module, name) if isinstance(name, str) and isinstance(module, str) else _refuse(name))
        elif code in (b"R", b"\x81"):
            arguments, of = stack.pop(), stack.pop()
            stack.append(_made(of, arguments))
        elif code == b"b":
            state, made = stack.pop(), stack[-1]
            if not isinstance(made, _Made):
                raise UnreadableGraphError(f"attributes are given to {_told(made)}")
            made.state = state
        elif code in _LINES:
            stack.append(_LINES[code](self._line()))
        else:
            raise UnreadableGraphError(f"opcode {code!r} does not occur in graphs")

    def _gather(self, code: bytes, items: list[Any]) -> None:
        """Do what an opcode does with everything behind the last mark."""
        if code == b"e":
            self._top(list).extend(items)
        elif code == b"u":
            self._top(dict).update(_pairs(items))
        elif code == b"\x90":
            self._top(set).update(map(_key, items))
        elif code != b"1":
            kinds: Mapping[bytes, Any] = {
                b"l": list,
                b"t": tuple,
                b"d": _pairs,
                b"\x91": lambda items: set(map(_key, items)),
            }
            self._stack.append(kinds[code](items))

    def _top(self, kind: type[Any]) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise UnreadableGraphError(f"{_told(self._stack[-1])} is filled as if it were a {kind.__name__}")
        return self._stack[-1]

    def _marked(self) -> list[Any]:
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is _MARK:
                items = self._stack[place + 1 :]
                del self._stack[place:]
                return items
        raise UnreadableGraphError("a mark is missing")

    def _take(self, count: int) -> bytes:
        part = self._data[self._place : self._place + count]
        if len(part) < count or count < 0:
            raise UnreadableGraphError("it is cut off")
        self._place += count
        return part

    def _line(self) -> bytes:
        end = self._data.find(b"\n", self._place)
        if end < 0:
            raise UnreadableGraphError("it is cut off")
        line = self._data[self._place : end]
        self._place = end + 1
        return line

    def _number(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]


def _key(value: Any) -> Any:
    """Return what a dictionary or a set may hold it by: of a deep tuple even the hash would overflow the stack."""
    if value is None or isinstance(value, str | int | float):
        return value
    raise UnreadableGraphError(f"a key is {_told(value)}; expected a text or a number")


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return {_key(name): value for name, value in zip(items[::2], items[1::2], strict=True)}


def _made(of: Any, arguments: Any) -> Any:
    """Return what a call would have made: a set or an empty dictionary, else something inert."""
    if not isinstance(of, _Name) or not isinstance(arguments, tuple):
        raise UnreadableGraphError(f"{_told(of)} is called")
    if of in _SETS and len(arguments) <= 1:
        return set(map(_key, arguments[0])) if arguments and isinstance(arguments[0], list | tuple | set) else set()
    if of in _DICTS and not arguments:
        return {}
    if of in _REBUILDERS and arguments and isinstance(arguments[0], _Name):
        return _Made(arguments[0], ())  # protocols 0 and 1
    return _Made(of, arguments)


def _integer(data: bytes) -> int:
    if len(data) > _MOST_DIGITS:
        raise UnreadableGraphError(f"a whole number of {len(data):,} bytes")
    return int.from_bytes(data, "little", signed=True)


def _written(line: bytes) -> int | bool:
    if line in (b"00", b"01"):
        return line == b"01"
    if len(line) > 2 * _MOST_DIGITS:
        raise UnreadableGraphError(f"a whole number of {len(line):,} digits")
    return int(line.rstrip(b"L"))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")  # halves of characters, too


def _old_text(data: bytes) -> str:
    return data.decode("latin-1")


# Opcode -> the layout of a length, and what the bytes of that length are.
_SIZED: Final[Mapping[bytes, tuple[str, Any]]] = {
    b"X": ("<I", _text),
    b"\x8c": ("<B", _text),
    b"\x8d": ("<Q", _text),
    b"T": ("<i", _old_text),
    b"U": ("<B", _old_text),
    b"B": ("<I", _old_text),
    b"C": ("<B", _old_text),
    b"\x8e": ("<Q", _old_text),
    b"\x8a": ("<B", _integer),
    b"\x8b": ("<i", _integer),
}
_NUMBERS: Final[Mapping[bytes, str]] = {b"J": "<i", b"K": "<B", b"M": "<H", b"G": ">d"}
_CONSTANTS: Final[Mapping[bytes, Any]] = {b"N": None, b"\x88": True, b"\x89": False, b"(": _MARK, b")": ()}
_EMPTY: Final[Mapping[bytes, type[Any]]] = {b"]": list, b"}": dict, b"\x8f": set}
_TUPLES: Final[Mapping[bytes, int]] = {b"\x85": 1, b"\x86": 2, b"\x87": 3}
_PUTS: Final[Mapping[bytes, str]] = {b"q": "<B", b"r": "<I", b"p": ""}
_GETS: Final[Mapping[bytes, str]] = {b"h": "<B", b"j": "<I", b"g": ""}
_LINES: Final[Mapping[bytes, Any]] = {
    b"I": _written,
    b"L": _written,
    b"F": float,
    b"V": lambda line: line.decode("raw-unicode-escape"),
    b"S": lambda line: line.strip()[1:-1].decode("unicode-escape"),
}
