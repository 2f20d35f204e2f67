"""What is measured, and how it is printed."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from resilisim.provenance import package_versions

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("resilisim", "numpy", "numba", "gymnasium", "scipy")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure, measured several times.

    Attributes:
        name: What was measured.
        unit: Its unit.
        values: One per run.
        target: What the median should reach, or None.
        better: Whether low or high values are good.
        note: What it is compared with, or what it is made of.
    """

    name: str
    unit: str
    values: Sequence[float]
    target: float | None = None
    better: Literal["lower", "higher"] = "lower"
    note: str = ""

    @property
    def median(self) -> float:
        """The median of the runs."""
        return statistics.median(self.values)

    @property
    def reached(self) -> bool | None:
        """Whether the median reaches the target; None without one."""
        if self.target is None:
            return None
        return self.median <= self.target if self.better == "lower" else self.median >= self.target

    def to_mapping(self) -> dict[str, Any]:
        """Return the measurement as JSON values."""
        return {
            "name": self.name,
            "unit": self.unit,
            "median": self.median,
            "values": list(self.values),
            "target": self.target,
            "better": self.better,
            "reached": self.reached,
            "note": self.note,
        }

    def to_text(self) -> str:
        """Return the measurement as lines for the terminal."""
        spread = f"{len(self.values)} runs: {_number(min(self.values))} to {_number(max(self.values))}"
        text = f"  {self.name:<66} {_number(self.median):>10} {self.unit:<12}"
        if len(self.values) > 1:
            text += f" ({spread})"
        if self.target is not None:
            sign = "<=" if self.better == "lower" else ">="
            text += f"  target {sign} {_number(self.target)}: {'reached' if self.reached else 'MISSED'}"
        return text + (f"\n      {self.note}" if self.note else "")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark.

    Attributes:
        name: Name on the command line.
        about: What it measures, in one line.
        measure: Measures; `long` asks for the long form, where there is one.
    """

    name: str
    about: str
    measure: Callable[[bool], list[Measurement]]


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured.

    Attributes:
        processor: Model of the processor.
        cores: Cores that this process may use.
        memory: Memory in GiB, or NaN.
        system: Operating system.
        python: Version of Python.
        packages: Versions of the packages that matter.
        load: Load average over the last minute when the measuring began, or NaN.
    """

    processor: str
    cores: int
    memory: float
    system: str
    python: str
    packages: Mapping[str, str] = field(default_factory=dict)
    load: float = float("nan")

    def to_text(self) -> str:
        """Return the machine as lines for the terminal."""
        packages = ", ".join(f"{name} {number}" for name, number in self.packages.items())
        lines = [
            f"{self.processor}, {self.cores} cores, {self.memory:.0f} GiB, {self.system}",
            f"Python {self.python}, {packages}",
        ]
        if self.load > 0.3:
            lines.append(
                f"the machine is not idle: load average {self.load:.1f} on {self.cores} cores before measuring"
            )
        return "\n".join(lines)


def this_machine() -> Machine:
    """Describe this machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = float("nan")
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        processor=_processor(),
        cores=cores,
        memory=memory,
        system=platform.platform(terse=True),
        python=platform.python_version(),
        packages=package_versions(PACKAGES),
        load=load_average(),
    )


def load_average() -> float:
    """Return the load average over the last minute, or NaN where there is none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def in_fresh_process(code: str, **environment: str) -> dict[str, Any]:
    """Run Python code in a new process and return the JSON object that its last line prints.

    Raises:
        RuntimeError: The code failed; the text ends with what it printed.
    """
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        check=False,
    )
    if result.returncode != 0:
        raise RuntimeError(f"a measured process failed:\n{result.stdout}\n{result.stderr}")
    answer: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return answer


def repeated(code: str, times: int, **environment: str) -> list[dict[str, Any]]:
    """Run code in several fresh processes, one after the other."""
    return [in_fresh_process(code, **environment) for _ in range(times)]


def column(answers: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return one figure of several answers."""
    return [float(answer[name]) for answer in answers]


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"
