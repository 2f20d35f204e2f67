from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.errors import InvalidInputError
from resilisim.worlds import ToolError, World, load_world
from resilisim.worlds.base import WORLDS, Grade, names_world, reference_calls, resolve_parameters, world_tasks
from tests.worlds import notebook

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


def test_a_world_of_ones_own_is_named_by_module_and_attribute() -> None:
    world = load_world(notebook.NAME)
    assert isinstance(world, World)
    assert world is load_world(notebook.NAME)
    assert all(task.metadata["world"] == world.name for task in world.tasks())


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere-v9", "unknown world 'nowhere-v9'"),
        ("tests.worlds.notebook:Noteboo", "did you mean 'Notebook'?"),
        ("tests.worlds.notebok:Notebook", "cannot import tests.worlds.notebok"),
        ("tests.worlds.notebook:NUM_PAGES", "gives a int: expected name, library, tasks, open and grade"),
        (":x", "expected module:attribute"),
    ],
)
def test_names_that_mean_no_world_are_refused_in_one_line(name: str, told: str) -> None:
    with pytest.raises(InvalidInputError, match=r".") as refused:
        load_world(name)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_each_world_that_ships_is_there(name: str) -> None:
    module, _, attribute = WORLDS[name].partition(":")
    assert hasattr(__import__(module, fromlist=[attribute]), attribute)


def test_reference_solutions_lead_to_the_answer() -> None:
    world = load_world(notebook.NAME)
    for task in world.tasks():
        workspace, results = world.open(task, 0), {}
        for call in reference_calls(task):
            results[call.save] = workspace.call(call.tool, resolve_parameters(call.parameters, results))
        assert world.grade(task, str(results["total"]["value"]), []).correct
        used = list(dict.fromkeys(call.tool for call in reference_calls(task)))
        assert list(task.required_tools) == used


@given(JSON)
def test_values_of_earlier_results_keep_their_type_alone_and_are_written_into_texts(value: object) -> None:
    results = {"a": {"rows": [{"b": value}]}}
    assert resolve_parameters({"x": ["${a.rows.0.b}"]}, results) == {"x": [value]}
    written = resolve_parameters({"x": "<${a.rows.0.b}>"}, results)["x"]
    assert written == f"<{value}>" if isinstance(value, str) else written.startswith("<")


@pytest.mark.parametrize("path", ["b", "a.c", "a.rows.1", "a.rows.x", "a.rows.0.b.d", ""])
def test_a_reference_to_nothing_says_where_it_ends(path: str) -> None:
    with pytest.raises(InvalidInputError, match="nothing is called" if path else "."):
        resolve_parameters({"x": "${" + path + "}" if path else "${ }"}, {"a": {"rows": [{"b": 1}]}})


def test_a_grade_is_between_0_and_1_and_a_tool_error_travels() -> None:
    with pytest.raises(InvalidInputError, match="score of a grade"):
        Grade(True, 1.5)
    error = pickle.loads(pickle.dumps(ToolError("GONE", "it is gone")))
    assert (error.code, error.message, str(error)) == ("GONE", "it is gone", "GONE: it is gone")


@pytest.mark.parametrize(
    ("ref", "is_world"),
    [
        ("pages-v1", True),
        ("pages-v9", True),
        ("recordsv1:20", True),
        ("benchmark-v2", False),
        ("100", False),
        ("task_7f3a", False),
        ("pages.jsonl", False),
        ("foo", False),
        ("x" * 5_000, False),
    ],
)
def test_a_name_that_is_nearly_that_of_a_world_means_it(ref: str, is_world: bool) -> None:
    assert names_world(ref) is is_world
    if is_world and ref != "pages-v1":
        with pytest.raises(InvalidInputError, match=r"unknown world '.*': did you mean '(pages|records)-v1'\?"):
            world_tasks(ref)


def test_a_file_of_tasks_keeps_its_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page").touch()
    assert not names_world("page")
