"""The decoder of our own computes what transformers and peft compute, and its gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from resilisim.finetuning import decoder as decoding
from resilisim.finetuning.adapted_model import add_adapter, load_base
from resilisim.finetuning.decoder import Decoder
from resilisim.finetuning.examples import Example, packed
from tests.finetuning.test_finetuning import NUM_TOKENS, SMALL

# Two that begin alike behind the first, one of a block exactly, and one that is longer than a block.
LENGTHS, SHARED = (90, 140, 128, 300), 60


def examples():
    draws = np.random.default_rng(3)
    made = [Example(draws.integers(0, NUM_TOKENS, size), np.arange(size) >= SHARED + 9) for size in LENGTHS]
    made[1].tokens[:SHARED] = made[0].tokens[:SHARED]
    made[2].tokens[:SHARED] = made[0].tokens[:SHARED]
    return made


def adapted(path, precision):
    model = add_adapter(load_base(path, precision), SMALL)
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = 0.1 * torch.randn(weight.shape, generator=generator)
    return model


def gradient(model):
    found = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.requires_grad]).double()
    model.zero_grad()
    return found


def peft_gradient(path, precision):
    """Return log p and the gradient of the learned words, each example by itself, under autocast as peft trains."""
    model, said = adapted(path, precision), []
    for example in examples():
        tokens = torch.from_numpy(example.tokens)[None]
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            logits = model(input_ids=tokens).logits[0, :-1]
        chances = torch.log_softmax(logits.float(), -1).gather(-1, tokens[0, 1:, None]).squeeze(-1)
        one = chances[torch.from_numpy(example.is_learned[1:])].sum()
        one.backward()
        said.append(one.item())
    return torch.tensor(said), gradient(model)


def own_gradient(path, precision):
    model, together = adapted(path, precision), packed(examples())
    assert [span.shared for span in together.spans] == [0, SHARED, SHARED, 0]
    decoder = Decoder(model)
    logits = decoder.logits(decoder.hidden(together.tokens, together.spans)[together.places]).float()
    chances = torch.log_softmax(logits, -1).gather(-1, together.labels[:, None]).squeeze(-1)
    said = torch.zeros(len(LENGTHS)).index_add(0, together.rows, chances)
    said.sum().backward()
    return said.detach(), gradient(model)


@pytest.mark.parametrize("attention", ["in blocks", "side by side"])
def test_log_probabilities_and_gradients_are_those_of_transformers_and_peft(tiny_base, monkeypatch, attention):
    if attention == "side by side":  # as on a GPU
        monkeypatch.setattr(decoding._BlockAttention, "apply", decoding._attended_side_by_side)
    said, expected = peft_gradient(tiny_base, "float32")
    own, found = own_gradient(tiny_base, "float32")
    torch.testing.assert_close(own, said, rtol=1e-5, atol=1e-3)
    assert float((found - expected).norm() / expected.norm()) < 1e-4


def test_in_bfloat16_gradients_err_no_more_than_those_of_peft_do(tiny_base):
    _, exact = peft_gradient(tiny_base, "float32")
    errors = [float((found(tiny_base, "bfloat16")[1] - exact).norm()) for found in (peft_gradient, own_gradient)]
    assert errors[1] < 1.5 * errors[0] < 0.5 * float(exact.norm())


def test_the_model_plays_on_by_the_weights_that_the_decoder_took_over(tiny_base):
    model, tokens = adapted(tiny_base, "float32"), torch.arange(40)[None]
    with torch.no_grad():
        before = model(input_ids=tokens).logits
        Decoder(model)
        torch.testing.assert_close(model(input_ids=tokens).logits, before, rtol=1e-5, atol=1e-5)
