"""What packages export is documented with an example that runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
from pathlib import Path
from typing import Any

import pytest

import resilisim


def exported_names() -> dict[str, Any]:
    """Return each class and function that a package exports, by the name under which users import it."""
    packages = ["resilisim"]
    packages += [info.name for info in pkgutil.walk_packages(resilisim.__path__, "resilisim.") if info.ispkg]
    found: dict[int, tuple[str, Any]] = {}
    for package in packages:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if inspect.isfunction(value) or (inspect.isclass(value) and not issubclass(value, BaseException)):
                found[id(value)] = (f"{package}.{name}", value)
    return dict(found.values())


EXPORTED = exported_names()


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
