"""One run: wait for the lease, start the command, and stop it before another caller can be granted the lease.

With ``--again`` that is what the leader of an `Election` does, so a lost lease is followed by the next run.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
from collections.abc import Coroutine
from typing import Any, Self, TypeVar, final

from redis.exceptions import RedisError

from ..._core import interrupts
from ..._core.errors import AcquireTimeoutError, QueueFullError
from ..._core.options import LeaseOptions
from ..._core.timing import DRIFT, PRECISION, margin
from ..._engine.lease import Lease, state_of
from ..._engine.lease_state import LeaseState
from ..._manager import LockManager
from .._arguments import masked
from .._connect import manager_of, place_of, reason, trouble
from ._child import Child, interrupted

T = TypeVar("T")

_LOST = 74
"""EX_IOERR of sysexits.h."""

_UNAVAILABLE = 69
"""EX_UNAVAILABLE."""

_CANNOT_RUN = 126
_NOT_FOUND = 127
"""Exit statuses of shells."""

_SIGNALLED = 128
"""Shells add this to the number of the signal that ended a command."""

_KILL_TIMEOUT = 5.0
"""Maximum time in seconds between TERM and KILL after a revoke, while the lease still lasts."""

_SHARE_OF_CLEANUP = 0.75
"""The command's share of the margin's time for cleanup. The rest is for KILL."""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)


def run(arguments: argparse.Namespace, url: str) -> int:
    """Run the command of *arguments* and return the exit status."""
    logging.getLogger("aiolocks").addHandler(logging.NullHandler())  # `_say` reports the loss in one line
    place = place_of(url)
    status = _unable(arguments.words[0])
    if status is None:
        signals = _Signals()
        status = asyncio.run(_run(arguments, url, place, signals))
        if status == _SIGNALLED + signal.SIGINT and signals.interrupted is not None:
            interrupts.end_at_once()
            # Ends this process, unless SIGINT is ignored (a script's `&`) or it is the first process of a container.
            os.kill(signals.interrupted, signal.SIGINT)
    return status


def _unable(program: str) -> int | None:
    """Return the exit status if the program does not exist, before waiting for the lock."""
    if shutil.which(program) is not None:
        return None
    if os.path.dirname(program) and os.path.exists(program):
        _say(f"{masked(program)}: cannot be executed")
        return _CANNOT_RUN
    line = "; for a line of the shell, write -- sh -c 'LINE'" if len(program.split()) > 1 else ""
    _say(f"{masked(program)}: command not found{line}")
    return _NOT_FOUND


async def _run(arguments: argparse.Namespace, url: str, place: str, signals: "_Signals") -> int:
    with signals:
        async with manager_of(url) as locks:
            try:
                if arguments.again:
                    return await _run_again(arguments, locks, signals)
                lease = await signals.unless_ended(_acquire(arguments, locks))
            except AcquireTimeoutError as busy:
                if arguments.busy_exit:
                    why = (
                        f"{busy.waiting} wait already" if isinstance(busy, QueueFullError) and busy.waiting
                        else "its queue has no room" if isinstance(busy, QueueFullError)
                        else f"not acquired within {arguments.wait:g} s"
                    )  # fmt: skip
                    _say(f"{masked(arguments.name)!r} is held by another caller: {why}")
                return int(arguments.busy_exit)
            except (RedisError, OSError) as error:
                _say(f"cannot use Redis at {place}: {await trouble(error, url)}")
                return _UNAVAILABLE
            status = _SIGNALLED + signals.ended_by
            if lease is not None and not signals.ended_by:
                status = await _work(arguments, lease, signals)
            return status if lease is None else await _let_go(arguments, lease, status, url)


async def _acquire(arguments: argparse.Namespace, locks: LockManager) -> Lease:
    name, limit = arguments.name, arguments.limit
    options: LeaseOptions = {
        "ttl": arguments.ttl, "prefix": arguments.prefix, "min_hold": arguments.min_hold,
        "max_waiting": arguments.max_waiting,
    }  # fmt: skip
    acquirable = locks.semaphore(name, limit, **options) if limit else locks.lock(name, **options)
    return await acquirable.acquire(timeout=arguments.wait)


async def _run_again(arguments: argparse.Namespace, locks: LockManager, signals: "_Signals") -> int:
    """Run the command whenever this host is elected, until the command ends by itself or a signal ends the waiting."""
    import anyio  # takes 65 ms, which a plain run does not need

    async def lead(lease: Lease) -> int:
        status = _LOST
        with anyio.CancelScope(shield=True):  # `_work` itself stops the command, in time
            status = await _work(arguments, lease, signals)
        signals.child = None
        if signals.asked_to_end:
            raise _EndedError(status)
        return status

    logging.getLogger("aiolocks.election").addHandler(_Saying(logging.WARNING))
    election = locks.election(arguments.name, ttl=arguments.ttl, prefix=arguments.prefix)
    try:
        status = await signals.unless_ended(election.run(lead))
    except _EndedError as ended:
        return ended.status
    return _SIGNALLED + signals.ended_by if status is None else status


async def _work(arguments: argparse.Namespace, lease: Lease, signals: "_Signals") -> int:
    """Run the command, stop it if the lease is lost, and return the exit status."""
    stops = arguments.on_lost == "kill"
    try:
        child = Child(arguments.words, _environment(lease), lambda: lease.held or not stops)
    except FileNotFoundError:  # its interpreter is missing, for example
        _say(f"{masked(arguments.words[0])}: cannot be found")
        return _NOT_FOUND
    except OSError as error:
        _say(f"{masked(arguments.words[0])}: {error.strerror}")
        return _CANNOT_RUN
    signals.child = child
    lost = asyncio.ensure_future(lease.wait_lost())
    either: set[asyncio.Future[Any]] = {child.ended, lost}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if lease.lost:
            state = state_of(lease)
            goes = "is stopped" if stops else "goes on"
            _say(f"{masked(arguments.name)!r}: {state.validity.reason}; the command {goes}")
            if stops:
                await _stop(child, state)
                return _LOST
        status = await child.ended
        if status == -signal.SIGINT:
            signals.interrupted = child.interrupted()
        return status if status >= 0 else _SIGNALLED - status
    finally:
        lost.cancel()
        child.close()


async def _stop(child: Child, state: LeaseState) -> None:
    """End all descendants of the command: TERM, then KILL before another caller can be granted the lease."""
    now = state.context.clock()
    if state.request.revoked:
        until = min(now + _KILL_TIMEOUT, state.validity.deadline)  # before the deadline no other caller is granted it
    else:
        cleanup = margin(state.ttl) - DRIFT * state.ttl - PRECISION
        until = min(now, state.validity.deadline) + _SHARE_OF_CLEANUP * cleanup
    child.ask_to_end()
    await child.gone(until - state.context.clock())
    await child.killed(1.0)


async def _let_go(arguments: argparse.Namespace, lease: Lease, status: int, url: str) -> int:
    """Release the lease. Return *status*, or `_LOST` if the lease had been lost unnoticed."""
    try:
        ended = await lease.release()
    except (RedisError, OSError) as error:
        _say(f"{masked(arguments.name)!r} ends with its ttl, as its release was not confirmed: {reason(error, url)}")
        return status
    if ended or status == _LOST or arguments.on_lost == "warn":
        return status
    _say(f"{masked(arguments.name)!r}: the lease was lost before the command had ended")
    return _LOST


def _environment(lease: Lease) -> dict[str, str]:
    return {**os.environ, "AIOLOCKS_NAME": lease.name, "AIOLOCKS_FENCING_TOKEN": str(lease.fencing_token)}


@final
class _EndedError(Exception):
    """The command has ended with *status*, and is not to be started again."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@final
