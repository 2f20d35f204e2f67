"""Episodes in a world, end to end: what is drawn, what is really done, how it is graded, recorded and scored again."""

from __future__ import annotations

import asyncio
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from resilisim import evaluate, open_session, read_results
from resilisim.cli.main import main
from resilisim.envs import ConversationEnv, EnvironmentSettings
from resilisim.errors import InfrastructureError, InvalidInputError
from resilisim.evaluation import opened
from resilisim.evaluation.episode.attribution import identity_error
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.integrations.mcp.server import Episodes, ServedRun
from resilisim.policies import make_policy
from resilisim.simulator import EndRules, Goal, build_problem, start_state
from resilisim.simulator.exact.optimum import start_optimum
from resilisim.worlds import load_world
from tests.worlds.notebook import LIBRARY, NAME, number_on

WORLD = load_world(NAME)
TASK = WORLD.tasks()[0]
ANSWER = TASK.metadata["answers"][0]
QUIET = EnvironmentSettings().in_world(NAME)
CHANCY = EnvironmentSettings(base=0.7).in_world(NAME)


def say(env: ConversationEnv, *messages: str, task: Any = TASK, seed: int = 0) -> list[dict[str, Any]]:
    env.reset(seed=seed, options={"task": task})
    return [env.step(message)[4] for message in messages]


def call(tool: str, **parameters: Any) -> str:
    return f"<tool_call>{tool} {json.dumps(parameters)}</tool_call>"


def test_nothing_fails_by_chance_unless_a_law_is_named() -> None:
    assert (QUIET.base, QUIET.tools, QUIET.parameters) == (1.0, "listed", "strict")
    assert CHANCY.base == 0.7
    assert EnvironmentSettings(protocol="native", tools="native").in_world(NAME).tools == "native"
    assert "world" not in EnvironmentSettings().to_mapping()
    assert EnvironmentSettings().in_world(NAME, ("law",)).base == 0.8
    chosen = evaluate("reference", f"{NAME}:1", base=0.8)
    assert next(chosen.records())["law"]["base"] == 0.8
    usual = evaluate("reference", f"{NAME}:1")
    assert next(usual.records())["law"]["base"] == 1.0
    assert EnvironmentSettings(**QUIET.to_mapping()) == QUIET


def test_a_real_failure_is_the_tool_s_own_and_nothing_of_it_is_told_beside_its_words() -> None:
    env = ConversationEnv(QUIET)
    missing, read, done = say(
        env, call("notebook_reader", page=77), call("notebook_reader", page=1), f"It is <finish>{ANSWER}</finish>"
    )
    assert missing["execution"]["error"] == "NO_SUCH_PAGE"
    assert missing["execution"]["real"] is True
    assert "real" not in read["execution"]
    assert read["execution"]["output"]["number"] == number_on(1)
    assert done["score"]["level"] == "full_success"
    assert done["score"]["grade"] == {
        "correct": True,
        "score": 1.0,
        "criteria": {"exact_match": True, "pages_read": 0.5},
    }


@pytest.mark.parametrize(
    ("last", "level", "answer"),
    [
        (f"<finish>{ANSWER}</finish>", "full_success", ANSWER),
        (f"<finish> {ANSWER}", "full_success", ANSWER),
        (f"<think><finish>0</finish></think><FINISH>{ANSWER}</FINISH>", "full_success", ANSWER),
        ("<finish>0</finish>", "partial_success", "0"),
        ("<finish/>", "partial_success", None),
        ("I have finished executing.", "partial_success", None),
        (f"<finish>{ANSWER}</finish> <tool_call>notebook_reader</tool_call>", "full_success", ANSWER),
    ],
)
def test_the_answer_stands_between_the_finish_tags(last: str, level: str, answer: str | None) -> None:
    env = ConversationEnv(QUIET)
    info = say(env, *[call("notebook_reader", page=page) for page in TASK.inputs["pages"]], last)[-1]
    assert (info["score"]["level"], info["message"].answer) == (level, answer)


