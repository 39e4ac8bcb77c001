"""The watchdog in a thread: when it takes the session's loop for dead, and how its thread begins and ends."""

import asyncio
import gc
import threading
import time
from collections.abc import Iterator

import pytest

from aiolocks._core.options import Options
from aiolocks._engine.lease_state import LeaseState
from aiolocks._engine.renewal import ThreadWatchdog
from aiolocks.testing import JumpingLoop, ScriptedGrantor
from tests.support.jumping import the_loop, timers
from tests.support.virtual import clock


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    ended()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "aiolocks-watchdog"]


def ended() -> None:
    """Wait until there is no thread; its own bound is a fraction of a second."""
    until = time.monotonic() + 30
    while threads():
        assert time.monotonic() < until, "a thread stays"
        time.sleep(0.005)


async def lease_with(max_stall: float) -> LeaseState:
    """Return a lease that nobody renews yet; it lasts for longer than any of these tests."""
    state = await ScriptedGrantor().asking(ttl=10**6, renew=False).acquire(lambda state: state)
    state.options = Options(10**6, watchdog="thread", max_stall=max_stall)
    return state


def begun() -> ThreadWatchdog:
    return ThreadWatchdog(the_loop(), clock)


async def longest_without_life(renewer: ThreadWatchdog) -> float:
    """Return for how long the loop showed no life at most, to a hundredth of a second, though it did come round."""
    longest = 0.0
    for _ in range(1000):
        await asyncio.sleep(0.01)
        while renewer.stalled(longest, clock()):
            longest += 0.01
    return longest


async def test_a_loop_that_comes_round_shows_life_four_times_in_the_shortest_stall_allowed() -> None:
    renewer = begun()
    states = [await lease_with(max_stall) for max_stall in (60.0, 2.0, 30.0)]
    for state in states:
        renewer.add(state, clock())
    assert await longest_without_life(renewer) <= 0.5 + 0.02
    renewer.stop_renewing(states[1])
    assert 0.5 < await longest_without_life(renewer) <= 1.0 + 0.02
    assert timers() == 1
    for state in states:
        renewer.stop_renewing(state)
    await asyncio.sleep(2)
    assert timers() == 0, "for no lease it need not show life"
    renewer.close()


async def test_a_loop_that_stands_still_for_longer_than_allowed_is_taken_for_dead_until_it_comes_round() -> None:
    renewer = begun()
    renewer.add(await lease_with(2.0), clock())
    await asyncio.sleep(10)
    the_loop()._jump(1.9)
    assert not renewer.stalled(2.0, clock())
    the_loop()._jump(0.2)
    assert renewer.stalled(2.0, clock())
    assert renewer.stalled(2.0, clock())
    await asyncio.sleep(0.001)
    assert not renewer.stalled(2.0, clock())
    renewer.close()
    assert timers() == 0


async def test_a_lease_that_allows_a_shorter_stall_than_the_others_counts_at_once() -> None:
    renewer = begun()
    renewer.add(await lease_with(60.0), clock())
    await asyncio.sleep(0.5)
    renewer.add(await lease_with(0.4), clock())
    assert await longest_without_life(renewer) <= 0.1 + 0.02
    assert timers() == 1
    renewer.close()


def test_a_loop_that_is_closed_is_dead_however_short_a_time_ago() -> None:
    loop = JumpingLoop()
    renewer = ThreadWatchdog(loop, lambda: 0.0)
    assert not renewer.stalled(1.0, 0.0)
    loop.close()
    assert renewer.stalled(1.0, 0.0)


async def test_the_thread_begins_with_the_first_lease_and_ends_when_it_is_closed() -> None:
    renewer = begun()
    assert not threads()
    for _ in range(2):  # and begins anew, if need be
        states = [await lease_with(60.0), await lease_with(60.0)]
        for state in states:
            renewer.add(state, clock())
            assert [thread.daemon for thread in threads()] == [True], "it keeps no program from ending"
        for _ in range(2):  # a second time there is nothing to do
            renewer.close()
        ended()
        for state in states:
            renewer.stop_renewing(state)  # and nobody to tell
        assert not threads()


async def test_closing_the_watchdog_waits_for_the_end_of_its_thread() -> None:
    """For half a second at most, which may be too short for a busy machine now and then."""
    renewer, state = begun(), await lease_with(60.0)
    had_ended: list[bool] = []
    while not any(had_ended) and len(had_ended) < 10:
        renewer.add(state, clock())
        renewer.close()
        had_ended.append(not threads())
        ended()
    assert any(had_ended)


def test_the_thread_ends_by_itself_when_the_session_s_loop_was_closed() -> None:
    loop = JumpingLoop()

    async def begin() -> tuple[ThreadWatchdog, LeaseState]:
        renewer, state = begun(), await lease_with(60.0)
        renewer.add(state, clock())
        return renewer, state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aiolocks._grantors.session.Context.clock", staticmethod(clock))
        renewer, state = loop.run_until_complete(begin())
    assert len(threads()) == 1
    loop.close()
    ended()
    renewer.stop_renewing(state)
    renewer.close()


async def test_a_machine_without_a_thread_to_spare_is_an_error_and_nothing_stays_of_the_attempt() -> None:
    renewer, state = begun(), await lease_with(60.0)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            renewer.add(state, clock())
    gc.collect()  # a loop that was not closed would say so
    renewer.stop_renewing(state)
    renewer.close()
    renewer.add(state, clock())
    assert len(threads()) == 1
    renewer.close()
