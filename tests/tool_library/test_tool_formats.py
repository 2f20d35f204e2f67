"""Tools as others write them down: read whole, used like one's own, or refused in one line with a way out."""

import json

import pytest

from resilisim import open_session
from resilisim.errors import InvalidInputError
from resilisim.seeding import Draws
from resilisim.tasks import Task, read_tasks
from resilisim.tasks.scene import draw_inputs, draw_scene
from resilisim.tool_library import Tool, ToolLibrary, default_library, load_library
from resilisim.tool_library.parameters import accepts, check_parameters
from resilisim.tool_library.tool_formats import mcp_definition, mcp_export, proposals
from resilisim.tool_library.tool_schemas import MOST_PARTS, example_of, parameters_of, parts_of

ARGUMENTS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Bergen"], "description": "Where."},
        "days": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
    },
    "required": ["city"],
}
TREE = {
    "type": "object",
    "properties": {"node": {"$ref": "#/$defs/Node"}},
    "required": ["node"],
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}},
            "required": ["name"],
        }
    },
}
BFCL = {
    "type": "dict",
    "properties": {"x": {"type": "float"}, "more": {"type": "tuple", "items": {"type": "any"}}},
    "required": ["x"],
}


def mcp(name, schema=ARGUMENTS, **more):
    return {"name": name, "description": f"Does {name}.", "inputSchema": schema, **more}


def read(document):
    text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    return ToolLibrary.from_json(text, source="theirs")


def lines(*values):
    return "\n".join(map(json.dumps, values))


PAGE = {"tools": [mcp("weather")]}
CHAT = {
    "type": "function",
    "function": {"name": "weather", "description": "W.", "parameters": ARGUMENTS, "strict": True},
}
FLAT = {"type": "function", "name": "weather", "description": "W.", "parameters": ARGUMENTS}
FORMS = {
    "what tools/list answers": {"jsonrpc": "2.0", "id": 1, "result": PAGE},
    "a list of MCP": PAGE,
    "a bare list of MCP": PAGE["tools"],
    "pages of MCP": [{"tools": [], "nextCursor": "2"}, PAGE],
    "a log of MCP": lines(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, {"jsonrpc": "2.0", "id": 1, "result": PAGE}
    ),
    "chat completions": [CHAT],
    "a request of chat completions": {"model": "m", "messages": [], "tools": [CHAT]},
    "responses": [FLAT],
    "Anthropic": [{"name": "weather", "description": "W.", "input_schema": ARGUMENTS, "cache_control": {"type": "e"}}],
    "Anthropic, plain": [{"name": "weather", "description": "W.", "input_schema": ARGUMENTS}],
    "models of pydantic": [{**ARGUMENTS, "title": "weather", "description": "W."}],
    "a mapping": {"weather": {"description": "W.", "inputSchema": ARGUMENTS}},
    "one alone": {"name": "weather", "description": "W.", "parameters": ARGUMENTS},
    "questions of BFCL": lines(
        {"id": "1", "question": [], "function": [{"name": "weather", "description": "W.", "parameters": ARGUMENTS}]},
        {"id": "2", "question": [], "function": [{"name": "weather", "description": "W.", "parameters": ARGUMENTS}]},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_whole(form):
    (tool,) = read(FORMS[form])
    assert tool.name == "weather"
    assert {name: tool.input_schema[name] for name in ARGUMENTS} == ARGUMENTS
    assert [(each.name, each.type, each.required) for each in tool.parameters] == [
        ("city", "string", True),
        ("days", "integer", False),
    ]
    assert tool.parameters[0].constraints == {"enum": ["Oslo", "Bergen"]}
    assert accepts(tool, {"city": "Oslo", "days": None}, "strict")
    assert not accepts(tool, {"city": "Oslo", "days": 0}, "strict")


def test_what_others_call_types_and_null():
    tool = read(lines({"name": "math.norm", "description": "N.", "parameters": BFCL, "response": BFCL}, mcp("b")))[0]
    assert [(each.name, each.type) for each in tool.parameters] == [("x", "number"), ("more", "array")]
    assert [(each.name, each.type) for each in tool.returns] == [("x", "number"), ("more", "array")]
    assert accepts(tool, {"x": 1.5, "more": [1, "a"]}, "strict")
    declared = {
        "name": "f",
        "parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING", "nullable": True}}},
    }
    for document in ({"tools": [{"functionDeclarations": [declared]}]}, {"function_declarations": [declared]}):
        (tool,) = read(document)
        assert tool.input_schema["properties"]["a"] == {"type": ["string", "null"]}


