"""What a run writes, and how: one folder or file that a crash, a full disk and a second writer cannot harm.

A run says in a manifest what it was asked for, before it writes anything else. The same command resumes it; any other
is refused, naming the first difference. One JSON Lines file is written by one process. Each line leaves the process in
one `write` on an unbuffered descriptor opened for appending, so a process that is killed at any moment leaves whole
lines and at most one torn last line, which readers ignore and the next writer cuts off. A disk that is full is told as
a `StoreError`, after the part of the line that did fit has been taken off again.
"""

from __future__ import annotations

import json
import os
import platform
import re
import stat
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

from resilisim.errors import InvalidInputError, StoreError, one_line
from resilisim.inputs import finite_number, inside, read_json
from resilisim.provenance import content_hash, describe_os_error, encode_json, encode_json_line, package_versions
from resilisim.redaction import may_hold_secrets, without_secrets_in

if sys.platform != "win32":
    import fcntl

MANIFEST_NAME: Final = "manifest.json"
MANIFEST_SCHEMA: Final = "resilisim-manifest-1"
REPORTED_PACKAGES: Final = ("resilisim", "numpy", "gymnasium")
TAIL_BLOCK: Final = 65536  # bytes read at a time when looking backwards for the last line end
_TEMPORARY: Final = re.compile(r"\.(.+)\.\d+\.tmp")
ABSENT: Final = object()
CACHE_DIR_VARIABLE: Final = "RESILISIM_CACHE_DIR"
_LONGEST_SHOWN: Final = 80  # characters of a value that differs
# What manifests mean that do not say it; so those of runs that were made before it was an option stay as they are.
UNSAID: Final[Mapping[str, object]] = {
    "environment.search": "semantic",
    "finetuning.policy": "exact-optimum",
    "computed_on": "cpu",
    "computed_in": "float32",
}
TYPED_NAMES: Final = frozenset({"policies", "prompts", "seeds"})  # arguments of a run as somebody typed them
DERIVED_NAMES: Final = frozenset({"num_episodes"})  # what follows from other arguments, whose difference says more


