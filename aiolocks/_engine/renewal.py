"""Renews every lease of one session, each at a third of its TTL, and retries until the lease's own deadline.

No task: one timer, set for the lease that is due first, and the answers' callbacks. So nothing that goes wrong with
one renewal can end the others.

Those that are due at the same time are renewed by one request, if their grantors can do that (see `Together`). What
such a request leaves open, for one of them or for all, is asked for each by itself, at once.

A thread may do the same, which renews while the event loop is blocked. It has a loop and a connection to itself, and
shares with the session only what each lease says: its deadline, which a confirmed renewal moves, and whether it is
over. It must not keep a dead handler's lease for ever: it stops renewing when the session's loop has shown no life for
`max_stall` seconds, and ends when that loop is closed.
"""

import asyncio
import heapq
import itertools
import logging
import math
import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

from redis.exceptions import ConnectionError as RedisConnectionError

from .._core.answers import is_worth_retry, without_room
from .._core.events import Kind
from .._core.timing import RENEWALS_PER_TTL, renewal_delay, retry_delay
from .._redis.connection import ConnectionCancelled
from .._redis.endpoints import Pipelines
from .context import Together
from .lease_state import LeaseState

log = logging.getLogger("aiolocks")

_TOGETHER = 100
"""Leases renewed in one wake-up of the loop, if they are not overdue: to wake up for each costs more than to renew it,
and a millisecond's work at a time is as much as a program should notice."""

_APART = 60.0
"""Seconds for which each lease is asked for by itself, after a request for many was refused as a whole: in a Cluster,
where their keys belong to different servers, or as there is no right to one of the keys."""

_EARLY = 0.05 / RENEWALS_PER_TTL
"""Share of a TTL by which a renewal may come early, to go with others."""


_QUIET = 60.0
"""Seconds from one line in the log about renewals that fail to the next: there may be thousands of leases."""

_ALL_AGAIN = 0.25
"""Seconds between two renewals of all leases: a link may be cut again and again."""

_PACE = 0.01
"""Seconds from one wake-up's share of them to the next: 10,000 at once keep the loop from all else for a second."""


@final
class _Turn:
    """When a lease is due for its next renewal, and what came of the last ones."""

    __slots__ = ("due", "failures", "renewing", "state")

    def __init__(self, state: LeaseState) -> None:
        self.state = state
        self.due = 0.0
        """When the watchdog looks after it next."""
        self.failures = 0
        self.renewing = False


