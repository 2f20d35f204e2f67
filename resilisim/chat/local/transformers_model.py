"""Models in transformers folders, decoded token by token: greedily, or with draws from a generator of their own.

The library's own `generate` draws from PyTorch's global state; here equal seeds give equal answers whatever else runs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers

from resilisim.chat.types import ChatReply, ChatRequest, ContextOverflowError, TokenUsage
from resilisim.errors import InvalidInputError, one_line

_models: dict[Path, tuple[Any, Any]] = {}
_loading = threading.Lock()


class TransformersChatModel:
    """A transformers model in this process, loaded at the first request; one request is answered at a time.

    Tools are shown if the chat template has a place for them; answers are text. `threads` is a setting of the process.
    """

    def __init__(self, name: str, path: Path, *, threads: int | None = None, context: int | None = None) -> None:
        self.name = name
        self._path = path.resolve()
        self._threads = threads
        self._context = context
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="resilisim-local")

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Answer a request in the model's thread; `InvalidInputError` if the folder cannot be used."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._answer, request)

    async def aclose(self) -> None:
        """Do nothing: the model stays in memory for the next request."""

    def _answer(self, request: ChatRequest) -> ChatReply:
        tokenizer, model = _loaded(self._path, self._threads)
        began = time.perf_counter()
        prompt = self._prompt(tokenizer, request)
        limit = self._context or getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
        if len(prompt) >= limit:
            raise ContextOverflowError(
                f"{self.name} refuses the request: its {len(prompt)} tokens exceed the context of {limit}"
            )
        most = min(request.max_tokens or limit, limit - len(prompt))
        text, num_tokens, finish_reason = _decode(tokenizer, model, prompt, request, most)
        return ChatReply(
            text,
            usage=TokenUsage(len(prompt), num_tokens),
            finish_reason=finish_reason,
            model=self._path.name,
            latency_seconds=time.perf_counter() - began,
        )

    def _prompt(self, tokenizer: Any, request: ChatRequest) -> list[int]:
        messages = [{"role": message.role, "content": message.content} for message in request.messages]
        text = tokenizer.apply_chat_template(
            messages, tools=[dict(tool) for tool in request.tools] or None, add_generation_prompt=True, tokenize=False
        )
        tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens


def _loaded(path: Path, threads: int | None) -> tuple[Any, Any]:
    """Return tokenizer and model of a folder, loading them if nobody in this process has yet."""
    with _loading:
        if path not in _models:
            if threads is not None:
                torch.set_num_threads(threads)
            _models[path] = _load(path)
        return _models[path]


def _load(path: Path) -> tuple[Any, Any]:
    try:
        # Weights are no pickles, and nothing in the folder is run.
        only_data = {"local_files_only": True, "trust_remote_code": False}
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(path), **only_data)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(str(path), use_safetensors=True, **only_data)
    except (OSError, ValueError, KeyError) as error:
        raise InvalidInputError(f"local model {str(path)!r} cannot be loaded: {one_line(error)}") from error
    if not tokenizer.chat_template:
        expected = "expected a model that was trained for conversations"
        raise InvalidInputError(f"local model {str(path)!r} has no chat template: {expected}")
    return tokenizer, model.eval()


@torch.inference_mode()
def _decode(tokenizer: Any, model: Any, prompt: list[int], request: ChatRequest, most: int) -> tuple[str, int, str]:
    """Return text, number of tokens and why the answer ended."""
    generator = torch.Generator()
    generator.manual_seed(generator.seed() if request.seed is None else request.seed)
    configured = getattr(model.generation_config, "eos_token_id", None)
    ends = {tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])} - {None}
    written: list[int] = []
    text, kept = "", None
    feed = torch.tensor([prompt])
    for _ in range(most):
        output = model(input_ids=feed, past_key_values=kept, use_cache=True)
        kept = output.past_key_values
        token = _choose(output.logits[0, -1], request, generator)
        if token in ends:
            return text, len(written), "stop"
        written.append(token)
        text = tokenizer.decode(written, skip_special_tokens=True)
        places = [place for stop in request.stop if (place := text.find(stop)) >= 0]
        if places:
            return text[: min(places)], len(written), "stop"
        feed = torch.tensor([[token]])
    return text, len(written), "length"


def _choose(logits: torch.Tensor, request: ChatRequest, generator: torch.Generator) -> int:
    temperature = 1.0 if request.temperature is None else request.temperature
    if temperature == 0.0:
        return int(logits.argmax())
    chances = torch.softmax(logits.double() / temperature, dim=-1)
    if request.top_p is not None and request.top_p < 1.0:
        ordered, places = chances.sort(descending=True)
        beyond = ordered.cumsum(0) - ordered >= request.top_p  # the first one always stays
        chances = chances.index_fill(0, places[beyond], 0.0)
    return int(torch.multinomial(chances, 1, generator=generator))
