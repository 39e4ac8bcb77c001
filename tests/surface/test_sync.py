"""`aiolocks.sync`: threads hold what coroutines hold, and a thread that is interrupted leaves nothing behind."""

import asyncio
import contextlib
import contextvars
import copy
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from types import FrameType
from typing import Any, cast

import pytest
import redis as redis_sync

import aiolocks
from aiolocks import AcquireTimeoutError, LeaseLostError, QueueFullError, _loop_thread, sync
from aiolocks._threads import Call
from aiolocks.events import Event, on_event
from aiolocks.sync import LockManager
from tests.support.kinds import KINDS, complete
from tests.support.lateness import SLACK, answered, assert_within
from tests.surface.test_run import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.real_time]

TTL = 2.0

Threads = ThreadPoolExecutor
Interrupts = Callable[[float], None]


class Interrupted(BaseException):
    """Raised by a signal, as KeyboardInterrupt is."""


@pytest.fixture
def locks(redis_url: str) -> Iterator[LockManager]:
    with LockManager.from_url(redis_url, ttl=TTL) as locks:
        yield locks


@pytest.fixture
def threads() -> Iterator[Threads]:
    with Threads(8) as threads:
        yield threads


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    """Interrupts the main thread after so many seconds."""
    timers = list[threading.Timer]()

    def after(seconds: float) -> None:
        timers.append(threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1)))
        timers[-1].start()

    before = signal.signal(signal.SIGUSR1, _interrupt)
    yield after
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGUSR1, before)


MADE: dict[str, Callable[[LockManager], Any]] = complete({
    "lock": lambda locks: locks.lock("a"), "rlock": lambda locks: locks.rlock("a"),
    "multilock": lambda locks: locks.multilock(["a", "b"]), "semaphore": lambda locks: locks.semaphore("a", 1),
    "rwlock": lambda locks: locks.rwlock("a").write, "versioned": lambda locks: locks.versioned("a"),
}, [kind.name for kind in KINDS], without={
    "redlock": "threads have no manager of several servers", "hierarchy": "threads have none, by the contract",
})  # fmt: skip
LEASED = sorted(set(MADE) - {"versioned"})


@pytest.mark.parametrize("kind", LEASED)
def test_a_thread_excludes_coroutines_and_coroutines_a_thread(locks: LockManager, redis_url: str, kind: str) -> None:
    """They have the same keys and the same fencing tokens."""

    async def ask(make: Callable[[Any], Any], *, while_held: Callable[[], object] = lambda: None) -> int:
        async with aiolocks.LockManager.from_url(redis_url) as others:
            lease = await make(others).try_acquire()
            if lease is None:
                return 0
            async with lease:
                assert await asyncio.to_thread(while_held) is None
                return int(lease.fencing_token)

    make = MADE[kind]
    with make(locks) as lease:
        assert (lease.held, make(locks).locked(), asyncio.run(ask(make))) == (True, True, 0)
    token = asyncio.run(ask(make, while_held=make(locks).try_acquire))
    assert token > lease.fencing_token


@pytest.mark.parametrize("kind", LEASED)
def test_a_thread_that_finds_so_many_waiting_is_refused(locks: LockManager, threads: Threads, kind: str) -> None:
    make = MADE[kind]
    with make(locks):
        waiting = threads.submit(lambda: make(locks).acquire(max_waiting=1).release())
        wait_until(lambda: make(locks).statistics().waiting == 1)
        for call in (lambda: make(locks).acquire(max_waiting=1), lambda: make(locks).hold(max_waiting=0).__enter__()):
            with pytest.raises(QueueFullError):
                threads.submit(call).result()
    assert waiting.result()
    locks.lock("b", max_waiting=0).acquire()
    with pytest.raises(QueueFullError):
        threads.submit(locks.lock("b", max_waiting=0).acquire).result()
    assert locks.lock("b").release() is None


def test_a_thread_says_what_it_does_and_learns_who_is_in_the_way(locks: LockManager, threads: Threads) -> None:
    with (
        pytest.raises(LeaseLostError, match=r"revoked: deploy 1\.7"),
        locks.lock("reports", note="May's report") as lease,
    ):
        assert lease.note("row 500 of 900") is None
        with pytest.raises(AcquireTimeoutError) as caught:
            threads.submit(lambda: locks.lock("reports").acquire(timeout=1.1)).result()
        [holder] = answered(caught.value.holders)
        assert str(caught.value).endswith(" s: row 500 of 900")
        assert (holder.fencing_token, holder.note) == (lease.fencing_token, "row 500 of 900")
        with pytest.raises(AcquireTimeoutError):
            locks.lock("reports").revoke(timeout=0, reason="deploy 1.7")
        assert lease.renew() is False
        with pytest.raises(LeaseLostError, match=r"revoked: deploy 1\.7"):
            lease.check()


