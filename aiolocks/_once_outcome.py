"""The outcome of a run: how it is written to Redis and read there, and what a caller gets of it.

A name has two keys beside those of its lock, in the same Cluster slot:

    kept    the record of a success, for `keep` seconds
    newest  the record of a failure, or of a success that is kept for less than `SHARED` seconds

`newest` is for callers that were waiting. A process reads the fencing token in it before it waits. A larger one later
tells that a run has ended meanwhile. A record is that token in 20 digits, a line of JSON, and the encoded value.
"""

import asyncio
import contextlib
import copy
import json
import logging
import math
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast, final

from redis.exceptions import RedisError

from ._core.doing import Doing
from ._core.errors import LeaseLostError, OnceFailedError, OutcomeMismatchError
from ._core.guard_commands import Command
from ._core.keys import Keys
from ._core.replies import RawReply
from ._core.values import Holder
from ._engine.context import Context
from ._engine.lease import Lease
from ._redis.scripts import PlainCommand

if TYPE_CHECKING:
    from ._once import Once

log = logging.getLogger("aiolocks")

Dumps = Callable[[Any], bytes]
Loads = Callable[[bytes], object]

MAX_BYTES = 2**20
"""Maximum size of an encoded value."""

SHARED = 60.0
"""Seconds beside two TTLs for which waiting callers find an outcome that is not kept. In the queue, each stopped
process costs the ones behind it a TTL."""

_MAX_TEXT = 2000
"""Maximum length of the text of a failure."""

_FENCE = 20
"""Length of the fencing token in a record, in digits."""

_GET, _DEL = PlainCommand("GET"), PlainCommand("DEL")


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """A kept outcome.

    Attributes:
        value: What the function returned, as `loads` makes it.
        at: When the function returned, by the server's clock.
        fencing_token: The fencing token of the run. A later run has a larger one.
    """

    value: object
    at: datetime
    fencing_token: int


@final
class Record:
    """What is written of one run. *failure* names the exception of the function, if that failed."""

    __slots__ = ("_values", "at", "failure", "fence", "fingerprint", "payload")

    def __init__(self, fence: int, at: float, fingerprint: str | None, failure: str | None, payload: bytes) -> None:
        self.fence, self.at, self.fingerprint, self.failure, self.payload = fence, at, fingerprint, failure, payload
        self._values = dict[int, object]()

    def value(self, loads: Loads) -> object:
        """Return the value. All callers of this process with the same *loads* share one object."""
        if id(loads) not in self._values:
            self._values[id(loads)] = loads(self.payload)
        return self._values[id(loads)]

    def encode(self) -> bytes:
        head = json.dumps([self.at, self.fingerprint, self.failure])
        return b"%0*d%b\n%b" % (_FENCE, self.fence, head.encode(), self.payload)

    @classmethod
    def decode(cls, text: bytes) -> "Record":
        """Read what `encode` returned. Raises ValueError if it is something else."""
        head, _, payload = text[_FENCE:].partition(b"\n")
        try:
            at, fingerprint, failure = json.loads(head)
            datetime.fromtimestamp(at, UTC)
            return cls(int(text[:_FENCE]), at, fingerprint, failure, payload)
        except (ValueError, TypeError, OverflowError, OSError):
            raise ValueError("not a record of an outcome") from None


@final
class Caller:
    """One call of `Once.run`, until `answered` is done."""

    __slots__ = ("answered", "context", "fingerprint", "function", "holders", "once", "seen", "timeout", "timer")

    def __init__(
        self, once: "Once", function: Callable[[], Awaitable[Any]], fingerprint: str | None, timeout: float | None,
        answered: "asyncio.Future[Any]",
    ) -> None:  # fmt: skip
        self.once, self.function, self.fingerprint, self.timeout = once, function, fingerprint, timeout
        self.answered = answered
        self.context = copy_context()
        """Context in which its function runs."""
        self.timer: asyncio.TimerHandle | None = None
        self.holders: tuple[Holder, ...] | None = None
        """Who ran when its time was nearly over; None if that is not known."""
        self.seen: int | None = None
        """Fencing token of the newest run that had ended when it came. None: Redis was not asked yet."""

    @property
    def newest_seen(self) -> float:
        """The same; nothing is newer as long as Redis was not asked."""
        return math.inf if self.seen is None else self.seen

    def answer(self, value: object = None, error: BaseException | None = None) -> None:
        self.stop_timer()
        if self.answered.done():
            return
        if error is None:
            self.answered.set_result(value)
        else:
            if isinstance(error, StopIteration):  # no future takes it
                stopped, error = error, RuntimeError(f"once {self.once.name!r}: StopIteration was raised")
                error.__cause__ = stopped
            self.answered.set_exception(error)
            self.answered.exception()  # a caller that has just been cancelled does not read it

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def shares(self, record: Record) -> bool:
        return self.fingerprint is None or self.fingerprint == record.fingerprint


