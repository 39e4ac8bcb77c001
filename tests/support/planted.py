"""Tests of a library that has a defect, by `pytest -p tests.support.planted`: AIOLOCKS_DEFECT names it.

They must fail. See tests/simulation/defects.py for what there is to plant.
"""

import os
from collections.abc import Iterator

import pytest

from tests.simulation.defects import planted


@pytest.fixture(scope="session", autouse=True)
def _planted() -> Iterator[None]:
    with planted(os.environ["AIOLOCKS_DEFECT"]):
        yield
