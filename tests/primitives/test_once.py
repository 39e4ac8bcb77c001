"""`Once`: one caller in the fleet runs a function, and all others get its outcome.

To each other, `client` and `stranger` are two processes.
"""

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

import aiolocks
from aiolocks import AcquireTimeoutError, LeaseLostError, LockManager, Once, OnceFailedError, OutcomeMismatchError
from tests.support import network
from tests.support.heard import hearing
from tests.support.primitives import NO_SERVER, SOON, cancelled, until

pytestmark = pytest.mark.usefixtures("quick_sessions")

NAME = "rates"
KEPT = f"aiolocks:once:{{{NAME}}}:kept"


class Work:
    """A function to run: it waits for `let_go`, and returns how often it was called."""

    def __init__(self, error: BaseException | None = None, *, busy: bool = True) -> None:
        self.calls, self.cancelled, self.error = 0, 0, error
        self.began, self.let_go = asyncio.Event(), asyncio.Event()
        if not busy:
            self.let_go.set()

    async def __call__(self) -> int:
        self.calls += 1
        self.began.set()
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return self.calls


def started(*calls: Awaitable[Any]) -> "list[asyncio.Task[Any]]":
    return [asyncio.ensure_future(call) for call in calls]


async def until_waiting(once: Once) -> None:
    """Wait until one other process waits: its callers share a place."""
    await until(once.waiters)
    assert len(await once.waiters()) == 1


async def begun(run: Awaitable[Any], work: Work) -> "list[asyncio.Task[Any]]":
    """Start *run*, and return its task once *work* has begun."""
    tasks = started(run)
    await work.began.wait()
    return tasks


async def ended(*tasks: "asyncio.Task[Any]") -> list[Any]:
    async with asyncio.timeout(10):
        return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def work() -> Work:
    return Work()


# What is kept


async def test_a_kept_outcome_is_returned_to_every_process(client: Redis, stranger: Redis) -> None:
    here, there = Once(client, NAME, keep=60), Once(stranger, NAME, keep=timedelta(minutes=1))
    work = Work(busy=False)
    assert [await here.run(work), await there.run(work), await here.run(work)] == [1, 1, 1]
    assert 55_000 < await client.pttl(KEPT) <= 60_000
    assert (await here.holders(), work.calls) == ((), 1)


async def test_an_outcome_says_when_the_function_returned_and_under_which_fencing_token(client: Redis) -> None:
    once, fences = Once(client, NAME, keep=60), [0]
    for _ in range(2):
        assert await once.outcome() is None
        await once.run(Work(busy=False))
        outcome = await once.outcome()
        assert outcome is not None
        assert outcome.value == 1
        assert abs(outcome.at - datetime.now(UTC)) < timedelta(days=1)
        assert outcome.fencing_token > fences[-1]
        fences.append(outcome.fencing_token)
        await once.forget()


async def test_bytes_are_kept_by_functions_of_the_callers_own(client: Redis, stranger: Redis) -> None:
    def reverse(value: bytes) -> bytes:
        return value[::-1]

    for each in (client, stranger):
        once = Once(each, NAME, keep=60, dumps=reverse, loads=reverse)
        assert await once.run(lambda: asyncio.sleep(0, b"\xff\0\n{}")) == b"\xff\0\n{}"


@pytest.mark.parametrize("broken", [b"", b"1", b"00000000000000000007{}\n1", b"x" * 20 + b'[1,null,null]\n""'])
async def test_what_another_program_wrote_is_an_error_that_says_how_to_remove_it(client: Redis, broken: bytes) -> None:
    once = Once(client, NAME, keep=60)
    await client.set(KEPT, broken)
    for asking in (once.run(Work()), once.outcome()):
        with pytest.raises(ValueError, match=r"forget\(\) removes it"):
            await asking
    await once.forget()
    assert await once.run(Work(busy=False)) == 1


async def test_an_outcome_that_this_program_cannot_load_is_its_own_error(client: Redis, stranger: Redis) -> None:
    def stops(data: bytes) -> object:
        raise StopIteration

    await Once(client, NAME, keep=60, dumps=lambda _: b"version 2").run(Work(busy=False))
    with pytest.raises(ValueError) as caught:
        await Once(client, NAME, keep=60).run(Work())
    assert "forget()" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError, match="StopIteration"):
        async with asyncio.timeout(10):
            await Once(stranger, NAME, keep=60, loads=stops).run(Work())


