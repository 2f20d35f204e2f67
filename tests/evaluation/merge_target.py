"""What the kill test of merging runs: `python -m tests.evaluation.merge_target OUT EPISODES DIR...`."""

from __future__ import annotations

import os
import signal
import sys

from resilisim.evaluation.merge import merge_runs

if __name__ == "__main__":
    out, most, *directories = sys.argv[1:]
    read = 0

    def die_in_time(number: int) -> None:
        global read
        read += number
        if read == int(most):
            os.kill(os.getpid(), signal.SIGKILL)

    merge_runs(directories, out, progress=die_in_time)
