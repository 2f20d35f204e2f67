"""The base model with an adapter: read from a GGUF file, LoRA on every linear layer, and written for llama.cpp.

LoRA adds B A x * alpha / rank to what a frozen matrix makes of x (Hu et al., arXiv:2106.09685).
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save as encode_tensors

from resilisim.chat.local import ADAPTER_FILE
from resilisim.chat.local.gguf import BASE_KEY, model_fingerprint
from resilisim.errors import InvalidInputError
from resilisim.finetuning.config import FinetuningConfig
from resilisim.provenance import encode_json
from resilisim.run_folder import temporary_path, write_file_atomically

# What peft calls its files, so that it loads them, too.
ADAPTER_WEIGHTS_FILE, ADAPTER_CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
_ALPHA: Final = "adapter.lora.alpha"  # the scale times the rank
_PREFIX: Final = "base_model.model.model.layers."
# The layers of Llama in transformers and in GGUF files.
_LAYERS: Final = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def load_base(path: Path, precision: str = "float32") -> Any:
    """Return the model of a GGUF file as transformers has it, its weights no longer quantised and frozen."""
    import transformers  # takes seconds, as peft below does

    with _quiet():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=torch.float32
        )
    if model.config.model_type != "llama":
        raise InvalidInputError(f"base model {path.name!r} is a {model.config.model_type}: expected a llama")
    return model.to(getattr(torch, precision)).requires_grad_(False)


def add_adapter(base: Any, config: FinetuningConfig) -> Any:
    """Return a base model with a fresh adapter, whose first weights the seed decides."""
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        lora = LoraConfig(
            r=config.rank, lora_alpha=config.alpha, target_modules=list(_targets()), task_type="CAUSAL_LM"
        )
        with _quiet():
            model: Any = get_peft_model(base, lora)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model


def adapter_arrays(model: Any) -> dict[str, NDArray[np.float32]]:
    """Return the adapter's matrices by peft's names, in order: A is (rank, inputs), B is (outputs, rank)."""
    from peft import get_peft_model_state_dict

    tensors = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: tensors[name].detach().float().cpu().numpy() for name in sorted(tensors)}


def check_size(path: Path, expected_rank: int, expected_alpha: int) -> None:
    """Refuse an adapter that does not have the rank and the scale of a training."""
    reader = gguf.GGUFReader(path)
    rank = max((tensor.data.shape[0] for tensor in reader.tensors if tensor.name.endswith("lora_a")), default=0)
    alpha = reader.fields[_ALPHA].contents()
    if (rank, alpha) != (expected_rank, expected_alpha):
        raise InvalidInputError(
            f"adapter {str(path)!r} has rank {rank} and alpha {alpha:g}: expected {expected_rank} and {expected_alpha}"
        )


def start_from(model: Any, path: Path) -> None:
    """Put the matrices of another training's adapter in place of a fresh one's; rank and scale have to be the same."""
    config = model.peft_config["default"]
    check_size(path, config.r, config.lora_alpha)
    arrays, own = read_gguf_adapter(path, _heads(model)), adapter_arrays(model)
    if {name: array.shape for name, array in arrays.items()} != {name: array.shape for name, array in own.items()}:
        raise InvalidInputError(f"adapter {str(path)!r} has other matrices than this model's linear layers")
    set_adapter(model, arrays)


def set_adapter(model: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Put matrices, named as in `adapter_arrays`, in place of the adapter's."""
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(model, {name: torch.tensor(array) for name, array in arrays.items()})


def write_adapter(folder: Path, model: Any, base_path: Path) -> None:
    """Write an adapter into a folder: for peft, and as a GGUF file, by which `local:FOLDER` plays."""
    arrays, config = adapter_arrays(model), model.peft_config["default"]
    tensors = {name: torch.from_numpy(array).half().contiguous() for name, array in arrays.items()}
    write_file_atomically(folder / ADAPTER_WEIGHTS_FILE, encode_tensors(tensors, metadata={"format": "pt"}))
    described = {**config.to_dict(), "base_model_name_or_path": base_path.name, "inference_mode": True}
    plain = {name: sorted(value) if isinstance(value, set) else value for name, value in sorted(described.items())}
    write_file_atomically(folder / ADAPTER_CONFIG_FILE, encode_json(plain, indent=2) + b"\n")
    write_gguf_adapter(folder / ADAPTER_FILE, arrays, config.lora_alpha, _heads(model), model_fingerprint(base_path))


def _heads(model: Any) -> tuple[int, int]:
    return model.config.num_attention_heads, model.config.num_key_value_heads


def write_gguf_adapter(
    path: Path, arrays: Mapping[str, NDArray[Any]], alpha: float, heads: tuple[int, int], base: str
) -> None:
    """Write an adapter of a Llama as llama.cpp reads it, in 16 bit floats.

    Args:
        path: The file, replaced as a whole.
        arrays: Its matrices, as in `adapter_arrays`.
        alpha: Its scale times its rank.
        heads: Attention heads of queries, and of keys and values.
        base: What it was trained on (`model_fingerprint`).
    """
    temporary = temporary_path(path)
    writer = gguf.GGUFWriter(temporary, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32(_ALPHA, float(alpha))
    writer.add_string(BASE_KEY, base)
    for name, array in arrays.items():
        writer.add_tensor(*_in_gguf(name, array, heads))
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_gguf_adapter(path: Path, heads: tuple[int, int]) -> dict[str, NDArray[np.float32]]:
    """Return the matrices of an adapter by peft's names, as `adapter_arrays`."""
    reader, arrays = gguf.GGUFReader(path), {}
    modules = {short: module for module, short in _LAYERS.items()}
    for tensor in reader.tensors:
        _, layer, short, _, part = tensor.name.split(".")
        name = f"{_PREFIX}{layer}.{modules[short]}.lora_{part.removeprefix('lora_').upper()}.weight"
        array = np.array(tensor.data, dtype=np.float32)
        if part == "lora_b" and short in ("attn_q", "attn_k"):
            array = _interleaved(array, heads[short == "attn_k"], back=True)
        arrays[name] = array
    return arrays


def _in_gguf(name: str, array: NDArray[Any], heads: tuple[int, int]) -> tuple[str, NDArray[np.float16]]:
    """Return a matrix under its name in GGUF; rows of B as llama.cpp orders the outputs that it rotates."""
    layer, _, rest = name.removeprefix(_PREFIX).partition(".")
    module, _, part = rest.removesuffix(".weight").rpartition(".lora_")
    if module not in _LAYERS or not layer.isdigit():
        raise InvalidInputError(f"adapter matrix {name!r} belongs to no linear layer of a Llama")
    if part == "B" and module in ("self_attn.q_proj", "self_attn.k_proj"):
        array = _interleaved(array, heads[module == "self_attn.k_proj"])
    return f"blk.{layer}.{_LAYERS[module]}.weight.lora_{part.lower()}", array.astype(np.float16)


def _interleaved(rows: NDArray[Any], heads: int, back: bool = False) -> NDArray[Any]:
    """Reorder rows from halves of each head (transformers) to pairs (llama.cpp), as both rotate positions, or back."""
    half = rows.shape[0] // heads // 2
    cut = rows.reshape(heads, *((half, 2) if back else (2, half)), *rows.shape[1:])
    return np.ascontiguousarray(cut.swapaxes(1, 2).reshape(rows.shape))


def _targets() -> Iterator[str]:
    return (name.partition(".")[2] for name in _LAYERS)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from drawing bars of its own while it reads a model."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
