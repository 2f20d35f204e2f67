"""A tool library: an immutable, checked collection of tools; the place of a tool is its index.

From JSON everything left out is filled in, and everything wrong is refused in one line that says where.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from importlib import resources
from pathlib import Path
from typing import Any, cast

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.inputs import read_text, shown, validated
from resilisim.tool_library.names import checked_name, function_name, has_end_of_name
from resilisim.tool_library.parameters import parameter_problem
from resilisim.tool_library.tool import (
    DEFAULT_RETURNS,
    OUTPUT_OPERATIONS,
    DependencyMetadata,
    Tool,
    name_parts,
    semantic_rank,
    standard_error_specs,
    standard_errors,
)
from resilisim.tool_library.tool_formats import foreign_tools, read_document
from resilisim.tool_library.tool_schemas import check_schema, parameters_of, returns_of

LIBRARY_SCHEMA = "resilisim-tools-1"
DEFAULT_VERSION = "1.0.0"
MOST_LIBRARY_BYTES = 64 * 1024 * 1024  # of a file
CREATED_AT = "2025-01-01T00:00:00+00:00"  # a constant, so that a library has the same bytes wherever it is built

# Those that are in use, by their canonical JSON: libraries never change, and large ones take long to write and to read.
_LIBRARIES: weakref.WeakValueDictionary[str, ToolLibrary] = weakref.WeakValueDictionary()


class ToolLibrary:
    """Tools in a fixed order, with every name resolved and every dependency checked.

    Args:
        tools: At least one tool. Aliases among dependencies and equivalents are replaced by the names they stand for;
            metadata, returns and errors that are empty are filled in; levels and orders are computed.
        source: What the library is called in messages, such as its path.

    Raises:
        InvalidInputError: No tools, a name or alias used twice, an unknown dependency or equivalent, a cycle.

    Example:
        >>> from resilisim.tool_library import ToolLibrary
        >>> from resilisim.tool_library import Tool
        >>> cooker = Tool("soup_cooker", "Cooks.", dependencies=("oven_heater",))
        >>> library = ToolLibrary([Tool("oven_heater", "Heats."), cooker])
        >>> library.closure(["soup_cooker"])
        ('oven_heater', 'soup_cooker')
    """

    def __init__(self, tools: Iterable[Tool], source: str = "tool library") -> None:
        listed = tuple(tools)
        if not listed:
            raise InvalidInputError(f"{source}: holds no tools; expected at least one")
        self._name_of, self._name_in_lower_case = _resolve_names(listed, source)
        self.names: tuple[str, ...] = tuple(tool.name for tool in listed)
        self._index = {name: place for place, name in enumerate(self.names)}
        self._dependencies = tuple(self._resolved(tool, "dependencies", source) for tool in listed)
        levels = self._levels(source)
        ranks = [semantic_rank(tool.operation or name_parts(tool.name)[1]) for tool in listed]
        order = sorted(range(len(listed)), key=lambda place: (levels[place], ranks[place], place))
        execution_order = {place: rank for rank, place in enumerate(order)}
        self._tools = tuple(
            _completed(
                _with_schemas(tool, source),
                self._dependencies[place],
                self._resolved(tool, "equivalents", source),
                levels[place],
                execution_order[place],
            )
            for place, tool in enumerate(listed)
        )
        self.outputs: frozenset[str] = frozenset(
            tool.name for tool in self._tools if tool.operation in OUTPUT_OPERATIONS
        )

    @classmethod
    def from_json(cls, text: str, source: str = "tool library") -> ToolLibrary:
        """Build a library from JSON (see `tools_from_json` for the accepted forms).

        Raises:
            InvalidInputError: The text is wrong; the message names source, tool, field and the nearest valid value.
        """
        return cls(tools_from_json(text, source), source)

    def to_json(self) -> str:
        """Return the canonical JSON of the library: equal libraries give equal bytes, and it can be read back."""
        return self._text

    @cached_property
    def _text(self) -> str:
        document = {"schema": LIBRARY_SCHEMA, "tools": [tool.to_mapping() for tool in self._tools]}
        text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
        _LIBRARIES.setdefault(text, self)
        return text

    @classmethod
    def of_text(cls, text: str) -> ToolLibrary:
        """Return the library of a canonical JSON (`to_json`): one that this process has, or else it is read.

        Example:
            >>> from resilisim.tool_library import ToolLibrary, default_library
            >>> ToolLibrary.of_text(default_library().to_json()) is default_library()
            True
        """
        library = _LIBRARIES.get(text)
        if library is None:
            library = cls.from_json(text)
            library.__dict__["_text"] = text  # encoding it again would give the same
            _LIBRARIES[text] = library
        return library

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode("utf-8")).hexdigest()

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def __getitem__(self, key: str | int) -> Tool:
        return self._tools[self.index(key) if isinstance(key, str) else key]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ToolLibrary):
            return NotImplemented
        return self is other or self.content_hash == other.content_hash

    def __hash__(self) -> int:
        return hash(self.content_hash)

    def __reduce__(self) -> tuple[Any, ...]:
        # To other processes as JSON text, and the default library as itself, which others remember things about.
        if self == default_library():
            return default_library, ()
        return ToolLibrary.of_text, (self.to_json(),)

    def __repr__(self) -> str:
        return f"ToolLibrary({len(self)} tools, {self.content_hash[:12]})"

    def index(self, name: str) -> int:
        """Return the index of a tool.

        Raises:
            InvalidInputError: No tool has that name; the message gives the nearest name.
        """
        place = self._index.get(name)
        if place is None:
            meant = self.resolve(name)
            if meant is not None:
                raise InvalidInputError(f"unknown tool {name!r}: did you mean {meant!r}?")
            raise unknown_name("tool", name, self.names)
        return place

    def resolve(self, name: str) -> str | None:
        """Return the name of the tool that a name or alias means, or None.

        Letter case is ignored where only one tool can be meant. A function name of a tool (`function_name`) means it.
        """
        return self._name_of.get(name) or self._name_in_lower_case.get(name.lower()) or self._name_of_function.get(name)

    def function_name(self, name: str) -> str:
        """Return the name of a tool where functions have names: ASCII letters, digits, '_' and '-', at most 64."""
        return self._function_names.get(name, name)

    @cached_property
    def odd_names(self) -> tuple[str, ...]:
        """Names and aliases with a character that ends a name in a text, such as a blank or a quote; longest first."""
        return tuple(sorted(filter(has_end_of_name, self._name_of), key=len, reverse=True))

    @cached_property
    def _function_names(self) -> dict[str, str]:
        """The tools that have another name as functions; such a name is no other tool's."""
        forms: dict[str, str] = {}
        for name in self.names:
            form = function_name(name, [*self._name_of, *forms.values()])
            if form != name:
                forms[name] = form
        return forms

    @cached_property
    def _name_of_function(self) -> dict[str, str]:
        return {form: name for name, form in self._function_names.items()}

    def dependencies(self, name: str) -> tuple[str, ...]:
        """Return the direct dependencies of a tool, in the order in which the library lists them."""
        return self._dependencies[self.index(name)]

    def closure(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the named tools and everything that they depend on, directly or not, in index order."""
        waiting = list(names)
        indices: set[int] = set()
        while waiting:
            place = self.index(waiting.pop())
            if place not in indices:
                indices.add(place)
                waiting.extend(self._dependencies[place])
        return tuple(self.names[place] for place in sorted(indices))

    def _resolved(self, tool: Tool, field: str, source: str) -> tuple[str, ...]:
        """Return the tools that a field of a tool names, by their own names."""
        resolved: list[str] = []
        where = f"{source}: tool {tool.name!r}, field {field!r}"
        for reference in getattr(tool, field):
            name = self._name_of.get(reference) or self._name_in_lower_case.get(reference.lower())
            if name is None:
                raise unknown_name("tool", reference, self.names, where)
            if name in resolved:
                raise InvalidInputError(f"{where}: {reference!r} stands there twice; expected each tool once")
            if field == "equivalents" and name == tool.name:
                raise InvalidInputError(f"{where}: {reference!r} is the tool itself; expected another tool")
            resolved.append(name)
        return tuple(resolved)

    def _levels(self, source: str) -> list[int]:
        """Return the level of each tool: of tools whose dependencies are done all at once, until none is left."""
        sorter = TopologicalSorter(dict(zip(self.names, self._dependencies, strict=True)))
        try:
            sorter.prepare()
        except CycleError as error:
            cycle = error.args[1][::-1]
            raise InvalidInputError(
                f"{source}: tool {cycle[0]!r}, field 'dependencies': dependency cycle {' -> '.join(cycle)}; "
                "expected dependencies without a cycle"
            ) from None
        levels: dict[str, int] = {}
        for level in itertools.count():
            ready = sorter.get_ready()
            if not ready:
                break
            levels |= dict.fromkeys(ready, level)
            sorter.done(*ready)
        return [levels[name] for name in self.names]


def _resolve_names(tools: tuple[Tool, ...], source: str) -> tuple[dict[str, str], dict[str, str]]:
    """Map every name and alias to the name of its tool; and those in lower case that can mean one tool only."""
    owners: dict[str, str] = {}
    for tool in tools:
        where = f"{source}: tool {tool.name!r:.80}, field"
        for field, name in (("name", tool.name), *(("aliases", alias) for alias in tool.aliases)):
            try:
                checked_name(name)
            except InvalidInputError as error:
                raise InvalidInputError(f"{where} {field!r}: {error}") from None
        if tool.name in owners:
            raise InvalidInputError(f"{where} 'name': duplicate of another tool; expected each name once")
        owners[tool.name] = tool.name
    for tool in tools:
        for alias in tool.aliases:
            taken = owners.setdefault(alias, tool.name)
            if taken != tool.name or tool.aliases.count(alias) > 1 or alias == tool.name:
                raise InvalidInputError(
                    f"{source}: tool {tool.name!r}, field 'aliases': {alias!r} already stands for tool {taken!r}; "
                    "expected a name that is not in use"
                )
    lowered: dict[str, str] = {}
    ambiguous: set[str] = set()
    for name, owner in owners.items():
        if lowered.setdefault(name.lower(), owner) != owner:
            ambiguous.add(name.lower())
    return owners, {name: owner for name, owner in lowered.items() if name not in ambiguous}


def _with_schemas(tool: Tool, source: str) -> Tool:
    """Return the tool with the parameters and the values that its schemas describe."""
    if tool.input_schema is None and tool.output_schema is None:
        return tool
    made: dict[str, Any] = {}
    for field, made_of_it, read in (
        ("input_schema", "parameters", parameters_of),
        ("output_schema", "returns", returns_of),
    ):
        schema, stated = getattr(tool, field), getattr(tool, made_of_it)
        if schema is None:
            continue
        where = f"{source}: tool {tool.name!r:.80}, field"
        check_schema(schema, f"{where} {field!r}")
        read_from_it = cast("Callable[[Mapping[str, Any]], tuple[Any, ...]]", read)(schema)
        if stated and stated not in (read_from_it, DEFAULT_RETURNS):
            raise InvalidInputError(f"{where} {made_of_it!r}: says otherwise than {field!r}; expected one of the two")
        made[made_of_it] = read_from_it
    return dataclasses.replace(tool, **made)


def _completed(
    tool: Tool, dependencies: tuple[str, ...], equivalents: tuple[str, ...], level: int, execution_order: int
) -> Tool:
    """Return the tool with everything filled in that follows from its name and its place in the library."""
    category, operation = name_parts(tool.name)
    metadata = {
        "category": category,
        "operation": operation,
        "version": DEFAULT_VERSION,
        "created_at": CREATED_AT,
        **tool.metadata,
        "dependency_level": level,
        "execution_order": execution_order,
    }
    category = str(metadata["category"])
    return dataclasses.replace(
        tool,
        returns=tool.returns or DEFAULT_RETURNS,
        errors=tool.errors or standard_errors(category),
        dependencies=dependencies,
        dependency_metadata=DependencyMetadata(level, execution_order, category),
        metadata=metadata,
        canonical_name=tool.name,
        original_description=tool.original_description or tool.description,
        equivalents=equivalents,
    )


def tools_from_json(text: str, source: str) -> tuple[Tool, ...]:
    """Parse the tools of a library: `{"tools": [tool, ...]}`, a bare array of tools, or a mapping of names to tools.

    Documents of others are read as well (`tool_formats`).

    Raises:
        InvalidInputError: Something is wrong; the message names source, tool, field and the nearest valid value.
    """
    value = read_document(text, source)
    if not (isinstance(value, dict) and value.get("schema") == LIBRARY_SCHEMA):
        foreign = foreign_tools(value, source)
        if foreign is not None:
            return tuple(_tool(item, source, where.removeprefix(f"{source}: ")) for item, where in foreign)
    if isinstance(value, dict) and _is_wrapper(value):
        for key in value:
            if key not in ("schema", "tools"):
                raise unknown_name("key", key, ("schema", "tools"), f"{source}, top level")
        if value.get("schema", LIBRARY_SCHEMA) != LIBRARY_SCHEMA:
            message = f"{source}: schema {shown(value['schema'])} is not supported; expected {LIBRARY_SCHEMA!r}"
            raise InvalidInputError(message)
        value = value["tools"]
    if isinstance(value, list):
        return tuple(_tool(item, source, f"item {place + 1}") for place, item in enumerate(value))
    if isinstance(value, dict):
        return tuple(_named_tool(name, item, source) for name, item in value.items())
    raise InvalidInputError(f"{source}: expected an array of tools or an object with key 'tools', got {shown(value)}")


def _is_wrapper(value: Mapping[str, Any]) -> bool:
    """Tell `{"tools": ...}` from a mapping of names to tools in which one tool is called "tools"."""
    tools = value.get("tools")
    return "tools" in value and not (isinstance(tools, dict) and isinstance(tools.get("description"), str))


def _named_tool(name: str, value: Any, source: str) -> Tool:
    if isinstance(value, dict):
        if value.get("name", name) != name:
            text = shown(value["name"])
            message = f"{source}: tool {name!r}, field 'name': {text} differs from its key; expected {name!r}"
            raise InvalidInputError(message)
        value = {"name": name, **value}
    return _tool(value, source, f"tool {name!r}")


def _tool(value: Any, source: str, place: str) -> Tool:
    """Build one tool from JSON values; only `name` and `description` are required."""
    name = value.get("name") if isinstance(value, dict) else None
    where = f"{source}: tool {name!r:.80}" if isinstance(name, str) else f"{source}: {place}"
    tool = validated(Tool, _with_what_follows(value), where)
    if tool.canonical_name not in ("", tool.name):
        problem = f"{shown(tool.canonical_name)} is not the tool's own name"
        raise InvalidInputError(f"{where}, field 'canonical_name': {problem}; expected {tool.name!r}")
    if tool.input_schema is not None and tool.parameters:
        raise InvalidInputError(f"{where}: has 'parameters' and 'input_schema'; expected one of the two")
    for number, parameter in enumerate(tool.parameters, start=1):
        wrong = parameter_problem(parameter)
        if wrong is not None:
            raise InvalidInputError(f"{where}, field 'parameters', item {number} ({parameter.name!r}), {wrong}")
    return tool


def _with_what_follows(value: Any) -> Any:
    """Return a tool's JSON values with what follows from others of them; values of the wrong form stay as they are."""
    if not isinstance(value, dict):
        return value
    more: dict[str, Any] = {}
    if isinstance(value.get("parameters"), list):
        more["parameters"] = [
            {"required": item.get("default") is None, **item} if isinstance(item, dict) else item
            for item in value["parameters"]
        ]
    if isinstance(value.get("errors"), list):
        more["errors"] = [_whole_error(item) for item in value["errors"]]
    return {**value, **more}


def _whole_error(value: Any) -> Any:
    """Return an error's JSON values with the texts of a well-known code, or of its own, where they are left out."""
    if not isinstance(value, dict):
        return value
    known = standard_error_specs().get(str(value.get("code")))
    description = value.get("description", known.description if known else "")
    slots = {"slots": known.slots} if known and "template" not in value and "slots" not in value else {}
    template = (known.template if known else "") or description or value.get("code")
    return {"template": template, **slots, **value, "description": description}


def load_library(path: str | Path) -> ToolLibrary:
    """Load a library from a file (UTF-8).

    Args:
        path: A library file (`ToolLibrary.to_json`), or what others write: the list of an MCP server (tools/list),
            functions of OpenAI or Anthropic, functions or questions of BFCL (JSON Lines), an OpenAPI 3 document (JSON
            or YAML). Names and schemas are taken as they come.

    Raises:
        InvalidInputError: The file cannot be read or does not hold a valid library; one line says where and why.

    Example:
        >>> from resilisim.tool_library import load_library
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        ...     file.write('[{"name": "oven_heater", "description": "Heats the oven."}]') > 0 and file.flush()
        ...     load_library(file.name).names
        ('oven_heater',)
    """
    file = Path(path)
    size = 0
    with contextlib.suppress(OSError, ValueError):  # which reading it will tell
        size = file.stat().st_size
    if size > MOST_LIBRARY_BYTES:
        raise InvalidInputError(
            f"tool library {str(path)!r} has {size:,} bytes; expected at most {MOST_LIBRARY_BYTES:,}"
        )
    return ToolLibrary.from_json(read_text(file, "tool library"), source=str(path))


@lru_cache(maxsize=1)
def default_library() -> ToolLibrary:
    """Return the 30 tools that ship with the package; the same object at every call.

    Example:
        >>> default_library().dependencies("network_poster")
        ('data_processing_aggregator',)
    """
    text = resources.files("resilisim.tool_library").joinpath("data/default.json").read_text(encoding="utf-8")
    return ToolLibrary.from_json(text, source="default tool library")
