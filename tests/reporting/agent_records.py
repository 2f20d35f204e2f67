"""Records of LLM agents that nobody played: several agents, each with several models, on shared tasks."""

from __future__ import annotations

from typing import Any

from tests.evaluation.synthetic import synthetic_record

# Model -> how careless it makes an agent; from the smallest to the largest, then one whose name states no size.
MODELS = {"openai:Qwen-3B": 0.9, "openai:Qwen-14B-Instruct": 0.5, "openai:Qwen-72B": 0.2, "openai:mini": 0.3}
AGENTS = ("react", "rp-react")
PROMPTS = ("baseline", "optimal")


def usage(calls: int, cost: float | None) -> dict[str, Any]:
    """Return what a component used."""
    return {
        "calls": calls,
        "prompt_tokens": 300 * calls,
        "completion_tokens": 20 * calls,
        "latency_seconds": 0.5 * calls,
        "from_cache": 1,
        "is_estimate": False,
        "cost": cost,
    }


def agent_part(agent: str, model: str, number: int) -> dict[str, Any]:
    """Return the agent's part of the record of the n-th episode."""
    components = {"planner": usage(1, 0.01), "executor": usage(3, 0.02)} if agent == "rp-react" else {}
    components = components or {"agent": usage(4, 0.01)}
    failure = {"component": next(iter(components)), "text": "no tool", "turn": 1}
    return {
        "architecture": agent,
        "models": dict.fromkeys(components, model),
        "protocol": "text",
        "components": components,
        "first_failure": failure if number % 2 else None,
        "ended_by": "answer" if number % 3 else "environment",
        "events": [],
        "counters": {"replans": number % 3} if agent == "rp-react" else {},
        "restarts": 0,
        "options": {},
        "calls": [],
    }


def agent_records(num_tasks: int = 10, num_seeds: int = 2) -> list[dict[str, Any]]:
    """Return the records of a run of `AGENTS` with `MODELS` under `PROMPTS`."""
    records: list[dict[str, Any]] = []
    for task in range(num_tasks):
        for agent in AGENTS:
            for model, carelessness in MODELS.items():
                for prompt in PROMPTS:
                    for seed in range(num_seeds):
                        number = len(records)
                        record = synthetic_record(number, f"{agent}@{model}", prompt, task, seed, carelessness)
                        records.append({**record, "agent": agent_part(agent, model, number)})
    return records
