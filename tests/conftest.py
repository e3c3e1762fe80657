"""What holds for all tests."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

# Tests run side by side and their problems are tiny: more threads only get in each other's way.
torch.set_num_threads(1)

# A busy machine is no reason to fail.
settings.register_profile("fedmeta", deadline=None, max_examples=50)
settings.load_profile("fedmeta")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Weights that a test leaves to PyTorch are the same in every run."""
    torch.manual_seed(0)
