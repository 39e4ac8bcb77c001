"""Tests of a library that has a defect, by `pytest -p tests.support.planted`: AIOLOCKS_DEFECT names it.

Some must fail. `tests.simulation.catalogue` has the names.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.simulation.catalogue import catalogue
from tests.support.garden import Garden


@pytest.fixture(scope="session", autouse=True)
def _planted() -> Iterator[None]:
    known, name = catalogue(), os.environ["AIOLOCKS_DEFECT"]
    if name not in known:
        raise pytest.UsageError(f"no such defect: {name!r}; python -m tests.simulation.catalogue prints their names")
    with ExitStack() as undo:
        known[name](Garden(undo))
        yield
