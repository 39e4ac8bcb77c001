"""Hints from Redis that the key of a lease has changed: then it is asked about at once, not only at its next renewal.

Redis tells a connection, once, of the next change to a key that was read over it (CLIENT TRACKING). So these keys are
read over a connection of their own, and again after each hint, since our own renewals are changes too. A lease that is
not found as it was granted is renewed, and that answer decides. Where no hint comes, all is as without.

Most leases are released before the first look at them, and cost next to nothing.
"""

import logging
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, cast, final

from redis.exceptions import NoPermissionError, ResponseError

from .._core.answers import NotNowError
from .._engine.context import IDLE, Context
from .._engine.lease_state import LeaseState, Renewer
from .._engine.request import Request, ResultCallback
from .._redis.clients import in_memory, lifetime_of
from .._redis.pipeline import PendingCall, Pipeline
from .._redis.router import Route
from .._redis.scripts import Arguments, Command, PlainCommand

log = logging.getLogger("aiolocks")

_LOOK = 0.02
"""Seconds after which a lease is read first, and from one reading of a key to the next at least."""

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
"""Seconds between attempts to read what could not be read."""

_RENEWAL = 0.001
"""Seconds that a renewal after a hint asks for: it extends nothing, as the lease may be one that is not renewed."""

_PUSHES = PlainCommand("HELLO", "3")
"""Hints come between replies only by this protocol, whatever the user's client speaks. It needs no right."""

_TRACKING = PlainCommand("CLIENT", "TRACKING", "ON")


class Trackable(Protocol):
    """What is asked here of the grantor of a lease."""

    def route(self) -> Route:
        """Return the way to the server of the name."""
        ...

    def reading(self, request: Request) -> tuple[Command, Arguments] | None:
        """Return what reads the holder; None where others may change its key at any time."""
        ...

    def renew(self, request: Request, ttl: float, tell: ResultCallback) -> None:
        """See `Grantor.renew`."""


@final
class _Watch:
    """One key of a tracked lease."""

    __slots__ = ("grantor", "key", "node", "read_at", "reading", "request", "state")

    def __init__(self, state: LeaseState, grantor: Trackable, request: Request) -> None:
        self.state: LeaseState | None = state
        """None once the lease is over."""
        self.grantor = grantor
        self.request = request
        self.key = b""
        self.node: Pipeline | None = None
        """Where it was read last."""
        self.read_at = 0.0
        self.reading = False


