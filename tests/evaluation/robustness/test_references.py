"""The exact references of a profile: of the right tasks, the right setting, the right plans; and monotone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import ExactLimitError
from resilisim.evaluation.robustness.analysis import carried_at_every_severity, obedience, setting_references
from resilisim.simulator.end_rules import EndRules
from resilisim.simulator.exact import bound
from resilisim.simulator.law import Law
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library
from resilisim.workflows.flaws import SEVERITIES
from resilisim.workflows.flaws.flaw import STRESSORS
from resilisim.workflows.plan_value import costs_of_tasks
from tests.evaluation.toy_policies import toy_tasks

STANDARD = EnvironmentSettings()
LIBRARY = default_library()


def ignore(count: int) -> None:
    pass


def task_of(tools: list[str]) -> Task:
    return Task.from_mapping({"required_tools": tools, "description": "Do it.", "task_type": "toy"}, LIBRARY)


def test_references_are_those_of_each_task_under_the_setting() -> None:
    tasks = toy_tasks(5)
    counted: list[int] = []
    searches = [None, 0, 1, 1, None]
    for changed in (STANDARD, replace(STANDARD, base=0.55, max_turns=6)):
        found = setting_references(tasks, changed, LIBRARY, counted.append, searches)
        for place, task in enumerate(tasks):
            expected, fewer = (
                bound(
                    task.required_tools,
                    law=Law(base=changed.base),
                    rules=EndRules(max_turns=turns),
                    clairvoyant_seeds=0,
                )
                for turns in (changed.max_turns, changed.max_turns - (searches[place] or 0))
            )
            assert found.optimum[place] == expected["optimum"]
            assert found.plan_following[place] == expected["plan_following"]
            assert found.after_search[place] == pytest.approx(fewer["optimum"], abs=1e-15)
        assert found.gap == 0.0
    assert sum(counted) == 2 * len(tasks)


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from(LIBRARY.names), min_size=1, max_size=3, unique=True),
    st.floats(0.05, 0.95),
    st.floats(0.0, 1.0),
    st.integers(1, 6),
)
def test_more_reliable_tools_and_more_turns_never_lower_the_optimum(
    tools: list[str], base: float, further: float, turns: int
) -> None:
    task = task_of(tools)

    def optimum(base: float, turns: int) -> float:
        changed = replace(STANDARD, base=base, max_turns=turns)
        return float(setting_references([task], changed, LIBRARY, ignore, [None]).optimum[0])

    here = optimum(base, turns)
    assert optimum(base + further * (1.0 - base), turns) >= here - 1e-12
    assert optimum(base, turns + 1) >= here - 1e-12


def test_a_task_that_cannot_be_solved_is_named() -> None:
    task = task_of(list(LIBRARY.names))
    with pytest.raises(ExactLimitError, match=f"task {task.instance_id}, 9000 turns: the exact optimum of 30"):
        setting_references([task], replace(STANDARD, max_turns=9000), LIBRARY, ignore, [None])


def test_obedience_in_strict_mode_is_what_flaws_cost() -> None:
    tasks = list(benchmark_tasks()[:12])
    cells = [(flaw, severity) for flaw in STRESSORS for severity in SEVERITIES]
    sound, flawed = obedience(tasks, replace(STANDARD, parameters="strict"), LIBRARY, cells, ignore)
    env = ConversationEnv(parameters="strict")
    for place, (task, costs) in enumerate(zip(tasks, costs_of_tasks(tasks), strict=True)):
        assert sound[place] == costs.sound.obey
        for flaw, severity in cells:
            either = [costs.flawed.get((flaw, method, severity)) for method in STRESSORS[flaw]]
            if not any(either):
                assert np.isnan(flawed[flaw, severity][place])
                continue
            # The very flaw that the prompt of an episode shows.
            shown = env.prompt(task, f"flawed:{flaw}:{severity}").flaw
            assert shown is not None
            expected, _ = costs.flawed[flaw, shown["method"], severity]
            assert flawed[flaw, severity][place] == expected.obey


def test_calls_are_refused_as_the_setting_says() -> None:
    tasks = list(benchmark_tasks()[:12])
    cells = [("parameter_error", "severe")]
    means = {
        mode: float(obedience(tasks, replace(STANDARD, parameters=mode), LIBRARY, cells, ignore)[1][cells[0]].mean())
        for mode in ("strict", "lenient", "ignore")
    }
    assert means["strict"] == 0.0  # a call without its parameters, or with wrong ones, is never executed
    assert means["strict"] < means["lenient"] < means["ignore"]  # only wrong ones are refused; nothing is


def test_a_flaw_is_carried_where_the_plan_carries_it_at_every_severity() -> None:
    chances = {
        ("missing_step", "light"): np.array([0.5, np.nan, 0.0]),
        ("missing_step", "severe"): np.array([0.5, 0.1, np.nan]),
    }
    carried = carried_at_every_severity(chances, ["missing_step"], ["light", "severe"])
    assert carried["missing_step"].tolist() == [True, False, False]