def test_a_tag_before_the_answer_counts_and_the_benchmark_reads_no_answers() -> None:
    first = say(ConversationEnv(QUIET), call("notebook_reader", page=1) + "<finish>5</finish>")[0]
    assert first["event"] == "execute"
    env = ConversationEnv()
    env.reset(seed=0)
    assert env.step("<finish>5</finish>")[4]["event"] == "format_error"


def test_calls_with_other_parameters_are_no_loop_and_equal_ones_are() -> None:
    other = [call("notebook_reader", page=page) for page in range(1, 8)]
    assert "score" not in say(ConversationEnv(QUIET), *other)[-1]
    same = say(ConversationEnv(QUIET), *[call("notebook_reader", page=2)] * 4)
    assert same[-1]["score"]["ended_by"] == "loop"
    assert same[-1]["score"]["level"] == "failure"


def test_calls_are_drawn_first_and_only_then_made() -> None:
    made: list[str] = []
    env = ConversationEnv(EnvironmentSettings(base=0.5).in_world(NAME))
    for seed in range(20):
        env.reset(seed=seed, options={"task": TASK})
        assert env._workspace is not None
        real = env._workspace.call
        env._workspace.call = lambda tool, parameters, real=real: made.append(tool) or real(tool, parameters)
        before = len(made)
        execution = env.step(call("notebook_reader", page=1))[4]["execution"]
        assert execution["success"] == (len(made) > before)
        assert execution["success_probability"] == 0.5
    assert 4 <= len(made) <= 16


def _chance(calls: int, turns: int, chance: float) -> float:
    """The closed form: at least `calls` successes in `turns` independent draws (the binomial tail)."""
    return sum(math.comb(turns, k) * chance**k * (1 - chance) ** (turns - k) for k in range(calls, turns + 1))


@pytest.mark.parametrize(("calls", "turns"), [(1, 1), (2, 3), (3, 7), (4, 3)])
def test_the_ceiling_is_the_binomial_tail_where_every_call_has_one_chance(calls: int, turns: int) -> None:
    from resilisim.simulator import Law

    rules = EndRules(max_turns=turns, max_consecutive_failures=0)
    goal = Goal(("notebook_reader",), program=("notebook_reader",) * calls)
    problem = build_problem(
        LIBRARY, goal, Law(base=0.7, not_executed=1, failed=1, history=1), rules, arguments_matter=True
    )
    assert start_optimum(problem) == pytest.approx(_chance(calls, turns, 0.7), abs=1e-12)


def test_the_ceiling_is_that_of_brute_force_under_the_whole_law() -> None:
    from resilisim.simulator import Law, execution
    from resilisim.simulator.problem import next_state, success_probability

    rules = EndRules(max_turns=6, max_consecutive_failures=3)
    tools = ("arithmetic_calculator", "notebook_reader", "arithmetic_calculator")
    goal = Goal(TASK.required_tools, program=tools)
    problem = build_problem(
        LIBRARY, goal, Law(base=0.6, not_executed=0.5, failed=0.7, history=0.9), rules, arguments_matter=True
    )

    def follow(state: Any, done: int) -> float:
        if state.ended_by is not None:
            return 0.0
        if done == len(tools):
            return 1.0
        if state.turns_used == rules.max_turns:
            return 0.0
        message = execution(tools[done], {"n": done})
        chance = success_probability(problem, state, LIBRARY.index(tools[done]))
        return chance * follow(next_state(problem, state, message, True), done + 1) + (1 - chance) * follow(
            next_state(problem, state, message, False), done
        )

    assert start_optimum(problem) == pytest.approx(follow(start_state(problem), 0), abs=1e-12)


def test_regret_and_luck_add_up_and_luck_has_mean_zero_for_whoever_plays() -> None:
    class Wanderer:
        """Asks for a page that is not there, then reads, and guesses."""

        def reset(self, observation: str, info: Any) -> None:
            self.number = 0

        def act(self, observation: str, info: Any) -> str:
            self.number += 1
            pages = {1: 77, 2: 1, 3: 1, 4: 2, 5: 88, 6: 2}
            return call("notebook_reader", page=pages[self.number]) if self.number in pages else "<finish>0</finish>"

    env, luck = (
        ConversationEnv(EnvironmentSettings(base=0.6, history=1.0, max_consecutive_failures=0).in_world(NAME)),
        [],
    )
    for seed in range(150):
        record = play_episode(env, Wanderer(), TASK, "baseline", seed)
        assert identity_error(record) < 1e-12
        luck.append(record["luck"])
    mean = sum(luck) / len(luck)
    spread = math.sqrt(sum((one - mean) ** 2 for one in luck) / len(luck))
    assert spread > 0.05
    assert abs(mean) < 3.3 * spread / math.sqrt(len(luck))


