"""One episode, judged: the identity, the labels of each kind of mistake, and who sees what."""

import itertools
import json

import pytest

from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.attribution import identity_error
from resilisim.evaluation.episode.play import open_session, play_episode
from resilisim.evaluation.episode.record import LOSS_LABELS
from resilisim.evaluation.episode.rejudging import compare_records, rejudged
from resilisim.evaluation.table.facts import RunCollector
from resilisim.policies.registry import make_policy
from resilisim.provenance import encode_json_line
from resilisim.simulator import Goal, Law, LostAnswer, Outage, build_problem, start_state
from resilisim.simulator.exact import Judge
from resilisim.simulator.exact.optimum import start_optimum
from resilisim.simulator.exact.reachable import solve_reachable
from resilisim.simulator.scoring import rescore
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tool_library import default_library
from tests.evaluation.toy_policies import (
    FILTER,
    PARSER,
    READER,
    TRANSFORMER,
    PrivilegedScripted,
    Reading,
    Scripted,
    call,
    task_of,
    toy_tasks,
)
from tests.simulator.little_room import give_little_room

RELIABLE = "network_fetcher"
CERTAIN = {"base": 1.0}  # a law under which calls without missing dependencies never fail
THREE = (READER, PARSER, FILTER)
SEARCH, INFO = "<tool_search>read  a FILE</tool_search>", f"<tool_info>{READER}</tool_info>"
LAWS = ({}, {"loop_length": 2, "max_turns": 5}, {"base": 0.5, "failed": 1.0})


def environment(**options):
    return ConversationEnv(search=lambda query, count: [], **options)


def play(messages, *tools, prompt="optimal", seed=0, **options):
    """Play fixed messages on a task of these tools."""
    return play_episode(environment(**options), Scripted(messages), task_of(*tools), prompt, seed)


def labels(record):
    return [step["label"] for step in record["steps"]]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("policy", ["random", "plan-follower", "repairing-follower", "exact-optimum"])
def test_the_identity_holds_for_every_policy_under_every_prompt(policy, law):
    env, player = environment(**law), make_policy(policy)
    prompts = ("baseline", "optimal", "flawed:redundant_operation", "flawed:tool_misuse:severe")
    tasks = [task for task in benchmark_tasks()[::700] if len(task.required_tools) > 2]
    for task, prompt, seed in itertools.product(tasks, prompts, range(3)):
        record = play_episode(env, player, task, prompt, seed)
        assert identity_error(record) < 1e-12
        assert sum(record["losses"].values()) == pytest.approx(record["regret"], abs=1e-12)
        assert set(record["losses"]) <= set(LOSS_LABELS) - (set() if "flawed" in prompt else {"obeyed_flaw"})
        assert rescore(record).to_mapping() == record["score"]
        assert record["outcome"] == (record["score"]["level"] == "full_success")
        for step, following in zip(record["steps"], record["steps"][1:], strict=False):
            assert following["value"] == pytest.approx(step["action_value"] + step["luck"], abs=1e-12)
        for step in record["steps"]:
            assert step["regret"] >= 0.0
            assert (step["label"] is None) == (step["regret"] == 0.0)
            assert step["kind"] == "execute" or step["luck"] == 0.0
        if policy == "exact-optimum":
            assert (record["privileged"], record["losses"]) == (True, {})


LOST = Law(base=0.8, lost_answer=LostAnswer(share=0.5))
LOSE_THE_FIRST = (f"{PARSER}#1=TIMEOUT/after", f"{PARSER}#2=ok", f"{READER}#1=ok")


