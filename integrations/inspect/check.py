"""Inspect AI, really run: `inspect eval` on a loopback endpoint, and each of its episodes beside Conversation-v0."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gate import MODELS, NUM_TASKS, PROMPT, SEEDS, Endpoint, compare
from inspect_ai.log import EvalLog, list_eval_logs, read_eval_log
from pages import run_blocks

from resilisim.integrations.inspect_task import RECORD
from resilisim.simulator.scoring import rescore


def inspect_eval(model: str, url: str, *options: str) -> EvalLog:
    """Run the command, and return its log."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            Path(sys.executable).with_name("inspect"),
            "eval",
            "resilisim/workflow",
            "--model",
            f"openai-api/loop/{model}",
        ]
        command += ["--log-dir", folder, "--display", "none", "--max-retries", "0", *options]
        environment = {**os.environ, "LOOP_BASE_URL": url, "LOOP_API_KEY": "none"}
        subprocess.run(command, env=environment, check=False, timeout=600)
        (log,) = list_eval_logs(folder)
        return read_eval_log(log)


def arguments(**values: Any) -> list[str]:
    """Return arguments of the task as options of the command."""
    return [word for name, value in values.items() for word in ("-T", f"{name}={value}")]


def main() -> None:
    """Play the gate, then what may go wrong."""
    seeds = ",".join(map(str, SEEDS))
    with Endpoint() as endpoint:
        played = {}
        for name in MODELS:
            log = inspect_eval(name, endpoint.url, *arguments(tasks=NUM_TASKS, seeds=seeds, prompt=PROMPT, base=0.8))
            assert log.status == "success", log.error
            for sample in log.samples or ():
                record = sample.store[RECORD]
                score = (sample.scores or {})["full_success"]
                assert score.value == record["outcome"]
                assert rescore(record).to_mapping() == record["score"]
                assert score.metadata is not None
                assert math.isclose(score.metadata["luck_adjusted"], record["optimum"] - record["regret"], abs_tol=1e-9)
                assert record["agent"]["calls"], "no usage was noted"
                played[name, record["instance_id"], record["seed"]] = record
            assert log.results is not None
            print(name, {key: round(value.value, 3) for key, value in log.results.scores[0].metrics.items()})
        compare("inspect eval", played, MODELS)
        discovery = inspect_eval(
            "follower", endpoint.url, *arguments(tasks=2, tools="discovery", prompt=PROMPT, search="lexical")
        )
        assert discovery.status == "success", discovery.error
        broken = inspect_eval("broken", endpoint.url, "--no-fail-on-error", *arguments(tasks=2))
        assert all(sample.error is not None and not sample.scores for sample in broken.samples or ())
        cut = inspect_eval("follower", endpoint.url, "--message-limit", "4", *arguments(tasks=2, prompt=PROMPT))
        for sample in cut.samples or ():
            assert (sample.scores["full_success"].value, sample.store[RECORD]["ended_by"]) == (0, "agent_error")
        looped = inspect_eval("follower", endpoint.url, "--solver", "generate", *arguments(tasks=2, prompt=PROMPT))
        assert looped.status == "success"
        os.environ.update(LOOP_BASE_URL=endpoint.url, LOOP_API_KEY="none", INSPECT_DISPLAY="none")
        with tempfile.TemporaryDirectory() as folder:
            os.environ["INSPECT_LOG_DIR"] = folder
            shorter = {"tasks=20, seeds=3": "tasks=2", "openai/gpt-4o-mini": "openai-api/loop/follower"}
            names = run_blocks("inspect", {**shorter, '"logs/..."': "log.location"})
            assert len(names["records"]) == 2
        print("inspect eval: a broken endpoint gives no score, a limit has lost the episode; other solvers play")


if __name__ == "__main__":
    main()
