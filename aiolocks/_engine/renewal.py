"""Renews every lease of one session, each after a third of its TTL, and retries until the deadline of the lease (P3).

There is no task, only one timer, set for the lease that is due first, and the callbacks of the replies. So a failing
renewal cannot end the others.

W21: leases that are due at the same time are renewed by one request, if their grantors can do that (see `Together`).
Leases for which it replies 0 are renewed singly, at once.

A thread can do the same, with a loop and a connection of its own, while the event loop is blocked. It shares with the
session only the lease: its deadline, which a confirmed renewal moves, and whether it is over. A dead handler must not
hold for ever, so the thread stops renewing when the session's loop has shown no life for `max_stall` seconds, and ends
when that loop is closed.
"""

import asyncio
import contextlib
import heapq
import itertools
import logging
import math
import random
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, final

from redis.exceptions import ConnectionError as RedisConnectionError

from .._core.answers import is_worth_retry, without_room
from .._core.timing import RENEWALS_PER_TTL, renewal_delay, retry_delay
from .._redis.connection import ConnectionCancelled
from .._redis.endpoints import Pipelines
from .context import Together
from .lease_state import LeaseState
from .report import Kind

log = logging.getLogger("aiolocks")

_PER_WAKE_UP = 100
"""Maximum number of leases that one wake-up renews early. A wake-up costs more than a renewal; 100 take about 1 ms."""

_SINGLY_FOR = 60.0
"""Seconds for which leases are renewed singly after the server has refused a batch as a whole: on a Cluster because
their keys are on different nodes, or because a key may not be accessed."""

_EARLY = 0.05 / RENEWALS_PER_TTL
"""Maximum share of a TTL by which a renewal is sent early, to share a request with others."""

_LOG_INTERVAL = 60.0
"""Interval between log lines about failing renewals, in seconds: there may be thousands of leases."""

_RENEW_ALL_INTERVAL = 0.25
"""Interval between two renewals of all leases, in seconds: a link may be cut again and again."""

_WAKE_UP_INTERVAL = 0.01
"""Interval between wake-ups that renew all leases, in seconds: 10,000 at once block the loop for a second."""


@final
@dataclass(slots=True, eq=False, repr=False)
class _Renewal:
    """The next renewal of one lease, and the result of the last ones."""

    state: LeaseState
    due: float = 0.0
    """When the watchdog checks the lease next."""
    failures: int = 0
    """Failed renewals in a row."""
    under_way: bool = False
    endangered: float = -math.inf
    """The deadline for which it was reported that the lease is in danger: once for each."""


