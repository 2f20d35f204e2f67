"""What a message cost and why: two values and their difference, what was asked before, and what a flawed plan said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.envs.conversation import ConversationEnv
from resilisim.evaluation.episode.attribution import loss_label, sound_steps
from resilisim.evaluation.episode.play import play_episode
from resilisim.policies.registry import make_policy
from resilisim.simulator import FINISH, EndRules, Episode, Law, Message, Outage, build_problem, execution, start_state
from resilisim.simulator.exact import solve
from resilisim.simulator.messages import STOP, WAIT
from resilisim.simulator.problem import is_awaiting_closing, next_state
from resilisim.simulator.state import has_succeeded
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library
from resilisim.workflows import PlannedStep, Step, Workflow
from resilisim.workflows.flaws import FLAW_METHODS, SEVERITIES, FlawedWorkflow, Perturber
from resilisim.workflows.flaws.flaw import Edit
from resilisim.workflows.planner import resolve_planner
from resilisim.workflows.prompts import Prompt
from tests.evaluation.toy_policies import FILTER, PARSER, READER, TRANSFORMER, Scripted, call, task_of
from tests.simulator.test_parts import LAWS, SMALL

FETCHER = "network_fetcher"
USELESS, OTHER_USELESS = "utility_cache", "utility_logger"
THREE = (READER, PARSER, FILTER)
FINISH_TAG = "<finish/>"
METHODS = [(flaw, method) for flaw, methods in FLAW_METHODS.items() for method in methods]


def edit(what, step, original, before, after, name=None):
    return Edit(what, step, original, name, before, after)


def play(messages, required, shown, edits, **options):
    """Play fixed messages under a plan that was made by hand, where calls without missing dependencies succeed."""
    flaw = {"type": "any", "method": "any", "severity": "light", "edits": [one.to_mapping() for one in edits]}
    workflow = Workflow("task", tuple(step if isinstance(step, Step) else Step(step) for step in shown), "exact", 0.5)
    prompt = Prompt("A plan.", "flawed", "exact", workflow, flaw=flaw)
    env = ConversationEnv(search=lambda query, count: [], base=1.0, **{"max_turns": 3, **options})
    return play_episode(env, Scripted(messages), task_of(*required), prompt, 0)


def _planned(steps):
    return [PlannedStep(step.tool, max_tries=step.max_tries, skip_from=step.skip_from) for step in steps]


HELPER = "data_processing_aggregator"  # it needs what is not there, and under this law never succeeds without it
HOPELESS = {"not_executed": 0.0}
SWAPPED = ((PARSER, READER, FILTER), [edit("swapped", 1, 1, f"{READER}, {PARSER}", f"{PARSER}, {READER}")])
REPLACED = ((READER, USELESS, FILTER), [edit("replaced", 2, 2, PARSER, USELESS)])
REMOVED = ((READER, PARSER), [edit("removed", 3, 3, FILTER, None)])
INSERTED = ((READER, USELESS, PARSER, FILTER), [edit("inserted", 2, None, None, USELESS)])
TWICE = ((READER, READER, PARSER, FILTER), [edit("duplicated", 2, 1, None, READER)])
LIMITED = ((Step(HELPER, max_tries=1), Step(USELESS), Step(FETCHER)), INSERTED[1])
UNLIMITED = ((Step(HELPER), Step(USELESS), Step(FETCHER)), INSERTED[1])
LEFT = ((Step(FETCHER), Step(HELPER, skip_from=2)), [edit("removed", 3, 3, READER, None)])
CHANGED = (THREE, [edit("parameter_changed", 1, 1, '"orders.csv"', "7", "source")])
DROPPED = (THREE, [edit("parameter_dropped", 1, 1, '"orders.csv"', None, "source")])
ELSEWHERE = (THREE, [edit("parameter_dropped", 2, 2, '"orders.csv"', None, "source")])
MOVED = ((TRANSFORMER, PARSER), [edit("moved", 1, 2, f"{PARSER}, {TRANSFORMER}", f"{TRANSFORMER}, {PARSER}")])
PARSER_FIRST = ((PARSER, TRANSFORMER), [edit("inserted", 1, None, None, PARSER)])
HOLE = ((READER, FILTER), [edit("removed", 2, 2, PARSER, None)])
STRICT = {"parameters": "strict"}
LOOSE = {"loop_length": 0}


@pytest.mark.parametrize(
    ("plan", "messages", "expected", "options"),
    [
        (SWAPPED, [call(PARSER)], ["obeyed_flaw"], {}),
        (SWAPPED, [call(FILTER)], ["wrong_order"], {}),
        # Who has left the plan and put the order right owes nothing to it afterwards.
        (SWAPPED, [call(READER), call(READER)], [None, "repeated_success"], {}),
        # A moved step, and the step behind a missing one; a plan with the parser first does not say to leave it out.
        (MOVED, [call(TRANSFORMER)], ["obeyed_flaw"], {"required": [TRANSFORMER], "not_executed": 0.5}),
        (
            PARSER_FIRST,
            [call(TRANSFORMER)],
            ["missing_dependency_first"],
            {"required": [TRANSFORMER], "not_executed": 0.5},
        ),
        (HOLE, [call(READER), call(FILTER)], [None, "obeyed_flaw"], {}),
        (HOLE, [call(FILTER)], ["wrong_order"], {}),
        (HOLE, [*map(call, THREE), FINISH_TAG], [None] * 4, {}),
        # Turns were to spare, so the useless call was free.
        (
            REPLACED,
            [call(READER), call(USELESS), call(FILTER), FINISH_TAG],
            [None, None, "obeyed_flaw", None],
            {"max_turns": 6},
        ),
        (REPLACED, [call(READER), call(USELESS)], [None, "obeyed_flaw"], {}),
        (REPLACED, [call(READER), call(OTHER_USELESS)], [None, "unneeded_tool"], {}),
        (REPLACED, [call(USELESS)], ["unneeded_tool"], {}),  # not its turn yet
        # The filter too early, of the agent's own accord: the plan said to run the wrong tool first.
        (REPLACED, [call(READER), call(FILTER)], [None, "wrong_order"], {}),
        # Finishing obeys where the shown plan is done and the sound one is not.
        (REMOVED, [call(READER), call(PARSER), FINISH_TAG], [None, None, "obeyed_flaw"], {"max_turns": 5}),
        (REMOVED, [call(READER), call(PARSER), None], [None, None, "obeyed_flaw"], {"max_turns": 5}),
        (REMOVED, [call(READER), FINISH_TAG], [None, "gave_up_early"], {"max_turns": 5}),
        (INSERTED, [call(READER), call(USELESS), FINISH_TAG], [None, None, "gave_up_early"], {"max_turns": 5}),
        # A flawed step is obeyed behind steps that were left for their limits.
        (LIMITED, [call(HELPER), call(USELESS)], [..., "obeyed_flaw"], {"required": [FETCHER], "max_turns": 2}),
        (UNLIMITED, [call(HELPER), call(USELESS)], [..., "unneeded_tool"], {"required": [FETCHER], "max_turns": 2}),
        # From message 2 on the helper is left, so finishing is what the shown plan says next.
        (LEFT, [call(FETCHER), FINISH_TAG], [None, "obeyed_flaw"], {"required": [FETCHER, READER], "max_turns": 6}),
        # A redundant step is obeyed once at its place; with a turn to spare it was free.
        (TWICE, [call(READER)] * 3, [None, "obeyed_flaw"], LOOSE),
        (TWICE, [call(READER)] * 3, [None, None, "repeated_success", None], {**LOOSE, "max_turns": 4}),
        (INSERTED, [call(READER), call(USELESS)], [None, "obeyed_flaw"], {}),
        (INSERTED, [call(READER), call(OTHER_USELESS)], [None, "unneeded_tool"], {}),
        # A refused value obeys only if it is the flawed one, and the only fault, at its step.
        (CHANGED, [call(READER, {"source": 7})], ["obeyed_flaw"], {}),
        (CHANGED, [call(READER, {"source": 7})], ["obeyed_flaw"], STRICT),
        (CHANGED, [call(READER, {"source": 8})], ["rejected_call"], {}),
        (CHANGED, [call(READER, {"source": 7, "nonsense": 1})], ["rejected_call"], {}),
        (CHANGED, [call(READER, {"nonsense": 1})], ["rejected_call"], {}),
        (CHANGED, [f'<tool_call>{READER} {{"source": </tool_call>'], ["rejected_call"], {}),
        (CHANGED, [call(READER), call(READER, {"source": 7})], [None, "rejected_call"], {}),
        # A dropped parameter is obeyed where it is required.
        (DROPPED, [call(READER, {})], ["obeyed_flaw"], STRICT),
        (DROPPED, [call(READER, {"source": 8})], ["rejected_call"], STRICT),
        (DROPPED, [f"<tool_call>{READER} {{oops}}</tool_call>"], ["rejected_call"], STRICT),
        (ELSEWHERE, [call(READER, {})], ["rejected_call"], STRICT),
    ],
)
def test_what_a_flawed_plan_says_is_told_from_what_the_agent_does_of_its_own_accord(plan, messages, expected, options):
    law = HOPELESS if "required" in options else {}
    record = play(messages, options.pop("required", THREE), *plan, **{**law, **options})
    found = [step["label"] for step in record["steps"]][: len(expected)]
    assert all(one in (..., other) for one, other in zip(expected, found, strict=True)), found


@pytest.mark.parametrize(("flaw", "method"), METHODS)
def test_edits_can_be_undone(flaw, method):
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
def test_an_agent_that_does_the_plan_to_the_letter_loses_by_the_flaw_alone(flaw, method):
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


@given(
    said=st.lists(st.tuples(st.sampled_from(MESSAGES), st.booleans()), min_size=1, max_size=8),
    rules=st.sampled_from([EndRules(), EndRules(5, 2, 2), EndRules(4, 0, 0)]),
)
def test_a_judgement_is_the_two_values_that_it_stands_for(said, rules):
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


A, B = map(execution, "ab")


# What went before, as messages and what they brought; then a message that gives something away, and why.
@pytest.mark.parametrize(
    ("law", "before", "said", "reason"),
    [
        ("rate limit of tools", [(A, "failure")], A, "rate_limited_call"),
        ("error kinds", [(A, "input_failure")], A, "repeated_invalid_call"),
        ("error kinds", [(A, "access_failure")], A, "call_without_access"),
        ("long outages", [(A, "outage")], A, "did_not_wait"),
        ("outage", [(A, "failure")], WAIT, "waited_in_vain"),
        ("broken with an equivalent", [(A, "failure"), (A, "failure")], A, "kept_at_broken_tool"),
        ("corrupt", [(A, "corrupt"), (B, "success")], B, "believed_corrupt_data"),
        ("corrupt", [(A, "success"), (B, "corrupt")], FINISH, "believed_corrupt_data"),
    ],
)
def test_what_a_law_would_have_asked_for_is_named(law, before, said, reason):
    laws = LAWS | {"long outages": Law(outage=Outage(0.05, 0.15))}
    problem = build_problem(SMALL, ["a", "b"], laws[law], EndRules(9, 0, 0))
    for seed in range(1000):
        episode = Episode(problem, "reasons", seed)
        if all(episode.apply(message).result == result for message, result in before):
            break
    else:
        pytest.fail(f"no episode brings {before}")
    optimum = solve(problem)
    assert optimum.value(episode.state) - optimum.action_value(episode.state, said) > 0.001
    assert loss_label(problem, episode.state, said, plan_in_prompt=True) == reason