@pytest.mark.parametrize(
    ("messages", "goal", "won", "told"),
    [
        ([PARSER, READER], {}, False, None),  # the answer of the parser was lost
        ([PARSER, READER, PARSER], {}, True, None),
        ([PARSER, PARSER, READER], {}, False, None),  # the other way round
        ([PARSER, PARSER, READER], {"any_order": True}, True, ("answers", False, [])),
        ([PARSER, READER], {"goal": "effects"}, True, ("effects", False, [])),
        (
            [PARSER, READER, PARSER],
            {"goal": "effects", "once": [PARSER]},
            False,
            ("effects", False, [PARSER]),
        ),
        ([PARSER, READER], {"goal": "effects", "once": [PARSER]}, True, ("effects", False, [PARSER])),
        ([READER, PARSER, PARSER], {"once": [PARSER]}, False, ("answers", True, [PARSER])),
    ],
)
def test_a_goal_says_what_counts_for_score_values_and_records(messages, goal, won, told):
    texts = [*map(call, messages), "<finish/>"]
    record = play(texts, READER, PARSER, law=LOST, force=LOSE_THE_FIRST, **goal)
    assert (record["score"]["level"] == "full_success", record["outcome"]) == (won, won)
    assert record.get("goal") == (None if told is None else dict(zip(("counts", "ordered", "once"), told, strict=True)))
    ran_twice = "once" in goal and messages.count(PARSER) == 2
    assert ("ran_once" in record["score"]) == ran_twice
    problem = build_problem(
        default_library(),
        Goal((READER, PARSER), not goal.get("any_order"), tuple(goal.get("once", ())), goal.get("goal", "answers")),
        LOST,
    )
    assert record["optimum"] == start_optimum(problem)
    assert compare_records(record, rejudged(record, default_library()), tolerance=0.0) == ("agreeing", None)


@pytest.mark.parametrize(
    ("style", "protocol"),
    [("full", "text"), ("full", "native"), ("compact", "text"), ("compact", "native"), ("terse", "text")],
)
def test_agents_are_told_which_tools_must_not_run_twice(style, protocol):
    told, untold = (
        ConversationEnv(EnvironmentSettings(prompt_style=style, protocol=protocol, once=once)).prompt(
            task_of(READER), "baseline"
        )
        for once in ((RELIABLE,), ())
    )
    for text, silent in ((told.text, untold.text), (told.work, untold.work)):
        assert RELIABLE not in silent
        assert RELIABLE in text
        assert "must not run twice" in text.lower()


def test_worlds_have_goals_of_their_own():
    for name, value in {"goal": "effects", "once": ["search"], "any_order": True}.items():
        with pytest.raises(InvalidInputError, match=f"^{name} is .* in the world 'pages-v1': expected"):
            EnvironmentSettings().in_world("pages-v1").with_options(**{name: value})
    with pytest.raises(InvalidInputError, match="unknown tool 'data_parser'"):
        environment(once=["data_parser"]).problem(toy_tasks()[0])


def test_luck_is_the_draw_weighted_by_its_chance():
    """For each execution luck is (1 - p) (V+ - V-) or -p (V+ - V-); from one draw both mean-zero halves follow."""
    won, lost = None, None
    for seed in range(40):
        step = play([call(READER)], READER, seed=seed)["steps"][0]
        if step["success"]:
            won = step
        else:
            lost = step
    assert won is not None
    assert lost is not None
    probability = won["success_probability"]
    assert probability == lost["success_probability"] == 0.8
    assert probability * won["luck"] + (1 - probability) * lost["luck"] == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize(
    ("messages", "expected", "options"),
    [
        ([call(READER), call(PARSER), "<finish/>"], [None, None, "gave_up_early"], CERTAIN),
        ([call(READER), None], [None, "gave_up_early"], CERTAIN),
        ([call(FILTER)], ["wrong_order"], CERTAIN),
        ([call("utility_logger")], ["unneeded_tool"], {"max_turns": 3}),
        ([call(READER), call(READER)], [None, "repeated_success"], {"max_turns": 3, **CERTAIN}),
        ([call(TRANSFORMER)], ["missing_dependency_first"], {"tools_required": (TRANSFORMER,)}),
        (["nonsense"], ["format_error"], {"max_turns": 3}),
        ([call("no_such_tool")], ["rejected_call"], {"max_turns": 3}),
        # Searching is information where the prompt does not name the tools; what was asked once is known.
        ([SEARCH, SEARCH, INFO, INFO], ["information", "repeated_search"] * 2, {"prompt": "baseline", "max_turns": 8}),
        ([SEARCH, INFO, SEARCH.lower(), INFO], ["information"] * 2 + ["repeated_search"] * 2, {"prompt": "baseline"}),
        ([SEARCH, INFO, SEARCH.lower(), INFO], ["wasted_turn"] * 2 + ["repeated_search"] * 2, {"max_turns": 6}),
        # Everything done and not said so is its own loss.
        (
            [*map(call, THREE), SEARCH, "that was all"],
            [None] * 4 + ["no_completion_signal"],
            {"max_turns": 4, **CERTAIN},
        ),
        ([*map(call, THREE), *[SEARCH] * 4], [None] * 6 + ["no_completion_signal"], {**CERTAIN, "max_turns": 9}),
        ([*map(call, THREE), "<finish/>"], [None] * 4, CERTAIN),
    ],
)
def test_each_mistake_has_its_label(messages, expected, options):
    required = options.get("tools_required", THREE)
    record = play(messages, *required, **{name: value for name, value in options.items() if name != "tools_required"})
    assert labels(record)[: len(expected)] == expected


