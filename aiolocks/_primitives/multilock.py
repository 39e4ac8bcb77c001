"""`MultiLock`: several names at once, all or none."""

from collections.abc import Iterable
from typing import ClassVar, Literal, final

from .._core.hints import NameHints, explains_misuse
from .._core.keys import Keys
from .._core.options import Duration, Replicas, options_of
from .._engine.context import Grantor
from .._grantors.all_of import AllOf
from .._redis.clients import Client, pool_of
from .base import Acquirable

MOST_NAMES = 1000
"""Maximum number of names. With the words that `lease.guard` takes, they fit on Lua's stack, and renewing them takes
the server a few ms."""


@final
class MultiLock(Acquirable):
    """Several names held as one: all of them or none, and no deadlock whatever the order in which callers name them.

    ::

        async with MultiLock(redis, ["account:1", "account:2"]) as lease:
            lease.fencing_tokens["account:1"]

    It excludes every other `MultiLock` that has one of the names, and nothing else: a `Lock` of such a name is another
    lock, as a `Semaphore` would be. So use `MultiLock` everywhere for names that are locked together, also for one of
    them alone.

    While it waits for one name it may hold others, which sort before it, and renews them. There is one lease, which is
    lost when one of the names is lost. Then all names are released.

    The other arguments and the errors are those of `Lock`.

    Args:
        names: What to lock: 1 to 1,000 names, in any order, duplicates allowed; each 1 to 1,024 bytes of UTF-8.
    """

    _kind: ClassVar[str] = "multilock"

    @explains_misuse
    def __init__(
        self, client: Client, names: Iterable[str], *, ttl: Duration = 30.0, acquire_timeout: Duration | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel", renew: bool = True, max_hold: Duration | None = None,
        watchdog: Literal["task", "thread"] = "task", max_stall: Duration = 60.0, replicas: Replicas = 0,
        wait_release: bool = True, min_uptime: Duration = 0.0, min_hold: Duration = 0.0, track: bool = False,
        max_waiting: int | None = None, note: str | None = None, prefix: str = "aiolocks:",
    ) -> None:  # fmt: skip
        given: object = names
        if isinstance(given, (str, bytes)):
            raise TypeError(f"names must be several, such as [{given!r}], not one {type(given).__name__}")
        if not isinstance(given, Iterable):
            pool_of(client)  # client and names may be swapped
            _check_no_lock(given)
            raise TypeError(f'names must be several, such as ["a", "b"], not {type(given).__name__}')
        each: dict[str, Keys] = {}
        for name in names:
            _check_no_lock(name)
            keys = Keys(prefix, self._kind, name)
            each[keys.name] = keys
        if not each:
            raise ValueError("names must not be empty")
        if len(each) > MOST_NAMES:
            raise ValueError(
                f"a MultiLock takes at most {MOST_NAMES:,} names, not {len(each):,}; use one name for many of them"
            )
        options = options_of(
            ttl, acquire_timeout, on_lost, renew, max_hold, watchdog, max_stall, replicas, wait_release,
            min_uptime, min_hold, track, max_waiting, note,
        )  # fmt: skip
        super().__init__(client, min(each), prefix, options)  # equivalent: min/max, these keys are not used
        self._each = [each[name] for name in sorted(each)]
        self._base = tuple(keys.base for keys in self._each)

    @property
    def name(self) -> str:
        """All names in order, joined by commas."""
        return ", ".join(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The names, each once, in the order in which they are acquired."""
        return tuple(keys.name for keys in self._each)

    def _grantor(self) -> Grantor:
        return AllOf(self._session().context, self._kind, self.name, self._grantors(), self._options)


def _check_no_lock(name: object) -> None:
    """Raise TypeError if *name* is a lock or semaphore."""
    if isinstance(name, NameHints):
        raise TypeError(
            f"a MultiLock takes names, not locks such as this {type(name).__name__}; to hold several locks or "
            "semaphores, enter them in the same order everywhere: `async with first, second:`"
        )
