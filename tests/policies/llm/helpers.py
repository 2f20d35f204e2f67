"""Agents of tests: scripted tools and models, runs outside of any environment, whole episodes, plans of KPI-Chain."""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilisim.chat import ChatMessage, ChatReply, ScriptedChatModel, ToolCall
from resilisim.chat.scripted_models import Line, ScriptedReply
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.reply import CallResult
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.policies.llm.agent_run import AgentRun, EpisodeEnded
from resilisim.policies.llm.kpi_chain.agent import KpiChain
from resilisim.policies.llm.kpi_chain.model_yaml import dump_yaml
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.tools import ToolSpec
from resilisim.sandbox import end_idle_processes
from resilisim.tasks import Task

Answer = str | BaseException | Callable[[Mapping[str, Any]], str]  # `CallResult` is a text, too


def spec(name: str, *required: str, description: str = "A tool of a test.", **types: str) -> ToolSpec:
    """A tool whose parameters are texts unless `types` says otherwise."""
    properties = {parameter: {"type": "string"} for parameter in required}
    properties |= {parameter: {"type": kind} for parameter, kind in types.items()}
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": list(required)})


class ScriptedToolbox:
    """Answers calls from a script per tool, and raises when it is asked more.

    Attributes:
        calls: (name, arguments) of every call so far.
    """

    def __init__(self, specs: Sequence[ToolSpec], answers: Mapping[str, Sequence[Answer]]) -> None:
        self.specs = tuple(specs)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._answers = {name: list(entries) for name, entries in answers.items()}

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        self.calls.append((name, dict(arguments)))
        if name not in self._answers:
            return CallResult.refused(f"unknown tool {name!r}")
        if not self._answers[name]:
            raise AssertionError(f"the script of {name} has no more answers: {dict(arguments)}")
        answer = self._answers[name].pop(0)
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            answer = answer(arguments)
        return answer if isinstance(answer, CallResult) else CallResult(answer)


# Replies that say nothing to any agent.
NONSENSE = {
    "empty": "",
    "blank": " \n\t",
    "garbage": "\x00\ud800 %% ]]}{ [[",
    "prose": "I am not sure.",
    "ten tags": "<tool_call>look around</tool_call>" * 10,
    "letters": "x" * 200_000,
    "endless repetition": "Thought: and so on\n" * 10_000,
    "unclosed fence": "```json\n{",
    "unclosed thought": "<think>Action: finish[no]",
}


def says(role: str) -> Any:
    """What makes the lines of a component: its words, and what the last message to it must hold."""

    def line(words: str | ChatReply, expect: str = "") -> ScriptedReply:
        return ScriptedReply(words, expect, role)

    return line


agent, planner, replanner = says("agent"), says("planner"), says("replanner")
executor, extractor, reflector = says("executor"), says("extractor"), says("reflector")


def native(*calls: tuple[str, str, str], text: str = "") -> ChatReply:
    """A reply with native calls: id, function, arguments."""
    return ChatReply(text, tuple(ToolCall(*call) for call in calls))


@dataclass
class Play:
    """What a play came to; the answer is `EpisodeEnded` if a tool ended the episode."""

    answer: Any
    run: AgentRun
    model: ScriptedChatModel
    toolbox: ScriptedToolbox

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.run.transcript.events if event["kind"] == kind]

    @property
    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.run.transcript.events]

    @property
    def failures(self) -> list[tuple[str, str]]:
        return [(event["component"], event["text"]) for event in self.events("failure")]

    @property
    def counters(self) -> dict[str, int]:
        return dict(self.run.transcript.counters)

    @property
    def structure(self) -> dict[str, Any]:
        return self.run.structure

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        return self.toolbox.calls

    def messages(self, number: int) -> tuple[ChatMessage, ...]:
        return self.model.requests[number].messages

    def told(self, number: int) -> str:
        """The last message of a request."""
        return self.messages(number)[-1].content

    def system(self, number: int) -> str:
        return self.messages(number)[0].content

    @property
    def longest(self) -> int:
        """Characters of the longest request."""
        return max(sum(len(message.content) for message in request.messages) for request in self.model.requests)


def play(policy: LlmPolicy[Any], toolbox: ScriptedToolbox, task: str, **run: Any) -> Play:
    """Play a script to its end; every line of it must have been used, and the record must hold JSON values only."""
    model = policy.models.default
    episode = AgentRun(task=task, tools=toolbox, models=policy.models, options=policy.options, **run)
    try:
        answer = asyncio.run(policy.play(episode))
    except EpisodeEnded:
        answer = EpisodeEnded
    assert model.remaining == 0, "the agent asked less than the script expects"
    assert json.loads(json.dumps(episode.structure)) == episode.structure
    json.dumps(episode.transcript.events)
    return Play(answer, episode, model, toolbox)


# Two tools, the second depends on the first; with base=1.0 every call succeeds.
TASK = {
    "instance_id": "task_read_and_parse",
    "task_type": "basic_task",
    "description": "Read the records from exports/records.json, then parse them.",
    "required_tools": ["file_operations_reader", "data_processing_parser"],
    "inputs": {"source": "exports/records.json"},
    "expected_outputs": {"success": True},
    "complexity": "easy",
    "constraints": {},
}
READER, PARSER = TASK["required_tools"]


@functools.cache
def environment(**options: Any) -> ConversationEnv:
    """An environment in which every tool succeeds unless `base` says otherwise; made once for each set of options."""
    return ConversationEnv(**{"base": 1.0, "planner": "exact", **options})


def play_scripted(
    policy: LlmPolicy[Any], prompt: str = "optimal", task: Mapping[str, Any] = TASK, seed: int = 0, **options: Any
) -> EpisodeRecord:
    """Play one episode; `options` are the environment's (`protocol="native"`, `base=0.8`, `max_turns=5`, ...)."""
    env = environment(**options)
    return play_episode(env, policy, Task.from_mapping(task, env.library), prompt, seed)


def scripted(*lines: Line) -> ScriptedChatModel:
    """A model that says these lines, one for each call."""
    return ScriptedChatModel(lines)


def live_children() -> set[int]:
    """Children of this process that still run, but for sandboxes that wait for the next one."""
    end_idle_processes()
    children = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(parent) == os.getpid() and state != "Z":
                children.add(int(entry.name))
    return children


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


def reasoning(status: str = "completed", confidence: Any = None, **outputs: Any) -> str:
    stated = {} if confidence is None else {"confidence_score": confidence}
    result = {
        "execution_result": {"status": status, "outputs": outputs, **stated},
        "execution_details": {"reasoning_steps": ["looked at the inputs"]},
    }
    return f"Justifications:\n1. The inputs say so\n\n{dump_yaml(result)}"


def reasoned(expect: str = "", status: str = "completed", confidence: Any = None, **outputs: Any) -> ScriptedReply:
    return ScriptedReply(reasoning(status, confidence, **outputs), expect, "reasoner")


def kpi(script: list[Any], toolbox: Any, task: str = "the question", **options: Any) -> Play:
    return play(KpiChain(models=ScriptedChatModel(script), **options), toolbox, task)


def searching(*answers: Any) -> ScriptedToolbox:
    return ScriptedToolbox([SEARCH], {"search": answers})


def statuses(run: AgentRun) -> dict[str, str]:
    return {task["task_id"]: task["execution_status"] for task in run.structure["plan"]["tasks"]}


def requests_of(played: Play, role: str) -> list[str]:
    """The last message of every request of a component."""
    return [request.messages[-1].content for request in played.model.requests if request.role == role]
