"""A GPU that runs out of memory, acted on a CPU: half as much at once, the same gradient, one warning."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from resilisim.errors import InvalidInputError
from resilisim.finetuning import training
from resilisim.finetuning.adapted_model import ADAPTER_WEIGHTS_FILE
from resilisim.finetuning.examples import Encoder
from resilisim.finetuning.lessons import drawn_tasks
from resilisim.finetuning.memory import SideBySide
from resilisim.finetuning.sampling import Sampler, _Table
from resilisim.finetuning.training import train
from tests.finetuning.test_finetuning import SMALL
from tests.finetuning.test_sampling import OWN, with_weights


def held(most):
    """Work that memory holds for at most so many at once."""

    def work(size):
        if size > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return size

    return work


@pytest.mark.parametrize(("size", "most", "expected"), [(8, 8, 8), (8, 7, 4), (8, 1, 1), (7, 3, 2), (1, 1, 1)])
def test_it_is_halved_until_memory_holds_it(size, most, expected):
    side_by_side = SideBySide("conversations", size, "micro_batch")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert side_by_side.attempt(held(most), 100) == expected
        assert side_by_side.attempt(held(most), 100) == expected  # it stays
        assert side_by_side.attempt(held(1), 100) == 1
    words = [str(one.message) for one in caught]
    assert len(words) == (1 if size > 1 else 0)
    if expected < size:
        assert words == [
            f"the GPU's memory does not hold {size} conversations side by side: continues with {expected} (micro_batch)"
        ]


def test_where_memory_does_not_hold_one_a_line_says_so():
    with pytest.raises(InvalidInputError, match="does not hold even one of the conversations"):
        SideBySide("conversations", 4, "micro_batch").attempt(held(0), 3)


def test_fewer_than_there_could_be_are_no_reason_to_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SideBySide("episodes", 100, "batch_size").attempt(held(3), 3) == 3


@pytest.mark.long
def test_a_training_that_runs_out_of_memory_learns_the_same(tiny_base, tmp_path, monkeypatch):
    config = SMALL.model_copy(update={"batch_size": 4, "epochs": 1, "evaluate_every": 0})
    train(config.model_copy(update={"micro_batch": 1}), tmp_path / "small", None, tiny_base)
    computed, sizes = training.log_probabilities, []

    def limited(model, samples, *where):
        said = computed(model, samples, *where)
        sizes.append(len(samples))
        if len(samples) > 1:  # after a part of the work is done, as memory runs out
            torch.autograd.backward(said.sum())
            raise torch.OutOfMemoryError("CUDA out of memory")
        return said

    monkeypatch.setattr(training, "log_probabilities", limited)
    with pytest.warns(UserWarning, match="does not hold 4 conversations side by side: continues with 1") as caught:
        train(config.model_copy(update={"micro_batch": 4}), tmp_path / "large", None, tiny_base)
    assert len([one for one in caught if "side by side" in str(one.message)]) == 1
    assert sizes[:3] == [4, 2, 1]
    assert (tmp_path / "large" / ADAPTER_WEIGHTS_FILE).read_bytes() == (
        tmp_path / "small" / ADAPTER_WEIGHTS_FILE
    ).read_bytes()


def test_episodes_that_memory_does_not_hold_are_played_in_parts(tiny_base, monkeypatch):
    sampler = Sampler(with_weights(tiny_base)._model, Encoder(tiny_base), OWN)
    openings = sampler.openings(drawn_tasks(OWN, "train", 1))[:3]
    whole, rows, begun = sampler.play(openings, "a"), [], _Table.__init__

    def limited(table, model, num_rows, device):
        rows.append(num_rows)
        if num_rows > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        begun(table, model, num_rows, device)

    monkeypatch.setattr(_Table, "__init__", limited)
    with pytest.warns(UserWarning, match="does not hold 3 episodes side by side: continues with 2"):
        parts = sampler.play(openings, "a")
    assert rows == [3, 2, 1]
    for one, two in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one.tokens, two.tokens)