class _Saying(logging.Handler):
    """Prints the log lines of an election."""

    def emit(self, record: logging.LogRecord) -> None:
        _say(masked(record.getMessage()))


@final
class _Signals:
    """The signals to this program: they end the waiting, and later are passed on to the command.

    Signals that were ignored at the start stay ignored, here and in the command, as nohup needs.
    """

    def __init__(self) -> None:
        self.child: Child | None = None
        self.ended_by = 0
        self.asked_to_end = False
        """Whether a signal was passed on that usually ends a command."""
        self.interrupted: int | None = None
        """Target of `os.kill` for the SIGINT that must end this program, after Ctrl-C ended the command or the wait."""
        self._waiting: asyncio.Future[Any] | None = None
        self._caught: list[int] = []

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        # The parent may have blocked signals. Without SIGCHLD we would not see the command's end.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, *_PASSED_ON})
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._got, number)
                self._caught.append(number)
        return self

    def __exit__(self, *exc: object) -> None:
        for number in self._caught:
            asyncio.get_running_loop().remove_signal_handler(number)

    async def unless_ended(self, coroutine: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of *coroutine*, or None if a signal ends the waiting."""
        self._waiting = waiting = asyncio.ensure_future(coroutine)
        try:
            return await waiting
        except asyncio.CancelledError:
            if self.ended_by:
                return None
            raise
        finally:
            self._waiting = None

    def _got(self, number: int) -> None:
        if self.child is not None:
            self.child.pass_on(number)
            self.asked_to_end |= number in _ENDING and number != signal.SIGHUP  # which tells many programs to reload
        elif number in _ENDING:
            self.ended_by = number
            self.interrupted = interrupted() if number == signal.SIGINT else None
            if self._waiting is not None:
                self._waiting.cancel()


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # an unwritable log must not change how the command ends
        print(f"aiolocks run: {text}", file=sys.stderr, flush=True)
