"""Inspect AI: `inspect eval resilisim/workflow`, a task whose samples are episodes and whose score is full success."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import anyio.to_thread
from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import transcript
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    execute_tools,
)
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, mean, metric, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolDef, ToolError, ToolParams

from resilisim.envs.session import EpisodeEnded, Session
from resilisim.envs.session_tools import SessionTool
from resilisim.evaluation.run.plan import RunPlan
from resilisim.integrations.episodes import figures, open_episode, plan_of, prompt_text

RECORD: Final = "resilisim_record"  # under which the store of a sample keeps the episode's record
_CUT_OFF: Final = ("sample_limit", "error")  # events of a sample that was not played to its end


@dataclass(slots=True)
class _Played:
    """An episode under way; `calls` counts those that have reached it, which Inspect may keep from it."""

    session: Session
    calls: int = 0


# By the uuid of a sample's state: what is under way cannot stand in a store, which is written to the log.
_UNDER_WAY: dict[str, _Played] = {}


@task
def workflow(
    tasks: Any = 20,
    seeds: Any = 1,
    prompt: Any = "baseline",
    tools: str = "native",
    library: str | None = None,
    **options: Any,
) -> Task:
    """Return the task: one sample for each task, prompt type and seed.

    Args:
        tasks: What `evaluate` takes: a number of tasks of the benchmark, a file, an id, or a list of ids.
        seeds: Number of episodes of each task and prompt, or a list of seeds.
        prompt: Prompt type, or a list of them.
        tools: "native" (each tool is a function) or "discovery" (search, info, call).
        library: File of a library of one's own.
        **options: Options of `EnvironmentSettings`, such as base=0.7.

    Raises:
        InvalidInputError: An argument is unusable.
    """
    options.pop("model", None)  # Inspect tells it to tasks that take anything
    plan = plan_of(tasks, seeds, prompt, tools, library, options=options)
    samples = [
        Sample(
            input=prompt_text(plan, episode.task, episode.prompt),
            id=episode.name,
            metadata={
                "index": episode.index,
                "task": episode.task.instance_id,
                "task_type": episode.task.task_type,
                "complexity": episode.task.complexity,
                "prompt": episode.prompt,
                "seed": episode.seed,
            },
        )
        for episode in plan.episodes
    ]
    return Task(
        dataset=MemoryDataset(samples, name="resilisim"),
        setup=begin_episode(plan),
        solver=play_episode(),
        cleanup=_forget,
        scorer=full_success(),
        config=GenerateConfig(parallel_tool_calls=False),
        metadata={"environment": plan.settings.environment.to_mapping()},
    )


@solver
def begin_episode(plan: RunPlan) -> Solver:
    """Begin the episode of a sample, and give its tools to whatever solver follows."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        episode = plan.episodes[state.metadata["index"]]
        # The first exact optimum of a process compiles for seconds, in which other samples go on.
        session = await anyio.to_thread.run_sync(open_episode, plan, episode, str(state.model))
        played = _UNDER_WAY[state.uuid] = _Played(session)
        state.tools = [_tool_of(played, tool, state) for tool in session.tools]
        return state

    return solve


@solver
def play_episode() -> Solver:
    """Let the model play: each of its replies is one message, as it stands, until the episode has ended.

    What Inspect keeps from a tool (unknown names, arguments that do not fit) and words without a call go to the
    environment too, which answers them as in Conversation-v0, so that each uses a turn.
    """

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        played = _UNDER_WAY[state.uuid]
        while not played.session.ended:
            state = await generate(state, tool_calls="none")
            usage = state.output.usage
            if usage is not None:
                played.session.note_usage(
                    usage.input_tokens,
                    usage.output_tokens,
                    usage.total_cost,
                    model=state.output.model,
                    seconds=state.output.time or 0.0,
                )
            state.messages += await _answers(state, played)
        state.completed = True
        return state

    return solve


def _mean_of(name: str) -> Callable[[list[SampleScore]], float]:
    """Return a metric that is the mean of a figure in the scores' metadata."""

    def compute(scores: list[SampleScore]) -> float:
        values = [each.score.metadata[name] for each in scores if each.score.metadata and name in each.score.metadata]
        return sum(values) / len(values) if values else float("nan")

    return compute