@final
class Watchdog:
    """The leases to renew, in the order in which they are due.

    Most leases are released long before their first renewal, so they are put in order only shortly before that.

    Its state is `fresh`, the leases that are not in order yet, each with the time at which it was added, and `_live`,
    the others. Invariant: a lease in `_live` has exactly one valid entry in the heap, at its `due`. While a request is
    under way, all its leases share one entry, at the earliest of their deadlines, so a loss needs no timer of its own.
    Entries that are not valid any more stay in the heap until they come up, or are more than half of it. A lease in
    `fresh` has no entry, because the timer fires before it can be due.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], thread: Pipelines | None = None,
        stalled: Callable[[float, float], bool] | None = None,
    ) -> None:  # fmt: skip
        """In a *thread* of its own, renew over its pipelines, and only while the session's loop is not *stalled*."""
        self._loop = loop
        self._clock = clock
        self._thread = thread
        self._stalled = stalled
        self._live: dict[LeaseState, _Renewal] = {}  # ordered, so that a run can be repeated
        self.fresh: dict[LeaseState, float] = {}
        self._heap: list[tuple[float, int, _Renewal | list[_Renewal]]] = []
        self._singly_until: dict[Together, float] = {}
        self._sequence = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self.wakes_at = math.inf
        """When the timer fires."""
        self._silent: set[LeaseState] = set()
        """Leases that are not renewed because the session's loop is stalled. Each is reported once."""
        self._logged_at = -math.inf
        self._all_at = -math.inf
        """When all leases were, or will be, renewed at once."""

    def add(self, state: LeaseState, now: float) -> None:
        self.fresh[state] = now
        sorted_at = now + (state.validity.deadline - now) / 4  # equivalent: - + constant, only sorted sooner
        if sorted_at < self.wakes_at:
            self.wake_by(sorted_at)

    def stop_renewing(self, state: LeaseState) -> None:
        if self.fresh.pop(state, None) is not None:
            return
        self._live.pop(state, None)  # P11: a renewal under way no longer changes it
        if self._silent:
            self._silent.discard(state)
        self._drop_old_entries()

    def leases(self) -> Iterable[LeaseState]:
        """Return all leases, from the newest on."""
        return itertools.chain(reversed(self.fresh), reversed(self._live))

    def _drop_old_entries(self) -> None:
        # equivalent: and/or + comparison + constant, for speed
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._live):
            # Keep only entries that count. With others of live leases the heap would soon be as long again.
            self._heap = [entry for entry in self._heap if self._counts(entry[0], entry[2])]
            heapq.heapify(self._heap)

    def renew_all(self, wanted: Callable[[LeaseState], bool] | None = None) -> None:
        """Renew every lease soon, or every *wanted* one: a link has gone or come, and perhaps the data with it."""
        now = self._clock()
        if self._all_at <= now:  # otherwise that is planned already; leases that were under way then are added
            self._all_at = max(now, self._all_at + _RENEW_ALL_INTERVAL)
        at, count = self._all_at, 0  # equivalent: constant, one lease waits 10 ms
        self._sort()
        for renewal in self._live.values():
            if renewal.under_way or renewal.due <= at or not (wanted is None or wanted(renewal.state)):
                continue  # its reply or its turn is about to come, or it is not wanted
            due = at + count // _PER_WAKE_UP * _WAKE_UP_INTERVAL
            count += 1
            if renewal.due > due:
                self._push(renewal, now, due - now)
        self._drop_old_entries()

    def close(self) -> None:
        """Stop renewing. Leases that are still held expire; each gets a timer that marks it lost."""
        if self._thread is None and not self._loop.is_closed():
            for state in (*self._live, *self.fresh):
                state.watch_deadline()
        self._live.clear()
        self.fresh.clear()
        self._silent.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.wakes_at = math.inf

    def _sort(self) -> None:
        """Put the fresh leases in order."""
        fresh, self.fresh = self.fresh, {}
        for state, added in fresh.items():
            left = max(state.validity.deadline - added, 0.0)  # less than a TTL if the grant took long to arrive
            renewal = self._live[state] = _Renewal(state)
            self._push(renewal, added, min(renewal_delay(state.ttl, random.random()), left / 2))

    def _push(self, renewal: _Renewal, now: float, delay: float) -> None:
        due = renewal.due = now + delay
        self._enter(due, renewal)

    def _enter(self, at: float, entry: _Renewal | list[_Renewal]) -> None:
        heapq.heappush(self._heap, (at, next(self._sequence), entry))
        if at < self.wakes_at:
            self.wake_by(at)

    def _counts(self, at: float, entry: _Renewal | list[_Renewal]) -> bool:
        """Whether there is something to do when this entry comes up. An answered request's list is empty."""
        return bool(entry) if isinstance(entry, list) else self._lives(entry) and at == entry.due

    def _lives(self, renewal: _Renewal) -> bool:
        return self._live.get(renewal.state) is renewal

    def wake_by(self, due: float) -> None:
        """Let the timer fire at local time *due* instead."""
        if self._timer is not None:
            self._timer.cancel()
        self.wakes_at = due
        # P2: by the clock of this moment, as the process can have stood still since the caller looked at it.
        self._timer = self._loop.call_later(max(due - self._clock(), 0.0), self._wake)

    def _wake(self) -> None:
        self._timer = None
        # equivalent: line dropped, the last time counts
        self.wakes_at = -math.inf  # the timer is set below, once for all
        now = self._clock()
        try:
            with self._interruptible(now):
                self._sort()
                self._renew(self._due(now), now)
        finally:
            if self._heap:
                self.wake_by(self._heap[0][0])
            else:
                self.wakes_at = math.inf

    @contextlib.contextmanager
    def _interruptible(self, now: float) -> Generator[None, None, None]:
        """Enter all leases again if a listener to events raises KeyboardInterrupt: the loop can run again."""
        try:
            yield
        except BaseException:
            self._heap.clear()  # some were taken from it, and are not handled
            for renewal in self._live.values():
                if renewal.due == math.inf:  # perhaps it was not sent, and renewing twice does no harm
                    renewal.under_way, renewal.due = False, now
                self._enter(renewal.due, renewal)
            raise

    def _due(self, now: float) -> list[_Renewal]:
        """Take from the heap the leases that are due, and a few that soon will be."""
        due: list[_Renewal] = []
        while self._heap:
            at, _, entry = self._heap[0]
            if self._counts(at, entry):
                if at > now and (len(due) >= _PER_WAKE_UP or not _may_come_early(entry, now)):
                    break
                due += entry if isinstance(entry, list) else (entry,)
            heapq.heappop(self._heap)
        return due

    def _renew(self, renewals: Sequence[_Renewal], now: float, *, singly: bool = False) -> None:
        """Renew the leases that need it, in batches unless *singly*."""
        batches: dict[Together, list[_Renewal]] = {}
        for renewal in renewals:
            try:
                if self._wants_renewal(renewal, now):
                    batch = renewal.state.grantor.together
                    if batch is None or singly or now < self._singly_until.get(batch, now):
                        self._ask([renewal], now)
                    else:
                        batches.setdefault(batch, []).append(renewal)
            except Exception as defect:
                self._try_soon(renewal, now, defect)
        for batch, group in batches.items():
            for at in range(0, len(group), batch.most):
                self._ask(group[at : at + batch.most], now, batch)

    def _wants_renewal(self, renewal: _Renewal, now: float) -> bool:
        """Whether to renew this lease now. If not, note its loss, or check it again later."""
        state = renewal.state
        if not self._lives(renewal):  # handling an earlier lease in this loop ended it
            return False
        validity = state.validity
        left = validity.deadline - now
        if left <= 0:  # P2
            self._lose(state, validity.reason)
            return False
        if renewal.under_way or now >= validity.renew_until:  # in the latter case it expires, by `max_hold`
            self._push(renewal, now, left)
            return False
        if left < validity.ttl / 2:  # which a lease that is renewed in time never has
            self._note_danger(renewal, now)
        if self._stalled is not None and self._stalled(state.options.max_stall, now):
            if state not in self._silent:
                self._note_stall(state)
            self._push(renewal, now, retry_delay(state.ttl, 1))  # the loop may go on in time
            return False
        if self._silent:
            self._silent.discard(state)
        return True

    def _note_danger(self, renewal: _Renewal, now: float) -> None:
        validity = renewal.state.validity
        if now >= validity.endangered_at and renewal.endangered != validity.deadline:
            renewal.endangered = validity.deadline
            self._emit(renewal.state, "endangered", validity.deadline - now)

    def _note_stall(self, state: LeaseState) -> None:
        self._silent.add(state)
        if not state.context.loop.is_closed():
            longest = state.options.max_stall
            log.warning(
                "%s: the event loop has shown no life for %g s (max_stall); it is not renewed until it does",
                state.what, longest,
            )  # fmt: skip
            self._emit(state, "stalled", longest)

    def _emit(self, state: LeaseState, kind: Kind, seconds: float) -> None:
        if self._thread is None:
            state.emit(kind, seconds)
        else:
            state.emit_from_thread(kind, seconds)

    def _ask(self, renewals: list[_Renewal], now: float, batch: Together | None = None) -> None:
        """Renew all by one request. Their entry in the heap is one list, which the reply empties."""
        asked: list[_Renewal] = []
        earliest = math.inf
        for renewal in renewals:
            if self._lives(renewal):  # the end of another lease can have ended this one
                renewal.under_way, renewal.due = True, math.inf
                earliest = min(earliest, renewal.state.validity.deadline)
                asked.append(renewal)
        if not asked:
            return
        self._enter(earliest, asked)
        try:
            if batch is None or len(asked) == 1:
                state = asked[0].state
                on_result = partial(self._on_result, asked, now)
                state.grantor.renew(state.request, state.ttl, on_result, self._thread)
            else:
                leases = [(renewal.state.grantor, renewal.state.request) for renewal in asked]
                batch.renew(leases, partial(self._on_results, batch, asked, now), self._thread)
        except Exception as defect:
            for renewal in asked:
                renewal.under_way = False
                self._try_soon(renewal, now, defect)
            asked.clear()

    def _try_soon(self, renewal: _Renewal, now: float, defect: Exception) -> None:
        """Log an exception, which must not end the renewals of the other leases."""
        state = renewal.state
        log.error("%s: renewing failed", state.what, exc_info=defect)
        self._emit(state, "renewal_failed", max(state.validity.deadline - now, 0.0))
        self._push(renewal, now, retry_delay(state.ttl, 1))

    def _on_result(self, asked: list[_Renewal], sent_at: float, renewed: bool | Exception) -> None:
        now = self._clock()
        with self._interruptible(now):
            for renewal in asked:  # the only one, or none if the reply comes twice
                self._renewed(renewal, sent_at, now, renewed)
            asked.clear()

    def _on_results(
        self, batch: Together, asked: list[_Renewal], sent_at: float, answers: Sequence[int] | Exception
    ) -> None:
        """Take the answer for each lease of a batch: 1, or 0 to ask for it singly. Or take the error for all."""
        now = self._clock()
        if isinstance(answers, Exception) and not is_worth_retry(answers):
            self._singly_until[batch] = now + _SINGLY_FOR
            answers = [0] * len(asked)
        alone: list[_Renewal] = []
        with self._interruptible(now):
            for at, renewal in enumerate(asked):
                if isinstance(answers, Exception):
                    self._renewed(renewal, sent_at, now, answers)
                elif answers[at] == 1:  # defect: W21-each
                    self._renewed(renewal, sent_at, now, True)
                else:
                    renewal.under_way = False
                    alone.append(renewal)
            asked.clear()
            self._renew(alone, now, singly=True)  # defect: W21-apart

    def _renewed(self, renewal: _Renewal, sent_at: float, now: float, renewed: bool | Exception) -> None:
        """Take the answer for one lease, to a request that left at *sent_at*, or the exception in its place."""
        state = renewal.state
        renewal.under_way = False
        if not self._lives(renewal):  # P11: a late reply revives nothing, and is no loss
            return
        if isinstance(renewed, Exception):
            renewal.failures += 1
            left = max(state.validity.deadline - now, 0.0)
            cut_off = isinstance(renewed, ConnectionCancelled)  # the program ends, which is no trouble to report
            if not cut_off and now - self._logged_at >= _LOG_INTERVAL:
                self._logged_at = now
                log.warning(
                    "%s: could not be renewed (%s: %s); it is tried again for %.3g s, until its deadline. For %g s, "
                    "nothing more is logged of renewals that fail",
                    state.what, type(renewed).__name__, renewed, left, _LOG_INTERVAL,
                )  # fmt: skip
            self._emit(state, "renewal_failed", left)
            self._push(renewal, now, min(retry_delay(state.ttl, renewal.failures), left))
        elif renewed:
            renewal.failures = 0
            # P3: count from when the request left.
            state.validity.extend(sent_at + state.request.terms.valid_for)  # defect: P1-renewal
            taken = now - sent_at
            self._emit(state, "renewed", taken)
            self._push(renewal, now, max(renewal_delay(state.ttl, random.random()) - taken, 0.0))
        else:
            self._lose(state, state.refused_as)

    def _lose(self, state: LeaseState, reason: str) -> None:
        self._live.pop(state, None)
        if self._thread is None:
            state.lose(reason)
        else:
            state.lose_from_thread(reason)


