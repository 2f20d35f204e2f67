"""What a message cost and why: two values and their difference, what was asked before, and what a flawed plan said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilisim.envs.conversation import ConversationEnv
from resilisim.evaluation.episode.attribution import identity_error, sound_steps
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.policies.registry import make_policy
from resilisim.policies.scripted import RandomPolicy
from resilisim.simulator import FINISH, STOP, EndRules, Message, build_problem, execution, next_state, start_state
from resilisim.simulator.exact import solve
from resilisim.simulator.state import has_succeeded, is_awaiting_closing
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library
from resilisim.workflows import PlannedStep, Step, Workflow
from resilisim.workflows.flaws import FLAW_METHODS, SEVERITIES, Edit, FlawedWorkflow, Perturber
from resilisim.workflows.planner import resolve_planner
from resilisim.workflows.prompts import Prompt
from tests.evaluation.toy_policies import Scripted

READER, PARSER, FILTER = "file_operations_reader", "data_processing_parser", "data_processing_filter"
FETCHER = "network_fetcher"
TRANSFORMER = "data_processing_transformer"
USELESS, OTHER_USELESS = "utility_cache", "utility_logger"
THREE = (READER, PARSER, FILTER)
FINISH_TAG = "<finish/>"
METHODS = [(flaw, method) for flaw, methods in FLAW_METHODS.items() for method in methods]


def task_of(*tools: str) -> Task:
    return Task.from_mapping({"required_tools": list(tools), "description": "Do it."}, default_library())


def call(tool: str, parameters: Mapping[str, Any] | None = None) -> str:
    given = "" if parameters is None else " " + json.dumps(parameters)
    return f"<tool_call>{tool}{given}</tool_call>"


def edit(what: str, step: int, original: int | None, before: str | None, after: str | None, name: str | None = None):
    return Edit(what, step, original, name, before, after)


def play(
    messages: Sequence[str | None],
    required: Sequence[str],
    shown: Sequence[str | Step],
    edits: Sequence[Edit],
    **options: Any,
) -> EpisodeRecord:
    """Play fixed messages under a plan that was made by hand, where calls without missing dependencies succeed."""
    flaw = {"type": "any", "method": "any", "severity": "light", "edits": [one.to_mapping() for one in edits]}
    workflow = Workflow("task", tuple(step if isinstance(step, Step) else Step(step) for step in shown), "exact", 0.5)
    prompt = Prompt("A plan.", "flawed", "exact", workflow, flaw=flaw)
    env = ConversationEnv(search=lambda query, count: [], base=1.0, **{"max_turns": 3, **options})
    return play_episode(env, Scripted(messages), task_of(*required), prompt, 0)


def _planned(steps: Sequence[Step]) -> list[PlannedStep]:
    return [PlannedStep(step.tool, max_tries=step.max_tries, skip_from=step.skip_from) for step in steps]


def labels(record: EpisodeRecord) -> list[str | None]:
    return [step["label"] for step in record["steps"]]


def test_a_swapped_step_that_is_done_first_obeys_and_another_wrong_order_does_not() -> None:
    shown, edits = (PARSER, READER, FILTER), [edit("swapped", 1, 1, f"{READER}, {PARSER}", f"{PARSER}, {READER}")]
    assert labels(play([call(PARSER)], THREE, shown, edits))[0] == "obeyed_flaw"
    assert labels(play([call(FILTER)], THREE, shown, edits))[0] == "wrong_order"
    # Who has left the plan and put the order right owes nothing to it afterwards.
    done = [call(READER), call(READER)]
    assert labels(play(done, THREE, shown, edits))[:2] == [None, "repeated_success"]


def test_a_moved_step_and_the_step_behind_a_missing_one_are_obeyed() -> None:
    shown = (TRANSFORMER, PARSER)
    edits = [edit("moved", 1, 2, f"{PARSER}, {TRANSFORMER}", f"{TRANSFORMER}, {PARSER}")]
    assert labels(play([call(TRANSFORMER)], [TRANSFORMER], shown, edits, not_executed=0.5))[0] == "obeyed_flaw"
    sound = play([call(TRANSFORMER)], [TRANSFORMER], (PARSER, TRANSFORMER), [edit("inserted", 1, None, None, PARSER)])
    assert labels(sound)[0] == "missing_dependency_first"  # that plan says to run the parser first
    shown, edits = (READER, FILTER), [edit("removed", 2, 2, PARSER, None)]
    assert labels(play([call(READER), call(FILTER)], THREE, shown, edits))[1] == "obeyed_flaw"
    assert labels(play([call(FILTER)], THREE, shown, edits))[0] == "wrong_order"
    assert labels(play([call(READER), call(PARSER), call(FILTER), FINISH_TAG], THREE, shown, edits)) == [None] * 4


def test_a_wrong_tool_and_what_comes_after_it_obey() -> None:
    shown, edits = (READER, USELESS, FILTER), [edit("replaced", 2, 2, PARSER, USELESS)]
    to_the_letter = play([call(READER), call(USELESS), call(FILTER), FINISH_TAG], THREE, shown, edits, max_turns=6)
    assert labels(to_the_letter) == [
        None,
        None,
        "obeyed_flaw",
        None,
    ]  # turns were to spare, so the useless call was free
    assert labels(play([call(READER), call(USELESS)], THREE, shown, edits))[1] == "obeyed_flaw"
    assert labels(play([call(READER), call(OTHER_USELESS)], THREE, shown, edits))[1] == "unneeded_tool"
    assert labels(play([call(USELESS)], THREE, shown, edits))[0] == "unneeded_tool"  # not its turn yet
    # The filter too early, of the agent's own accord: the plan said to run the wrong tool first.
    assert labels(play([call(READER), call(FILTER)], THREE, shown, edits))[1] == "wrong_order"


def test_finishing_obeys_where_the_shown_plan_is_done_and_the_sound_one_is_not() -> None:
    shown, edits = (READER, PARSER), [edit("removed", 3, 3, FILTER, None)]
    assert labels(play([call(READER), call(PARSER), FINISH_TAG], THREE, shown, edits, max_turns=5))[2] == "obeyed_flaw"
    assert labels(play([call(READER), call(PARSER), None], THREE, shown, edits, max_turns=5))[2] == "obeyed_flaw"
    assert labels(play([call(READER), FINISH_TAG], THREE, shown, edits, max_turns=5))[1] == "gave_up_early"
    inserted = [edit("inserted", 2, None, None, USELESS)]
    both = play(
        [call(READER), call(USELESS), FINISH_TAG], THREE, (READER, USELESS, PARSER, FILTER), inserted, max_turns=5
    )
    assert labels(both)[2] == "gave_up_early"


def test_a_flawed_step_is_obeyed_behind_steps_that_were_left_for_their_limits() -> None:
    # The helper never succeeds: it needs what is not there, and nothing without its dependency ever does.
    helper, hopeless = "data_processing_aggregator", {"not_executed": 0.0, "max_turns": 6}
    shown = (Step(helper, max_tries=1), Step(USELESS), Step(FETCHER))
    edits = [edit("inserted", 2, None, None, USELESS)]
    turns = [call(helper), call(USELESS), call(FETCHER), FINISH_TAG]
    assert labels(play(turns, [FETCHER], shown, edits, **{**hopeless, "max_turns": 2}))[1] == "obeyed_flaw"
    unlimited = (Step(helper), Step(USELESS), Step(FETCHER))
    assert labels(play(turns, [FETCHER], unlimited, edits, **{**hopeless, "max_turns": 2}))[1] == "unneeded_tool"
    # From message 2 on the helper is left, so finishing is what the shown plan says next.
    shown = (Step(FETCHER), Step(helper, skip_from=2))
    removed = [edit("removed", 3, 3, READER, None)]
    record = play([call(FETCHER), FINISH_TAG], [FETCHER, READER], shown, removed, **hopeless)
    assert labels(record)[1] == "obeyed_flaw"


def test_a_redundant_step_is_obeyed_once_at_its_place() -> None:
    twice, edits = (READER, READER, PARSER, FILTER), [edit("duplicated", 2, 1, None, READER)]
    again = labels(play([call(READER)] * 3, THREE, twice, edits, max_turns=3, loop_length=0))
    assert again[:2] == [None, "obeyed_flaw"]
    again = labels(play([call(READER)] * 3, THREE, twice, edits, max_turns=4, loop_length=0))
    assert again == [None, None, "repeated_success", None]  # the copy was free, and one more is the agent's own
    useless, edits = (READER, USELESS, PARSER, FILTER), [edit("inserted", 2, None, None, USELESS)]
    assert labels(play([call(READER), call(USELESS)], THREE, useless, edits))[1] == "obeyed_flaw"
    assert labels(play([call(READER), call(OTHER_USELESS)], THREE, useless, edits))[1] == "unneeded_tool"


def test_a_refused_value_obeys_only_if_it_is_the_flawed_one_and_the_only_fault() -> None:
    edits = [edit("parameter_changed", 1, 1, '"orders.csv"', "7", "source")]

    def first(given: Mapping[str, Any], **options: Any) -> str | None:
        return labels(play([call(READER, given)], THREE, THREE, edits, **options))[0]

    assert first({"source": 7}) == "obeyed_flaw"
    assert first({"source": 7}, parameters="strict") == "obeyed_flaw"
    assert first({"source": 8}) == "rejected_call"
    assert first({"source": 7, "nonsense": 1}) == "rejected_call"
    assert first({"nonsense": 1}) == "rejected_call"
    broken = play(["<tool_call>" + READER + ' {"source": </tool_call>'], THREE, THREE, edits)
    assert labels(broken)[0] == "rejected_call"
    later = play([call(READER), call(READER, {"source": 7})], THREE, THREE, edits)
    assert labels(later)[1] == "rejected_call"  # the reader's step is done


def test_a_dropped_parameter_is_obeyed_where_it_is_required() -> None:
    edits = [edit("parameter_dropped", 1, 1, '"orders.csv"', None, "source")]
    assert labels(play([call(READER, {})], THREE, THREE, edits, parameters="strict"))[0] == "obeyed_flaw"
    assert labels(play([call(READER, {"source": 8})], THREE, THREE, edits, parameters="strict"))[0] == "rejected_call"
    unreadable = play(["<tool_call>" + READER + " {oops}</tool_call>"], THREE, THREE, edits, parameters="strict")
    assert labels(unreadable)[0] == "rejected_call"
    elsewhere = [edit("parameter_dropped", 2, 2, '"orders.csv"', None, "source")]
    assert labels(play([call(READER, {})], THREE, THREE, elsewhere, parameters="strict"))[0] == "rejected_call"


def test_what_is_asked_again_brings_nothing_however_long_ago_it_was() -> None:
    search = "<tool_search>read  a FILE</tool_search>"
    info = f"<tool_info>{READER}</tool_info>"
    env = ConversationEnv(search=lambda query, count: [], max_turns=6)
    messages = [search, info, "<tool_search>Read a file</tool_search>", info]
    for prompt, first in (("baseline", "information"), ("optimal", "wasted_turn")):
        record = play_episode(env, Scripted(messages), task_of(*THREE), prompt, 0)
        assert labels(record)[:4] == [first, first, "repeated_search", "repeated_search"]


def test_without_a_flaw_in_the_prompt_nothing_is_put_down_to_one() -> None:
    env = ConversationEnv(search=lambda query, count: [])
    for prompt in ("baseline", "optimal"):
        for seed in range(5):
            record = play_episode(env, make_policy("random"), benchmark_tasks()[seed], prompt, seed)
            assert "obeyed_flaw" not in record["losses"]


@pytest.mark.parametrize(("flaw", "method"), METHODS)
def test_edits_can_be_undone(flaw: str, method: str) -> None:
    planner, perturber = resolve_planner("exact", default_library()), Perturber()
    undone = 0
    for task in benchmark_tasks()[::240]:
        for severity in SEVERITIES:
            found = perturber.perturb(planner.plan(task), task.required_tools, flaw, severity, method)
            if isinstance(found, FlawedWorkflow):
                undone_steps = sound_steps(_planned(found.workflow.steps), found.flaw_mapping()["edits"])
                sound = _planned(found.original.steps)
                assert [step.tool for step in undone_steps] == [step.tool for step in sound]
                gone = {one.before for one in found.edits if one.what == "removed"}
                assert all(one == other or one.tool in gone for one, other in zip(undone_steps, sound, strict=True))
                undone += 1
    assert undone > 10


@pytest.mark.parametrize(("flaw", "method"), METHODS)
def test_an_agent_that_does_the_plan_to_the_letter_loses_by_the_flaw_alone(flaw: str, method: str) -> None:
    """Where no tool ever fails, a sound plan costs nothing, so all losses of who follows the flawed one are its own."""
    never_failing = {"base": 1.0, "not_executed": 1.0, "failed": 1.0}
    env = ConversationEnv(max_turns=7, parameters="strict", search=lambda query, count: [], **never_failing)
    planner = resolve_planner("exact", env.library, env.law, env.rules)
    perturber = Perturber(env.library, env.rules)
    obeyed = 0
    for task in benchmark_tasks()[5::360]:
        workflow = planner.plan(task)
        found = perturber.perturb(workflow, task.required_tools, flaw, "severe", method)
        if not isinstance(found, FlawedWorkflow):
            continue
        prompt = f"flawed:{flaw}:severe:{method}"
        record = play_episode(env, make_policy("plan-follower"), task, prompt, 1)
        assert set(record["losses"]) <= {"obeyed_flaw"}
        obeyed += bool(record["losses"])
        sound = [call(step.tool, step.parameters) for step in found.original.steps]
        record = play_episode(env, Scripted([*sound, FINISH_TAG]), task, prompt, 1)
        assert record["losses"] == {}
        assert record["outcome"] == 1
    assert obeyed > 0


TOOLS = ("file_operations_reader", "data_processing_parser", "data_processing_transformer", "utility_logger")
MESSAGES = (*map(execution, TOOLS), Message("search", query="a"), Message("format_error", text="hm"), FINISH, STOP)


@settings(max_examples=200, deadline=None)
@given(
    said=st.lists(st.tuples(st.sampled_from(MESSAGES), st.booleans()), min_size=1, max_size=8),
    rules=st.sampled_from([EndRules(), EndRules(5, 2, 2), EndRules(4, 0, 0)]),
)
def test_a_judgement_is_the_two_values_that_it_stands_for(said: list[tuple[Message, bool]], rules: EndRules) -> None:
    problem = build_problem(default_library(), (TOOLS[0], TOOLS[2]), rules=rules)
    optimum, state = solve(problem), start_state(problem)
    for message, success in said:
        if state.ended_by is not None:
            break
        after = next_state(problem, state, message, success)
        executes = message.kind == "execute" and not is_awaiting_closing(problem, state)
        assert has_succeeded(state, message, after) == (executes and success)
        assert optimum.judge(state, message, after) == (optimum.action_value(state, message), optimum.value(after))
        state = after


@pytest.mark.parametrize("options", [{}, {"loop_length": 2, "max_turns": 5}, {"base": 0.5, "failed": 1.0}])
def test_the_identity_holds_for_random_policies_under_flawed_prompts(options: dict[str, Any]) -> None:
    env = ConversationEnv(search=lambda query, count: [], **options)
    for number, task in enumerate(task for task in benchmark_tasks()[::700] if len(task.required_tools) > 2):
        for prompt in ("baseline", "flawed:redundant_operation", "flawed:tool_misuse:severe"):
            for seed in range(4):
                record = play_episode(env, RandomPolicy(seed=number), task, prompt, seed)
                assert identity_error(record) < 1e-12
                assert sum(record["losses"].values()) == pytest.approx(record["regret"], abs=1e-12)
                for step in record["steps"]:
                    assert (step["label"] is None) == (step["regret"] == 0.0)
