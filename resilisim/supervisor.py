"""Runs a program and ends every process that comes of it: `python supervisor.py PARENT COMMAND ...`, on Linux.

It is run as a file by `resilisim.process_tree` and imports nothing of the package. Orphans become its children, so a
session of their own does not hide them. SIGTERM asks them to end and ends them two seconds later, SIGUSR1 at once, as
does the end of the program. When its parent is gone, so is everything.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GENTLE_SECONDS = 2.0
END_SECONDS = 2.0  # for processes that the kernel does not let go of
PAUSE_SECONDS = 0.01
CANNOT_START = 127


def children(process: int) -> list[int]:
    """Return the children of a process."""
    numbers: list[int] = []
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{task}/children", encoding="ascii") as stream:
                numbers += [int(number) for number in stream.read().split()]
    except OSError:  # it has ended meanwhile, or this kernel has no such file
        return numbers or _children_by_parent(process)
    return numbers


def _children_by_parent(process: int) -> list[int]:
    pairs = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stream:
                    if int(stream.read().rpartition(")")[2].split()[1]) == process:
                        pairs.append(int(name))
            except (OSError, ValueError, IndexError):
                continue
    return pairs


def descendants() -> list[int]:
    """Return whatever has come of this process."""
    numbers: list[int] = []
    waiting = children(os.getpid())
    while waiting:
        process = waiting.pop()
        numbers.append(process)
        waiting += children(process)
    return numbers


def tell_all(number: int) -> None:
    """Send a signal to whatever has come of this process."""
    for process in descendants():
        try:
            os.kill(process, number)
        except OSError:  # it has ended, or is another user's
            continue


def reap() -> bool:
    """Bury the dead; return whether children are left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def end_all() -> None:
    """End whatever has come of this process, and what that starts meanwhile."""
    until = time.monotonic() + END_SECONDS
    while time.monotonic() < until:
        tell_all(signal.SIGKILL)
        if not reap():
            return
        time.sleep(PAUSE_SECONDS)


def main() -> None:
    """Run the program, and end as it does."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    library = ctypes.CDLL(None)
    library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    library.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it has gone meanwhile
        os._exit(CANNOT_START)
    signals = {signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode(errors="replace"))
        os._exit(CANNOT_START)
    _leave_streams()
    code = _wait(child, signals)
    end_all()
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0))


def _leave_streams() -> None:
    """Let go of the standard streams, so that the program alone holds their ends."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _wait(child: int, signals: set[signal.Signals]) -> int:
    """Return the exit code of the program, a signal as a negative number; end it when a signal says so."""
    ends_at: float | None = None
    while True:
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return CANNOT_START
            if process == child:
                return os.waitstatus_to_exitcode(status)
            if process == 0:
                break
        if ends_at is None:
            number = signal.sigwaitinfo(signals).si_signo
        else:
            info = signal.sigtimedwait(signals, max(ends_at - time.monotonic(), 0.0))
            number = signal.SIGUSR1 if info is None and time.monotonic() >= ends_at else getattr(info, "si_signo", 0)
        if number == signal.SIGUSR1:
            end_all()
            return -signal.SIGKILL
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) and ends_at is None:
            ends_at = time.monotonic() + GENTLE_SECONDS
            tell_all(signal.SIGTERM)


if __name__ == "__main__":
    main()
