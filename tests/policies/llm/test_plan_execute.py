"""Plan-and-Execute, branch by branch, with a scripted model and scripted tools."""

from __future__ import annotations

import json

import pytest

from resilisim.chat import ScriptedChatModel
from resilisim.chat.scripted_models import ScriptedReply
from resilisim.envs.reply import CallResult
from resilisim.policies.llm.agent_run import EpisodeEnded
from resilisim.policies.llm.agents.plan_execute import PlanAndExecute
from tests.policies.llm import helpers
from tests.policies.llm.helpers import NONSENSE, ScriptedToolbox, executor, extractor, planner, replanner, spec

TASK = "Fetch {it} and store ${it}."
MALFORMED = {**NONSENSE, "invalid JSON": '{"steps": [{"step": 1, "task": '}
DIRECT = {"executor": "direct", "replan": "failure"}


def plan(*steps: dict | str, **more: object) -> str:
    return json.dumps({"steps": list(steps), **more})


def call(number: int, tool: str | None, arguments: object = None, **more: object) -> dict:
    return {"step": number, "task": f"task {number}", "tool": tool, "arguments": arguments or {}, **more}


A, B = call(1, "fetch", {"key": "a"}), call(2, "fetch", {"key": "b"})


def storing(what: object) -> dict:
    return call(2, "store", {"what": what})


def plans(*steps: dict | str, **more: object) -> ScriptedReply:
    return planner(plan(*steps, **more))


def once_more(*steps: dict | str, expect: str = "", **more: object) -> ScriptedReply:
    return replanner(plan(*steps, **more), expect)


def finishes(answer: str, expect: str = "") -> ScriptedReply:
    return executor(f"Action: finish[{answer}]", expect)


def answers(answer: str, expect: str = "") -> ScriptedReply:
    return replanner(json.dumps({"answer": answer}), expect)


NO = answers("no")
UNREADABLE = [replanner("?")] * 2


def play(script, fetch=(), store=(), task=TASK, turns_left=None, **options):
    tools = ScriptedToolbox([spec("fetch", "key"), spec("store", what="object")], {"fetch": fetch, "store": store})
    policy = PlanAndExecute(models=ScriptedChatModel(script), **options)
    return helpers.play(policy, tools, task, turns_left=turns_left)


def plan_of(played) -> list[dict]:
    return played.structure["attempts"][-1]["plan"]


def statuses(played) -> list[tuple[int, str]]:
    return [(step["step"], step["status"]) for step in plan_of(played)]


FAILED = CallResult("fetch failed.\nError: TIMEOUT: late", "TIMEOUT: late")


def test_sub_agents_do_the_steps_and_the_replanner_answers():
    played = play(
        [
            planner(
                plan({"step": 1, "task": "Fetch it", "needs": []}, {"step": 2, "task": "Store it", "needs": [1]}), TASK
            ),
            executor('Action: fetch {"key": "a"}', "Your step:\nFetch it"),
            finishes("got 41", "Observation: 41"),
            once_more({"step": 2, "task": "Store it", "needs": [1]}, expect="Result: got 41"),
            executor('Action: store {"what": {"id": 41}}', "Step 1 (Fetch it):\ngot 41"),
            finishes("stored 41", "Observation: ok"),
            answers("41 is stored", "Result: stored 41"),
        ],
        fetch=["41"],
        store=["ok"],
    )
    assert played.answer == "41 is stored"
    assert statuses(played) == [(1, "done"), (2, "done")]
    assert played.failures == []
    assert played.counters == {}, "repeating the plan is no replan"
    assert played.kinds == ["plan", "task_done", "task_done"]
    assert "greenhouse" in played.system(0)


def test_a_step_is_shown_the_results_that_it_needs_and_no_others():
    steps = [{"step": n, "task": f"task {n}", "needs": needs} for n, needs in ((1, []), (2, []), (3, [2]))]
    played = play([plans(*steps), *[executor(f"Action: finish[result {n}]") for n in (1, 2, 3)]], replan="failure")
    assert played.answer == "result 3", "the last step's result is the answer"
    shown = played.told(3)
    assert "result 2" in shown
    assert "result 1" not in shown


