"""Leases that change their mode: an upgradeable one that becomes exclusive for a while, and any that goes on as shared.

An upgrade is a second lease that stands before all waiters and may be held beside the first. So waiting, timeouts,
cancellation and loss are those of any other acquisition, and after it the first is what it was.
"""

import asyncio
from dataclasses import replace
from typing import cast

from ._commands import LONGEST_WAIT
from ._grantor import RedisGrantor
from ._hold import Hold, obtain
from ._insist import insist
from ._lease_state import TAKEN, LeaseState
from ._modes import FRONT, SHARED, UPGRADE, UPGRADEABLE
from ._options import Duration, Unset, check_timeout
from ._request import Request, fresh_token

_SHARED_KINDS = {"rwlock"}


def upgrade(state: LeaseState, timeout: Duration | Unset | None) -> Hold:
    """Return a block that holds alone what *state* shares, and shares it again afterwards.

    Raises:
        RuntimeError: The lease is not an upgradeable one.
    """
    what = f"{state.grantor.kind} {state.grantor.name!r}"
    if state.grantor.kind not in _SHARED_KINDS:
        raise RuntimeError(f"{what}: only a lease of RWLock's `upgradeable` can be upgraded")
    if state.request.permits == SHARED:
        raise RuntimeError(
            f"{what}: a read lease cannot be upgraded, as two readers that both did would wait for each other for "
            "ever; take `upgradeable` instead of `read`, which reads beside readers and is held by one at a time"
        )
    if state.request.permits != UPGRADEABLE:
        raise RuntimeError(f"{what}: this lease is exclusive already")
    seconds = state.options.acquire_timeout if isinstance(timeout, Unset) else check_timeout("timeout", timeout)
    return Hold(lambda: obtain(_asking(state, seconds), must=True))


def _asking(state: LeaseState, timeout: float | None) -> LeaseState:
    session, base, task = state.session, cast("bytes", state.base) + b"+", asyncio.current_task()
    if not state.held:
        raise state.error(None if state.lost else "it was released before")
    if session.ledger.inside(task, base):
        raise RuntimeError(
            f"{state.grantor.kind} {state.grantor.name!r}: this task is inside a block that has upgraded the lease, "
            "and would wait for itself"
        )
    request = Request(
        state.request.ttl,
        UPGRADE,
        wait=timeout is None or timeout > 0,
        token=state.request.token + b"+" + fresh_token(),
    )
    request.ticket = FRONT
    request.refusal = lambda: state.error(None if state.lost else "it is not an upgradeable one any more")
    options = state.options
    if options.max_hold is not None:
        options = replace(options, max_hold=max(state.renew_until - session.clock(), 0.001))
    return LeaseState(session, state.grantor, base, request, options, timeout, task)


async def downgrade(state: LeaseState) -> None:
    """Go on holding as a reader.

    Raises:
        RuntimeError: The lease is not one of `write` or `upgradeable`.
        LeaseLostError: It is lost, or was released.
        RedisError: Not confirmed, for as long as the lease lasts or a release by hand would be tried.
    """
    grantor, request = state.grantor, state.request
    if grantor.kind not in _SHARED_KINDS or not isinstance(grantor, RedisGrantor) or request.permits == UPGRADE:
        raise RuntimeError(
            f"{grantor.kind} {grantor.name!r}: only leases of RWLock's `write` and `upgradeable` can be downgraded; "
            "one that was upgraded, by leaving its block"
        )
    if not state.held:
        raise state.error(None if state.lost else "it was released before")
    request.permits = SHARED  # whatever becomes of the question, its holder has given up the right
    until = min(state.deadline, state.session.clock() + LONGEST_WAIT)
    answer, *_ = await insist(grantor, "downgrade", (request.token, SHARED), until=until, as_waiter=True)
    if not answer:
        state.lose(TAKEN)
        raise state.error()
