"""Ctrl-C reaches every process of a group: it must not find a worker that does not yet ignore it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from resilisim.processes import answers_of_processes, one_by_one

ROOT = Path(__file__).parents[2]


class InterruptedOnArrival:
    """Travels to a worker, which is interrupted while it unpacks this: before it could ignore Ctrl-C."""

    def __reduce__(self):
        return arrive, (os.getpid(),)


def arrive(sender):
    if os.getpid() != sender:
        os.kill(os.getpid(), signal.SIGINT)
    return InterruptedOnArrival()


def make_squares(setup):
    return lambda number: iter([number * number])


def squares(count):
    return sorted(answers_of_processes(make_squares, InterruptedOnArrival(), one_by_one(range(count)), 2))


def test_a_worker_that_is_interrupted_before_it_begins_works_on_and_says_nothing():
    script = (
        "import signal\n"
        "from tests.datasets.test_workers import squares\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "print(squares(6), signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (ended.stderr, ended.returncode) == ("", 0)
    assert ended.stdout == "[0, 1, 4, 9, 16, 25] set()\n"  # and the parent can be interrupted again
