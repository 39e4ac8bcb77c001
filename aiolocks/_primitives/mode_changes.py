"""Leases that change their mode: an upgradeable lease becomes exclusive for a while, and either becomes shared.

An upgrade is a second lease, which passes the queue and may be held beside the first. So waiting, timeouts,
cancellation and loss work as in any other acquisition, and afterwards the first lease is the same as before.
"""

import asyncio
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import final

from .._core.answers import REPLY_TIMEOUT
from .._core.errors import LeaseLostError
from .._core.modes import FRONT, SHARED, UPGRADE, UPGRADEABLE
from .._core.options import Duration, Unset, check_timeout
from .._core.tokens import fresh_token
from .._engine.acquire import Acquisition
from .._engine.closing import Closing
from .._engine.extension import Extension
from .._engine.lease_state import LeaseState
from .._engine.request import Request, reason_in, says_revoked
from .._grantors.parts import parts_of

_REVOKED = -1
"""The reply to an upgrade of a lease that was revoked."""


@final
class ModeChanges:
    """Changes the mode of one lease. It knows the upgrades that were requested beside it, and keeps none alive."""

    __slots__ = ("_closing", "_extensions", "_upgrades")

    def __init__(self, closing: Closing | None, extensions: tuple[Extension, ...]) -> None:
        """Request upgrades with these *extensions*."""
        self._closing = closing
        self._extensions = extensions
        self._upgrades: weakref.WeakSet[Request] = weakref.WeakSet()

    def upgrade(self, state: LeaseState, timeout: Duration | Unset | None) -> Callable[[], Acquisition]:
        """Return a function that begins to acquire an exclusive lease beside the upgradeable one of *state*."""
        if state.request.terms.permits == SHARED:
            raise RuntimeError(
                f"{state.what}: a read lease cannot be upgraded, as two readers that tried would wait for each other "
                "for ever; use `upgradeable` instead of `read`: it reads beside readers, and has one holder at a time"
            )
        if state.request.terms.permits != UPGRADEABLE:
            raise RuntimeError(f"{state.what}: this lease is exclusive already")
        seconds = state.options.acquire_timeout if isinstance(timeout, Unset) else check_timeout("timeout", timeout)
        return partial(self._begin_upgrade, state, seconds)

    def upgrading(self, state: LeaseState) -> bool:
        """Whether an upgrade of *state* is held or requested."""
        return any(request.token in state.context.tokens for request in self._upgrades)

    async def downgrade(self, state: LeaseState) -> None:
        """Become a reader, and keep the lease; see `Lease.downgrade`."""
        [(grantor, request)] = parts_of(state.grantor, state.request)
        if request.terms.permits == UPGRADE:
            raise RuntimeError(f"{state.what}: an upgrade ends by leaving its block, and cannot be downgraded")
        state.check()
        request.change_mode(SHARED)  # whatever the reply, the holder has given up the right to write
        until = min(state.validity.deadline, state.context.clock() + REPLY_TIMEOUT)
        answer, *_ = await grantor.ask_until(until, "downgrade", (request.token, SHARED), as_waiter=True)
        if answer != 1:
            if says_revoked(answer):
                request.was_revoked(reason_in(answer))
            state.lose(state.refused_as)
            raise state.error()

    def _begin_upgrade(self, state: LeaseState, timeout: float | None) -> Acquisition:
        [(grantor, _)] = parts_of(state.grantor, state.request)
        context, base, task = state.context, grantor.keys.base + b"+", asyncio.current_task()
        state.check()
        # W12: no task waits for itself.
        if context.holdings.inside(task, base):
            raise RuntimeError(f"{state.what}: this task upgraded it in an enclosing block, and would wait for itself")
        wait, token = timeout is None or timeout > 0, state.request.token + b"+" + fresh_token(context.id)
        request = Request(state.ttl, UPGRADE, wait, token, FRONT, (_Upgrade(state), *self._extensions))
        options = state.options
        if options.max_hold is not None:
            # equivalent: constant, too short for a renewal
            options = replace(options, max_hold=max(state.validity.renew_until - context.clock(), 0.001))
        upgrade = _Beside(context, grantor, base, request, options, timeout, self._closing, self)
        upgrade.note_in(self._upgrades)
        return upgrade


@final
class _Upgrade(Extension):
    """Returns the error of an upgrade that can never be granted. A revoked upgrade loses the lease beside it."""

    def __init__(self, state: LeaseState) -> None:
        self._state = state

    def refusal(self, amount: int) -> LeaseLostError:
        state = self._state
        if amount == _REVOKED:
            state.request.was_revoked()
            state.lose(state.refused_as)
        return state.error(None if state.validity.lost else "it is no longer upgradeable")


@final
class _Beside(Acquisition):
    """An upgrade. It adds its requests to the upgrades of the lease beside it."""

    __slots__ = ("_upgrades",)

    def note_in(self, upgrades: "weakref.WeakSet[Request]") -> None:
        self._upgrades = upgrades
        upgrades.add(self.request)

    def take_fresh_token(self) -> None:
        super().take_fresh_token()
        self._upgrades.add(self.request)
