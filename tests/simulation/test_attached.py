"""Planted defects that a test finds: each test fails by its own assertion."""

import pytest

from tests.simulation.attached import ATTACHED
from tests.support.teeth import try_them


@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "folder", sorted({attached.folder for attached in ATTACHED.values() if not attached.breaks_servers})
)
def test_each_defect_fails_the_test_that_it_is_attached_to(folder: str) -> None:
    try_them(folder)


def test_every_rule_has_a_test_that_fails_without_it() -> None:
    rules = [
        *(f"W{number}" for number in (*range(1, 14), 15, 21, *range(25, 28))),
        *(f"I{number}" for number in range(1, 5)),
    ]
    assert {name.split()[0] for name in ATTACHED if name[0] in "WI"} == set(rules)