def test_questions_of_bfcl_have_functions_of_their_own():
    other = {
        "type": "dict",
        "properties": {"zip": {"type": ""}, "box": {"type": "tuple", "items": [{"type": "float"}]}},
    }
    given = [ARGUMENTS, other, ARGUMENTS, {**other, "required": ["zip"]}]
    asked = [
        {"id": f"q_{n}", "question": [], "function": [{"name": "w", "parameters": p}]} for n, p in enumerate(given)
    ]
    library = read(lines(*asked))
    assert library.names == ("w", "w@q_1", "w@q_3")
    assert accepts(library["w@q_1"], {"zip": 3, "box": [1.5]}, "strict")
    assert not accepts(library["w@q_1"], {"box": ["x"]}, "strict")
    assert not accepts(library["w@q_3"], {}, "strict")


def test_annotations_answers_and_odd_names_are_kept():
    hints = {"readOnlyHint": False, "destructiveHint": True, "title": "Pay"}
    names = ["fs/read", "read file", "读文件", "Read", "read", "a.b"]
    answer = {"type": "object", "properties": {"id": {"type": "integer"}}}
    library = read({"tools": [mcp("pay", annotations=hints, outputSchema=answer), *map(mcp, names)]})
    assert library.names == ("pay", *names)
    assert library["pay"].annotations == hints
    assert (library["pay"].output_schema, library["pay"].returns[0].type) == (answer, "integer")
    assert [library.resolve(name) for name in ("Read", "read", "READ")] == ["Read", "read", None]


def test_tools_of_others_are_played_like_any_other():
    names = ["fs/read", "读文件", "tree"]
    library = read(
        {"tools": [mcp("fs/read"), mcp("读文件", {"type": "object", "properties": {"x": True}}), mcp(names[2], TREE)]}
    )
    task = Task.from_mapping({"required_tools": names, "description": "Read."}, library)
    given = {"fs/read": {"city": "Oslo"}, "读文件": {"x": [1]}, "tree": {"node": {"name": "a"}}}
    session = open_session(task, library=library, base=1.0, not_executed=1.0, history=1.0, parameters="strict")
    for tool, name in zip(session.tools, names, strict=False):
        assert not tool(city=3).ok
        assert tool(**given[name]).ok
    session.finish()
    assert session.score["level"] == "full_success"


@pytest.mark.parametrize("document", [PAGE, {"tools": [mcp("tree", TREE), mcp("pay", annotations={"x": 1})]}])
def test_what_is_exported_is_read_again(document):
    library = read(document)
    assert ToolLibrary.from_json(library.to_json()) == library
    assert read({"tools": mcp_export(library)}) == library
    plain = [mcp_definition(tool) for tool in library]
    assert [definition["inputSchema"] for definition in plain] == [tool.input_schema for tool in library]


def test_the_default_library_goes_through_mcp_unchanged():
    assert read(mcp_export(default_library())) == default_library()


def test_references_in_a_circle_are_checked_and_keep_their_size():
    (tool,) = read([mcp("tree", TREE)])
    deep = {"name": "a", "next": {"name": "b", "next": {"name": "c"}}}
    assert accepts(tool, {"node": deep}, "strict")
    deep["next"]["next"]["name"] = 3
    (problem,) = check_parameters(tool, {"node": deep}, "strict")
    assert problem == "parameters of tool 'tree': 3 is not of type 'string'"
    assert check_parameters(tool, {"knot": 1}) == ["unknown parameter 'knot' of tool 'tree': did you mean 'node'?"]
    assert accepts(tool, {})
    assert not accepts(tool, {}, "strict")
    assert example_of(TREE, TREE) == {"node": {"name": "text"}}


