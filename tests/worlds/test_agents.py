"""Every agent brings a competent model to the right answer in a world: what it is shown is all that it knows."""

import asyncio
import json
import re

import pytest

from resilisim.chat import ScriptedChatModel
from resilisim.chat.types import estimated_tokens
from resilisim.envs import ConversationEnv, EnvironmentSettings
from resilisim.evaluation import play_episode
from resilisim.policies import make_policy
from resilisim.policies.llm.agent_options import LENGTHS
from resilisim.policies.registry import LLM_POLICIES
from resilisim.worlds import load_world
from resilisim.worlds.records.contents import GeneratedData, Recipe
from resilisim.worlds.records.question_set import build_tasks
from resilisim.worlds.records.world import RecordsWorld
from tests.chat.loopback import LoopbackServer
from tests.doubles.world_models import WorldModel
from tests.doubles.world_solutions import UNKNOWN, Solution
from tests.doubles.worlds import in_pieces, offloaded, play, some_tasks
from tests.worlds.pages.hostile import NAME, TASK

QUERY = re.compile(r"<tool_call>search (\{.*?\})</tool_call>")
NATIVE = ("direct", "react", "reflexion")
TABLES = Recipe(
    seed=3, questions=5, flights=9_000, coffee=1_000, airbnb=2_000, yelp=2_000, agenda=2_000, scirex=600, papers=400
)


@pytest.fixture(scope="module")
def records():
    """A small world of records."""
    with pytest.MonkeyPatch.context() as patch:
        found = GeneratedData(TABLES)
        data = found.records()
        world = RecordsWorld("small", build_tasks(found, data, "small"), data)
        for module in ("envs.conversation", "worlds.base"):
            patch.setattr(f"resilisim.{module}.load_world", lambda name: world if name == "small" else load_world(name))
        yield world
        data.database.close()


def played(world, agent, tasks, **options):
    """The records of some episodes, and all that models were asked."""
    with LoopbackServer(WorldModel([world])) as server:
        records = asyncio.run(play(world, agent, tasks, server.base_url, **options))
        return records, [request.body for request in server.requests]


def answers(records):
    return [(record["outcome"], record["answer"]) for record in records]


def right(tasks):
    return [(1, task.metadata["answers"][0]) for task in tasks]


def read(requests):
    return [str(message["content"]) for request in requests for message in request["messages"]]


@pytest.mark.parametrize("agent", LLM_POLICIES)
def test_every_agent_answers_questions_on_tables_texts_and_graphs(agent, records):
    of = {task.metadata["domain"]: task for task in some_tasks(records, 1) if task.metadata["difficulty"] == "hard"}
    tasks = [of[domain] for domain in ("yelp", "scirex")]
    made, _ = played(records, agent, tasks)
    assert [record["outcome"] for record in made] == [1] * len(tasks), answers(made)
    if agent == "rp-react":  # the passages, which Python alone reads whole
        assert offloaded(made[1:2]) == 1
        steps = [step for asked in made[1]["agent"]["structure"]["subquestions"] for step in asked["steps"]]
        assert [step["arguments"]["variables"] for step in steps if step["action"] == "python"] == [["output_1"]] * 2


@pytest.mark.parametrize(
    ("options", "by_chance"), [({}, False), ({"base": 0.9}, True), ({"law": "outages"}, True), ({"law": "none"}, False)]
)
def test_agents_are_told_that_tools_fail_at_random_where_they_do(options, by_chance):
    env = ConversationEnv(EnvironmentSettings(**options).in_world("pages-v1"))
    model = ScriptedChatModel(["Thought: none\nAction: finish\nAction Input: nothing"])
    play_episode(env, make_policy("react", models=model), env.world.tasks()[0], "baseline", 0)
    system = model.requests[0].messages[0].content
    assert ("Tools fail at random." in system) == by_chance
    assert "fails where what it asks for is wrong or not there: its error says what." in system