# Callers of one process


async def test_callers_of_one_process_share_one_lease_one_run_and_one_result(client: Redis) -> None:
    result = {"eur": 1.0}
    with hearing() as heard:
        fetch = partial(asyncio.sleep, 0.01, result)
        got: list[Any] = await asyncio.gather(*(Once(client, NAME, keep=0).run(fetch) for _ in range(50)))
        await network.until(lambda: len(heard) > 1)
    assert all(each is result for each in got)
    assert [(event.primitive, event.kind) for event in heard] == [("once", "acquired"), ("once", "released")]


async def test_the_first_caller_is_cancelled_and_nothing_changes_for_the_others(client: Redis, work: Work) -> None:
    once = Once(client, NAME, keep=0)
    first, one, *others = started(*(once.run(work) for _ in range(50)))
    await work.began.wait()
    await cancelled(first, *others)
    work.let_go.set()
    assert (await one, work.calls, work.cancelled) == (1, 1, 0)


@pytest.mark.parametrize("leave", ["cancelled", "timeout", "scope"])
async def test_when_the_last_caller_leaves_the_function_has_ended_and_the_name_is_free(
    client: Redis, work: Work, leave: str
) -> None:
    once, task = Once(client, NAME, keep=60), asyncio.current_task()
    await once.run(Work(busy=False))  # it is connected
    await once.forget()
    if leave == "cancelled":
        await cancelled(*await begun(once.run(work), work))
    elif leave == "scope":
        with anyio.move_on_after(SOON) as scope:
            await once.run(work)
        assert scope.cancelled_caught
    else:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SOON):
                await once.run(work)
    assert (work.calls, work.cancelled) == (1, 1)
    assert task is not None
    assert not task.cancelling()
    assert await once.run(Work(busy=False), timeout=0) == 1


async def test_a_function_that_swallows_its_cancellation_is_cancelled_again_with_its_caller(client: Redis) -> None:
    once, began, stubborn = Once(client, NAME, keep=60), asyncio.Event(), list[BaseException]()

    async def function() -> str:
        while len(stubborn) < 2:
            began.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError as error:
                stubborn.append(error)
        return "done all the same"

    (caller,) = started(once.run(function))
    await began.wait()
    caller.cancel()
    while not stubborn:
        await asyncio.sleep(0)
    assert not caller.done()
    await cancelled(caller)
    await until(once.outcome)


async def test_a_caller_that_is_cancelled_twice_while_its_lease_comes_leaves_no_lease(client: Redis) -> None:
    """P7: the second cancellation may come while the first ends the acquisition."""
    once = Once(client, NAME, keep=0, ttl=20)
    for turns in range(24):
        for more in (1, 2, 3):
            [caller] = started(once.run(partial(asyncio.sleep, 10)))
            for _ in range(turns):
                await asyncio.sleep(0)
            caller.cancel()
            for _ in range(more):
                await asyncio.sleep(0)
            caller.cancel()
            await ended(caller)

    async def is_free() -> bool:
        return not await once.holders()

    await until(is_free)


async def test_a_task_that_an_earlier_run_began_may_run_the_name(client: Redis) -> None:
    once, later = Once(client, NAME, keep=0), list[asyncio.Task[Any]]()
    allowed = asyncio.Event()

    async def again() -> Any:
        await allowed.wait()
        return await once.run(partial(asyncio.sleep, 0, 2))

    async def first() -> int:
        later.extend(started(again()))
        return 1

    assert await once.run(first) == 1
    work = Work()
    running = await begun(once.run(work), work)
    allowed.set()
    await asyncio.sleep(0)
    work.let_go.set()
    assert await ended(*running, *later) in ([1, 1], [1, 2])


async def test_a_caller_that_comes_while_the_last_run_is_being_cancelled_has_a_run_of_its_own(client: Redis) -> None:
    began, cleanup, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            cleanup.set()
            await cleaned.wait()

    once = Once(client, NAME, keep=0)
    (first,) = started(once.run(slow_to_end))
    await began.wait()
    first.cancel()
    await cleanup.wait()
    (second,) = started(once.run(Work(busy=False)))
    await until_waiting(once)
    cleaned.set()
    assert await second == 1
    await asyncio.wait([first])
    assert first.cancelled()