@final
class Tracking:
    """Of one session: looks after the leases that are to be tracked, and has them renewed as others are.

    Invariant: a watch that is not being read, is not in `_due` and not in `_failed` has been read over the link to its
    node, which tells of the next change.
    """

    def __init__(self, context: Context, renewer_of: Callable[[LeaseState], Renewer | None]) -> None:
        """*renewer_of* returns what renews a lease besides, if anything does."""
        self._context = context
        self._renewer_of = renewer_of
        self._new: dict[LeaseState, None] = {}
        self._watches: dict[LeaseState, list[_Watch]] = {}
        self._of_key: dict[bytes, dict[_Watch, None]] = {}
        self._due: dict[_Watch, None] = {}
        """To be read at the next look."""
        self._failed: dict[_Watch, None] = {}
        """To be read after a pause."""
        self._failures = 0
        self._links: dict[Pipeline, Pipeline] = {}
        """The link for tracking to each server, by the one for all else."""
        self._refused = False
        self._timers: dict[Callable[[], None], Any] = {}

    def add(self, state: LeaseState, now: float) -> None:
        """Have this lease renewed and tracked from *now* on."""
        renewer = self._renewer_of(state)
        if renewer is not None:
            renewer.add(state, now)
        if not self._refused:
            self._new[state] = None
            if self._look not in self._timers:
                self._call_later(_LOOK, self._look)

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
        """Read those again whose slots have gone to other nodes."""
        for watch in self._all():
            if not watch.reading and watch.node is not watch.grantor.route().pipeline:
                self._read(watch)

    def close(self) -> None:
        """Track nothing any more, at once."""
        self._new.clear()
        for watches in self._watches.values():
            for watch in watches:
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

    def _look(self) -> None:
        """Read the leases that have come since the last look, and what is due again."""
        del self._timers[self._look]
        new, self._new = self._new, {}
        due, self._due = self._due, {}
        if new and in_memory(self._context.pool):
            self._refuse("memory:// does not tell of changes")
            return
        for state in new:
            parts = [(part.grantor, part.request) for part in state.request.parts] or [(state.grantor, state.request)]
            self._watches[state] = [_Watch(state, cast("Trackable", grantor), request) for grantor, request in parts]
            due.update(dict.fromkeys(self._watches[state]))
        for watch in due:
            self._read(watch)

    def _read(self, watch: _Watch) -> None:
        """Read a key; Redis tells of the next change to it."""
        reading = watch.grantor.reading(watch.request)
        if reading is None:
            self._drop(watch)
        if reading is None or watch.state is None:
            return
        command, args = reading
        if not watch.key:
            watch.key = cast("bytes", args[0])
            self._of_key.setdefault(watch.key, {})[watch] = None
        watch.node = node = watch.grantor.route().pipeline
        watch.read_at, watch.reading = self._context.clock(), True
        link = self._links.get(node) or self._open(node)
        link.submit(command, args, self._answered, link.patience, watch)

    def _open(self, node: Pipeline) -> Pipeline:
        context = self._context
        lost, connected = partial(self._lost, node), partial(self._connected, node)
        link = Pipeline(node.endpoint, context.loop, context.clock, lost, connected, self._pushed)
        self._links[node] = link
        return link

    def _connected(self, node: Pipeline) -> None:
        link = self._links.get(node)
        if link is not None:
            link.submit(_PUSHES, (), self._prepared, link.patience)
            link.submit(_TRACKING, (), self._prepared, link.patience)

    def _prepared(self, call: PendingCall, reply: Any) -> None:
        if isinstance(reply, ResponseError) and not isinstance(reply, NotNowError) and not self._refused:
            forbidden = isinstance(reply, NoPermissionError)
            self._refuse("this Redis user lacks the right +client|tracking" if forbidden else str(reply))

    def _refuse(self, why: str) -> None:
        self._refused = True
        self.close()
        lifetime = lifetime_of(self._context.pool)
        if lifetime not in _warned:
            _warned.add(lifetime)
            log.warning(
                "leases of this client are not tracked, so that one which is taken away is known lost at its next "
                "renewal: %s",
                why,
            )

    def _lost(self, node: Pipeline) -> None:
        for watch in self._all():
            if watch.node is node and not watch.reading:  # else its answer, or what came instead, is about to come
                self._try_later(watch)

    def _try_later(self, watch: _Watch) -> None:
        self._failed[watch] = None
        if self._try_again not in self._timers and not self._context.loop.is_closed():
            pause = min(_FIRST_PAUSE * 2**self._failures, _LONGEST_PAUSE)
            self._failures = min(self._failures + 1, 9)
            self._call_later(pause, self._try_again)

    def _try_again(self) -> None:
        del self._timers[self._try_again]
        failed, self._failed = self._failed, {}
        for watch in failed:
            if not watch.reading:
                self._read(watch)

    def _idle(self) -> None:
        del self._timers[self._idle]
        if not self._watches:
            for link in self._links.values():
                link.disconnect()
            self._links.clear()

    def _pushed(self, message: Any) -> None:
        match message:
            case [b"invalidate", None]:  # the whole database
                for watch in self._all():
                    self._changed(watch)
            case [b"invalidate", [*keys]]:
                for key in keys:
                    for watch in tuple(self._of_key.get(key, ())):
                        self._changed(watch)
            case _:
                pass

    def _changed(self, watch: _Watch) -> None:
        if watch.reading:  # the reply is behind this: it tells what has become of the key
            return
        if self._context.clock() - watch.read_at >= _LOOK:
            self._read(watch)
        else:
            self._due[watch] = None
            if self._look not in self._timers:
                self._call_later(_LOOK, self._look)

    def _answered(self, call: PendingCall, reply: Any) -> None:
        watch = cast("_Watch", call.subject)
        watch.reading = False
        if watch.state is None:
            return
        if isinstance(reply, Exception) and (isinstance(reply, NotNowError) or not isinstance(reply, ResponseError)):
            self._try_later(watch)
            return
        self._failures = 0
        if isinstance(reply, Exception) or not _found(watch.request.token, reply):
            watch.grantor.renew(watch.request, _RENEWAL, partial(self._renewed, watch))

    def _renewed(self, watch: _Watch, renewed: bool | Exception) -> None:
        state = watch.state
        if state is None:
            return
        if isinstance(renewed, Exception):
            self._try_later(watch)
        elif not renewed:
            if watch.request.revoked:
                state.request.was_revoked()
            state.lose(state.refused_as)


def _found(token: bytes, reply: bytes | float | None) -> bool:
    """Whether the lease is there: a mutex by its token and fencing token alone, a member of a set by its score."""
    if not isinstance(reply, bytes):
        return reply is not None
    owner, _, rest = reply.partition(b" ")
    return owner == token and rest.isdigit()


_warned: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Of pools whose leases cannot be tracked."""
