"""The file of a robustness profile, `profile.json`: what all its runs have in common, what is varied, which runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation.robustness.plan import AXES, ProfilePoints, ProfileRun, check_points
from resilisim.provenance import encode_json
from resilisim.run_folder import (
    MANIFEST_NAME,
    load_manifest,
    make_folder,
    refuse_other_arguments,
    run_manifest,
    write_file_atomically,
)

PROFILE_NAME: Final = "profile.json"
PROFILE_SCHEMA: Final = "resilisim-profile-1"


def read_profile(directory: Path) -> dict[str, Any] | None:
    """Return what `profile.json` in a folder says, or None if there is none.

    Raises:
        StoreError: It cannot be read, or was changed.
    """
    return load_manifest(directory / PROFILE_NAME, PROFILE_SCHEMA)


def merge_with_earlier(directory: Path, arguments: Mapping[str, Any], points: ProfilePoints) -> ProfilePoints:
    """Return the points of a command and those that earlier ones left in its folder.

    Args:
        directory: The folder.
        arguments: What all runs of the profile have in common.
        points: What the command varies.

    Raises:
        StoreError: The folder holds another profile, or an ordinary run.
    """
    if (directory / MANIFEST_NAME).exists():
        raise StoreError(f"{directory} holds an ordinary run ({MANIFEST_NAME}); use another folder")
    earlier = read_profile(directory)
    if earlier is None:
        return points
    refuse_other_arguments(directory, earlier["arguments"], arguments, holds="another profile")
    return points.merged(_points_in(earlier, directory), str(directory))


def write_profile(
    directory: Path, arguments: Mapping[str, Any], points: ProfilePoints, runs: Sequence[ProfileRun]
) -> None:
    """Write `profile.json`, and make the folder if needed; the date of the first command is kept.

    Raises:
        StoreError: It cannot be written.
    """
    make_folder(directory)
    earlier = read_profile(directory)
    content = {
        **(earlier or run_manifest(arguments)),
        "schema": PROFILE_SCHEMA,
        "points": points.to_mapping(),
        "runs": [run.to_mapping() for run in runs],
    }
    write_file_atomically(directory / PROFILE_NAME, encode_json(content, indent=2) + b"\n")


def _points_in(earlier: Mapping[str, Any], directory: Path) -> ProfilePoints:
    try:
        points = earlier["points"]
        axes = [axis for axis in AXES if points[axis]]
        return check_points(axes, points["reliability"], points["turns"], points["flaws"], points["severities"])
    except (KeyError, TypeError, InvalidInputError) as error:
        raise StoreError(f"{directory / PROFILE_NAME} was changed: its points cannot be read ({error})") from error
