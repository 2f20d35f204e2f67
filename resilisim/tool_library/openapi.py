"""Operations of an OpenAPI document (3.0, 3.1, 3.2) as tools.

The name is the operationId as it comes, or method and path. Arguments are those of path, query, headers and cookies,
and the fields of a JSON body beside them; a body of another form is the argument `body`. Definitions that a schema
refers to come with it, so that documents whose schemas refer to each other in circles stay as small as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from resilisim.errors import InvalidInputError, one_line
from resilisim.inputs import shown
from resilisim.tool_library.tool_schemas import RESULT_FIELD, in_one_dialect, parts_of, properties_of, referred_to

HTTP_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace", "query")
_MOST_OF_ARGUMENTS: Final = 500  # schemas in what an operation takes; what lies deeper may be anything
_MOST_OF_ANSWERS: Final = 200  # likewise in what it answers
_OF_THE_CONNECTION: Final = ("accept", "content-type", "authorization")  # headers that OpenAPI leaves out
_JSON: Final = ("application/json", "text/json", "*/*", "application/x-www-form-urlencoded", "multipart/form-data")
_PLACES: Final = ("path", "query", "header", "cookie")


def openapi_tools(document: Mapping[str, Any], source: str) -> list[tuple[Any, str]]:
    """Return the operations of a document as tools in the form of library files, and where each stands.

    Raises:
        InvalidInputError: It is of another version, has no operations, or something in it is not as OpenAPI wants it.
    """
    if "swagger" in document:
        raise InvalidInputError(
            f"{source}: is Swagger {shown(document['swagger'])}; expected OpenAPI 3 (swagger2openapi and "
            "converter.swagger.io convert it)"
        )
    if not str(document["openapi"]).startswith("3."):
        raise InvalidInputError(f"{source}: openapi is {shown(document['openapi'])}; expected 3.0, 3.1 or 3.2")
    paths = document.get("paths")
    if not isinstance(paths, dict) or not paths:
        raise InvalidInputError(f"{source}: paths is {shown(paths)}; expected at least one path with an operation")
    tools: list[tuple[Any, str]] = []
    for path, item in paths.items():
        where = f"{source}: path {path!r:.100}"
        item = _followed(document, item, where)
        for method in HTTP_METHODS:
            if method in item:
                place = f"{where}, {method}"
                operation = _followed(document, item[method], place)
                tools.append((_Operation(document, str(path), method, item, operation, place).tool(), place))
    if not tools:
        raise InvalidInputError(
            f"{source}: none of its paths has an operation; expected one of {', '.join(HTTP_METHODS)}"
        )
    return tools


def _followed(document: Mapping[str, Any], value: Any, where: str) -> dict[str, Any]:
    """Return an object of a document, or the one that it refers to."""
    seen: set[str] = set()
    while isinstance(value, dict) and isinstance(value.get("$ref"), str):
        reference = value["$ref"]
        if reference in seen:
            raise InvalidInputError(f"{where}: $ref {shown(reference, 100)} refers to itself; expected an object")
        seen.add(reference)
        value = referred_to(document, reference, where)
    if not isinstance(value, dict):
        raise InvalidInputError(f"{where}: got {shown(value)}; expected an object")
    return value


class _Operation:
    """One operation, and the definitions that its schemas refer to."""

    def __init__(
        self,
        document: Mapping[str, Any],
        path: str,
        method: str,
        item: Mapping[str, Any],
        operation: Mapping[str, Any],
        where: str,
    ) -> None:
        self._document = document
        self._path, self._method = path, method
        self._item, self._operation = item, operation
        self._where = where

    def tool(self) -> dict[str, Any]:
        """Return the operation in the form of library files."""
        operation = self._operation
        named = operation.get("operationId")
        name = named.strip() if isinstance(named, str) and named.strip() else f"{self._method.upper()} {self._path}"
        said = [operation.get("summary", self._item.get("summary")), operation.get("description")]
        told = dict.fromkeys(text.strip() for text in said if isinstance(text, str) and text.strip())
        words = "\n\n".join(told) or f"The operation {name}."
        form: dict[str, Any] = {"name": name, "description": words, "input_schema": self._inputs()}
        answer = self._answers()
        if answer is not None:
            form["output_schema"] = answer
        form["annotations"] = {
            "readOnlyHint": self._method in ("get", "head", "options", "trace", "query"),
            **({"idempotentHint": True} if self._method in ("put", "delete") else {}),
            **({"idempotentHint": False} if self._method in ("post", "patch") else {}),
            **({"destructiveHint": True} if self._method == "delete" else {}),
        }
        tags = operation.get("tags")
        if isinstance(tags, list) and tags and isinstance(tags[0], str) and tags[0].strip():
            form["metadata"] = {"category": one_line(tags[0], 100)}
        return form

    def _inputs(self) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required: list[str] = []
        for place, parameter in self._parameters():
            name = parameter["name"] if parameter["name"] not in properties else f"{parameter['name']}_{place}"
            properties[name] = _with_words(self._schema_of(parameter, self._where), parameter.get("description"))
            if parameter.get("required") is True or place == "path":
                required.append(name)
        body = self._operation.get("requestBody")
        if body is not None:
            whole = _followed(self._document, body, f"{self._where}, requestBody")
            schema = self._schema_of(whole, f"{self._where}, requestBody")
            fields, needed = self._fields(schema)
            is_needed = whole.get("required") is True
            if fields and not fields.keys() & properties.keys():
                properties |= fields
                required += needed if is_needed else []
            else:
                name = "body" if "body" not in properties else "request body"
                properties[name] = _with_words(schema, whole.get("description"))
                required += [name] if is_needed else []
        schema = {"type": "object", "properties": properties}
        return self._bundled({**schema, "required": required} if required else schema, _MOST_OF_ARGUMENTS)

    def _parameters(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the parameters of the operation and those of its path that it does not replace."""
        found: dict[tuple[str, str], Mapping[str, Any]] = {}
        for holder in (self._item, self._operation):
            listed = holder.get("parameters", [])
            if not isinstance(listed, list):
                raise InvalidInputError(f"{self._where}: parameters is {shown(listed)}; expected a list")
            for number, each in enumerate(listed, start=1):
                where = f"{self._where}, parameter {number}"
                parameter = _followed(self._document, each, where)
                name, place = parameter.get("name"), parameter.get("in")
                if not isinstance(name, str) or not name.strip():
                    raise InvalidInputError(f"{where}: name is {shown(name)}; expected a text")
                if place not in (*_PLACES, "querystring"):
                    raise InvalidInputError(
                        f"{where} ({name!r:.60}): in is {shown(place)}; expected {', '.join(_PLACES)}"
                    )
                if place != "header" or name.lower() not in _OF_THE_CONNECTION:
                    found[str(place), name] = parameter
        return [(place, parameter) for (place, _), parameter in found.items()]

    def _schema_of(self, holder: Mapping[str, Any], where: str) -> Any:
        """Return the schema of a parameter, a body or an answer, perhaps below a media type; {} if there is none."""
        if "schema" in holder:
            return holder["schema"]
        content = holder.get("content")
        if not isinstance(content, dict) or not content:
            return {}
        kinds = [kind for kind in _JSON if kind in content]
        kinds += [kind for kind in content if kind.split(";")[0].endswith(("json", "+json"))]
        media = _followed(self._document, content[(kinds or list(content))[0]], where)
        return media.get("schema", {}) if kinds else {"type": "string"}

    def _fields(self, schema: Any) -> tuple[dict[str, Any], list[str]]:
        """Return the fields of a body that can stand beside other arguments; none if it is no plain object."""
        seen = 0
        waiting, plain = [schema], True
        while waiting and plain:
            part = waiting.pop()
            seen += 1
            if not isinstance(part, dict) or seen > 100:
                return {}, []
            if isinstance(part.get("$ref"), str):
                waiting.append(referred_to(self._document, part["$ref"], self._where))
            plain = not any(word in part for word in ("oneOf", "anyOf", "not", "if", "patternProperties"))
            plain = plain and part.get("type", "object") == "object" and not part.get("additionalProperties")
            waiting += part.get("allOf", []) if isinstance(part.get("allOf", []), list) else []
        if not plain:
            return {}, []
        properties, required = properties_of(schema, self._document)
        writable = {
            name: inner for name, inner in properties.items() if not (isinstance(inner, dict) and inner.get("readOnly"))
        }
        return writable, [name for name in required if name in writable]

    def _answers(self) -> dict[str, Any] | None:
        """Return the schema of what the operation answers if all is well; None if it is not said."""
        responses = self._operation.get("responses")
        if not isinstance(responses, dict):
            return None
        codes = sorted((str(code) for code in responses if str(code).startswith("2")), key=str)
        code = next((code for code in (*codes, "default") if code in responses), None)
        if code is None:
            return None
        where = f"{self._where}, response {code}"
        schema = self._schema_of(_followed(self._document, responses[code], where), where)
        if not schema:
            return None
        opened = _followed(self._document, schema, where) if isinstance(schema, dict) else {}
        if opened.get("type", "object") != "object" or not ({"properties", "allOf"} & opened.keys()):
            schema = {"type": "object", "properties": {RESULT_FIELD: schema}, "required": [RESULT_FIELD]}
        return self._bundled({"type": "object", **schema}, _MOST_OF_ANSWERS)

    def _bundled(self, schema: Mapping[str, Any], most: int) -> dict[str, Any]:
        """Return a schema with the definitions that it refers to, in one dialect.

        The nearest ones come first. Those that would make it larger than `most` schemas allow anything.
        """
        names: dict[str, str] = {}
        waiting: deque[str] = deque()

        def renamed(reference: str) -> str:
            if reference not in names:
                stem = reference.rpartition("/")[2] or "document"
                taken = set(names.values())
                numbered = (f"{stem}_{number}" for number in range(2, len(names) + 3))
                names[reference] = next(name for name in (stem, *numbered) if name not in taken)
                waiting.append(reference)
            return f"#/$defs/{names[reference]}"

        made = in_one_dialect(schema, self._where, renamed)
        definitions: dict[str, Any] = {}
        num_parts = sum(1 for _ in parts_of(made))
        while waiting:
            reference = waiting.popleft()
            name, target = names[reference], referred_to(self._document, reference, self._where)
            num_parts += sum(1 for _ in parts_of(target))
            fits = num_parts <= most
            definitions[name] = in_one_dialect(target, f"{self._where}, {name!r:.60}", renamed) if fits else {}
        return {**made, "$defs": definitions} if definitions else made


def _with_words(schema: Any, words: Any) -> Any:
    """Return the schema of a parameter with what is said of the parameter."""
    if not isinstance(words, str) or not words.strip() or not isinstance(schema, dict) or "description" in schema:
        return schema
    return {**schema, "description": words}
