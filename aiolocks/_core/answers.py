"""What Redis may answer instead of a result, and asking again where that may help.

A request that Redis cannot run just now was not run: there is nothing to undo, and the connection is still good. So it
is neither an outage, after which the request may have been carried out, nor a refusal, which asking again does not
change.
"""

import asyncio
import errno
import math
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar, final

from redis.asyncio.retry import Retry
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .replies import UNREADABLE, unreadable_protocol
from .timing import retry_delay

T = TypeVar("T")

LONGEST_WAIT = 10.0
"""Seconds for which a request that is not queued yet may stay unanswered; the public contract's bound."""

_LONGEST_PAUSE = 0.25
"""Seconds between two attempts while Redis cannot run a request: much longer than an attempt takes the server, and much
shorter than the time for which this is ridden out."""

_COMMAND = re.compile(r"permissions to run the '([^']+)' command")
_KEYS = re.compile(r"(permissions to|can't) access .*\bkeys?\b")
_IN_SCRIPT = re.compile(r"can't run this command .*?@user_script: ?(\d+)|@user_script: ?(\d+).*can't run this command")
_CALLED = re.compile(rb"redis\.p?call\('(\w+)'")

_FULL = "max number of clients reached"

_Answers = dict[str, type[Exception] | tuple[()]]

_NOT_NOW: _Answers = {"BUSY ": (), "NOREPLICAS ": (), "TRYAGAIN ": TryAgainError, "CLUSTERDOWN ": ClusterDownError}
"""How the answer begins if Redis cannot run a request just now; redis-py makes classes of some answers, and leaves the
word out. BUSY: another client's script, or a module's command, has been running for long."""

_NO_PRIMARY: _Answers = {"READONLY ": ReadOnlyError, "LOADING ": BusyLoadingError, "MASTERDOWN ": MasterDownError}
"""The same of a server that is not the one to ask, or not yet. A script's error on Redis 6.2 has the word inside."""


class NotNowError(ResponseError):
    """Redis cannot run this just now, and has not."""


class NoPrimaryError(NotNowError, RedisConnectionError):
    """The server that was asked is no primary, or not yet: another must be looked for."""


class NoRoomError(NotNowError, RedisConnectionError):
    """No connection can be made just now: the server has its maximum number of clients, or this process has no file
    descriptor left. Nothing was sent."""


class WrongServerError(ResponseError):
    """The server that was asked has not run this, and never will: the client leads to the wrong one."""


UNCERTAIN = (RedisConnectionError, RedisTimeoutError, OSError, NotNowError)
"""Errors that asking again may mend: it is unknown whether Redis got the request, or the request came at a bad time."""

TROUBLE = (*UNCERTAIN, ReadOnlyError)
"""The same, and the error that says that another server must be asked."""


def recognized(error: Exception) -> Exception:
    """Return *error* as a `NotNowError` if it says so, else unchanged."""
    for each in (error, error.__cause__):  # redis-py makes a ConnectionError of what its handshake is answered
        if isinstance(each, NotNowError):
            return each
        if isinstance(each, (ResponseError, BusyLoadingError)):
            found = _find(each, _NO_PRIMARY)
            if found:
                return NoPrimaryError(found)
            found = _find(each, _NOT_NOW)
            if found:
                return NotNowError(found)
    return error


def without_room(error: BaseException) -> NoRoomError | None:
    """Return a `NoRoomError` if connecting failed with *error* because the server or this process is full."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in {errno.EMFILE, errno.ENFILE}:
            return NoRoomError(f"No file descriptor is left to connect with: {cause.strerror}")
        cause = cause.__cause__ or cause.__context__
    return NoRoomError(str(error)) if _FULL in str(error) else None


def explained(error: ResponseError, script: Callable[[], bytes]) -> ResponseError:
    """Return *error* in words that say which right is missing, if one is; *script* returns what was run, or nothing."""
    right = _missing(str(error), script)
    return type(error)(f"this Redis user lacks the right {right}: {error}") if right else error


def _missing(text: str, script: Callable[[], bytes]) -> str:
    command = _COMMAND.search(text)
    if command:
        return f"+{command[1].lower()}"
    if _KEYS.search(text):
        return "~<prefix>*"
    place = _IN_SCRIPT.search(text)
    if place:  # before Redis 7.2 a script's error says in which line, and not what was called there
        line = int(place[1] or place[2])
        called = _CALLED.findall(b"".join(script().splitlines()[line - 1 : line]))
        return " or ".join(dict.fromkeys(f"+{each.decode().lower()}" for each in called))
    return ""


def connect_error(failure: Exception) -> Exception:
    """Return the error that callers get for a *failure* to connect."""
    error = without_room(failure) or recognized(failure)
    if isinstance(error, NoRoomError):
        return error
    if isinstance(error, ResponseError):
        return explained(error, bytes)
    if isinstance(error, InvalidResponse) or (isinstance(error, UNREADABLE) and _of_redis_py(error)):
        return unreadable_protocol(error)
    if isinstance(error, OSError):
        return RedisConnectionError(str(error))
    return error


def _of_redis_py(error: Exception) -> bool:
    """Whether redis-py itself raised *error*, rather than code that it calls, such as a credential provider."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and str(frame.tb_frame.f_globals.get("__name__")).startswith("redis.")


