"""Agents with a planner that begin with the plan of their prompt, sound and with arguments passed wrongly.

Each plan is written in the form in which the agent's planner writes plans, and read by the agent as if its planner had
written it. Where no tool fails, an agent succeeds exactly if the price says so.
"""

import functools
import json
import re

import pytest
import yaml

from resilisim import benchmark_tasks
from resilisim.chat import ChatReply
from resilisim.chat.models import RoleModels
from resilisim.evaluation.episode.play import play_episode
from resilisim.policies.llm.agent_options import AgentOptions
from resilisim.policies.llm.agent_run import AgentRun
from resilisim.policies.llm.agents.plan_execute import PlanAndExecute
from resilisim.policies.llm.agents.rp_react import RPReAct, addressed, read_team
from resilisim.policies.llm.agents.rp_react_moves import read_move
from resilisim.policies.llm.agents.step_plan import read_step_plan, step_references_in
from resilisim.policies.llm.conversation_toolbox import CONVERSATION_TOOLS
from resilisim.policies.llm.given_plan import (
    chain_plan_of,
    given_steps,
    questions_of,
    step_plan_of,
    words_for_a_result,
)
from resilisim.policies.llm.kpi_chain.agent import KpiChain
from resilisim.policies.llm.kpi_chain.kpi_plan import PlanRules, read_plan
from resilisim.policies.llm.kpi_chain.model_yaml import UnreadableReplyError, dump_yaml
from resilisim.simulator import Law
from resilisim.workflows import ExactPlanner, Step
from resilisim.workflows.executors import EXECUTORS, carried_out
from resilisim.workflows.flaws import FlawedWorkflow, Perturber
from resilisim.workflows.flaws.flaw import ARGUMENT_PASSING, STRESSORS
from resilisim.workflows.plan_value import CostCalculator
from resilisim.workflows.prompts import render_prompt
from tests.policies.llm.helpers import ScriptedToolbox, environment, extraction, reasoning

METHODS = STRESSORS[ARGUMENT_PASSING]
CERTAIN = {"base": 1.0, "not_executed": 1.0, "failed": 1.0}
LAW = Law("certain", **CERTAIN)


@functools.cache
def case():
    """A task whose plan, where nothing fails, passes on results three times, and that plan."""
    planner = ExactPlanner(law=LAW)
    for task in benchmark_tasks():
        workflow = planner.plan(task)
        severe = Perturber().perturb(workflow, task.required_tools, ARGUMENT_PASSING, "severe", "forward_reference")
        if isinstance(severe, FlawedWorkflow) and len(severe.edits) >= 6 and len(workflow.steps) <= 8:
            return task, workflow
    raise AssertionError("no such task")


def flawed(method, severity="light"):
    task, workflow = case()
    found = Perturber().perturb(workflow, task.required_tools, ARGUMENT_PASSING, severity, method)
    assert isinstance(found, FlawedWorkflow)
    return found.workflow


