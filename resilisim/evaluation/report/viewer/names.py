"""Tables of names: columns of a pack hold their numbers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from resilisim.evaluation.report.content import printable

LONGEST_NAME = 100
MOST_NAMES = 5_000  # after so many no further name that an agent made up is kept
OTHER = "(one of many made-up names)"


class NameTable:
    """Numbers names in the order of their first use."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """Return the number of a name."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.names)
            self.names.append(short(name))
        return number

    def number_if_room(self, name: str, other: str = OTHER) -> int:
        """Return the number of a name that an agent may have made up; all that find no place share that of `other`."""
        return self.number(name if name in self._numbers or len(self.names) < MOST_NAMES else other)

    def optional(self, name: str | None) -> int:
        """Return the number of a name, or -1 for None."""
        return -1 if name is None else self.number(name)


class EntryTable:
    """Numbers entries by a key; what an entry says is taken down when its key comes first."""

    def __init__(self) -> None:
        self.entries: list[Sequence[object]] = []
        self._numbers: dict[Hashable, int] = {}

    @property
    def keys(self) -> list[Hashable]:
        """The keys in the order of their numbers."""
        return list(self._numbers)

    def find(self, key: Hashable) -> int | None:
        """Return the number of the entry with a key, or None if there is none yet."""
        return self._numbers.get(key)

    def add(self, key: Hashable, entry: Sequence[object]) -> int:
        """Add the entry of a new key and return its number."""
        number = self._numbers[key] = len(self.entries)
        self.entries.append(entry)
        return number

    def number(self, values: tuple[int | str, ...]) -> int:
        """Return the number of an entry that is its own key."""
        number = self._numbers.get(values)
        return self.add(values, values) if number is None else number


def short(name: str) -> str:
    """Return a name fit to be printed, cut if it is very long."""
    shown = printable(name)
    return shown if len(shown) <= LONGEST_NAME else shown[: LONGEST_NAME - 1] + "…"
