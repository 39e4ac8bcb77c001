"""What a simulated crash leaves is collected within the test that simulated it."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def collected() -> Iterator[None]:
    """A process that crashes closes nothing, and Python complains of that wherever it notices."""
    yield
    gc.collect()