@pytest.mark.parametrize(("arguments", "shown"), [({"key": "{a}"}, '{"key": "{a}"}'), ('{"key": ', '{"key":')])
def test_a_tool_that_the_plan_names_is_a_suggestion_to_the_sub_agent(arguments, shown):
    script = [plans(call(1, "fetch", arguments)), finishes("A", f"task 1\nThe plan suggests: fetch {shown}")]
    assert play(script, replan="failure").answer == "A"


def test_a_failed_step_stays_in_the_history_and_is_made_good():
    played = play(
        [
            plans(A, storing({"id": "{step_1}"})),
            replanner(
                plan(call(3, "fetch", {"key": "a"}), call(4, "store", {"what": {"id": "{step_3}"}})),
                "FAILED: fetch: TIMEOUT",
            ),
            extractor('{"what": {"id": 41}}', "Result of step 3:\n41"),
        ],
        fetch=[FAILED, "41"],
        store=["ok"],
        **DIRECT,
    )
    assert played.answer == "ok"
    assert played.calls == [("fetch", {"key": "a"})] * 2 + [("store", {"what": {"id": 41}})]
    assert statuses(played) == [(1, "failed"), (3, "done"), (4, "done")]
    assert played.failures == [], "what was made good fails no episode"
    assert played.counters == {"failed_steps": 1, "replans": 1}


@pytest.mark.parametrize("reply", MALFORMED.values(), ids=list(MALFORMED))
def test_a_plan_or_replan_that_cannot_be_read_is_asked_for_once_more_and_without_one_its_author_has_failed(reply):
    right = planner(plan("a"), "could not be used")
    played = play([planner(reply), right, finishes("A")], replan="failure")
    assert played.answer == "A"
    assert played.counters == {"malformed_replies": 1}
    assert played.longest < 20_000
    played = play([planner(reply), planner(reply)])
    assert played.answer is None
    assert [component for component, _ in played.failures] == ["planner"]
    assert played.counters == {"malformed_replies": 2}
    unreadable = [replanner(reply), replanner(reply)]
    played = play([plans("a", "b"), finishes("A"), *unreadable, finishes("B"), *unreadable])
    assert played.answer == "B", "after a success the plan is kept"
    assert "keeping to the plan" in str(played.run.transcript.events)
    played = play([plans(A, call(2, "store")), *unreadable], fetch=[FAILED], executor="direct")
    assert played.answer is None
    assert [component for component, _ in played.failures] == ["tool", "replanner"]


def test_an_empty_plan_without_an_answer_is_a_failure():
    played = play([planner('{"steps": []}')])
    assert (played.answer, played.failures) == (None, [("planner", "the plan is empty")])
    assert play([planner('{"answer": "known"}')]).answer == "known"
    played = play([plans("a"), finishes("A"), replanner('{"steps": []}')])
    assert played.answer is None
    assert played.failures == [("replanner", "the replanner gave neither steps nor an answer")]


def test_steps_beside_an_answer_are_done():
    script = [plans("a", answer="too early"), finishes("A"), once_more("b", answer="too early"), finishes("B")]
    played = play([*script, answers("now")])
    assert played.answer == "now"
    assert str(played.run.transcript.events).count("passed over") == 2


def test_a_sub_agent_that_does_not_finish_fails_its_step():
    script = [plans("a"), *[executor("Action: fetch[x]")] * 2, once_more("again"), finishes("A")]
    played = play([*script, answers("done")], fetch=["1", FAILED], steps=2)
    assert played.answer == "done"
    assert plan_of(played)[0]["kind"] == "executor"
    assert "TIMEOUT" in plan_of(played)[0]["error"]
    assert played.failures == []
    empty = play([plans("a"), executor("Action: finish"), *UNREADABLE])
    assert empty.failures[0] == ("executor", "the executor finished without a result")


