"""What the kill test of merging runs: `python -m tests.evaluation.merge_target OUT EPISODES DIR...`."""

from __future__ import annotations

import os
import signal
import sys

from resilisim.evaluation.run.merge import merge_runs

if __name__ == "__main__":
    out, most, *directories = sys.argv[1:]
    num_there = 0

    def die_in_time(number: int) -> None:
        global num_there
        num_there += number
        if num_there == int(most):
            os.kill(os.getpid(), signal.SIGKILL)

    merge_runs(directories, out, progress=die_in_time)
