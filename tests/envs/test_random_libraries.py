"""Random libraries, lists, turns and laws: frozen, within what is stated, and solved where that is asked for."""

from __future__ import annotations

from collections import Counter

import pytest

from resilisim.envs import random_libraries
from resilisim.envs.random_libraries import MAX_CLOSURE, NUM_PARTS, optimum_bracket, random_law, random_settings
from resilisim.provenance import content_hash
from resilisim.seeding import Draws
from resilisim.simulator import build_problem, start_state
from resilisim.simulator.exact import solve
from resilisim.simulator.law import TASK_PARTS
from resilisim.tasks import benchmark_tasks
from resilisim.tool_library import default_library
from resilisim.tool_library.generator import WINDOW, random_library


def _content(drawn):
    options = drawn.options
    law = options.failure_model().to_mapping()
    lists = [[task.instance_id, *task.required_tools] for task in drawn.tasks]
    return content_hash([options.resolved_library().content_hash, law, options.max_turns, lists])


FROZEN = ["1579224803f9", "765a61ab2c3d", "5696eabbedfe"]


def test_settings_are_frozen():
    # Another hash here is another version of what policies were trained and measured on: raise
    # RANDOM_LIBRARIES_VERSION.
    assert random_libraries.RANDOM_LIBRARIES_VERSION == 1
    assert [_content(random_settings("frozen", number, 3))[:12] for number in range(3)] == FROZEN
    assert _content(random_settings("frozen", 1, 3)) == _content(random_settings("frozen", 1, 3))
    assert _content(random_settings("other", 1, 3)) != _content(random_settings("frozen", 1, 3))


def test_what_is_drawn_lies_within_what_is_stated():
    home = benchmark_tasks()[:50]
    drawn = [random_settings("ranges", number, 4, home=home) for number in range(24)]
    at_home = [one for one in drawn if one.options.resolved_library() == default_library()]
    assert 2 <= len(at_home) <= 12
    for one in at_home:
        assert one.options.end_rules().max_turns == 10
        assert {task.instance_id for task in one.tasks} <= {task.instance_id for task in home}
    away = [one for one in drawn if one not in at_home]
    sizes, turns = [len(one.options.resolved_library()) for one in away], [one.options.max_turns for one in away]
    assert 10 <= min(sizes) < 20 < 150 < max(sizes) <= 300
    assert 5 <= min(turns) < 10 < 25 < max(turns) <= 30
    for one in away:
        library, law = one.options.resolved_library(), one.options.failure_model()
        for task in one.tasks:
            assert 2 <= len(task.required_tools) <= min(12, 0.7 * one.options.max_turns)
            assert list(task.required_tools) == sorted(task.required_tools, key=library.index)
            problem = build_problem(library, task.required_tools, law, one.options.end_rules())
            assert len(problem.closure) <= MAX_CLOSURE
    reliabilities = {tool.success_probability for one in away for tool in one.options.resolved_library()}
    assert None in reliabilities
    assert all(0.6 <= one <= 0.98 for one in reliabilities - {None})
    assert len({task.instance_id for one in away for task in one.tasks}) == 4 * len(away)


def test_lists_that_close_over_too_much_are_drawn_again_and_counted(monkeypatch):
    monkeypatch.setattr(random_libraries, "MAX_CLOSURE", 6)
    drawn = random_settings("again", 0, 5, num_tools=40)
    library = drawn.options.resolved_library()
    assert all(len(library.closure(task.required_tools)) <= 6 for task in drawn.tasks)
    assert drawn.refused == {"the dependencies close over more than 6 tools": pytest.approx(20, abs=200)}


def test_libraries_depend_on_earlier_tools_only_and_can_tell_and_open():
    library = random_library(Draws("test"), 90, lambda uniform: uniform or 0.5)
    for number, tool in enumerate(library):
        assert all(number - WINDOW <= library.index(name) < number for name in tool.dependencies)
    assert {"validator", "authenticator"} <= {tool.operation for tool in library}
    assert 0.4 < sum(len(tool.dependencies) for tool in library) / 90 < 1.3


def test_laws_have_parts_as_often_as_stated():
    laws = [random_settings("laws", number, 1, num_tools=10).options.failure_model() for number in range(150)]
    total = sum(NUM_PARTS.values())
    found = [law.parts for law in laws]
    for number, weight in NUM_PARTS.items():
        assert sum(len(parts) == number for parts in found) / 150 == pytest.approx(weight / total, abs=0.12)
    assert set(Counter(part for parts in found for part in parts)) == set(TASK_PARTS)


def test_laws_lie_within_what_is_stated():
    library, draws = random_library(Draws("laws"), 20, lambda _: None), Draws("parts")
    laws = [random_law(draws, library, TASK_PARTS[number % 7 :][:2]) for number in range(400)]
    usual = [(law.base, law.not_executed, law.failed, law.history) == (0.8, 0.5, 0.7, 0.9) for law in laws]
    assert sum(usual) / 400 == pytest.approx(0.5, abs=0.08)
    for number, law in enumerate(laws):
        assert law.parts == TASK_PARTS[number % 7 :][:2]
        assert 0.6 <= law.base <= 0.95
        assert ("broken" in law.parts) == bool(law.equivalents)
        for tool, others in law.equivalents.items():
            assert {library[other].category for other in others} == {library[tool].category}


@pytest.mark.parametrize("part", ["none", "error_kinds"])
def test_values_are_the_optimum_and_what_is_too_large_is_counted(part, monkeypatch):
    monkeypatch.setattr(random_libraries, "MAX_ENTRIES", 3_000)
    monkeypatch.setattr(random_libraries, "MAX_STATES", 300)
    drawn = random_settings("solved", 3, 3, num_tools=12, parts=() if part == "none" else (part,), solved=True)
    library, law = drawn.options.resolved_library(), drawn.options.failure_model()
    for task, value in zip(drawn.tasks, drawn.optima, strict=True):
        problem = build_problem(library, task.required_tools, law, drawn.options.end_rules())
        assert value == pytest.approx(solve(problem).value(start_state(problem)), abs=1e-3)
    assert drawn.refused["too large to be solved"] > 0


@pytest.mark.parametrize(("parts", "number"), [((), 2), (("outage",), 1)], ids=["plain", "outage"])
def test_what_is_measured_is_bounded_where_it_has_no_room(parts, number, monkeypatch):
    drawn = random_settings("bounded", number, 3, num_tools=12, parts=parts, selected=False)
    library, law, rules = drawn.options.resolved_library(), drawn.options.failure_model(), drawn.options.end_rules()
    problems = [build_problem(library, task.required_tools, law, rules) for task in drawn.tasks]
    known = [optimum_bracket(problem) for problem in problems]
    monkeypatch.setattr(random_libraries, "MAX_SEARCHED_STATES", 10)
    monkeypatch.setattr(random_libraries, "MAX_BRACKET_STATES", 20)
    bounded = [optimum_bracket(problem) for problem in problems]
    for (least, most), (low, high) in zip(known, bounded, strict=True):
        assert most - least < 1e-12
        assert 0.0 < low <= least + 1e-12
        assert high >= most - 1e-12
    assert any(high - low > 0.01 for low, high in bounded)