def test_restart_from_scratch():
    failing = [planner('{"steps": []}')]
    played = play([*failing, *failing, plans("a"), finishes("A")], restart=True, replan="failure")
    assert (played.answer, played.failures) == ("A", [])
    assert played.counters == {"restarts_from_scratch": 2}
    assert len(played.structure["attempts"]) == 3
    assert play(failing * 3, restart=True, restarts=2).answer is None
    assert play(failing, restart=True, turns_left=0).answer is None, "nothing could be done any more"
    assert play(failing).answer is None
    played = play([*failing, plans(A)], fetch=[EpisodeEnded()], restart=True, **DIRECT)
    assert (played.answer, played.failures) == (EpisodeEnded, [("planner", "the plan is empty")])


@pytest.mark.parametrize(
    ("step", "kind", "problem"),
    [
        *(
            (call(2, "fetch", {"key": [words]}), "reference", words)
            for words in ("{step_N}", "{step}", "{step_99999}", "{{ steps[1].result }}", "{{ last step }}")
        ),
        (storing({"id": ["{step_3}"]}), "reference", "step 3, which has not been done"),
        (storing({"id": "{step_7}"}), "reference", "step 7, which has not been done"),
        (call(2, "fetch", {"key": "b"}, needs=[9]), "reference", "step 9, which has not been done"),
        (call(2, "fetch", {"kee": "a"}), "arguments", "fetch has no parameter 'kee'"),
        (call(2, "fetch", {"key": 5}), "arguments", "'key' is"),
        (call(2, "fetch"), "arguments", "needs the parameter 'key'"),
        *(
            (call(2, "fetch", raw), "arguments", "cannot be read")
            for raw in ('{"key": "a', "{key: }", '["a", "b"]', "{'key': {1, 2}}")
        ),
    ],
)
def test_a_call_that_cannot_be_made_is_not_made_and_says_why(step, kind, problem, caplog):
    played = play([plans(A, step, call(3, None)), NO], fetch=["41"], **DIRECT)
    assert played.calls == [("fetch", {"key": "a"})], "neither with an empty dict nor with anything else"
    found = plan_of(played)[1]
    assert (found["kind"], problem in found["error"]) == (kind, True), found
    assert played.failures[0][0] == "planner"
    assert found["error"] in caplog.text, "every fallback is logged"
    if isinstance(step["arguments"], str):
        assert found["excerpt"] == step["arguments"], "the raw words"


@pytest.mark.parametrize("executed", [{"executor": "direct"}, {}])
def test_a_step_that_needs_one_that_failed_or_is_missing_is_not_done_even_without_a_reference(executed):
    failing = [] if executed else [executor('Action: finish {"problem": "gone"}')]
    steps = ({"step": 1, "task": "a", **(A if executed else {})}, call(2, "fetch", {"key": "b"}, needs=[1]))
    script = [plans(*steps), *failing, once_more(steps[1]), NO]
    played = play(script, fetch=[FAILED] if executed else [], **executed)
    assert len(played.calls) == len(executed)
    assert plan_of(played)[1]["kind"] == "reference"
    assert "step 2 needs step 1, which failed (" in plan_of(played)[1]["error"]


def test_a_reference_in_the_name_of_a_parameter_reaches_no_tool():
    resolved = extractor('{"what": {"41": 1, "b": "41"}}')
    played = play([plans(A, storing({"{step_1}": 1, "b": "{step_1}"})), resolved, resolved, NO], ["41"], **DIRECT)
    assert played.calls == [("fetch", {"key": "a"})]
    assert plan_of(played)[1]["kind"] == "resolution_incomplete"


def test_no_tool_is_called_when_no_turns_are_left():
    script = [planner(plan(A), "Turns left: 0."), answers("part", "Turns left: 0.")]
    played = play(script, executor="direct", turns_left=0)
    assert played.answer == "part"
    assert played.calls == []
    assert plan_of(played)[0]["kind"] == "turns"


