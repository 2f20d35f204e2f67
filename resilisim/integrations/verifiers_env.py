"""verifiers: `vf-eval resilisim-verifiers`, tasks whose traces are rewarded by success, value or advantage."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import verifiers.v1 as vf
from openai import AsyncOpenAI
from pydantic import Field

from resilisim.envs.session import Session
from resilisim.envs.settings import EnvironmentSettings, Reward
from resilisim.evaluation.episode.play import open_session
from resilisim.integrations.episodes import figures, plan_of, prompt_text
from resilisim.tool_library import ToolLibrary, load_library

__all__ = ["WorkflowEnv", "WorkflowHarness", "WorkflowTaskset"]

RECORD: Final = "resilisim_record"  # under which the info of a trace keeps the episode's record
REWARD: Final = "resilisim_reward"
REWARDS: Final = "resilisim_rewards"


class WorkflowConfig(vf.TasksetConfig):
    """Which episodes there are (`--env.taskset.tasks 20`), and what they pay."""

    tasks: int | str | list[str] = 20
    """What `evaluate` takes: a number of tasks of the benchmark, a file, an id, or a list of ids."""
    seeds: int | list[int] = 1
    """Number of episodes of each task and prompt type, or the seeds."""
    prompt: str | list[str] = "baseline"
    """Prompt type, or a list of them."""
    tools: str = "native"
    """"native" (each tool is a function) or "discovery" (search, info, call)."""
    reward: Reward = "success"
    """What an episode pays: success (1 or 0), value (outcome minus V*), advantage (minus the regret)."""
    library: str | None = None
    """File of your own library."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of `EnvironmentSettings`, such as {base = 0.7}."""


class WorkflowData(vf.TaskData):
    """Everything about an episode, so that it can be opened wherever it is played."""

    workflow: dict[str, Any]
    prompt_type: str
    seed: int
    options: dict[str, Any]
    library: str | None = None


class WorkflowTask(vf.Task[WorkflowData]):
    """One episode; what the harness has noted of it is its reward and its metrics."""

    @vf.reward
    async def resilisim(self, trace: vf.Trace) -> float:
        """Return what the episode paid, of which a broken one has nothing."""
        paid: float = trace.info[REWARD]
        return paid

    @vf.metric
    async def exact(self, trace: vf.Trace) -> dict[str, float]:
        """Return the outcome, V*, regret, luck, and the outcome without luck."""
        record = trace.info[RECORD]
        measures = figures(record)
        names = ("optimum", "regret", "luck", "luck_adjusted", "messages")
        return {"outcome": float(record["outcome"]), **{name: float(measures[name]) for name in names}}


class WorkflowTaskset(vf.Taskset[WorkflowTask, WorkflowConfig]):
    """The episodes: each task with each prompt type and each seed."""

    def load(self) -> Iterator[WorkflowTask]:
        """Yield the episodes."""
        config = self.config
        plan = plan_of(
            config.tasks,
            config.seeds,
            config.prompt,
            config.tools,
            config.library,
            options={**config.options, "reward": config.reward},
        )
        for episode in plan.episodes:
            data = WorkflowData(
                id=episode.name,
                name=episode.name,
                prompt=prompt_text(plan, episode.task, episode.prompt),
                workflow=episode.task.to_mapping(),
                prompt_type=episode.prompt,
                seed=episode.seed,
                options={**config.options, "tools": config.tools, "protocol": "native", "reward": config.reward},
                library=config.library,
            )
            yield WorkflowTask(data, config.task)


class WorkflowHarness(vf.Harness[vf.HarnessConfig]):
    """The loop of a model that calls functions: each of its replies is one message, as it stands.

    It runs in the process of the environment and starts no program, so the runtime has nothing to do.
    """

    APPENDS_SYSTEM_PROMPT: ClassVar[bool] = True
    EXECUTES_CODE: ClassVar[bool] = False
    NEEDS_CONTAINER: ClassVar[bool] = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Play the episode of a trace; what it paid is noted at its end alone."""
        session = await asyncio.to_thread(_open, data, ctx.model)
        system, prompt = self.resolve_prompt(data)
        tools: list[Any] = session.openai_tools()
        messages: list[Any] = [] if system is None else [{"role": "system", "content": system}]
        messages.append({"role": "user", "content": prompt})
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None) as client:
            while not session.ended:
                answer = await client.chat.completions.create(
                    model=ctx.model, messages=messages, tools=tools, parallel_tool_calls=False
                )
                if answer.usage is not None:
                    usage = answer.usage
                    session.note_usage(usage.prompt_tokens, usage.completion_tokens, model=answer.model)
                reply = answer.choices[0].message.model_dump(exclude_none=True)
                messages += [reply, *session.send(reply).messages]
        trace.info[RECORD] = session.record()
        trace.info[REWARD] = session.reward
        trace.info[REWARDS] = session.rewards
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class WorkflowEnvConfig(vf.SingleAgentEnvConfig):
    """One seat, played here and not in a sandbox elsewhere."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class WorkflowEnv(vf.SingleAgentEnv, vf.Env[WorkflowEnvConfig]):
    """The environment: one agent plays one episode."""


def _open(data: WorkflowData, name: str) -> Session:
    settings = EnvironmentSettings(**data.options)
    return open_session(
        data.workflow,
        data.seed,
        data.prompt_type,
        settings.tools,
        name=name,
        environment=settings,
        library=None if data.library is None else _library(data.library),
    )


@functools.lru_cache(maxsize=4)
def _library(path: str) -> ToolLibrary:
    return load_library(path)
