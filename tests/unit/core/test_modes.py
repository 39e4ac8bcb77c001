"""The numbers of modes: processes of several versions tell each other of them by the server."""

import re
from pathlib import Path

import aiolocks
from aiolocks._core import modes as _modes


def test_an_upgrade_is_beside_the_upgradeable_lease_alone() -> None:
    """The scripts' tests try all other pairs, but cannot have two upgrades at once."""
    script = Path(aiolocks.__file__).parent / "_redis/lua/libraries/modes.lua"
    (table,) = re.findall(r"local BESIDE = \{(.*)\}", script.read_text(encoding="utf-8"))
    assert re.findall(r"'(\d*)'", table)[_modes.UPGRADE - 1] == str(_modes.UPGRADEABLE)


def test_no_two_modes_have_one_number_and_the_front_of_a_queue_is_before_every_ticket() -> None:
    """0 asks for a ticket; all others are the server's time in microseconds."""
    modes = {
        name: number for name, number in vars(_modes).items() if name.isupper() and name not in ("FRONT", "MODE_NAMES")
    }
    assert sorted(modes.values()) == list(range(1, 8))
    assert _modes.FRONT == 1