@pytest.mark.parametrize("agent", LLM_POLICIES)
def test_every_agent_answers_questions_on_long_pages(agent):
    world = load_world("pages-v1")
    tasks = world.tasks()[6:8]  # a bridge and a comparison
    made, requests = played(world, agent, tasks)
    assert answers(made) == right(tasks)
    pages = [json.dumps(output, ensure_ascii=False) for task in tasks for output in Solution(world, task).outputs]
    longest = max(pages, key=len)
    assert len(longest) > LENGTHS["observation_chars"][0], "which is enough elsewhere"
    is_shown = any(longest in text for text in read(requests))
    assert is_shown is (agent in ("direct", "react", "reflexion", "plan-and-execute"))
    if agent == "rp-react":
        told = [f"search executed successfully.\nOutput: {page}" for page in pages]
        assert offloaded(made) == sum(estimated_tokens(text) > 1_000 for text in told) > 1
        assert max(map(len, read(requests))) < len(longest)
    for name, value in made[0]["agent"]["options"].items():  # as they were used
        assert value == LENGTHS.get(name, (value, value))[1]
    if agent == "reflexion":  # whose evaluator is shown all that the judgement rests on
        assert not any(record["agent"]["counters"].get("reflections") for record in made)
    if agent == "kpi-chain":
        assert in_pieces(made) >= 1
        # What was extracted from one page is what the next one is searched for by.
        memory = made[0]["agent"]["structure"]["memory"]
        sent = [json.loads(text)["query"] for text in QUERY.findall(str(made[0]["steps"]))]
        assert len(sent) > 1
        assert set(sent[1:]) <= {value for found in memory.values() for value in found.values()}


@pytest.mark.parametrize("agent", NATIVE)
def test_natively_each_tool_of_a_world_is_a_function(agent):
    world = load_world("pages-v1")
    made, requests = played(world, agent, world.tasks()[:1], protocol="native")
    assert answers(made) == right(world.tasks()[:1])
    offered = {function["function"]["name"] for request in requests for function in request.get("tools", ())}
    assert offered == {"search", "finish"}


def test_the_model_knows_no_answer_that_it_is_not_shown(monkeypatch):
    world = load_world("pages-v1")
    monkeypatch.setattr(
        "tests.doubles.worlds.make_policy",
        lambda name, models: make_policy(f"{name}[observation_chars=100]", models=models),
    )
    made, _ = played(world, "react", world.tasks()[:3])
    assert answers(made) == [(0, UNKNOWN)] * 3


@pytest.mark.parametrize("name", ["search", "tool_call"])
def test_tools_are_functions_of_code_by_their_names_and_by_tool_call(name):
    call = "search('Ostrel')" if name == "search" else "tool_call('search', {'query': 'Ostrel'})"
    model = ScriptedChatModel([f"```python\nprint(len({call}['pages']))\n```", "```python\nfinish('Mirren')\n```"])
    env = ConversationEnv(EnvironmentSettings().in_world(NAME))
    record = play_episode(env, make_policy("code-act", models=model), TASK, "baseline", seed=0)
    assert record["outcome"] == 1
    assert model.requests[-1].messages[-1].content.startswith("Output:\n1\n")
    assert "- search(query: str): Searches an encyclopedia" in model.requests[0].messages[0].content


@pytest.mark.long
@pytest.mark.parametrize("has_law", [False, True])
@pytest.mark.parametrize("agent", LLM_POLICIES)
@pytest.mark.parametrize("name", ["pages-v1", "records-v1"])
def test_every_agent_reaches_what_its_model_is_worth(name, agent, has_law):
    world = load_world(name)
    made, _ = played(world, agent, some_tasks(world, 2), has_law=has_law)
    assert sum(record["outcome"] for record in made) >= 0.95 * sum(record["optimum"] for record in made)
    if not has_law:
        assert {record["optimum"] for record in made} == {1.0}
    if agent in ("direct", "react"):  # whose model makes the reference's calls, each until it has succeeded
        assert max(record["regret"] for record in made) < 1e-9
