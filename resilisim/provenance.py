"""Where results come from, and how they reach the disk so that a crash can only cost the line being written.

One JSON Lines file is written by one process. Each line leaves the process in one `write` on an unbuffered descriptor
opened for appending, so a process that is killed at any moment leaves whole lines and at most one torn last line,
which readers ignore and the next writer cuts off. A disk that is full is told as a `StoreError`, after the part of the
line that did fit has been taken off again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from resilisim.errors import StoreError

if sys.platform != "win32":
    import fcntl

MANIFEST_SCHEMA = "resilisim-manifest-1"
REPORTED_PACKAGES = ("resilisim", "numpy", "gymnasium")
TAIL_BLOCK = 65536  # bytes read at a time when looking backwards for the last line end
ABSENT = object()
TYPED_NAMES = frozenset({"policies", "prompts", "seeds"})  # arguments of a run as somebody typed them
DERIVED_NAMES = frozenset({"num_episodes"})  # what follows from other arguments, whose difference says more


def canonical_json(value: object) -> str:
    """Return the one JSON text of a value: keys sorted, no spaces, Unicode as it is, NaN and infinities refused.

    Raises:
        ValueError: If the value holds NaN or an infinity, which JSON does not have.
        TypeError: If the value holds something that JSON has no form for.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def encode_json(value: object, **layout: Any) -> bytes:
    """Return the JSON text of a value in UTF-8: Unicode as it is, or escaped if it holds what UTF-8 does not have.

    Models and users can write lone surrogates, halves of a character. Only as JSON escapes can they stand in a file
    that everybody can read; they are read back as they were.

    Args:
        value: JSON values; NaN and infinities are refused.
        **layout: What `json.dumps` takes for the layout (`indent`, `separators`, `sort_keys`).
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **layout).encode()
    except UnicodeEncodeError:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, **layout).encode()


_LINE_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def encode_json_line(value: object) -> bytes:
    """Return a value as one line of a JSON Lines file, keys in the order in which mappings hold them."""
    try:
        return _LINE_ENCODER.encode(value).encode() + b"\n"
    except UnicodeEncodeError:
        return encode_json(value, separators=(",", ":")) + b"\n"


def content_hash(value: object) -> str:
    """Return the SHA-256, in hex, of bytes as they are or of the canonical JSON of any other value."""
    data = value if isinstance(value, bytes) else canonical_json(value).encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of packages; one that is not there is "not installed"."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def run_manifest(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a run: its arguments and their hash, and the versions and the platform that it ran on.

    Args:
        arguments: Everything that decides what the results are (not how fast they come); JSON values only. It holds
            the version and hash of the benchmark, which this floor does not know.

    Returns:
        A mapping with the keys schema, hash (of the arguments), arguments, versions, platform, created.
    """
    return {
        "schema": MANIFEST_SCHEMA,
        "hash": content_hash(arguments),
        "arguments": dict(arguments),
        "versions": {"python": platform.python_version(), **package_versions(REPORTED_PACKAGES)},
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def load_manifest(path: Path, schema: str) -> dict[str, Any]:
    """Return a manifest that stands in a file.

    Args:
        path: The file.
        schema: What its key `schema` has to say.

    Raises:
        FileNotFoundError: There is no such file.
        StoreError: It cannot be read, has another schema, or its hash does not fit its arguments.
    """
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"cannot read {path}: {describe_os_error(error)}") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is not JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != schema:
        raise StoreError(f"{path} does not have the schema {schema!r}")
    if not isinstance(manifest.get("arguments"), dict) or manifest.get("hash") != content_hash(manifest["arguments"]):
        raise StoreError(f"{path} was changed: its hash does not fit its arguments")
    return cast("dict[str, Any]", manifest)


