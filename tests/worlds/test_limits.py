"""In knowledge worlds the limits of the papers bind: 20 steps of ReAct, 10 x 10 of RP-ReAct, 100 of both at most."""

import pytest

from resilisim.chat import ChatReply
from resilisim.envs import ConversationEnv, EnvironmentSettings
from resilisim.evaluation import play_episode
from resilisim.evaluation.run.arguments import in_world
from resilisim.policies import make_policy
from tests.worlds.pages.hostile import NAME, TASK

PAPER = {"max_turns": 100, "max_consecutive_failures": 0, "loop_length": 0}


class Restless:
    """Plays into every limit: it calls, and asks, for ever."""

    name = "restless"

    def __init__(self, query: str = "page {number}") -> None:
        self.query = query
        self.number = 0

    async def complete(self, request):
        self.number += 1
        if request.role == "planner":
            return ChatReply(f"<|begin_search_query|>Search for page {self.number}.<|end_search_query|>")
        if request.role == "evaluator":
            return ChatReply("[FAILURE]")
        if request.role == "reflector":
            return ChatReply("Search on.")
        query = self.query.format(number=self.number)
        return ChatReply(f'Thought: Not yet.\nAction: search {{"query": "{query}"}}')

    async def aclose(self):
        pass


def played(agent, model=None, chosen=(), **options):
    env = ConversationEnv(EnvironmentSettings(**options).in_world(NAME, chosen))
    return play_episode(env, make_policy(agent, models=model or Restless()), TASK, "baseline", 0)


def calls(record):
    return sum(step["attempt"] is not None for step in record["steps"])  # a closing message runs nothing


@pytest.mark.parametrize(
    ("agent", "num_calls", "ended_by", "why"),
    [
        ("react", 20, "gave_up", "no finish within 20 steps"),
        ("react[steps=100]", 100, "gave_up", "no finish within 100 steps"),
        ("reflexion[reflections=3]", 80, "gave_up", "no finish in 4 trials"),
        ("rp-react", 100, "gave_up", "no finish within 10 steps"),
        ("rp-react[executor_steps=3]", 30, "gave_up", "no finish within 3 steps"),
        ("rp-react[steps=4]", 40, "gave_up", "no finish within 10 steps"),
        ("react[steps=1000,max_llm_calls=1000]", 100, "environment", None),
    ],
)
def test_each_limit_binds_where_the_paper_has_it(agent, num_calls, ended_by, why):
    record = played(agent)
    assert record["rules"] == PAPER
    assert (calls(record), record["agent"]["ended_by"]) == (num_calls, ended_by)
    assert record["ended_by"] == ("turns" if ended_by == "environment" else "stopped")
    failures = [event["text"] for event in record["agent"]["events"] if event["kind"] == "failure"]
    assert why is None or failures[0].endswith(why)


def test_ten_sub_questions_have_ten_steps_each_and_the_planner_ten_replies():
    agent = played("rp-react")["agent"]
    assert [len(asked["steps"]) for asked in agent["structure"]["subquestions"]] == [10] * 10
    assert [agent["components"][role]["calls"] for role in ("planner", "executor")] == [10, 100]
    texts = [event["text"] for event in agent["events"] if event["kind"] == "failure"]
    assert texts == ["no finish within 10 steps", "no final answer within 10 steps"]


def test_the_benchmarks_rules_end_all_of_them_first_where_somebody_asks_for_them():
    assert [calls(played(agent, chosen=PAPER)) for agent in ("react", "rp-react")] == [10, 10]
    assert played("react", max_turns=7)["rules"] == {**PAPER, "max_turns": 7}


def test_neither_failures_in_a_row_nor_repeated_calls_end_an_episode_in_a_knowledge_world():
    assert calls(played("react", Restless(" "))) == 20  # each is refused
    assert calls(played("react", Restless("the same"))) == 20
    assert calls(played("react", Restless("the same"), chosen=("loop_length",))) < 20


@pytest.mark.parametrize(
    ("world", "rules"),
    [("pages-v1", PAPER), ("records-v1", PAPER), ("apis-v1", {}), ("tests.worlds.notebook:Notebook", {})],
)
def test_every_world_says_its_own_rules(world, rules):
    usual = EnvironmentSettings()
    played_in, _ = in_world(usual, f"{world}:1")
    assert {name: getattr(played_in, name) for name in PAPER} == {
        name: rules.get(name, getattr(usual, name)) for name in PAPER
    }
    chosen, _ = in_world(usual, f"{world}:1", ["max_turns"])
    assert chosen.max_turns == usual.max_turns


def test_under_a_law_turns_are_as_scarce_as_in_the_benchmark():
    usual = EnvironmentSettings()
    for under_law in (usual.in_world(NAME, ["law"]), EnvironmentSettings(law="outages").in_world(NAME)):
        assert [getattr(under_law, name) for name in PAPER] == [getattr(usual, name) for name in PAPER]
    assert EnvironmentSettings(law="none").in_world(NAME).max_turns == 100, "in which nothing fails"
    assert EnvironmentSettings(base=0.5, max_turns=100).in_world(NAME).max_turns == 100
