"""Shared by `locked` of `aiolocks.fastapi` and of `aiolocks.aiohttp`: its arguments, and the lock around a request.

The one rule: until the response has begun, an error becomes an HTTP answer. Afterwards the error itself is raised, so
that the response is cut off.
"""

import asyncio
import logging
import math
import re
import unicodedata
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from string import Formatter
from typing import Any, Literal, Protocol, final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from ._core.background import LAST_GRACE
from ._core.errors import AcquireTimeoutError, LeaseLostError
from ._core.keys import check_name
from ._core.options import Duration, TrackedOptions, check_seconds, check_timeout
from ._engine.lease import Lease
from ._grantors.session import Session
from ._manager import LockManager, check_manager
from ._primitives.lock import Lock
from ._primitives.semaphore import Semaphore
from ._redis.clients import pool_of

log = logging.getLogger("aiolocks")

Status = Literal[423, 409, 429, 503]
STATUSES = (423, 409, 429, 503)

RESTART = 1012
"""Close code for a WebSocket whose lease was lost: "service restart", so the client may connect again."""

TRY_LATER = 1013
"""Close code for a WebSocket that was accepted before the lock turned out to be busy."""

LOST = "lease lost"
"""Reason in the close frame of a WebSocket whose lease was lost."""

_POLL_INTERVAL = 0.002

_FIELD = re.compile(r"[^\W\d][\w-]*")


class Answers(Protocol):
    """The answers of one framework to a request that cannot go on."""

    def refusal(self, status: int, retry_after: int | None, detail: str | None) -> Exception:
        """Return the answer *status* as an exception, with Retry-After unless *retry_after* is None."""
        ...

    def invalid(self, name: str, why: str) -> Exception:
        """Return the exception for a request whose values make an invalid *name*."""
        ...

    def loss(self, retry_after: int | None) -> Exception | None:
        """Return the exception for a lost lease. None: the response has begun, and is cut off."""
        ...

    def is_success(self, error: Exception) -> bool:
        """Return True if *error*, raised by a handler, is an answer below 400 or the normal closure of a WebSocket."""
        ...


@final
class Plan:
    """The arguments of `locked` that both frameworks share, checked when it is called."""

    def __init__(
        self,
        place: str,
        *,
        limit: int | None,
        timeout: Duration | None,
        status: Status,
        retry_after: Duration | None,
        detail: str | None,
        options: TrackedOptions,
    ) -> None:
        check_timeout("timeout", timeout)
        if retry_after is not None and check_seconds("retry_after", retry_after) < 0:
            raise ValueError(
                f"retry_after must be >= 0 seconds, or None to use the error's retry_after, not {retry_after!r}"
            )
        if status not in STATUSES:
            raise ValueError(f"status must be 423, 409, 429 or 503, not {status!r}")
        if detail is not None and not isinstance(detail, str):
            raise TypeError(f"detail must be a str, or None for the default text of the status, not {detail!r}")
        for name in ("acquire_timeout", "blocking_timeout"):
            if name in options:
                raise TypeError(f"locked() has no {name!r}: use timeout=")
        if not options.get("wait_release", True):
            raise TypeError(
                "locked() has no 'wait_release': a handler always waits, so that its answer can report a loss"
            )
        self._place = place
        self._limit = limit
        self._timeout = timeout
        self._status = int(status)  # an HTTPStatus is an int
        self._retry_after = None if retry_after is None else check_seconds("retry_after", retry_after)
        self._detail = detail
        self._options: TrackedOptions = {**options, "wait_release": True}  # whatever the manager's default
        self._lock(LockManager(Redis()), "checks limit and options")  # no I/O

    def _lock(self, manager: LockManager, name: str) -> Lock | Semaphore:
        if self._limit is None:
            return manager.lock(name, **self._options)
        options: Any = self._options  # if they include `track`, semaphore() raises
        return manager.semaphore(name, self._limit, **options)

    @asynccontextmanager
    async def hold(self, manager: LockManager, name: str, answers: Answers) -> AsyncGenerator[Lease]:
        """Hold the lock around a request, and translate errors into answers."""
        check_manager(manager, self._place)
        try:
            check_name(name)
        except ValueError as error:
            raise answers.invalid(name, str(error)) from None
        lock = self._lock(manager, name)
        try:
            lease = await lock.acquire(timeout=self._timeout)
        except AcquireTimeoutError as busy:
            raise answers.refusal(self._status, self._seconds(busy.retry_after), self._detail) from busy
        except (RedisError, OSError) as error:
            log.warning("request refused: Redis could not be asked for %r: %s: %s", lock, type(error).__name__, error)
            raise answers.refusal(503, self._seconds(), None) from error
        success: Exception | None = None
        try:
            async with lease:
                try:
                    yield lease
                except Exception as error:
                    if not answers.is_success(error):
                        raise
                    # A block raises no loss over an exception of its body (P12), so the success is raised after it.
                    success = error
        except LeaseLostError as lost:
            answer = answers.loss(self._seconds())
            if answer is None:
                raise
            log.warning("request ended: %s", lost)
            raise answer from lost
        if success is not None:
            raise success

    def _seconds(self, own: float | None = 1.0) -> int | None:
        """Return whole seconds for Retry-After: from the argument of `locked`, or else the error's *own*, if any."""
        if self._retry_after is not None:
            return math.ceil(self._retry_after)
        return None if own is None else max(math.ceil(own), 1)


