"""What a web application does in the background, in one worker of the fleet: `background=` of both web modules.

The one rule: only a return of its function, or the end of the application, ends a candidate.

| the function | what follows |
| --- | --- |
| returns | this worker stands no more |
| raises | one ERROR, and this worker stands again after a pause |
| loses its lease | this worker stands again, as in `Election.run` |
| runs when the application ends | it is cancelled until it ends, for a TTL at most, and the lease is released |
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import anyio

from ._candidacy import Scope
from ._core.keys import check_name
from ._core.timing import Backoff
from ._election import Election
from ._engine.lease import Lease
from ._manager import LockManager

log = logging.getLogger("aiolocks.election")

_FIRST_PAUSE = 1.0
"""Pause in seconds before a worker stands again whose function has failed. The longest pause is a TTL."""

Lead = Callable[[Lease], Awaitable[object]]

Leads = Mapping[str, Lead]
"""The functions that run in the background, by the names of their elections."""


def check_background(background: Leads | None) -> Leads:
    """Return *background*, or no functions if it is None. Raise TypeError or ValueError if it is wrong."""
    if background is None:
        return {}
    given: object = background
    if not isinstance(given, Mapping):
        raise TypeError(f'background must be a mapping such as {{"scheduler": lead}}, not {type(given).__name__}')
    leads = dict(background)
    for name, lead in leads.items():
        check_name(name)
        if not callable(lead):
            raise TypeError(f"background must have a coroutine function for {name!r}, as in lead(lease), not {lead!r}")
    return leads


@asynccontextmanager
async def in_background(manager: LockManager, leads: Leads) -> AsyncGenerator[None]:
    """Stand in the election of each name while this block lasts, and call its function when elected."""
    candidates = [(manager.election(name), lead, Scope()) for name, lead in leads.items()]
    tasks = {
        asyncio.create_task(_stand(*candidate), name=f"election {candidate[0].name!r}"): candidate[0]
        for candidate in candidates
    }
    try:
        yield
    finally:
        for _, _, scope in candidates:
            scope.cancel()  # not `Task.cancel`, which would reach into the shields of a function that cleans up
        if tasks:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(tasks, timeout=max(election._ttl for election in tasks.values()))
        for task, election in tasks.items():
            if not task.done():
                log.error("%r: it has not ended a TTL after its cancellation; the shutdown goes on", election)
            elif not task.cancelled():
                task.exception()  # `_stand` has logged it


async def _stand(election: Election, lead: Lead, scope: Scope) -> None:
    """Run *election* in *scope* until *lead* returns. After an exception, stand again."""
    clock, task = asyncio.get_running_loop().time, asyncio.current_task()
    backoff, elected_at = Backoff(_FIRST_PAUSE, max(_FIRST_PAUSE, election._ttl)), math.inf

    async def noting(lease: Lease) -> None:
        nonlocal elected_at
        elected_at = clock()
        await lead(lease)

    with scope:
        while True:
            elected_at = math.inf
            try:
                await election.run(noting)
            except BaseException as error:
                cancelled = isinstance(error, asyncio.CancelledError)
                if cancelled and (scope.cancelled or (task is not None and task.cancelling())):
                    raise
                if not cancelled and not isinstance(error, Exception):
                    log.error("%r: ended for good by %s", election, type(error).__name__, exc_info=error)
                    raise
                if clock() - elected_at > election._ttl:  # it had worked for a while
                    backoff.reset()
                pause = backoff.failed()
                # A CancelledError that nothing here asked for is an exception of the function, such as that of a task
                # that it awaited.
                log.error("%r: failed, and stands again in %g s", election, pause, exc_info=error)
            else:
                return
            await asyncio.sleep(pause)
