"""Processes that are killed in the middle of their work, and workers that have to see it."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.guards import no_endless_wait


def wait_until(process: subprocess.Popen[Any], is_time: Callable[[], bool]) -> None:
    """Wait for what a process does before it ends."""
    while not is_time():
        assert process.poll() is None, "the process ended before it could be stopped"
        time.sleep(0.001)


def kill_when(process: subprocess.Popen[Any], is_time: Callable[[], bool]) -> None:
    """Kill a process as soon as it has come so far, and wait until nobody is left who could write."""
    wait_until(process, is_time)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def num_lines(path: Path) -> int:
    """Return how many whole lines a file has by now."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_until_gone(pids: Path) -> None:
    """Wait for workers whose parent was killed, which must end by themselves; each has a file named by its id."""
    with no_endless_wait():
        for file in pids.iterdir():
            while _is_alive(int(file.name)):
                time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
