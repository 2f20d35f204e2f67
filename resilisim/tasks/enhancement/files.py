"""The file of enhanced tasks: one line each in the order of the tasks, and beside it what it was made with.

The same command on the same file goes on after its last whole line; any other command is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from resilisim.errors import StoreError
from resilisim.provenance import content_hash, encode_json
from resilisim.run_folder import Closing, JsonLinesWriter, claim, read_json_lines, run_manifest, write_manifest
from resilisim.tasks.model import Task


class EnhancedTasksFile(Closing):
    """A file of enhanced tasks, open for writing by one process.

    Args:
        path: The file; its manifest gets the same name with `.manifest.json` behind it.
        arguments: Everything that decides what is written, as JSON values.
        tasks: The tasks that are enhanced, all of them.
        on_written: Called with the metadata of each task that an earlier run has written.

    Attributes:
        num_written: Tasks in the file.
        ids: Their ids.

    Raises:
        StoreError: The file holds something else, or cannot be written.

    Example:
        >>> import tempfile
        >>> from resilisim.tasks import benchmark_tasks
        >>> folder = tempfile.TemporaryDirectory()
        >>> with EnhancedTasksFile(Path(folder.name) / "mine.jsonl", {"model": "m"}, benchmark_tasks()) as file:
        ...     file.write(benchmark_tasks()[0])
        ...     file.num_written
        1
        >>> folder.cleanup()
    """

    def __init__(
        self,
        path: Path,
        arguments: Mapping[str, Any],
        tasks: Sequence[Task],
        on_written: Callable[[Mapping[str, Any]], None] = lambda metadata: None,
    ) -> None:
        self.path = path
        self.num_written = 0
        self.ids: set[str] = set()
        if not _holds_this_run(path, arguments, tasks):
            write_manifest(manifest_of(path), run_manifest(_all_arguments(arguments, tasks)))
        self._is_new = not path.exists()
        self._writer = JsonLinesWriter(path)
        self._writer.resume(lambda line: self._take(line, tasks, on_written))

    def write(self, task: Task) -> None:
        """Append a task.

        Raises:
            StoreError: It does not fit; the file still ends with a whole line.
        """
        self._writer.write_encoded(encode_json(task.to_mapping(), sort_keys=True, separators=(",", ":")) + b"\n")
        self.num_written += 1

    def close(self) -> None:
        """Hand everything to the disk and release the file."""
        self._writer.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file; if an error came before the first task was written, leave nothing behind."""
        self.close()
        if error is not None and self._is_new and self.num_written == 0:
            self.path.unlink(missing_ok=True)
            manifest_of(self.path).unlink(missing_ok=True)

    def _take(self, line: object, tasks: Sequence[Task], on_written: Callable[[Mapping[str, Any]], None]) -> None:
        """Count a line of an earlier run; it has to belong to the task of its place."""
        expected = tasks[self.num_written].instance_id if self.num_written < len(tasks) else None
        match line:
            case {
                "instance_id": str(name),
                "metadata": {"enhancement": {"made_from": str(made_from), "outcome": str()}} as metadata,
            } if made_from == expected:
                self.num_written += 1
                self.ids.add(name)
                on_written(metadata)
            case _:
                number = self.num_written + 1
                raise StoreError(f"line {number} of {self.path} is not the task that belongs there: use another --out")


def num_finished(path: Path, arguments: Mapping[str, Any], tasks: Sequence[Task]) -> int:
    """Return how many tasks an earlier run of the same arguments has written to a file; nothing is changed."""
    return sum(1 for _ in read_json_lines(path)) if _holds_this_run(path, arguments, tasks) else 0


def manifest_of(path: Path) -> Path:
    """Return the path of a file's manifest."""
    return path.with_name(path.name + ".manifest.json")


def _all_arguments(arguments: Mapping[str, Any], tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the arguments with the hash of the content of the tasks, in their order."""
    return {**arguments, "tasks": content_hash([content_hash(task.to_mapping()) for task in tasks])}


def _holds_this_run(path: Path, arguments: Mapping[str, Any], tasks: Sequence[Task]) -> bool:
    """Tell whether a file holds lines of this run; it may not exist or be empty, but not hold anything else."""
    if path.exists() and not path.is_file():
        raise StoreError(f"{path} is no regular file: use another --out")
    if not path.exists() or not path.stat().st_size:
        return False
    manifest = run_manifest(_all_arguments(arguments, tasks))
    claim(manifest_of(path), manifest, path, found="lines", holds="tasks of another run", advice="use another --out")
    return True
