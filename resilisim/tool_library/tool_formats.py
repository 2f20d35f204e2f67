"""Formats of tools: lists of MCP servers (also written), functions of OpenAI, Anthropic and BFCL, OpenAPI documents.

A text is read as JSON, JSON Lines or YAML, and what it holds is brought to the form of the own library files; schemas
are kept whole. What holds no tools is refused with a word on what to do instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from resilisim.errors import InvalidInputError, one_line
from resilisim.inputs import read_json, read_json_lines, shown
from resilisim.tool_library.openapi import openapi_tools
from resilisim.tool_library.parameters import parameter_schema
from resilisim.tool_library.tool import DEFAULT_RETURNS, Tool
from resilisim.tool_library.tool_schemas import OWN_META, RESULT_FIELD, in_one_dialect

MOST_TOOLS: Final = 10_000
_DECLARED: Final = ("functionDeclarations", "function_declarations")  # where Gemini has a list of functions
_SCHEMAS: Final = ("inputSchema", "input_schema", "parametersJsonSchema", "parameters")
_ANSWERS: Final = ("outputSchema", "output_schema", "response", "responseJsonSchema")
_OWN_FIELDS: Final = ("success_probability", "dependencies", "equivalents", "errors", "aliases", "metadata")
_QUESTION: Final = "(question)"  # of BFCL, whose function it is
_YAML: Final = re.compile(r"^[\"']?(openapi|swagger|tools)[\"']?\s*:", re.MULTILINE)
_MOST_YAML: Final = 16_000_000  # characters


Placed = tuple[Any, str]  # a value, and where it stands


def read_document(text: str, source: str) -> Any:
    """Return what a file of tools holds, lines of JSON as a list.

    Raises:
        InvalidInputError: It is neither JSON nor JSON Lines nor YAML.
    """
    begin = text.lstrip("\ufeff \t\r\n")
    if source.lower().endswith((".yaml", ".yml")) or (begin[:1] not in ("{", "[") and _YAML.search(text)):
        from resilisim.yaml_text import read_yaml

        return read_yaml(text, source, max_characters=_MOST_YAML, max_depth=64, max_values=1_000_000)
    if begin.startswith("{") and _is_one_object(begin.split("\n", 1)[0]) and begin.find("\n{") > 0:
        return [value for value, _ in read_json_lines(text, source)]
    return read_json(text, source)


def _is_one_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def foreign_tools(value: Any, source: str) -> list[Placed] | None:
    """Return the tools of a document of others in the form of library files, and where each stands.

    None if it is a library file of the own form, or looks like nothing that is known here.

    Raises:
        InvalidInputError: It is something else that is known, or one of its tools is not as its form wants it.
    """
    if isinstance(value, dict):
        if "openapi" in value or "swagger" in value:
            return _within_limits(openapi_tools(value, source), source)
        _refuse_others(value, source)
        if isinstance(value.get("result"), dict) and "tools" in value["result"]:
            value = value["result"]  # of JSON-RPC
    listed = list(_listed(value, source))
    if not any(_is_foreign(item) for item, _ in listed):
        return None
    return _within_limits(_merged([(_in_own_form(item, where), where) for item, where in listed], source), source)


def _listed(value: Any, source: str) -> Iterator[Placed]:
    """Yield what may be tools."""
    if isinstance(value, dict):
        for key in ("tools", "functions"):
            if isinstance(value.get(key), list):
                if value.get("nextCursor"):
                    raise InvalidInputError(
                        f"{source}: nextCursor is {shown(value['nextCursor'])}, so further pages are missing; expected "
                        "the whole list (a JSON array of all pages, or ask the server: resilisim tools import)"
                    )
                yield from _listed(value[key], source)
                return
        function, has_name = value.get("function"), isinstance(value.get("name"), str)
        is_wrapped = isinstance(function, list) or (isinstance(function, dict) and "name" in function)
        is_wrapped = is_wrapped or any(isinstance(value.get(key), list) for key in _DECLARED)
        if is_wrapped or (has_name and any(key in value for key in _SCHEMAS)):  # one tool alone
            yield from _listed([value], source)
            return
        if "tools" not in value and "name" not in value:
            for name, item in value.items():
                if isinstance(item, dict):
                    yield {"name": name, **item}, f"{source}: {name!r:.80}"
        return
    if not isinstance(value, list):
        return
    pages = [_page(item) for item in value]
    if value and any(page is not None for page in pages):  # of a list of MCP, or a log in which they stand
        *_, last = (page for page in pages if page is not None)
        yield from _listed(
            {"tools": [tool for page in pages if page for tool in page["tools"]], "nextCursor": last.get("nextCursor")},
            source,
        )
        return
    for number, item in enumerate(value, start=1):
        where = f"{source}: item {number}"
        _refuse_others(item, where)
        functions = item.get("function") if isinstance(item, dict) else None
        declared = next((item[key] for key in _DECLARED if key in item), None) if isinstance(item, dict) else None
        if isinstance(functions, list):  # a question of BFCL
            yield from (
                (_of_question(each, item.get("id")), f"{where}, function {place}")
                for place, each in enumerate(functions, start=1)
            )
        elif isinstance(functions, dict):  # one of OpenAI
            yield {**functions, "type": "function"}, where
        elif isinstance(declared, list):  # of Gemini
            yield from (({**each, "type": "function"} if isinstance(each, dict) else each, where) for each in declared)
        else:
            yield item, where


def _page(item: Any) -> Mapping[str, Any] | None:
    if not isinstance(item, dict):
        return None
    held = item["result"] if isinstance(item.get("result"), dict) and "jsonrpc" in item else item
    is_page = isinstance(held.get("tools"), list) and "name" not in held and "function" not in held
    return held if is_page else {"tools": []} if "jsonrpc" in item else None


def _refuse_others(value: Any, where: str) -> None:
    """Refuse what is known and holds no tools."""
    if not isinstance(value, dict):
        return
    problem = None
    named = value.get("mcpServers", value.get("servers"))
    servers: dict[str, Any] = named if isinstance(named, dict) else {}
    is_configuration = "mcpServers" in value or any(map(_is_server, servers.values()))
    if is_configuration and not isinstance(value.get("tools"), list | dict):
        names = ", ".join(map(str, list(servers)[:5])) or "none"
        problem = (
            f"is the MCP configuration of a client (servers: {names:.100}), which lists no tools; expected the tools "
            "themselves: resilisim tools import --out tools.json -- COMMAND ARGUMENTS asks a server"
        )
    elif isinstance(value.get("item"), list) and isinstance(value.get("info"), dict):
        problem = "is a Postman collection; expected an OpenAPI 3 document (postman-to-openapi makes one)"
    elif "evaluation_criteria" in value:
        problem = "is a task of tau2-bench; expected tools (--tasks reads tasks)"
    elif "ground_truth" in value and "function" not in value:
        problem = "is an answer of BFCL; expected the file of questions or of functions"
    elif "jsonrpc" in value and isinstance(value.get("error"), dict):
        problem = f"is an error of a server: {one_line(value['error'].get('message'), 100)}; expected its list of tools"
    elif "openapi" in value or "swagger" in value:
        problem = "is an OpenAPI document within a list; expected each in a file of its own"
    elif isinstance(value.get("question"), str) and "function" not in value:
        problem = "is a question; expected tools (--tasks names questions: hotpotqa:FILE, toolqa:FOLDER, ...)"
    if problem is not None:
        raise InvalidInputError(f"{where}: {problem}")


def _is_server(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(value.get(key), str) for key in ("command", "url"))


def _is_foreign(item: Any) -> bool:
    return isinstance(item, dict) and (
        any(isinstance(item.get(key), dict) for key in _SCHEMAS if key != "input_schema")
        or (isinstance(item.get("input_schema"), dict) and any(key in item for key in ("cache_control", "type")))
        or item.get("type") == "function"
        or _is_schema(item)
        or ("type" in item and "parameters" not in item and isinstance(item["type"], str) and "description" not in item)
    )


def _is_schema(item: Mapping[str, Any]) -> bool:
    """Tell a bare JSON Schema with a title, as pydantic writes it for a model."""
    return "name" not in item and isinstance(item.get("title"), str) and isinstance(item.get("properties"), dict)


def _in_own_form(item: Any, where: str) -> Any:
    """Return a tool in the form of library files; one that has it already is as it was."""
    if not isinstance(item, dict):
        return item
    meta = item.get("_meta")
    own = meta.get(OWN_META) if isinstance(meta, dict) else None
    if isinstance(own, dict):
        return _of_own_export(item, own)
    if _is_schema(item):
        return _form(str(item["title"]), item.get("description"), item, where)
    key = next((key for key in _SCHEMAS if isinstance(item.get(key), dict)), None)
    if key is None and item.get("inputSchema") is not None:
        raise InvalidInputError(
            f"{where}: {item.get('name')!r:.60} has the inputSchema {shown(item['inputSchema'])}; expected an object"
        )
    if key is None and item.get("type") not in ("function", None) and "description" not in item:
        raise InvalidInputError(
            f"{where}: {item.get('name', item['type'])!r:.60} is a tool of type {shown(item['type'])}, which its "
            "provider runs and whose parameters it does not tell; expected a function"
        )
    if key is None and (isinstance(item.get("parameters"), list) or item.get("type") != "function"):
        return item
    schema = {} if key is None else item[key]
    name = item.get("name")
    form = _form(
        name, item.get("description"), schema, where if not isinstance(name, str) else f"{where} ({name!r:.60})"
    )
    answer = next((item[key] for key in _ANSWERS if isinstance(item.get(key), dict) and item[key]), None)
    if answer is not None:
        form["output_schema"] = of_answers(in_one_dialect(answer, f"{where}, its answers"))
    notes = item.get("annotations")
    title = {"title": item["title"]} if isinstance(item.get("title"), str) else {}
    if isinstance(notes, dict) or title:
        form["annotations"] = {**title, **(notes if isinstance(notes, dict) else {})}
    return {**form, **{field: item[field] for field in (*_OWN_FIELDS, _QUESTION) if field in item}}


def _form(name: Any, described: Any, schema: Mapping[str, Any], where: str) -> dict[str, Any]:
    words = described if isinstance(described, str) and described.strip() else f"The tool {name}."
    form = {"description": words, "input_schema": in_one_dialect(schema, f"{where}, schema of its parameters")}
    return form if name is None else {"name": name, **form}


def of_answers(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of answers as that of an object: what is none stands there as its `result`."""
    if schema.get("type", "object") == "object" or "object" in schema.get("type", ()):
        return schema
    definitions: dict[str, Any] = {word: schema.pop(word) for word in ("$defs", "definitions") if word in schema}
    return {"type": "object", "properties": {RESULT_FIELD: schema}, "required": [RESULT_FIELD], **definitions}


