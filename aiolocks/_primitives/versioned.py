"""`Versioned`: a value that is written only if it is unchanged since it was read.

W10: each write has a random name, which the server remembers while the write may be sent a second time. So a write
whose reply was lost is never treated as another client's.
"""

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, final, overload

from .._core.doing import Doing
from .._core.errors import VersionConflictError
from .._core.hints import NameHints
from .._core.keys import beside, check_name, check_prefix
from .._core.options import Duration, check_permits, check_seconds
from .._core.timing import Backoff
from .._engine.closing import Closing, closed_error
from .._engine.request import LONGEST_RETRY
from .._grantors.session import Session
from .._redis.clients import Client, encoder_of, pool_of
from .._redis.scripts import Arguments, PreparedScript, load

Value = bytes | str | None
"""The value as it is read: str with `decode_responses`, otherwise bytes; None if there is no value."""

Writable = bytes | str | int | float

T = TypeVar("T")
Update = Callable[[T], Writable | Awaitable[Writable]]

MARK = 86400.0
"""Seconds for which the version of a write is unique. After that, only the value distinguishes writes."""

_FIRST_PAUSE, _MAX_PAUSE = 0.01, 0.5
"""Seconds between two attempts of an update: after the first conflict, and at most."""


@final
class Versioned(NameHints):
    """A value in a plain Redis key, for optimistic locking: read it with its version, write it if that is unchanged.

    ::

        stock = Versioned(redis, "stock:42")
        value, version = await stock.read()
        await stock.write(b"17", version)  # VersionConflictError if it was written since
        await stock.update(lambda value: int(value or 0) - 1)  # reads, computes and writes, again if need be

    The value is the key's own: ``GET`` reads it, and any client may write it. A ``SET``, ``INCR`` or ``MULTI`` by
    another client is a conflict for callers that read the value before, and a write by this class is a conflict for the
    ``WATCH`` of others. Only a plain write of the same value goes unnoticed.

    Nothing is locked, no caller waits, and there is no lease: best where conflicts are rare and computing the value
    again is cheap.

    Beside the value there is a small key for a day after each write, and one for a minute per write. A version is valid
    as long as the value is unchanged; once a day has passed without a write, only the value itself is compared.

    Args:
        client: Any `redis.asyncio.Redis`, as you configured it. It is neither modified nor closed.
        key: The key of the value in Redis: 1 to 1,024 bytes of UTF-8.
        expire: Seconds, or a timedelta, that the value lasts after each write; None leaves its expiry as it is.
        prefix: Start of the keys beside the value; no braces.

    Raises:
        TypeError, ValueError: A wrong type, a synchronous client, or a value out of range. Both before any I/O.
    """

    _closing: Closing | None = None
    """The `Closing` of the manager that made this object, if a manager made it."""

    def __init__(self, client: Client, key: str, *, expire: Duration | None = None, prefix: str = "aiolocks:") -> None:
        self._pool = pool_of(client)
        self._key = key
        prefix = check_prefix(prefix)
        self._value = check_name(key)
        seconds = None if expire is None else check_seconds("expire", expire)
        if seconds is not None and seconds < 0.001:
            raise ValueError(f"expire must be >= 0.001 seconds or None, not {expire!r}")
        self._expire_ms = 0 if seconds is None else round(1000 * seconds)
        # On a Cluster all keys must be in the slot of the value, and its key may have a hash tag.
        self._beside = beside(self._value)
        self._start = f"{prefix}versioned:".encode()
        self._mark = self._start + (b"tagged:" if self._beside == self._value else b"") + self._beside

    @property
    def key(self) -> str:
        """The key of the value, as given."""
        return self._key

    async def read(self) -> tuple[Value, str]:
        """Return the value and its version.

        If there is no value it is None, and its version is valid for a write while there is still no value.

        Raises:
            RedisError: Redis could not be asked, or the key holds no string. A cancellation is harmless.
        """
        value, version = await self._ask("read", (self._value, self._mark), ())
        encoder = encoder_of(self._pool)
        return encoder.decode(value) if value is not None else None, version.decode(errors="replace")

    async def write(self, value: Writable, version: str) -> str:
        """Write *value* if the version is still *version*, and return the new version.

        Raises:
            VersionConflictError: Another client has written the value. Nothing was changed.
            TypeError: A value that is not str, bytes, int or float, or a version that is not a str.
            RedisError: Not confirmed, so it may have been written. The same after a cancellation.
        """
        if not isinstance(version, str):
            raise TypeError(f"version must be a str as read() returns it, not {type(version).__name__}")
        if isinstance(value, bool) or not isinstance(value, (bytes, str, int, float)):
            raise TypeError(f"value must be str, bytes, int or float, not {type(value).__name__}")
        write = os.urandom(16).hex().encode()  # equivalent: constant, any random text
        keys = (self._value, self._mark, self._start + write + b":" + self._beside)
        encoded = encoder_of(self._pool).encode(value)
        args = (version.encode(), encoded, write, self._expire_ms, round(1000 * MARK), round(1000 * LONGEST_RETRY))
        written, actual = await self._ask("write", keys, args)
        if not written:
            raise VersionConflictError(
                f"versioned {self._key!r}: it was written since it was read; read it again",
                name=self._key, expected=version, actual=actual.decode(errors="replace"),
            )  # fmt: skip
        return str(actual, "utf-8", "replace")

    # The type of the value depends on the client's `decode_responses`, which its type does not show.
    @overload
    async def update(self, fn: Update[bytes | None], *, attempts: int = 20) -> tuple[Writable, str]: ...
    @overload
    async def update(self, fn: Update[str | None], *, attempts: int = 20) -> tuple[Writable, str]: ...
    async def update(self, fn: Update[Any], *, attempts: int = 20) -> tuple[Writable, str]:
        """Replace the value by ``fn(value)``, and return the new value and its version.

        Args:
            fn: Gets the value (None if there is no value) and returns the new one; may be `async`. It is called again
                for each attempt, so it must not have effects of its own.
            attempts: Maximum number of attempts when others write at the same time. The pauses between attempts are
                random and grow.

        Raises:
            VersionConflictError: Others have written during every attempt.
            RedisError: Not confirmed, so it may have been written, but at most once. The same after a cancellation.
            Exception: Any exception of *fn*; nothing is written then.
        """
        check_permits(attempts, "attempts")
        backoff = Backoff(_FIRST_PAUSE, _MAX_PAUSE, jitter=1.0)
        while True:
            value, version = await self.read()
            new = fn(value)
            if inspect.isawaitable(new):
                new = await new
            try:
                return new, await self.write(new, version)
            except VersionConflictError:
                pause = backoff.failed()
                if backoff.failures == attempts:
                    raise
            await asyncio.sleep(pause)

    def __repr__(self) -> str:
        return f"<Versioned {self._key!r}>"

    async def _ask(self, verb: str, keys: tuple[bytes, ...], args: Arguments) -> Any:
        """Run a script that may run twice, with the retries and patience of the user's client."""
        if self._closing is not None and self._closing.closed:
            raise closed_error("versioned", self._key)
        script = PreparedScript(load(f"versioned/{verb}"), keys)
        with Doing(f"asking for a {verb} of versioned {self._key!r}"):
            return await Session.of(self._pool).context.ask(keys[0], script, args)