def test_how_an_episode_ends_stands_in_its_record():
    for rest, outcome, ended_by, losses in (
        (["<finish/>"], 1, "completion", {}),
        ([None], 1, "stopped", {}),
        ([SEARCH, "that was all"], 0, "turns", {"no_completion_signal": 1.0}),
        ([SEARCH] * 4, 0, "loop", {"no_completion_signal": 1.0}),
    ):
        turns = 2 if ended_by == "turns" else 10
        record = play([call(READER), *rest], READER, max_turns=turns, **CERTAIN)
        assert (record["outcome"], record["ended_by"], record["losses"]) == (outcome, ended_by, losses)
        assert (record["optimum"], record["luck"]) == (1.0, 0.0)


def test_a_message_that_was_not_obeyed_says_why_in_its_record():
    long_name = "x" * 400
    record = play([call("no_such_tool"), "nonsense", call(long_name), call(READER), None], READER, **CERTAIN)
    errors = [step["error"] for step in record["steps"]]
    assert [step["kind"] for step in record["steps"]] == ["rejected", "format_error", "rejected", "execute", "stop"]
    assert errors[0] == "unknown tool 'no_such_tool'"
    assert "no tag" in errors[1]
    assert errors[2].startswith("unknown tool 'xxx")
    assert len(errors[2]) <= 300
    assert errors[3:] == [None, None]
    collector = RunCollector()
    collector.add(record)
    assert collector.facts({}).breakdown.errors == {}  # of executions alone


def test_an_ordinary_policy_sees_no_probabilities_and_a_privileged_one_sees_the_state():
    env = ConversationEnv()
    ordinary, privileged = Scripted([call(READER), call(READER)]), PrivilegedScripted([call(READER), call(READER)])
    record = play_episode(env, ordinary, task_of(READER), "baseline", 0)
    assert not record["privileged"]
    for info in ordinary.infos:
        assert not {"required_tools", "seed", "problem", "state", "message", "score"} & set(info)
        assert "success_probability" not in info.get("execution", {})
    assert any("execution" in info for info in ordinary.infos)
    assert play_episode(env, privileged, task_of(READER), "baseline", 0)["privileged"]
    assert all({"required_tools", "state", "problem"} <= set(info) for info in privileged.infos)
    assert not any("seed" in info for info in privileged.infos)  # it decides the luck, which nobody sees


def test_the_same_episode_gives_the_same_bytes_whatever_was_played_before():
    env, policy, task = ConversationEnv(), Reading(), toy_tasks(3)[2]
    first = encode_json_line(play_episode(env, policy, task, "optimal", 5))
    play_episode(env, policy, toy_tasks(1)[0], "optimal", 6)
    assert encode_json_line(play_episode(env, policy, task, "optimal", 5)) == first
    assert encode_json_line(play_episode(ConversationEnv(), Reading(), task, "optimal", 5)) == first


def test_where_the_optimum_is_a_bound_the_identity_is_exact_and_the_record_says_so(monkeypatch):
    law, task = Law(outage=Outage(begins=0.05, ends=0.3)), task_of(READER)
    problem = build_problem(default_library(), [READER], law)
    exact, start = solve_reachable(problem), start_state(problem)
    give_little_room(monkeypatch)
    env, bounded = environment(law=law), 0
    for seed in range(12):
        record = play_episode(env, Scripted([call(READER)] * 2 + [call(RELIABLE)] * 3), task, "optimal", seed)
        bounded += 0.0 < record["optimum_gap"] < 0.1
        assert identity_error(record) < 1e-12
        assert record["optimum"] < exact.value(start) <= record["optimum"] + record["optimum_gap"]
        for step in record["steps"]:
            assert step["regret"] >= -record["optimum_gap"]
            assert (step["label"] is None) == (step["regret"] <= 1e-12)
        assert sum(record["losses"].values()) >= record["regret"] - 1e-12
    assert bounded == 12
    assert exact.gap == 0.0
    assert play([call(READER)], READER)["optimum_gap"] == 0.0


