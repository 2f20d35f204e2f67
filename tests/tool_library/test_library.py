"""Libraries of one's own: what is accepted, what is filled in, what is refused and with which words."""

import copy
import hashlib
import json
import pickle
import re
from collections import Counter
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.tool_library import Tool, ToolLibrary, default_library, load_library
from resilisim.tool_library.names import function_name
from resilisim.tool_library.tool import DEPENDENCY_ERROR, SEMANTIC_TYPES


def tool(name, **fields):
    return {"name": name, "description": f"Does {name}.", **fields}


def library(*tools):
    return ToolLibrary.from_json(json.dumps({"tools": list(tools)}), source="mine.json")


def refusal(text):
    """Return the message with which a library is refused, after checking that it is one line."""
    with pytest.raises(InvalidInputError) as caught:
        ToolLibrary.from_json(text if isinstance(text, str) else json.dumps(text), source="mine.json")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("mine.json") or " in mine.json" in message
    return message


def test_name_and_description_suffice():
    (only,) = library(tool("billing_exporter"))
    assert (only.category, only.operation, only.semantic_type) == ("billing", "exporter", "outputs")
    assert [value.name for value in only.returns] == ["success", "metadata"]
    assert [error.code for error in only.errors] == ["INVALID_INPUT", "OPERATION_FAILED", "TIMEOUT", DEPENDENCY_ERROR]
    assert (only.canonical_name, only.original_description) == ("billing_exporter", "Does billing_exporter.")
    assert (only.parameters, only.dependencies, only.aliases, only.success_probability) == ((), (), (), None)
    assert only.metadata == {
        "category": "billing",
        "operation": "exporter",
        "version": "1.0.0",
        "created_at": "2025-01-01T00:00:00+00:00",
        "dependency_level": 0,
        "execution_order": 0,
    }


@pytest.mark.parametrize(
    ("name", "category", "operation"),
    [
        ("reader", "general", "reader"),
        ("crm-fetcher", "crm", "fetcher"),
        ("github.issues.create", "github.issues", "create"),
        ("a__b", "a", "b"),
        ("x_", "general", "x"),
    ],
)
def test_category_and_operation_follow_from_the_name(name, category, operation):
    (parsed,) = library(tool(name))
    (built,) = ToolLibrary([Tool(name, "text")])
    for only in (parsed, built):
        assert (only.category, only.operation) == (category, operation)


def test_metadata_beats_the_name():
    (only,) = library(tool("alpha_beta", metadata={"category": "network", "operation": "poster", "team": "blue"}))
    assert (only.category, only.operation, only.metadata["team"]) == ("network", "poster", "blue")
    assert only.error("NETWORK_ERROR") is not None


def test_the_three_forms_of_json_mean_the_same():
    tools = [tool("a_reader"), tool("b_parser", dependencies=["a_reader"])]
    expected = library(*tools)
    by_name = {item["name"]: item for item in tools}
    unnamed = {item["name"]: {key: value for key, value in item.items() if key != "name"} for item in tools}
    for form in (tools, by_name, unnamed, {"tools": by_name}, {"schema": "resilisim-tools-1", "tools": tools}):
        assert ToolLibrary.from_json(json.dumps(form)) == expected


def test_a_tool_called_tools_can_stand_in_a_mapping():
    assert ToolLibrary.from_json('{"tools": {"description": "A box."}}').names == ("tools",)


def test_the_published_example_loads():
    entry = {
        "name": "file_operations_reader",
        "description": "Reads.",
        "parameters": [
            {
                "name": "source",
                "type": "string",
                "description": "",
                "required": True,
                "default": None,
                "constraints": {},
            },
            {"name": "options", "type": "object", "description": "", "required": False, "default": {}},
        ],
        "returns": [{"name": "success", "type": "boolean", "description": ""}],
        "errors": [{"code": "TIMEOUT", "description": "Took too long."}, {"code": "ODD", "description": "Odd."}],
        "dependencies": [],
        "dependency_metadata": {"level": 0, "execution_order": 0, "category": "file_operations"},
        "metadata": {"category": "file_operations", "operation": "reader", "dependency_level": 0},
        "canonical_name": "file_operations_reader",
    }
    (only,) = ToolLibrary.from_json(json.dumps({"file_operations_reader": entry}))
    assert [error.code for error in only.errors] == ["TIMEOUT", "ODD", DEPENDENCY_ERROR]
    timeout, odd = only.failure_errors
    assert timeout.description == "Took too long."
    assert "7 seconds" in timeout.message({"seconds": "7"}), "a well-known code brings its template"
    assert odd.message({}) == "Odd."


