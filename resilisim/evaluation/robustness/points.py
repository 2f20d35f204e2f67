"""What a robustness profile varies, and the runs it consists of: one thing at a time, on the same tasks and luck.

The standard run is the middle of it. Every other run differs from it in the reliability of the tools, in the number of
turns, in a flaw of the plan in the prompt, or in the strength of a part of the law, and in nothing else. `profile.json`
in the folder of a profile says what all its runs have in common, what is varied, and which runs these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from resilisim.bounds import Turns, checked
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import (
    InvalidInputError,
    StoreError,
    check_number,
    check_share,
    unknown_name,
)
from resilisim.options import options_of
from resilisim.provenance import encode_json
from resilisim.run_folder import (
    MANIFEST_NAME,
    load_manifest,
    make_folder,
    refuse_other_arguments,
    run_manifest,
    write_file_atomically,
)
from resilisim.simulator.law import CONSTANTS
from resilisim.tasks import Task
from resilisim.workflows.flaws import SEVERITIES
from resilisim.workflows.flaws.flaw import STRESSORS
from resilisim.workflows.prompts import FLAWED, SEPARATOR

PROFILE_NAME: Final = "profile.json"
PROFILE_SCHEMA: Final = "resilisim-profile-1"

RELIABILITY, TURN_LIMIT, FLAWS = "reliability", "turns", "flaws"
AXES = (RELIABILITY, TURN_LIMIT, FLAWS)  # unless others are asked for
# Parts of a law are axes, too, each with a strength from 0 (no such part) to 1.
PART_AXES = ("rate_limit", "outage", "broken", "corrupt", "drift", "error_kinds", "latency")
STANDARD = "standard"
OPTIMAL = "optimal"
WITHOUT_FLAWS = "flaws-none"

DEFAULT_RELIABILITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
DEFAULT_TURNS = (4, 6, 8, 10, 12, 15)
DEFAULT_STRENGTHS = (0.1, 0.2, 0.4)

RATE_WINDOW = 5  # messages
OUTAGE_ENDS = 1 / 3  # an outage lasts three messages on average


def law_at(part: str, strength: float, constants: Mapping[str, Any], max_turns: int) -> dict[str, Any]:
    """Return the law with one part of a strength between 0 and 1, beside constants (and equivalents, say).

    Strength is the share of calls in any five messages that a rate limit of each category refuses, the share of the
    time that a category is down, the chance that a tool is broken, that an output is corrupt, or that a call is too
    slow, what the base loses in an episode, and the weight of the errors that do not go away by calling again.
    """
    parts: dict[str, Any] = {
        "rate_limit": {
            "calls": max(1, round(RATE_WINDOW * (1.0 - strength))),
            "window": RATE_WINDOW,
            "per": "category",
        },
        "outage": {"begins": min(1.0, OUTAGE_ENDS * strength / max(1.0 - strength, 1e-9)), "ends": OUTAGE_ENDS},
        "broken": {"probability": strength},
        "corrupt": {"probability": strength},
        "drift": {"per_message": -strength / max_turns},
        "error_kinds": {"transient": 1.0 - strength, "input": strength, "access": strength},
        "latency": {
            "distribution": [
                {"seconds": seconds, "probability": chance}
                for seconds, chance in ((1.0, 1.0 - strength), (60.0, strength))
                if chance > 0.0
            ],
            "timeout": 30.0,
        },
    }
    return {"name": f"{part}-{strength:g}", **constants, part: parts[part]}


@dataclass(frozen=True, slots=True)
class ProfilePoints:
    """What is varied; the standard setting belongs to each axis that has points."""

    # Success probabilities of a tool whose dependencies have succeeded (the law's `base`), ascending
    reliability: tuple[float, ...] = ()
    turns: tuple[int, ...] = ()  # numbers of turns, ascending
    flaws: tuple[str, ...] = ()
    severities: tuple[str, ...] = ()  # severities of each flaw
    parts: tuple[str, ...] = ()  # parts of the law
    strengths: tuple[float, ...] = ()  # strengths of each part, ascending

    def with_standard(self, standard: EnvironmentSettings) -> ProfilePoints:
        """Return the points with the standard setting on each axis of numbers that has any."""
        reliability = sorted({*self.reliability, standard.base}) if self.reliability else ()
        turns = sorted({*self.turns, standard.max_turns}) if self.turns else ()
        return replace(self, reliability=tuple(reliability), turns=tuple(turns))

    def merged(self, earlier: ProfilePoints, where: str) -> ProfilePoints:
        """Return these points and those of an earlier command, which stand `where` a StoreError says.

        It tells of flaws of other severities, which cannot be in one profile.
        """
        if self.flaws and earlier.flaws and self.severities != earlier.severities:
            raise StoreError(
                f"{where} holds flaws of the severities {', '.join(earlier.severities)}, and here they are "
                f"{', '.join(self.severities)}; use another folder"
            )
        flaws, parts = {*self.flaws, *earlier.flaws}, {*self.parts, *earlier.parts}
        return ProfilePoints(
            reliability=tuple(sorted({*self.reliability, *earlier.reliability})),
            turns=tuple(sorted({*self.turns, *earlier.turns})),
            flaws=tuple(flaw for flaw in STRESSORS if flaw in flaws),
            severities=self.severities or earlier.severities,
            parts=tuple(part for part in PART_AXES if part in parts),
            strengths=tuple(sorted({*self.strengths, *earlier.strengths})),
        )

    def to_mapping(self) -> dict[str, list[Any]]:
        """Return the points as JSON values; those of parts only where there are some."""
        values = {name: list(getattr(self, name)) for name in self.__slots__}
        return {name: value for name, value in values.items() if value or name not in ("parts", "strengths")}


@dataclass(frozen=True, slots=True)
class ProfileRun:
    """One run of a profile."""

    name: str  # name of its folder
    axis: str  # the axis that it belongs to, or "standard", which belongs to all
    value: float | int | str | None  # its place on the axis: reliability, turns or flaw; None for the standard run
    environment: EnvironmentSettings  # options of its environment
    prompts: tuple[str, ...]  # its prompts
    tasks: Sequence[Task] = field(repr=False)
    left_out: int = 0  # how many of the profile's tasks cannot be part of it, because their plans cannot carry the flaw

    @property
    def title(self) -> str:
        """What the run changes, in words."""
        if self.value is None:
            return "standard setting"
        if self.axis == FLAWS:
            return f"flaw {str(self.value).replace('_', ' ')}"
        if self.axis in PART_AXES:
            return f"{self.axis.replace('_', ' ')} of strength {self.value:g}"
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
    axes: object,
    reliabilities: object,
    turns: object,
    flaws: object,
    severities: object,
    strengths: object = DEFAULT_STRENGTHS,
) -> ProfilePoints:
    """Return the points that the arguments mean; those of axes that are not wanted are left out."""
    wanted = _names("axis", axes, (*AXES, *PART_AXES))
    has_flaws = FLAWS in wanted
    parts = tuple(name for name in wanted if name in PART_AXES)
    return ProfilePoints(
        tuple(sorted(set(map(_reliability, _listed("reliability", reliabilities))))) if RELIABILITY in wanted else (),
        tuple(sorted(set(map(_turns, _listed("turns", turns))))) if TURN_LIMIT in wanted else (),
        _names("flaw", flaws, tuple(STRESSORS)) if has_flaws else (),
        _names("severity", severities, SEVERITIES) if has_flaws else (),
        parts,
        tuple(sorted(set(map(_strength, _listed("strength", strengths))))) if parts else (),
    )


def plan_runs(
    points: ProfilePoints,
    standard: EnvironmentSettings,
    prompts: tuple[str, ...],
    tasks: Sequence[Task],
    carried: Mapping[str, NDArray[np.bool_]],
) -> tuple[ProfileRun, ...]:
    """Return the runs of a profile, the standard one first; `prompts` are those of all runs but the flaws' own.

    `carried` says for each flaw which plans can carry it at every severity; shape (num_tasks,).
    """
    runs = [ProfileRun(STANDARD, STANDARD, None, standard, prompts, tasks)]
    for base in points.reliability:
        if base != standard.base:
            short = f"{base:.2f}"
            name = f"reliability-{short if float(short) == base else repr(base)}"
            runs.append(ProfileRun(name, RELIABILITY, base, replace(standard, base=base), prompts, tasks))
    for number in points.turns:
        if number != standard.max_turns:
            changed = replace(standard, max_turns=number)
            runs.append(ProfileRun(f"turns-{number:02d}", TURN_LIMIT, number, changed, prompts, tasks))
    for part, strength in part_points(points):
        changed = part_setting(standard, part, strength)
        runs.append(ProfileRun(f"{part}-{strength:g}", part, strength, changed, prompts, tasks))
    if points.flaws and sound_run(prompts) == WITHOUT_FLAWS:
        runs.append(ProfileRun(WITHOUT_FLAWS, FLAWS, "none", standard, (OPTIMAL,), tasks))
    for flaw in points.flaws:
        carrying = [task for task, carries in zip(tasks, carried[flaw], strict=True) if carries]
        if carrying:
            flawed = tuple(flawed_prompt(flaw, severity) for severity in points.severities)
            left_out = len(tasks) - len(carrying)
            runs.append(ProfileRun(f"flaws-{flaw}", FLAWS, flaw, standard, flawed, carrying, left_out))
    return tuple(runs)


def part_points(points: ProfilePoints) -> list[tuple[str, float]]:
    """Return each part of a law with each of its strengths but 0, which is the standard setting."""
    return [(part, strength) for part in points.parts for strength in points.strengths if strength > 0.0]


def part_setting(standard: EnvironmentSettings, part: str, strength: float) -> EnvironmentSettings:
    """Return the standard setting with a part of the law.

    Raises:
        InvalidInputError: The standard setting has a law with parts itself.
    """
    constants: dict[str, Any] = {name: getattr(standard, name) for name in CONSTANTS}
    if not isinstance(standard.law, str):
        if standard.law.parts:
            raise InvalidInputError(
                f"law is {standard.law.name!r:.100} and the axis {part!r}: expected a standard setting without parts"
            )
        constants = {name: value for name, value in standard.law.to_mapping().items() if name not in ("name", "hash")}
    law = law_at(part, strength, constants, standard.max_turns)
    usual = {name: options_of(EnvironmentSettings)[name].default for name in CONSTANTS}
    return replace(standard, **usual, law=law)


def number_settings(points: ProfilePoints, standard: EnvironmentSettings) -> tuple[EnvironmentSettings, ...]:
    """Return the different settings of the axes of numbers, the standard one first."""
    changed = [replace(standard, base=base) for base in points.reliability]
    changed += [replace(standard, max_turns=number) for number in points.turns]
    changed += [part_setting(standard, part, strength) for part, strength in part_points(points)]
    return tuple(dict.fromkeys([standard, *changed]))


def sound_run(prompts: Sequence[str]) -> str:
    """Return the name of the run that flaws are compared with: the one whose prompt holds the sound plan."""
    return STANDARD if OPTIMAL in prompts else WITHOUT_FLAWS


def flawed_prompt(flaw: str, severity: str) -> str:
    """Return the name of the prompt with a flaw."""
    return SEPARATOR.join((FLAWED, flaw, severity))


def _reliability(value: Any) -> float:
    return check_number("reliability", value, most=1.0, above=0.0)


def _strength(value: Any) -> float:
    return check_share("strength", value)


def _turns(value: object) -> int:
    turns: int = checked(Turns, "turns", value)
    return turns


def _names(what: str, values: object, known: Sequence[str]) -> tuple[str, ...]:
    listed = _listed(what, values)
    for value in listed:
        if value not in known:
            raise unknown_name(what, value, known)
    return tuple(name for name in known if name in listed)


def _listed(what: str, values: object) -> list[Any]:
    listed = list(values) if isinstance(values, Iterable) and not isinstance(values, str | Mapping) else [values]
    if not listed:
        raise InvalidInputError(f"no {what} was given: expected at least one")
    return listed


def read_profile(directory: Path) -> dict[str, Any] | None:
    """Return what `profile.json` in a folder says, or None if there is none."""
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
    try:
        there = earlier["points"]
        axes = [axis for axis in AXES if there[axis]] + there.get("parts", [])
        strengths = there.get("strengths", DEFAULT_STRENGTHS)
        merged = check_points(
            axes, there["reliability"], there["turns"], there["flaws"], there["severities"], strengths
        )
    except (KeyError, TypeError, InvalidInputError) as error:
        raise StoreError(f"{directory / PROFILE_NAME} was changed: its points cannot be read ({error})") from error
    return points.merged(merged, str(directory))


def write_profile(
    directory: Path, arguments: Mapping[str, Any], points: ProfilePoints, runs: Sequence[ProfileRun]
) -> None:
    """Write `profile.json`, and make the folder if needed; the date of the first command is kept."""
    make_folder(directory)
    earlier = read_profile(directory)
    content = {
        **(earlier or run_manifest(arguments)),
        "schema": PROFILE_SCHEMA,
        "points": points.to_mapping(),
        "runs": [run.to_mapping() for run in runs],
    }
    write_file_atomically(directory / PROFILE_NAME, encode_json(content, indent=2) + b"\n")
