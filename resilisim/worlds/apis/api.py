"""A public HTTP API as one declarative file: what is asked, what comes back, and the tool that it is for agents.

A file says everything that differs between APIs, so that the code of a call is the same for all of them. Placeholders
`{name}` in the URL, the query and the body stand for parameters; a path such as `["results", 0, "latitude"]` leads to a
value of the answer ("*" to the first value of an object, "*key" to its first name).

The twin sends bodies that are generated from a template of the same shape in place of a real host. A template is the
JSON of a body in which texts hold placeholders: `<word>`, `<name>`, `<sentence>`, `<date>`, `<clock>`, `<digits 4>`,
`<hex 16>`, `<integer 1 9>`, `<number -5 5 2>` (two decimals), `<one red green>`, `<given city>` (what the request
gave). A placeholder that is a whole text gives a value of its own type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import quote, urlsplit

from annotated_types import Gt, Le, MinLen

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.inputs import read_json, read_text, validated
from resilisim.seeding import Draws
from resilisim.tool_library import ErrorSpec, Parameter, ReturnValue, Tool, ToolLibrary
from resilisim.tool_library.parameters import parameter_problem
from resilisim.tool_library.tool import (
    DEPENDENCY_ERROR,
    Differentiation,
    Name,
    TellingText,
    ValueType,
    standard_error_specs,
)

_PLACE = re.compile(r"<([a-z]+)((?: [^<> ]+)*)>")
_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "st", "tr", "gl")
_VOWELS = ("a", "e", "i", "o", "u")
_CODAS = ("", "l", "n", "r", "s")
_PLAIN = (
    *("after", "all", "before", "every", "few", "its", "many", "most", "never", "no", "old", "one", "only", "some"),
    *("than", "that", "their", "three", "under", "with", "without", "young", "finds", "keeps", "makes", "takes"),
)


def _word(draws: Draws, syllables: int) -> str:
    """Return a word that no text holds by chance: 450 syllables for each place."""
    parts = (draws.choice(_ONSETS) + draws.choice(_VOWELS) + draws.choice(_CODAS) for _ in range(syllables))
    return "".join(parts)


def _sentence(draws: Draws) -> str:
    words = [draws.choice(_PLAIN) for _ in range(draws.between(3, 6))]
    for _ in range(3):
        words.insert(draws.below(len(words) + 1), _word(draws, 3))
    return f"{' '.join(words)}.".capitalize()


def _digits(draws: Draws, count: int, base: int = 10) -> str:
    return "".join("0123456789abcdef"[draws.between(1 if place == 0 else 0, base - 1)] for place in range(count))


# Kind -> (number of arguments, None for at least one, and what makes the value).
_PLACEHOLDERS: Mapping[str, tuple[int | None, Callable[[Draws, Sequence[str]], Any]]] = {
    "word": (0, lambda draws, _: _word(draws, 3)),
    "name": (0, lambda draws, _: _word(draws, 3).capitalize()),
    "sentence": (0, lambda draws, _: _sentence(draws)),
    "date": (0, lambda draws, _: f"2026-{draws.between(1, 12):02d}-{draws.between(1, 28):02d}"),
    "clock": (0, lambda draws, _: f"{draws.below(24):02d}:{draws.below(60):02d}"),
    "digits": (1, lambda draws, given: _digits(draws, int(given[0]))),
    "hex": (1, lambda draws, given: _digits(draws, int(given[0]), 16)),
    "integer": (2, lambda draws, given: draws.between(int(given[0]), int(given[1]))),
    "number": (
        3,
        lambda draws, given: round(
            float(given[0]) + draws.uniform() * (float(given[1]) - float(given[0])), int(given[2])
        ),
    ),
    "one": (None, lambda draws, given: draws.choice(given)),
}


def generated(template: Any, draws: Draws, sent: Mapping[str, Any]) -> Any:
    """Return a body of a template's shape; `given` are the parameters of the request."""
    if isinstance(template, Mapping):
        return {str(generated(name, draws, sent)): generated(item, draws, sent) for name, item in template.items()}
    if isinstance(template, list):
        return [generated(item, draws, sent) for item in template]
    if not isinstance(template, str):
        return template
    if whole := _PLACE.fullmatch(template):
        return _value(whole, draws, sent)
    return _PLACE.sub(lambda match: str(_value(match, draws, sent)), template)