def test_own_templates_and_slots():
    error = {"code": "TILT", "template": "tilted by {angle} degrees", "slots": {"angle": ["3", "5"]}}
    (only,) = library(tool("a", errors=[error]))
    assert only.failure_errors[0].message({"angle": "5"}) == "tilted by 5 degrees"


def test_dependencies_may_be_given_by_alias():
    mine = library(tool("a_b", aliases=["First"]), tool("c", dependencies=["first"]))
    assert mine.dependencies("c") == ("a_b",)


def test_equivalents_may_be_given_by_alias_and_are_written_only_where_there_are_any():
    mine = library(tool("a_b", aliases=["First"]), tool("c", equivalents=["first"]))
    assert [one.equivalents for one in mine] == [(), ("a_b",)]
    assert ["equivalents" in one for one in json.loads(mine.to_json())["tools"]] == [False, True]
    assert ToolLibrary.from_json(mine.to_json()).to_json() == mine.to_json()
    assert mine.resolve("FIRST") == "a_b"


def test_levels_are_computed_whatever_the_file_says():
    mine = library(
        tool("c", dependencies=["b"], dependency_metadata={"level": 7}), tool("b", dependencies=["a"]), tool("a")
    )
    assert [item.dependency_metadata.level for item in mine] == [2, 1, 0]
    assert [item.dependency_metadata.execution_order for item in mine] == [2, 1, 0]
    assert mine.closure(["b"]) == ("b", "a")
    assert mine.closure(["c", "a"]) == ("c", "b", "a")
    assert mine.closure([]) == ()


def test_lookup():
    mine = library(tool("a_reader", aliases=["opener"]), tool("b_parser"))
    assert len(mine) == 2
    assert [item.name for item in mine] == ["a_reader", "b_parser"] == list(mine.names)
    assert mine["b_parser"] is mine[1]
    assert "a_reader" in mine
    assert "opener" not in mine
    assert mine.index("b_parser") == 1
    with pytest.raises(InvalidInputError, match=r"unknown tool 'b_parsr': did you mean 'b_parser'\?"):
        mine.index("b_parsr")
    with pytest.raises(InvalidInputError, match="did you mean 'a_reader'"):
        mine["opener"]
    with pytest.raises(IndexError):
        mine[2]


def test_equality_hash_and_pickle_follow_the_content():
    one, other = library(tool("a", metadata={"x": 1, "y": 2})), library(tool("a", metadata={"y": 2, "x": 1}))
    assert one == other
    assert hash(one) == hash(other)
    assert one != library(tool("a", metadata={"x": 1, "y": 3}))
    assert pickle.loads(pickle.dumps(one)) == one
    assert copy.deepcopy(default_library()) == default_library()
    assert default_library() is default_library()


