"""What a robustness profile varies, and the runs it consists of: one thing at a time, on the same tasks and luck.

The standard run is the middle of it. Every other run differs from it in the reliability of the tools, in the number of
turns, or in a flaw of the plan in the prompt, and in nothing else. `profile.json` in the folder of a profile says what
all its runs have in common, what is varied, and which runs these are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import MAX_TURNS, InvalidInputError, StoreError, check_integer, unknown_name
from resilisim.provenance import encode_json
from resilisim.run_folder import (
    MANIFEST_NAME,
    load_manifest,
    make_folder,
    refuse_other_arguments,
    run_manifest,
    write_file_atomically,
)
from resilisim.tasks import Task
from resilisim.workflows.flaws import FLAW_TYPES, SEVERITIES
from resilisim.workflows.prompt_choice import FLAWED, SEPARATOR

PROFILE_NAME: Final = "profile.json"
PROFILE_SCHEMA: Final = "resilisim-profile-1"

RELIABILITY, TURNS, FLAWS = "reliability", "turns", "flaws"
AXES = (RELIABILITY, TURNS, FLAWS)
STANDARD = "standard"
OPTIMAL = "optimal"
WITHOUT_FLAWS = "flaws-none"

DEFAULT_RELIABILITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
DEFAULT_TURNS = (4, 6, 8, 10, 12, 15)


@dataclass(frozen=True, slots=True)
class ProfilePoints:
    """What is varied; the standard setting belongs to each axis that has points.

    Attributes:
        reliability: Success probabilities of a tool whose dependencies have succeeded (the law's `base`), ascending.
        turns: Numbers of turns, ascending.
        flaws: Flaw types.
        severities: Severities of each flaw.
    """

    reliability: tuple[float, ...] = ()
    turns: tuple[int, ...] = ()
    flaws: tuple[str, ...] = ()
    severities: tuple[str, ...] = ()

    def with_standard(self, standard: EnvironmentSettings) -> ProfilePoints:
        """Return the points with the standard setting on each axis of numbers that has any."""
        return replace(
            self,
            reliability=_sorted({*self.reliability, standard.base}) if self.reliability else (),
            turns=_sorted({*self.turns, standard.max_turns}) if self.turns else (),
        )

    def merged(self, earlier: ProfilePoints, where: str) -> ProfilePoints:
        """Return these points and those of an earlier command.

        Raises:
            StoreError: Both have flaws, of other severities; the text names `where` the earlier ones stand.
        """
        if self.flaws and earlier.flaws and self.severities != earlier.severities:
            raise StoreError(
                f"{where} holds flaws of the severities {', '.join(earlier.severities)}, and here they are "
                f"{', '.join(self.severities)}; use another folder"
            )
        flaws = {*self.flaws, *earlier.flaws}
        return ProfilePoints(
            reliability=_sorted({*self.reliability, *earlier.reliability}),
            turns=_sorted({*self.turns, *earlier.turns}),
            flaws=tuple(flaw for flaw in FLAW_TYPES if flaw in flaws),
            severities=self.severities or earlier.severities,
        )

    def to_mapping(self) -> dict[str, list[Any]]:
        """Return the points as JSON values."""
        return {name: list(getattr(self, name)) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ProfileRun:
    """One run of a profile.

    Attributes:
        name: Name of its folder.
        axis: The axis that it belongs to, or "standard", which belongs to all.
        value: Its place on the axis: reliability, turns or flaw; None for the standard run.
        environment: Options of its environment.
        prompts: Its prompts.
        tasks: Its tasks.
        left_out: How many of the profile's tasks cannot be part of it, because their plans cannot carry the flaw.
    """

    name: str
    axis: str
    value: float | int | str | None
    environment: EnvironmentSettings
    prompts: tuple[str, ...]
    tasks: Sequence[Task] = field(repr=False)
    left_out: int = 0

    @property
    def title(self) -> str:
        """What the run changes, in words."""
        if self.value is None:
            return "standard setting"
        if self.axis == FLAWS:
            return f"flaw {str(self.value).replace('_', ' ')}"
        return f"{self.axis} {self.value:g}" if isinstance(self.value, float) else f"{self.value} {self.axis}"

    def to_mapping(self) -> dict[str, Any]:
        """Return what `profile.json` says of the run."""
        return {
            "name": self.name,
            "axis": self.axis,
            "value": self.value,
            "prompts": list(self.prompts),
            "num_tasks": len(self.tasks),
            "left_out": self.left_out,
        }


def check_points(
    axes: object, reliabilities: object, turns: object, flaws: object, severities: object
) -> ProfilePoints:
    """Return the points that the arguments mean; those of axes that are not wanted are left out.

    Raises:
        InvalidInputError: An axis, flaw or severity does not exist, or a number is out of range.
    """
    wanted = _names("axis", axes, AXES)
    return ProfilePoints(
        reliability=_reliabilities(reliabilities) if RELIABILITY in wanted else (),
        turns=_turns(turns) if TURNS in wanted else (),
        flaws=_names("flaw", flaws, FLAW_TYPES) if FLAWS in wanted else (),
        severities=_names("severity", severities, SEVERITIES) if FLAWS in wanted else (),
    )


def plan_runs(
    points: ProfilePoints,
    standard: EnvironmentSettings,
    prompts: tuple[str, ...],
    tasks: Sequence[Task],
    carried: Mapping[str, NDArray[np.bool_]],
) -> tuple[ProfileRun, ...]:
    """Return the runs of a profile, the standard one first.

    Args:
        points: What is varied (`ProfilePoints.with_standard`).
        standard: Options of the standard run.
        prompts: Prompts of all runs but those of the flaws.
        tasks: The tasks.
        carried: For each flaw which plans can carry it at every severity; shape (num_tasks,).
    """
    runs = [ProfileRun(STANDARD, STANDARD, None, standard, prompts, tasks)]
    for base in points.reliability:
        if base != standard.base:
            changed = replace(standard, base=base)
            runs.append(ProfileRun(f"reliability-{_two_digits(base)}", RELIABILITY, base, changed, prompts, tasks))
    for number in points.turns:
        if number != standard.max_turns:
            changed = replace(standard, max_turns=number)
            runs.append(ProfileRun(f"turns-{number:02d}", TURNS, number, changed, prompts, tasks))
    if points.flaws and sound_run(prompts) == WITHOUT_FLAWS:
        runs.append(ProfileRun(WITHOUT_FLAWS, FLAWS, "none", standard, (OPTIMAL,), tasks))
    for flaw in points.flaws:
        chosen = [task for task, carries in zip(tasks, carried[flaw], strict=True) if carries]
        if chosen:
            flawed = tuple(flawed_prompt(flaw, severity) for severity in points.severities)
            left_out = len(tasks) - len(chosen)
            runs.append(ProfileRun(f"flaws-{flaw}", FLAWS, flaw, standard, flawed, chosen, left_out))
    return tuple(runs)


def number_settings(points: ProfilePoints, standard: EnvironmentSettings) -> tuple[EnvironmentSettings, ...]:
    """Return the different settings of the axes of numbers, the standard one first."""
    changed = [replace(standard, base=base) for base in points.reliability]
    changed += [replace(standard, max_turns=number) for number in points.turns]
    return tuple(dict.fromkeys([standard, *changed]))


def sound_run(prompts: Sequence[str]) -> str:
    """Return the name of the run that flaws are compared with: the one whose prompt holds the sound plan."""
    return STANDARD if OPTIMAL in prompts else WITHOUT_FLAWS


def flawed_prompt(flaw: str, severity: str) -> str:
    """Return the name of the prompt with a flaw."""
    return SEPARATOR.join((FLAWED, flaw, severity))


def _reliabilities(values: object) -> tuple[float, ...]:
    chosen = set()
    for value in _listed("reliability", values):
        is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        if not is_number or math.isnan(value) or not 0.0 < value <= 1.0:
            raise InvalidInputError(f"reliability is {value!r:.60}: expected a probability above 0 and at most 1")
        chosen.add(float(value))
    return _sorted(chosen)


def _turns(values: object) -> tuple[int, ...]:
    return _sorted({check_integer("turns", value, 1, MAX_TURNS) for value in _listed("turns", values)})


def _names(what: str, values: object, known: Sequence[str]) -> tuple[str, ...]:
    chosen = _listed(what, values)
    for value in chosen:
        if value not in known:
            raise unknown_name(what, value, known)
    return tuple(name for name in known if name in chosen)


def _listed(what: str, values: object) -> list[Any]:
    chosen = list(values) if isinstance(values, Iterable) and not isinstance(values, str | Mapping) else [values]
    if not chosen:
        raise InvalidInputError(f"no {what} was given: expected at least one")
    return chosen


def _sorted(values: set[Any]) -> tuple[Any, ...]:
    return tuple(sorted(values))


def _two_digits(value: float) -> str:
    short = f"{value:.2f}"
    return short if float(short) == value else repr(value)


def read_profile(directory: Path) -> dict[str, Any] | None:
    """Return what `profile.json` in a folder says, or None if there is none.

    Raises:
        StoreError: It cannot be read, or was changed.
    """
    return load_manifest(directory / PROFILE_NAME, PROFILE_SCHEMA)


def merge_with_earlier(directory: Path, arguments: Mapping[str, Any], points: ProfilePoints) -> ProfilePoints:
    """Return the points of a command and those that earlier ones left in its folder.

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