def _value(match: re.Match[str], draws: Draws, sent: Mapping[str, Any]) -> Any:
    kind, arguments = match[1], match[2].split()
    return sent.get(arguments[0], "") if kind == "given" else _PLACEHOLDERS[kind][1](draws, arguments)


def check_template(template: Any, parameters: Sequence[str]) -> None:
    """Refuse a template with placeholders that mean nothing."""
    if isinstance(template, Mapping):
        for name, item in template.items():
            check_template(name, parameters)
            check_template(item, parameters)
    elif isinstance(template, (list, tuple)):
        for item in template:
            check_template(item, parameters)
    elif isinstance(template, str):
        for match in _PLACE.finditer(template):
            _check_place(match, parameters)


def _check_place(match: re.Match[str], parameters: Sequence[str]) -> None:
    kind, arguments = match[1], match[2].split()
    if kind == "given":
        if len(arguments) != 1 or arguments[0] not in parameters:
            raise unknown_name(
                "parameter", " ".join(arguments), parameters, f"placeholder {match[0]!r:.80} of the answer"
            )
        return
    if kind not in _PLACEHOLDERS:
        raise unknown_name("kind", kind, [*_PLACEHOLDERS, "given"], f"placeholder {match[0]!r:.80} of the answer")
    count, make = _PLACEHOLDERS[kind]
    try:
        if len(arguments) != count and not (count is None and arguments):
            raise ValueError
        make(Draws(), arguments)
    except (ValueError, OverflowError):
        expected = "at least one argument" if count is None else f"{count} arguments, numbers that it can use"
        raise InvalidInputError(f"placeholder {match[0]!r:.80} of the answer: expected {expected}") from None


# What calls fail with, in the order of the ResiliBench paper's table 16, and what each means here (section E.4).
ERROR_MEANINGS: Mapping[str, str] = {
    "TIMEOUT": "The service did not answer within its time limit.",
    "OPERATION_FAILED": "The service failed, or its answer could not be read as JSON.",
    "INVALID_INPUT": "The service refused the parameters.",
    "INVALID_RESPONSE": "The answer is empty or does not have the documented form.",
    "NETWORK_ERROR": "The service could not be reached, or the connection broke.",
    "RATE_LIMIT_ERROR": "The service was asked too often.",
}
ERROR_CODES: tuple[str, ...] = tuple(ERROR_MEANINGS)
TIMEOUT_SECONDS = 30.0  # section E.4
FIRST_VALUE, FIRST_NAME = "*", "*key"
_STATUS_CODES: Mapping[int, str] = {400: "INVALID_INPUT", 422: "INVALID_INPUT", 429: "RATE_LIMIT_ERROR"}
_SLOT = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "object": dict,
    "array": list,
}
_NOWHERE: Any = object()
_LEFT_OUT: Any = object()

AnswerPath = tuple[str | int, ...]
ErrorCode = Literal[
    "TIMEOUT", "OPERATION_FAILED", "INVALID_INPUT", "INVALID_RESPONSE", "NETWORK_ERROR", "RATE_LIMIT_ERROR"
]


@dataclass(frozen=True, slots=True)
class Returned:
    """One value that a call returns, and where it stands in the answer."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    name: TellingText
    type: ValueType
    description: TellingText
    path: AnswerPath


@dataclass(frozen=True, slots=True)
class Refusal:
    """A value of an answer by which a service refuses although its status is 200; null also means a missing one."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    path: AnswerPath
    equals: Any
    code: ErrorCode
    reason: TellingText


