"""Plans, replies and runs for tests of KPI-Chain."""

from __future__ import annotations

from typing import Any

from resilisim.chat import ScriptedChatModel, ScriptedReply
from resilisim.policies.llm.kpi_chain import KpiChain
from resilisim.policies.llm.kpi_chain.yaml_text import dump_yaml
from resilisim.policies.llm.run import AgentRun
from tests.policies.llm import plays
from tests.policies.llm.toolboxes import ScriptedToolbox, spec

SEARCH = spec("search", "query", description="Looks things up.")
STATE_IT = "State the answer"


def given(name: str, value: Any, kind: str = "string", **more: Any) -> dict[str, Any]:
    """An input parameter; whether it is a reference is left out unless said."""
    return {"name": name, "type": kind, "value": value, **more}


def ref(path: str) -> str:
    return f"<JSON_PATH>{path}</JSON_PATH>"


def entity(name: str, kind: str = "string", description: str = "what it is", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "description": description, **more}


def tool_task(task_id: str, query: Any, *entities: Any, needs: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    """A search; an entity given as a text is a string."""
    return {
        "task_id": task_id,
        "task_description": f"Search for {task_id}",
        "task_type": "Tool call",
        "tool_name": "search",
        "input_parameters": [given("query", query)],
        "expected_output_entities": [entity(item) if isinstance(item, str) else item for item in entities],
        "dependencies": list(needs),
        **fields,
    }


def answer_task(task_id: str, *paths: str, **fields: Any) -> dict[str, Any]:
    """The reasoning task at the end, from values found before."""
    return {
        "task_id": task_id,
        "task_description": STATE_IT,
        "task_type": "Reasoning",
        "tool_name": "",
        "input_parameters": [given(f"value_{number}", ref(path)) for number, path in enumerate(paths, 1)],
        "expected_output_entities": [entity("final_answer")],
        "dependencies": list(dict.fromkeys(path.partition(".")[0] for path in paths)),
        **fields,
    }


def plan_of(*tasks: dict[str, Any]) -> str:
    return dump_yaml({"tasks": list(tasks)})


def planned(*tasks: dict[str, Any], expect: str = "") -> ScriptedReply:
    return ScriptedReply(plan_of(*tasks), expect, "planner")


def replanned(*tasks: dict[str, Any], expect: str = "") -> ScriptedReply:
    return ScriptedReply(plan_of(*tasks), expect, "replanner")


def extraction(confidence: Any, summary: str = "why", **values: Any) -> str:
    return dump_yaml({"confidence_score": confidence, "extracted_entities": values, "entities_summary": summary})


def extracted(confidence: Any, expect: str = "", **values: Any) -> ScriptedReply:
    return ScriptedReply(extraction(confidence, **values), expect, "extractor")


def reasoning(status: str = "completed", **outputs: Any) -> str:
    result = {
        "execution_result": {"status": status, "outputs": outputs},
        "execution_details": {"reasoning_steps": ["looked at the inputs"]},
    }
    return f"Justifications:\n1. The inputs say so\n\n{dump_yaml(result)}"


def reasoned(expect: str = "", status: str = "completed", **outputs: Any) -> ScriptedReply:
    return ScriptedReply(reasoning(status, **outputs), expect, "reasoner")


def play(script: list[Any], toolbox: Any, task: str = "the question", **options: Any) -> plays.Play:
    return plays.play(KpiChain(models=ScriptedChatModel(script), **options), toolbox, task)


def searching(*answers: Any) -> ScriptedToolbox:
    return ScriptedToolbox([SEARCH], {"search": answers})


def statuses(run: AgentRun) -> dict[str, str]:
    return {task["task_id"]: task["execution_status"] for task in run.structure["plan"]["tasks"]}


def requests_of(played: plays.Play, role: str) -> list[str]:
    """The last message of every request of a component."""
    return [request.messages[-1].content for request in played.model.requests if request.role == role]
