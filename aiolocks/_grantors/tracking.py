"""Detects the loss of a lease before its next renewal, by hints from Redis that its key has changed.

Redis notifies a connection, once, of the next change to a key that was read over it (CLIENT TRACKING). So the keys of
tracked leases are read over a connection of their own, and again after each hint, since our own renewals are changes
too. A lease that is not found as it was granted is renewed, and the reply decides. Without a hint, nothing is lost: the
next renewal decides.

Most leases are released before they are first read, and cost next to nothing.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast, final

from redis.exceptions import NoPermissionError, ResponseError

from .._core.answers import NotNowError
from .._core.replies import RawReply
from .._core.timing import Backoff
from .._engine.context import IDLE, Context
from .._engine.lease_state import LeaseState, Renewer
from .._engine.request import Request
from .._redis.clients import in_memory, warn_once
from .._redis.pipeline import PendingCall, Pipeline
from .._redis.scripts import PlainCommand
from .parts import parts_of

if TYPE_CHECKING:
    from .one_server import RedisGrantor

_READ_DELAY = 0.02
"""Seconds from a grant to the first reading of its key. Also the shortest time between two readings of a key."""

_FIRST_PAUSE, _MAX_PAUSE = 0.05, 1.0
"""Seconds between attempts to read a key that could not be read."""

_RENEWAL_TTL = 0.001
"""TTL in seconds that a renewal after a hint asks for. It extends nothing, as the lease may have `renew=False`."""

_PUSHES = PlainCommand("HELLO", "3")
"""Only this protocol brings hints between replies, whatever the user's client speaks. It needs no right."""

_TRACKING = PlainCommand("CLIENT", "TRACKING", "ON")


@final
@dataclass(slots=True, eq=False, repr=False)
class _Watch:
    """The key of a tracked lease, or of one part of it."""

    state: LeaseState | None
    """None once the lease is over."""
    grantor: "RedisGrantor"
    request: Request
    key: bytes = b""
    node: Pipeline | None = None
    """The node that has read it last."""
    read_at: float = 0.0
    reading: bool = False


