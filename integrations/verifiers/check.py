"""verifiers, really run: `vf-eval` on a loopback endpoint, and each of its episodes beside Conversation-v0."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gate import MODELS, NUM_TASKS, PROMPT, SEEDS, Endpoint, compare
from pages import run_blocks

from resilisim.integrations.verifiers_env import RECORD, REWARDS
from resilisim.simulator.scoring import rescore


def vf_eval(model: str, url: str, *options: str, base: float = 0.8, **taskset: Any) -> list[dict[str, Any]]:
    """Run the command with a file of settings, and return the traces of its episodes."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = "".join(f"{name} = {json.dumps(value)}\n" for name, value in taskset.items())
        settings = Path(folder) / "settings.toml"
        settings.write_text(
            f'model = "{model}"\npush = false\noutput_dir = "{folder}"\n[run]\nname = "run"\n'
            f'[client]\nbase_url = "{url}"\napi_key_var = "LOOP_API_KEY"\n'
            f'[env.taskset]\nid = "resilisim-verifiers"\n{chosen}[env.taskset.options]\nbase = {base}\n',
            encoding="utf-8",
        )
        command = [str(Path(sys.executable).with_name("vf-eval")), "@", str(settings), "--no-rich", *options]
        environment = {**os.environ, "LOOP_API_KEY": "none"}
        done = subprocess.run(command, env=environment, check=False, timeout=600, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        lines = (Path(folder) / "run" / "traces.jsonl").read_text(encoding="utf-8").splitlines()
        return [trace for line in lines for trace in json.loads(line)["traces"]]


def main() -> None:
    """Run the page's block, play the gate with each reward, then what may go wrong."""
    assert run_blocks("verifiers", {})["WorkflowTaskset"]
    with Endpoint() as endpoint:
        played = {}
        for name, reward in zip(MODELS, ("success", "value", "advantage"), strict=True):
            traces = vf_eval(name, endpoint.url, tasks=NUM_TASKS, seeds=list(SEEDS), prompt=PROMPT, reward=reward)
            for trace in traces:
                assert trace["ok"], trace["errors"]
                record, paid = trace["info"][RECORD], trace["rewards"]["resilisim"]["score"]
                owed = {
                    "success": record["outcome"],
                    "value": record["outcome"] - record["optimum"],
                    "advantage": -record["regret"],
                }
                assert math.isclose(paid, owed[reward], abs_tol=1e-9), (reward, paid, owed)
                assert len(trace["info"][REWARDS]) == len(record["steps"])
                assert trace["metrics"]["regret"] == record["regret"]
                assert rescore(record).to_mapping() == record["score"]
                assert record["agent"]["calls"], "no usage was noted"
                played[name, record["instance_id"], record["seed"]] = record
        compare("vf-eval", played, MODELS)
        broken = vf_eval("broken", endpoint.url, tasks=2, prompt=PROMPT)
        assert broken, "no trace of a broken endpoint"
        assert not any(trace["ok"] or trace["rewards"].get("resilisim") for trace in broken), broken
        cut = vf_eval("follower", endpoint.url, "--env.agent.max-turns", "2", tasks=2, prompt=PROMPT)
        assert cut, "no trace of what was cut off"
        assert not any(trace["ok"] or trace["rewards"].get("resilisim") for trace in cut), cut
        discovery = vf_eval("talker", endpoint.url, tasks=2, prompt=PROMPT, tools="discovery", base=0.7)
        assert all(trace["info"][RECORD]["law"]["base"] == 0.7 for trace in discovery)
        print("vf-eval: a broken endpoint and a limit of turns are rewarded with nothing; discovery plays")


if __name__ == "__main__":
    main()