BAD_LIBRARIES = [
    ([], ["holds no tools"]),
    ({"tools": []}, ["holds no tools"]),
    ({}, ["holds no tools"]),
    ("", ["not valid JSON at column 1"]),
    ('{"tools": [\n', ["not valid JSON at line 2, column 1"]),
    ("[" * 100_000, ["nested too deeply"]),
    ("[" * 65 + "]" * 65, ["nested too deeply", "at most 64"]),
    ("1" * 5000, ["5000 digits", "at most 300"]),
    ('[{"name": "a", "description": "x", "metadata": {"\\udc00": 1}}]', ["surrogates not allowed"]),
    ('{"a": {"description": "x"}, "a": {"description": "y"}}', ["'a' stands twice"]),
    ('[{"name": "a", "description": "x", "success_probability": NaN}]', ["NaN", "finite"]),
    ('[{"name": "a", "description": "x", "metadata": {"x": 1e999}}]', ["1e999", "finite"]),
    ('[{"name": "a", "description": "\\ud800"}]', ["surrogates not allowed"]),
    (7, ["expected an array of tools", "got 7"]),
    ({"tools": None}, ["expected an array of tools", "got null"]),
    ({"tools": [], "shcema": "x"}, ["'shcema'", "'schema'"]),
    ({"tools": [], "schema": "resilisim-tools-9"}, ["resilisim-tools-9", "resilisim-tools-1"]),
    ([3], ["item 1", "expected an object"]),
    ({"a": 3}, ["tool 'a'", "expected an object"]),
    ({"a": {"name": "b", "description": "x"}}, ["tool 'a'", "'name'", '"b"']),
    ([{"description": "x"}], ["item 1", "'name'", "missing"]),
    ([{"name": 5, "description": "x"}], ["item 1", "'name'", "got 5", "a string"]),
    ([{"name": "two\nlines", "description": "x"}], ["'name'", r'"two\nlines"', "line breaks"]),
    ([{"name": " x", "description": "x"}], ["'name'", '" x"', "blank"]),
    ([{"name": "x" * 129, "description": "x"}], ["'name'", "128 characters"]),
    ([{"name": "a"}], ["tool 'a'", "'description'", "missing"]),
    ([{"name": "a", "description": " "}], ["tool 'a'", "'description'", "empty"]),
    ([tool("a", dependancies=[])], ["tool 'a'", "'dependancies'", "did you mean 'dependencies'"]),
    ([tool("a"), tool("a")], ["tool 'a'", "'name'", "duplicate of another tool"]),
    ([tool("a", aliases=["b"]), tool("b")], ["tool 'a'", "'aliases'", "'b'"]),
    ([tool("a", aliases=["x"]), tool("b", aliases=["x"])], ["tool 'b'", "'aliases'", "'x'", "'a'"]),
    ([tool("a", aliases=["x", "x"])], ["tool 'a'", "'aliases'", "'x'"]),
    ([tool("a", aliases=["a"])], ["tool 'a'", "'aliases'"]),
    ([tool("a", aliases=["b\x1b"])], ["tool 'a'", "'aliases'", "control characters"]),
    ([tool("a", dependencies=["parsr"]), tool("parser")], ["tool 'a'", "'dependencies'", "'parsr'", "'parser'"]),
    ([tool("a", dependencies=["b", "b"]), tool("b")], ["tool 'a'", "'dependencies'", "'b'", "twice"]),
    ([tool("a", dependencies=["a"])], ["tool 'a'", "cycle a -> a"]),
    ([tool("a", equivalents=["parsr"]), tool("parser")], ["tool 'a'", "'equivalents'", "'parsr'", "'parser'"]),
    ([tool("a", equivalents=["b", "B"]), tool("b")], ["tool 'a'", "'equivalents'", "'B'", "twice"]),
    ([tool("a", equivalents=["A"])], ["tool 'a'", "'equivalents'", "'A'", "the tool itself"]),
    (
        [
            tool("z", dependencies=["a"]),
            tool("a", dependencies=["b"]),
            tool("b", dependencies=["c"]),
            tool("c", dependencies=["d", "a"]),
            tool("d"),
        ],
        ["tool 'a'", "'dependencies'", "cycle a -> b -> c -> a"],
    ),
    ([tool("a", dependencies="b")], ["tool 'a'", "'dependencies'", "an array"]),
    ([tool("a", dependencies=[1])], ["tool 'a'", "'dependencies'", "item 1", "a string"]),
    ([tool("a", canonical_name="b")], ["tool 'a'", "'canonical_name'", '"b"', "'a'"]),
    ([tool("a", metadata=[])], ["tool 'a'", "'metadata'", "an object"]),
    ([tool("a", metadata={"category": 1})], ["tool 'a'", "'metadata'", "'category'"]),
    ([tool("a", differentiation={"keywords": []})], ["tool 'a'", "'differentiation'", "'usage_keywords'"]),
    ([tool("a", differentiation_enhanced="yes")], ["tool 'a'", "'differentiation_enhanced'", "true or false"]),
    ([tool("a", success_probability=0)], ["tool 'a'", "'success_probability'", "got 0", "above 0"]),
    ([tool("a", success_probability=1.01)], ["tool 'a'", "'success_probability'", "at most 1"]),
    ([tool("a", success_probability=True)], ["tool 'a'", "'success_probability'"]),
    ([tool("a", success_probability="0.8")], ["tool 'a'", "'success_probability'"]),
    ([tool("a", returns=[{"name": "x", "type": "text"}])], ["tool 'a'", "'returns', item 1", "'text'", "string"]),
    ([tool("a", returns=[{"name": "x"}, {"name": "x"}])], ["tool 'a'", "'returns'", "'x'", "twice"]),
    ([tool("a", parameters=[{"name": "p"}, {"name": "p"}])], ["tool 'a', field 'parameters': 'p' stands there twice"]),
    ([tool("a", errors=[])], ["tool 'a'", "'errors'", "OPERATION_FAILED"]),
    ([tool("a", errors=[{"code": DEPENDENCY_ERROR}])], ["tool 'a'", "'errors'"]),
    ([tool("a", errors=[{"code": "X", "template": "{n}"}])], ["tool 'a'", "item 1", "'template'", "'n'"]),
    (
        [tool("a", errors=[{"code": "X", "template": "{n}", "slots": {"n": ["1"], "m": ["1"]}}])],
        ["tool 'a'", "'slots'", "'m'"],
    ),
    ([tool("a", errors=[{"code": "X", "template": "{n}", "slots": {"n": []}}])], ["tool 'a'", "'slots'", "'n'"]),
]
BAD_PARAMETERS = [
    ({}, ["'name'", "missing"]),
    ({"name": "p", "type": "strng"}, ["'type'", "'strng'", "did you mean 'string'"]),
    ({"name": "p", "typ": "string"}, ["'typ'", "did you mean 'type'"]),
    ({"name": "p", "required": 1}, ["'required'", "true or false"]),
    ({"name": "p", "constraints": {"minLenght": 1}}, ["'p'", "'constraints'", "did you mean 'minLength'"]),
    ({"name": "p", "constraints": {"minLength": "1"}}, ["'p'", "'constraints'", "'minLength'"]),
    ({"name": "p", "constraints": {"pattern": "["}}, ["'p'", "'constraints'", "'pattern'"]),
    ({"name": "p", "constraints": {"type": "number"}}, ["'p'", "'constraints'", "'type'", "'string'"]),
    ({"name": "p", "constraints": {"not": {"$ref": "#"}}}, ["'p'", "'constraints'", "'$ref'"]),
    ({"name": "p", "type": "integer", "default": "x"}, ["'p'", "'default'", "'x'"]),
    ({"name": "p", "default": "", "constraints": {"minLength": 1}}, ["'p'", "'default'"]),
]


