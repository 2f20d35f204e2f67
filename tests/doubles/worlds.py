"""All LLM agents in the knowledge worlds with a competent model: `python -m tests.doubles.worlds records-v1 pages-v1`.

Each agent plays the same questions, spread over domains, kinds and difficulties, against a real endpoint that gives
right answers if it is shown what it needs. What is missing to 100 % an agent lost on the way.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from resilisim.chat.openai import OpenAIChatModel
from resilisim.envs import ConversationEnv, EnvironmentSettings
from resilisim.evaluation.episode.play import play_agent_episode
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.registry import LLM_POLICIES, make_policy
from resilisim.statistics.estimates import clopper_pearson
from resilisim.tasks import Task
from resilisim.worlds import World, load_world
from tests.chat.loopback import LoopbackServer
from tests.doubles.world_models import WorldModel

AT_ONCE = 8
AIM = 0.95


def some_tasks(world: World, number: int) -> tuple[Task, ...]:
    """Return so many questions of each domain or kind and difficulty, a template after the other."""
    taken: Counter[Any] = Counter()
    chosen = []
    for task in world.tasks():
        group = task.metadata.get("domain", task.metadata.get("kind")), task.metadata.get("difficulty")
        taken[group] += 1
        if taken[group] <= number:
            chosen.append(task)
    return tuple(chosen)


async def play(
    world: World,
    agent: str,
    tasks: Sequence[Task],
    base_url: str,
    has_law: bool = False,
    named: str = "competent",
    **options: Any,
) -> list[Any]:
    """Return the records of an agent's episodes, seed 0, which are played many at once.

    Nothing fails by chance unless it `has_law`, that of the benchmark.
    """
    settings = EnvironmentSettings().in_world(world.name, ("law",) if has_law else ()).with_options(**options)
    env, gate = ConversationEnv(settings), asyncio.Semaphore(AT_ONCE)
    model = OpenAIChatModel(named, base_url=base_url, api_key="none", max_concurrency=AT_ONCE)

    async def one(task: Task) -> Any:
        async with gate:
            policy = cast("LlmPolicy[Any]", make_policy(agent, models=model))
            return await play_agent_episode(env.twin(), policy, task, "baseline", 0)

    try:
        return list(await asyncio.gather(*map(one, tasks)))
    finally:
        await model.aclose()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if an agent does not reach the aim."""
    parser = argparse.ArgumentParser(prog="python -m tests.doubles.worlds", description=__doc__)
    parser.add_argument("worlds", nargs="+", help="such as records-v1 pages-v1")
    parser.add_argument("--questions", type=int, default=6, help="of each domain or kind and difficulty (default 6)")
    parser.add_argument("--agents", nargs="+", default=list(LLM_POLICIES), choices=LLM_POLICIES, metavar="AGENT")
    parser.add_argument("--law", action="store_true", help="let calls fail at random by the law of the benchmark")
    given = parser.parse_args(arguments)
    worlds = [load_world(name) for name in given.worlds]
    is_reached = True
    columns = (
        "world",
        "agent",
        "questions",
        "right",
        "95% interval",
        "V*",
        "calls of the model",
        "stored",
        "in pieces",
    )
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    with LoopbackServer(WorldModel(worlds), keeps_requests=False) as server:
        for world in worlds:
            tasks = some_tasks(world, given.questions)
            for agent in given.agents:
                records = asyncio.run(play(world, agent, tasks, server.base_url, given.law))
                right = sum(record["outcome"] for record in records)
                low, high = clopper_pearson(right, len(records))
                calls = sum(len(record["agent"]["calls"]) for record in records) / len(records)
                row = [world.name, agent, len(records), f"{right / len(records):.1%}", f"{low:.1%} to {high:.1%}"]
                best = sum(record["optimum"] for record in records)
                row += [
                    f"{best / len(records):.1%}",
                    f"{calls:.1f}",
                    offloaded(records) or "",
                    in_pieces(records) or "",
                ]
                print(f"| {' | '.join(map(str, row))} |", flush=True)
                for record in records:
                    if not record["outcome"]:
                        told = record["answer"], record["agent"]["first_failure"]
                        print(record["instance_id"], *told, file=sys.stderr)
                is_reached &= right >= AIM * best
    return int(not is_reached)


def offloaded(records: Sequence[Any]) -> int:
    """Return how many outputs were stored in variables."""
    return sum(record["agent"]["counters"].get("offloads", 0) for record in records)


def in_pieces(records: Sequence[Any]) -> int:
    """Return from how many outputs the extractor took values in pieces."""
    events = [event for record in records for event in record["agent"]["events"]]
    return sum(event["kind"] == "extraction" and event["details"].get("pieces", 0) > 1 for event in events)


if __name__ == "__main__":
    sys.exit(main())
