"""What a simulated crash leaves is collected within the test that simulated it."""

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """A process that crashes closes nothing, and Python complains of that in whatever test it notices."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