def was_not_run(error: Exception) -> bool:
    """Say whether *error* says that Redis has not run the request, so that there is nothing to undo.

    A script that lacks a right may break off half-way.
    """
    if isinstance(error, NoPermissionError):
        return "in script" not in str(error)
    return isinstance(error, (NotNowError, WrongServerError))


def _find(error: Exception, answers: _Answers) -> str:
    """Return what *error* says, if it is one of these *answers*, else an empty text."""
    text = str(error)
    for word, known_as in answers.items():
        if isinstance(error, known_as) and not text.startswith(word):
            return word + text
        if text.startswith(word) or f": -{word}" in text:
            return text[text.index(word) :]
    return ""


def came_too_early(error: Exception) -> bool:
    """Say whether *error* is, or is caused by, Redis being unable to run it just now."""
    return isinstance(error, NotNowError) or isinstance(error.__cause__, NotNowError)


def may_be_mended(error: Exception) -> bool:
    """Say whether asking again may mend *error*, though by another server perhaps."""
    return isinstance(error, TROUBLE)


def may_pass(error: Exception) -> bool:
    """Say whether *error* may be of an outage, which ends when another server has taken over; not: a wrong password."""
    return may_be_mended(error) and not isinstance(error, AuthenticationError)


async def ask_until(
    ask: Callable[[int], Awaitable[T]], clock: Callable[[], float], until: float, *,
    again: Callable[[Exception], bool] = may_be_mended, span: float | None = None, longest_pause: float = math.inf,
    failed: Callable[[Exception], Awaitable[None]] | None = None,
) -> T:  # fmt: skip
    """Ask until it is answered.

    Args:
        ask: Gets how many attempts have failed.
        clock: The clock of *until*.
        until: Local time after which no further attempt begins.
        again: Says after which errors to ask again.
        span: Seconds from which `retry_delay` computes the pauses; left out: those that are left.
        longest_pause: Seconds between two attempts at most.
        failed: Called after each failed attempt except the last.

    Raises:
        RedisError: Not answered by *until*, or another error.
    """
    failures = 0
    while True:
        try:
            return await ask(failures)
        except (RedisError, OSError) as error:
            failures += 1
            pause = min(retry_delay(until - clock() if span is None else span, failures), longest_pause)
            if not again(error) or clock() + pause >= until:
                raise
            if failed is not None:
                await failed(error)
        await asyncio.sleep(pause)


async def ride_out(
    ask: Callable[[], Awaitable[T]],
    clock: Callable[[], float],
    until: float,
    failed: Callable[[Exception], Awaitable[None]] | None = None,
    *,
    outages: bool = False,
) -> T:
    """Ask again while Redis cannot run it just now, and in *outages*; raise other errors at once. See `ask_until`."""
    again = may_pass if outages else came_too_early  # defect: I4-outages
    return await ask_until(lambda _: ask(), clock, until, again=again, longest_pause=_LONGEST_PAUSE, failed=failed)


@final
class RidingOut:
    """The user's retry policy; attempts that are ridden out do not count: with *outages*, those that failed too."""

    def __init__(self, policy: Retry, clock: Callable[[], float], *, outages: bool = False) -> None:
        self._policy = policy
        self._clock = clock
        self._outages = outages

    async def call_with_retry(self, do: Callable[[], Awaitable[T]], fail: Callable[[Exception], Awaitable[None]]) -> T:
        """Do as the policy does; the caller bounds the time."""

        def ask() -> Awaitable[T]:
            return ride_out(do, self._clock, math.inf, fail, outages=self._outages)

        return await self._policy.call_with_retry(ask, fail)


async def as_the_client_would(policy: Retry | RidingOut, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask as often as the user's client would try, for as long as a request may stay unanswered.

    Raises:
        RedisError: Not answered by then: the last trouble.
    """
    trouble: Exception = RedisTimeoutError(f"Redis did not answer within {LONGEST_WAIT:g} s")

    async def failed(error: Exception) -> None:
        nonlocal trouble
        trouble = error

    try:
        async with asyncio.timeout(LONGEST_WAIT):
            return await policy.call_with_retry(ask, failed)
    except RedisTimeoutError:
        raise
    except TimeoutError:
        raise trouble from None
