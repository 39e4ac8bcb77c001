"""In which state an acquire is, read from the engine's own books just before it is cancelled."""

from enum import Enum
from typing import Any

from redis.asyncio import Redis

from aiolocks._engine.request import Request
from aiolocks._grantors.session import Session


class State(Enum):
    """How far an acquire has come."""

    BEFORE_SENDING = "before sending"
    IN_FLIGHT = "in flight"
    QUEUED = "queued"
    GRANTED_UNREAD = "granted but unread"


def request_with(client: Redis, ttl_ms: int) -> Request | None:
    """Return the request of *client* that asks for *ttl_ms*, by which a test tells its acquires apart."""
    session: Any = Session.of(client.connection_pool)
    requests: list[Request] = [request for request in session.context.tokens.values() if request.ttl_ms == ttl_ms]
    assert len(requests) <= 1, f"{len(requests)} requests for {ttl_ms} ms"
    return requests[0] if requests else None


def state_of(request: Request | None) -> State:
    """Say how far *request* has come, given that its task has not got its lease yet; None is one not made yet."""
    if request is None:
        return State.BEFORE_SENDING
    if request.turn.done():
        return State.GRANTED_UNREAD  # handed over
    if request.ticket:
        return State.QUEUED
    if any(call.link is not None for call in request.unanswered):
        return State.IN_FLIGHT
    if request.reached:
        return State.GRANTED_UNREAD  # the answer has come, and it was not "queued"
    return State.BEFORE_SENDING
