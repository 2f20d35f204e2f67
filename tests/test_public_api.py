"""What packages export is documented with an example that runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
from pathlib import Path

import pytest

import resilisim

MOST_NAMES = 160
INDEX = Path(__file__).parent.parent / "docs" / "reference" / "api" / "index.md"


def public_names() -> dict[str, list[str]]:
    """Return what each package exports; what the package itself exports is not counted where it comes from."""
    packages = [info.name for info in pkgutil.walk_packages(resilisim.__path__, "resilisim.") if info.ispkg]
    names = {package: getattr(importlib.import_module(package), "__all__", []) for package in ["resilisim", *packages]}
    at_the_top = {id(getattr(resilisim, name)) for name in names["resilisim"]}
    for package in packages:
        module = importlib.import_module(package)
        names[package] = [name for name in names[package] if id(getattr(module, name)) not in at_the_top]
    return {package: sorted(own, key=str.casefold) for package, own in names.items() if own}


PUBLIC = public_names()
# Each public class and function, by the name under which users import it.
EXPORTED = {
    f"{package}.{name}": value
    for package, names in PUBLIC.items()
    for name in names
    for value in [getattr(importlib.import_module(package), name)]
    if inspect.isfunction(value) or (inspect.isclass(value) and not issubclass(value, BaseException))
}


def test_public_names_are_few_and_listed() -> None:
    rows = [f"| `{package}` | {', '.join(f'`{name}`' for name in names)} |" for package, names in PUBLIC.items()]
    listed = [line for line in INDEX.read_text(encoding="utf-8").splitlines() if line.startswith("| `resilisim")]
    assert listed == rows
    assert sum(map(len, PUBLIC.values())) <= MOST_NAMES


@pytest.mark.parametrize("name", EXPORTED)
def test_public_names_have_an_example_that_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = EXPORTED[name]
    examples = [test for test in doctest.DocTestFinder(recurse=False).find(value, name, globs={}) if test.examples]
    assert examples, f"{name} has no example"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    lines: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in examples:
        runner.run(test, out=lines.append)
    assert runner.failures == 0, "".join(lines)