class Roles:
    """A model that answers by rule: it puts values in the place of references, and takes from outputs what is asked."""

    name = "roles"

    def __init__(self, **replies):
        self.asked = []
        self._replies = {role: list(texts) for role, texts in replies.items()}
        self._questions, self._answered = 0, set()

    async def complete(self, request):
        self.asked.append(request.role)
        if self._replies.get(request.role):
            return ChatReply(self._replies[request.role].pop(0))
        return ChatReply(getattr(self, request.role)(request.messages))

    async def aclose(self):
        pass

    def planner(self, messages):
        return "<Finish>done</Finish>"

    def replanner(self, messages):
        return '{"answer": "done"}'

    def extractor(self, messages):
        text = messages[0].content if len(messages) > 2 else messages[-1].content  # asked again
        wanted = re.search(r"```yaml\n(.*)```", text, re.DOTALL)
        if wanted is not None:
            entities = yaml.safe_load(wanted[1])
            return extraction(
                0.9, **{entity["name"]: {"rows": 1} if entity["type"] == "dict" else "rows" for entity in entities}
            )
        return json.dumps(
            self._resolved(json.loads(re.search(r"^Arguments: (.*)$", text, re.MULTILINE)[1]), r"\{step_")
        )

    def reasoner(self, messages):
        return reasoning(final_answer="done")

    def executor(self, messages):
        if any(message.role == "assistant" for message in messages):
            return "Thought: done\nAction: finish\nAction Input: it was done"
        task = messages[-1].content.rpartition("Your step:\n")[2]  # all of it, if a planner of sub-questions asks
        name, parameters = re.search(r"Call the tool (\S+) with these parameters: (\{.*\})", task).groups()
        numbers = re.findall(r"sub-question(?: (\d+))?", parameters)
        self._questions += 1
        if not all(number and int(number) in self._answered for number in numbers):
            return "Thought: that was never found out\nAction: finish\nAction Input: "
        self._answered.add(self._questions)
        values = self._resolved(json.loads(parameters), r"the result of sub-question|\{step_")
        return f"Thought: call it\nAction: tool_call\nAction Input: {json.dumps({'name': name, 'parameters': values})}"

    def _resolved(self, value, mark, name=""):
        if isinstance(value, dict):
            return {key: self._resolved(part, mark, key) for key, part in value.items()}
        if isinstance(value, list):
            return [self._resolved(part, mark, name) for part in value]
        if isinstance(value, str) and re.search(mark, value):
            return "rows" if name == "source" else {"rows": 1}
        return value


AGENTS = {
    "plan-and-execute": lambda model, **options: PlanAndExecute(
        models=model, **{"executor": "direct", "replan": "failure", "replans": 0, "first_plan": "prompt", **options}
    ),
    "kpi-chain": lambda model, **options: KpiChain(models=model, **{"retries": 0, "first_plan": "prompt", **options}),
    "rp-react": lambda model, **options: RPReAct(models=model, first_plan="prompt", **options),
}


def played(agent, prompt, model=None, **options):
    task, _ = case()
    model = Roles() if model is None else model
    record = play_episode(environment(**CERTAIN, parameters="strict"), AGENTS[agent](model, **options), task, prompt, 0)
    sent = json.dumps([step["message"] for step in record["steps"]])
    assert not re.search(r"step_|step \d|JSON_PATH|sub-question", sent), "a tool was passed a reference"
    calls = [step["tool"] for step in record["steps"] if step["kind"] == "execute"]
    return record, calls, model


