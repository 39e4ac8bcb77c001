"""Defects of the rules that tests of other folders find: each test fails by its own assertion."""

import pytest

from tests.simulation.attached import ATTACHED
from tests.support.teeth import try_them

pytestmark = [pytest.mark.redis, pytest.mark.slow]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "path", sorted({attached.path for attached in ATTACHED.values() if not attached.breaks_servers})
)
def test_each_defect_fails_the_test_that_it_is_attached_to(path: str) -> None:
    try_them(path)
