"""Runs scripts for many tasks over one link: connects when needed, notices silence, and knows what is ambiguous.

Submitting never waits and never fails; its receiver gets the reply or the exception, exactly once. Retrying is left
to whoever submitted, because only they know until when it makes sense.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Callable
from typing import Any, final

from redis.asyncio.retry import Retry
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ._link import Link, background, open_link
from ._scripts import Script

LONGEST_WAIT = 10.0
"""Seconds that a request which is not in the queue yet may stay unanswered; the public contract's bound."""

_FIRST_CONNECT = 2.0
_LONGEST_CONNECT = 5.0
"""Seconds for one attempt to connect. It starts short, since bytes swallowed by the network do not come back."""

Arguments = tuple[bytes | int, ...]


@final
class Call:
    """One run of a script: waiting for a link, or on its way over `link` since `sent_at`, or answered."""

    __slots__ = (
        "_commands",
        "abandoned",
        "args",
        "due",
        "keys",
        "link",
        "patience",
        "receiver",
        "script",
        "sent_at",
        "whole",
    )

    def __init__(
        self,
        commands: "Commands",
        script: Script,
        keys: tuple[bytes, ...],
        args: Arguments | Callable[[Link], Arguments],
        receiver: "CallReceiver",
        due: float,
        patience: float,
    ) -> None:
        self._commands = commands
        self.script = script
        self.keys = keys
        self.args = args
        self.receiver: CallReceiver | None = receiver
        self.due = due
        self.patience = patience
        self.link: Link | None = None
        self.sent_at = 0.0
        self.whole = False
        self.abandoned = False

    def send(self, link: Link, now: float) -> None:
        self.link = link
        self.sent_at = now
        self.due = now + self.patience
        args = self.args = self.args(link) if callable(self.args) else self.args  # the same if it is sent once more
        script = self.script
        if script.name in link.loaded and not self.whole:
            link.send(("EVALSHA", script.sha, len(self.keys), *self.keys, *args), self.answered)
        else:
            link.loaded.add(script.name)
            link.send(("EVAL", script.source, len(self.keys), *self.keys, *args), self.answered)

    def answered(self, reply: object) -> None:
        if isinstance(reply, NoScriptError) and self.link is not None and not self.whole and not self.abandoned:
            # SCRIPT FLUSH, or another server took over. Not run, so sent_at may stay: it is only too early.
            self.whole = True
            self.send(self.link, self.sent_at)
            return
        if isinstance(reply, (ReadOnlyError, RedisConnectionError)) and self.link is not None:
            # A demoted primary, or one that is still loading: whatever comes next must look for the primary anew.
            self.link.close(reply)
        self.finish(reply)

    def finish(self, reply: object) -> None:
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            self._commands.forget(self)
            receiver(self, reply)

    def drop(self) -> None:
        """Give the call up: never send it, or not again.

        What undoes it is sent behind it, and must not be overtaken by a second sending.
        """
        self.abandoned = True
        if self.link is None:
            self.finish(RedisConnectionError("Given up before it was sent."))


CallReceiver = Callable[[Call, object], None]


