"""The arithmetic of leases, for every TTL and every moment."""

import math

from hypothesis import given
from hypothesis import strategies as st

from aiolocks._core import timing

ttls = st.floats(0.1, 1e9)
moments = st.floats(0, 1e7)
jitters = st.floats(0, 1, exclude_max=True)
intervals = ttls.map(timing.recheck_interval)

JUST_OVER = 1 + 1e-12
"""What rounding may add."""


@given(ttls)
def test_the_margin_is_a_hundredth_for_drift_two_milliseconds_and_up_to_a_second_for_cleanup(ttl: float) -> None:
    cleanup = 1.0 if ttl >= 20 else ttl / 20
    assert abs(timing.margin(ttl) - (ttl / 100 + 0.002 + cleanup)) <= 1e-9 * ttl


@given(moments, ttls)
def test_the_deadline_comes_before_the_server_s_by_the_margin(sent_at: float, ttl: float) -> None:
    assert sent_at < timing.deadline(sent_at, ttl) < sent_at + ttl
    assert abs(sent_at + ttl - timing.deadline(sent_at, ttl) - timing.margin(ttl)) <= 1e-9 * (sent_at + ttl)


@given(st.floats(0.1, 86_400))
def test_the_margin_covers_a_clock_that_is_a_hundredth_slow(ttl: float) -> None:
    """The holder measures less time than passes for the server; its cleanup must still end before the server's TTL."""
    cleanup = min(0.05 * ttl, 1.0)
    passes_for_server = (timing.deadline(0, ttl) + cleanup) * 1.01
    assert passes_for_server < ttl


@given(ttls, jitters)
def test_renewals_keep_within_a_tenth_of_a_third(ttl: float, jitter: float) -> None:
    assert 0.9 / JUST_OVER <= timing.renewal_delay(ttl, jitter) / (ttl / 3) <= 1.1 * JUST_OVER


@given(ttls, jitters, jitters)
def test_a_renewal_may_be_lost_and_the_next_one_still_comes_in_time(ttl: float, one: float, other: float) -> None:
    assert timing.renewal_delay(ttl, one) + timing.renewal_delay(ttl, other) < timing.deadline(0, ttl)


@given(ttls, st.integers(0, 10**6))
def test_the_pause_before_a_retry_is_never_none_and_doubles_up_to_the_longest(ttl: float, failures: int) -> None:
    """Else a server in trouble is asked as often in the end as at the beginning."""
    longest = min(1.0, max(ttl / 20, 0.01))
    assert 0.01 <= timing.retry_delay(ttl, failures) <= longest
    assert timing.retry_delay(ttl, failures + 1) == min(2 * timing.retry_delay(ttl, failures), longest)


def test_the_first_pauses_before_a_retry_are_short() -> None:
    """Most troubles are over at once."""
    assert [timing.retry_delay(30, failures) for failures in range(1, 8)] == [0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]


def test_a_waiter_asks_again_after_a_quarter_of_the_ttl_or_a_second() -> None:
    assert [timing.recheck_interval(ttl) for ttl in (0.1, 1, 4, 30)] == [0.025, 0.25, 1.0, 1.0]


@given(ttls)
def test_a_lease_handed_to_a_dead_session_outlasts_its_sign_of_life(ttl: float) -> None:
    """W3: it is per session and three intervals long, so a stopped process costs one lease and not one per waiter."""
    assert 0 < 4 * timing.recheck_interval(ttl) <= ttl
    assert timing.recheck_interval(ttl) <= 1.0


@given(intervals, st.none() | st.floats(0, 1e9), jitters)
def test_rechecks_come_in_the_interval_and_not_at_once(interval: float, expected: float | None, jitter: float) -> None:
    assert 0.002 <= timing.recheck_delay(interval, expected, jitter) <= interval


@given(intervals, jitters)
def test_without_a_predicted_end_rechecks_are_a_tenth_to_half_a_second_apart(interval: float, jitter: float) -> None:
    assert min(0.1, interval) <= timing.recheck_delay(interval, None, jitter) <= min(0.5, interval)


@given(intervals, st.floats(0, 1e9), jitters)
def test_a_recheck_comes_right_after_the_predicted_end(interval: float, expected: float, jitter: float) -> None:
    delay = timing.recheck_delay(interval, expected, jitter)
    if delay < interval:
        assert expected < delay
    if expected > timing.MIN_RECHECK_INTERVAL:
        assert delay <= (expected + 0.012) * JUST_OVER


def test_a_recheck_leaves_a_lease_two_to_twelve_milliseconds_to_run_out() -> None:
    for expected in (0.0, 0.03, 0.5):
        assert abs(timing.recheck_delay(1.0, expected, 0.0) - expected - 0.002) < 1e-9
        assert abs(timing.recheck_delay(1.0, expected, 1.0) - expected - 0.012) < 1e-9


@given(intervals, st.floats(0, 1e9), jitters)
def test_a_recheck_under_fifty_milliseconds_needs_a_reason(interval: float, expected: float, jitter: float) -> None:
    """W6: the lease in the way ends within that time, or the TTL asks for it."""
    if timing.recheck_delay(interval, expected, jitter) < timing.MIN_RECHECK_INTERVAL:
        assert expected <= timing.MIN_RECHECK_INTERVAL or interval < timing.MIN_RECHECK_INTERVAL


@given(intervals, st.floats(0, 10))
def test_patience_outlasts_four_round_trips_within_reason(interval: float, round_trip: float) -> None:
    """A loop that was blocked takes its own delay for the network's, which must not keep a dead link for long."""
    assert timing.patience(interval, round_trip) >= max(interval, 0.25, min(4 * round_trip, 4 * interval))
    assert timing.patience(interval, round_trip) <= max(0.25, 4 * interval)


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    backoff = timing.Backoff(0.1, 0.5)
    assert [backoff.failed() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert backoff.failures == 5
    backoff.reset()
    assert (backoff.failures, backoff.failed()) == (0, 0.1)
    backoff = timing.Backoff(0.01, math.inf)
    assert all(math.isfinite(backoff.failed()) for _ in range(5000))


@given(jitter=st.floats(0, 1))
def test_jitter_takes_a_share_off_and_adds_none(jitter: float) -> None:
    pauses = [timing.Backoff(0.1, 0.5, jitter).failed() for _ in range(20)]
    assert all(0.1 * (1 - jitter) <= pause <= 0.1 for pause in pauses)