FACES: dict[type, AbstractSet[str]] = {
    **dict.fromkeys((sync.Lock, sync.RLock, sync.MultiLock, sync.Semaphore), frozenset({"adopt", "touch", "drop"})),
    **dict.fromkeys((sync.Versioned, sync.Once, sync.RateLimiter, sync.Election), frozenset[str]()),
    sync.Lease: {"upgrade"},
    LockManager: {"aclose", "client", "hierarchical"},
}


def members(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("face", "without"), FACES.items())
def test_each_class_has_the_methods_of_the_asynchronous_one(face: type, without: AbstractSet[str]) -> None:
    """A new method or parameter of an asynchronous class is missing here by name."""
    ours, theirs = members(face), members(getattr(aiolocks, face.__name__))
    assert theirs.keys() - ours.keys() == without
    assert ours.keys() - theirs.keys() <= {"close"}
    for member in ours.keys() & theirs.keys():
        assert inspect.getdoc(ours[member])
        assert not inspect.iscoroutinefunction(ours[member])
        if face is not LockManager and callable(ours[member]):
            assert [*inspect.signature(ours[member]).parameters] == [*inspect.signature(theirs[member]).parameters]


def test_threads_and_coroutines_share_the_starts_of_a_rate_limiter(locks: LockManager, redis_url: str) -> None:
    limiter = locks.rate_limiter("api", 3, per=2)

    async def there() -> bool:
        async with aiolocks.LockManager.from_url(redis_url) as others:
            return await others.rate_limiter("api", 3, per=2).try_acquire()

    begun = time.monotonic()
    with limiter:
        limiter.acquire()
    assert (asyncio.run(there()), limiter.try_acquire()) == (True, False)
    with pytest.raises(AcquireTimeoutError):
        limiter.acquire(timeout=0.3)
    assert limiter.statistics().permits == 3
    with limiter:
        assert time.monotonic() - begun >= 2


def test_what_threads_do_not_have_is_an_error_that_says_what_to_use(locks: LockManager) -> None:
    made: Any = locks  # type checkers know all of this
    lock, lease, manager = made.lock("a"), made.rwlock("a").write.acquire(), cast("Any", LockManager)
    once, election = made.once("a", keep=60), made.election("a")
    uses: list[tuple[Callable[[], object], str]] = [
        (lambda: lock.adopt("text"), "aiolocks.Lock"),
        (lambda: made.semaphore("a", 1).adopt("text"), "aiolocks.Semaphore"),
        (lambda: lock.touch("text"), "aiolocks.Lock"), (lambda: lock.drop("text"), "aiolocks.Lock"),
        (lambda: made.rwlock("a").upgradeable, "aiolocks.RWLock"), (lambda: lease.upgrade(), "aiolocks.RWLock"),
        (lambda: made.redlock("a"), "aiolocks.Redlock"), (lambda: made.hierarchical("a"), "aiolocks.HierarchicalLock"),
        (lambda: made.lock("a", watchdog="thread"), "aiolocks.Lock"),
        (lambda: made.rlock("a", max_stall=5), "aiolocks.RLock"),
        (lambda: made.multilock(["a"], track=True), "aiolocks.MultiLock"),
        (lambda: made.semaphore("a", 1, on_lost="cancel"), "aiolocks.Semaphore"),
        (lambda: made.once("a", keep=1, track=True), "aiolocks.Once"),
        (lambda: made.election("a", watchdog="thread"), "aiolocks.Election"),
        (lambda: manager.from_url("redis://localhost", on_lost="cancel"), "aiolocks.LockManager"),
        (lambda: manager(redis_sync.Redis()), "from_url"), (lambda: lock.acquire(5), r"acquire\(timeout=5\)"),
        (lambda: made.lock("a", timeout=5), "acquire_timeout"), (lambda: made.once("a", keep=60, renew=True), "renew"),
        (lambda: made.election("a", acquire_timeout=5), "acquire_timeout"),
    ]  # fmt: skip
    names: list[tuple[Callable[[], object], str]] = [
        (lambda: made.rate_limiter("a", 1, per=1).touch, "'RateLimiter' object has no attribute 'touch'"),
        (lambda: lock.extend, r"lease\.renew\(60\)"),
        (lambda: once.get, r"use once\.run\(function\), of a plain function"),
        (lambda: election.release, r"election\.resign\(\); to stand no more, let `lead` return"),
    ]
    for error, rows in ((TypeError, uses), (AttributeError, names)):
        for use, says in rows:
            with pytest.raises(error, match=says) as wrong:
                use()
            assert "await" not in str(wrong.value)
    assert not hasattr(lock, "adopt")
    lease.release()
    assert ["async" in lock.acquire.__doc__, "thread" in lock.acquire.__doc__] == [False, True]