@pytest.mark.parametrize("arguments", [{"kee": "a"}, {"key": 5}, {}])
def test_wrong_arguments_of_a_sub_agent_are_refused_before_the_call(arguments):
    script = [
        plans("Fetch it"),
        executor(f"Action: fetch {json.dumps(arguments)}"),
        executor('Action: fetch {"key": "a"}', "Observation: Error: fetch"),
        finishes("41"),
    ]
    assert play(script, fetch=["41"], replan="failure").calls == [("fetch", {"key": "a"})]


def test_what_looks_like_a_reference_in_the_data_is_none():
    """The task says `{it}` and `{step_9}`; the result of step 1 holds `{step_8}`, and is passed on as it is."""
    steps = (call(1, "fetch", {"key": "{step_9}"}), storing({"id": "{step_1}"}))
    script = [plans(*steps), extractor('{"what": {"id": "41 {step_8} {step_9}"}}')]
    direct = play(script, task="Fetch {step_9}.", fetch=["41 {step_8}"], store=["ok"], **DIRECT)
    assert direct.answer == "ok"
    assert direct.calls == [("fetch", {"key": "{step_9}"}), ("store", {"what": {"id": "41 {step_8} {step_9}"}})]
    script = [
        plans("Fetch it", "Store it"),
        finishes("41 {step_8}"),
        executor('Action: fetch {"key": "{step_8}"}'),
        executor('Action: store {"what": {"id": "{step_7}"}}'),
        finishes("done"),
    ]
    sub_agent = play(script, fetch=["it is {step_7}"], store=["ok"], replan="failure")
    assert sub_agent.calls == [("fetch", {"key": "{step_8}"}), ("store", {"what": {"id": "{step_7}"}})]
    braces = "Fetch {step_1}, {0}, {{key}}, ${task}, $objective, %(key)s and {}."
    assert play([planner(plan(A), braces)], task=braces, fetch=["41"], **DIRECT).answer == "41", "nor is it expanded"
    script = [
        *(plans("Fetch it", call(2, "fetch", {"key": "{step_1}"})), finishes("41")),
        executor('Action: fetch {"key": "{step_1}"}'),
        executor('Action: fetch {"key": "${it}"}', "{step_1} only stands for a result"),
        finishes("B"),
    ]
    assert play(script, fetch=["ok"], replan="failure").calls == [("fetch", {"key": "${it}"})], "a real one is refused"


def test_the_end_of_the_episode_leaves_a_record():
    played = play([plans(A, B), once_more(B)], fetch=[FAILED, EpisodeEnded()], **DIRECT)
    assert played.answer is EpisodeEnded
    assert statuses(played) == [(1, "failed"), (2, "pending")]
    assert played.failures == [("tool", "fetch: TIMEOUT: late")]


def test_a_replan_replaces_what_remains():
    step = {"step": 2, "task": "b", "needs": [1]}
    script = [plans("a", step), executor("Action: finish"), once_more({**step, "needs": []}), finishes("B")]
    played = play([*script, answers("done")])
    assert (plan_of(played)[1]["needs"], played.counters["replans"]) == ([], 1), "what it needs is another one"
    script = [plans({"step": 1, "task": "a"}, {"step": 2, "task": "b"}), finishes("A")]
    again = once_more({"step": 3, "task": "c"}, expect="new steps have numbers from 3 on")
    played = play([*script, again, finishes("C"), answers("done")])
    assert [(step["step"], step["task"]) for step in plan_of(played)] == [(1, "a"), (3, "c")]
    assert played.counters == {"replans": 1}
    assert played.kinds.count("replan") == 1


