"""`HierarchicalLock`: paths such as table, page and row, to be read or written at any level."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, final

from .._core.hints import NameHints, explains_misuse, held_by_mode
from .._core.keys import Keys
from .._core.modes import EXCLUSIVE, FRONT, INTENT_EXCLUSIVE, INTENT_SHARED, SHARED
from .._core.options import Duration, Options, Replicas, options_of
from .._core.untyped import Task
from .._engine.acquire import Acquisition
from .._engine.context import Context
from .._engine.must_await import LOCKED, must_await
from .._engine.request import Request
from .._grantors.all_of import AllOf
from .._grantors.session import Session
from .._redis.clients import Client
from .._redis.scripts import PreparedScript, load
from .base import Acquirable

_ABOVE = {SHARED: INTENT_SHARED, EXCLUSIVE: INTENT_EXCLUSIVE}
"""The mode held at the levels above, by the mode at the end of the path: a mode for all that lies below."""

_GOES_WITH = {INTENT_SHARED: {INTENT_SHARED, INTENT_EXCLUSIVE, SHARED}, INTENT_EXCLUSIVE: set(_ABOVE.values())}
"""For each mode, the modes in which a task's own blocks may hold the same level. For other modes there are none."""


@final
class HierarchicalLock(NameHints):
    """A path whose end can be read by many or written by one, together with all that lies below it.

    ::

        async with HierarchicalLock(redis, "shop/orders/42").write:  # one order
            ...
        async with HierarchicalLock(redis, "shop/orders").read:  # all orders: waits for it
            ...

    A reader of "shop/orders" excludes writers of anything below it, and a writer excludes all use of anything below it.
    Likewise, they wait for holders below. Paths side by side do not exclude each other. The levels above are held by
    intention locks (Gray and others, 1975), so the cost does not grow with the number of rows. Each level has its own
    queue, first come, first served; users of whole tables do not starve, nor do users of single rows.

    A lease has one fencing token, larger than all earlier ones at any level of its path: pass it to the resource that
    keeps the row, the table or the shop.

    The object itself cannot be acquired; `read` and `write` can. A task may hold several paths, also of one tree: it
    passes the queue at the levels that its open blocks hold. Within its own block it may read or write a path beside
    the block's path, and read below a path that it reads. Any other request might deadlock with the task's own blocks
    and raises `RuntimeError`: the same path again, a path above it, writing below it, reading below a path that it
    writes. Use one block on the path above both instead. Tasks that acquire several paths should use the same order.

    The other arguments and the errors are those of `Lock`. `min_hold` is for all levels.

    Args:
        path: Names of the levels, from the root down, separated by "/"; up to 1,024 bytes of UTF-8 in all.
    """

    __slots__ = ("read", "write")

    @explains_misuse
    def __init__(
        self, client: Client, path: str, *, ttl: Duration = 30.0, acquire_timeout: Duration | None = None,
        on_lost: Literal["cancel", "flag"] = "cancel", renew: bool = True, max_hold: Duration | None = None,
        watchdog: Literal["task", "thread"] = "task", max_stall: Duration = 60.0, replicas: Replicas = 0,
        wait_release: bool = True, min_uptime: Duration = 0.0, min_hold: Duration = 0.0,
        max_waiting: int | None = None, note: str | None = None, prefix: str = "aiolocks:",
    ) -> None:  # fmt: skip
        options = options_of(
            ttl, acquire_timeout, on_lost, renew, max_hold, watchdog, max_stall, replicas, wait_release,
            min_uptime, min_hold, False, max_waiting, note,
        )  # fmt: skip
        self.read = HierarchicalMode(client, path, prefix, options, "read", SHARED)
        """Beside other readers of the path and of anything below it."""
        self.write = HierarchicalMode(client, path, prefix, options, "write", EXCLUSIVE)
        """Alone, with everything below the path."""

    @property
    def name(self) -> str:
        """The path, as given."""
        return self.read.name

    def __repr__(self) -> str:
        return f"<HierarchicalLock {self.name!r}>"

    if not TYPE_CHECKING:  # type checkers know without it
        __aenter__ = __aexit__ = __enter__ = __exit__ = held_by_mode