async def test_other_code_that_cancels_every_task_leaves_no_caller_waiting(client: Redis, work: Work) -> None:
    callers = started(*(Once(client, NAME, keep=0).run(work) for _ in range(3)))
    await work.began.wait()
    for task in asyncio.all_tasks() - {asyncio.current_task(), *callers}:
        task.cancel()
    assert [type(each) for each in await ended(*callers)] == [asyncio.CancelledError] * 3


async def test_each_function_runs_in_the_context_of_its_own_caller(client: Redis) -> None:
    once, request, seen = Once(client, NAME, keep=0, errors="retry"), contextvars.ContextVar("request", default=0), []

    async def function() -> None:
        request.set(number := 10 * request.get())
        await asyncio.sleep(0)
        seen.append((number, request.get()))
        raise KeyError

    async def call(number: int) -> None:
        request.set(number)
        await once.run(function)

    await ended(*started(*map(call, (1, 2, 3))))
    assert seen == [(10, 10), (20, 20), (30, 30)]


async def test_a_function_is_not_refused_for_what_has_called_the_one_before(client: Redis, work: Work) -> None:
    once, other, failing = Once(client, NAME, keep=0), Once(client, "other", keep=0, errors="retry"), Work(KeyError())

    async def nested() -> None:
        with pytest.raises(KeyError):
            await other.run(failing)
        await work()

    def waits_for_it() -> Awaitable[object]:
        work.let_go.set()
        return once.run(Work())

    tasks = await begun(once.run(nested), failing)
    tasks += started(other.run(waits_for_it))
    await asyncio.sleep(0)
    failing.let_go.set()
    assert await ended(*tasks) == [None, None]


# Callers of several processes


@pytest.mark.parametrize("keep", [0, 0.001, 60])
async def test_callers_that_wait_in_another_process_get_the_outcome_however_soon_it_expires(
    client: Redis, stranger: Redis, work: Work, keep: float
) -> None:
    here, there = Once(client, NAME, keep=keep), Once(stranger, NAME, keep=keep)
    tasks = await begun(here.run(work), work)
    tasks += started(*(there.run(Work()) for _ in range(3)))
    await until_waiting(here)
    work.let_go.set()
    assert await ended(*tasks) == [1, 1, 1, 1]


async def test_with_keep_0_callers_that_come_later_or_at_the_return_run_again(client: Redis, stranger: Redis) -> None:
    work = Work(busy=False)
    for number, each in enumerate([client, client, stranger, client], 1):
        assert await Once(each, NAME, keep=0).run(work) == number
    once, later, tasks = Once(client, NAME, keep=0), Work(busy=False), list[asyncio.Task[Any]]()

    async def function() -> str:
        await asyncio.sleep(0)
        tasks.extend(started(once.run(later)))
        return "first"

    assert await once.run(function) == "first"
    assert await ended(*tasks) == [1]


# Failures


async def test_a_failure_is_shared_with_waiting_callers_and_the_next_runs_again(client: Redis, stranger: Redis) -> None:
    work = Work(KeyError("eur"))
    here, there = Once(client, NAME, keep=60), Once(stranger, NAME, keep=60)
    tasks = started(here.run(work), here.run(work))
    await work.began.wait()
    tasks += started(there.run(work), there.run(work))
    await until_waiting(here)
    work.let_go.set()
    first, second, *others = await ended(*tasks)
    assert first is work.error
    assert second is not first
    assert (type(second), second.__cause__) == (KeyError, first)
    for other in others:
        assert (type(other), other.name) == (OnceFailedError, NAME)
        assert str(other) == "once 'rates': the run of another caller failed with KeyError: 'eur'"
    assert others[0] is not others[1]
    work.error = None
    assert [await there.run(work), await here.run(work)] == [2, 2]


async def test_with_retry_a_failure_is_its_callers_and_the_next_waiter_runs(client: Redis, stranger: Redis) -> None:
    here, there = Once(client, NAME, keep=60, errors="retry"), Once(stranger, NAME, keep=60, errors="retry")
    failing, good = Work(KeyError("eur")), Work(busy=False)
    tasks = await begun(here.run(failing), failing)
    tasks += started(there.run(good), here.run(failing))
    await until_waiting(here)
    failing.let_go.set()
    assert await ended(*tasks) == [failing.error, 1, 1]
    assert failing.calls == 1