def test_a_lease_by_hand_is_renewed_guarded_and_released(locks: LockManager) -> None:
    lock = locks.lock("a")
    lease = lock.acquire(timeout=1)
    assert (lease.name, lease.held, lease.renew(), lease.guard(("SET", "x", 1))) == ("a", True, True, [b"OK"])
    assert lock.holders()[0].fencing_token == lease.fencing_token == lease.fencing_tokens["a"]
    assert (lease.release(), lease.release(), lease.held) == (True, False, False)
    lease = lock.acquire()
    lock.release()
    assert not lease.held
    with pytest.raises(RuntimeError, match="holds no lease"):
        lock.release()
    with pytest.raises(TypeError, match="hand_off"):
        copy.copy(lease)
    with lock.acquire() as lease, pytest.raises(RuntimeError, match="open already"):
        with lease:
            pass
    assert (lease.held, lock.locked()) == (False, False)


def test_what_holds_for_a_task_holds_for_a_thread(locks: LockManager, threads: Threads) -> None:
    """Re-entry, `release()`, and waiting for oneself."""
    lock, rlock, rw = locks.lock("a"), locks.rlock("b"), locks.rwlock("c")
    with lock, rlock, rlock:
        with pytest.raises(RuntimeError, match="wait for itself"), lock:
            pass
        assert lock.try_acquire() is None
        with pytest.raises(AcquireTimeoutError):
            threads.submit(rlock.acquire, timeout=0.3).result()
        with pytest.raises(RuntimeError, match="holds no lease"):
            threads.submit(lock.release).result()
    assert threads.submit(lambda: lock.acquire().release()).result()
    with rw.read, threads.submit(rw.read.acquire).result():
        assert rw.write.try_acquire() is None
    with rw.write as lease:
        lease.downgrade()
        assert threads.submit(lambda: rw.read.acquire().release()).result()


def test_a_semaphore_shared_by_threads_never_has_too_many(locks: LockManager, threads: Threads) -> None:
    semaphore, inside, most = locks.semaphore("a", 2), list[int](), list[int]()

    def work() -> None:
        for _ in range(5):
            with semaphore:
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    for done in [threads.submit(work) for _ in range(8)]:
        done.result()
    assert max(most) == 2
    semaphore.resize(3)
    with semaphore.hold(permits=3):
        assert semaphore.try_acquire() is None
    assert (semaphore.statistics().limit, semaphore.pause(60)) == (3, 60.0)
    assert (semaphore.try_acquire(), semaphore.locked()) == (None, True)
    assert (semaphore.resume(), semaphore.resume()) == (True, False)


def test_a_block_that_another_thread_leaves_releases_its_own_lease(locks: LockManager, threads: Threads) -> None:
    """As FastAPI does with a dependency that is a plain generator."""
    semaphore = locks.semaphore("a", 2)

    def dependency() -> Generator[sync.Lease, None, None]:
        with semaphore as lease:
            yield lease

    first, second = dependency(), dependency()
    leases = [next(first), threads.submit(next, second).result()]
    first_ends = threads.submit(next, first, None)
    assert first_ends.result() is None
    assert [lease.held for lease in leases] == [False, True]
    second.close()
    assert [lease.held for lease in leases] == [False, False]