@final
class Watchdog:
    """The leases to renew, ordered by when.

    Most leases are released long before their first renewal, and so are not put in order until that comes near.

    Invariant: a lease in `_live` has exactly one entry in the heap that counts. It is the one of its `due`, when to
    renew it. While a renewal is on its way, all leases in the request have one together, for the first of their
    deadlines; after that, each has its own again, for its deadline. So a loss needs no timer of its own. Other entries
    stay in the heap until they come up, or until they are more than half of it. A lease in `_fresh` has none: it is
    kept with the time at which it came, and the timer fires before it could be due.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], thread: Pipelines | None = None,
        stalled: Callable[[float, float], bool] | None = None,
    ) -> None:  # fmt: skip
        """In a *thread* of its own: renew over its pipelines, and while the session's loop is not *stalled*."""
        self._loop = loop
        self._clock = clock
        self._thread = thread
        self._stalled = stalled
        self._live: dict[LeaseState, _Turn] = {}  # in the order in which they came, so that a run can be repeated
        self._fresh: dict[LeaseState, float] = {}
        self.renewed: dict[LeaseState, None] = {}
        """Those in `_live` that were renewed before; a thread's may be read by others."""
        self._heap: list[tuple[float, int, _Turn | list[_Turn]]] = []
        self._apart_until: dict[Together, float] = {}
        self._sequence = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._silent: set[LeaseState] = set()
        """Those that are not renewed as the session's loop is stalled; each is told of once."""
        self._logged_at = -math.inf
        self._all_at = -math.inf
        """When all were, or will be, renewed at once."""

    def add(self, state: LeaseState, now: float) -> None:
        """Renew this lease from *now* on."""
        self._fresh[state] = now
        sorted_at = now + (state.deadline - now) / 4  # equivalent: - + constant, only sorted sooner
        if sorted_at < self._timer_at:
            self._arm(sorted_at, now)

    def forget(self, state: LeaseState) -> None:
        """Never renew this lease again. What is on its way changes nothing any more."""
        if state in self._fresh:
            del self._fresh[state]
            return
        self._live.pop(state, None)
        if self._silent:
            self._silent.discard(state)
        self.renewed.pop(state, None)
        self._drop_old_entries()

    def _drop_old_entries(self) -> None:
        # equivalent: and/or + comparison + constant, for speed
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._live):
            # Of a lease that lives only the entry that counts: with the others the heap would be as long again at once.
            self._heap = [entry for entry in self._heap if self._counts(entry[0], entry[2])]
            heapq.heapify(self._heap)

    def renew_all(self, wanted: Callable[[LeaseState], bool] | None = None) -> None:
        """Renew every lease as soon as may be: the link to a server has gone or come, and with it the data perhaps.

        Only those that are *wanted*, if that is given.
        """
        now = self._clock()
        if self._all_at <= now:  # else they are about to be: those that were on their way then go along
            self._all_at = max(now, self._all_at + _ALL_AGAIN)
        at, count = self._all_at, 0
        self._sort()
        for turn in self._live.values():
            if turn.renewing or turn.due <= at or not (wanted is None or wanted(turn.state)):
                continue  # its answer, or what came instead, is about to come; or it is none of these
            due = at + count // _TOGETHER * _PACE
            count += 1
            if turn.due > due:
                self._push(turn, now, due - now)
        self._drop_old_entries()

    def close(self) -> None:
        """Renew nothing any more. What is still held runs out, and is told so by a timer of its own."""
        if self._thread is None and not self._loop.is_closed():
            for state in (*self._live, *self._fresh):
                state.watch_deadline()
        self._live.clear()
        self._fresh.clear()
        self._silent.clear()
        self.renewed.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_at = math.inf

    def _sort(self) -> None:
        """Put those in order that have lasted long enough to need it."""
        fresh, self._fresh = self._fresh, {}
        for state, came in fresh.items():
            left = max(state.deadline - came, 0.0)  # a grant that was long on its way leaves less than a TTL
            turn = self._live[state] = _Turn(state)
            self._push(turn, came, min(renewal_delay(state.ttl, random.random()), left / 2))

    def _push(self, turn: _Turn, now: float, delay: float) -> None:
        due = turn.due = now + delay
        self._enter(due, now, turn)

    def _enter(self, at: float, now: float, entry: _Turn | list[_Turn]) -> None:
        heapq.heappush(self._heap, (at, next(self._sequence), entry))
        if at < self._timer_at:
            self._arm(at, now)

    def _counts(self, at: float, entry: _Turn | list[_Turn]) -> bool:
        """Whether something is to be done for this entry when it comes up; not for a request that was answered."""
        return bool(entry) if isinstance(entry, list) else self._lives(entry) and at == entry.due

    def _lives(self, turn: _Turn) -> bool:
        return self._live.get(turn.state) is turn

    def _arm(self, due: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(due - now, 0.0), self._wake)

    def _wake(self) -> None:
        self._timer = None
        # equivalent: line dropped, the last time counts
        self._timer_at = -math.inf  # set again below, once for all
        now = self._clock()
        self._sort()
        self._renew(self._due(now), now)
        if self._heap:
            self._arm(self._heap[0][0], self._clock())
        else:
            self._timer_at = math.inf

    def _due(self, now: float) -> list[_Turn]:
        """Take those out of the heap that are due, and a few that soon will be."""
        due: list[_Turn] = []
        while self._heap:
            at, _, entry = self._heap[0]
            if isinstance(entry, list):
                if entry and at > now:
                    break
                due += entry
            elif self._lives(entry) and at == entry.due:
                if at > now and (len(due) >= _TOGETHER or not _may_come_early(entry, now)):
                    break
                due.append(entry)
            heapq.heappop(self._heap)
        return due

    def _renew(self, turns: Sequence[_Turn], now: float, *, apart: bool = False) -> None:
        """Renew those that need it; as many together as may go together, unless *apart*."""
        groups: dict[Together, list[_Turn]] = {}
        for turn in turns:
            try:
                if self._wants_renewal(turn, now):
                    together = turn.state.grantor.together
                    if together is None or apart or now < self._apart_until.get(together, now):
                        self._ask([turn], now)
                    else:
                        groups.setdefault(together, []).append(turn)
            except Exception as defect:
                self._try_soon(turn, now, defect)
        for together, group in groups.items():
            for at in range(0, len(group), together.most):
                self._ask(group[at : at + together.most], now, together)

    def _wants_renewal(self, turn: _Turn, now: float) -> bool:
        """Whether to renew this lease now; if not, see to what else it may need."""
        state = turn.state
        if not self._lives(turn):  # the end of a lease before it has ended this one too
            return False
        if now >= state.deadline:
            self._lose(state, state.reason)
        elif turn.renewing or now >= state.validity.renew_until:  # in the latter case, let it run out
            self._push(turn, now, state.deadline - now)
        elif self._stalled is not None and self._stalled(state.options.max_stall, now):
            if state not in self._silent:
                self._note_stall(state)
            self._push(turn, now, retry_delay(state.ttl, 1))  # it may come back to life in time
        else:
            if self._silent:
                self._silent.discard(state)
            return True
        return False

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

    def _ask(self, turns: list[_Turn], now: float, together: Together | None = None) -> None:
        """Renew all by one request, which is in the heap as a list that is empty once they are answered."""
        asked: list[_Turn] = []
        earliest = math.inf
        for turn in turns:
            if self._lives(turn):  # the end of another lease can have ended this one
                turn.renewing, turn.due = True, math.inf
                earliest = min(earliest, turn.state.deadline)
                asked.append(turn)
        if not asked:
            return
        self._enter(earliest, now, asked)
        try:
            if together is None or len(asked) == 1:
                state = asked[0].state
                tell = partial(self._answered, asked, now)
                state.grantor.renew(state.request, state.ttl, tell, self._thread)
            else:
                leases = [(turn.state.grantor, turn.state.request) for turn in asked]
                together.renew(leases, partial(self._answered_together, together, asked, now), self._thread)
        except Exception as defect:
            for turn in asked:
                turn.renewing = False
                self._try_soon(turn, now, defect)
            asked.clear()

    def _try_soon(self, turn: _Turn, now: float, defect: Exception) -> None:
        """Log an exception, which must not end the other leases' renewals."""
        state = turn.state
        log.error("%s: renewing failed", state.what, exc_info=defect)
        self._emit(state, "renewal_failed", max(state.deadline - now, 0.0))
        self._push(turn, now, retry_delay(state.ttl, 1))

    def _answered(self, asked: list[_Turn], sent_at: float, renewed: bool | Exception) -> None:
        for turn in asked:  # the one, unless the answer comes twice
            self._renewed(turn, sent_at, self._clock(), renewed)
        asked.clear()

    def _answered_together(
        self, together: Together, asked: list[_Turn], sent_at: float, answers: Sequence[int] | Exception
    ) -> None:
        """Take what came for each: 1, or 0 if it must be asked for by itself; or why nothing came."""
        now = self._clock()
        if isinstance(answers, Exception) and not is_worth_retry(answers):
            self._apart_until[together] = now + _APART
            answers = [0] * len(asked)
        alone: list[_Turn] = []
        for at, turn in enumerate(asked):
            if isinstance(answers, Exception):
                self._renewed(turn, sent_at, now, answers)
            elif answers[at] == 1:  # defect: W21-each
                self._renewed(turn, sent_at, now, True)
            else:
                turn.renewing = False
                alone.append(turn)
        asked.clear()
        self._renew(alone, now, apart=True)  # defect: W21-apart

    def _renewed(self, turn: _Turn, sent_at: float, now: float, renewed: bool | Exception) -> None:
        state = turn.state
        turn.renewing = False
        if not self._lives(turn):
            return
        if isinstance(renewed, Exception):
            turn.failures += 1
            left = max(state.deadline - now, 0.0)
            cut_off = isinstance(renewed, ConnectionCancelled)  # as the program ends, which is no trouble to report
            if not cut_off and now - self._logged_at >= _QUIET:
                self._logged_at = now
                log.warning(
                    "%s: could not be renewed (%s: %s); it is tried again for %.3g s, until its deadline. For %g s, "
                    "nothing more is logged of renewals that fail",
                    state.what, type(renewed).__name__, renewed, left, _QUIET,
                )  # fmt: skip
            self._emit(state, "renewal_failed", left)
            self._push(turn, now, min(retry_delay(state.ttl, turn.failures), left))
        elif renewed:
            turn.failures = 0
            self.renewed[state] = None
            state.validity.extend(sent_at + state.request.valid_for)  # defect: P1-renewal
            taken = now - sent_at  # the lease counts from then, and so does its next renewal
            self._emit(state, "renewed", taken)
            self._push(turn, now, max(renewal_delay(state.ttl, random.random()) - taken, 0.0))
        else:
            self._lose(state, state.refused_as)

    def _lose(self, state: LeaseState, reason: str) -> None:
        self._live.pop(state, None)
        self.renewed.pop(state, None)
        if self._thread is None:
            state.lose(reason)
        else:
            state.lose_from_thread(reason)


