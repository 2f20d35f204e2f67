"""What is kept of compiled code is thrown away when, and only when, a source changes that it is made of."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numba
import pytest

import resilisim.envs.workflow
import resilisim.simulator
from resilisim.envs.workflow.kernels import batch_loops
from resilisim.simulator.compiled import compiled_sources
from resilisim.simulator.exact import search_kernels


def sources_of(module: ModuleType) -> tuple[Path, ...]:
    return compiled_sources(Path(str(module.__file__)).resolve())


def names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def functions_of(function: Any, known: set[Any]) -> set[Any]:
    """Return a function of this package and all that it can call by name."""
    plain = getattr(function, "py_func", function)
    if hasattr(plain, "__code__") and plain.__module__.startswith("resilisim.") and plain not in known:
        known.add(plain)
        for name in names_in(plain.__code__):
            functions_of(plain.__globals__.get(name), known)
    return known


def kernels() -> list[Any]:
    packages = (resilisim.simulator, resilisim.envs.workflow)
    names = [
        one.name for package in packages for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    found = {id(value): value for name in names for value in vars(importlib.import_module(name)).values()}
    return [value for value in found.values() if hasattr(value, "py_func")]


def test_a_kernel_is_made_of_its_sources_only() -> None:
    if numba.config.DISABLE_JIT:
        pytest.skip("nothing is compiled")
    assert len(kernels()) > 10
    for kernel in kernels():
        sources = compiled_sources(Path(kernel.py_func.__code__.co_filename).resolve())
        for function in functions_of(kernel, set()):
            assert Path(function.__code__.co_filename).resolve() in sources, (kernel, function)


def test_the_step_and_the_search_are_made_of_different_sources() -> None:
    step, search = sources_of(batch_loops), sources_of(search_kernels)
    assert not [path for path in step if "exact" in path.parts]
    assert not [path for path in search if "workflow" in path.parts]
    assert {path.name for path in step} & {path.name for path in search} >= {"rules.py", "seeding.py", "compiled.py"}