@dataclass(frozen=True)
class PublicApi:
    """One route of a public HTTP service that needs no key, and the tool that it is.

    Attributes:
        name: Name of the tool.
        description: What it does.
        category: Category of the tool.
        operation: Operation of the tool, such as "fetcher".
        documentation: Where the service describes itself.
        url: Template of the URL.
        answer: Template of the body with which the twin answers (its form stands above).
        returns: What a call returns, with paths into the body.
        method: GET or POST.
        query: Templates of the query's values by name.
        body: Template of the JSON that is sent, null for none.
        parameters: Parameters of the tool.
        statuses: Error codes of HTTP statuses for which this service means something else than most do.
        refusals: Values of a body by which it refuses.
        timeout_seconds: Time that one call may take.
        keywords: Words that people use for what it does.
        example: Parameters of a call that works.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    name: Name
    description: TellingText
    category: TellingText
    operation: TellingText
    documentation: TellingText
    url: Annotated[str, MinLen(8)]
    answer: Any = field(hash=False)
    returns: Annotated[tuple[Returned, ...], MinLen(1)]
    method: Literal["GET", "POST"] = "GET"
    query: Mapping[str, str | int] = field(default_factory=dict, hash=False)
    body: Mapping[str, Any] | None = field(default=None, hash=False)
    parameters: tuple[Parameter, ...] = ()
    statuses: Mapping[str, ErrorCode] = field(default_factory=dict, hash=False)
    refusals: tuple[Refusal, ...] = ()
    timeout_seconds: Annotated[float, Gt(0), Le(600)] = TIMEOUT_SECONDS
    keywords: tuple[str, ...] = ()
    example: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse templates of parameters that there are not, and parameters that no schema allows."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or _SLOT.search(parts.netloc):
            raise InvalidInputError(f"url is {self.url!r:.200}: expected http:// or https://, a host and a path")
        names = [parameter.name for parameter in self.parameters]
        for text in _texts([self.url, dict(self.query), dict(self.body or {})]):
            for slot in _SLOT.findall(text):
                if slot not in names:
                    raise unknown_name("parameter", slot, names, f"the template {text!r:.80}")
        for parameter in self.parameters:
            if (problem := parameter_problem(parameter)) is not None:
                raise InvalidInputError(f"parameter {parameter.name!r}, {problem}")
        for status in self.statuses:
            if not (status.isdecimal() and 400 <= int(status) <= 599):
                raise InvalidInputError(f"statuses: {status!r:.40} is no HTTP status of an error; expected 400 to 599")
        check_template(self.answer, names)

    @cached_property
    def host(self) -> str:
        """The host, with its port where the URL names one."""
        return urlsplit(self.url).netloc

    @property
    def origin(self) -> str:
        """The address of the service: scheme and host."""
        return f"{urlsplit(self.url).scheme}://{self.host}"

    @cached_property
    def route(self) -> str:
        """What follows the host: a template."""
        return urlsplit(self.url).path or "/"

    @cached_property
    def tool(self) -> Tool:
        """The tool that it is in a library."""
        standard = standard_error_specs()
        errors = [ErrorSpec(code, text, text) for code, text in ERROR_MEANINGS.items()]
        return Tool(
            self.name,
            self.description,
            self.parameters,
            tuple(ReturnValue(value.name, value.type, value.description) for value in self.returns),
            (*errors, standard[DEPENDENCY_ERROR]),
            metadata={"category": self.category, "operation": self.operation, "host": self.host},
            differentiation=Differentiation(self.description, usage_keywords=self.keywords),
        )

    def request(self, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any], Any]:
        """Return path, query and JSON of a call; what is left out and has a default gets it."""
        values = {
            parameter.name: parameter.default for parameter in self.parameters if parameter.default is not None
        } | dict(parameters)
        path = _SLOT.sub(lambda match: quote(str(values.get(match[1], "")), safe=""), self.route)
        query = {name: filled for name, text in self.query.items() if (filled := _filled(text, values)) is not None}
        return path, query, None if self.body is None else _filled(dict(self.body), values)

    def output(self, answer: Any) -> dict[str, Any] | None:
        """Return the documented values of an answer, or None if it lacks one or has one of another type."""
        values = {value.name: value_at(answer, value.path) for value in self.returns}
        fits = all(_is_of(values[value.name], value.type) for value in self.returns)
        return values if fits else None

    def refusal(self, answer: Any) -> Refusal | None:
        """Return what an answer of status 200 refuses by, or None."""
        for refusal in self.refusals:
            status = value_at(answer, refusal.path)
            if (None if status is _LEFT_OUT else status) == refusal.equals:
                return refusal
        return None

    def error_code(self, status: int) -> str:
        """Return the error code of an HTTP status that is no success."""
        return self.statuses.get(str(status)) or _STATUS_CODES.get(status, "OPERATION_FAILED")


def value_at(answer: Any, path: AnswerPath) -> Any:
    """Return the value to which a path leads, or a value of no JSON type where an answer has none there."""
    for step in path:
        if isinstance(step, int) and isinstance(answer, list):
            answer = answer[step] if step < len(answer) else _LEFT_OUT
        elif isinstance(step, str) and isinstance(answer, dict):
            if step in (FIRST_VALUE, FIRST_NAME):
                answer = next(iter(answer.items()), (_LEFT_OUT, _LEFT_OUT))[step == FIRST_VALUE]
            else:
                answer = answer.get(step, _LEFT_OUT)
        else:
            return _NOWHERE
    return answer


def _is_of(value: Any, kind: str) -> bool:
    return isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def _filled(template: Any, values: Mapping[str, Any]) -> Any:
    """Return a template with its placeholders replaced: one that is a whole text keeps the type of its value."""
    if isinstance(template, Mapping):
        return {name: filled for name, item in template.items() if (filled := _filled(item, values)) is not None}
    if not isinstance(template, str):
        return template
    if whole := _SLOT.fullmatch(template):
        return values.get(whole[1])
    return _SLOT.sub(lambda match: str(values.get(match[1], "")), template)


def read_api(path: str | Path) -> PublicApi:
    """Read the file of one API (JSON).

    Raises:
        InvalidInputError: The file cannot be read or describes no API.

    Example:
        >>> from resilisim.worlds.apis import read_api
        >>> import tempfile
        >>> text = '''{"name": "tide_fetcher", "description": "Fetches tides.", "category": "sea",
        ...   "operation": "fetcher", "documentation": "https://tides.example", "url": "https://tides.example/now",
        ...   "answer": {"m": "<number 0 9 2>"},
        ...   "returns": [{"name": "metres", "type": "number", "description": "Water level.", "path": ["m"]}]}'''
        >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        ...     _ = file.write(text), file.flush()
        ...     read_api(file.name).tool.category
        'sea'
    """
    return validated(PublicApi, read_json(read_text(Path(path), "API file"), str(path)), str(path))


@lru_cache(maxsize=1)
def public_apis() -> tuple[PublicApi, ...]:
    """Return the 23 APIs that ship with the package, sorted by name."""
    files = sorted(
        (file for file in resources.files("resilisim.worlds.apis").joinpath("data").iterdir()),
        key=lambda file: file.name,
    )
    return tuple(
        validated(PublicApi, read_json(file.read_text(encoding="utf-8"), file.name), file.name)
        for file in files
        if file.name.endswith(".json")
    )


def find_api(name: str) -> PublicApi:
    """Return one of the APIs that ship with the package.

    Raises:
        InvalidInputError: None is called that; the message gives the nearest name.

    Example:
        >>> from resilisim.worlds.apis import find_api
        >>> find_api("joke_fetcher").category
        'text'
    """
    for api in public_apis():
        if api.name == name:
            return api
    raise unknown_name("API", name, [api.name for api in public_apis()])


@lru_cache(maxsize=1)
def api_library() -> ToolLibrary:
    """Return the APIs as a tool library, the same object at every call."""
    return ToolLibrary((api.tool for api in public_apis()), source="public APIs")
