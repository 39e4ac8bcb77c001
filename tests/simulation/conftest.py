"""What a simulated crash leaves behind: none of it may be taken for a fault of a test."""

import gc
import warnings
from collections.abc import Iterator

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """A process that crashes runs none of its destructors; here they run, in a loop that is closed."""
    item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """A process that crashes closes nothing, and Python complains of that in whatever test it notices."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
