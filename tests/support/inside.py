"""All private names, of this library, redis-py and asyncio, that the tests of promises depend on.

`tests/primitives` and `tests/faults` use no such name (`tools/test_public_names.py` checks that), so that the internals
can be rewritten without changing them. Functions here return plain values: numbers, texts, and small classes of this
module.
"""

import asyncio
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import pytest

from aiolocks import _threads, compat, sync
from aiolocks._core.tokens import own_part
from aiolocks._core.values import offer_of
from aiolocks._engine import block as _block
from aiolocks._engine import context as _context
from aiolocks._engine.must_await import Acquiring
from aiolocks._engine.request import Request
from aiolocks._grantors import session as _session
from aiolocks._grantors.wait_queue import WaitQueue
from aiolocks._primitives import semaphore as _semaphore
from aiolocks._primitives.base import Acquirable
from aiolocks._redis import busy_poll as _busy_poll
from aiolocks._redis.clients import pool_of
from aiolocks._redis.pipeline import Pipeline
from aiolocks.testing import JumpingLoop
from aiolocks.testing._resp import Pairing, Scanner

__all__ = ["Acquirable", "Acquiring", "Pairing", "Scanner"]
"""The class of all primitives; what `acquire()` returns; the proxy's reading of the protocol, for another proxy."""


def _session_of(client: Any) -> _session.Session:
    found = _session.Session.find(pool_of(client))
    assert found is not None, "no session has begun"
    return found


def session_id(client: Any) -> str:
    """Return the id of the session of *client*, which is begun if necessary. The session's channels end with it."""
    return _session.Session.of(pool_of(client)).context.id.decode()


def sessions_here() -> int:
    """Return how many sessions the running loop has."""
    loop = asyncio.get_running_loop()
    return sum(session.loop is loop for session in _session._sessions.values())