def test_the_record_says_which_protocol_was_used():
    task = task_of(READER)
    call_message = {"id": "1", "type": "function", "function": {"name": "tool_call", "arguments": '{"name": "x"}'}}
    native = json.dumps({"content": None, "tool_calls": [call_message]})
    for protocol, messages, used in (
        ("text", [call(READER)], "text"),
        ("native", [call(READER)], "text"),
        ("native", [json.dumps({"content": "hm"})], "text"),
        ("native", [], "text"),
        ("native", [native], "native"),
        ("native", [call(READER), native, call(READER)], "native"),
    ):
        record = play_episode(ConversationEnv(protocol=protocol), Scripted(messages), task, "optimal", 0)
        assert record["protocol"] == used


def test_luck_is_common_to_prompts_and_policies():
    task = task_of(READER, PARSER, FILTER)
    env = environment()
    outcomes = {}
    for prompt in ("baseline", "optimal"):
        for first in ([], ["<tool_search>x</tool_search>"], ["nonsense"]):
            record = play_episode(env, Scripted([*first, call(READER)]), task, prompt, 3)
            step = next(step for step in record["steps"] if step["kind"] == "execute")
            outcomes[prompt, len(first)] = (step["success"], step["success_probability"], step["attempt"])
    assert len(set(outcomes.values())) == 1


class GivesUpAfterBadLuck(Reading):
    """Adapts to its luck within the episode, which is what could bias a careless adjustment."""

    def act(self, observation, info):
        execution = info.get("execution")
        if execution is not None and not execution["success"]:
            return None
        return super().act(observation, info)


@pytest.mark.parametrize("policy", [Reading, GivesUpAfterBadLuck])
def test_luck_has_mean_zero_also_for_a_policy_that_adapts_to_it(policy):
    env, player, task = ConversationEnv(), policy(), toy_tasks(3)[2]
    luck = [play_episode(env, player, task, "optimal", seed)["luck"] for seed in range(400)]
    error = (sum(value * value for value in luck) / len(luck) ** 2) ** 0.5
    assert error > 0.001  # there was luck to speak of
    assert abs(sum(luck) / len(luck)) < 3.5 * error  # one run in two thousand would miss this by chance; it is fixed


def test_searching_under_a_flawed_plan_is_information_and_under_a_sound_one_a_wasted_turn():
    task = next(task for task in benchmark_tasks() if len(task.required_tools) == 5)
    searches = Scripted([f"<tool_search>tool number {turn}</tool_search>" for turn in range(10)])
    found = {
        prompt: set(labels(play_episode(environment(), searches, task, prompt, 1)))
        for prompt in ("optimal", "flawed", "baseline")
    }
    assert "wasted_turn" in found["optimal"] - found["flawed"] - found["baseline"]
    assert "information" in (found["flawed"] & found["baseline"]) - found["optimal"]
    assert all("repeated_search" not in names for names in found.values())


@pytest.mark.parametrize("reward", ["success", "value", "advantage"])
def test_a_message_is_judged_once_for_its_reward_and_for_the_record(reward, monkeypatch):
    judge, judged = Judge.judge, []
    monkeypatch.setattr(Judge, "judge", lambda *state: judged.append(judge(*state)) or judged[-1])
    with open_session("task_c64444cae27fab46", seed=4, prompt="optimal", reward=reward) as session:
        session.call("file_operations_scanner")
        session.call("no_such_tool")
        session.finish()
    record = session.record()
    told = [(step["value"], step["action_value"], step["regret"], step["luck"]) for step in record["steps"]]
    assert told == [(each.value, each.action_value, each.regret, each.luck) for each in judged]
    paid = {"success": [0.0] * 3, "value": [each.luck - each.regret for each in judged]}
    assert session.rewards == pytest.approx(paid.get(reward, [-each.regret for each in judged]), abs=1e-12)
    assert "judgement" not in session.reply.info