def _of_own_export(item: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool that `tools export --format mcp` wrote, with what MCP has no place for."""
    form = {**own, "name": item.get("name"), "description": item.get("description")}
    for field, key, made_of_it in (
        ("input_schema", "inputSchema", "parameters"),
        ("output_schema", "outputSchema", "returns"),
    ):
        if made_of_it not in own and isinstance(item.get(key), dict):
            form[field] = item[key]
    return {**form, **({"annotations": item["annotations"]} if item.get("annotations") else {})}


def _of_question(function: Any, question: Any) -> Any:
    return {**function, _QUESTION: str(question)} if isinstance(function, dict) else function


def _merged(tools: list[Placed], source: str) -> list[Placed]:
    """Return the tools; one that stands there several times in the same words, as in questions of BFCL, counts once.

    Questions have functions of their own: one that is called like another's is followed by its question.
    """
    kept: dict[str, Placed] = {}
    others: list[Placed] = []
    for form, where in tools:
        question = form.pop(_QUESTION, None) if isinstance(form, dict) else None
        name = form.get("name") if isinstance(form, dict) else None
        if question is not None and name in kept and kept[name][0] != form:
            name = form["name"] = f"{name}@{question}"
        if not isinstance(name, str):
            others.append((form, where))
        elif name not in kept:
            kept[name] = form, where
        elif kept[name][0] != form:
            raise InvalidInputError(
                f"{where}: tool {name!r:.80} stands there twice and differs from that of "
                f"{kept[name][1].removeprefix(source + ': ')}; expected each name once"
            )
    return [*kept.values(), *others]


def _within_limits(tools: list[Placed], source: str) -> list[Placed]:
    if len(tools) > MOST_TOOLS:
        raise InvalidInputError(f"{source}: holds {len(tools):,} tools; expected at most {MOST_TOOLS:,}")
    return tools


def proposals(tools: Iterable[Tool]) -> dict[str, list[str]]:
    """Return what the annotations of tools suggest for a goal: which must not run twice, and which only look.

    They are the words of whoever wrote the tools, so nothing follows from them by itself.
    """
    once, checks = [], []
    for tool in tools:
        hints = tool.annotations
        if hints.get("readOnlyHint") is True:
            checks.append(tool.name)
        elif hints.get("idempotentHint") is False or (
            hints.get("destructiveHint") is True and hints.get("idempotentHint") is not True
        ):
            once.append(tool.name)
    return {"once": once, "checks": checks}


def mcp_definition(tool: Tool) -> dict[str, Any]:
    """Return the MCP tool definition of one tool: name, description, inputSchema, outputSchema and annotations.

    What a tool brought from elsewhere stands there as it was.
    """
    definition: dict[str, Any] = {"name": tool.name, "description": tool.description}
    definition["inputSchema"] = tool.input_schema or parameter_schema(tool, strict=True)
    returns = {
        value.name: {"type": value.type} | ({"description": value.description} if value.description else {})
        for value in tool.returns
    }
    if tool.output_schema is not None:
        definition["outputSchema"] = tool.output_schema
    elif tool.input_schema is None or tool.returns != DEFAULT_RETURNS:
        definition["outputSchema"] = {"type": "object", "properties": returns, "required": list(returns)}
    return {**definition, **({"annotations": tool.annotations} if tool.annotations else {})}


def mcp_export(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """Return the MCP definitions of tools with all else that is known of them, so that they can be read back."""
    return [{**mcp_definition(tool), "_meta": {OWN_META: _beside_mcp(tool)}} for tool in tools]


def _beside_mcp(tool: Tool) -> dict[str, Any]:
    in_mcp = ("name", "description", "input_schema", "output_schema", "annotations")
    return {name: value for name, value in tool.to_mapping().items() if name not in in_mcp}