def idle_sessions_end_after(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Make sessions end *seconds* after their last lease and waiter."""
    patch.setattr(_context, "IDLE", seconds)


def polling(*clients: Any) -> list[bool]:
    """Return whether the sessions of *clients* poll: at the only server, or at each node where they have waiters."""
    sessions = [session for client in clients if (session := _session.Session.find(pool_of(client))) is not None]
    return [
        wakeups.polling
        for session in sessions
        for wakeups in session.servers.wakeups
        if session.servers.only or wakeups.own_queues()  # on other nodes polling has no effect, and does not end
    ]


def undoing(client: Any) -> bool:
    """Whether *client* still waits for answers to what it gave up or released."""
    return bool(_session.Session.of(pool_of(client)).context.undos.under_way)


class State(Enum):
    """How far an acquire has come."""

    BEFORE_SENDING = "before sending"
    IN_FLIGHT = "in flight"
    QUEUED = "queued"
    GRANTED_UNREAD = "granted but unread"


def state_of(client: Any, ttl_ms: int) -> State:
    """Return how far the acquire of *client* that asks for *ttl_ms* has come, given that its task has no lease yet."""
    session = _session.Session.of(pool_of(client))
    requests = [request for request in session.context.tokens.values() if request.terms.ttl_ms == ttl_ms]
    assert len(requests) <= 1, f"{len(requests)} requests for {ttl_ms} ms"
    if not requests:
        return State.BEFORE_SENDING
    (request,) = requests
    if request.turn.done():
        return State.GRANTED_UNREAD  # handed over
    if request.place.ticket:
        return State.QUEUED
    if any(call.link is not None for call in request.unanswered):
        return State.IN_FLIGHT
    if request.reached:
        return State.GRANTED_UNREAD  # the answer has come, and it was not "queued"
    return State.BEFORE_SENDING


def requests_alive() -> int:
    """Return how many requests are in memory."""
    gc.collect()
    return sum(isinstance(thing, Request) for thing in gc.get_objects())


def stop_rechecks(patch: pytest.MonkeyPatch) -> None:
    """Let no re-check run."""
    patch.setattr(WaitQueue, "recheck", lambda self: None)


@dataclass(frozen=True, slots=True)
class Link:
    """The connection that a client's requests go over.

    It is *full* if it takes no more requests. They are *held_back*, or *written* and not answered. The system has not
    taken the *buffered* bytes yet. The *round_trip* is 0 before the first answer.
    """

    connected: bool
    full: bool
    held_back: int
    written: int
    buffered: int
    round_trip: float


def link_of(client: Any) -> Link:
    """Return how the link of *client* to its one server stands."""
    pipeline = _session.Session.of(pool_of(client)).context.pipeline
    assert isinstance(pipeline, Pipeline)
    link: Any = pipeline._link
    held_back, round_trip = len(pipeline._waiting), pipeline.round_trip
    if link is None:
        return Link(False, False, held_back, 0, 0, round_trip)
    buffered = link._transport.get_write_buffer_size()
    return Link(True, link.full, held_back, len(link.receivers), buffered, round_trip)


def record_sent(client: Any, key: str) -> list[str]:
    """Return a list to which each write on the link to the server of *key* is added from now on."""
    sent: list[str] = []
    pipeline: Any = _session_of(client).context.pipeline
    link = pipeline.route(key.encode()).pipeline.ready
    before = link.send

    def send(packed: bytes, receiver: Any) -> None:
        sent.append(packed.decode(errors="replace"))
        before(packed, receiver)

    link.send = send
    return sent


def pool_connections(pool: Any) -> tuple[list[Any], list[Any]]:
    """Return the connections of a pool of redis-py: the free ones, and those in use."""
    return list(pool._available_connections), list(pool._in_use_connections)


@dataclass(frozen=True, slots=True)
class Tracked:
    """What a session has Redis track; *settled* once Redis tracks all of it."""

    keys: int
    settled: bool
    links: int


def tracked_of(client: Any) -> Tracked | None:
    """Return what the session of *client* has Redis track; None if it tracks nothing, and has no link for it."""
    tracking = _session_of(client)._tracking
    watches = list(tracking._all())
    if not (watches or tracking._new or tracking._links):
        return None
    failed = tracking._failed
    settled = not tracking._new and all(w.read_at and not w.reading and w not in failed for w in watches)
    return Tracked(sum(w.state is not None for w in watches), settled, len(tracking._links))


def forget_declarations() -> None:
    """Forget which limits this process has declared: what follows is another process."""
    _semaphore._declared.clear()


def secret_of(text: str) -> str:
    """Return the part of a text of `hand_off` that no process can guess."""
    return own_part(offer_of(text).secret).decode()


def limit_unawaited(patch: pytest.MonkeyPatch, most: int) -> None:
    """Allow at most *most* unanswered releases before blocks wait for their own."""
    patch.setattr(_block, "_MAX_UNANSWERED", most)


def leases_without_timeout_last(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have a `compat.RedisLock` without a timeout take leases of so many *seconds*, which it renews."""
    patch.setattr(compat, "_DEFAULT_TTL", seconds)


def count_busy_turns(patch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that counts how often a loop was kept turning, as if replies came soon, on any machine."""
    count = 0
    turn = _busy_poll.BusyPoll._turn

    def counted(poll: _busy_poll.BusyPoll) -> None:
        nonlocal count
        count += 1
        turn(poll)

    patch.setattr(_busy_poll.BusyPoll, "_turn", counted)
    patch.setattr(_busy_poll, "_LATELY", 60.0)
    patch.setattr(_busy_poll, "_processors", lambda: 2)
    return lambda: count


def stay_awake_for(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Keep a loop turning for replies that come within *seconds*."""
    patch.setattr(_busy_poll, "SOON", seconds)


def our_timers() -> list[str] | None:
    """Return this library's pending timers of the running loop; None for uvloop, which does not show them."""
    scheduled: Any = getattr(asyncio.get_running_loop(), "_scheduled", None)
    if scheduled is None:
        return None
    callbacks = [getattr(each._callback, "func", each._callback) for each in scheduled if not each.cancelled()]
    return [repr(one) for one in callbacks if str(getattr(one, "__module__", "")).startswith("aiolocks.")]


def block_loop(seconds: float) -> None:
    """Block the running loop, as a body could; this works in virtual time too."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, JumpingLoop):
        loop._jump(seconds)
    else:
        time.sleep(seconds)


def command_of(locks: sync.LockManager, *words: str) -> object:
    """Return the reply to a command over a connection of the manager's own client, in the loop of its process."""
    return _threads.Call(partial(locks._inner.client.execute_command, *words)).result("LockManager")
