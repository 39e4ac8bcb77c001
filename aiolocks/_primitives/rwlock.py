"""`RWLock`: many readers or one writer, in one queue."""

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, final

from .._core.hints import NameHints, explains_misuse, held_by_mode
from .._core.modes import EXCLUSIVE, SHARED, UPGRADEABLE
from .._core.options import Duration, Options, Replicas, options_of
from .._engine.acquire import Acquisition
from .._engine.must_await import LOCKED, must_await
from .._grantors.min_hold import MinHold
from .._redis.clients import Client
from .base import Acquirable
from .mode_changes import ModeChanges


@final
class RWLock(NameHints):
    """Many readers at once, or one writer alone, over all processes that use the same Redis and name.

    ::

        rw = RWLock(redis, "catalogue")
        async with rw.read:  # beside other readers
            ...
        async with rw.write:  # alone
            ...
        async with rw.upgradeable as lease:  # beside readers, and one at a time
            async with lease.upgrade(timeout=5):  # alone, once the readers have gone
                ...

    First come, first served: callers that ask after a writer wait behind it, so neither side starves. Readers that wait
    next to each other are granted together. Each reader has a lease of its own. A writer becomes a reader by
    `await lease.downgrade()`, and no other writer gets in between.

    The object itself cannot be acquired; `read`, `write` and `upgradeable` can.

    Arguments and errors are those of `Lock`. With `track`, only leases of `write` are tracked, until they are
    downgraded. An upgrade has no `min_hold`.
    """

    __slots__ = ("read", "upgradeable", "write")

    @explains_misuse
    def __init__(
        self, client: Client, name: str, *, ttl: Duration = 30.0, acquire_timeout: Duration | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel", renew: bool = True, max_hold: Duration | None = None,
        watchdog: Literal["task", "thread"] = "task", max_stall: Duration = 60.0, replicas: Replicas = 0,
        wait_release: bool = True, min_uptime: Duration = 0.0, min_hold: Duration = 0.0, track: bool = False,
        max_waiting: int | None = None, note: str | None = None, prefix: str = "aiolocks:",
    ) -> None:  # fmt: skip
        options = options_of(
            ttl, acquire_timeout, on_lost, renew, max_hold, watchdog, max_stall, replicas, wait_release,
            min_uptime, min_hold, track, max_waiting, note,
        )  # fmt: skip
        untracked = replace(options, track=False) if track else options
        self.read = RWLockMode(client, name, prefix, untracked, "read", SHARED)
        """Beside other readers, and one upgradeable."""
        self.upgradeable = RWLockMode(client, name, prefix, untracked, "upgradeable", UPGRADEABLE)
        """Beside readers; its lease can become exclusive by `lease.upgrade()`. One at a time."""
        self.write = RWLockMode(client, name, prefix, options, "write", EXCLUSIVE)
        """Alone."""

    @property
    def name(self) -> str:
        """The name, as given."""
        return self.read.name

    def __repr__(self) -> str:
        return f"<RWLock {self.name!r}>"

    if not TYPE_CHECKING:  # type checkers know without it
        __aenter__ = __aexit__ = __enter__ = __exit__ = held_by_mode


@final
class RWLockMode(Acquirable):
    """One way to hold a read-write lock: its `read`, `write` or `upgradeable`. Make an `RWLock` to get one."""

    _kind: ClassVar[str] = "rwlock"

    def __init__(self, client: Client, name: str, prefix: str, options: Options, word: str, mode: int) -> None:
        super().__init__(client, name, prefix, options)
        self._word = word
        self._amount = mode
        self._of_upgrades = tuple(each for each in self._extensions if not isinstance(each, MinHold))

    @property
    def _called(self) -> str:
        return f"RWLock.{self._word}"

    def _new_acquisition(self, timeout: float | None, permits: int, *, entering: bool) -> Acquisition:
        acquisition = super()._new_acquisition(timeout, permits, entering=entering)
        acquisition.changes = ModeChanges(self._closing, self._of_upgrades)
        return acquisition

    @must_await(LOCKED)
    async def locked(self) -> bool:
        """Return True if a holder excludes this mode: a writer excludes `read`, any holder excludes `write`.

        So ``rw.read.locked()`` is False beside readers. Waiters do not count, though a reader may have to wait behind
        one. The errors are those of `Lock.locked`.
        """
        [grantor] = self._grantors()
        *_, free = await grantor.statistics(waiting=False)  # equivalent: constant, nothing reads how many wait
        return not free[self._amount - 1]

    def __repr__(self) -> str:
        return f"<RWLock {self.name!r} {self._word}>"
