"""Judges the server's clock and latency by the TTL. `sample` measures; the other functions are pure."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from redis.exceptions import ResponseError

from ..._core.timing import RENEWALS_PER_TTL, margin
from ._finding import Finding, Verdict, unknown

_SAMPLES = 30
_MAX_SECONDS = 2.0
"""Maximum time for all samples in seconds; a slow server gets fewer samples."""

_MIN_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """One question for the time: this host's wall clock before and after, and the server's answer."""

    before: float
    server: float
    after: float
    took: float
    """Seconds by the monotonic clock."""


async def sample(client: Any) -> list[Sample]:
    """Ask for the server's time repeatedly. Return nothing if this user may not ask."""
    samples: list[Sample] = []
    began = time.monotonic()
    try:
        await client.time()  # the first question may have to connect
        while len(samples) < _MIN_SAMPLES or (len(samples) < _SAMPLES and time.monotonic() < began + _MAX_SECONDS):
            before, left = time.time(), time.monotonic()
            seconds, micros = await client.time()
            took, after = time.monotonic() - left, time.time()
            samples.append(Sample(before, seconds + micros / 1e6, after, took))
    except ResponseError:
        return []
    return samples


def offset(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return by how many seconds the server's clock is ahead, and the possible error of that.

    The server read its clock between question and answer, so each sample bounds the difference from both sides, and the
    truth is within all bounds. If they contradict each other, a clock was set in between: the tightest sample counts.
    """
    least = max(one.server - one.after for one in samples)
    most = min(one.server - one.before for one in samples)
    if least > most:
        tightest = min(samples, key=lambda one: one.after - one.before)
        least, most = tightest.server - tightest.after, tightest.server - tightest.before
    return (least + most) / 2, abs(most - least) / 2


def clock(samples: Sequence[Sample], ttl: float) -> Finding:
    """Would a correction of the server's clock end leases too early, or keep dead ones?"""
    if not samples:
        return unknown("clock", "+time")
    ahead, doubt = offset(samples)
    apart = max(abs(ahead) - doubt, 0.0)
    figures = {"ahead_s": round(ahead, 6), "doubt_s": round(doubt, 6)}
    if apart <= margin(ttl):
        found = f"within {in_words(abs(ahead) + doubt)} of this host's"
        return Finding("clock", Verdict.OK, found, figures=figures)
    found = (
        f"{in_words(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this host's (give or take {in_words(doubt)})"
    )
    if apart < ttl * (1 - 1 / RENEWALS_PER_TTL):
        advice = "have NTP slew both clocks: one set forward in a step ends leases early, one set back keeps dead ones"
        return Finding("clock", Verdict.WARNING, found, advice, figures)
    advice = (
        f"one of the two is wrong: correct it while no lock is held, because a step this long ends leases of {ttl:g} s "
        "that are being renewed, or keeps dead ones; then have NTP slew it"
    )
    return Finding("clock", Verdict.DANGER, found, advice, figures)


def latency(samples: Sequence[Sample], ttl: float) -> Finding:
    """Are renewals answered long before they are due?"""
    if not samples:
        return unknown("latency", "+time")
    usual, worst = median(one.took for one in samples), max(one.took for one in samples)
    found = f"{in_words(usual)} per answer, at worst {in_words(worst)} in {len(samples)}"
    figures = {"median_s": round(usual, 6), "worst_s": round(worst, 6), "samples": len(samples)}
    every = ttl / RENEWALS_PER_TTL
    if worst < every / 10:
        return Finding("latency", Verdict.OK, f"{found}; leases are renewed every {every:.3g} s", figures=figures)
    advice = f"a ttl of {10 * RENEWALS_PER_TTL * worst:.2g} s or more gives time to retry renewals"
    verdict = Verdict.WARNING if worst < every else Verdict.DANGER
    return Finding("latency", verdict, f"{found}; leases have to be renewed every {every:.3g} s", advice, figures)


def in_words(seconds: float) -> str:
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"