def test_the_reference_reaches_its_ceiling_and_guessing_right_is_better_than_it() -> None:
    settings = EnvironmentSettings(base=0.6, max_turns=5).in_world(NAME)
    result = evaluate("reference", f"{NAME}:4", seeds=12, environment=settings)
    row = result.rows[0]
    assert 0.2 < row.optimum.value < 0.8
    assert row.luck_adjusted.value == pytest.approx(row.optimum.value, abs=1e-9)
    records = list(result.records())
    assert all(record["regret"] == pytest.approx(0.0, abs=1e-12) for record in records)
    guess = play_episode(ConversationEnv(settings), _Says(f"<finish>{ANSWER}</finish>"), TASK, "baseline", 0)
    assert guess["regret"] == pytest.approx(guess["optimum"] - 1.0)
    wrong = play_episode(ConversationEnv(settings), _Says("<finish>1</finish>"), TASK, "baseline", 0)
    assert wrong["losses"] == {"wrong_answer": pytest.approx(wrong["optimum"])}


class _Says:
    def __init__(self, *messages: str) -> None:
        self.messages = messages

    def reset(self, observation: str, info: Any) -> None:
        self.rest = list(self.messages)

    def act(self, observation: str, info: Any) -> str | None:
        return self.rest.pop(0) if self.rest else None


def test_a_run_is_scored_again_to_the_same_and_a_changed_answer_is_found(tmp_path: Path) -> None:
    environment = EnvironmentSettings(base=0.8).in_world(NAME)
    policies, prompts = ["reference", "random", "plan-follower"], ["baseline", "optimal"]
    result = evaluate(policies, f"{NAME}:5", prompts, 2, out=tmp_path / "a", environment=environment)
    summary = rescore_run(tmp_path / "a")
    assert (summary.num_agreeing, summary.num_episodes) == (60, 60), summary.differences
    assert result.row("random").success.value == 0.0
    folder = tmp_path / "b"
    evaluate("reference", f"{NAME}:2", out=folder)
    path = folder / "episodes.jsonl"
    path.write_text(path.read_text().replace(f'"answer":"{ANSWER}"', '"answer":"1"'))
    told = rescore_run(folder)
    assert (told.num_agreeing, told.num_differing) == (1, 1)
    evaluate("reference", f"{NAME}:2", out=tmp_path / "c", record_texts="none")
    assert rescore_run(tmp_path / "c").agrees  # the grade is taken as it stands


def test_a_bug_of_the_world_is_no_score_and_the_same_command_tries_again(tmp_path: Path) -> None:
    class Breaks(_Says):
        def __init__(self) -> None:
            super().__init__(call("notebook_reader", page=13))

    broken = evaluate(Breaks, f"{NAME}:1", out=tmp_path / "run")
    assert (broken.call.num_failures, "broken at page 13" in broken.call.last_error) == (1, True)
    failure = json.loads((tmp_path / "run" / "failures.jsonl").read_text().splitlines()[0])
    assert (failure["reason"], "ZeroDivisionError" in failure["traceback"]) == ("ZeroDivisionError", True)
    assert read_results(tmp_path / "run").num_episodes == 0


def test_a_session_that_broke_stays_broken_whatever_the_agent_catches() -> None:
    session = open_session(TASK.instance_id, environment=QUIET)
    for page in (13, 1):
        with pytest.raises(InfrastructureError, match="page 13"):
            session.call("notebook_reader", {"page": page})
    assert session.score is None