def test_references_that_unfold_into_millions_are_read_and_checked_in_time():
    laughs = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)} | {"d30": {"type": "string"}}
    (tool,) = read([mcp("laugh", {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": laughs})])
    assert accepts(tool, {"x": "fine"}, "strict")
    assert parameters_of({"$ref": "#"}) == ()


def test_drawn_inputs_fit_schemas_of_others():
    files = {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "string"}}, "required": ["p"]}}
    fields = {"type": "array", "items": {"enum": ["a"]}}
    schema = {"type": "object", "properties": {"files": files, "fields": fields}}
    (tool,) = read([mcp("push", {**schema, "required": ["files", "fields"]})])
    for seed in range(20):
        draws = Draws("definitions", seed)
        assert accepts(tool, draw_inputs(tool, draw_scene(draws, seed, 0), draws), "strict")


ITEM = {"$ref": "#/components/schemas/Item"}
ABOVE_ZERO = {"type": "integer", "minimum": 0, "exclusiveMinimum": True}
OPENAPI = {
    "openapi": "3.0.3",
    "info": {"title": "Shop", "version": "1"},
    "paths": {
        "/items/{id}": {
            "parameters": [{"$ref": "#/components/parameters/Id"}],
            "get": {
                "operationId": "find item by id",
                "summary": "Finds an item.",
                "tags": ["items"],
                "parameters": [
                    {"name": "limit", "in": "query", "schema": ABOVE_ZERO},
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string", "nullable": True}},
                    {"name": "Authorization", "in": "header", "schema": {"type": "string"}},
                ],
                "responses": {"200": {"content": {"application/json": {"schema": ITEM}}}},
            },
            "post": {
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": ITEM}},
                },
                "responses": {"default": {"description": "?"}},
            },
            "put": {
                "operationId": "replace",
                "requestBody": {"content": {"application/json": {"schema": {"type": "array", "items": {}}}}},
                "responses": {"200": {"content": {"application/json": {"schema": {"type": "array"}}}}},
            },
            "delete": {"operationId": "drop", "parameters": [{"name": "id", "in": "query", "schema": {}}]},
        }
    },
    "components": {
        "parameters": {"Id": {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}},
        "schemas": {
            "Named": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
            "Item": {
                "allOf": [
                    {"$ref": "#/components/schemas/Named"},
                    {
                        "type": "object",
                        "properties": {
                            "parts": {"type": "array", "items": {"$ref": "#/components/schemas/Item"}},
                            "made": {"type": "string", "readOnly": True},
                        },
                    },
                ]
            },
        },
    },
}  # fmt: skip


def changed(path, value):
    document = json.loads(json.dumps(OPENAPI))
    *above, last = path
    place = document
    for step in above:
        place = place[step]
    place[last] = value
    return document


def as_yaml(document):
    import yaml

    return yaml.safe_dump(document, sort_keys=False)


@pytest.mark.parametrize("text", [json.dumps(OPENAPI), as_yaml(OPENAPI), as_yaml(changed(["openapi"], 3.1))])
def test_operations_of_an_openapi_document(text):
    library = read(text)
    assert library.names == ("find item by id", "replace", "POST /items/{id}", "drop")
    find, replace, post, drop = library
    assert [(each.name, each.type, each.required) for each in find.parameters] == [
        ("id", "string", True),
        ("limit", "integer", False),
        ("X-Trace", "string", False),
    ]
    assert find.input_schema["properties"]["limit"] == {"type": "integer", "exclusiveMinimum": 0}
    assert (find.category, find.description) == ("items", "Finds an item.")
    assert [value.name for value in find.returns] == ["name", "parts", "made"]
    assert [(each.name, each.required) for each in post.parameters] == [("id", True), ("name", True), ("parts", False)]
    assert accepts(post, {"id": "1", "name": "a", "parts": [{"name": "b", "parts": [{"name": "c"}]}]}, "strict")
    assert not accepts(post, {"id": "1", "name": "a", "parts": [{"name": "b", "parts": [{"name": 3}]}]}, "strict")
    assert [each.name for each in replace.parameters] == ["id", "body"]
    assert [value.name for value in replace.returns] == ["result"]
    assert [(each.name, each.required) for each in drop.parameters] == [("id", True), ("id_query", False)]
    assert proposals(library) == {"once": ["POST /items/{id}"], "checks": ["find item by id"]}
    assert ToolLibrary.from_json(library.to_json()) == library


