"""`python -m tests.golden_net`: play the cells and compare them with the saved ones; `--write` saves them.

Prints one line for each cell that differs: how many rows, and the largest difference of a number. The exit code is 1 if
an outcome or a number of messages differs, or a number by more than 1e-12.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from tests.golden_net.cells import all_cells
from tests.golden_net.net import NET, compare, load


def main() -> int:
    """Compare or write the net."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden_net", description=__doc__)
    parser.add_argument(
        "cells", nargs="*", metavar="TEXT", help="cells whose name holds one of these texts; all if none"
    )
    parser.add_argument("--write", action="store_true", help="save what was played as the net")
    options = parser.parse_args()
    saved = load()
    played, differs = dict(saved), 0
    for name, play in all_cells().items():
        if options.cells and not any(text in name for text in options.cells):
            continue
        begun = time.process_time()
        rows = played[name] = np.array(play(), dtype=np.float64).reshape(-1, 5)
        words = "new" if name not in saved else compare(saved[name], rows)
        differs += words is not None
        print(f"{time.process_time() - begun:6.1f} s  {name}: {words or f'{len(rows)} rows, the same'}", flush=True)
        if options.write:  # at once: a long run may be stopped
            np.savez_compressed(NET, **played)
    return int(differs > 0 and not options.write)


if __name__ == "__main__":
    sys.exit(main())