class OddError(Exception):
    def __init__(self, one: int, *, other: int) -> None:
        super().__init__(one)
        self.other = other

    def __reduce__(self) -> Any:
        raise TypeError("this cannot be copied")


class EndError(BaseException):
    pass


@pytest.mark.parametrize("error", [OddError(1, other=2), EndError("end")], ids=repr)
async def test_an_error_that_cannot_be_copied_is_another_for_the_others(client: Redis, error: BaseException) -> None:
    work, once = Work(error), Once(client, NAME, keep=60)
    tasks = started(once.run(work), once.run(work))
    await work.began.wait()
    work.let_go.set()
    first, second = await ended(*tasks)
    assert (type(first), type(second), second.__cause__) == (type(error), OnceFailedError, error)
    assert await once.run(Work(busy=False)) == 1


@pytest.mark.parametrize("errors", ["share", "retry"])
@pytest.mark.parametrize("leaves", [False, True], ids=["", "leaves"])
async def test_a_runner_that_other_code_cancelled_is_a_dead_runner_and_the_next_caller_runs(
    client: Redis, stranger: Redis, errors: Any, leaves: bool
) -> None:
    """Also if its caller leaves in the same turn of the loop: the thread of a function of `aiolocks.sync` does."""
    once, part = Once(client, NAME, keep=60, errors=errors), asyncio.get_running_loop().create_future()
    first, second = started(once.run(lambda: part), once.run(Work(busy=False)))
    await until(once.holders)
    (third,) = started(Once(stranger, NAME, keep=60).run(Work(busy=False)))
    await until_waiting(once)
    part.cancel()
    if leaves:
        first.cancel()
    results = await ended(first, second, third)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [1, 1]


@pytest.mark.parametrize("dumps", [None, lambda value: "text"], ids=["json", "str"])
async def test_a_value_that_cannot_be_encoded_is_a_failure_that_says_so(client: Redis, dumps: Any) -> None:
    once, value = Once(client, NAME, keep=60, **({"dumps": dumps} if dumps else {})), object()
    for error in await ended(*started(*(once.run(lambda: asyncio.sleep(0, value)) for _ in range(2)))):
        assert isinstance(error, TypeError)
        assert "the function returned" in error.__notes__[0]
    assert await once.outcome() is None


