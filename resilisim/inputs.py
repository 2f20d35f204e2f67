"""Whatever is read from outside: files, JSON, and values against pydantic models; refusals are one line.

A refusal gives the value, what was expected, where it stands, and the nearest valid name:

    tools.json: item 1, field 'parameters', item 2: unknown field 'typ': did you mean 'type'?
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import operator
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, cast

from resilisim.errors import InvalidInputError, nearest_name
from resilisim.redaction import json_without_steering, without_steering

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")

MAX_NESTING = 64  # objects and arrays within each other; far below what recursion over them can bear
MAX_DIGITS = 300  # of a whole number; about as far as floats reach
MOST_LISTED = 12  # names that are all told where none resembles what was given
_TOO_LARGE = 10**MAX_DIGITS

_KINDS: Mapping[str, tuple[str, str]] = {
    "string": ("a string", "strings"),
    "integer": ("a whole number", "whole numbers"),
    "number": ("a number", "numbers"),
    "boolean": ("true or false", "truth values"),
    "object": ("an object", "objects"),
    "array": ("an array", "arrays"),
    "null": ("null", "nulls"),
}
_BOUNDS: Mapping[str, str] = {
    "exclusiveMinimum": "above {:,}",
    "minimum": "at least {:,}",
    "exclusiveMaximum": "below {:,}",
    "maximum": "at most {:,}",
    "minLength": "at least {:,} characters",
    "maxLength": "at most {:,} characters",
    "minItems": "at least {:,} items",
    "maxItems": "at most {:,} items",
}
_HALF_CHARACTER = re.compile(r"\\ud[89a-f]")  # may be a whole one, too
_UNION_MEMBER = re.compile(r"[\w-]+\[.*\]")  # as pydantic calls one in a path: literal['category','all']
_UNKNOWN_FIELD = ("extra_forbidden", "unexpected_keyword_argument")


def shown(value: Any, length: int = 60) -> str:
    """Return a value as short JSON on one line, for messages."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (RecursionError, TypeError, ValueError):
        text = f"<{type(value).__name__}>"
    text = json_without_steering(text.encode("utf-8", "backslashreplace").decode("utf-8"))
    return text if len(text) <= length else text[: length - 3] + "..."


