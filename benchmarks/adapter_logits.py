"""What llama.cpp and transformers think of the next token with the adapter of a training, and how far they differ.

`python -m benchmarks.adapter_logits runs/lm-all` reads eight of its conversations to different lengths.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from resilisim.chat.local import ADAPTER_FILE, shipped_model_path
from resilisim.datasets import read_records
from resilisim.finetuning.config import load_config
from resilisim.finetuning.examples import Encoder
from resilisim.finetuning.model import WEIGHTS_FILE, add_adapter, load_base, set_adapter
from resilisim.finetuning.training import DATA_FOLDER
from tests.finetuning.logits import of_llama_cpp, of_transformers

LENGTHS = range(90, 301, 30)  # tokens read of each conversation
LIKELIEST = 100


def main(run: Path) -> None:
    """Print the differences of log-probabilities over the whole vocabulary."""
    base = shipped_model_path()
    model = add_adapter(load_base(base, "float32"), load_config())
    set_adapter(model, load_file(run / WEIGHTS_FILE))
    encoder, vocabulary = Encoder(base), model.config.vocab_size
    records = islice(read_records(run / DATA_FOLDER, "train"), len(LENGTHS))
    read = [example.tokens.tolist() for (example,) in encoder.samples(records)]
    prompts = [tokens[:length] for tokens, length in zip(read, LENGTHS, strict=False)]
    letter = encoder._tokenizer.encode("a").ids[0]
    played = of_llama_cpp(base, run / ADAPTER_FILE, prompts, vocabulary, letter, vocabulary=vocabulary)
    expected = of_transformers(model.eval(), prompts)
    differences = np.abs(played - expected)
    likeliest = np.take_along_axis(differences, np.argsort(-expected, axis=1)[:, :LIKELIEST], axis=1)
    print(f"{len(prompts)} prompts: largest difference {differences.max():.2f}, mean {differences.mean():.2f}")
    print(f"largest of the {LIKELIEST} likeliest tokens {likeliest.max():.2f}")
    print(f"same likeliest token: {np.count_nonzero(played.argmax(axis=1) == expected.argmax(axis=1))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
