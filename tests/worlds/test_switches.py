"""Each switch of RP-ReAct moves something: temperature by component, examples of tools, the threshold of storing."""

import pytest

from resilisim.chat.middleware import ChatModelSettings
from resilisim.envs import EnvironmentSettings
from resilisim.errors import InvalidInputError
from resilisim.evaluation import ModelSettings, evaluate
from resilisim.evaluation.run.arguments import check_policies
from resilisim.reporting.agent_sections import agent_tables
from resilisim.worlds import load_world
from tests.chat.loopback import LoopbackServer
from tests.doubles.switch_models import SwitchModel

WORLD = "pages-v1"


@pytest.fixture(scope="module")
def server():
    with LoopbackServer(SwitchModel([load_world(WORLD)]), keeps_requests=False) as server:
        yield server


def played(server, model, policies, *options):
    tasks = [task.instance_id for task in load_world(WORLD).tasks()[6:8]]
    models = ModelSettings((f"openai:{model}@{server.base_url}",), ChatModelSettings(), model_options=options)
    result = evaluate(policies, tasks, environment=EnvironmentSettings().in_world(WORLD), model=models, progress=False)
    assert result.call.num_failures == 0
    return result


def test_each_component_is_sampled_at_its_own_temperature(server):
    cold = "rp-react[model_options=planner.temperature=0;executor.temperature=1]"
    warm = "rp-react[model_options=planner.temperature=1;executor.temperature=0]"
    by_policy = {cold: {"planner": 0, "agent": 0}, warm: {"planner": 0, "agent": 0}}
    for record in played(server, "wandering", [cold, warm]).records():
        wasted = by_policy[record["policy"]]
        wasted["planner"] += sum(event["kind"] == "malformed_reply" for event in record["agent"]["events"])
        asked = record["agent"]["structure"]["subquestions"]
        wasted["agent"] += sum(step["action"] == "ponder" for one in asked for step in one["steps"])
    assert (by_policy[cold]["planner"], by_policy[warm]["agent"]) == (0, 0)
    assert by_policy[cold]["agent"] > 0
    assert by_policy[warm]["planner"] > 0


def test_examples_of_tools_spare_the_tries_that_find_out_their_parameters(server):
    result = played(server, "unpractised", "rp-react[tool_examples=all|none]")
    practised, learning = result.agents()
    assert practised.num_right == learning.num_right == 2
    assert learning.total("calls") > practised.total("calls")
    errors = {
        record["policy"]: str(record["agent"]["structure"]["subquestions"]).count("unknown parameter")
        for record in result.records()
    }
    assert errors[practised.policy] == 0 < errors[learning.policy]


def test_the_higher_the_threshold_the_less_is_stored_and_saved(server):
    result = played(server, "competent", "rp-react[offload_tokens=100|3000|1000000,preview_tokens=none]")
    low, middle, high = result.agents()
    assert low.offloads >= middle.offloads > high.offloads == 0
    assert low.tokens_saved > middle.tokens_saved > high.tokens_saved == 0
    table = agent_tables(result.agents())[-1]
    assert table.caption == "Outputs stored instead of shown"
    assert [str(row[2]) for row in table.rows] == ["100", "3,000", "1,000,000"]


def test_an_option_with_several_values_is_a_policy_of_each():
    assert check_policies(["random", "react[steps=5|20,examples=none|default]"]) == (
        "random",
        "react[steps=5,examples=none]",
        "react[steps=5,examples=default]",
        "react[steps=20,examples=none]",
        "react[steps=20,examples=default]",
    )
    with pytest.raises(InvalidInputError, match="option steps"):
        evaluate("react[steps=5|many]", 1, model="openai:m@http://127.0.0.1:1/v1")
