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

from resilisim.chat.types import ChatReply, ChatRequest, ContextOverflowError, RequestRefusedError, TokenUsage
from resilisim.errors import InvalidInputError, one_line

_GREETING = [{"role": "user", "content": "Hello."}]
TEMPLATE_FIELD = "chat_template_kwargs"  # of requests, as vLLM and llama.cpp name it
_MOST_CONTEXT = 10_000_000  # tokens; tokenizers without a limit name one of thirty digits

_models: dict[tuple[Path, str], tuple[Any, Any]] = {}
_loading = threading.Lock()


class TransformersChatModel:
    """A transformers model in this process, loaded at the first request; one request is answered at a time.

    It computes on `device`, as PyTorch names it. Tools are shown if the chat template has a place for them; answers are
    text. `threads` is a setting of the process.
    """

    def __init__(
        self, name: str, path: Path, *, threads: int | None = None, context: int | None = None, device: str = "cpu"
    ) -> None:
        self.name = name
        self._path = path.resolve()
        self._threads = threads
        self._context = context
        self._device = _checked_device(device)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="resilisim-local")

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Answer a request in the model's thread; `InvalidInputError` if the folder cannot be used."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._answer, request)

    async def aclose(self) -> None:
        """Do nothing: the model stays in memory for the next request."""

    def _answer(self, request: ChatRequest) -> ChatReply:
        strange = sorted(request.extra.keys() - {TEMPLATE_FIELD})
        if strange:
            raise RequestRefusedError(
                f"{self.name} takes no field {strange[0]!r}: expected {TEMPLATE_FIELD}.NAME, as its template reads"
            )
        tokenizer, model = _loaded(self._path, self._threads, self._device)
        began = time.perf_counter()
        prompt = self._prompt(tokenizer, request)
        limit = self._context or _context_of(tokenizer, model)
        if len(prompt) >= limit:
            raise ContextOverflowError(
                f"{self.name} refuses the request: its {len(prompt)} tokens exceed the context of {limit}"
            )
        most = min(request.max_tokens or limit, limit - len(prompt))
        try:
            text, num_tokens, finish_reason = _decode(tokenizer, model, prompt, request, most)
        except Exception as error:  # tokens outside of the vocabulary, weights of other shapes, chances that are none
            raise InvalidInputError(f"local model {str(self._path)!r} cannot answer: {_words(error)}") from error
        return ChatReply(
            text,
            usage=TokenUsage(len(prompt), num_tokens),
            finish_reason=finish_reason,
            model=self._path.name,
            latency_seconds=time.perf_counter() - began,
        )

    def _prompt(self, tokenizer: Any, request: ChatRequest) -> list[int]:
        messages = [{"role": message.role, "content": message.content} for message in request.messages]
        tools = [dict(tool) for tool in request.tools] or None
        told = dict(request.extra.get(TEMPLATE_FIELD, {}))
        try:
            text = tokenizer.apply_chat_template(
                messages, **told, tools=tools, add_generation_prompt=True, tokenize=False
            )
        except Exception as error:  # a template refuses with `raise_exception`, or does not know what it is given
            raise RequestRefusedError(
                f"local model {str(self._path)!r} refuses the conversation: its chat template says: {_words(error)}"
            ) from error
        tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens


def _checked_device(name: str) -> str:
    """Return the name of a device that is there."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, ValueError) as error:  # no such kind; built without it; none at hand
        words = one_line(str(error).partition("\n")[0])
        raise InvalidInputError(f"local device {name!r} cannot be used: {words}; expected one such as cpu") from None
    return name


def _loaded(path: Path, threads: int | None, device: str) -> tuple[Any, Any]:
    """Return tokenizer and model of a folder on a device, loading them if nobody in this process has yet."""
    with _loading:
        if (path, device) not in _models:
            if threads is not None:
                torch.set_num_threads(threads)
            tokenizer, model = _load(path)
            _models[path, device] = tokenizer, model.to(device)
        return _models[path, device]


def _load(path: Path) -> tuple[Any, Any]:
    where = f"local model {str(path)!r}"
    try:
        # Weights are no pickles, and nothing in the folder is run.
        only_data = {"local_files_only": True, "trust_remote_code": False}
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(path), **only_data)
        # With what was missing told beside the model, which the library's types do not know.
        load: Any = transformers.AutoModelForCausalLM.from_pretrained
        model, loading = load(str(path), use_safetensors=True, output_loading_info=True, **only_data)
    except Exception as error:
        raise InvalidInputError(f"{where} cannot be loaded: {_words(error)}") from error
    # Without these the library takes random numbers in their place.
    lacking = [*loading.get("missing_keys", ()), *loading.get("mismatched_keys", ())]
    if lacking:
        first = lacking[0] if isinstance(lacking[0], str) else lacking[0][0]
        raise InvalidInputError(f"{where} lacks {len(lacking)} of its weights, such as {first}: its files are damaged")
    if not tokenizer.chat_template:
        raise InvalidInputError(f"{where} has no chat template: expected a model that was trained for conversations")
    try:
        tokenizer(tokenizer.apply_chat_template(_GREETING, add_generation_prompt=True, tokenize=False))
    except Exception as error:
        raise InvalidInputError(f"{where} cannot be talked to: its chat template says: {_words(error)}") from error
    _context_of(tokenizer, model)
    return tokenizer, model.eval()


def _context_of(tokenizer: Any, model: Any) -> int:
    """Return the tokens that a model reads and writes at most."""
    limit = getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
    if not isinstance(limit, int) or limit < 1:
        raise InvalidInputError(
            f"local model {model.name_or_path!r}: its context is {limit!r:.60}, expected a number of tokens"
        )
    return min(limit, _MOST_CONTEXT)


def _words(error: Exception) -> str:
    """Return what a library says of a folder, on one line; its kind where it says nothing or a bare key."""
    said = one_line(error)
    return f"{type(error).__name__}: {said}" if isinstance(error, KeyError | IndexError) or not said else said


@torch.inference_mode()
def _decode(tokenizer: Any, model: Any, prompt: list[int], request: ChatRequest, most: int) -> tuple[str, int, str]:
    """Return text, number of tokens and why the answer ended."""
    generator = torch.Generator()
    generator.manual_seed(generator.seed() if request.seed is None else request.seed)
    configured = getattr(model.generation_config, "eos_token_id", None)
    ends = {tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])} - {None}
    written: list[int] = []
    text, kept = "", None
    feed = torch.tensor([prompt], device=model.device)
    for _ in range(most):
        output = model(input_ids=feed, past_key_values=kept, use_cache=True)
        kept = output.past_key_values
        token = _choose(output.logits[0, -1].cpu(), request, generator)
        if token in ends:
            return text, len(written), "stop"
        written.append(token)
        text = tokenizer.decode(written, skip_special_tokens=True)
        places = [place for stop in request.stop if (place := text.find(stop)) >= 0]
        if places:
            return text[: min(places)], len(written), "stop"
        feed = torch.tensor([[token]], device=model.device)
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
