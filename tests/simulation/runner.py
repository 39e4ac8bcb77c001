"""Runs many seeds, in several processes, and adds up what they met."""

import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

from .coverage import missing
from .defects import DEFECTS, finds, in_cluster, kinds_for, planted
from .run import Outcome, run
from .workload import MARKED

_BATCH = 20


@dataclass(slots=True)
class Total:
    """What many runs came to."""

    runs: int = 0
    failed: list[Outcome] = field(default_factory=list[Outcome])
    met: Counter[str] = field(default_factory=Counter[str])
    took: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.runs += 1
        self.met += outcome.met
        if outcome.violations:
            self.failed.append(outcome)


def command(seed: int, defect: str | None = None, *, cluster: bool = False, liveness: bool = False) -> str:
    more = (f" --defect {defect}" if defect else " --cluster" if cluster else "") + (" --liveness" if liveness else "")
    return f"python -m tests.simulation --seed {seed} --trace{more}"


def keep() -> None:
    """Keep what has been loaded out of the collections between runs, which otherwise take as long as a run."""
    gc.collect()
    gc.freeze()


def run_batch(job: tuple[list[int], str | None, bool]) -> list[Outcome]:
    """Run some seeds in this process, and collect what each leaves."""
    seeds, defect, cluster = job
    outcomes = []
    keep()
    with planted(defect):
        for seed in seeds:
            outcomes.append(run(seed, kinds=kinds_for(defect), cluster=cluster or in_cluster(defect)))
            gc.collect()
    return outcomes


def run_seeds(
    seeds: Iterable[int], *, jobs: int = 1, defect: str | None = None, cluster: bool = False, until_failed: int = 10,
    longest: float | None = None,
) -> Total:  # fmt: skip
    """Run *seeds*, until that many have failed, or for about *longest* real seconds and all is met."""
    total, begun = Total(), time.monotonic()
    seeds = list(seeds)
    batches = [(seeds[at : at + _BATCH], defect, cluster) for at in range(0, len(seeds), _BATCH)]
    with ExitStack() as undo:
        several = undo.enter_context(multiprocessing.get_context("spawn").Pool(jobs)) if jobs > 1 else None
        for outcomes in several.imap(run_batch, batches) if several is not None else map(run_batch, batches):
            for outcome in outcomes:
                total.add(outcome)
            late = longest is not None and time.monotonic() - begun > longest
            if len(total.failed) >= until_failed or (late and not missing(total.met, cluster=cluster)):
                break
    total.took = time.monotonic() - begun
    return total


@dataclass(slots=True)
class Found:
    """What came of looking for a planted defect: how many runs a check of its own failed, and how many others."""

    runs: int = 0
    hits: int = 0
    others: int = 0
    first: Outcome | None = None
    text: str = ""


def find(defect: str, seeds: range, *, jobs: int = 1, enough: int = 1) -> Found:
    """Run *seeds* with *defect* until its own checks have found it in *enough* of them."""
    if DEFECTS[defect].marks:
        seeds = range(MARKED + seeds.start, MARKED + seeds.stop)
    found, start, size = Found(), seeds.start, jobs  # a few at first, as most are found by these
    while start < seeds.stop and found.hits < enough:
        total = run_seeds(range(start, min(start + size, seeds.stop)), jobs=jobs, defect=defect, until_failed=10**9)
        start, size = start + size, min(2 * size, _BATCH * jobs)
        found.runs += total.runs
        for outcome in total.failed:
            text = next((text for text in outcome.violations if finds(defect, text)), None)
            if text is None:
                found.others += 1
                continue
            found.hits += 1
            if found.first is None:
                found.first, found.text = outcome, text
    return found
