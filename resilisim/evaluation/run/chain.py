"""The chain of a run: which lines its folder was given, in which order and in which sittings.

Each time a folder is opened to play is a sitting. A line of the chain names the hash of a line that was written to the
episodes or the failures, and hashes all lines of its sitting before: so a line that was changed, or left out, or comes
from elsewhere, does not fit any more. Whoever makes a new chain for other lines is not found out (docs/specification,
section 9): the chain tells what was done by hand, and not what was made with effort.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from annotated_types import Ge, Le, MaxLen
from typing_extensions import TypedDict  # pydantic cannot read that of `typing` before Python 3.12

from resilisim.errors import StoreError
from resilisim.inputs import validated
from resilisim.provenance import encode_json_line
from resilisim.run_folder import JsonLinesWriter, own_file, read_json_lines, whole_lines

CHAIN_NAME: Final = "chain.jsonl"

Of = Literal["episodes", "failures"]
_Hash = Annotated[str, MaxLen(64)]


class Link(TypedDict):
    """One line of a chain: line `number` of a sitting, which has written a line with the hash `sha256`.

    `after` stands in the first of a sitting: the `chain` of the line that was the last when it began, "" if none was.
    """

    sitting: _Hash
    number: Annotated[int, Ge(1), Le(2**53)]
    after: _Hash
    of: Of
    sha256: _Hash
    chain: _Hash


def line_hash(line: bytes) -> str:
    """Return the hash of a line, with its end."""
    return hashlib.sha256(line).hexdigest()


def _chained(before: str, sitting: str, number: int, of: str, sha256: str) -> str:
    return hashlib.sha256(f"{before} {sitting} {number} {of} {sha256}".encode()).hexdigest()


class Chain:
    """The chain of a folder, open for writing by one process.

    A line that was written just before a kill is taken in when the folder is opened again.

    Args:
        directory: The folder.
        run: Hash of its manifest.
    """

    def __init__(self, directory: Path, run: str) -> None:
        self._directory, self._run = directory, run
        self._lines: JsonLinesWriter | None = None
        self._sitting = secrets.token_hex(16)
        self._number = 0
        self._after = ""
        self._chain = ""

    def begin(self, files: Mapping[Of, tuple[int, bytes]]) -> None:
        """Begin a sitting, given how many lines each file has, and its last.

        The file of the chain is made with its first line.
        """
        counts = {"episodes": 0, "failures": 0}
        for link in read_chain(self._directory):
            counts[link["of"]] += 1
            self._after = link["chain"]
        self._chain = _first(self._run, self._after)
        for of, (number, line) in files.items():
            if number == counts[of] + 1:
                self.add(of, line)

    def add(self, of: Of, line: bytes) -> None:
        """Take in a line that was written."""
        number, sha256 = self._number + 1, line_hash(line)
        chain = _chained(self._chain, self._sitting, number, of, sha256)
        link = Link(
            sitting=self._sitting,
            number=number,
            after=self._after if number == 1 else "",
            of=of,
            sha256=sha256,
            chain=chain,
        )
        self.copy(link)
        self._number, self._chain = number, chain

    def copy(self, link: Link) -> None:
        """Take over a line of the chain of another folder of the same run."""
        if self._lines is None:
            self._lines = JsonLinesWriter(self._directory / CHAIN_NAME)
        self._lines.write_encoded(encode_json_line(link))

    def close(self) -> None:
        """Hand everything to the disk."""
        if self._lines is not None:
            self._lines.close()


def _first(run: str, after: str) -> str:
    return f"{run} {after}"


def read_chain(directory: Path | str) -> Iterator[Link]:
    """Yield the lines of a folder's chain, none if it has none; StoreError if it cannot be read."""
    path = own_file(directory, CHAIN_NAME)
    if path.exists():
        for number, value in enumerate(read_json_lines(path), start=1):
            yield validated(Link, value, f"line {number} of {path}", error=StoreError)


def chain_problems(directory: Path | str, run: str, files: Mapping[Of, str]) -> Iterator[str]:
    """Yield where the files of a folder are not what its chain says, as texts; nothing if they are."""
    hashes = {of: Counter(line_hash(line) for _, line in _lines_of(directory, name)) for of, name in files.items()}
    sittings: dict[str, tuple[int, str]] = {}  # sitting -> number and chain of its last line
    known: dict[str, Counter[str]] = {of: Counter() for of in files}
    ends = {""}
    for link in read_chain(directory):
        where = f"line {link['number']} of sitting {link['sitting'][:8]!r}"
        number, chain = sittings.get(link["sitting"], (0, _first(run, link["after"])))
        if link["number"] <= number:
            yield f"{where} stands twice"
            return
        if link["number"] != number + 1 or (number == 0 and link["after"] not in ends):
            yield f"what comes before {where} is missing"
            return
        if _chained(chain, link["sitting"], link["number"], link["of"], link["sha256"]) != link["chain"]:
            yield f"{where} does not follow from what comes before"
            return
        if link["sha256"] not in hashes[link["of"]]:
            yield f"{where} of the chain wrote a line that is not in {files[link['of']]} any more: changed or left out"
            return
        sittings[link["sitting"]] = link["number"], link["chain"]
        known[link["of"]][link["sha256"]] += 1
        ends.add(link["chain"])
    for of, name in files.items():
        strange = (hashes[of] - known[of]).total()
        if strange and not sittings:
            yield f"there is no {CHAIN_NAME}: it was lost, or the run was played by an earlier version"
            return
        if strange:
            yield f"{strange:,} lines of {name} are in no sitting: changed, or from elsewhere"


def num_sittings(directory: Path | str) -> int:
    """Return in how many sittings a folder was played."""
    return len({link["sitting"] for link in read_chain(directory)})


def _lines_of(directory: Path | str, name: str) -> Iterator[tuple[int, bytes]]:
    path = own_file(directory, name)
    return whole_lines(path) if path.exists() else iter(())
