"""Warns of a lease that never ends and whose process is gone: such a lease keeps its name until it is ended by hand.

A lease always has an expiry, but PERSIST or a tool that rewrites keys can remove it. A live holder restores it with its
next renewal. The key of its session shows whether the holder is alive (W23).
"""

import asyncio
import logging
import weakref
from typing import Any, Protocol

from redis.exceptions import RedisError

from .._core.answers import REPLY_TIMEOUT
from .._core.keys import Keys, session_key
from .._core.tokens import session_of
from .._engine.context import Context
from .._engine.request import resolve_call
from .._redis.clients import lifetime_of
from .._redis.scripts import Arguments, PlainCommand

log = logging.getLogger("aiolocks")

_EXISTS = PlainCommand("EXISTS")

_MOST_TOLD = 1000


class Asked(Protocol):
    """What this module needs of the name's grantor."""

    @property
    def context(self) -> Context: ...

    @property
    def keys(self) -> Keys: ...

    async def ask_once(self, verb: str, args: Arguments) -> Any:
        """Run a script that concerns no lease of this session."""


async def warn_of_endless(grantor: Asked) -> None:
    """Log a warning, once, if the name's holder has no expiry and its session is gone."""
    keys, context = grantor.keys, grantor.context
    try:
        _, *row = await grantor.ask_once("lock/holders", (0,))
        session = session_of(row[0]) if row else b""
        if not session or row[2] != -1:
            return
        found: asyncio.Future[int] = context.loop.create_future()
        key = session_key(keys.channels, session)
        context.pipeline.route(key).submit(_EXISTS, (key,), resolve_call, REPLY_TIMEOUT, None, found)
        if await found:
            return
    except RedisError:  # the waiters' re-checks report it
        return
    told = _told.setdefault(lifetime_of(context.pool), {})
    lease = keys.base, int(row[1])
    if lease not in told:
        if len(told) >= _MOST_TOLD:
            del told[next(iter(told))]
        told[lease] = None
        log.warning(
            "%s %r: its holder's key has no expiry (was it persisted?) and the holder's process is gone, so it never "
            "ends; free it with: aiolocks release NAME --force, or lock.revoke(force=True)",
            keys.kind, keys.name,
        )  # fmt: skip


_told: "weakref.WeakKeyDictionary[Any, dict[tuple[bytes, int], None]]" = weakref.WeakKeyDictionary()
"""Leases that were already warned of, for each pool, by key and fencing token."""