def run_manifest(
    arguments: Mapping[str, Any], packages: Iterable[str] = (), device: str | None = None
) -> dict[str, Any]:
    """Describe a run: its arguments (what decides the results, as JSON values), their hash, versions, platform.

    Secrets among the arguments are left out. `packages` are named beside those of every run, and so is the `device`
    that it computes on, if it tells one.
    """
    arguments = without_secrets_in(arguments)
    try:
        text = encode_json(arguments).decode()
        digest = content_hash(read_json(text, "they", half_characters=True))  # of what a reader finds
    except (TypeError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else one_line(error)
        raise StoreError(f"the arguments of a run cannot be written: {reason}") from error
    return {
        "schema": MANIFEST_SCHEMA,
        "hash": digest,
        "arguments": dict(arguments),
        "versions": {"python": platform.python_version(), **package_versions((*REPORTED_PACKAGES, *packages))},
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        **({} if device is None else {"device": device}),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def load_manifest(path: Path, schema: str = MANIFEST_SCHEMA) -> dict[str, Any] | None:
    """Return the manifest in a file, None if there is none; StoreError if it is damaged or of another schema."""
    try:
        inside(path.parent, path, "manifest", StoreError)
        manifest = read_json(path.read_text(encoding="utf-8"), str(path), half_characters=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {describe_os_error(error)}") from error
    except (InvalidInputError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} is not JSON that can be read: {one_line(error)}") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != schema:
        raise StoreError(f"{path} does not have the schema {schema!r}")
    if not isinstance(manifest.get("arguments"), dict) or manifest.get("hash") != content_hash(manifest["arguments"]):
        raise StoreError(f"{path} was changed: its hash does not fit its arguments")
    return manifest


def write_manifest(path: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Write a manifest (`write_file_atomically`), and return it with its keys in the order that later readers find."""
    text = encode_json(manifest, indent=2, sort_keys=True) + b"\n"
    write_file_atomically(path, text)
    return cast("dict[str, Any]", json.loads(text))


def claim(
    path: Path,
    manifest: Mapping[str, Any],
    named: Path,
    *,
    found: str | None = None,
    holds: str = "results of another run",
    advice: str = "use another folder",
    identity: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda manifest: manifest["arguments"],
    replace: Callable[[], None] | None = None,
) -> tuple[dict[str, Any], bool]:
    """Make a folder or file this command's own, by the manifest there or a new one; return it, and if it was there.

    The manifest comes first: results that nobody knows the arguments of would be worthless. `named` is what it
    describes, `found` what stands there and needs a manifest, `holds` what is there if the manifest is another one, and
    `advice` what to do then; `identity` returns what has to be the same, `replace` clears instead of a refusal.
    """
    there = load_manifest(path, manifest["schema"])
    if there is not None and first_difference(identity(there), _as_read(identity(manifest))) is None:
        return there, True
    if replace is not None:
        replace()
    elif there is not None:
        refuse_other_arguments(named, identity(there), identity(manifest), holds, advice)
    elif found is not None:
        raise StoreError(f"{named} holds {found} but no {path.name}: {advice}")
    return write_manifest(path, manifest), False


def _as_read(value: object) -> Any:
    return json.loads(encode_json(value))


def first_difference(left: object, right: object, name: str = "") -> tuple[str, object, object] | None:
    """Return the first place where two JSON values differ, with both values there; None if equal.

    Names are sorted, those that somebody typed first, and those that follow from others last. A value that is not
    there is what goes without saying (UNSAID), or ABSENT.
    """
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in sorted(left.keys() | right.keys(), key=_place_in_order):
            place = f"{name}.{key}" if name else str(key)
            missing = next((value for unsaid, value in UNSAID.items() if f".{place}".endswith(f".{unsaid}")), ABSENT)
            difference = first_difference(left.get(key, missing), right.get(key, missing), place)
            if difference is not None:
                return difference
        return None
    return None if left == right else (name, left, right)


def _place_in_order(name: str) -> tuple[bool, bool, str]:
    return name in DERIVED_NAMES, name not in TYPED_NAMES, name


def refuse_other_arguments(
    directory: Path,
    there: Mapping[str, Any],
    now: Mapping[str, Any],
    holds: str = "results of another run",
    advice: str = "use another folder",
) -> None:
    """Raise a StoreError that names the first difference between a folder's arguments and this command's, if any."""
    difference = first_difference(there, _as_read(now))
    if difference is not None:
        name, old, new = difference
        raise StoreError(
            f"{directory} holds {holds}: {name} is {_shorten(old)} there and {_shorten(new)} here; {advice}"
        )


def _shorten(value: object) -> str:
    text = "absent" if value is ABSENT else encode_json(value).decode()
    if len(text) <= _LONGEST_SHOWN:
        return text
    count = f"{len(value)} values: " if isinstance(value, list) else ""  # of long lists the beginnings are often alike
    return count + text[: _LONGEST_SHOWN - 3] + "..."


def default_cache_dir() -> Path:
    """Return the folder for caches: `$RESILISIM_CACHE_DIR`, else the user's cache folder by the platform's custom."""
    if folder := os.environ.get(CACHE_DIR_VARIABLE):
        return Path(folder)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "resilisim"
    try:
        return Path.home() / ".cache" / "resilisim"
    except RuntimeError:  # an account without a home
        return Path(tempfile.gettempdir()) / "resilisim-cache"


def temporary_path(path: Path) -> Path:
    """Return the hidden file beside a path that gets its name when it is whole."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def remove_temporaries(folder: Path, is_ours: Callable[[str], bool]) -> None:
    """Remove the hidden files that killed processes left in a folder into which nobody else is writing."""
    for name in os.listdir(folder) if folder.is_dir() else ():
        if is_temporary(name, is_ours):
            (folder / name).unlink(missing_ok=True)


def is_temporary(name: str, is_ours: Callable[[str], bool]) -> bool:
    """Tell whether a file is a hidden one that was to get a name of ours."""
    match = _TEMPORARY.fullmatch(name)
    return match is not None and is_ours(match[1])


def write_file_atomically(path: Path, data: bytes) -> None:
    """Write a small file so that a reader sees the old bytes or the new ones, never a part."""
    temporary = temporary_path(path)
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"cannot write {path}: {describe_os_error(error)}") from error


class Closing(ABC):
    """What is let go of at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it; closing twice does nothing."""

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go of it."""
        self.close()


@dataclass(frozen=True, slots=True)
class OpenLine:
    """Where a line stands that another one takes the place of later; bytes, its end included."""

    start: int
    length: int


class JsonLinesWriter(Closing):
    """Appends JSON values to a file, one line each, safe against being killed at any moment.

    Opening makes the file, cuts off a torn last line and takes a lock, so that two runs never write to one file.
    Nothing is written that its reader would refuse: `check` is the reader's rule for a line (it raises a StoreError).
    """

    def __init__(self, path: Path | str, check: Callable[[bytes], object] | None = None) -> None:
        self.path = Path(path)
        self._check = check
        # A pipe that its writer can read from would never tell that its reader has gone.
        access = os.O_WRONLY if is_stream(self.path) else os.O_RDWR
        flags = access | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        try:
            self._descriptor = os.open(self.path, flags, 0o644)
        except OSError as error:
            raise StoreError(f"cannot open {self.path}: {describe_os_error(error)}") from error
        try:
            lock(self._descriptor, self.path)
            self._is_regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
            if self._is_regular:
                _cut_torn_line(self._descriptor)
        except BaseException:
            os.close(self._descriptor)
            self._descriptor = -1
            raise

    def write(self, value: object) -> None:
        """Append one value as one line (`write_encoded`), keys in the order in which the mapping holds them."""
        self.write_encoded(encoded_line(value, self.path))

    def write_encoded(self, lines: bytes) -> bytes:
        """Append lines of JSON text, each with its end, in one write; if they do not fit, the file stays as it was.

        Secrets are taken out of them; returned is what was written.
        """
        lines = without_secrets_in_lines(lines)
        self._refuse_unreadable(lines)
        start = os.lseek(self._descriptor, 0, os.SEEK_END) if self._is_regular else 0
        rest = memoryview(lines)
        try:
            while rest:  # a disk that is getting full may take a part without complaint
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            if self._is_regular:
                os.ftruncate(self._descriptor, start)
            raise StoreError(
                f"cannot write {self.path}: {describe_os_error(error)}; "
                "what was finished is kept, and the same command resumes it"
            ) from error
        return lines

    def write_open(self, line: bytes, room: int) -> OpenLine | None:
        """Append a line that another one takes the place of later (`write_in_place`), with room for more bytes.

        Whatever happens before then, the line is there. None if lines of this file cannot be changed: it is a pipe.
        """
        if not self._is_regular:
            return None
        start = os.lseek(self._descriptor, 0, os.SEEK_END)
        padded = line.rstrip(b"\n") + b" " * room + b"\n"
        self.write_encoded(padded)
        return OpenLine(start, os.lseek(self._descriptor, 0, os.SEEK_END) - start)

    def write_in_place(self, place: OpenLine, line: bytes) -> None:
        """Put a line where an open one stands, in one write; longer ones fit only at the end of the file."""
        line = without_secrets_in_lines(line)
        self._refuse_unreadable(line)
        is_last = os.lseek(self._descriptor, 0, os.SEEK_END) == place.start + place.length
        if len(line) > place.length and not is_last:
            raise ValueError(f"a line of {len(line)} bytes does not fit into {place.length}")
        padded = line if len(line) >= place.length else line[:-1] + b" " * (place.length - len(line)) + b"\n"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | getattr(os, "O_BINARY", 0))  # one that does not append
            try:
                os.lseek(descriptor, place.start, os.SEEK_SET)
                os.write(descriptor, padded)
                if is_last and len(line) < place.length:
                    os.lseek(descriptor, place.start, os.SEEK_SET)
                    os.write(descriptor, line)
                    os.ftruncate(descriptor, place.start + len(line))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise StoreError(f"cannot write {self.path}: {describe_os_error(error)}") from error

    def _refuse_unreadable(self, lines: bytes) -> None:
        if self._check is not None:
            for line in filter(None, lines.split(b"\n")):
                self._check(line + b"\n")

    def resume(self, take: Callable[[Any], None]) -> None:
        """Hand over every line that an earlier writer left, in order; a refusal releases the file."""
        try:
            for value in read_json_lines(self.path):
                take(value)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Hand the lines to the disk and release the file; closing twice does nothing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                if self._is_regular:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)


def encoded_line(value: object, path: Path) -> bytes:
    """Return a value as a line for a file; StoreError if JSON has no form for it that could be read again."""
    try:
        return encode_json_line(value)
    except (TypeError, ValueError, RecursionError) as error:  # NaN, an object, a number of too many digits, a circle
        reason = "nested too deeply" if isinstance(error, RecursionError) else one_line(error)
        raise StoreError(f"{path} cannot take what nothing could read again: {reason}") from error


def without_secrets_in_lines(lines: bytes) -> bytes:
    """Return lines of JSON text without secrets in their values; the same bytes if they hold none."""
    if not may_hold_secrets(lines.decode(errors="replace")):
        return lines
    return b"".join(encode_json_line(without_secrets_in(json.loads(line))) for line in lines.split(b"\n") if line)


def is_stream(path: Path) -> bool:
    """Return whether a path is there and no ordinary file: a pipe, a terminal, a device."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _cut_torn_line(descriptor: int) -> None:
    """Shorten the file to its last line end (to nothing, if it has none)."""
    size = os.lseek(descriptor, 0, os.SEEK_END)
    end = size
    while end > 0:
        begin = max(0, end - TAIL_BLOCK)
        os.lseek(descriptor, begin, os.SEEK_SET)
        block = os.read(descriptor, end - begin)
        newline = block.rfind(b"\n")
        if newline >= 0:
            end = begin + newline + 1
            break
        end = begin
    if end != size:
        os.ftruncate(descriptor, end)
    os.lseek(descriptor, 0, os.SEEK_END)


_JSON_DECODER = json.JSONDecoder(parse_constant=finite_number)


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers, but for empty ones; a last one without its end counts as torn."""
    return ((number, line) for number, _, line in placed_lines(path))


def placed_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield what `whole_lines` does, and between where each line begins, in bytes."""
    begins = 0
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if line.endswith(b"\n") and not line.isspace():
                    yield number, begins, line
                begins += len(line)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {describe_os_error(error)}") from error


def parse_line(line: bytes, number: int, path: Path) -> Any:
    """Return the JSON value of a line of a file, which a refusal names."""
    try:
        return _JSON_DECODER.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise StoreError(f"line {number} of {path} is not JSON: {error}") from error


def read_json_lines(path: Path | str) -> Iterator[Any]:
    """Yield the values of a JSON Lines file one by one; a last line without its line end is ignored as torn."""
    source = Path(path)
    for number, line in whole_lines(source):
        yield parse_line(line, number, source)


def own_file(directory: Path | str, name: str) -> Path:
    """Return a file of a folder of results, which need not be there; one that is a link out of it is refused."""
    return inside(directory, Path(directory) / name, "file of results", StoreError)


def make_folder(directory: Path) -> list[Path]:
    """Make a folder, and those that it stands in, if they are not there; return what was made, the outermost first."""
    try:
        missing = [folder for folder in (directory, *directory.parents) if not folder.exists()]
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the folder {directory}: {describe_os_error(error)}") from error
    return missing[::-1]


def lock(descriptor: int, path: Path) -> None:
    """Take an open file or folder for this process until the descriptor is closed; systems without such locks don't."""
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreError(f"another process is writing to {path}: wait for it, or use another folder") from error


class RunFolder(Closing):
    """The folder of a run, open for writing by one process: its manifest, and a file of lines.

    Lines need a manifest, and in a folder that `is_exclusive` everything else does, too; `check` is the reader's rule
    for a line (`JsonLinesWriter`).
    """

    def __init__(
        self,
        directory: Path | str,
        arguments: Mapping[str, Any],
        lines_name: str,
        is_exclusive: bool = False,
        packages: Iterable[str] = (),
        device: str | None = None,
        check: Callable[[bytes], object] | None = None,
    ) -> None:
        self.directory = Path(directory)
        make_folder(self.directory)
        there = sorted(entry.name for entry in self.directory.iterdir())
        present = next((name for name in there if is_exclusive or name == lines_name), None)
        path = own_file(self.directory, MANIFEST_NAME)
        self.manifest, _ = claim(path, run_manifest(arguments, packages, device), self.directory, found=present)
        self.lines = JsonLinesWriter(own_file(self.directory, lines_name), check)

    def close(self) -> None:
        """Hand everything to the disk and release the folder."""
        self.lines.close()
