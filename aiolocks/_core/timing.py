"""Pure time arithmetic: no clock is read and nothing sleeps here.

Durations are seconds (float) on one monotonic clock. Milliseconds exist only in Lua arguments.
"""

import random
from typing import Final, final

DRIFT: Final = 0.01
"""Share of a TTL allowed for clocks that run at different speeds; the value of the Redlock article."""

PRECISION: Final = 0.002
"""Seconds allowed for rounding: Redis expires keys to the millisecond, and rounds again when it writes the TTL."""

RENEWALS_PER_TTL: Final = 3
"""Number of renewals in a TTL: after a third of it, so that two attempts may fail before the lease is in danger."""

MIN_RECHECK_INTERVAL: Final = 0.05
"""Minimum interval between re-checks: less would be busy polling. It is shorter for TTLs below four times this."""


@final
class Backoff:
    """Pauses between attempts: the first is *first* seconds, each next one is twice as long, up to *longest*.

    State: `failures`, the number of attempts that failed in a row. Invariant: no pause is longer than *longest*.
    """

    __slots__ = ("_first", "_jitter", "_longest", "failures")

    def __init__(self, first: float, longest: float, jitter: float = 0.0) -> None:
        """Take a random share of each pause off; *jitter*, from 0 to 1, is the largest share."""
        self._first = first
        self._longest = longest
        self._jitter = jitter
        self.failures = 0

    def failed(self) -> float:
        """Count a failed attempt, and return the seconds to wait before the next one."""
        pause = min(self._first * 2.0 ** min(self.failures, 30), self._longest)
        self.failures += 1
        return pause * (1 - self._jitter * random.random()) if self._jitter else pause

    def reset(self) -> None:
        self.failures = 0


def margin(ttl: float) -> float:
    """Return the margin of a lease of *ttl* seconds: drift, precision, and time for the body to clean up."""
    return DRIFT * ttl + PRECISION + min(0.05 * ttl, 1.0)


def deadline(sent_at: float, ttl: float) -> float:
    """Return the latest instant at which the holder may still act.

    P1: counted from when the request *left*: Redis may have started the TTL at any moment until the reply came.
    """
    return sent_at + ttl - margin(ttl)


def renewal_delay(ttl: float, jitter: float) -> float:
    """Return the seconds from one confirmed renewal to the next; *jitter* in [0, 1) spreads leases of the same age."""
    return ttl / RENEWALS_PER_TTL * (0.9 + 0.2 * jitter)


def retry_delay(ttl: float, failures: int) -> float:
    """Return the seconds to wait after that number of failures in a row, for a lease of *ttl* seconds."""
    return min(0.02 * 2.0 ** min(failures, 6), longest_retry_delay(ttl))


def longest_retry_delay(ttl: float) -> float:
    """Return the longest pause between attempts about a lease of *ttl* seconds: a twentieth, within 10 ms and 1 s."""
    return min(max(ttl / 20, 0.01), 1.0)


def recheck_interval(ttl: float) -> float:
    """Return the longest interval between a waiter's re-checks, its protection against a lost wake-up.

    W3: a session counts as dead after three intervals. So an interval is at most a quarter of the TTL: a lease handed
    to a stopped session must end soon after that, or each of its waiters would cost the others a lease.
    """
    return min(1.0, ttl / 4)  # defect: W3-interval


def recheck_delay(interval: float, expected: float | None, jitter: float) -> float:
    """Return the seconds until the next re-check.

    Args:
        interval: The longest delay allowed; see `recheck_interval`.
        expected: Seconds until the present lease ends unless renewed. None if its end is unknown.
        jitter: In [0, 1), so that a thousand processes do not ask in the same millisecond.
    """
    floor = min(MIN_RECHECK_INTERVAL, interval)
    if expected is None:
        return min(max(0.1 + 0.4 * jitter, floor), interval)  # defect: W6-endless
    # defect: W6-delay
    # equivalent: comparison, both are more than the floor
    return min(max(expected + 0.002 + 0.01 * jitter, floor if expected > floor else 0.002), interval)


def patience(interval: float, round_trip: float) -> float:
    """Return the timeout for a reply, after which its connection is replaced.

    It has an upper bound because a measured round trip includes the event loop's own delay.
    """
    return max(interval, 0.25, min(4 * round_trip, 4 * interval))  # defect: W6-patience