async def test_a_value_that_is_too_large_is_for_the_callers_of_its_process_and_one_warning(
    client: Redis, stranger: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    large, let_go = "x" * 2**20, asyncio.Event()

    async def function() -> str:
        await let_go.wait()
        return large

    here, there, other = Once(client, NAME, keep=60), Once(stranger, NAME, keep=60), Work(busy=False)
    tasks = started(here.run(function), here.run(function))
    await until(here.holders)
    tasks += started(there.run(other))
    await until_waiting(here)
    let_go.set()
    assert await ended(*tasks) == [large, large, 1]
    (warning,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "1048578 bytes" in warning.getMessage()


# Loss


@pytest.mark.parametrize("swallows", [False, True], ids=["", "swallows"])
async def test_a_runner_that_is_revoked_publishes_nothing_and_the_next_caller_runs(
    client: Redis, stranger: Redis, swallows: bool
) -> None:
    here, there = Once(client, NAME, keep=60, ttl=1), Once(stranger, NAME, keep=60, ttl=1)
    began, second, third = asyncio.Event(), Work(busy=False), Work(busy=False)

    async def function() -> str:
        began.set()
        with suppress(*[asyncio.CancelledError] * swallows):
            await asyncio.sleep(3600)
        return "late"

    tasks = started(here.run(function))
    await began.wait()
    tasks += started(there.run(second))
    await until_waiting(here)
    tasks += started(here.run(third))
    await here.revoke()
    lost, *others = await ended(*tasks)
    assert isinstance(lost, LeaseLostError)
    assert (lost.reason, others, second.calls + third.calls) == ("revoked", [1, 1], 1)


async def test_a_lease_lost_after_the_work_and_before_the_write_publishes_none(client: Redis, stranger: Redis) -> None:
    here, there = Once(client, NAME, keep=60, ttl=30), Once(stranger, NAME, keep=60)

    async def function() -> str:
        await there.revoke(force=True)  # the next renewal is far away
        return "late"

    lost, next_of_this_process = await ended(*started(here.run(function), here.run(Work(busy=False))))
    assert isinstance(lost, LeaseLostError)
    assert next_of_this_process == 1
    assert await there.run(Work()) == 1


async def test_an_exception_of_a_function_whose_lease_is_lost_is_that_of_its_caller_alone(client: Redis) -> None:
    once, began = Once(client, NAME, keep=60, ttl=1), asyncio.Event()

    async def function() -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            raise KeyError("cleanup")

    tasks = started(once.run(function))
    await began.wait()
    tasks += started(once.run(Work(busy=False)))
    await once.revoke()
    error, other = await ended(*tasks)
    assert (type(error), other) == (KeyError, 1)


# Waiting


async def test_timeout_bounds_waits_for_others_not_the_function(client: Redis, stranger: Redis, work: Work) -> None:
    here, there = Once(client, NAME, keep=60, acquire_timeout=SOON), Once(stranger, NAME, keep=60, acquire_timeout=9)
    await there.outcome()  # it is connected
    tasks = await begun(here.run(work, timeout=None), work)
    for late in (here.run(work), there.run(work, timeout=SOON), here.run(work, timeout=0), there.run(work, timeout=0)):
        with pytest.raises(AcquireTimeoutError) as caught:
            await late
        assert caught.value.name == NAME
    work.let_go.set()
    assert await ended(*tasks) == [1]
    assert await there.run(work, timeout=0) == 1


async def test_a_late_caller_learns_what_the_runners_lease_has_left(client: Redis, stranger: Redis, work: Work) -> None:
    here, there = Once(client, NAME, keep=60, ttl=30), Once(stranger, NAME, keep=60, ttl=30)
    tasks = await begun(here.run(work), work)
    with pytest.raises(AcquireTimeoutError) as caught:
        await there.run(work, timeout=2)
    assert caught.value.retry_after is not None
    assert 20 < caught.value.retry_after < 29
    work.let_go.set()
    await ended(*tasks)


async def test_a_caller_that_never_waits_runs_if_nobody_else_does(client: Redis) -> None:
    once = Once(client, NAME, keep=0)
    results = await asyncio.gather(*(once.run(Work(busy=False), timeout=0) for _ in range(3)), return_exceptions=True)
    assert results[0] == 1
    assert [type(late) for late in results[1:]] == [AcquireTimeoutError] * 2


async def test_the_last_caller_that_is_too_late_ends_the_function_of_one_that_left(client: Redis, work: Work) -> None:
    once = Once(client, NAME, keep=0)
    (first,) = await begun(once.run(work), work)
    (second,) = started(once.run(work, timeout=0.1))
    await asyncio.sleep(0)
    first.cancel()
    assert [type(each) for each in await ended(first, second)] == [asyncio.CancelledError, AcquireTimeoutError]
    assert work.cancelled == 1


async def test_a_function_that_runs_its_own_name_is_refused_instead_of_waiting_for_itself(client: Redis) -> None:
    once, other = Once(client, NAME, keep=0), Once(client, "other", keep=0)

    async def nested() -> object:
        return await once.run(Work())

    for function in (nested, lambda: asyncio.create_task(nested()), lambda: other.run(nested)):
        with pytest.raises(RuntimeError, match="would wait for itself"):
            await once.run(function)
    assert await once.run(lambda: other.run(Work(busy=False))) == 1


async def test_a_closed_manager_ends_its_own_waits_and_no_others(client: Redis, stranger: Redis, work: Work) -> None:
    locks = LockManager(client)
    mine, others = locks.once(NAME, keep=0), Once(client, NAME, keep=0)
    tasks = await begun(Once(stranger, NAME, keep=0).run(work), work)
    tasks += started(mine.run(work), others.run(work), mine.run(work))
    await until_waiting(others)
    await locks.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await mine.outcome()
    work.let_go.set()
    running, first, second, third = await ended(*tasks)
    assert (running, type(first), second, type(third)) == (1, RuntimeError, 1, RuntimeError)


# Fingerprints


async def test_a_kept_outcome_of_another_request_is_an_error(client: Redis, stranger: Redis, work: Work) -> None:
    here, there = Once(client, NAME, keep=60), Once(stranger, NAME, keep=60)
    tasks = await begun(here.run(work, fingerprint="a"), work)
    tasks += started(here.run(work, fingerprint="b"), there.run(work, fingerprint="b"), here.run(work))
    await until_waiting(here)
    work.let_go.set()
    mine, other, elsewhere, any_of_them = await ended(*tasks)
    assert (mine, any_of_them) == (1, 1)
    for error in (other, elsewhere):
        assert (type(error), error.name) == (OutcomeMismatchError, NAME)
    assert await there.run(work, fingerprint="a") == await there.run(work) == 1
    with pytest.raises(OutcomeMismatchError):
        await there.run(work, fingerprint="b")


async def test_what_is_not_kept_is_for_the_same_request_alone(client: Redis, stranger: Redis, work: Work) -> None:
    here, there, other = Once(client, NAME, keep=0), Once(stranger, NAME, keep=0), Work(busy=False)
    tasks = await begun(here.run(work, fingerprint="a"), work)
    tasks += started(here.run(other, fingerprint="b"), there.run(other, fingerprint="c"))
    await until_waiting(here)
    work.let_go.set()
    first, *others = await ended(*tasks)
    assert (first, sorted(others)) == (1, [1, 2])


# The decorator, the manager, and wrong calls


async def test_the_decorator_makes_the_name_of_the_arguments_and_keeps_the_signature(client: Redis) -> None:
    calls = []

    @aiolocks.once(client, "rates:{day}", keep=60)
    async def rates(day: str, *, base: str = "eur") -> str:
        """Return the rates of a day."""
        calls.append(day)
        return f"{base} of {day}"

    assert [await rates("monday"), await rates("monday", base="usd"), await rates(day="tuesday")] == [
        "eur of monday", "eur of monday", "eur of tuesday",
    ]  # fmt: skip
    assert calls == ["monday", "tuesday"]
    assert (inspect.iscoroutinefunction(rates), rates.__doc__) == (True, "Return the rates of a day.")

    @aiolocks.once(lambda: LockManager(client, prefix="app:"), "rates", keep=60)
    async def all_rates() -> int:
        return 1

    await all_rates()
    assert await client.exists("app:once:{rates}:kept")


async def test_wrong_decorations_are_refused_at_once() -> None:
    async def rates(day: str) -> None: ...

    def plain(day: str) -> None: ...

    for function, name, options in (
        (plain, "rates:{day}", {"keep": 1}), (rates, "rates:{week}", {"keep": 1}), (rates, "rates", {"keep": -1}),
        (rates, "rates", {"keep": 1, "errors": "raise"}), (rates, "rates", {}),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError)):
            aiolocks.once(NO_SERVER, name, **options)(function)  # type: ignore[arg-type]


async def test_defaults_of_a_manager_that_make_no_sense_here_do_not_apply(client: Redis) -> None:
    locks = LockManager(client, on_lost="flag", renew=False, min_hold=5, wait_release=False, ttl=5, prefix="app:")
    assert await locks.once(NAME, keep=60).run(Work(busy=False)) == 1
    assert await client.exists("app:once:{rates}:kept")


WRONG_OPTIONS: list[dict[str, Any]] = [
    {"on_lost": "flag"}, {"renew": False}, {"wait_release": False}, {"min_hold": 1}, {"keep": -1}, {"keep": None},
    {"keep": "60"}, {"keep": float("nan")}, {"errors": "raise"}, {"dumps": 1}, {"loads": "json"}, {"ttl": 0},
    {"timeout": 5}, {"cache_ttl": 5},
]  # fmt: skip


async def test_wrong_options_are_refused_before_any_io() -> None:
    for options in WRONG_OPTIONS:
        with pytest.raises((TypeError, ValueError)) as caught:
            Once(NO_SERVER, NAME, **{"keep": 1, **options})
        assert next(iter(options)) in str(caught.value)


async def test_wrong_calls_are_refused(client: Redis) -> None:
    once, coroutine = Once(NO_SERVER, NAME, keep=1), Work()()
    for function, options in (
        (coroutine, {}), (None, {}), (Work(), {"timeout": -1}), (Work(), {"fingerprint": b"a"}),
        (Work(), {"fingerprint": "a" * 1025}),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError)):
            await once.run(function, **options)  # type: ignore[arg-type]
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    with pytest.raises(TypeError):
        Once(NO_SERVER, NAME)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="coroutine function"):
        await Once(client, NAME, keep=1).run(lambda: 5)  # type: ignore[arg-type, return-value]
