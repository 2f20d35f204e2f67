"""The folder of a dataset: whose it is, what in it is whole, and who may write to it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from resilisim.datasets.manifest import DATASET_SCHEMA, identity
from resilisim.datasets.shards import ShardFacts, is_shard_name
from resilisim.errors import StoreError
from resilisim.provenance import describe_os_error, encode_json
from resilisim.run_folder import (
    MANIFEST_NAME,
    Closing,
    claim,
    is_temporary,
    load_manifest,
    lock,
    make_folder,
    remove_temporaries,
    write_file_atomically,
)

CARD_NAME = "README.md"
SHARDS_NAME = "shards.json"
DATA_NAME = "data"
OUR_NAMES = (MANIFEST_NAME, CARD_NAME, SHARDS_NAME, DATA_NAME)


class DatasetFolder(Closing):
    """A dataset's folder, open for writing by one process; used as a context.

    Args:
        directory: The folder; it is made if needed.
        manifest: What the dataset is to be: schema, hash, arguments, versions and more.
        overwrite: Whether another dataset that is there may be removed, and whether foreign files may stand beside.

    Attributes:
        directory: The folder.
        data: The folder of the shards in it.

    Raises:
        StoreError: It holds another dataset or foreign files, somebody else is writing to it, or it cannot be written.
    """

    def __init__(self, directory: Path, manifest: Mapping[str, Any], *, overwrite: bool) -> None:
        self.directory = directory
        self.data = directory / DATA_NAME
        self._made = make_folder(
            directory
        )  # files and folders that were not there before, in the order of their making
        self._lock = _lock(directory)
        try:
            self._prepare(manifest, overwrite)
        except BaseException as error:
            self._release()
            if isinstance(error, OSError):
                raise StoreError(f"cannot write to {directory}: {describe_os_error(error)}") from error
            raise

    def holds(self, file_name: str) -> bool:
        """Tell whether a shard is there, and so whole: it got its name when it was."""
        return (self.data / file_name).is_file()

    def is_finished(self) -> bool:
        """Tell whether the card and the list of shards are there: they are written when all shards are."""
        return (self.directory / SHARDS_NAME).is_file() and (self.directory / CARD_NAME).is_file()

    def finish(self, facts: Sequence[ShardFacts], card: str) -> None:
        """Write the list of shards and, last of all, the card."""
        write_file_atomically(self.directory / SHARDS_NAME, _pretty([fact.to_mapping() for fact in facts]))
        write_file_atomically(self.directory / CARD_NAME, card.encode(errors="backslashreplace"))

    def close(self) -> None:
        """Take away what was not finished, and let others write to the folder."""
        self._remove_temporaries()
        self._release()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the folder; if an error ended the export before anything was written, leave nothing behind."""
        self._remove_temporaries()
        if error is not None and not _names_in(self.data):
            self._unmake()
        self.close()

    def _unmake(self) -> None:
        for path in reversed(self._made):
            with contextlib.suppress(OSError):  # a folder into which somebody else has put something stays
                path.rmdir() if path.is_dir() else path.unlink()

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _prepare(self, manifest: Mapping[str, Any], overwrite: bool) -> None:
        path = self.directory / MANIFEST_NAME
        try:
            is_new = load_manifest(path, DATASET_SCHEMA) is None
        except StoreError as error:
            raise StoreError(f"{error}: use another folder") from error
        if is_new:
            self._refuse_foreign_files(overwrite)
        claim(
            path,
            manifest,
            self.directory,
            holds="another dataset",
            advice="use another folder, or allow overwriting",
            identity=identity,
            replace=self._remove_dataset if overwrite and not is_new else None,
        )
        self._remove_temporaries()
        if is_new:
            self._made.append(path)
            if not self.data.exists():
                self._made.append(self.data)
        self.data.mkdir(exist_ok=True)

    def _refuse_foreign_files(self, overwrite: bool) -> None:
        names = sorted(name for name in os.listdir(self.directory) if not is_temporary(name, MANIFEST_NAME.__eq__))
        taken = [name for name in names if name in OUR_NAMES]
        if taken:
            # Not even to be overwritten: it was somebody else who wrote it.
            raise StoreError(f"{self.directory} holds a {taken[0]} that no dataset export wrote: use another folder")
        if names and not overwrite:
            raise StoreError(
                f"{self.directory} holds {_listed(names)} that no dataset export wrote: "
                "use another folder, or allow overwriting to write beside what is there"
            )

    def _remove_dataset(self) -> None:
        for name in (CARD_NAME, SHARDS_NAME):
            (self.directory / name).unlink(missing_ok=True)
        for name in _names_in(self.data):
            if is_shard_name(name):
                (self.data / name).unlink()

    def _remove_temporaries(self) -> None:
        """Remove what a process that was killed left behind; nobody else writes here."""
        remove_temporaries(self.directory, (MANIFEST_NAME, SHARDS_NAME, CARD_NAME).__contains__)
        remove_temporaries(self.data, is_shard_name)


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the manifest of a dataset.

    Raises:
        StoreError: The folder holds none, or it was changed.
    """
    manifest = load_manifest(directory / MANIFEST_NAME, DATASET_SCHEMA)
    if manifest is None:
        raise StoreError(f"{directory} is no folder of a dataset: it holds no {MANIFEST_NAME}")
    return manifest


def read_facts(directory: Path) -> list[ShardFacts]:
    """Return what a finished dataset says of its shards.

    Raises:
        StoreError: The list is missing, as in a dataset that is not finished, or was changed.
    """
    path = directory / SHARDS_NAME
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(entries, list):
            raise ValueError("no list")
        return [ShardFacts.from_mapping(entry) for entry in entries]
    except FileNotFoundError as error:
        raise StoreError(f"{directory} is not finished: the same command goes on from there") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {describe_os_error(error)}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreError(f"{path} was changed: it is no list of shards") from error


def _lock(directory: Path) -> int:
    """Take the folder for this process; where the system cannot lock a folder, two writers write the same bytes."""
    if sys.platform == "win32":
        return -1
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StoreError(f"cannot read {directory}: {describe_os_error(error)}") from error
    try:
        lock(descriptor, directory)
    except StoreError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return -1
    return descriptor


def _names_in(folder: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(os.listdir(folder))
    return []


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _pretty(value: object) -> bytes:
    return encode_json(value, indent=2, sort_keys=True) + b"\n"
