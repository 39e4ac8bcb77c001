"""The errors that Redis may reply with, and retries where they may help.

A request that Redis cannot run just now was not run: there is nothing to undo, and the connection is still good. After
an outage, the request may have been run. After a refusal, a retry changes nothing.
"""

import asyncio
import errno
import math
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar, final

from redis import exceptions
from redis.asyncio.retry import Retry

from .replies import UNREADABLE, unreadable_protocol
from .timing import Backoff, longest_retry_delay
from .untyped import Future

T = TypeVar("T")

REPLY_TIMEOUT = 10.0
"""Timeout for the reply to a request that is not queued yet, in seconds; it is part of the public contract."""

_MAX_PAUSE = 0.25
"""Maximum pause in seconds between two attempts while Redis cannot run a request; an attempt takes it much less."""

# Compiled when they are first needed, not when the library is imported.
_COMMAND = r"permissions to run the '([^']+)' command"
_KEYS = r"(permissions to|can't) access .*\bkeys?\b"
_IN_SCRIPT = r"can't run this command .*?@user_script: ?(\d+)|@user_script: ?(\d+).*can't run this command"
_CALLED = rb"redis\.p?call\('(\w+)'"

_Answers = dict[str, type[Exception] | tuple[()]]

_NOT_NOW: _Answers = {
    "BUSY ": (), "NOREPLICAS ": (), "TRYAGAIN ": exceptions.TryAgainError, "CLUSTERDOWN ": exceptions.ClusterDownError,
}  # fmt: skip
"""First word of the reply if Redis cannot run a request just now, and redis-py's class for it, whose text lacks the
word. BUSY means that another client's script, or a module's command, has been running for some time."""

_NO_PRIMARY: _Answers = {
    "READONLY ": exceptions.ReadOnlyError, "LOADING ": exceptions.BusyLoadingError,
    "MASTERDOWN ": exceptions.MasterDownError,
}  # fmt: skip
"""The same for a server that is not the primary, or not yet. On Redis 6.2 a script's error has the word inside."""


class NotNowError(exceptions.ResponseError):
    """Redis cannot run this just now, and has not run it."""


class NoPrimaryError(NotNowError, exceptions.ConnectionError):
    """The server is no primary, or not yet: the client must find another one."""


class NoRoomError(NotNowError, exceptions.ConnectionError):
    """Nothing was sent: the server has its maximum number of clients, or this process has no file descriptor left."""


class WrongServerError(exceptions.ResponseError):
    """The client is connected to the wrong server, which has not run this and never will."""


UNCERTAIN = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, NotNowError)
"""Errors worth a retry: we do not know whether Redis ran the request, or Redis could not run it just then."""


def recognized(error: Exception) -> Exception:
    """Return *error* as a `NotNowError` if Redis cannot run the request just now, else unchanged."""
    for each in (error, error.__cause__):  # redis-py turns an error in its handshake into a ConnectionError
        if isinstance(each, NotNowError):
            return each
        if isinstance(each, (exceptions.ResponseError, exceptions.BusyLoadingError)):
            for kind, answers in ((NoPrimaryError, _NO_PRIMARY), (NotNowError, _NOT_NOW)):
                found = _find(each, answers)
                if found:
                    return kind(found)
    return error


def without_room(error: BaseException) -> NoRoomError | None:
    """Return a `NoRoomError` if connecting failed with *error* because the server or this process is full."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in {errno.EMFILE, errno.ENFILE}:
            return NoRoomError(f"No file descriptor is left to connect with: {cause.strerror}")
        cause = cause.__cause__ or cause.__context__
    return NoRoomError(str(error)) if "max number of clients reached" in str(error) else None


def explained(error: exceptions.ResponseError, script: Callable[[], bytes]) -> exceptions.ResponseError:
    """Return *error*, with the missing right in its text if one is missing; *script* returns the source."""
    right = _missing(str(error), script)
    return type(error)(f"this Redis user lacks the right {right}: {error}") if right else error


def _missing(text: str, script: Callable[[], bytes]) -> str:
    command = re.search(_COMMAND, text)
    if command:
        return f"+{command[1].lower()}"
    if re.search(_KEYS, text):
        return "~<prefix>*"
    place = re.search(_IN_SCRIPT, text)
    if place:  # before Redis 7.2 a script's error names the line, but not the command
        line = int(place[1] or place[2])
        called = re.findall(_CALLED, b"".join(script().splitlines()[line - 1 : line]))
        return " or ".join(dict.fromkeys(f"+{each.decode().lower()}" for each in called))
    return ""


def connect_error(failure: Exception) -> Exception:
    error = without_room(failure) or recognized(failure)
    if isinstance(error, NoRoomError):
        return error
    if isinstance(error, exceptions.ResponseError):
        return explained(error, bytes)
    if isinstance(error, exceptions.InvalidResponse) or (isinstance(error, UNREADABLE) and _of_redis_py(error)):
        return unreadable_protocol(error)
    if isinstance(error, OSError):
        return exceptions.ConnectionError(str(error))
    return error


def _of_redis_py(error: Exception) -> bool:
    """Whether redis-py itself raised *error*, rather than code that it calls, such as a credential provider."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and str(frame.tb_frame.f_globals.get("__name__")).startswith("redis.")