REFUSED = {
    "swagger": ({"swagger": "2.0", "paths": {}}, "is Swagger \"2.0\"; expected OpenAPI 3"),
    "postman": ({"info": {"name": "x"}, "item": []}, "is a Postman collection"),
    "client": ({"mcpServers": {"fs": {"command": "npx"}}}, "tools import --out tools.json -- COMMAND ARGUMENTS"),
    "tau2": ([{"id": "1", "evaluation_criteria": {"actions": []}}], "item 1: is a task of tau2-bench"),
    "answers": (lines({"id": "1", "ground_truth": []}, {"id": "2", "ground_truth": []}), "is an answer of BFCL"),
    "error": ({"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no"}}, "is an error of a server: no"),
    "page": ({**PAGE, "nextCursor": "2"}, 'nextCursor is "2", so further pages are missing'),
    "hosted": ([{"type": "web_search"}], "which its provider runs"),
    "question": ([{"_id": "1", "type": "bridge", "question": "Who?"}], "item 1: is a question; expected tools"),
    "schema that is none": ([mcp("b"), {"name": "a", "inputSchema": True}], "'a' has the inputSchema true; expected"),
    "twice": ({"tools": [mcp("a"), mcp("a", {})]}, "tool 'a' stands there twice and differs from that of item 1"),
    "type": ([mcp("a", {"properties": {"x": {"type": "strng"}}})], "did you mean 'string'?"),
    "array": ([mcp("a", {"type": "array"})], "expected 'object', since values have names"),
    "abroad": ([mcp("a", {"properties": {"x": {"$ref": "http://x/y"}}})], "leads out of the document"),
    "nowhere": ([mcp("a", {"properties": {"x": {"$ref": "#/$defs/Usr"}}, "$defs": {"User": {}}})], "mean 'User'?"),
    "schema": ([mcp("a", {"properties": {"x": {"minimum": "one"}}})], "keyword 'properties.x.minimum'"),
    "name": ([mcp("a" * 200)], "is not a name; expected 1 to 128 characters"),
    "large": ([mcp("a", {"anyOf": [{}] * (MOST_PARTS + 1)})], "holds more than 20,000 schemas"),
    "both": ([{"name": "a", "description": "A.", "parameters": [{"name": "x"}], "input_schema": {}}], "one of the two"),
    "no paths": (changed(["paths"], {}), "expected at least one path with an operation"),
    "version": (changed(["openapi"], "4.0"), 'openapi is "4.0"; expected 3.0, 3.1 or 3.2'),
    "place": (changed(["components", "parameters", "Id", "in"], "body"), "in is \"body\"; expected path"),
    "circle": (changed(["components", "parameters", "Id"], {"$ref": "#/components/parameters/Id"}), "refers to itself"),
    "lost": (changed(["components", "schemas", "Named"], {"$ref": "#/components/schemas/Itm"}), "mean 'Item'?"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_in_one_line(case):
    document, words = REFUSED[case]
    with pytest.raises(InvalidInputError) as caught:
        read(document)
    message = str(caught.value)
    assert words in message
    assert "theirs" in message
    assert "\n" not in message
    assert len(message) < 400


TAU2 = [
    {
        "id": "one",
        "user_scenario": {"instructions": "Cancel it."},
        "evaluation_criteria": {
            "actions": [
                {"name": "find", "arguments": {"city": "Oslo"}},
                {"name": "restart_phone", "requestor": "user", "arguments": {}},
                {"name": "cancel", "arguments": {}},
                {"name": "find", "arguments": {"city": "Bergen"}},
            ]
        },
    },
    {"id": "two", "ticket": "Chat.", "evaluation_criteria": {"actions": [], "nl_assertions": ["Was polite."]}},
]


def test_tasks_of_tau2_are_read_as_tools_in_order(tmp_path):
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps(TAU2, indent=1))
    with pytest.warns(UserWarning, match="1 of 2 tasks require no tool and are left out: two"):
        (task,) = read_tasks(file, read([mcp("find"), mcp("cancel", {})]))
    assert (task.required_tools, task.description) == (("find", "cancel"), "Cancel it.")
    assert (task.instance_id, task.inputs) == ("tau2_one", {"city": "Oslo"})
    with pytest.raises(InvalidInputError, match=r"unknown tool 'find' in .*tasks\.json, item 1, field"):
        read_tasks(file, read([mcp("other"), mcp("cancel", {})]))


def test_a_tool_of_python_can_bring_its_schema(tmp_path):
    library = ToolLibrary([Tool("weather", "W.", input_schema=ARGUMENTS)])
    assert [each.name for each in library["weather"].parameters] == ["city", "days"]
    file = tmp_path / "weather.json"
    file.write_text(library.to_json())
    assert load_library(file) == library


def test_tools_may_be_called_like_keys_of_others():
    called = ("servers", "item", "info", "result", "function", "openings")
    assert read({name: {"description": f"The {name}."} for name in called}).names == called


def test_documents_that_refer_to_all_of_themselves_stay_small():
    schemas = {
        f"S{n}": {
            "type": "object",
            "properties": {f"p{m}": {"$ref": f"#/components/schemas/S{(7 * n + m + 1) % 400}"} for m in range(9)},
        }
        for n in range(400)
    }
    held = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}}
    paths = {f"/r{n}": {"post": {"requestBody": held, "responses": {"200": held}}} for n in range(3)}
    library = read({"openapi": "3.1.0", "info": {}, "paths": paths, "components": {"schemas": schemas}})
    tool = library["POST /r0"]
    assert [each.name for each in tool.parameters] == [f"p{n}" for n in range(9)]
    assert sum(1 for _ in parts_of(tool.input_schema)) < 1200
    assert not accepts(tool, {"p0": {"p1": 3}}, "strict")
    assert len(library.to_json()) < 600_000