def _may_come_early(entry: _Renewal | list[_Renewal], now: float) -> bool:
    """Whether the entry is for a usual renewal, which is due soon."""
    if isinstance(entry, list) or entry.under_way or entry.failures:
        return False
    return now < entry.state.validity.renew_until and entry.due - now <= _EARLY * entry.state.ttl


_CHECK_INTERVAL = 0.2
"""Interval at which the thread checks whether the session's loop is closed, in seconds."""

_END_TIMEOUT = 0.5
"""Timeout for the end of the thread when the session ends, in seconds."""


class _Inner(NamedTuple):
    """The running thread."""

    loop: asyncio.AbstractEventLoop
    pipelines: Pipelines
    watchdog: Watchdog
    thread: threading.Thread


@final
class ThreadWatchdog:
    """A `Watchdog` in a thread, which starts with the first lease. All methods belong to the session's thread.

    Its state is `_live`, the leases, and `_inner`, the thread. Invariant: while there are leases, `_beat` is called at
    least four times in the shortest `max_stall` of any.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._live: dict[LeaseState, None] = {}
        self._inner: _Inner | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._beaten_at = 0.0

    def add(self, state: LeaseState, now: float) -> None:
        self._call(Watchdog.add, state, now)
        self._live[state] = None
        if self._beating is not None:
            self._beating.cancel()
        self._beat()  # this lease may allow a shorter stall than the others

    def stop_renewing(self, state: LeaseState) -> None:
        if state in self._live:
            del self._live[state]
            with contextlib.suppress(RuntimeError):  # the thread has ended, because the session's loop was closed
                self._call(Watchdog.stop_renewing, state)

    def renew_all(self, wanted: Callable[[LeaseState], bool] | None = None) -> None:
        """Renew every lease soon, or every *wanted* one. The thread does this itself when one of its links changes."""
        if self._live:
            self._call(Watchdog.renew_all, wanted)

    def leases(self) -> Iterable[LeaseState]:
        """Return all leases, from the newest on."""
        return reversed(self._live)

    def stalled(self, longest: float, now: float) -> bool:
        """Whether the session's loop has not run for *longest* seconds. The thread asks this."""
        return self._loop.is_closed() or now - self._beaten_at > longest

    def detach_in_fork(self) -> None:
        """In a forked child, which has no copy of the thread, do as `Connection.detach_in_fork`."""
        if self._inner is not None:
            self._inner.pipelines.detach_in_fork()

    def close(self) -> None:
        """End the thread, and wait for that; it takes milliseconds."""
        self._live.clear()
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
        inner, self._inner = self._inner, None
        if inner is not None:
            try:
                inner.loop.call_soon_threadsafe(inner.loop.stop)
            except RuntimeError:  # it has ended by itself
                return
            inner.thread.join(_END_TIMEOUT)

    def _call(self, method: Callable[..., None], *args: object) -> None:
        inner = self._inner or self._start()
        inner.loop.call_soon_threadsafe(method, inner.watchdog, *args)

    def _start(self) -> _Inner:
        self._beaten_at = self._clock()
        try:
            loop = asyncio.new_event_loop()
        except OSError as error:
            raise without_room(error) or RedisConnectionError(str(error)) from error
        pipelines = Pipelines(loop, self._clock, lambda: watchdog.renew_all(), lambda: watchdog.renew_all())
        watchdog = Watchdog(loop, self._clock, pipelines, self.stalled)
        thread = threading.Thread(
            target=_run, args=(loop, watchdog, pipelines, self._loop), name="aiolocks-watchdog", daemon=True
        )
        try:
            thread.start()
        except BaseException:  # the process can start no more threads
            loop.close()
            raise
        self._inner = inner = _Inner(loop, pipelines, watchdog, thread)
        return inner

    def _beat(self) -> None:
        """Show that the session's loop runs."""
        self._beating = None
        self._beaten_at = self._clock()
        if self._live:
            # equivalent: constant, a little more often
            pause = min(state.options.max_stall for state in self._live) / 4
            self._beating = self._loop.call_later(min(pause, 1.0), self._beat)


def _run(
    inner: asyncio.AbstractEventLoop, watchdog: Watchdog, pipelines: Pipelines, outer: asyncio.AbstractEventLoop
) -> None:
    def check() -> None:
        if outer.is_closed():
            inner.stop()
        else:
            inner.call_later(_CHECK_INTERVAL, check)

    try:
        inner.call_soon(check)
        inner.run_forever()
    finally:
        watchdog.close()
        pipelines.close()
        inner.run_until_complete(_settle())
        inner.close()


async def _settle() -> None:
    """Let the tasks end that `close` has cancelled."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=_END_TIMEOUT)
    await asyncio.sleep(0)
