"""Where records come from: what a kind of dataset has to bring along so that everything else can be shared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from resilisim.datasets.schema import Record, RecordSchema
from resilisim.tasks.model import Task
from resilisim.tool_library.library import ToolLibrary


class RecordSource(Protocol):
    """Makes the records of one task after the other.

    A record is a function of the spec, the library and the task alone, never of tasks that came before: shards are made
    by different processes, in any order, and a run that goes on must write what an unbroken one would have written.

    The smallest source there is:

        class DescriptionSource:
            schema = RecordSchema("descriptions-1", (Column("text", "string", "What the task says."),))

            def records(self, task: Task) -> Iterator[Record]:
                yield {"text": task.description}
    """

    @property
    def schema(self) -> RecordSchema:
        """What each record holds."""
        ...

    def records(self, task: Task) -> Iterator[Record]:
        """Yield the records of a task, in an order of their own that never changes."""
        ...


class SourceSpec(Protocol):
    """Everything that decides the records, as a frozen dataclass that can be pickled: it travels to other processes.

    The spec of the smallest source:

        @dataclass(frozen=True, slots=True)
        class DescriptionSpec:
            kind: ClassVar[str] = "descriptions"

            def arguments(self) -> dict[str, Any]:
                return {}

            def make(self, library: ToolLibrary) -> DescriptionSource:
                return DescriptionSource()
    """

    @property
    def kind(self) -> str:
        """The kind of dataset, one word: "prompts", "conversations", "preferences"."""
        ...

    def arguments(self) -> dict[str, Any]:
        """Return what decides the records, as JSON values for the manifest; other values mean another dataset."""
        ...

    def make(self, library: ToolLibrary) -> RecordSource:
        """Return the source; slow preparation belongs here, it is done once in each process."""
        ...