@final
class HierarchicalMode(Acquirable):
    """One way to hold a path: its `read` or `write`. Make a `HierarchicalLock` to get one."""

    _kind: ClassVar[str] = "hierarchy"

    def __init__(self, client: Client, path: str, prefix: str, options: Options, word: str, mode: int) -> None:
        super().__init__(client, path, prefix, options)
        self._levels = _levels(prefix, self._kind, path)
        *self._above, self._keys = self._levels
        self._each, self._modes_above = [self._keys], tuple(_ABOVE)
        self._modes = [_ABOVE[mode]] * len(self._above) + [mode]
        self._base = tuple(_held(keys, mode) for keys, mode in zip(self._levels, self._modes, strict=True))
        self._word = word
        self._amount = mode

    @property
    def _called(self) -> str:
        return f"HierarchicalLock.{self._word}"

    @must_await(LOCKED)
    async def locked(self) -> bool:
        """Return True if a holder excludes this mode, here or at a level above. It raises as `Lock.locked` does."""
        session = self._session()
        # equivalent: constant, nothing reads how many wait
        asked = [session.grantor(keys).statistics(waiting=False) for keys in self._levels]
        answers: list[Any] = await asyncio.gather(*asked)
        return not all(answer[-1][mode - 1] for answer, mode in zip(answers, self._modes, strict=True))

    def _new_acquisition(self, timeout: float | None, permits: int, *, entering: bool) -> Acquisition:
        session, task = self._session(), asyncio.current_task()
        tickets = self._tickets(session.context, task)
        if entering and None in tickets:
            raise RuntimeError(
                f"{self._kind} {self.name!r}: this task is inside a block of the same tree, and might wait for itself. "
                "Inside it, you can hold paths beside its own, and read paths below a path that it reads. "
                "For more, hold the path above both in one block around them"
            )
        # equivalent: constant, the line above has checked it
        acquisition = super()._new_acquisition(timeout, permits, entering=False)
        asked = [(mode, ticket or 0) for mode, ticket in zip(self._modes, tickets, strict=True)]
        grantors = [session.grantor(keys) for keys in self._levels]
        seal = partial(self._seal, session) if len(grantors) > 1 else None
        acquisition.grantor = AllOf(session.context, self._kind, self.name, grantors, self._options, asked, seal)
        return acquisition

    def _would_wait_for_itself(self, context: Context, task: Task | None) -> bool:
        return None in self._tickets(context, task)

    def _tickets(self, context: Context, task: Task | None) -> list[int | None]:
        """Return the first ticket for each level: FRONT passes the queue, 0 does not. None means a possible deadlock.

        W12: a task passes the queue at a level that its open blocks hold. Behind a waiter for these blocks, it would
        wait for itself. If its blocks only read below that level and it now asks to write there, it may still wait for
        readers of the whole level. They never wait for this task, as no other task writes below what they read.
        """
        tickets: list[int | None] = []
        for keys, mode in zip(self._levels, self._modes, strict=True):
            held = {other for other in (*_ABOVE, *_ABOVE.values()) if context.holdings.inside(task, _held(keys, other))}
            beside = FRONT if held <= _GOES_WITH.get(mode, set()) else None
            tickets.append(beside if held else 0)
        return tickets

    async def _seal(self, session: Session, request: Request) -> int:
        """Give all levels one fencing token, in one step; return 0 if a level is not held any more."""
        script = PreparedScript(load("modes/fence"), tuple(
            key for keys in self._levels for key in (keys.base, keys.part(b"meta"))
        ))  # fmt: skip
        tokens = tuple(part.request.token for part in request.parts)
        until = session.context.clock() + request.terms.ttl / 2
        return int(await session.grantor(self._keys).ask_until(until, script, tokens))

    def __repr__(self) -> str:
        return f"<HierarchicalLock {self.name!r} {self._word}>"


def _held(keys: Keys, mode: int) -> bytes:
    """Return the name under which `Holdings` lists a level that is held in *mode*."""
    return b"%b %d" % (keys.base, mode)


def _levels(prefix: str, kind: str, path: str) -> list[Keys]:
    names = path.split("/")
    if not all(names):
        raise ValueError(f'path must be names separated by "/", none of them empty, not {path!r}')
    # defect: levels-above
    return [Keys(prefix, kind, "/".join(names[:depth]), path=True) for depth in range(1, len(names) + 1)]
