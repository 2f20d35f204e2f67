"""How long the package takes to import."""

from __future__ import annotations

from benchmarks.measurement import Measurement, column, in_fresh_process

TARGET_SECONDS = 0.5
RUNS = 9

_IMPORT = """
import json, time
start = time.perf_counter()
import {module}
print(json.dumps({{"seconds": time.perf_counter() - start, "cpu": time.process_time()}}))
"""


def measure(long: bool) -> list[Measurement]:
    """Measure the import in fresh processes, alternating with that of Gymnasium, which it contains."""
    own, peer = [], []
    in_fresh_process(_IMPORT.format(module="resilisim"))  # the files come from memory from here on
    for _ in range(RUNS):
        own.append(in_fresh_process(_IMPORT.format(module="resilisim")))
        peer.append(in_fresh_process(_IMPORT.format(module="gymnasium")))
    ratios = [a / b for a, b in zip(column(own, "seconds"), column(peer, "seconds"), strict=True)]
    cpu = f"CPU time of the whole process {min(column(own, 'cpu')):.2f} to {max(column(own, 'cpu')):.2f} s"
    return [
        Measurement("import resilisim", "s", column(own, "seconds"), TARGET_SECONDS, note=cpu),
        Measurement("import gymnasium, which it contains", "s", column(peer, "seconds")),
        Measurement("import resilisim / import gymnasium", "x", ratios),
    ]
