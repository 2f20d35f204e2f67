"""What the tests kill and stop: `python -m tests.datasets.export_target OUT FORMAT WORKERS PIDS`."""

from __future__ import annotations

import signal
import sys
from typing import Any

from resilisim.datasets import ExportInterrupted, export_dataset
from tests.datasets.toy_source import ToySpec, toy_tasks

# Shards of four tasks; each takes about a tenth of a second, so that there is time to hit one of them.
ARGUMENTS: dict[str, Any] = {"tasks_per_shard": 4}
RECORDS_PER_TASK = 150

if __name__ == "__main__":
    out, file_format, workers, pids = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the parent ignores it (`nohup make test &`)
    spec = ToySpec(RECORDS_PER_TASK, pids=pids)
    try:
        export_dataset(spec, toy_tasks(), out, format=file_format, workers=int(workers), **ARGUMENTS)
    except ExportInterrupted as error:
        sys.exit(str(error))