def test_other_numbers_alone_are_no_replan():
    steps = [{"step": n, "task": f"task {n}", "needs": [n - 1] if n > 1 else []} for n in (1, 2, 3)]
    renumbered = [{**steps[1], "step": 7}, {**steps[2], "step": 8, "needs": [7]}]
    script = [*(plans(*steps), finishes("A"), once_more(*renumbered)), *(finishes("B"), answers("done"))]
    played = play(script)
    assert played.answer == "done"
    assert statuses(played) == [(1, "done"), (2, "done")], "the plan's own numbers stay"
    assert "replans" not in played.counters


@pytest.mark.parametrize("replans", [0, 2])
def test_replans_are_capped(replans):
    steps = [call(number, "fetch", {"key": "a"}) for number in (1, 2, 3)][: replans + 1]
    script = [plans(steps[0]), *(once_more(step) for step in steps[1:])]
    played = play(script, fetch=[FAILED] * 3, executor="direct", replans=replans)
    assert played.answer is None
    assert played.counters == {"failed_steps": replans + 1, **({"replans": replans} if replans else {})}
    assert played.failures == [("tool", "fetch: TIMEOUT: late"), ("replanner", f"{replans} replans were not enough")]


def test_without_replans_a_plan_that_succeeds_is_done_to_its_end():
    played = play([plans(A, B)], fetch=["a", "b"], executor="direct", replans=0)
    assert (played.answer, played.failures) == ("b", [])
    options = PlanAndExecute(models=ScriptedChatModel([])).options
    assert (options.executor, options.replans, options.replan, options.restart) == ("react", 10, "step", False)


LATER = CallResult("fetch failed.", "NO_SUCH_KEY: b")


def test_another_step_that_succeeds_makes_nothing_good():
    script = [
        plans(A, B, call(3, "store")),
        once_more(B, call(3, "store"), expect="FAILED: fetch: TIMEOUT"),
        *UNREADABLE,
    ]
    played = play(script, fetch=[FAILED, "b"], store=[FAILED], **DIRECT)
    assert played.failures[0] == ("tool", "fetch: TIMEOUT: late"), "not the failure of storing, which came after it"
    assert [component for component, _ in played.failures] == ["tool", "replanner"]


def test_a_step_that_is_not_done_because_of_a_failed_one_is_no_failure_of_its_own():
    needy = storing({"id": "{step_1}"})
    script = [plans(A, needy), once_more(needy), *UNREADABLE]
    played = play(script, fetch=[FAILED], **DIRECT)
    assert plan_of(played)[1]["kind"] == "reference"
    assert played.failures[0] == ("tool", "fetch: TIMEOUT: late"), "and not the planner's reference to it"


@pytest.mark.parametrize(
    "replans",
    [
        [plan(call(3, "fetch", {"key": "a"}), B)],  # the same once more
        [plan(call(3, "fetch", {"key": "other"}), B)],  # something else in its place
        [plan(B), plan(call(3, "fetch", {"key": "a"}), call(4, "fetch", {"key": "b"}))],  # the same, some time later
    ],
)
def test_what_is_made_good_fails_no_episode(replans):
    script = [plans(A, B), *map(replanner, replans), *UNREADABLE]
    answers = [FAILED, "a", LATER] if len(replans) == 1 else [FAILED, LATER, "a", FAILED]
    played = play(script, fetch=answers, **DIRECT)
    assert played.answer is None
    assert len([entry for entry in plan_of(played) if entry["status"] == "failed"]) == 1 + len(replans)
    assert played.failures[0] == ("tool", "fetch: NO_SUCH_KEY: b")
    assert len(played.failures) == 2, "only what is left of them, and the replanner"


def test_a_sub_agent_that_says_what_is_missing_fails_its_step():
    script = [
        plans("Fetch it", "Store it"),
        executor('Action: finish {"answer": null, "problem": "there is no tool that fetches"}', "Fetch it"),
        answers("It cannot be done.", "FAILED: the executor could not do it: there is no tool"),
    ]
    played = play(script)
    assert played.answer == "It cannot be done."
    assert statuses(played) == [(1, "failed")]
    assert played.failures == [("executor", "the executor could not do it: there is no tool that fetches")]
    assert '{"answer": null, "problem": ' in played.system(1)


