"""Agent x habit: what each LLM agent reaches with a competent model of each habit: `python -m tests.doubles.habits`.

The table in docs/results/habits.md is made by this. A cell is the number of episodes whose calls and outcome are those
of the caller that makes the right calls in their order, each until it has succeeded: what the plain style reaches, too.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from resilisim.chat.openai import OpenAIChatModel
from resilisim.chat.types import RequestRefusedError
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.session import Session
from resilisim.errors import InfrastructureError
from resilisim.evaluation.episode.play import Judging, play_agent_episode
from resilisim.policies.base import FINISH_TEXT, call_message, succeeded_tool
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.registry import LLM_POLICIES, make_policy
from resilisim.tasks import Task
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.split import split_of
from tests.chat.loopback import LoopbackServer
from tests.doubles.habit_models import HABITS, CompetentModel, path_of, right_calls

AT_ONCE = 16
# Limits of the agents' own that a row of bad luck hits, and a limit of tokens for the endpoint that wants another name.
OPTIONS = {"kpi-chain": {"replans": 20}, "plan-and-execute": {"replans": 20}}


@dataclass(frozen=True, slots=True)
class Played:
    """What an episode came to.

    Attributes:
        outcome: 1 for full success.
        executions: Each tool that was run, with its success.
        calls: How often the model was asked; 0 where there is none.
    """

    outcome: int
    executions: tuple[tuple[str, bool], ...]
    calls: int = 0

    def does_as(self, other: Played) -> bool:
        """Tell whether the same was run, with the same outcome."""
        return (self.outcome, self.executions) == (other.outcome, other.executions)


Case = tuple[Task, int]


def some_tasks(number: int) -> list[Task]:
    """Return tasks of the test split, one of each number of tools in turn."""
    by_length: dict[int, list[Task]] = {}
    for task in benchmark_tasks("benchmark-v1"):
        if split_of(task.required_tools) == "test":
            by_length.setdefault(len(task.required_tools), []).append(task)
    rows = [by_length[length] for length in (3, 2, 4, 5)]
    return [rows[n % len(rows)][n // len(rows)] for n in range(number)]


def reference(env: ConversationEnv, task: Task, seed: int) -> Played:
    """Play the right calls in their order, each until it has succeeded."""
    judging = Judging()
    session = Session(env, task, "baseline", seed, observers=[judging])
    waiting = list(right_calls(task).items())
    while not session.ended:
        if judging.steps and succeeded_tool(session.reply.info) is not None:
            waiting.pop(0)
        session.send(call_message(*waiting[0]) if waiting else FINISH_TEXT)
    return _played(judging.record("reference"))


def _played(record: Any) -> Played:
    ran = tuple((step["tool"], step["success"]) for step in record["steps"] if step["kind"] == "execute")
    return Played(record["outcome"], ran, len(record["agent"]["calls"]) if "agent" in record else 0)


def environments() -> dict[str, ConversationEnv]:
    """Return an environment for each protocol, in which parameters must be given, so that none may be lost."""
    return {
        protocol: ConversationEnv(protocol=protocol, parameters="strict", tools="listed", planner="exact")
        for protocol in ("text", "native")
    }


async def play_pairs(pairs: Iterable[tuple[str, str]], cases: Sequence[Case]) -> dict[tuple[str, str], list[Played]]:
    """Play all cases with each pair of agent and habit, many at once, against a real endpoint."""
    envs, gate = environments(), asyncio.Semaphore(AT_ONCE)
    tasks = list({task.instance_id: task for task, _ in cases}.values())

    async def play(model: OpenAIChatModel, agent: str, habit: str, case: Case) -> Played:
        async with gate:
            options: dict[str, Any] = dict(OPTIONS.get(agent, {}))
            if habit == "max_completion_tokens":
                options["max_tokens"] = 4_000
            policy = cast("LlmPolicy[Any]", make_policy(agent, models=model, **options))
            env = envs[HABITS[habit].protocol].twin()
            try:
                return _played(await play_agent_episode(env, policy, case[0], "baseline", case[1]))
            except (InfrastructureError, RequestRefusedError):
                return Played(0, ())  # what an endpoint refuses is not reached either

    async def play_pair(server: LoopbackServer, agent: str, habit: str) -> list[Played]:
        url = server.base_url.removesuffix("/v1") + path_of(agent, habit)
        model = OpenAIChatModel("competent", base_url=url, api_key="none", max_concurrency=4)
        try:
            return list(await asyncio.gather(*(play(model, agent, habit, case) for case in cases)))
        finally:
            await model.aclose()
            server.requests.clear()  # tens of thousands of conversations, which nobody looks at

    with LoopbackServer(CompetentModel(tasks)) as server:
        wanted = list(pairs)
        return dict(zip(wanted, await asyncio.gather(*(play_pair(server, *pair) for pair in wanted)), strict=True))


def all_pairs() -> list[tuple[str, str]]:
    """Return each agent with each habit that its model can have."""
    return [(agent, name) for name, habit in HABITS.items() for agent in LLM_POLICIES if agent in habit.agents]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if an episode differs from the reference."""
    parser = argparse.ArgumentParser(prog="python -m tests.doubles.habits", description=__doc__)
    parser.add_argument("--tasks", type=int, default=8, help="tasks of the test split (default 8)")
    parser.add_argument("--seeds", type=int, default=2, help="seeds of each task (default 2)")
    given = parser.parse_args(arguments)
    cases = [(task, seed) for task in some_tasks(given.tasks) for seed in range(given.seeds)]
    env = environments()["text"]
    expected = [reference(env, task, seed) for task, seed in cases]
    played = asyncio.run(play_pairs(all_pairs(), cases))
    same = {
        pair: sum(one.does_as(other) for one, other in zip(found, expected, strict=True))
        for pair, found in played.items()
    }
    print(f"| habit | {' | '.join(LLM_POLICIES)} |\n|---|{'---|' * len(LLM_POLICIES)}")
    for habit in HABITS:
        print(f"| `{habit}` | {' | '.join(str(same.get((agent, habit), '')) for agent in LLM_POLICIES)} |")
    successes = sum(one.outcome for one in expected)
    print(
        f"\n{len(cases)} episodes a cell ({given.tasks} tasks, seeds 0 to {given.seeds - 1}); "
        f"{successes} of them end in full success for every agent"
    )
    return int(any(number < len(cases) for number in same.values()))


if __name__ == "__main__":
    sys.exit(main())
