"""The published trace of KPI-Chain: who played Corliss Archer, and which office did she hold?

Queries, ids, values and confidences are those of the trace; descriptions and responses are shortened. The merge differs
by decision: T2 stays in the plan as history.
"""

from __future__ import annotations

import asyncio

import pytest

from resilisim.chat import ScriptedChatModel
from resilisim.policies.llm.agent_run import AgentRun
from resilisim.policies.llm.kpi_chain.agent import KpiChain
from tests.policies.llm.helpers import (
    Play,
    ScriptedToolbox,
    answer_task,
    entity,
    extraction,
    extractor,
    plan_of,
    planner,
    reasoned,
    ref,
    replanner,
    spec,
    statuses,
    tool_task,
)

QUESTION = "What government position was held by the woman who portrayed Corliss Archer in the film Kiss and Tell?"
WIKIPEDIA = spec("wikipedia_search", "query", description="Finds articles of an encyclopedia")


def wikipedia(task_id, description, query, *found, needs=()):
    """A search of the trace; its plans call the entities `expected_output_parameters`."""
    task = tool_task(task_id, query, *found, needs=needs, task_description=description, tool_name="wikipedia_search")
    task["expected_output_parameters"] = task.pop("expected_output_entities")
    return task


PLAN = plan_of(
    wikipedia("T1", "Look up the film and who played Corliss Archer", "Kiss and Tell Corliss Archer", "actress_name"),
    wikipedia("T2", "Look up her career", ref("T1.actress_name"), "government_position", needs=("T1",)),
    answer_task("T3", "T2.government_position"),
)
CONTINUATION = plan_of(
    wikipedia(
        "T2a",
        "Look up the diplomatic career of the actress with a narrower query",
        f"{ref('T1.actress_name')} diplomat government position Chief of Protocol Ambassador",
        entity("government_position", description='The title of the office; "diplomat" alone is none.'),
        needs=("T1",),
    ),
    answer_task("T3a", "T2a.government_position"),
)

FILM_ARTICLE = "Kiss and Tell (1945) is a comedy with Shirley Temple as Corliss Archer."
CAREER_ARTICLE = "Shirley Temple Black was an actress and, later, a diplomat. Her films include Bright Eyes."
OFFICE_ARTICLE = "Offices: Ambassador to Ghana (1974-1976); Chief of Protocol of the United States (1976-1977)."

ACTRESS = extraction(0.95, "The article names her in the part.", actress_name="Shirley Temple")
NO_OFFICE = extraction(0.15, "Only the word diplomat, no office; hence 0.2.", government_position=None)
OFFICE = extraction(0.98, "Listed with its years.", government_position="Chief of Protocol")
SCRIPT = [
    planner(PLAN, QUESTION),
    extractor(f"```yaml\n{ACTRESS}\n```", FILM_ARTICLE),
    extractor(NO_OFFICE, CAREER_ARTICLE),
    replanner(CONTINUATION, "entity 'government_position' was not found (confidence 0.15)"),
    extractor(OFFICE, OFFICE_ARTICLE),
    reasoned("value: Chief of Protocol", final_answer="Chief of Protocol"),
]


@pytest.fixture(scope="module")
def trace():
    """The trace played, and plan and memory as they stood at every call of tool and model."""
    snapshots = []
    policy = KpiChain(models=ScriptedChatModel(SCRIPT))
    model = policy.models.default
    toolbox = ScriptedToolbox([WIKIPEDIA], {"wikipedia_search": [FILM_ARTICLE, CAREER_ARTICLE, OFFICE_ARTICLE]})
    run = AgentRun(task=QUESTION, tools=toolbox, models=policy.models, options=policy.options)
    ask, call = model.complete, toolbox.call

    def keep(what):
        snapshots.append((what, statuses(run), run.structure["memory"]))

    async def watched_ask(request):
        keep(request.role)
        return await ask(request)

    async def watched_call(name, arguments):
        keep("tool")
        return await call(name, arguments)

    model.complete, toolbox.call = watched_ask, watched_call
    played = Play(asyncio.run(policy.play(run)), run, model, toolbox)
    keep("end")
    return played, snapshots


def test_the_answer_and_the_calls(trace):
    played, snapshots = trace
    assert played.answer == "Chief of Protocol"
    first, second = ["planner", "tool", "extractor", "tool", "extractor"], ["replanner", "tool", "extractor"]
    assert [what for what, _, _ in snapshots] == [*first, *second, "reasoner", "end"]
    assert len(played.model.requests) == 6, "calls of tools are none of a model"
    assert played.model.remaining == 0
    assert [arguments for _, arguments in played.calls] == [
        {"query": "Kiss and Tell Corliss Archer"},
        {"query": "Shirley Temple"},
        {"query": "Shirley Temple diplomat government position Chief of Protocol Ambassador"},
    ]
    assert played.counters == {"replans": 1}
    assert played.structure["replans"] == {"T2": 1}
    assert played.failures == [], "what failed was made good"


def test_memory_and_statuses_after_each_step(trace):
    _, snapshots = trace
    first = {"T1": {"actress_name": "Shirley Temple"}}
    second = {**first, "T2a": {"government_position": "Chief of Protocol"}}
    third = {**second, "T3a": {"final_answer": "Chief of Protocol"}}
    done = {"T1": "done", "T2": "failed"}
    assert [memory for _, _, memory in snapshots] == [{}] * 3 + [first] * 5 + [second, third]
    assert [status for _, status, _ in snapshots] == [
        {},
        *[{"T1": "pending", "T2": "pending", "T3": "pending"}] * 2,
        *[{"T1": "done", "T2": "pending", "T3": "pending"}] * 2,
        {**done, "T3": "pending"},
        *[{**done, "T2a": "pending", "T3a": "pending"}] * 2,
        {**done, "T2a": "done", "T3a": "pending"},
        {**done, "T2a": "done", "T3a": "done"},
    ]


def test_the_confidences_are_those_of_the_extractor(trace):
    extractions = [event for event in trace[0].events("extraction") if event["component"] == "extractor"]
    found = [event["details"]["candidates"] for event in extractions]
    assert found == [
        {"actress_name": {"value": "Shirley Temple", "confidence": 0.95}},
        {"government_position": {"value": None, "confidence": 0.15}},
        {"government_position": {"value": "Chief of Protocol", "confidence": 0.98}},
    ]


def test_what_each_component_is_told(trace):
    played, _ = trace
    request = played.told(3)
    assert QUESTION in request
    assert "- wikipedia_search(query: string): Finds articles of an encyclopedia" in request
    assert "## Failed task\n\nT2\n" in request
    assert "Used already, so that no new task can have them: T1, T2, T3\n" in request
    assert "depend on the failed task or bring the final answer: T3\n" in request
    assert "Turns left: not limited." in request
    assert "actress_name: Shirley Temple" in request, "what succeeded is shown with its results"
    assert "Only the word diplomat, no office" in request, "the extractor's reasons"
    assert CAREER_ARTICLE not in request, "the raw response is not passed on"
    assert "Look up the diplomatic career of the actress with a narrower query" in played.told(4)
    assert '"diplomat" alone is none.' in played.told(4)
    assert "JSON_PATH" not in played.told(5)
    assert "name: final_answer" in played.told(5)
