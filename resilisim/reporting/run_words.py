"""What a run is called wherever it is shown: its name, when it began, who played, and under which law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from resilisim.errors import count_of
from resilisim.simulator.law import BENCHMARK, CONSTANTS, PARTS

MOST_NAMES = 4


def run_name(directory: Path | str) -> str:
    """Return the name of a run's folder."""
    path = Path(directory).resolve()
    return path.name or str(path)


def begun_on(manifest: Mapping[str, Any]) -> str:
    """Return when a run began, as its manifest has it ("2026-03-01 14:05 UTC"); nothing if it says none that is one."""
    try:
        return f"{datetime.fromisoformat(str(manifest.get('created'))):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return ""


def names_of(policies: Sequence[str]) -> str:
    """Return the names of a few policies, or how many they are."""
    return ", ".join(policies) if len(policies) <= MOST_NAMES else count_of(len(policies), "policy", "policies")


def law_words(arguments: Mapping[str, Any]) -> str:
    """Return under which law a run was played, by its arguments: a name, the parts, or the constants."""
    environment = arguments.get("environment", {})
    world = environment.get("world")
    law = environment.get("law")
    where = "" if world is None else f"world {world}, "
    if isinstance(law, Mapping):
        parts = [name.replace("_", " ") for name in PARTS if law.get(name)]
        named = str(law.get("name", "unnamed"))
        words = f"law {named}" if named != "unnamed" else "own law"
        return where + words + (f" ({', '.join(parts)})" if parts else "")
    constants = [environment.get(name) for name in CONSTANTS]
    if None in constants:
        return where + (f"law {law}" if law is not None else "law not known")
    if constants == [getattr(BENCHMARK, name) for name in CONSTANTS]:
        return f"{where}benchmark law"
    base, *factors = constants
    if factors == [1.0] * len(factors):
        sure = base == 1.0
        return where + ("no call fails by chance" if sure else f"each call succeeds with probability {base:g}")
    return where + ", ".join(
        f"{name.replace('_', ' ')} {value:g}" for name, value in zip(CONSTANTS, constants, strict=True)
    )