def was_not_run(error: Exception) -> bool:
    """Return True if *error* proves that Redis did not run the request, so that there is nothing to undo.

    A script that lacks a right may break off half-way, which counts as run.
    """
    if isinstance(error, exceptions.NoPermissionError):
        return "in script" not in str(error)
    return isinstance(error, (NotNowError, WrongServerError))


def _find(error: Exception, answers: _Answers) -> str:
    """Return the text of *error*, with its first word, if it is one of these *answers*; else an empty text."""
    text = str(error)
    for word, known_as in answers.items():
        if isinstance(error, known_as) and not text.startswith(word):
            return word + text
        if text.startswith(word) or f": -{word}" in text:
            return text[text.index(word) :]
    return ""


def came_too_early(error: Exception) -> bool:
    """Return True if Redis could not run the request just now, or if that is the cause of *error*."""
    return isinstance(error, NotNowError) or isinstance(error.__cause__, NotNowError)


def resolve(future: Future, answer: object) -> None:
    """Pass on an answer, or the exception that came in its place, unless the caller has left."""
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
        future.exception()  # the caller may still leave, and never retrieve it
    else:
        future.set_result(answer)


def is_worth_retry(error: Exception) -> bool:
    """Return True if a retry may succeed, perhaps with another server, as this one is no longer the primary."""
    return isinstance(error, (*UNCERTAIN, exceptions.ReadOnlyError))


def may_pass(error: Exception) -> bool:
    """Return True if *error* may be an outage that a failover ends. A wrong password is not."""
    return is_worth_retry(error) and not isinstance(error, exceptions.AuthenticationError)


async def ask_until(
    ask: Callable[[int], Awaitable[T]], clock: Callable[[], float], until: float, *,
    again: Callable[[Exception], bool] = is_worth_retry, span: float | None = None, max_pause: float = 1.0,
    failed: Callable[[Exception], Awaitable[None]] | None = None,
) -> T:  # fmt: skip
    """Call *ask* until it returns, and return its result.

    Args:
        ask: Gets the number of failed attempts.
        clock: The clock of *until*.
        until: Local time after which no further attempt begins.
        again: Returns True for errors after which to retry.
        span: Seconds from which the pauses follow; see `longest_retry_delay`. Left out: the time left until *until*.
        max_pause: Maximum pause between two attempts, in seconds.
        failed: Called after each failed attempt except the last.

    Raises:
        RedisError: The error of the last attempt before *until*, or an error that *again* does not retry.
    """
    backoff = Backoff(0.04, max_pause)
    while True:
        try:
            return await ask(backoff.failures)
        except (exceptions.RedisError, OSError) as error:
            pause = min(backoff.failed(), longest_retry_delay(until - clock() if span is None else span))
            if not again(error) or clock() + pause >= until:
                raise
            if failed is not None:
                await failed(error)
        await asyncio.sleep(pause)


async def ride_out(
    ask: Callable[[], Awaitable[T]], clock: Callable[[], float], until: float,
    failed: Callable[[Exception], Awaitable[None]] | None = None, *, outages: bool = False,
) -> T:  # fmt: skip
    """Do `ask_until` while Redis cannot run it just now, and with *outages* also during those."""
    # I4: an outage that is shorter than a lease does not reach the user, where another server takes over.
    again = may_pass if outages else came_too_early  # defect: I4-outages
    return await ask_until(lambda _: ask(), clock, until, again=again, max_pause=_MAX_PAUSE, failed=failed)


@final
class RidingOut:
    """Wrap the user's retry policy: temporary refusals (and with *outages*, failed attempts) do not use up its retries.

    So a redis-py client that would give up after three attempts still waits until Redis can run the request.
    """

    def __init__(self, policy: Retry, clock: Callable[[], float], *, outages: bool = False) -> None:
        self._policy = policy
        self._clock = clock
        self._outages = outages

    async def call_with_retry(self, do: Callable[[], Awaitable[T]], fail: Callable[[Exception], Awaitable[None]]) -> T:
        """Do what the policy does. The caller limits the time."""
        ask = partial(ride_out, do, self._clock, math.inf, fail, outages=self._outages)
        return await self._policy.call_with_retry(ask, fail)


async def as_the_client_would(policy: Retry | RidingOut, ask: Callable[[], Awaitable[T]]) -> T:
    """Retry as often as the user's client would, for at most `REPLY_TIMEOUT` seconds.

    Raises:
        RedisError: The last error, or a timeout, if there is no reply by then.
    """
    trouble: Exception = exceptions.TimeoutError(f"Redis did not answer within {REPLY_TIMEOUT:g} s")

    async def failed(error: Exception) -> None:
        nonlocal trouble
        trouble = error

    try:
        async with asyncio.timeout(REPLY_TIMEOUT):
            return await policy.call_with_retry(ask, failed)
    except exceptions.TimeoutError:
        raise
    except TimeoutError:
        raise trouble from None
