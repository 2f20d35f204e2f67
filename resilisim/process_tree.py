"""Programs of others as trees of processes, of which nothing is left when they are over.

A process that is started by another can begin a session of its own and outlive it. On Linux a small supervisor stands
between: orphans of the program become its children, so it can find all of them, and it ends when we do. Elsewhere the
program's own group of processes is ended, and what has left that group stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_IS_LINUX: Final = sys.platform.startswith("linux")
_GENTLE_SECONDS: Final = 5.0  # longer than the supervisor gives to a program that is told to end
_END_SECONDS: Final = 5.0


def supervised(command: Sequence[str]) -> list[str]:
    """Return the command that runs a program under a supervisor; the program's own where there is none.

    Its exit code and standard streams are those of the program.

    Raises:
        FileNotFoundError: There is no such program.
    """
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    if not _IS_LINUX:
        return list(command)
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("supervisor.py")), str(os.getpid()), *command]


async def end_tree(process: asyncio.subprocess.Process, *, gently: bool = False) -> None:
    """End a program that was started with `supervised` and `start_new_session`, and whatever it has started.

    Args:
        process: The program, or its supervisor.
        gently: Whether it is asked first, and ended two seconds later.
    """
    if process.returncode is None and _IS_LINUX:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM if gently else signal.SIGUSR1)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(process.wait()), _GENTLE_SECONDS if gently else _END_SECONDS)
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.returncode is None:
        process.kill()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _END_SECONDS)
