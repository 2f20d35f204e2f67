"""Contests on disk: what was played once is kept, so that a command can be stopped and called again.

A file is told by its contestants, tasks, seeds and luck. Who changes how a contestant plays takes another folder.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from resilisim.provenance import content_hash
from verification.contest import Contest, distinct_tasks, joined, play_contest
from verification.contestants import CONTESTANTS

TASKS_PER_PIECE = 10
SALT = "benchmarks/sample_sizes"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a contest of all contestants: some of its tasks.

    Attributes:
        first: Place of its first task.
        num_tasks: Tasks of the whole contest.
        num_seeds: Episodes of each contestant on each task.
    """

    first: int
    num_tasks: int
    num_seeds: int

    @property
    def name(self) -> str:
        """Name of its file, another for other contestants, tasks, seeds or luck."""
        tasks = [task.instance_id for task in distinct_tasks(self.num_tasks)[self.first :][:TASKS_PER_PIECE]]
        return f"{content_hash([[one.name for one in CONTESTANTS], tasks, self.num_seeds, SALT])[:16]}.npz"


def contest_of(num_tasks: int, num_seeds: int, folder: Path, processes: int = 2) -> Contest:
    """Return a contest of all contestants, playing what does not lie in the folder yet."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [Piece(first, num_tasks, num_seeds) for first in range(0, num_tasks, TASKS_PER_PIECE)]
    missing = [piece for piece in pieces if not _is_complete(folder / piece.name)]
    started = time.monotonic()
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawned) as pool:
        playing = [pool.submit(_play, piece, folder) for piece in missing]
        for count, future in enumerate(as_completed(playing), start=1):
            future.result()
            line = f"{count} of {len(missing)} pieces played, {time.monotonic() - started:.0f} s"
            print(line, file=sys.stderr, flush=True)
    return joined([_read(folder / piece.name) for piece in pieces])


def _play(piece: Piece, folder: Path) -> None:
    tasks = distinct_tasks(piece.num_tasks)[piece.first :][:TASKS_PER_PIECE]
    contest = play_contest(CONTESTANTS, tasks, piece.num_seeds, SALT)
    unfinished = folder / f"unfinished-{piece.name}"
    np.savez_compressed(
        unfinished,
        task_ids=np.array(contest.task_ids),
        outcome=contest.outcome,
        luck=contest.luck,
        optimum=contest.optimum,
    )
    unfinished.replace(folder / piece.name)


def _is_complete(path: Path) -> bool:
    return path.exists() and zipfile.is_zipfile(path)


def _read(path: Path) -> Contest:
    with np.load(path) as arrays:
        task_ids: Sequence[str] = arrays["task_ids"].tolist()
        return Contest(tuple(task_ids), arrays["outcome"], arrays["luck"], arrays["optimum"])