@pytest.mark.parametrize(("text", "words"), BAD_LIBRARIES)
def test_a_wrong_library_is_refused_with_the_place_and_what_was_meant(text, words):
    message = refusal(text)
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(("parameter", "words"), BAD_PARAMETERS)
def test_a_wrong_parameter_is_refused(parameter, words):
    message = refusal([tool("fine"), tool("bad_one", parameters=[{"name": "ok"}, parameter])])
    assert [word for word in ["tool 'bad_one'", "'parameters', item 2", *words] if word not in message] == []


def test_tools_built_in_python_are_checked_too():
    with pytest.raises(InvalidInputError, match="'success_probability' of tool 'a': got 2"):
        Tool("a", "text", success_probability=2.0)
    with pytest.raises(InvalidInputError, match="tool 'a ', field 'name'"):
        ToolLibrary([Tool("a ", "text")])
    with pytest.raises(InvalidInputError, match=r"tool library: holds no tools"):
        ToolLibrary([])


def test_load_library(tmp_path):
    path = tmp_path / "mine.json"
    path.write_bytes(b"\xef\xbb\xbf" + default_library().to_json().encode("utf-8"))
    assert load_library(path) == default_library(), "a byte order mark does no harm"
    assert load_library(str(path)).content_hash == default_library().content_hash
    with pytest.raises(InvalidInputError, match=r"mine\.jso' does not exist; did you mean .*mine\.json"):
        load_library(tmp_path / "mine.jso")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        load_library(tmp_path)
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(InvalidInputError, match="not UTF-8"):
        load_library(path)
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(InvalidInputError) as caught:
        load_library(path)
    assert str(caught.value).startswith(str(path))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(0, 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(place=st.sampled_from([*sorted(default_library()[15].to_mapping()), "success_probability"]), value=JSON_VALUES)
def test_any_value_in_any_field_is_accepted_or_refused_in_one_line(place, value):
    changed = default_library()[15].to_mapping()
    changed[place] = value
    others = [tool(name) for name in ("data_processing_parser", "network_validator")]
    text = json.dumps({"tools": [*others, changed]})
    try:
        accepted = ToolLibrary.from_json(text, source="mine.json")
    except InvalidInputError:
        refusal(text)
    else:
        assert ToolLibrary.from_json(accepted.to_json()).to_json() == accepted.to_json()


@st.composite
def acyclic_libraries(draw):
    """Draw a library of up to 12 tools whose dependencies point to earlier tools of a hidden order."""
    size = draw(st.integers(1, 12))
    hidden = draw(st.permutations(range(size)))
    tools = []
    for place in range(size):
        earlier = [f"t_{other}" for other in range(size) if hidden[other] < hidden[place]]
        chosen = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3)) if earlier else []
        chance = draw(st.none() | st.floats(0.001, 1.0))
        tools.append(Tool(f"t_{place}", "text", dependencies=tuple(chosen), success_probability=chance))
    return ToolLibrary(tools)