def inside(folder: Path | str, path: Path, what: str, error: Callable[[str], Exception] = InvalidInputError) -> Path:
    """Return a path in a folder that a user brings; a link out of it and what is not a file are refused, called `what`.

    The folder itself may be reached by links: its owner has named it. What a cache of Hugging Face links from a
    snapshot to its blobs belongs to the snapshot.
    """
    root = Path(folder).resolve()
    roots = [root, *([root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [])]
    try:
        target = path.resolve()
        is_other = target.exists() and not target.is_file()  # a pipe would be waited for without end
    except (OSError, RuntimeError) as problem:  # links in a circle
        raise error(f"{what} {str(path)!r} cannot be read: {problem}") from None
    if not any(target.is_relative_to(place) for place in roots):
        raise error(f"{what} {str(path)!r} is a link out of its folder: expected a file of its own")
    if is_other:
        raise error(f"{what} {str(path)!r} is not an ordinary file: expected one")
    return path


def read_text(path: Path, what: str, expected: str = "the path of a JSON file", within: Path | None = None) -> str:
    """Return the text of a file that a user names, without a byte order mark; refusals call it `what`.

    Of a folder that somebody brings (`within`), links that lead out of it are not followed.
    """
    place = f"{what} {str(path)!r}"
    if within is not None:
        inside(within, path, what)
    try:
        return path.read_bytes().decode("utf-8-sig")  # line ends as they are
    except FileNotFoundError:
        near = nearest_path(path)
        hint = f"did you mean {str(near)!r}?" if near else f"expected {expected}"
        raise InvalidInputError(f"{place} does not exist; {hint}") from None
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{place} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise InvalidInputError(f"{place} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:  # a path that no file can have
        raise InvalidInputError(f"{place} cannot be read: {error}") from None


def nearest_path(path: Path, or_folder: bool = False) -> Path | None:
    """Return the file (or folder, where one would do) beside a path that resembles it most, or None.

    A folder can hold anything, so names must be more alike than in a list that somebody has made. Endings do not count,
    since many files have the same, but choose among files that differ in nothing else.
    """
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    files = [each for each in beside if or_folder or each.is_file()]
    stem = nearest_name(path.stem, sorted({file.stem for file in files}), least=0.7)
    names = sorted(file.name for file in files if file.stem == stem)
    return path.parent / (nearest_name(path.name, names) or names[0]) if names else None


def json_problem(value: Any, *, half_characters: bool = False) -> str | None:
    """Say why JSON values cannot be used although each has a form in JSON, or return None.

    `half_characters` takes halves of surrogate pairs, which models write and no file can hold.
    """
    waiting: list[tuple[Any, int]] = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, str):
            try:
                item.encode("utf-8", "surrogatepass" if half_characters else "strict")
            except UnicodeEncodeError as error:
                return f"{shown(item, 40)} is not Unicode text ({error.reason})"
        elif isinstance(item, (dict, list, tuple, Mapping)):
            if depth > MAX_NESTING:
                return f"nested too deeply; expected at most {MAX_NESTING} levels"
            parts = [*item, *item.values()] if isinstance(item, Mapping) else item
            waiting.extend((part, depth + 1) for part in parts)
        elif isinstance(item, int) and abs(item) >= _TOO_LARGE:
            return f"a whole number of too many digits; expected at most {MAX_DIGITS} digits"
        elif isinstance(item, float) and not math.isfinite(item):
            return f"{item} is not a finite number; expected one"
    return None


def finite_number(number: str) -> float:
    """Return a number that JSON has: NaN, the infinities and what is out of range raise ValueError."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is {'not finite' if number[-1].isdigit() else 'no JSON value'}")
    return value


def read_json(text: str, source: str, *, half_characters: bool = False) -> Any:
    """Parse JSON, refusing doubled keys, numbers that JSON does not have, and what `json_problem` finds."""

    def without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            doubled = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
            raise InvalidInputError(f"{source}: key {doubled!r} stands twice in one JSON object; names must be unique")
        return result

    def finite(number: str) -> float:
        try:
            return finite_number(number)
        except ValueError:
            raise InvalidInputError(f"{source}: {number} is not a finite number; expected one") from None

    def whole(number: str) -> int:
        if len(number) > MAX_DIGITS + 1:  # a sign may stand before them
            digits = f"a whole number of {len(number)} digits; expected at most {MAX_DIGITS}"
            raise InvalidInputError(f"{source}: JSON cannot be used: {digits}")
        return int(number)

    try:
        value = json.loads(
            text, object_pairs_hook=without_doubles, parse_constant=finite, parse_float=finite, parse_int=whole
        )
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""
        raise InvalidInputError(f"{source}: not valid JSON at {line}column {error.colno}: {error.msg}") from None
    except RecursionError:
        problem: str | None = f"nested too deeply; expected at most {MAX_NESTING} levels"
    else:
        problem = json_problem(value, half_characters=half_characters)
    if problem is not None:
        raise InvalidInputError(f"{source}: JSON cannot be used: {problem}")
    return value


def read_json_lines(text: str, source: str) -> Iterator[tuple[Any, str]]:
    """Yield the value of each line of JSON Lines, and where it stands; empty lines are passed over.

    Only a line feed ends a line: the other ends of lines that Unicode knows (U+2028, say) may stand within a text.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{source}, line {number}"
            yield read_json(line, where), where


def validated(
    kind: type[T], value: Any, where: str, *, strict: bool = True, error: Callable[[str], Exception] = InvalidInputError
) -> T:
    """Return a value as the type that it should have: a pydantic model, a dataclass, or anything pydantic knows.

    Dataclasses say what is to be refused in `__pydantic_config__`; a `ValueError` of a validator or of `__post_init__`
    becomes the refusal. `where` is what the value is called, `error` makes the refusal. Strict takes the types that
    JSON has for values; if not, pydantic's usual conversions are made, for values that were typed in.
    """
    from pydantic import ValidationError

    adapter: TypeAdapter[T] = _adapter(cast("Any", kind))
    try:
        if not strict:
            return adapter.validate_python(value)
        text = json.dumps(value, default=_plain, allow_nan=False)
        if _HALF_CHARACTER.search(text) and json_problem(value) is not None:
            return adapter.validate_python(value, strict=True)  # fit for `TypedDict`: pydantic cannot read it as JSON
        # As JSON, because pydantic is strict about containers too where it is given Python values.
        return adapter.validate_json(text, strict=True)
    except ValidationError as refusal:
        raise error(_one_line(refusal.errors(include_url=False), adapter, where)) from None
    except (TypeError, ValueError, RecursionError) as problem:
        reason = "nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        raise error(f"{where}: not JSON: {reason}") from None


def numbers_by_name(kind: type[T], text: str, where: str) -> T:
    """Return a text such as "size=120,seed=7" as the dataclass or model whose fields it gives."""
    seen: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if not value.strip().isdecimal():
            raise InvalidInputError(f"{where}: got {part!r:.60}; expected a field and a whole number, as in seed=7")
        seen[name.strip()] = int(value)
    return validated(kind, seen, where)


@functools.lru_cache(maxsize=256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _plain(value: Any) -> Any:
    """Return what JSON has for a mapping or a whole number of another class (NumPy's, say); all else is refused."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, SupportsIndex):
        return operator.index(value)
    raise TypeError(f"{shown(value)} has no form in JSON")


def _one_line(errors: list[ErrorDetails], adapter: TypeAdapter[Any], where: str) -> str:
    """Say the first error; an unknown field first of all, because it may be why another is missing."""
    first = max(errors, key=lambda one: (one["type"] in _UNKNOWN_FIELD, len(one["loc"])))
    schema = _json_schema(adapter)
    here, place = _followed(schema, first["loc"])
    if first["type"] in _UNKNOWN_FIELD:
        holder, place = _followed(schema, first["loc"][:-1])
        field = str(first["loc"][-1])
        members = [holder, *(_resolved(member, schema) for member in holder.get("anyOf", ()))]
        known = [name for member in members for name in member.get("properties", ())]
        near = nearest_name(field, known)
        hint = f"did you mean {near!r}?" if near else "expected one of " + ", ".join(known)
        return f"{_joined(where, place)}: unknown field {field!r:.100}: {hint}"
    place_text = _joined(where, place)
    if first["type"] in ("value_error", "assertion_error"):
        return f"{place_text}: {first['ctx']['error']}"
    expected = expectation(here, schema) or first["msg"][:1].lower() + first["msg"][1:]
    if first["type"] == "missing":
        return f"{place_text}: is missing; expected {expected}"
    if first["type"] == "string_too_long":
        return f"{place_text}: got {len(first['input']):,} characters; expected {expected}"
    members = [here, *(_resolved(member, schema) for member in here.get("anyOf", ()))]
    names = [name for member in members for name in member.get("enum", ()) if isinstance(name, str)]
    near = nearest_name(first["input"], names) if isinstance(first["input"], str) else None
    if near is not None:
        return f"{place_text}: got {shown(first['input'])}; did you mean {near!r}?"
    return f"{place_text}: got {shown(first['input'])}; expected {expected}"


def _joined(where: str, place: list[str]) -> str:
    return ", ".join(part for part in (where, *place) if part)


def _json_schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    from pydantic.errors import PydanticInvalidForJsonSchema

    try:
        return adapter.json_schema(mode="validation")
    except PydanticInvalidForJsonSchema:  # a type that JSON does not have; pydantic's own words must do
        return {}


def _followed(schema: Mapping[str, Any], path: tuple[int | str, ...]) -> tuple[Mapping[str, Any], list[str]]:
    """Return the schema at a path, and the path in words; names of a union's members are no part of it."""
    here: Mapping[str, Any] | None = schema
    place: list[str] = []
    for step in path:
        in_union = isinstance(step, str) and here is not None and "anyOf" in _resolved(here, schema)
        inner = None if in_union and _UNION_MEMBER.fullmatch(str(step)) else _inner(here or {}, step, schema)
        if inner is None and in_union:
            continue
        here = inner
        place.append(f"item {step + 1}" if isinstance(step, int) else f"field {step!r}")
    return _resolved(here or {}, schema), place


def _inner(here: Mapping[str, Any], step: int | str, schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    here = _resolved(here, schema)
    for member in here.get("anyOf", ()):
        inner = _inner(member, step, schema)
        if inner is not None:
            return inner
    if isinstance(step, int):
        prefix = here.get("prefixItems", ())
        member_schema = prefix[step] if step < len(prefix) else here.get("items")
    else:
        member_schema = here.get("properties", {}).get(step, here.get("additionalProperties"))
    if member_schema is True:
        return {}
    return member_schema if isinstance(member_schema, Mapping) else None


def _resolved(here: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in here:
        here = schema["$defs"][here["$ref"].rpartition("/")[2]]
    return here


def expectation(here: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return in words what a part of a JSON Schema asks for; empty if it asks for nothing in particular."""
    here = _resolved(here, schema)
    if "anyOf" in here:
        return " or ".join(filter(None, (expectation(member, schema) for member in here["anyOf"])))
    names = [here["const"]] if "const" in here else here.get("enum")
    if names is not None:
        listed = ", ".join(str(name) for name in names[:MOST_LISTED])
        return listed if len(names) == 1 else f"one of {listed}"
    kind = str(here.get("type"))
    if kind not in _KINDS:
        return ""
    text = _KINDS[kind][0]
    if 1 in (here.get("minLength"), here.get("minItems")):
        here = {key: bound for key, bound in here.items() if key not in ("minLength", "minItems")}
        text = f"a non-empty {kind}"
    items = str(_resolved(here.get("items", {}), schema).get("type"))
    if items in _KINDS:
        text += f" of {_KINDS[items][1]}"
    if "properties" in here:
        text += f" with {', '.join(here['properties'])}"
    bounds = [words.format(_shortest(here[key])) for key, words in _BOUNDS.items() if key in here]
    if bounds:
        # "a number above 0 and at most 1", "a whole number, at least 1", "a string of at most 9 characters"
        link = " of " if kind in ("string", "array") else ", " if bounds[0].startswith("at") else " "
        text += link + " and ".join(bounds)
    # The description of an object is its class's docstring.
    return f"{text} ({here['description']})" if "description" in here and kind != "object" else text


def _shortest(bound: float) -> float:
    # typing keeps one of two equal annotations: where Gt(0.0) came first, Gt(0) is a bound of 0.0, too.
    return int(bound) if float(bound).is_integer() else bound


def import_attribute(reference: str, where: str) -> Any:
    """Return what `module:attribute` names; modules are found as usual, and also in the working directory."""
    module_name, _, path = reference.partition(":")
    if not module_name.strip() or not path.strip():
        raise InvalidInputError(f"{where}: expected module:attribute, such as my_package.agents:MyPolicy")
    look_into_working_directory()
    try:
        value: Any = importlib.import_module(module_name.strip())
    except (Exception, SystemExit) as error:  # a script without a main guard may leave the process
        raise InvalidInputError(f"{where}: cannot import {module_name.strip()}: {error_line(error)}") from error
    for part in path.strip().split("."):
        if not hasattr(value, part):
            near = nearest_name(part, [name for name in dir(value) if not name.startswith("_")])
            hint = f": did you mean {near!r}?" if near is not None else ""
            raise InvalidInputError(f"{where}: {module_name} has no attribute {part!r}{hint}")
        value = getattr(value, part)
    return value


def look_into_working_directory() -> None:
    """Let modules be found in the working directory, too."""
    # A console script does not, and a user's first policy usually lies there.
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)


def error_line(error: BaseException) -> str:
    """Return an error with its class on one line."""
    return without_steering(f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": "))