@final
class Tracking:
    """Tracks leases of one session, and passes them on to their watchdog.

    Invariant: a watch that is not being read, and is in neither `_due` nor `_failed`, has been read over the link to
    its node, so Redis sends a hint of the next change.
    """

    def __init__(self, context: Context, renewer_of: Callable[[LeaseState], Renewer | None]) -> None:
        """*renewer_of* returns the watchdog of a lease, if it has one."""
        self._context = context
        self._renewer_of = renewer_of
        self._new: dict[LeaseState, None] = {}
        self._watches: dict[LeaseState, list[_Watch]] = {}
        self._of_key: dict[bytes, dict[_Watch, None]] = {}
        self._due: dict[_Watch, None] = {}
        """To be read by `_read_due`."""
        self._failed: dict[_Watch, None] = {}
        """To be read after a pause."""
        self._backoff = Backoff(_FIRST_PAUSE, _MAX_PAUSE)
        self._links: dict[Pipeline, Pipeline] = {}
        """The link for tracking to each server, by the link for all other requests."""
        self._refused = False
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    def add(self, state: LeaseState, now: float) -> None:
        """Renew and track this lease from *now* on."""
        renewer = self._renewer_of(state)
        if renewer is not None:
            renewer.add(state, now)
        if not self._refused:
            self._new[state] = None
            self._schedule_reading()

    def stop_renewing(self, state: LeaseState) -> None:
        """Neither renew nor track this lease again."""
        renewer = self._renewer_of(state)
        if renewer is not None:
            renewer.stop_renewing(state)
        if self._new.pop(state, self) is self:
            for watch in self._watches.pop(state, ()):
                self._drop(watch)
            if self._links and not self._watches and not self._context.loop.is_closed():
                self._call_later(IDLE, self._idle)

    def follow(self) -> None:
        """Read the keys again whose slots have moved to other nodes."""
        for watch in self._all():
            if not watch.reading and watch.node is not watch.grantor.route.pipeline:
                self._read(watch)

    def close(self) -> None:
        self._new.clear()
        for watch in self._all():
            self._drop(watch)
        self._watches.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        links, self._links = self._links, {}
        for link in links.values():
            link.disconnect()

    def detach_in_fork(self) -> None:
        """In a forked child: see `Connection.detach_in_fork`."""
        for link in self._links.values():
            link.detach_in_fork()

    def _all(self) -> list[_Watch]:
        return [watch for watches in self._watches.values() for watch in watches]

    def _drop(self, watch: _Watch) -> None:
        watch.state = None
        self._due.pop(watch, None)
        self._failed.pop(watch, None)
        others = self._of_key.get(watch.key, {})
        if others.pop(watch, self) is None and not others:
            del self._of_key[watch.key]

    def _call_later(self, seconds: float, call: Callable[[], None]) -> None:
        before = self._timers.get(call)
        if before is not None:
            before.cancel()
        self._timers[call] = self._context.loop.call_later(seconds, call)

    def _schedule_reading(self) -> None:
        if self._read_due not in self._timers:
            self._call_later(_READ_DELAY, self._read_due)

    def _read_due(self) -> None:
        """Read the keys of new leases, and those that are due again."""
        del self._timers[self._read_due]
        new, self._new = self._new, {}
        due, self._due = self._due, {}
        if new and in_memory(self._context.pool):
            self._refuse("memory:// does not tell of changes")
            return
        for state in new:
            self._watches[state] = [_Watch(state, *part) for part in parts_of(state.grantor, state.request)]
            due.update(dict.fromkeys(self._watches[state]))
        for watch in due:
            self._read(watch)

    def _read(self, watch: _Watch) -> None:
        """Read a key, so that Redis sends a hint of its next change."""
        reading = watch.grantor.reading(watch.request)
        if reading is None:
            self._drop(watch)
        if reading is None or watch.state is None:
            return
        command, args = reading
        if not watch.key:
            watch.key = cast("bytes", args[0])
            self._of_key.setdefault(watch.key, {})[watch] = None
        watch.node = node = watch.grantor.route.pipeline
        # equivalent: False, the key is only read again
        watch.read_at, watch.reading = self._context.clock(), True
        link = self._links.get(node) or self._open(node)
        link.submit(command, args, self._answered, link.patience, watch)

    def _open(self, node: Pipeline) -> Pipeline:
        context = self._context
        lost, connected = partial(self._lost, node), partial(self._connected, node)
        link = Pipeline(node.endpoint, context.loop, context.clock, lost, connected, self._pushed)
        return self._links.setdefault(node, link)

    def _connected(self, node: Pipeline) -> None:
        link = self._links.get(node)
        if link is not None:
            link.submit(_PUSHES, (), self._prepared, link.patience)
            link.submit(_TRACKING, (), self._prepared, link.patience)

    def _prepared(self, call: PendingCall, reply: RawReply) -> None:
        if isinstance(reply, ResponseError) and not isinstance(reply, NotNowError) and not self._refused:
            forbidden = isinstance(reply, NoPermissionError)
            self._refuse("this Redis user lacks the right +client|tracking" if forbidden else str(reply))

    def _refuse(self, why: str) -> None:
        self._refused = True
        self.close()
        untracked = "leases of this client are not tracked, so that one which is taken away is known lost at its next"
        warn_once(self._context.pool, "tracking", untracked + " renewal: %s", why)

    def _lost(self, node: Pipeline) -> None:
        for watch in self._all():
            if watch.node is node and not watch.reading:  # the reply to the others, or an error, is about to arrive
                self._try_later(watch)

    def _try_later(self, watch: _Watch) -> None:
        self._failed[watch] = None
        if self._try_again not in self._timers and not self._context.loop.is_closed():
            self._call_later(self._backoff.failed(), self._try_again)

    def _try_again(self) -> None:
        del self._timers[self._try_again]
        failed, self._failed = self._failed, {}
        for watch in failed:
            if not watch.reading:
                self._read(watch)

    def _idle(self) -> None:
        del self._timers[self._idle]  # equivalent: line dropped, a timer that has fired is cancelled in vain
        if not self._watches:
            for link in self._links.values():
                link.disconnect()
            self._links.clear()

    def _pushed(self, message: RawReply) -> None:
        match message:
            case [b"invalidate", None]:  # FLUSHDB or FLUSHALL
                watches = self._all()
            case [b"invalidate", [*keys]]:
                watches = [watch for key in keys for watch in self._of_key.get(key, ())]
            case _:
                watches = []
        for watch in watches:
            self._changed(watch)

    def _changed(self, watch: _Watch) -> None:
        if watch.reading:  # the reply comes after this hint, so it shows the change
            return
        if self._context.clock() - watch.read_at >= _READ_DELAY:
            self._read(watch)
        else:
            self._due[watch] = None
            self._schedule_reading()

    def _answered(self, call: PendingCall, reply: RawReply) -> None:
        watch: _Watch = call.subject
        watch.reading = False
        if watch.state is None:
            return
        if isinstance(reply, Exception) and (isinstance(reply, NotNowError) or not isinstance(reply, ResponseError)):
            self._try_later(watch)
            return
        self._backoff.reset()
        if isinstance(reply, Exception) or not _found(watch.request.token, reply):
            watch.grantor.renew(watch.request, _RENEWAL_TTL, partial(self._renewed, watch))

    def _renewed(self, watch: _Watch, renewed: bool | Exception) -> None:
        state = watch.state
        if state is None:
            return
        if isinstance(renewed, Exception):
            self._try_later(watch)
        elif not renewed:
            if watch.request.revoked:
                state.request.was_revoked(watch.request.why_revoked)
            state.lose(state.refused_as)


def _found(token: bytes, reply: bytes | float | None) -> bool:
    """Whether *reply* shows the lease: as a mutex, by its token and fencing token alone; in a set, by its score."""
    if not isinstance(reply, bytes):
        return reply is not None
    owner, _, rest = reply.partition(b" ")
    return owner == token and rest.isdigit()