@given(acyclic_libraries())
def test_json_round_trip_levels_and_closures(mine):
    again = ToolLibrary.from_json(mine.to_json())
    assert again == mine
    assert tuple(again) == tuple(mine)
    for item in mine:
        levels = [mine[name].dependency_metadata.level for name in item.dependencies]
        assert item.dependency_metadata.level == (1 + max(levels) if levels else 0)
        closure = set(mine.closure([item.name]))
        assert closure == {item.name}.union(*(mine.closure([name]) for name in item.dependencies))


def test_five_hundred_tools_in_one_chain():
    tools = [tool(f"t_{n}", dependencies=[f"t_{n + 1}"] if n < 499 else []) for n in range(500)]
    mine = library(*tools)
    assert len(mine) == 500
    assert mine["t_0"].dependency_metadata.level == 499
    assert mine.closure(["t_0"]) == mine.names
    assert ToolLibrary.from_json(mine.to_json()) == mine
    tools[499]["dependencies"] = ["t_0"]
    assert "cycle t_0 -> t_1" in refusal(tools)


def test_a_library_of_this_process_is_not_read_again(monkeypatch):
    mine = library(tool("a_b"), tool("c_d", dependencies=["a_b"]))
    text, canonical = mine.to_json(), ToolLibrary.from_json(mine.to_json())
    assert ToolLibrary.of_text(text) is mine
    assert pickle.loads(pickle.dumps(mine)) is mine
    del mine  # as in another process
    again = ToolLibrary.of_text(text)
    monkeypatch.setattr(Tool, "to_mapping", lambda self: pytest.fail("encoded again"))
    assert again.to_json() == text
    assert again.content_hash == hashlib.sha256(text.encode()).hexdigest()
    assert tuple(again) == tuple(canonical)


LIBRARY = default_library()

MATRIX = {
    "data_processing": "parser transformer validator aggregator filter",
    "file_operations": "reader writer scanner compressor converter",
    "network": "fetcher poster monitor validator router",
    "computation": "calculator analyzer optimizer simulator predictor",
    "integration": "connector authenticator mapper queue scheduler",
    "utility": "logger cache notifier tracker helper",
}
NAMES = [f"{category}_{operation}" for category, operations in MATRIX.items() for operation in operations.split()]

DEPENDENCIES = {
    "data_processing_transformer": ("data_processing_parser",),
    "data_processing_validator": ("data_processing_parser",),
    "data_processing_aggregator": ("data_processing_parser",),
    "computation_analyzer": ("data_processing_parser", "data_processing_aggregator"),
    "computation_calculator": ("data_processing_parser", "network_validator"),
    "file_operations_writer": ("data_processing_aggregator",),
    "network_poster": ("data_processing_aggregator",),
    "utility_notifier": ("data_processing_aggregator",),
    "network_validator": ("network_fetcher",),
    "file_operations_compressor": ("file_operations_reader",),
    "file_operations_converter": ("file_operations_reader",),
    "computation_optimizer": ("computation_analyzer",),
    "computation_predictor": ("computation_analyzer",),
    "computation_simulator": ("computation_calculator",),
    "integration_mapper": ("integration_connector",),
    "integration_queue": ("integration_connector",),
    "integration_scheduler": ("integration_queue",),
}


