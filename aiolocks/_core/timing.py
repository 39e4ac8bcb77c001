"""Pure time arithmetic: no clock is read and nothing sleeps here.

Durations are seconds (float) on one monotonic clock. Milliseconds exist only in Lua arguments.
"""

DRIFT = 0.01
"""Share of a TTL allowed for clocks that run at different speeds; the value of the Redlock article."""

PRECISION = 0.002
"""Redis expires keys to the millisecond, and rounds once more when it writes the TTL."""

RENEWALS_PER_TTL = 3
"""A lease is renewed at a third of its TTL, so that two attempts may fail before it is in danger."""

SHORTEST_RECHECK = 0.05
"""A re-check sooner than this would be busy polling, unless the TTL itself is shorter than four of these."""


def margin(ttl: float) -> float:
    """Return what is taken off a lease of *ttl* seconds: drift, precision, and time for the body to clean up."""
    return DRIFT * ttl + PRECISION + min(0.05 * ttl, 1.0)


def deadline(sent_at: float, ttl: float) -> float:
    """Return the latest instant at which the holder may still act.

    Counted from when the request *left*, not from when the reply came: Redis may have started the TTL at any
    moment between, so only the earlier is safe.
    """
    return sent_at + ttl - margin(ttl)


def renewal_delay(ttl: float, jitter: float) -> float:
    """Return the seconds from one confirmed renewal to the next; *jitter* in [0, 1) spreads leases taken together."""
    return ttl / RENEWALS_PER_TTL * (0.9 + 0.2 * jitter)


def retry_delay(ttl: float, failures: int) -> float:
    """Return the seconds to wait after the given number of failed attempts in a row: doubling, within reason."""
    return min(0.02 * 2.0 ** min(failures, 6), max(ttl / 20, 0.01), 1.0)


def recheck_interval(ttl: float) -> float:
    """Return the longest a waiter goes without asking again: its protection against a lost wake-up.

    A quarter of the TTL at most, because a session is taken for dead after three intervals: a lease handed to a stopped
    session must not outlast that by much, or each of its waiters would cost the others a lease.
    """
    return min(1.0, ttl / 4)  # defect: W3-interval


def recheck_delay(interval: float, expected: float | None, jitter: float) -> float:
    """Return the seconds until the next re-check.

    Args:
        interval: The longest allowed, see `recheck_interval`.
        expected: Seconds until the lease in the way ends unless renewed; None if its end is unknown.
        jitter: In [0, 1), so that a thousand processes do not ask in the same millisecond.
    """
    floor = min(SHORTEST_RECHECK, interval)
    if expected is None:
        return min(max(0.1 + 0.4 * jitter, floor), interval)  # defect: W6-endless
    # defect: W6-delay
    # equivalent: comparison, both are more than the floor
    return min(max(expected + 0.002 + 0.01 * jitter, floor if expected > floor else 0.002), interval)


def patience(interval: float, round_trip: float) -> float:
    """Return how long a reply may take before its connection is given up for a new one.

    Bounded, since a measured round trip includes the event loop's own delay.
    """
    return max(interval, 0.25, min(4 * round_trip, 4 * interval))  # defect: W6-patience
