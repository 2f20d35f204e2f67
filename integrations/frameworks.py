"""The agents of `examples/agents`, each with its framework, through `evaluate(agents=...)`: the gate, and tokens."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from scripted import SCRIPTS, SEEDS, TASKS, USAGE, ScriptedEndpoint, check

from resilisim import evaluate
from resilisim.tasks import find_task


def check_example(name: str) -> int:
    """Let an example play every script against a loopback endpoint, and return how many episodes were compared."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    played = []
    with ScriptedEndpoint() as endpoint:
        os.environ.update(OPENAI_BASE_URL=endpoint.base_url, OPENAI_API_KEY="none", OPENAI_AGENTS_DISABLE_TRACING="1")
        agent = importlib.import_module(f"examples.agents.{name}").agent
        for script in SCRIPTS:
            os.environ["AGENT_MODEL"] = script
            asked = len(endpoint.requests)
            run = evaluate(agents=[agent], tasks=[find_task(task) for task in TASKS], prompts="optimal", seeds=SEEDS)
            records = list(run.records())
            assert len(records) == len(TASKS) * len(SEEDS), f"{name}: {run.call.last_error}"
            played += [(record["instance_id"], record["seed"], script, record) for record in records]
            tokens = sum(
                call["reply"]["usage"]["prompt_tokens"] for record in records for call in record["agent"]["calls"]
            )
            assert tokens == USAGE["prompt_tokens"] * (len(endpoint.requests) - asked), f"{name}: {tokens} tokens"
    return check(name, played)