def test_the_packaged_bytes_are_canonical_and_those_of_the_first_release():
    packaged = resources.files("resilisim.tool_library").joinpath("data/default.json").read_bytes()
    assert LIBRARY.to_json().encode("utf-8") == packaged
    assert LIBRARY.content_hash == "4fd573157f97c99ba046004b8e52eff2dd1bf1c221ca3321ad26a484e8a18699"


def test_thirty_tools_in_the_order_of_the_matrix_with_their_dependencies():
    assert list(LIBRARY.names) == [f"{tool.category}_{tool.operation}" for tool in LIBRARY] == NAMES
    assert {name: LIBRARY.dependencies(name) for name in NAMES if LIBRARY.dependencies(name)} == DEPENDENCIES
    order = sorted(LIBRARY, key=lambda tool: tool.dependency_metadata.execution_order)
    assert order[0].name == "file_operations_reader"
    assert Counter(tool.dependency_metadata.level for tool in LIBRARY) == {0: 13, 1: 8, 2: 6, 3: 3}


def test_semantic_types_follow_from_operations():
    assert {role: set(operations) for role, operations in SEMANTIC_TYPES.items()} == {
        "sources": {"reader", "fetcher", "scanner", "authenticator"},
        "processors": {"parser", "transformer", "validator", "analyzer", "calculator"},
        "aggregators": {"aggregator", "combiner", "merger"},
        "outputs": {"writer", "poster", "exporter", "notifier"},
        "utilities": {"logger", "cache", "tracker", "monitor"},
    }
    for tool in LIBRARY:
        assert tool.semantic_type == next((role for role, of in SEMANTIC_TYPES.items() if tool.operation in of), None)
    assert LIBRARY.outputs == {"file_operations_writer", "network_poster", "utility_notifier"}


def test_every_message_template_can_be_filled_from_its_slots():
    for tool in LIBRARY:
        assert tool.error(DEPENDENCY_ERROR) is not None
        for error in tool.errors:
            assert error.description
            for pick in (0, -1):
                message = error.message({slot: options[pick] for slot, options in error.slots.items()})
                assert message
                assert not {"{", "}"} & set(message)
            assert all(options and "{" + slot + "}" in error.template for slot, options in error.slots.items())
    assert "26 seconds" in LIBRARY["utility_helper"].error("TIMEOUT").message({"seconds": "26"})


def test_aliases():
    for alias, name in {
        "data_processing_combiner": "data_processing_aggregator",
        "Data_Processing_Merger": "data_processing_aggregator",
        "file_operations_exporter": "file_operations_writer",
        "UTILITY_HELPER": "utility_helper",
        "utility_oracle": None,
    }.items():
        assert LIBRARY.resolve(alias) == name


ODD_NAMES = [
    "_x",
    "fs/read",
    "naïve",
    "search the web",
    "读取文件",
    "Get",
    "get",
    "a.b",
    "x" * 128,
    "-",
    "_",
    "a:b/c d",
]


def test_names_are_taken_as_they_come_and_have_a_form_as_functions():
    library = ToolLibrary([*(Tool(name, f"Does {place}.") for place, name in enumerate(ODD_NAMES)), Tool("plain", "x")])
    assert ToolLibrary.from_json(library.to_json()) == library
    assert [library.resolve(name) for name in library.names] == list(library.names)
    assert (library.resolve("GET"), library.resolve("PLAIN")) == (None, "plain"), "letter case, where one is meant"
    forms = [library.function_name(name) for name in library.names]
    assert len(set(forms)) == len(forms)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", form) for form in forms), forms
    assert [library.resolve(form) for form in forms] == list(library.names)
    assert library.function_name("plain") == "plain"


def test_a_name_that_looks_like_the_form_of_another_keeps_its_own():
    taken = function_name("fs/read")
    library = ToolLibrary([Tool("fs/read", "Reads."), Tool(taken, "Other.")])
    assert library.resolve(taken) == taken
    assert library.resolve(library.function_name("fs/read")) == "fs/read"
