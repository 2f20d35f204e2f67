"""What llama.cpp and transformers think of the next token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from resilisim.chat.local.gguf import Loading, _load


def of_llama_cpp(
    base: Path,
    adapter: Path | None,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    letter: int,
    context: int = 512,
    vocabulary: int | None = None,
) -> NDArray[np.float64]:
    """Return log-probabilities, (num_prompts, vocabulary); NaN of all but the likeliest `num_tokens` of each."""
    server = _load(Loading(base, context=context, threads=1, slots=1, adapter=adapter))
    found = np.full((len(prompts), vocabulary or num_tokens), np.nan)
    for row, prompt in enumerate(prompts):
        # What is sampled has to be a whole character, or nothing is told; the probabilities are those before the bias.
        body = {"prompt": prompt, "n_predict": 1, "n_probs": num_tokens, "logit_bias": [[letter, 1000.0]], "seed": 0}
        answer = server.handle_completions(body)
        for entry in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
            found[row, entry["id"]] = entry["logprob"]
    return found


@torch.inference_mode()
def of_transformers(model: Any, prompts: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """Return the same."""
    rows = [model(input_ids=torch.tensor([prompt])).logits[0, -1].float().log_softmax(-1).numpy() for prompt in prompts]
    return np.stack(rows)
