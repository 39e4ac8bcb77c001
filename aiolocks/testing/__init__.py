"""Tools to test code that locks: a proxy that breaks connections on purpose, a loop whose clock jumps, and checkers.

A `Recorder` writes down each lease, and the checkers report what is wrong with the history.
"""

from ._checkers import (
    check_ended,
    check_exclusion,
    check_fencing,
    check_linearizable,
    check_residue,
    keys_left,
    stale_writes,
)
from ._clock import Clock
from ._history import HistoryEvent, Recorder, read_history
from ._loop import JumpingLoop
from ._proxy import FaultProxy
from ._scripted import After, ScriptedGrantor
from ._trouble import lose, lose_name, outage

__all__ = [
    "After",
    "Clock",
    "FaultProxy",
    "HistoryEvent",
    "JumpingLoop",
    "Recorder",
    "ScriptedGrantor",
    "check_ended",
    "check_exclusion",
    "check_fencing",
    "check_linearizable",
    "check_residue",
    "keys_left",
    "lose",
    "lose_name",
    "outage",
    "read_history",
    "stale_writes",
]