@final
class Commands:
    """The scripts of one session, over one link at a time.

    Invariant: every call that was submitted and not answered is in `_open`; those not sent yet are in `_waiting` too.
    """

    def __init__(
        self, pool: Any, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], on_lost: Callable[[], None]
    ) -> None:
        self._pool = pool
        self.loop = loop
        self._clock = clock
        self._on_lost = on_lost
        self._link: Link | None = None
        self._connecting = False
        self._task: asyncio.Task[None] | None = None
        self._connect_time = _FIRST_CONNECT
        self._waiting: deque[Call] = deque()
        self._open: dict[Call, None] = {}
        self._patrol: asyncio.TimerHandle | None = None
        self._patrol_at = 0.0
        self.round_trip = 0.0

    def submit(
        self,
        script: Script,
        keys: tuple[bytes, ...],
        args: Arguments | Callable[[Link], Arguments],
        receiver: CallReceiver,
        patience: float,
        *,
        unsent: float | None = None,
    ) -> Call:
        """Run *script* once.

        Args:
            script, keys, args: What to run; *args* may depend on the link over which it leaves.
            receiver: Gets the reply, or the exception that came in its place.
            patience: Seconds to wait for the reply; then the link is given up.
            unsent: Seconds to wait for a link, if not *patience* as well.
        """
        now = self._clock()
        call = Call(self, script, keys, args, receiver, now + (patience if unsent is None else unsent), patience)
        self._open[call] = None
        if self._link is not None:
            call.send(self._link, now)
        else:
            self._waiting.append(call)
            self._connect()
        self._watch(call.due, now)
        return call

    def forget(self, call: Call) -> None:
        self._open.pop(call, None)

    def retry_policy(self) -> Retry:
        """Return a copy of the retry policy that the user gave the client."""
        policy: Retry = copy.deepcopy(self._pool.make_connection().retry)
        return policy

    def note_round_trip(self, call: Call) -> None:
        measured = self._clock() - call.sent_at
        self.round_trip = max(measured, 0.8 * self.round_trip)

    def let_go(self) -> None:
        """In a forked child: see `Link.let_go`."""
        if self._link is not None:
            self._link.let_go()

    def close(self) -> None:
        """Close the link at once. A later call would open a new one."""
        self._disarm()
        if self._task is not None:
            self._task.cancel()
        if self._link is not None:
            self._link.close()
        self._fail_waiting(RedisConnectionError("Connection closed."))

    def _connect(self) -> None:
        if not self._connecting:
            self._connecting = True
            task = background(self._open_link())
            if self._connecting:  # an eager task may be done already
                self._task = task

    async def _open_link(self) -> None:
        error: Exception
        try:
            async with asyncio.timeout(self._connect_time):
                link = await open_link(self._pool, None, self._lost)
        except TimeoutError as late:
            self._connect_time = min(2 * self._connect_time, _LONGEST_CONNECT)
            error = late if isinstance(late, RedisError) else RedisTimeoutError("Timeout connecting to server")
        except Exception as failure:
            error = failure
        except asyncio.CancelledError:
            self._connected()
            self._fail_waiting(RedisConnectionError("Connecting was cancelled."))
            raise
        else:
            self._connected()
            self._connect_time = _FIRST_CONNECT
            self._link = link
            self._send_waiting(link)
            return
        self._connected()
        self._fail_waiting(error)

    def _connected(self) -> None:
        self._connecting = False
        self._task = None

    def _send_waiting(self, link: Link) -> None:
        while self._waiting and link.lost is None:
            call = self._waiting.popleft()
            if call.receiver is not None:
                now = self._clock()
                call.send(link, now)
                self._watch(call.due, now)

    def _fail_waiting(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.finish(error)

    def _lost(self, reason: Exception) -> None:
        self._link = None
        self._on_lost()

    def _watch(self, due: float, now: float) -> None:
        if self._patrol is None or due < self._patrol_at:
            self._arm(due, now)

    def _arm(self, due: float, now: float) -> None:
        self._disarm()
        self._patrol_at = due
        self._patrol = self.loop.call_later(max(due - now, 0.0) + 0.001, self._look_for_silence)

    def _disarm(self) -> None:
        if self._patrol is not None:
            self._patrol.cancel()
            self._patrol = None

    def _look_for_silence(self) -> None:
        """Give up the link if a reply is overdue, and calls that wait too long for a link to come up."""
        self._patrol = None
        now = self._clock()
        late = [call for call in self._open if call.due <= now]
        for call in late:
            error = RedisTimeoutError("Timeout reading from Redis: no reply in time")
            if call.link is None:
                call.finish(error)
            elif call.link.lost is None:
                call.link.close(error)
        if self._open:
            self._arm(min(call.due for call in self._open), now)