def first_difference(left: object, right: object, name: str = "") -> tuple[str, object, object] | None:
    """Return the first place where two JSON values differ, with both values there; None if equal.

    Names are sorted, but for those that somebody typed, which come first, and those that follow from others, which come
    last. A value that is not there is ABSENT.
    """
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in sorted(left.keys() | right.keys(), key=_place_in_order):
            place = f"{name}.{key}" if name else str(key)
            difference = first_difference(left.get(key, ABSENT), right.get(key, ABSENT), place)
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
    """Raise a StoreError that names the first difference between a folder's arguments and this command's, if any.

    Args:
        directory: The folder.
        there: Its arguments.
        now: Those of this command.
        holds: What the folder holds if they differ.
        advice: What to do then.
    """
    difference = first_difference(there, json.loads(json.dumps(now)))
    if difference is not None:
        name, old, new = difference
        raise StoreError(
            f"{directory} holds {holds}: {name} is {_shorten(old)} there and {_shorten(new)} here; {advice}"
        )


def _shorten(value: object, limit: int = 80) -> str:
    text = "absent" if value is ABSENT else encode_json(value).decode()
    if len(text) <= limit:
        return text
    count = f"{len(value)} values: " if isinstance(value, list) else ""  # of long lists the beginnings are often alike
    return count + text[: limit - 3] + "..."


def write_file_atomically(path: Path, data: bytes) -> None:
    """Write a small file so that a reader sees the old bytes or the new ones, never a part.

    Raises:
        StoreError: If the file cannot be written; what was there before is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"cannot write {path}: {describe_os_error(error)}") from error


def describe_os_error(error: OSError) -> str:
    """Say in a few words what the operating system refused."""
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    return (error.strerror or str(error)).lower()


class JsonLinesWriter:
    """Appends JSON values to a file, one line each, safe against being killed at any moment.

    Opening cuts off a torn last line and takes a lock, so that two runs never write to one file.

    Args:
        path: The file; it is made if it does not exist, its folder must exist.

    Raises:
        StoreError: If the file cannot be opened, or another process is writing to it.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        # A pipe that its writer can read from would never tell that its reader has gone.
        access = os.O_WRONLY if is_stream(self.path) else os.O_RDWR
        flags = access | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        try:
            self._descriptor = os.open(self.path, flags, 0o644)
        except OSError as error:
            raise StoreError(f"cannot open {self.path}: {describe_os_error(error)}") from error
        try:
            self._lock()
            self._is_regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
            if self._is_regular:
                _cut_torn_line(self._descriptor)
        except BaseException:
            os.close(self._descriptor)
            self._descriptor = -1
            raise

    def write(self, value: object) -> None:
        """Append one value as one line, keys in the order in which the mapping holds them.

        Raises:
            StoreError: If the line does not fit; the file then still ends with the last whole line.
        """
        self.write_encoded(encode_json_line(value))

    def write_encoded(self, lines: bytes) -> None:
        """Append lines that are already JSON text, each ending in a newline, all in one write.

        Raises:
            StoreError: If they do not fit; the file then still ends with the last whole line from before.
        """
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
                "what was finished is kept, and the same command goes on from there"
            ) from error

    def close(self) -> None:
        """Hand the lines to the disk and release the file; closing twice does nothing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                if self._is_regular:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def __enter__(self) -> JsonLinesWriter:
        """Return the writer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def _lock(self) -> None:
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(
                f"another process is writing to {self.path}: wait for it, or use another folder"
            ) from error


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


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


_JSON_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def read_json_lines(path: Path | str) -> Iterator[Any]:
    """Yield the values of a JSON Lines file one by one; a last line without its line end is ignored as torn.

    Raises:
        StoreError: If the file cannot be read, or a whole line of it is not JSON (the text names the line).
    """
    source = Path(path)
    try:
        with source.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    value = _JSON_DECODER.decode(line.decode())
                except (ValueError, RecursionError) as error:
                    raise StoreError(f"line {number} of {source} is not JSON: {error}") from error
                yield value
    except OSError as error:
        raise StoreError(f"cannot read {source}: {describe_os_error(error)}") from error