def test_an_exit_stack_leaves_the_blocks_that_it_entered(locks: LockManager) -> None:
    semaphore = locks.semaphore("a", 3)
    with contextlib.ExitStack() as stack:
        leases = [stack.enter_context(semaphore), stack.enter_context(semaphore.hold()), stack.enter_context(semaphore)]
        assert semaphore.locked()
    assert not any(lease.held for lease in leases)
    with pytest.raises(RuntimeError, match="hold"):
        semaphore.__enter__()  # by other code than `with`, as threads share the object
    with pytest.raises(RuntimeError, match="not held"):
        semaphore.__exit__(None, None, None)
    assert semaphore.statistics().permits == 0


@pytest.mark.parametrize("wait_release", [True, False])
def test_a_lost_lease_is_raised_by_check_and_at_the_end_of_the_block(
    locks: LockManager, redis_url: str, caplog: pytest.LogCaptureFixture, wait_release: bool
) -> None:
    lock = locks.lock("a", ttl=0.3, wait_release=wait_release)
    with redis_sync.Redis.from_url(redis_url) as operator:
        with pytest.raises(LeaseLostError, match="a"), lock as lease:
            operator.flushdb()
            wait_until(lambda: lease.lost)  # the thread sleeps meanwhile
            with pytest.raises(LeaseLostError):
                lease.check()
            assert (lease.held, lease.wait_lost()) == (False, True)
        with pytest.raises(ZeroDivisionError) as raised, lock.hold() as lease:
            operator.flushdb()
            wait_until(lambda: lease.lost)
            1 / 0  # noqa: B018
        assert "lock 'a'" in raised.value.__notes__[0]
        if wait_release:
            with pytest.raises(LeaseLostError, match="gone"), locks.lock("b"):
                operator.flushdb()  # the release finds it, though the body was done
    assert "lock 'a'" in caplog.text


def test_leases_are_renewed_while_the_thread_is_busy(locks: LockManager) -> None:
    with locks.lock("a", ttl=1) as lease:
        before, remaining = 1.0, lease.remaining()
        while 0 < remaining <= before:
            time.sleep(0.01)
            before, remaining = remaining, lease.remaining()
        assert lease.held, "renewed"


@pytest.mark.leaves_residue
def test_a_lease_that_nothing_refers_to_lapses_once_its_thread_has_ended(locks: LockManager) -> None:
    """Until then, `lock.release()` of the thread would find it."""
    lock = locks.lock("a", ttl=0.3)

    def forget() -> None:
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        thread.join()
        lock.acquire(timeout=3 * SLACK).release()

    with pytest.warns(ResourceWarning, match="lock 'a'"):
        forget()


