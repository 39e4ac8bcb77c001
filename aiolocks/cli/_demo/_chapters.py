"""The five chapters. They only act; `judge` gives the verdicts."""

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from ..._core.keys import Keys
from .._screen import Line
from ._checks import (
    Verdict,
    check_depth,
    check_exclusion,
    check_fences,
    check_kept,
    check_loss,
    check_order,
    check_return,
    check_surprises,
)
from ._crew import HOST, MORTAL, WORKERS
from ._events import ASKED, DELETED, FAILED, HELD, LEFT, LOST, RENEWED, STOPPED, Event, Order, of_kind
from ._stage import Chapter, Stage
from ._timeline import story

ADA, BEN, CLEO, DAN, EVE, FINN = WORKERS

LIMIT: Final = 3
KEPT_TTL: Final = 1.2
JOB: Final = 4.0
DEAD_TTL: Final = 1.5
TAKEN_TTL: Final = 1.5
_LONG: Final = 10.0
"""Seconds: for a TTL that does not matter, and for a job that is ended early."""


async def _queue(stage: Stage, name: str) -> None:
    lock = stage.server.locks.lock(name)
    for place, worker in enumerate(WORKERS):
        seconds = 0.2 if place else _LONG
        stage.crew.begin(worker, Order(name, _LONG, (seconds,)))
        if place:
            await stage.until_queued(worker, lock, place)
        else:
            await stage.until(worker, HELD, name)
        await asyncio.sleep(0.07)
    stage.crew.end_body(ADA)
    await stage.until(FINN, LEFT, name)


async def _limit(stage: Stage, name: str) -> None:
    rounds = 4
    for worker in WORKERS:
        holds = tuple(random.uniform(0.1, 0.28) for _ in range(rounds))
        stage.crew.begin(worker, Order(name, _LONG, holds, LIMIT))
    for worker in WORKERS:
        await stage.until(worker, LEFT, name, rounds)


async def _long_job(stage: Stage, name: str) -> None:
    stage.crew.begin(BEN, Order(name, KEPT_TTL, (JOB,)))
    await stage.until(BEN, HELD, name)
    await asyncio.sleep(0.5)
    stage.crew.begin(CLEO, Order(name, KEPT_TTL, (0.3,)))
    await stage.until(CLEO, LEFT, name)


async def _death(stage: Stage, name: str) -> None:
    stage.crew.begin(MORTAL, Order(name, DEAD_TTL, (_LONG,)))
    await stage.until(MORTAL, HELD, name)
    stage.crew.begin(DAN, Order(name, DEAD_TTL, (0.3,)))
    await stage.until(MORTAL, RENEWED, name)
    await asyncio.sleep(0.2)
    await stage.crew.kill(name)
    await stage.until(DAN, LEFT, name)


async def _taken(stage: Stage, name: str) -> None:
    key = Keys("aiolocks:", "lock", name).base
    stage.crew.begin(EVE, Order(name, TAKEN_TTL, (_LONG,)))
    await stage.until(EVE, RENEWED, name)
    await asyncio.sleep(0.1)
    stage.log.add(Event.now(HOST, DELETED, name, note=f"DEL {key.decode()}"))
    await stage.server.locks.client.delete(key)
    await stage.until(EVE, LOST, name)
    stage.crew.begin(FINN, Order(name, TAKEN_TTL, (0.3,)))
    await stage.until(FINN, LEFT, name)


def _orders(events: Sequence[Event], start: int) -> list[Line]:
    lines: list[Line] = []
    for title, kind in (("asked", ASKED), ("served", HELD)):
        times = "  ".join(f"{event.worker} {(event.at - start) / 1e9:.2f}" for event in of_kind(events, kind))
        lines.append([(f"   {title:9}", "dim"), (times, "")])
    return [*lines, *_mishaps(events, start)]


def _mishaps(events: Sequence[Event], start: int) -> list[Line]:
    return story(of_kind(events, FAILED, LOST, STOPPED), start)


QUEUE = Chapter(
    "First come, first served",
    "Six workers want one lock. Each asks after the one before it has joined the queue, so the order of the "
    "requests is certain.",
    "queue", WORKERS, 2.2, _queue, _orders,
)  # fmt: skip
PERMITS = Chapter(
    f"At most {LIMIT} at once",
    f"Six workers use a semaphore with {LIMIT} permits at the same time, four times each.",
    "limit", WORKERS, 2.0, _limit, _mishaps, depth=True,
)  # fmt: skip
LONG_JOB = Chapter(
    "A job that outlives its TTL",
    f"The TTL is {KEPT_TTL:g} s, the job takes {JOB:g} s. The watchdog renews the lease all the time, and "
    "the next worker waits.",
    "long-job", (BEN, CLEO), 4.4, _long_job, story,
)  # fmt: skip
DEATH = Chapter(
    "A holder that dies",
    f"{MORTAL} dies while it holds the lock. Its lease is neither released nor renewed, so the lock is free "
    f"within the TTL of {DEAD_TTL:g} s.",
    "death", (MORTAL, DAN), 2.4, _death, story,
)  # fmt: skip
TAKEN = Chapter(
    "A lease taken away",
    f"An operator deletes the key. The holder notices at its next renewal, long before its TTL of {TAKEN_TTL:g} s "
    "ends, and its body is stopped.",
    "taken", (EVE, FINN), 1.6, _taken, story,
)  # fmt: skip
CHAPTERS = (QUEUE, PERMITS, LONG_JOB, DEATH, TAKEN)


def judge(stage: Stage) -> list[Verdict]:
    """Return a verdict per property, from what was recorded."""
    records = stage.log.in_order()
    queue, permits, long_job, death, taken = ([e for e in records if e.name in ("", stage.name(c))] for c in CHAPTERS)
    locks = [stage.name(chapter) for chapter in CHAPTERS if chapter is not PERMITS]
    return [
        check_order(queue),
        check_exclusion([event for event in records if event.name in locks]),
        check_depth(permits, LIMIT),
        check_kept(long_job, KEPT_TTL),
        check_return(death, DEAD_TTL),
        check_loss(taken, TAKEN_TTL),
        check_fences(records, {stage.name(PERMITS): LIMIT}),
        check_surprises(records),
    ]
