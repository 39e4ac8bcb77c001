"""The numbers of modes: processes of several versions tell each other of them by the server."""

import re
from pathlib import Path

import aiolocks
from aiolocks._core import modes as _modes
from aiolocks._core.modes import (
    EXCLUSIVE,
    FRONT,
    INTENT_EXCLUSIVE,
    INTENT_SHARED,
    SHARED,
    SHARED_INTENT_EXCLUSIVE,
    UPGRADE,
    UPGRADEABLE,
)

SCRIPT = (Path(aiolocks.__file__).parent / "_redis" / "lua" / "libraries" / "modes.lua").read_text(encoding="utf-8")


def beside(mode: int) -> set[int]:
    """Return what a mode may be held beside, by the scripts."""
    (table,) = re.findall(r"local BESIDE = \{(.*)\}", SCRIPT)
    return {int(number) for number in re.findall(r"'(\d*)'", table)[mode - 1]}


def test_the_scripts_have_the_modes_by_the_same_numbers() -> None:
    """Gray's table, and that of upgradeable leases."""
    assert beside(INTENT_SHARED) == {INTENT_SHARED, INTENT_EXCLUSIVE, SHARED, SHARED_INTENT_EXCLUSIVE, UPGRADEABLE}
    assert beside(INTENT_EXCLUSIVE) == {INTENT_SHARED, INTENT_EXCLUSIVE}
    assert beside(SHARED) == {INTENT_SHARED, SHARED, UPGRADEABLE}
    assert beside(SHARED_INTENT_EXCLUSIVE) == {INTENT_SHARED}
    assert beside(UPGRADEABLE) == {INTENT_SHARED, SHARED}
    assert beside(EXCLUSIVE) == set()
    assert beside(UPGRADE) == {UPGRADEABLE}
    assert f"local EXCLUSIVE, UPGRADE = {EXCLUSIVE}, {UPGRADE}" in SCRIPT


def test_no_two_modes_have_one_number() -> None:
    modes = {name: number for name, number in vars(_modes).items() if name.isupper() and name != "FRONT"}
    assert sorted(modes.values()) == list(range(1, 8))


def test_the_front_of_a_queue_is_before_every_ticket() -> None:
    """0 asks for a ticket; all others are the server's time in microseconds."""
    assert FRONT == 1