@final
class Store:
    """Reads and writes the outcomes of one name. It has no state of its own."""

    def __init__(self, context: Callable[[], Context], keys: Keys, keep: float, ttl: float) -> None:
        self.keep = keep
        self._context = context
        self._name = keys.name
        self._shared = SHARED + 2 * ttl
        self._kept, self._newest = keys.part(b"kept"), keys.part(b"newest")

    async def kept(self, *, at_once: bool = False) -> Record | None:
        """Return the kept outcome, with one GET. With *at_once*, retry only as often as the client does.

        Raises:
            ValueError: Another program has written the key.
            RedisError: Redis could not be asked within 10 s.
        """
        return self._decoded(await self._ask(_GET, self._kept, at_once=at_once))

    async def read(self, *, at_once: bool = False) -> tuple[Record | None, bool]:
        """Return what the newest run has left, and whether it is kept. Raises the same errors."""
        record = await self.kept(at_once=at_once)
        if record is not None:
            return record, True
        return self._decoded(await self._ask(_GET, self._newest, at_once=at_once)), False

    async def forget(self) -> None:
        await self._ask(_DEL, self._kept, self._newest)

    async def check(self, lease: Lease) -> tuple[bool, int, float]:
        """Return whether an outcome is kept, the fencing token of the newest run, and the time of the server."""
        kept, digits, now = await lease.guard(
            ("EXISTS", self._kept), ("GETRANGE", self._newest, 0, _FENCE - 1), ("TIME",)
        )
        seconds, microseconds = map(int, cast("list[bytes]", now))
        newest = int(digits) if isinstance(digits, (bytes, str)) and digits.isdigit() else 0
        return bool(kept), newest, seconds + microseconds / 1e6

    async def publish(self, record: Record, lease: Lease, *, shared: bool) -> bool:
        """Write *record*, if *shared*, unless the lease is lost. Return whether later callers find it.

        Without an answer of Redis, or with a value that is too large, a WARNING says that others run again.

        Raises:
            LeaseLostError: The lease is lost, and *record* that of a success.
        """
        lost: tuple[type[Exception], ...] = (LeaseLostError,) if record.failure is None else ()
        if len(record.payload) > MAX_BYTES:
            lease.check()
            why = f"its value has {len(record.payload)} bytes, and the maximum is {MAX_BYTES}"
        else:
            try:
                if shared:
                    await self._write(record, lease)
                return record.failure is None and self.keep > 0
            except lost:
                raise
            except (RedisError, OSError) as error:
                why = str(error)
        log.warning("once %r: the outcome is not written, so callers elsewhere run again: %s", self._name, why)
        return False

    async def _write(self, record: Record, lease: Lease) -> None:
        text, keep = record.encode(), self.keep if record.failure is None else 0.0
        commands: list[Command] = [("SET", self._kept, text, "PX", _ms(keep))] if keep else []
        if keep < self._shared:
            commands.append(("SET", self._newest, text, "PX", _ms(self._shared)))
        await lease.guard(*commands)

    async def _ask(self, command: PlainCommand, *keys: bytes, at_once: bool = False) -> RawReply:
        with Doing(f"{'reading' if command is _GET else 'removing the outcome of'} once {self._name!r}"):
            return await self._context().ask(keys[0], command, keys, once=at_once)

    def _decoded(self, text: bytes | None) -> Record | None:
        try:
            return None if text is None else Record.decode(text)
        except ValueError as error:
            raise ValueError(f"once {self._name!r}: what is kept is {error}; await once.forget() removes it") from None


def _ms(seconds: float) -> int:
    return max(math.ceil(1000 * seconds), 1)


def failure_of(error: BaseException) -> str:
    """Return the name of the type of *error* and its text."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be shown)"
    return f"{name}: {text[:_MAX_TEXT]}" if text else name


def is_outcome(error: BaseException, lease: Lease, name: str) -> bool:
    """Return whether *error* is the function's own, and not that of a loss, a cancellation or the loop's end."""
    if isinstance(error, GeneratorExit) or not lease.held:
        return False
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        return True
    if isinstance(error, Exception):  # no caller is left to get it
        log.error("once %r: the function raised as it was cancelled", name, exc_info=error)
    return False


def mismatch(name: str) -> OutcomeMismatchError:
    return OutcomeMismatchError(
        f"once {name!r}: an outcome with another fingerprint is kept, so the name was used for another request",
        name=name,
    )


def failed_elsewhere(name: str, failure: str) -> OnceFailedError:
    return OnceFailedError(f"once {name!r}: the run of another caller failed with {failure}", name=name)


def copied(error: BaseException, name: str) -> Exception:
    """Return a copy of *error*, with *error* as its cause, because each task needs a traceback of its own."""
    other: object = None
    if isinstance(error, Exception):
        with contextlib.suppress(Exception):  # its class may not allow it
            other = copy.copy(error)
    if not isinstance(other, Exception) or other is error or type(other) is not type(error):
        other = failed_elsewhere(name, failure_of(error))
    elif hasattr(other, "__notes__"):
        other.__notes__ = [*other.__notes__]
    other.__cause__ = error
    return other