def retry_header(seconds: int | None) -> dict[str, str]:
    """Return the Retry-After header, or none if *seconds* is None."""
    return {} if seconds is None else {"Retry-After": str(seconds)}


async def releases(manager: LockManager) -> None:
    """Wait up to a second until the requests that the server cancelled have released their locks.

    Servers such as uvicorn end the process right after the application.
    """
    session = Session.find(pool_of(manager.client))
    if session is None:
        return
    context, ours = session.context, asyncio.current_task()

    def unreleased() -> bool:
        return bool(context.tokens) and any(task.cancelling() for task in asyncio.all_tasks() - {ours})

    until = context.clock() + LAST_GRACE
    while (now := context.clock()) < until:
        if not unreleased() and not context.undos.begun_since(now - LAST_GRACE):
            return
        await asyncio.sleep(_POLL_INTERVAL)


def name_from(template: str, values: Mapping[str, object]) -> str:
    """Return the name of a lock. Texts are put into Unicode's form NFC, as one text can reach us in several forms."""
    # A member of a `(str, Enum)` is a text too, but is formatted as "Size.SMALL".
    texts = {
        field: unicodedata.normalize("NFC", str.__str__(value)) if isinstance(value, str) else value
        for field, value in values.items()
    }
    return template.format_map(texts)


def fields_of(template: str) -> list[str]:
    """Return the fields of *template*; raise ValueError unless they are plain names and it can make a lock's name."""
    try:
        parsed = list(_parse(template))
    except ValueError as error:
        raise ValueError(f"name is not a template: {error}: {template!r}") from None
    fields = [field for _, field in parsed if field is not None]
    if not all(map(_FIELD.fullmatch, fields)):
        raise ValueError(f"name must be a template over parameters of the path, not {template!r}")
    literal = "".join(text for text, _ in parsed)
    if literal or not fields:
        check_name(literal)
    return fields


def _parse(template: str, depth: int = 0) -> Iterator[tuple[str, str | None]]:
    """Return each text and field of *template*. Raise ValueError for what `str.format` would refuse in any request."""
    for text, field, spec, conversion in Formatter().parse(template):
        if conversion not in (None, "r", "s", "a"):
            raise ValueError(f"there is no conversion {conversion!r}")
        if field is not None and depth > 1:
            raise ValueError("a format within a format has no fields")
        yield text, field
        for _, inner in _parse(spec or "", depth + 1):
            yield "", inner


def check_known(template: str, fields: list[str], known: Mapping[str, object], path: str, instead: str) -> None:
    """Raise RuntimeError unless the path of a request has all *fields* of *template*."""
    for field in fields:
        if field not in known:
            raise RuntimeError(
                f"locked({template!r}) names {field!r}, which is not a parameter of the path {path!r}; "
                f"it has: {', '.join(known) or 'none'}. For other values, use {instead}"
            )


def check_callables(name: object, locks: object, a_function: str) -> None:
    """Raise TypeError unless *name* is a template or a function, and *locks* a function."""
    if not isinstance(name, str) and not callable(name):
        raise TypeError(f"name must be a template or {a_function} that returns the name, not {type(name).__name__}")
    if not callable(locks):
        raise TypeError(f"locks must be {a_function} that returns a LockManager, not {type(locks).__name__}")
