"""C5: what is wrong on purpose must be caught on real servers too, each by a test for the fault that it bites at."""

import pytest

from tests.simulation.attached import ATTACHED
from tests.support.teeth import try_them


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("path", sorted({attached.path for attached in ATTACHED.values() if attached.breaks_servers}))
def test_a_planted_defect_fails_the_test_for_the_fault_that_it_bites_at(path: str) -> None:
    try_them(path)
