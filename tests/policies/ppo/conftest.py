"""Fixtures of the tests of trained policies."""

from __future__ import annotations

import pytest
import torch
from networks import FakeActor, save_random

from resilisim.policies.ppo import policy as policy_module


@pytest.fixture(autouse=True)
def _one_thread():
    """Small batches: one thread, and the same weights and draws every time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A checkpoint of an untrained network."""
    return save_random(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def acting_as(monkeypatch):
    """Let every policy act by a function instead of its network."""
    return lambda score: monkeypatch.setattr(policy_module, "WorkflowActor", FakeActor(score))
