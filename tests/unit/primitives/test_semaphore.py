"""A semaphore's requests, in virtual time: what is told to the server of permits and limits, and what is learned."""

import asyncio
import logging
from contextlib import aclosing
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from aiolocks import Semaphore
from aiolocks._primitives import semaphore as _semaphore
from tests.support.answering import SILENCE, Answering, Asked
from tests.support.virtual import clock


class Scraper(Answering):
    """A server that answers requests for permits with what comes next, and all else with a yes."""

    def __init__(self, *grants: object) -> None:
        super().__init__(self._answer)
        self._grants = list(grants)

    def _answer(self, asked: Asked) -> object:
        if asked.what != "semaphore_grant":
            return 1
        return self._grants.pop(0) if len(self._grants) > 1 else self._grants[0]

    def semaphore(self, limit: int, **options: Any) -> Semaphore:
        return Semaphore(self.client(), "scraper", limit, **options)

    def limits(self) -> list[tuple[int, int]]:
        """Return which limit each request named, and whether it declared that."""
        each = [asked.arguments[-2:] for asked in self.runs("semaphore_grant")]
        return [(int(limit), int(declares)) for limit, declares in each]


def granted(*, before: int = 0, limit: int = 3) -> list[object]:
    return [b"granted", 7, [], before, limit]


def queued(limit: int) -> list[object]:
    return [b"queued", 1, 5000, 0, 1, [], 0, limit]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("lost", [SILENCE, [b"granted", 7, [], 0, b"3"]], ids=["silence", "unreadable"])
async def test_a_declaration_whose_answer_was_lost_is_repeated_by_the_next_request_alone(lost: object) -> None:
    """A `resize` may have come between, which the same request sent once more would take back."""
    async with aclosing(Scraper(lost, granted(), granted(), 8)) as scraper:
        semaphore = scraper.semaphore(3)
        for _ in range(3):
            await semaphore.acquire()
        assert scraper.limits() == [(3, 1), (3, 0), (3, 1), (3, 0)]


async def test_a_declaration_that_was_not_run_is_not_repeated_after_a_resize() -> None:
    async with aclosing(Scraper(ResponseError("CLUSTERDOWN not now"), granted())) as scraper:
        answer = scraper.answer
        scraper.answer = lambda asked: [3] if asked.what == "semaphore_resize" else answer(asked)
        acquiring = asyncio.create_task(scraper.semaphore(3).acquire()._coroutine)
        await asyncio.sleep(0.01)
        await scraper.semaphore(3).resize(5)
        await acquiring
        assert scraper.limits() == [(3, 1), (3, 0)]
    async with aclosing(Scraper(ResponseError("CLUSTERDOWN not now"), granted(limit=9))) as scraper:
        await scraper.semaphore(9).acquire()
        assert scraper.limits() == [(9, 1), (9, 1)], "but without one"


async def test_a_resize_counts_as_a_declaration_of_the_old_limit_and_of_the_new_one() -> None:
    async with aclosing(Scraper(7)) as scraper:
        scraper.answer = lambda asked: [3] if asked.what == "semaphore_resize" else 7
        await scraper.semaphore(3).resize(5)
        ((limit, pin, *waiter),) = [asked.arguments for asked in scraper.runs("semaphore_resize")]
        assert (limit, pin, len(waiter)) == (b"5", b"-1", 1), "and whom to tell of what it hands over"
        await scraper.semaphore(3).acquire()
        await scraper.semaphore(5).acquire()
        await scraper.semaphore(4).acquire()
        assert scraper.limits() == [(3, 0), (5, 0), (4, 1)]


async def test_a_declaration_that_changed_the_limit_in_force_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with aclosing(Scraper(granted(before=11, limit=3))) as scraper:
        semaphore = scraper.semaphore(3)
        await asyncio.gather(semaphore.acquire(), semaphore.acquire())
        (warning,) = warnings_of(caplog)
        assert "was 11 and is now 3" in warning
        assert scraper.limits() == [(3, 1), (3, 1)]


async def test_a_limit_in_an_answer_to_no_declaration_reaches_no_caller(caplog: pytest.LogCaptureFixture) -> None:
    async with aclosing(Scraper(granted(limit=1), granted(before=11, limit=1))) as scraper:
        semaphore = scraper.semaphore(1)
        await semaphore.acquire()
        await semaphore.acquire()
        assert warnings_of(caplog) == []


@pytest.mark.parametrize(("limit", "objects"), [(1, True), (2, True), (3, False), (4, False), (0, False)])
async def test_a_task_that_waits_for_itself_under_the_limit_in_force_is_told(limit: int, objects: bool) -> None:
    """0: none is in force, as it was forgotten."""
    async with aclosing(Scraper(granted(), queued(limit))) as scraper:
        semaphore = scraper.semaphore(3)
        async with semaphore:
            begun = clock()
            error, says = (RuntimeError, "for itself") if objects else (TimeoutError, "held|few")
            with pytest.raises(error, match=says):
                await semaphore.acquire(permits=2, timeout=0.2)
            assert clock() - begun == pytest.approx(0.0 if objects else 0.2)


async def test_a_task_does_not_wait_for_itself_where_it_only_asks_or_is_granted_more_than_the_limit_in_force() -> None:
    """The limit shrank; a lower one revokes nothing."""
    for reply, given in (([b"busy", 5000, [], 0, 1], False), (granted(limit=1), True)):
        async with aclosing(Scraper(granted(), reply)) as scraper:
            semaphore = scraper.semaphore(3)
            async with semaphore:
                assert (await semaphore.try_acquire() is not None) == given


@pytest.mark.asyncio
@pytest.mark.redis
@pytest.mark.leaves_residue
async def test_limits_of_names_used_once_do_not_pile_up(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_semaphore, "_MAX_DECLARED", 5)
    kept = Semaphore(redis, "kept", 3)
    async with kept:
        pass
    await kept.resize(7)
    for number in range(20):
        again = kept if number < 10 else Semaphore(redis, "kept", 3)
        async with Semaphore(redis, f"once:{number}", 3), again:
            pass
    assert len(kept._declarations()) <= 5
    assert (await kept.statistics()).limit == 7, "what is used again and again is declared once"


async def test_whether_a_task_waits_for_itself_goes_by_what_it_holds_and_asks_for_now() -> None:
    """Requests share a declaration only if both are the same."""
    async with aclosing(Scraper(granted(), queued(1), queued(2), granted(), queued(2))) as scraper:
        semaphore = scraper.semaphore(3)
        async with semaphore:
            for permits in (1, 2):
                with pytest.raises(RuntimeError, match="for itself"):
                    await semaphore.acquire(permits=permits, timeout=0.2)
            async with semaphore:
                with pytest.raises(RuntimeError, match="for itself"):
                    await semaphore.acquire(timeout=0.2)