def test_an_update_runs_its_function_in_the_calling_thread(locks: LockManager) -> None:
    stock, variable = locks.versioned("stock"), contextvars.ContextVar("variable", default="unset")
    variable.set("here")
    seen = list[object]()

    def sell(value: Any) -> int:
        with locks.lock("a"):  # calls of its own
            seen.append((threading.current_thread(), variable.get()))
            return int(value or 3) - 1

    assert (stock.update(sell)[0], seen) == (2, [(threading.main_thread(), "here")])
    assert stock.read() == (b"2", stock.read()[1])
    with pytest.raises(ZeroDivisionError):
        stock.update(lambda value: 1 // 0)
    with pytest.raises(aiolocks.VersionConflictError):
        stock.write(b"9", "stale")

    async def coroutine(value: object) -> int:
        return 1

    with pytest.raises(TypeError, match="async def"):
        stock.update(cast("Any", coroutine))


def test_a_closed_manager_ends_what_its_threads_wait_for(redis_url: str, threads: Threads) -> None:
    """A wait, and an election that stands. What is held stays held, and the leader leads on."""
    with LockManager.from_url(redis_url, ttl=TTL) as locks:
        lock, election = locks.lock("a"), locks.election("a")
        lease, (lead, leads, term) = lock.acquire(), begin(threads, election, returns)
        waits, stands = threads.submit(lock.acquire), threads.submit(locks.election("a").run, returns)
        wait_until(lambda: lock.waiters() and election.waiters())
    for wait in (waits.result, stands.result, lock.acquire):
        with pytest.raises(RuntimeError, match="closed"):
            wait()
    assert (lease.held, lease.release(), term.held) == (True, True, True)
    lead.go_on.set()
    assert leads.result() == term.fencing_token


# Where a thread is interrupted, or must not wait.


def test_an_interrupted_call_leaves_nothing_behind(
    locks: LockManager, threads: Threads, redis_url: str, interrupts: Interrupts
) -> None:
    """Waiting for a lock or an outcome, standing for election, looking on; or running a function."""

    def works(*_: object) -> int:
        with locks.lock("inner"):
            time.sleep(20)
        return 1

    lock, once, election = locks.lock("a"), locks.once("b", keep=60), locks.election("c")
    lease = threads.submit(lock.acquire).result()
    with LockManager.from_url(redis_url, ttl=TTL) as others:
        function, outcome, _ = begin(threads, others.once("b", keep=60), lambda: 5)
        lead, leads, _ = begin(threads, others.election("c"), returns)
        for call in (
            lock.acquire, lock.hold().__enter__, lock.hold(timeout=5).__enter__, lambda: once.run(int),
            lambda: election.run(returns), lambda: list(election.changes()), lambda: locks.versioned("d").update(works),
            lambda: locks.election("e").run(works),
        ):  # fmt: skip
            interrupts(0.05)
            begun = time.monotonic()
            with pytest.raises(Interrupted):
                call()
            assert_within(time.monotonic() - begun, 0.05 + SLACK * 0.5)
            assert (lock.waiters(), once.waiters(), election.waiters()) == ((), (), ()), call
            assert not locks.lock("inner").locked()
        lease.release()
        function.go_on.set()
        lead.go_on.set()
        assert (outcome.result(), once.run(int)) == (5, 5)
        assert election.run(returns) > leads.result()
    assert lock.acquire().release()
    assert (locks.versioned("d").read()[0], locks.election("e").leader()) == (None, None)


def test_two_signals_at_once_leave_nothing_behind(locks: LockManager, threads: Threads, interrupts: Interrupts) -> None:
    """The handler of the second raises where the first exception has just been caught."""

    def both() -> None:
        signal.pthread_kill(here, signal.SIGUSR1)
        signal.pthread_kill(here, signal.SIGUSR2)

    here = threading.get_ident()
    lock, before = locks.lock("a"), signal.signal(signal.SIGUSR2, _interrupt)
    try:
        lease = threads.submit(lock.acquire).result()
        for _ in range(5):
            timer = threading.Timer(0.03, both)
            timer.start()
            with pytest.raises(Interrupted):
                lock.acquire()
            timer.join()
            wait_until(lambda: lock.waiters() == ())
        lease.release()
        assert not lock.locked()
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_block_whose_exit_is_interrupted_is_left_anyway(locks: LockManager, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = locks.lock("a").hold()
    hold.__enter__()
    loop = cast("_loop_thread.Loop", _loop_thread.current)
    post = loop.post

    def interrupted(*_: object) -> None:
        monkeypatch.setattr(loop, "post", post)
        raise Interrupted

    monkeypatch.setattr(loop, "post", interrupted)
    with pytest.raises(Interrupted):
        hold.__exit__(None, None, None)
    with hold:
        assert locks.lock("a").locked()
    assert not locks.lock("a").locked()


def test_a_call_that_is_interrupted_twice_before_it_began_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = list[int]()

    async def release() -> None:
        runs.append(1)

    Call(release, certain=True).result("Lock")
    loop = cast("_loop_thread.Loop", _loop_thread.current)
    post, posts = loop.post, list[int]()

    def interrupted(*args: Any) -> None:
        posts.append(1)
        if len(posts) > 1:
            post(*args)
        if len(posts) < 3:
            raise Interrupted

    post(time.sleep, 0.1)  # the loop is busy until both have come
    monkeypatch.setattr(loop, "post", interrupted)
    with pytest.raises(Interrupted):
        Call(release, certain=True).result("Lock")
    monkeypatch.setattr(loop, "post", post)
    Call(release, certain=True).result("Lock")
    assert len(runs) == 3


def test_a_call_after_the_end_of_the_loop_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing() -> None: ...

    loop = _loop_thread.Loop()
    loop.begin()
    monkeypatch.setattr(_loop_thread, "current", loop)
    Call(nothing).result("Lock")
    loop.end()
    with pytest.raises(RuntimeError, match="closed"):
        Call(nothing).result("Lock")


def test_a_call_of_a_signal_handler_is_an_error_and_no_deadlock(locks: LockManager, threads: Threads) -> None:
    lock = locks.lock("a")
    lease = threads.submit(lock.acquire).result()
    before = signal.signal(signal.SIGUSR1, lambda number, frame: print(lock.locked()))
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    with pytest.raises(RuntimeError, match="signal handler"):
        lock.acquire(timeout=3)
    signal.signal(signal.SIGUSR1, before)
    timer.join()
    assert (lock.waiters(), lease.release()) == ((), True)


async def test_a_call_from_a_running_loop_is_refused_with_the_class_to_use_there(locks: LockManager) -> None:
    lease = await asyncio.to_thread(locks.lock("a").acquire)
    calls: list[tuple[Callable[[], object], str]] = [
        *((MADE[kind.name](locks).acquire, kind.class_name) for kind in KINDS if kind.name in LEASED),
        (locks.versioned("b").read, "Versioned"), (lease.release, "Lock"), (locks.lock("b").hold().__enter__, "Lock"),
        (lambda: locks.once("b", keep=1).run(int), "Once"), (lambda: locks.election("b").run(repr), "Election"),
        (lambda: next(locks.election("b").changes()), "Election"), (locks.close, "LockManager"),
    ]  # fmt: skip
    for call, named in calls:
        with pytest.raises(RuntimeError, match=rf"aiolocks\.{named} "):
            call()
    with pytest.raises(RuntimeError, match="to_thread"), locks.lock("b"):
        pass
    assert await asyncio.to_thread(lease.release)
    await asyncio.to_thread(locks.close)


def test_a_blocked_loop_makes_no_lease_and_no_interrupt_last_longer(locks: LockManager, interrupts: Interrupts) -> None:
    """A listener is called in the loop, and may block it."""
    blocked, go_on = threading.Event(), threading.Event()

    def block(event: Event) -> None:
        if event.kind == "acquired" and event.name == "blocks":
            blocked.set()
            go_on.wait(20)

    with contextlib.suppress(LeaseLostError), locks.lock("a", ttl=0.3) as lease:
        stop = on_event(block)
        thread = threading.Thread(target=lambda: locks.lock("blocks").acquire().release())
        thread.start()
        assert blocked.wait(5)
        wait_until(lambda: not lease.held)
        with pytest.raises(LeaseLostError):
            lease.check()
        interrupts(0.05)
        begun = time.monotonic()
        with pytest.raises(Interrupted):
            locks.lock("b").acquire()
        took = time.monotonic() - begun
        go_on.set()
        thread.join()
        stop()
        assert_within(took, 2.05 + SLACK * 0.2)
    with pytest.raises(LeaseLostError):
        lease.check()
    assert not locks.lock("b").locked()


def test_the_task_of_a_thread_ends_with_it(locks: LockManager) -> None:
    async def count() -> int:
        return len(asyncio.all_tasks())

    def work() -> None:
        with locks.lock("a"):
            pass

    work()
    before = Call(count).result("Lock")
    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    wait_until(lambda: Call(count).result("Lock") <= before)


# Loops around a lease.


class Lead:
    """A function to run: it says that it began, works until `go_on` is set, and ends in the way of `ends`."""

    def __init__(self, *ends: Callable[..., Any]) -> None:
        self.terms = list[sync.Lease]()
        self.threads = set[int]()
        self.began, self.go_on = threading.Semaphore(0), threading.Event()
        self._ends = list(ends)

    def __call__(self, *lease: sync.Lease) -> Any:
        self.terms += lease
        self.threads.add(threading.get_ident())
        self.began.release()
        assert self.go_on.wait(20)
        return self._ends.pop(0)(*lease)


def begin(threads: Threads, loop: sync.Election | sync.Once, *ends: Any) -> tuple[Lead, Future[Any], sync.Lease]:
    """Run a function in a thread; return it, its outcome, and the lease of a leader once it has begun."""
    lead = Lead(*ends)
    done = threads.submit(loop.run, lead)
    assert lead.began.acquire(timeout=20)
    return lead, done, lead.terms[-1] if lead.terms else cast("Any", None)


def checks(lease: sync.Lease) -> Any:
    wait_until(lambda: lease.check())  # raises


def returns(lease: sync.Lease) -> int:
    return lease.fencing_token


def fails(lease: sync.Lease) -> Any:
    raise ZeroDivisionError from None


def loses_another(lease: sync.Lease) -> Any:
    raise LeaseLostError("another", name="b", fencing_token=lease.fencing_token, reason="lost")


def test_all_threads_get_the_outcome_of_the_one_that_ran(locks: LockManager, threads: Threads, redis_url: str) -> None:
    once, variable = locks.once("rates", keep=60), contextvars.ContextVar("variable", default=0)
    runs, together = list[int](), threading.Barrier(8)

    def call() -> tuple[int, list[int]]:
        variable.set(threading.get_ident())

        def function() -> list[int]:
            with locks.lock("a"):  # calls of its own
                runs.append(threading.get_ident())
                return [threading.get_ident(), variable.get()]

        together.wait()
        return threading.get_ident(), once.run(function)

    called = [done.result() for done in [threads.submit(call) for _ in range(8)]]
    assert (len({thread for thread, _ in called}), [value for _, value in called]) == (8, [runs * 2] * 8)
    outcome = once.outcome()
    assert outcome is not None

    async def elsewhere() -> Any:
        async with aiolocks.LockManager.from_url(redis_url) as others:
            return await others.once("rates", keep=60).run(asyncio.Event().wait)

    assert asyncio.run(elsewhere()) == outcome.value == runs * 2
    once.forget()
    assert (once.outcome(), once.name, once.holders(), once.waiters(), once.revoke()) == (None, "rates", (), (), ())


def test_a_failure_is_shared_and_a_nested_run_is_refused(locks: LockManager, threads: Threads) -> None:
    once = locks.once("rates", keep=60)

    def ends() -> None:
        with pytest.raises(RuntimeError, match="its own function calls this"):
            once.run(int)
        raise ZeroDivisionError("mine")

    function, first, _ = begin(threads, once, ends)
    second = threads.submit(once.run, function)
    for timeout in (0.02, 0):
        with pytest.raises(AcquireTimeoutError):
            once.run(int, timeout=timeout)
    assert len(once.holders()) == 1
    function.go_on.set()
    mine, copied = first.exception(), second.exception()
    assert (repr(mine), repr(copied)) == ("ZeroDivisionError('mine')",) * 2
    assert {mine, copied} >= {cast("BaseException", error).__cause__ for error in (mine, copied)} - {None}
    assert once.run(int, fingerprint="a") == 0
    with pytest.raises(aiolocks.OutcomeMismatchError):
        once.run(int, fingerprint="b")


def test_what_is_no_plain_function_is_refused(locks: LockManager) -> None:
    async def coroutine(lease: object = None) -> int:
        return 1

    once, election = cast("Any", locks.once("a", keep=60)), cast("Any", locks.election("a"))
    wrong: list[tuple[Callable[[], object], str]] = [  # each makes one, as a coroutine is closed when it is refused
        (lambda: coroutine, "async def"), (coroutine, "async def"), (lambda: lambda *_: coroutine(), "async def"),
        (lambda: 1, r"run\(fetch\)"), (lambda: None, r"run\(fetch\)"),
    ]  # fmt: skip
    for make, says in wrong:
        for run in (once.run, election.run):
            with pytest.raises(TypeError, match=says):
                run(make())
    assert (once.holders(), once.outcome(), election.leader()) == ((), None, None)


@pytest.mark.parametrize("keep", [0, 60])
def test_an_interrupted_runner_is_dead(locks: LockManager, threads: Threads, interrupts: Interrupts, keep: int) -> None:
    """Each waiting thread gets the value of the next one, which runs in its own context, and never an error."""
    once, waits, ran = locks.once("rates", keep=keep), list[Future[int]](), list[int]()
    thread = contextvars.ContextVar("thread", default=0)

    def function() -> int:
        ran.append(thread.get() - threading.get_ident())
        return len(ran)

    def call() -> int:
        thread.set(threading.get_ident())
        return once.run(function)

    def stuck() -> None:
        waits.extend(threads.submit(call) for _ in range(4))
        interrupts(0.03)
        time.sleep(20)

    with pytest.raises(Interrupted):
        once.run(stuck)
    assert [wait.result() for wait in waits] == [1] * 4
    assert (ran, once.holders(), once.waiters()) == ([0], (), ())


def test_a_function_whose_lease_is_lost_keeps_nothing(locks: LockManager, threads: Threads) -> None:
    once = locks.once("a", keep=60, ttl=0.3)
    function, first, _ = begin(threads, once, lambda: 1)
    second = threads.submit(once.run, lambda: 2)
    assert len(once.revoke()) == 1
    assert (first.done(), second.done()) == (False, False)  # nothing stops a thread
    function.go_on.set()
    assert (type(first.exception()), second.result()) == (LeaseLostError, 2)


def test_the_leader_leads_in_the_calling_thread(locks: LockManager, threads: Threads) -> None:
    election, lead = locks.election("a", ttl=1), Lead(returns)
    assert repr((election.is_leader, election.term, election.leader())) == "(False, None, None)"
    assert not election.resign()
    changes = election.changes()
    assert next(changes) is None
    done = threads.submit(lambda: (threading.get_ident(), election.run(lead)))
    leader, lease = next(changes), lead.terms[-1]
    assert leader is not None
    assert leader.fencing_token == election.term == lease.fencing_token
    assert (election.is_leader, lease.held, lease.renew(), lease.remaining() > 0) == (True, True, True, True)
    assert lease.guard(("SET", "x", 1)) == [b"OK"]
    with pytest.raises(RuntimeError, match="runs already"):
        election.run(lead)
    lead.go_on.set()
    thread, value = done.result()
    assert (lead.threads, value) == ({thread}, lease.fencing_token)
    assert repr((election.is_leader, election.term, election.leader())) == "(False, None, None)"
    assert (lease.held, next(changes)) == (False, None)
    with pytest.raises(ZeroDivisionError):
        election.run(fails)
    assert (election.name, election.leader(), election.waiters(), election.revoke()) == ("a", None, (), ())


def test_what_leads_cannot_wait_for_itself_and_resigns_without_waiting(locks: LockManager) -> None:
    election, turns = locks.election("a"), list[bool]()

    def lead(lease: sync.Lease) -> int:
        if turns:
            return lease.fencing_token
        with pytest.raises(RuntimeError, match="this thread leads already"):
            locks.election("a").run(returns)
        assert (locks.lock("a").acquire().release(), locks.election("b").run(lambda lease: 1)) == (True, 1)
        turns.extend((election.resign(), lease.held))
        lease.check()
        return 0

    assert (election.run(lead) > 1, turns) == (True, [True, False])


@pytest.mark.parametrize("answers", [checks, returns, fails])
def test_after_a_loss_the_lease_says_so_and_run_stands_again_once_lead_has_ended(
    locks: LockManager, threads: Threads, answers: Callable[[sync.Lease], Any]
) -> None:
    """Or raises what lead does."""
    election = locks.election("a", ttl=1)
    lead, done, first = begin(threads, election, answers, returns)
    assert (len(election.revoke()), first.wait_lost()) == (1, True)
    with pytest.raises(LeaseLostError, match="revoked"):
        first.check()
    with pytest.raises(LeaseLostError):
        first.guard(("SET", "x", 1))
    assert (first.held, first.remaining(), election.is_leader, done.done()) == (False, 0, False, False)
    with locks.lock("b"), pytest.raises(AcquireTimeoutError):
        threads.submit(locks.lock("b").acquire, timeout=0.3).result()  # the loop serves others meanwhile
    lead.go_on.set()
    if answers is fails:
        assert isinstance(done.exception(), ZeroDivisionError)
    else:
        assert done.result() > first.fencing_token
    assert len(lead.threads) == 1


def test_after_resign_no_other_leads_until_lead_has_ended(locks: LockManager, threads: Threads) -> None:
    """A loss of another lock ends a leader that resigns."""
    for answers in (checks, returns, loses_another):
        election, other = locks.election("a"), locks.election("a")
        lead, done, lease = begin(threads, election, answers, returns)
        ends, stands = threads.submit(lease.wait_lost), threads.submit(other.run, returns)
        wait_until(lambda other=other: other.waiters())  # type: ignore[misc]
        with pytest.raises(AcquireTimeoutError, match="has not ended"):
            election.resign(timeout=0.01)
        for use in (lease.check, lambda lease=lease: lease.guard(("SET", "x", 1))):
            with pytest.raises(LeaseLostError, match="resigned"):
                use()
        assert (lease.held, lease.lost, lease.remaining(), ends.result()) == (False, False, 0, False)
        assert (election.is_leader, election.term, stands.done()) == (False, None, False)
        leader, before = election.leader(), time.process_time()
        assert leader is not None
        assert leader.fencing_token == lease.fencing_token
        resigns = threads.submit(election.resign)
        time.sleep(0.1)
        assert time.process_time() - before < 0.05  # a lead that goes on keeps no loop busy
        lead.go_on.set()
        resigns.result()
        assert lease.fencing_token < stands.result()
        if answers is loses_another:
            assert str(done.exception()) == "another"
        else:
            assert stands.result() < done.result()