@pytest.mark.parametrize("end", ["It is here.\n<finish/>", "Thought: It is here.\nAction: finish", "finish()"])
def test_an_end_without_an_answer_brings_what_the_last_call_brought(end):
    script = [plans("Fetch it"), executor('Action: fetch {"key": "a"}'), executor(end)]
    assert play(script, fetch=["41"], replan="failure").answer.endswith("41")
    script = [plans("Fetch it"), executor('Action: finish {"answer": ""}'), answers("no")]
    assert play(script, replan="failure").failures == [("executor", "the executor finished without a result")]
    assert play([plans("Fetch it"), finishes("41"), replanner(end.replace("here", "done"))]).answer is not None


# What every agent that executes plans has to do (docs/decisions); KPI-Chain's tests say the same of it.
@pytest.mark.parametrize(
    "given", [{"deep": {"er": "{step_1}"}, "n": 3}, {"list": ["x", "{step_1}", {"in": ["{step_1}"]}]}]
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_references_are_resolved_at_any_depth(given, wrapped):
    script = [plans(A, call(2, "store", {"what": given}))]
    resolved = json.loads(json.dumps({"what": given}).replace("{step_1}", "41"))
    told = extractor(json.dumps({"arguments": resolved} if wrapped else resolved))
    played = play([*script, told], fetch=["41"], store=["stored"], **DIRECT)
    assert played.calls == [("fetch", {"key": "a"}), ("store", resolved)]
    assert (played.answer, played.failures) == ("stored", [])


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("I would pass 41.", "unreadable"),
        ('{"what": {"id": ', "unreadable"),
        ("", "unreadable"),
        ("{}", "empty"),
        ('{"what": {"id": null}}', "empty"),
        ('{"what": {}}', "incomplete"),
    ],
)
def test_a_useless_resolution_is_asked_for_again_exactly_once(reply, kind):
    script = [plans(A, storing({"id": "{step_1}"})), extractor(reply)]
    right = extractor('{"what": {"id": 41}}', "could not be used")
    played = play([*script, right], fetch=["41"], store=["stored"], **DIRECT)
    assert played.calls[1] == ("store", {"what": {"id": 41}})
    assert (played.answer, played.failures, played.counters["resolution_retries"]) == ("stored", [], 1)
    played = play([*script, extractor(reply), NO], fetch=["41"], **DIRECT)
    assert played.calls == [("fetch", {"key": "a"})]
    assert (plan_of(played)[1]["kind"], played.counters["resolution_retries"]) == (f"resolution_{kind}", 1)
    assert plan_of(played)[1]["excerpt"].startswith(reply[:200].strip())


@pytest.mark.parametrize("conclusion", ["", "I have no idea.", "{}", '{"result": null}'])
@pytest.mark.parametrize("options", [DIRECT, {"steps": 1}])
def test_a_step_without_a_tool_never_returns_what_is_expected_of_it(conclusion, options):
    replies = [executor(conclusion)] * (1 if options == DIRECT else 2)
    script = [plans({"step": 1, "task": "expected: 42 boxes were delivered", "tool": None}), *replies]
    played = play([*script, replanner('{"steps": []}')], **options)
    assert (played.answer, statuses(played), played.calls) == (None, [(1, "failed")], [])
    body = '{"error": {"message": "no such key"}}'
    played = play([plans(A), answers("no", "no such key")], fetch=[body], **DIRECT)
    assert (statuses(played), played.failures[0][0]) == ([(1, "failed")], "tool"), "a body with an error is one"
    script = [plans(A, call(2, None, needs=[1])), executor('{"result": {"sum": 42}}', "Step 1 (task 1):\n41")]
    assert play(script, fetch=["41"], **DIRECT).answer == '{"sum": 42}', "it is a conclusion from results"
