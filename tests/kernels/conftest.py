"""The device that the kernels are tested on."""

import pytest
import torch


@pytest.fixture
def device() -> torch.device:
    torch.manual_seed(0)  # the inputs of a test are its own, whichever tests the process has run before
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