def price(workflow, executor):
    task, _ = case()
    return CostCalculator(law=LAW).costs(task.required_tools, workflow.steps, (), executor)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_sound_plan_of_the_prompt_is_carried_out_without_asking_the_planner_for_one(agent):
    record, calls, model = played(agent, "optimal")
    assert calls == list(case()[1].tools)
    assert record["outcome"] == 1
    assert price(case()[1], agent).obey == pytest.approx(1.0)
    assert model.asked.count("planner") == (agent == "rp-react")  # whose planner says the end
    given = record["agent"]["structure"]["given_replies"]
    assert len(given) == (len(calls) if agent == "rp-react" else 1)
    assert {reply["role"] for reply in given} == {"planner"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_carries_out_of_a_flawed_plan_what_its_price_says(agent, method):
    record, calls, _ = played(agent, f"flawed:argument_passing:light:{method}")
    workflow = flawed(method)
    assert calls == [step.tool for step in carried_out(workflow.steps, agent)]
    assert (record["outcome"] == 1) == (price(workflow, agent).obey == pytest.approx(1.0))
    if method in ("malformed_reference", "missing_reference"):
        assert record["outcome"] != 1
        if agent == "rp-react":  # whose executor says so
            told = [asked["result"] for asked in record["agent"]["structure"]["subquestions"]]
            assert "that was never found out" in told
        else:
            kinds = {event["kind"] for event in record["agent"]["events"]}
            assert kinds & {"failure", "malformed_reply"}, "it was silent"


def test_sentences_for_sub_agents_carry_the_references_in_what_they_need():
    prompts = {"optimal": case()[1], "flawed:argument_passing:light:missing_reference": flawed("missing_reference")}
    for prompt, workflow in prompts.items():
        record, calls, _ = played("plan-and-execute", prompt, executor="react")
        assert calls == [step.tool for step in carried_out(workflow.steps, "plan-and-execute")]
        assert (record["outcome"] == 1) == (prompt == "optimal")
    (failure,) = [event for event in record["agent"]["events"] if event["kind"] == "task_failed"]
    assert "which has not been done: it does not exist or comes later" in failure["text"]


class Careless(Roles):
    """Passes on what stands there, and what it was told to take from nowhere."""

    def _resolved(self, value, mark, name=""):
        return value


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("agent", AGENTS)
def test_a_model_that_passes_references_on_is_told_so_and_no_tool_sees_them(agent, method):
    """KPI-Chain puts values into references itself."""
    record, calls, _ = played(agent, f"flawed:argument_passing:severe:{method}", Careless())
    assert len(calls) < len(case()[1].steps) or agent == "kpi-chain"
    if agent == "rp-react":
        told = [step["error"] for asked in record["agent"]["structure"]["subquestions"] for step in asked["steps"]]
        said = [error for error in told if error is not None and "only stands for a result" in error]
        assert bool(said) == any(number is not None for number in numbers_of_plan(method))


def numbers_of_plan(method):
    """The references of which the executor of rules thinks that they were answered."""
    steps = given_steps(fake_run(render_prompt(case()[0], "flawed", flawed(method, "severe")).text))
    return [number for step in steps for number in numbers_of(step) if number is not None and number < step.number]


def test_the_agents_differ_in_what_a_reference_to_a_later_step_costs_them():
    steps = [Step("read"), Step("parse", {"data": {"result_of": "step 3"}}), Step("count"), Step("write")]
    tools = {name: [step.tool for step in carried_out(steps, name)] for name in EXECUTORS}
    assert tools == {
        "plan-follower": ["read", "count", "write"],
        "rp-react": ["read", "count", "write"],
        "plan-and-execute": ["read"],
        "kpi-chain": ["read", "count", "parse", "write"],
    }
    circle = [Step("read", {"source": "result of step 2"}), Step("parse", {"data": {"result_of": "read"}})]
    assert carried_out(circle, "kpi-chain") == []
    by_name = [Step("parse", {"data": {"result_of": "read"}}), Step("read")]
    assert [step.tool for step in carried_out(by_name)] == ["parse", "read"]  # words that are passed on
    assert [step.tool for step in carried_out(by_name, "rp-react")] == ["read"]


@pytest.mark.parametrize("method", ["malformed_reference", "missing_reference"])
def test_a_plan_that_is_mended_is_worth_what_the_sound_one_is(method):
    task, sound = case()
    prompt = f"flawed:argument_passing:light:{method}"
    steps = given_steps(fake_run(render_prompt(task, "optimal", sound).text))
    whole = step_plan_of(steps, fake_run(""), names_tools=True)
    undone = min(step.number for step in given_steps(fake_run(render_prompt(task, "optimal", flawed(method)).text))
                 if any(number is None or number >= step.number for number in numbers_of(step)))  # fmt: skip
    rest = json.loads(whole)["steps"][undone - 1 :]
    # Numbers that were done are taken, and what refers to the failed step refers to the one that does it again.
    shift = {entry["step"]: entry["step"] + len(steps) for entry in rest}
    text = re.sub(
        r'(\{step_|"step": )(\d+)', lambda match: match[1] + str(shift.get(int(match[2]), match[2])), json.dumps(rest)
    )
    again = [{**entry, "needs": []} for entry in json.loads(text)]
    model = Roles(replanner=[json.dumps({"steps": again})])
    record, calls, _ = played("plan-and-execute", prompt, model, replans=1)
    assert (calls, record["outcome"]) == (list(sound.tools), 1)
    model = Roles(planner=[dump_yaml(chain_plan_of(steps, fake_run("")))])
    record, calls, model = played("kpi-chain", prompt, model, retries=1)
    assert (calls, record["outcome"]) == (list(sound.tools), 1)
    assert model.asked[0] == "planner"


def numbers_of(step):
    return [reference.number for reference in step.references]


def fake_run(prompt):
    tools = ScriptedToolbox(CONVERSATION_TOOLS, {})
    return AgentRun(task="", tools=tools, models=RoleModels(Roles()), options=AgentOptions(), prompt=prompt)


FORMS = {
    "markdown": {},
    "xml": {"plan_format": "xml"},
    "compact": {"style": "compact"},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", [None, *METHODS])
def test_every_form_that_an_agent_writes_reads_back_with_the_references_that_the_plan_has(form, method):
    task, sound = case()
    workflow = sound if method is None else flawed(method, "severe")
    run = fake_run(render_prompt(task, "flawed", workflow, **FORMS[form]).text)
    steps = given_steps(run)
    assert [step.tool for step in steps] == list(workflow.tools)
    numbers = [[number for number in numbers_of(step) if number is not None] for step in steps]
    is_malformed = [None in numbers_of(step) for step in steps]
    assert any(is_malformed) == (method == "malformed_reference")

    direct = read_step_plan(step_plan_of(steps, run, names_tools=True), run.tools.specs)
    found = [step_references_in(step.arguments) for step in direct.steps]
    assert [sorted(reference.numbers) for reference in found] == [sorted(set(own)) for own in numbers]
    assert [bool(reference.unclear) for reference in found] == is_malformed
    sentences = read_step_plan(step_plan_of(steps, run, names_tools=False), run.tools.specs)
    assert [sorted(step.needs) for step in sentences.steps] == [sorted(set(own)) for own in numbers]

    text = dump_yaml(chain_plan_of(steps, run))
    if method in ("malformed_reference", "missing_reference"):
        with pytest.raises(UnreadableReplyError, match="cannot be read" if any(is_malformed) else "does not exist"):
            read_plan(text, PlanRules(specs=run.tools.specs))
    elif carried_out(workflow.steps, "kpi-chain"):
        plan, _ = read_plan(text, PlanRules(specs=run.tools.specs))
        order = [int(task.task_id[1:]) - 1 for task in plan.tasks[:-1]]
        assert [workflow.tools[place] for place in order] == [
            step.tool for step in carried_out(workflow.steps, "kpi-chain")
        ]

    for question, own in zip(questions_of(steps), numbers, strict=True):
        asked = read_move(f"<|begin_search_query|>{question}<|end_search_query|>").question
        assert sorted(set(map(int, re.findall(r"sub-question (\d+)", asked)))) == sorted(set(own))


def test_rp_react_passes_on_no_words_that_stand_for_a_result_and_asks_who_can_call():
    arguments = {"name": "x", "parameters": {"rows": ["from the result of sub-question 2"]}}
    assert words_for_a_result(arguments, "") == "the result of sub-question 2"
    assert words_for_a_result(arguments, "Look at the result of sub-question 2.") is None
    assert words_for_a_result({"data": "the result of the match"}, "") is None
    team = read_team("look:tool_search;run:tool_call")
    record, calls, _ = played("rp-react", "optimal", executors="look:tool_search;run:tool_call")
    given = [reply["text"] for reply in record["agent"]["structure"]["given_replies"]]
    assert all(addressed(read_move(text).question, team)[0] == "run" for text in given)
    assert calls == list(case()[1].tools)


def test_a_prompt_without_a_plan_leaves_it_to_the_planner():
    model = Roles(planner=['{"answer": "nothing to do"}'])
    record, calls, model = played("plan-and-execute", "baseline", model)
    assert (calls, model.asked) == ([], ["planner"])
    assert any("the prompt holds no plan" in event["text"] for event in record["agent"]["events"])