def _may_come_early(turn: _Turn, now: float) -> bool:
    """Whether the next thing due is a usual renewal, and soon."""
    usual = not turn.renewing and not turn.failures and now < turn.state.validity.renew_until
    return usual and turn.due - now <= _EARLY * turn.state.ttl


_LOOK = 0.2
"""Seconds between the thread's looks at whether the session's loop is closed."""

_LONGEST_END = 0.5
"""Seconds that the end of a session waits for its thread."""


@final
class ThreadWatchdog:
    """Starts its thread with the first lease; `close` ends it. All methods belong to the session's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._live: set[LeaseState] = set()
        self._thread: threading.Thread | None = None
        self._inner: asyncio.AbstractEventLoop | None = None
        self._pipelines: Pipelines | None = None
        self._watchdog: Watchdog | None = None
        self._beating: asyncio.TimerHandle | None = None
        self._beaten_at = 0.0

    def add(self, state: LeaseState, now: float) -> None:
        """Renew this lease from *now* on."""
        self._tell(Watchdog.add, state, now)
        self._live.add(state)
        if self._beating is not None:
            self._beating.cancel()
        self._beat()  # this lease may allow a shorter stall than the others

    def forget(self, state: LeaseState) -> None:
        """Never renew this lease again; a renewal on its way changes nothing, because the lease is over."""
        if state in self._live:
            self._live.discard(state)
            self._tell(Watchdog.forget, state)

    def renew_all(self, wanted: Callable[[LeaseState], bool] | None = None) -> None:
        """Renew every lease that is *wanted*, as soon as may be; the thread itself hears of its own links only."""
        if self._live:
            self._tell(Watchdog.renew_all, wanted)

    @property
    def renewed(self) -> list[LeaseState]:
        """Those that were renewed before."""
        return [] if self._watchdog is None else list(self._watchdog.renewed)

    def stalled(self, longest: float, now: float) -> bool:
        """Whether the session's loop has not come round for *longest* seconds. Asked by the thread."""
        return self._loop.is_closed() or now - self._beaten_at > longest

    def detach_in_fork(self) -> None:
        """In a forked child, which has no copy of the thread: see `Connection.detach_in_fork`."""
        if self._pipelines is not None:
            self._pipelines.detach_in_fork()

    def close(self) -> None:
        """End the thread, and wait for that: it takes a moment only."""
        self._live.clear()
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None
        thread, self._thread = self._thread, None
        if thread is not None and self._inner is not None:  # equivalent: and/or, there are both or neither
            inner, self._inner, self._watchdog, self._pipelines = self._inner, None, None, None
            try:
                inner.call_soon_threadsafe(inner.stop)
            except RuntimeError:  # it has ended by itself
                return
            thread.join(_LONGEST_END)

    def _tell(self, method: Callable[..., None], *what: object) -> None:
        if self._inner is None or self._watchdog is None:  # equivalent: and/or, there are both or neither
            self._start()
        assert self._inner is not None
        assert self._watchdog is not None
        self._inner.call_soon_threadsafe(method, self._watchdog, *what)

    def _start(self) -> None:
        self._beaten_at = self._clock()
        try:
            inner = asyncio.new_event_loop()
        except OSError as error:
            raise without_room(error) or RedisConnectionError(str(error)) from error
        pipelines = Pipelines(inner, self._clock, lambda: watchdog.renew_all(), lambda: watchdog.renew_all())
        watchdog = Watchdog(inner, self._clock, pipelines, self.stalled)
        thread = threading.Thread(
            target=_run, args=(inner, watchdog, pipelines, self._loop), name="aiolocks-watchdog", daemon=True
        )
        try:
            thread.start()
        except BaseException:  # the machine has no thread to spare
            inner.close()
            raise
        self._inner, self._pipelines, self._watchdog, self._thread = inner, pipelines, watchdog, thread

    def _beat(self) -> None:
        """Show life, four times in the shortest stall that any lease allows."""
        self._beating = None
        self._beaten_at = self._clock()
        if self._live:
            # equivalent: constant, a little more often
            pause = min(state.options.max_stall for state in self._live) / 4
            self._beating = self._loop.call_later(min(pause, 1.0), self._beat)


def _run(
    inner: asyncio.AbstractEventLoop, watchdog: Watchdog, pipelines: Pipelines, outer: asyncio.AbstractEventLoop
) -> None:
    def look() -> None:
        if outer.is_closed():
            inner.stop()
        else:
            inner.call_later(_LOOK, look)

    try:
        inner.call_soon(look)
        inner.run_forever()
    finally:
        watchdog.close()
        pipelines.close()
        inner.run_until_complete(_settle())
        inner.close()


async def _settle() -> None:
    """Let what `close` has cancelled run its course."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=_LONGEST_END)
    await asyncio.sleep(0)