def test_large_outputs_pass_unharmed_to_the_agent_into_the_record_and_back(tmp_path: Path) -> None:
    session = open_session(TASK.instance_id, environment=QUIET)
    with session:
        page = session.call("notebook_reader", {"page": 1000})
        assert page.data["text"] == "long é " * 150_000
        assert page.data["text"] in json.loads(str(page).partition("Output: ")[2].partition("\n")[0])["text"]
        session.finish("nothing")
    kept = opened(session.record())
    assert "long é " * 150_000 in json.loads(kept["texts"]["replies"][0])[0]["content"]


def test_a_session_in_a_world_has_no_law_unless_one_is_named() -> None:
    ceilings = []
    for options in ({}, {"base": 0.8}):
        with open_session(TASK.instance_id, world=NAME, **options) as session:
            session.finish("nothing")
        ceilings.append(session.record()["optimum"])
    assert ceilings[0] == 1.0 > ceilings[1]


def test_a_session_gives_functions_that_really_work_and_an_answer_that_counts() -> None:
    with open_session(TASK.instance_id, prompt="optimal", environment=QUIET) as session:
        read, calculate = session.tools[0], session.tools[1]
        numbers = [read(page=page).data["number"] for page in TASK.inputs["pages"]]
        failed = read(page=99)
        assert (failed.ok, "NO_SUCH_PAGE" in failed) == (False, True)
        total = calculate(expression=" + ".join(map(str, numbers))).data["value"]
        session.finish(total)
    assert session.score is not None
    assert session.score["level"] == "full_success"
    record = session.record()
    assert (record["world"], record["answer"], record["outcome"]) == (NAME, ANSWER, 1)
    assert record["losses"] == {}
    assert session.openai_tools()[-1]["function"]["parameters"]["required"] == ["answer"]


