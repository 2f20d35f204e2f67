"""The agents of `examples/agents`, each with its framework, through `evaluate(agents=...)`: the gate, and tokens."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from gate import CALLERS, PROMPT, SEEDS, USAGE, Endpoint, compare, tasks

from resilisim import evaluate


def check_example(name: str) -> None:
    """Let an example play every caller against a loopback endpoint, and compare its episodes and its tokens."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    played = {}
    with Endpoint() as endpoint:
        os.environ.update(OPENAI_BASE_URL=endpoint.url, OPENAI_API_KEY="none", OPENAI_AGENTS_DISABLE_TRACING="1")
        agent = importlib.import_module(f"examples.agents.{name}").agent
        for player in CALLERS:
            os.environ["AGENT_MODEL"] = player
            asked = len(endpoint.requests)
            run = evaluate(agents=[agent], tasks=tasks(), prompts=PROMPT, seeds=SEEDS)
            records = list(run.records())
            assert len(records) == len(tasks()) * len(SEEDS), f"{name}: {run.call.last_error}"
            played.update({(player, record["instance_id"], record["seed"]): record for record in records})
            calls = [call for record in records for call in record["agent"]["calls"]]
            tokens = sum(call["reply"]["usage"]["prompt_tokens"] for call in calls)
            assert tokens == USAGE["prompt_tokens"] * (len(endpoint.requests) - asked), f"{name}: {tokens} tokens"
    compare(name, played)
