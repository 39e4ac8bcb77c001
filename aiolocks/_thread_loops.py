"""`Once` and `Election` for threads: the function runs in the calling thread, which nothing can stop.

So after a loss of the lease, or `resign`, its lease raises LeaseLostError until the function ends by itself.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import TypeVar, cast, final

from ._core.errors import AcquireTimeoutError, LeaseLostError
from ._core.guard_commands import Command, Reply
from ._core.options import UNSET, Duration, Unset
from ._core.values import Holder
from ._election import Election as AsyncElection
from ._engine.lease import Lease as AsyncLease
from ._engine.lease import state_of
from ._faces import Lease, Named, waits
from ._once import Once as AsyncOnce
from ._threads import Call

T = TypeVar("T")


@final
class Once(Named):
    """One caller in the fleet runs a function, and all others get its outcome; `aiolocks.Once` for threads."""

    outcome = waits(AsyncOnce.outcome)
    forget = waits(AsyncOnce.forget)
    holders = waits(AsyncOnce.holders)
    waiters = waits(AsyncOnce.waiters)
    revoke = waits(AsyncOnce.revoke)

    def run(
        self, function: Callable[[], T], *, timeout: Duration | Unset | None = UNSET, fingerprint: str | None = None
    ) -> T:
        """Return the kept outcome; or wait for that of a caller who runs already; or run ``function()``.

        *function* is a plain function. It runs in this thread. Parameters and errors are those of `aiolocks.Once.run`.

        A loss of the lease cannot stop *function*. When it returns, LeaseLostError is raised, and nothing is kept. If
        this thread is interrupted while *function* runs, nothing is kept either, and the next caller runs.
        """
        call = Call[T](lambda: self._inner.run(call.in_thread(function), timeout=timeout, fingerprint=fingerprint))
        return call.result(self._of, apart=True)


_Office = tuple[object, bytes]
"""A pool, and the base of the keys of an election."""


@final
class _Term(Lease):
    """The lease of a leader. After `resign` it is not held here, and is renewed until `lead` has ended."""

    def __init__(self, inner: AsyncLease, resigning: asyncio.Event, thread: int, office: _Office) -> None:
        super().__init__(inner, "Election")
        self.resigning, self.thread, self.office = resigning, thread, office

    @property
    def held(self) -> bool:
        return not self.resigning.is_set() and super().held

    def remaining(self) -> float:
        return super().remaining() if self.held else 0.0

    def check(self) -> None:
        super().check()
        if self.resigning.is_set():
            raise state_of(self._inner).error("this process has resigned")

    def guard(self, *commands: Command) -> list[Reply]:
        self.check()
        return super().guard(*commands)

    def wait_lost(self) -> bool:
        return self._call(Call(self._wait_over))

    async def _wait_over(self) -> bool:
        waits = [asyncio.ensure_future(self._inner.wait_lost()), asyncio.ensure_future(self.resigning.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self.lost


_terms = set[_Term]()
"""Those of this process whose `lead` has not ended. Only the loop changes it."""


@final
class Election(Named):
    """One leader in the fleet; `aiolocks.Election` for threads. Each object is a candidate."""

    _term: _Term | None = None
    """While `lead` runs."""

    leader = waits(AsyncElection.leader)
    waiters = waits(AsyncElection.waiters)
    revoke = waits(AsyncElection.revoke)
    _resign = waits(AsyncElection.resign)

    @property
    def is_leader(self) -> bool:
        """Whether this object certainly leads now, and has not resigned. It reads the clock."""
        return self.term is not None

    @property
    def term(self) -> int | None:
        """The fencing token of the lease while `is_leader`, else None. Each term has a larger one than all before."""
        term = self._term
        return term.fencing_token if term is not None and term.held else None

    def run(self, lead: Callable[[Lease], T]) -> T:
        """Wait to be elected, and call ``lead(lease)`` in this thread. Stand again after each loss of the lease.

        A loss, or `resign`, cannot stop *lead*. `lease.held` is False then, and `lease.check()` and `lease.guard()`
        raise LeaseLostError. So *lead* calls one of them before each write, and ends by that error, or returns. Then
        `run` stands again. After a loss, another process can lead at once. After `resign`, it waits for the end of
        *lead*.

        `run` ends when *lead* returns or raises while it leads, when this thread is interrupted, as by Ctrl-C, or when
        the manager is closed while it stands. Nothing stays held or queued. At the exit of the program, it ends only in
        a daemon thread.

        Raises:
            Exception: Any exception of *lead*, and those of `aiolocks.Election.run`.
            RuntimeError: This object runs already, this thread leads already, or the manager is closed.
        """
        here = threading.get_ident()
        if any(term.thread == here and term.office == self._office and term._inner.held for term in tuple(_terms)):
            raise RuntimeError(f"election {self.name!r}: this thread leads already, and would wait for itself")
        call = Call[T](lambda: self._inner.run(partial(self._lead, call.in_thread(lead), here)))
        return call.result(self._of, apart=True)

    async def _lead(self, lead: Callable[[Lease], Awaitable[T]], thread: int, lease: AsyncLease) -> T:
        self._term = term = _Term(lease, self._inner._candidacy.resigning, thread, self._office)
        _terms.add(term)
        try:
            return await lead(term)
        except LeaseLostError as error:
            if not term.resigning.is_set() or (error.name, error.fencing_token) != (term.name, term.fencing_token):
                raise
            return cast("T", None)  # it stands again, and drops the result
        finally:
            self._term = None
            _terms.discard(term)

    @property
    def _office(self) -> _Office:
        lock = self._inner._primitive
        return lock._pool, lock._keys.base

    def resign(self, *, timeout: Duration | None = None) -> bool:
        """Let `lease.check()` of `lead` raise, wait for the end of `lead`, and stand again at the end of the queue.

        The lease is renewed until then, so that no other process leads at the same time. If the thread of `lead` calls
        it, it does not wait.

        Args:
            timeout: Seconds to wait. None waits for ever. 0 does not wait.

        Returns:
            True once this object does not lead any more. False if it did not lead, or only stands.

        Raises:
            AcquireTimeoutError: `lead` has not ended within *timeout*. `lease.check()` raises all the same, as it does
                after an interruption of this call.
        """
        term = self._term
        if term is None or term.thread != threading.get_ident():
            return self._resign(timeout=timeout)
        try:
            return self._resign(timeout=0)
        except AcquireTimeoutError:
            return True

    def changes(self) -> Generator[Holder | None, None, None]:
        """Yield the leader, or None, at once and after every change: ``for leader in election.changes():``.

        It does not stand for election. It looks every third of a TTL, so it can miss a leader of a shorter time. During
        an outage of Redis it tries again, for ever, and logs one line a minute. An interruption ends it.

        Raises:
            RedisError: As for `run`.
        """
        changes = self._inner.changes()
        while True:
            yield Call[Holder | None](changes.__anext__).result(self._of)