@metric
def optimum() -> Metric:
    """Return the mean of V*, the success rate that no agent can beat."""
    return _mean_of("optimum")


@metric
def regret() -> Metric:
    """Return the mean of what choices gave away of V*."""
    return _mean_of("regret")


@metric
def luck_adjusted() -> Metric:
    """Return the success rate without luck: V* minus regret."""
    return _mean_of("luck_adjusted")


@scorer(metrics=[mean(), stderr(), optimum(), regret(), luck_adjusted()])
def full_success() -> Scorer:
    """Score a sample by full success; an episode that a limit or an error of the solver cut off is lost.

    One that the model's endpoint or the environment broke has no score (docs/specification, section 9).

    The score's metadata hold V*, regret, luck and the outcome without luck, the store holds the episode's record.
    """

    async def score(state: TaskState, target: Target) -> Score:
        session = _UNDER_WAY[state.uuid].session
        if not session.ended:
            events = transcript().events
            cut_off = next((event for event in events if event.event in _CUT_OFF), None)
            if cut_off is None:
                session.stop()  # another solver has returned without finishing: the agent has stopped
            elif cut_off.event == "error" and (session.broken is not None or _has_model_failed(events)):
                return Score.unscored(reason=f"the episode was cut off ({cut_off.event})")
            else:
                session.lose(f"the episode was cut off by Inspect ({cut_off.event})")
        record = session.record()
        state.store.set(RECORD, record)
        reported = {**figures(record), "reward": session.reward}
        return Score(value=record["outcome"], answer=record["agent"]["answer"], metadata=reported)

    return score


def _has_model_failed(events: Sequence[Any]) -> bool:
    """Tell whether the last call of a model has failed, so that it was not the solver's fault."""
    calls = [event for event in events if event.event == "model"]
    return bool(calls) and getattr(calls[-1], "error", None) is not None


def _tool_of(played: _Played, tool: SessionTool, state: TaskState) -> Any:
    """Return a tool of a session as one of Inspect; the environment checks arguments, whatever the schema says."""

    async def execute(**kwargs: Any) -> str:
        played.calls += 1
        try:
            result = tool(**kwargs)
        except EpisodeEnded:
            state.completed = True
            raise ToolError("The episode is over: nothing can be called any more.") from None
        state.completed = state.completed or played.session.ended
        if not result.ok:
            raise ToolError(str(result))
        return str(result)

    return ToolDef(
        execute,
        name=tool.name,
        description=tool.description,
        parameters=ToolParams.model_validate(_described(tool.parameters)),
        parallel=False,
    ).as_tool()


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which each parameter has a description, without which Inspect refuses a tool."""
    properties = schema["properties"].items()
    return {**schema, "properties": {name: {"description": name, **each} for name, each in properties}}


async def _answers(state: TaskState, played: _Played) -> list[ChatMessage]:
    """Return the messages that answer the model's last reply, after sending it to the episode."""
    reply = state.output.message
    calls = reply.tool_calls or []
    if len(calls) == 1:
        before = played.calls
        answers, _ = await execute_tools([reply], state.tools)
        if played.calls > before:
            return list(answers)
    return [_message(answer, calls) for answer in played.session.send(_as_openai(reply)).messages]


def _as_openai(reply: ChatMessageAssistant) -> dict[str, Any]:
    """Return a reply as the environment reads it; what could not be parsed is no JSON there either."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function,
                    "arguments": call.arguments if call.parse_error is None else call.parse_error,
                },
            }
            for call in reply.tool_calls
        ]
    return message


def _message(answer: dict[str, Any], calls: Any) -> ChatMessage:
    if answer["role"] == "user":
        return ChatMessageUser(content=answer["content"])
    name = next((call.function for call in calls if call.id == answer["tool_call_id"]), None)
    return ChatMessageTool(content=answer["content"], tool_call_id=answer["tool_call_id"], function=name)


async def _forget(state: TaskState) -> None:
    _UNDER_WAY.pop(state.uuid, None)