def test_agents_end_with_their_answer_and_the_oracle_hears_it() -> None:
    from resilisim.chat import ScriptedChatModel
    from resilisim.policies.llm.agents.react import ReAct

    replies = [
        'Thought: read\nAction: notebook_reader\nAction Input: {"page": 1}',
        f"Thought: I know\nAction: finish\nAction Input: {ANSWER}",
    ]
    record = play_episode(ConversationEnv(QUIET), ReAct(ScriptedChatModel(replies)), TASK, "baseline", 0)
    assert (record["answer"], record["score"]["level"]) == (ANSWER, "full_success")
    assert record["agent"]["answer"] == ANSWER


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"parameters": "ignore", "world": NAME}, "parameters is 'ignore'"),
        ({"world": "nowhere-v1"}, "unknown world 'nowhere-v1'"),
    ],
)
def test_options_that_make_no_sense_in_a_world_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        ConversationEnv(EnvironmentSettings(**options))


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        (f"{NAME}:0", "expected a number of tasks from 1 to 8"),
        (f"{NAME}:task_00", "unknown task 'task_00'"),
        ("tests.worlds.notebook:Notbook", "did you mean"),
    ],
)
def test_tasks_that_a_world_does_not_have_are_refused(tasks: str, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        evaluate("reference", tasks)


def test_the_reference_policy_needs_a_reference_and_a_world_its_own_tools() -> None:
    from resilisim import benchmark_tasks, default_library

    with pytest.raises(InvalidInputError, match="has no reference solution"):
        play_episode(ConversationEnv(), make_policy("reference"), benchmark_tasks()[0], "baseline", 0)
    with pytest.raises(InvalidInputError, match="own tool library"):
        ConversationEnv(QUIET, library=default_library())


def test_the_plan_of_a_prompt_is_the_reference_program() -> None:
    sound = ConversationEnv(QUIET).prompt(TASK, "optimal")
    assert sound.workflow is not None
    assert sound.workflow.tools == ("notebook_reader", "notebook_reader", "arithmetic_calculator")
    assert sound.workflow.predicted_success_probability == 1.0
    assert "kept as page_1" in sound.text
    assert "${page_1.number} + ${page_2.number}" in sound.text
    assert "notebook_reader(page: integer): Reads one page" in sound.text
    for style in ("full", "compact"):
        for calling in ({}, {"protocol": "native"}, {"protocol": "native", "tools": "native"}):
            settings = EnvironmentSettings(prompt_style=style, **calling).in_world(NAME)
            text = ConversationEnv(settings).prompt(TASK, "baseline").text
            assert "<finish/>" not in text
            assert ("<finish>answer</finish>" in text) == (not calling)
            assert "Finish with the answer" in text


@pytest.mark.parametrize(
    ("flaw", "steps"),
    [
        ("missing_step:light:middle_step_removal", ["reader", "calculator"]),
        ("sequential_order:light:swap", None),
        ("redundant_operation:light:duplication", None),
        ("parameter_error:severe:type_mismatch", ["reader", "reader", "calculator"]),
        ("logic_discontinuity:severe:format_mismatch", None),
    ],
)
def test_flawed_prompts_hold_flawed_reference_programs(flaw: str, steps: list[str] | None, tmp_path: Path) -> None:
    env = ConversationEnv(QUIET)
    try:
        prompt = env.prompt(TASK, f"flawed:{flaw}")
    except InvalidInputError as refusal:
        assert "logic_discontinuity" in flaw, refusal  # noqa: PT017 - nothing flows from step to step by name here
        return
    assert prompt.workflow is not None
    assert prompt.flaw is not None
    shown = [tool.rpartition("_")[2] for tool in prompt.workflow.tools]
    assert set(prompt.workflow.tools) <= set(LIBRARY.names)
    assert ".2" not in prompt.text
    assert ".2" not in json.dumps(prompt.flaw)
    assert steps is None or shown == steps
    assert prompt.workflow != env.prompt(TASK, "optimal").workflow
    result = evaluate(["reference", "plan-follower"], f"{NAME}:1", f"flawed:{flaw}", out=tmp_path)
    assert result.row("reference", f"flawed:{flaw}").success.value == 1.0
    assert result.row("plan-follower", f"flawed:{flaw}").success.value == 0.0
    assert rescore_run(tmp_path).agrees


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    return int(left.value.code or 0)


def test_evaluate_report_compare_and_rescore_play_a_world_from_the_command_line(tmp_path: Path) -> None:
    command = ["evaluate", "--tasks", f"{NAME}:2", "--policy", "reference", "--policy", "random", "--seeds", "2"]
    assert run(*command, "--success-probability", "0.7", "--prompt", "optimal", "--out", str(tmp_path / "a")) == 0
    assert run("report", str(tmp_path / "a"), "--markdown", str(tmp_path / "a.md")) == 0
    assert "chance of completing the reference solution" in (tmp_path / "a.md").read_text()
    page = (tmp_path / "a" / "report.html").read_text()
    assert "notebook_reader" in page
    assert run("runs", "compare", str(tmp_path / "a"), str(tmp_path / "a")) == 0
    assert run("runs", "rescore", str(tmp_path / "a")) == 0
    assert run("runs", "replay", str(tmp_path / "a"), "0") == 0
    assert run(*command, "--out", str(tmp_path / "b"), "--split", "test") == 2
    assert run(*command, "--out", str(tmp_path / "c"), "--success-probability", "0.8") == 0
    assert next(read_results(tmp_path / "c").records())["law"]["history"] == 0.9
    assert run("bound", "--tasks", NAME, TASK.instance_id) == 2


def test_a_client_of_mcp_plays_a_world() -> None:
    async def play() -> dict[str, Any]:
        episodes = Episodes(ServedRun(tasks=f"{NAME}:1"))
        host = episodes.host(repeats=False)
        assert [tool["name"] for tool in host.tools][2:] == list(LIBRARY.names)
        started = await host.call("episode_start", {})
        assert "the sum of the numbers" in started.text
        read = await host.call("notebook_reader", {"page": 1})
        assert (read.is_error, f"The number {number_on(1)}" in read.text) == (False, True)
        refused = await host.call("notebook_reader", {"page": 99})
        assert (refused.is_error, "NO_SUCH_PAGE" in refused.text) == (True, True)
        return dict((await host.call("episode_finish", {"answer": ANSWER})).data or {})

    assert asyncio.run(play())["level"] == "full_success"


def test_a_person_plays_a_world(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f'c notebook_reader {{"page": 1}}\nf {ANSWER}\n'))
    assert run("play", "--tasks", NAME, "--task", TASK.instance_id) == 0
    told = capsys.readouterr().out
    assert "full_success" in told
