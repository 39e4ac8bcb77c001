"""Tools to test code that locks: a proxy that breaks connections on purpose, a loop whose clock jumps."""

from ._loop import JumpingLoop
from ._proxy import FaultProxy
from ._scripted import After, ScriptedGrantor

__all__ = ["After", "FaultProxy", "JumpingLoop", "ScriptedGrantor"]
