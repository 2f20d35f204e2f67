"""OpenEnv, really run: a server on loopback and its own client, every episode beside Conversation-v0."""

from __future__ import annotations

import contextlib
import itertools
import math
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from gate import CALLERS, PROMPT, SEEDS, compare, next_tool, tasks
from openenv.core import GenericEnvClient
from pages import run_blocks


def main() -> None:
    """Run the page, whose server plays on: the gate over WebSockets, then what may go wrong."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with contextlib.ExitStack() as stack:

        def serve(name: str, text: str) -> None:
            server = stack.enter_context(subprocess.Popen([sys.executable, "-c", text]))
            stack.callback(server.terminate)
            wait_for(port)

        run_blocks("openenv", {"8000": str(port)}, serve)
        play_all(port)


def wait_for(port: int) -> None:
    """Wait until somebody listens."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError("the server did not begin")


def play_all(port: int) -> None:
    """Play the gate over WebSockets, then what may go wrong."""
    first, second = (task.instance_id for task in tasks()[:2])
    played: dict[tuple[str, str, int], Mapping[str, Any]] = {}
    with GenericEnvClient(base_url=f"http://127.0.0.1:{port}", message_timeout_s=300).sync() as client:
        for task, seed, player in itertools.product(tasks(), SEEDS, CALLERS):
            played[player, task.instance_id, seed] = play(client, task.instance_id, seed, player)
        compare("OpenEnv", played)
        refused(client.step, {"tool": "finish", "arguments": {}}, text="has ended")
        refused(client.reset, task="task_x", text="task_x")
        refused(client.step, {"tool": "finish", "arguments": {}}, text="has not begun")
        assert client.reset(seed=0, task=first).reward is None
        with GenericEnvClient(
            base_url=f"http://127.0.0.1:{port}", message_timeout_s=300
        ).sync() as other:  # an episode of its own
            other.reset(seed=1, task=second)
            assert other.step({"tool": "no_such_tool", "arguments": {}}).observation["ok"] is False
            assert client.state()["step_count"] == 0
    print("OpenEnv: misuse is an error and no reward; clients do not meet")


def play(client: Any, task: str, seed: int, player: str) -> Mapping[str, Any]:
    """Play one episode, and return its record."""
    result = client.reset(seed=seed, task=task, prompt=PROMPT)
    prompt, said, paid = result.observation["text"], "", 0.0
    while not result.done:
        assert client.state()["record"] is None
        result = client.step({"tool": next_tool(player, prompt, said), "arguments": {}})
        said += result.observation["text"] + "\n"
        paid += result.reward
    record: Mapping[str, Any] = client.state()["record"]
    assert result.observation["score"] == record["score"]
    assert math.isclose(paid, record["outcome"] - record["optimum"], abs_tol=1e-9)
    return record


def refused(function: Any, *arguments: Any, text: str, **named: Any) -> None:
    """Check that a call is an error that says so."""
    try:
        function(*arguments, **named)
    except Exception as error:
        said = str(error)
    else:
        said = "nothing was refused"
    assert text in said, said


if __name__ == "__main__":
    main()
