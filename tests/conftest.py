"""Shared settings: every test draws the same examples on every run, and one thread a worker."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

settings.register_profile("distdiff", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("distdiff")
torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def denormal_numbers() -> None:
    """As a process begins: building a task for a CPU flushes them, and hypothesis draws them."""
    torch.set_flush_denormal(False)
