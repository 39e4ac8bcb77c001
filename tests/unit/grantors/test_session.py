"""What one pool and one loop share: how long it lasts, what ends with it, and that others do not get in its way."""

import asyncio
import gc
import math
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.asyncio import ConnectionPool, Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from aiolocks import Lease, Lock
from aiolocks._core.keys import Keys
from aiolocks._core.options import Options
from aiolocks._engine.request import Request
from aiolocks._grantors.all_of import AllOf
from aiolocks._grantors.parts import Part
from aiolocks._grantors.session import Session, _sessions
from aiolocks._redis.urls import memory_client
from aiolocks.testing import ScriptedGrantor
from tests.support.answering import SILENCE, Answering, Asked, ended
from tests.support.inside import our_timers
from tests.support.virtual import clock

IDLE = 0.5
JUST = 0.01


def granting(**others: object) -> Answering:
    """Return a server that grants whatever it is asked for; *others* are what it answers to other scripts."""

    def answer(asked: Asked) -> object:
        usual: dict[str, object] = {"lock_grant": 7}
        if asked.what == "SUBSCRIBE":
            usual["SUBSCRIBE"] = [b"subscribe", asked.words[1], 1]
        if asked.what == "lock_renew_many":
            usual["lock_renew_many"] = [1] * (len(asked.arguments) // 2)
        return (usual | others).get(asked.what, 1)

    return Answering(answer)


async def acquired(server: Answering, **options: Any) -> Lease:
    return await server.asking(**options).acquire(Lease, by_hand=True)


def waiting(server: Answering) -> Request:
    request = Request(30.0, 1, wait=True)
    _ = server.grantor().grant(request)
    return request


def told(server: Answering, what: str) -> list[list[bytes]]:
    return [asked.arguments for asked in server.asked if asked.what == what]


async def connected() -> bool:
    await asyncio.sleep(0)
    return len(asyncio.all_tasks()) > 1


class SlowToTell(asyncio.SelectorEventLoop):
    """A loop that, once closed, tells two threads so at the same moment."""

    both: threading.Barrier | None = None

    def __init__(self) -> None:
        self.told: set[int] = set()
        super().__init__()

    def is_closed(self) -> bool:
        closed, thread = super().is_closed(), threading.get_ident()
        if self.both is not None and thread not in self.told:
            self.told.add(thread)
            self.both.wait(5)
        return closed


def test_two_threads_may_find_the_sessions_of_one_closed_loop_at_the_same_moment() -> None:
    pools = [memory_client("memory://").connection_pool for _ in range(3)]

    async def begin(pool: ConnectionPool) -> None:
        Session.of(pool)

    closed = SlowToTell()
    closed.run_until_complete(begin(pools[0]))
    [key] = [key for key in _sessions if key[1] is closed]
    closed.close()
    closed.both = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        for found in [threads.submit(asyncio.run, begin(pool)) for pool in pools[1:]]:
            found.result(10)
    closed.both = None
    assert key not in _sessions


async def test_a_session_ends_half_a_second_after_the_last_lease() -> None:
    server = granting()
    lease = await acquired(server)
    session = Session.find(server)
    assert session is not None
    await asyncio.sleep(20)
    assert await lease.release() is True
    await asyncio.sleep(IDLE - JUST)
    assert not ended(session)
    assert await connected()
    await asyncio.sleep(2 * JUST)
    assert ended(session)
    assert not await connected()
    assert Session.find(server) is None
    assert Session.of(server) is not session
    Session.of(server).close()


async def test_a_session_that_is_used_again_meanwhile_is_connected_and_ends_that_much_later() -> None:
    server = granting()
    session = Session.of(server)
    for held in (0, 0, 60, 0):
        lease = await acquired(server)
        await asyncio.sleep(held)
        assert await lease.release() is True
        await asyncio.sleep(IDLE - JUST)
        assert not ended(session)
    assert len(server.tried) == 1
    await asyncio.sleep(2 * JUST)
    assert ended(session)


async def test_a_session_lasts_while_questions_are_not_answered() -> None:
    session = Session.of(granting())
    with session.context.in_use():
        session.context.schedule_idle_close()
        with session.context.in_use():
            await asyncio.sleep(10)
        await asyncio.sleep(10)
        assert not ended(session)
    await asyncio.sleep(IDLE - JUST)
    assert not ended(session)
    await asyncio.sleep(2 * JUST)
    assert ended(session)


async def test_it_lasts_until_what_undoes_a_lease_is_answered_or_pointless() -> None:
    """W14: else one lost reply would keep the lock for its whole ttl."""
    server = granting(lock_release=SILENCE)
    session = Session.of(server)
    lease = await acquired(server, ttl=5.0)
    releasing = asyncio.ensure_future(lease.release())
    await asyncio.sleep(4.9)
    assert not ended(session)
    assert len(told(server, "lock_release")) >= 3
    await asyncio.sleep(1.5)
    assert ended(session)
    assert isinstance(releasing.exception(), RedisError)


async def test_many_undos_keep_it_for_no_longer_than_one() -> None:
    server = granting(lock_grant=SILENCE, lock_release=SILENCE)
    session = Session.of(server)
    asking = [asyncio.ensure_future(acquired(server, ttl=0.4)) for _ in range(10)]
    await asyncio.sleep(JUST)
    for each in asking:
        each.cancel()
    await asyncio.sleep(JUST)
    for undo in session.context.undos.under_way.values():
        undo.request.unanswered = ()  # their link is found lost
    await asyncio.sleep(2 * IDLE + JUST)
    assert ended(session)


async def test_a_block_whose_lease_was_lost_needs_no_connection() -> None:
    server = granting(lock_renew=0)
    session, channel = Session.of(server), server.grantor().channel()
    async with server.hold(on_lost="flag", replicas=1) as lease:
        session.servers.wakeups[0].subscriber.listen(channel)
        assert await connected()
        await lease.wait_lost()
        await asyncio.sleep(2)
        assert not await connected()
        assert not ended(session)
        server.answer = granting().answer
        async with server.hold(replicas=1):
            assert await connected()
        await asyncio.sleep(2)
        assert not await connected()
    await asyncio.sleep(1)
    assert ended(session)


async def test_what_has_ended_leaves_no_timer_no_task_and_no_connection() -> None:
    server = granting(lock_release=SILENCE)
    session = Session.of(server)
    leases = [await acquired(server, replicas=1) for _ in range(2)]
    releasing = asyncio.ensure_future(leases[0].release())
    server.answer = granting(lock_grant=[b"queued", 7, 20_000, 0, 0, 0], lock_release=SILENCE).answer
    request = waiting(server)
    session.context.spawn(asyncio.sleep(math.inf))
    await asyncio.sleep(0.1)
    assert [timer for timer in our_timers() or () if "LeaseState" not in timer]
    session.close()
    session.close()
    assert not [timer for timer in our_timers() or () if "LeaseState" not in timer]
    with pytest.raises(RedisConnectionError):
        await releasing
    assert not await connected()
    assert isinstance(request.turn.exception(), RedisConnectionError)
    assert ended(session)
    assert not session.servers.queues
    assert not session.context.undos.under_way
    assert not session.context.holdings.in_use(), "a task is not kept by what remembers its session"
    tried = len(server.tried)
    await asyncio.sleep(60)
    assert len(server.tried) == tried


async def test_a_task_of_ours_that_has_ended_is_forgotten() -> None:
    session = Session.of(granting())
    tasks: list[weakref.ref[Any]] = []

    async def begin() -> None:
        task: Any = asyncio.current_task()
        tasks.append(weakref.ref(task))

    session.context.spawn(begin())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()
    assert [task() for task in tasks] == [None]
    session.close()


async def test_what_has_ended_does_not_wait_for_the_end_of_its_loop() -> None:
    loop: Any = asyncio.get_running_loop()
    before = len(loop._asyncgens)
    session = Session.of(granting())
    assert len(loop._asyncgens) == before + 1
    session.close()
    gc.collect()
    assert not [one for one in loop._asyncgens if one.ag_frame is not None]


async def test_a_lease_is_renewed_by_the_watchdog_that_it_was_made_with() -> None:
    session = Session.of(granting())
    plain: Any = SimpleNamespace(options=Options())
    assert session.renewer_of(plain) is session.watchdog
    state: Any = SimpleNamespace(options=Options(watchdog="thread"))
    in_a_thread = session.renewer_of(state)
    assert in_a_thread is not session.watchdog
    assert session.renewer_of(state) is in_a_thread
    tracked: Any = SimpleNamespace(options=Options(track=True))
    assert session.renewer_of(tracked) is session.renewer_of(tracked) is not session.watchdog
    unrenewed: Any = SimpleNamespace(options=Options(renew=False))
    assert session.renewer_of(unrenewed) is None
    session.close()


async def test_a_lease_that_no_caller_here_wants_is_given_back_once_and_for_as_long_as_it_lasts() -> None:
    """W5: at once, rather than when it expires."""
    server = granting(lock_release=ResponseError("OOM"))
    session = Session.of(server)
    session.context.schedule_idle_close()
    grantor = server.grantor()
    session.servers.grantors[grantor._base] = grantor  # a caller waited once
    for _ in range(2):
        session.servers.wakeups[0].deliver(b"stray", 41, 5_000, grantor._base)
    session.servers.wakeups[0].deliver(b"stray", 41, 5_000, b"another name")
    await asyncio.sleep(JUST)
    [words] = told(server, "lock_release")
    assert words[:3] == [b"stray", b"5000 1", b"0"]
    await asyncio.sleep(10)
    assert 4 < server.times("lock_release")[-1] < 5
    await asyncio.sleep(1)
    assert ended(session)
    assert not session.context.undos.under_way


async def test_what_was_undone_is_known_no_more_nor_are_its_parts() -> None:
    session = Session.of(granting())
    stub = ScriptedGrantor(session=session)
    grantor = AllOf(session.context, "stubs", "a", [stub], Options())
    whole, part, other = (Request(30.0, 1, wait=True) for _ in range(3))
    whole.parts = [Part(stub, part)]
    for request in (whole, part, other):
        session.context.tokens[request.token] = request
    session.context.undos.begin(grantor, whole, clock() + 30)
    assert list(session.context.tokens) == [other.token]
    session.close()


async def test_all_callers_of_one_name_stand_in_one_queue() -> None:
    session, other = Session.of(granting()), Session.of(granting())
    one, again = (session.grantor(Keys("aiolocks:", "lock", "orders")) for _ in range(2))
    one.queue.join(Request(30.0, 1, wait=True), 30_000, 1)
    assert again.queue is one.queue
    assert session.grantor(Keys("aiolocks:", "lock", "others")).queue is not one.queue
    assert other.grantor(Keys("aiolocks:", "lock", "orders")).queue is not one.queue
    assert not ended(session)
    assert Session.find(session.context.pool) is session
    session.close()
    other.close()


async def test_that_waiters_poll_is_said_once_for_each_client(caplog: pytest.LogCaptureFixture) -> None:
    said = {"lock_grant": [b"queued", 7, 20_000, 0, 0, 0], "lock_recheck": [0, 20_000, 0, 0, [7], 0]}
    server, other = (granting(**said, SUBSCRIBE=NoPermissionError("NOPERM no &*")) for _ in range(2))
    for each in (server, server, other):
        session = Session.of(each)
        waiting(each)
        await asyncio.sleep(0.5)
        assert session.servers.wakeups[0].polling
        session.servers.wakeups[0].poll("said again", rights=True)
        session.close()
        await asyncio.sleep(0)
    assert len(caplog.messages) == 2
    assert all("lacks the rights" in message and "in 1 s" in message for message in caplog.messages)


def test_a_session_runs_in_its_own_loop_alone() -> None:
    pool = granting()
    lock = Lock(Redis(connection_pool=cast("Any", pool)), "orders")
    sessions: list[Session] = []

    async def begin() -> None:
        assert Session.find(pool) is None
        sessions.append(Session.of(pool))
        assert lock._grantor().context is sessions[-1].context
        assert Session.of(pool) is Session.find(pool) is sessions[-1]
        assert not ended(sessions[-1])

    loops = [asyncio.new_event_loop() for _ in range(2)]
    for loop in loops:
        loop.run_until_complete(begin())
    one, other = sessions
    assert one is not other
    assert one.context.id != other.context.id
    for outside in (lock._grantor, lambda: Session.find(pool)):
        with pytest.raises(RuntimeError, match="no asyncio event loop is running"):
            outside()

    async def end() -> None:
        assert not ended(other)
        assert lock._grantor() is lock._grantor()
        assert lock._grantor().context is other.context
        other.close()
        assert ended(other)

    loops[1].run_until_complete(end())
    for loop in loops:
        loop.close()
    Session._abandon(one)
    _sessions.pop((id(pool), loops[0]))


def test_a_loop_that_was_closed_is_not_kept_by_what_its_tasks_held() -> None:
    """A primitive may remember its session for long, and the session its leases' tasks."""
    tasks: list[weakref.ref[Any]] = []
    sessions: list[Session] = []

    async def hold_on() -> None:
        grantor = ScriptedGrantor()
        sessions.append(grantor.session)
        lease = await grantor.acquire()
        tasks.append(weakref.ref(asyncio.current_task()))
        await asyncio.sleep(math.inf)
        await lease.release()

    async def begin() -> None:
        holding = asyncio.ensure_future(hold_on())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        holding._log_destroy_pending = False  # type: ignore[attr-defined]

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    assert tasks[0]() is not None

    async def begin_another() -> None:
        Session.of(granting()).close()

    asyncio.run(begin_another())
    gc.collect()
    assert tasks[0]() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
async def test_in_a_forked_child_a_link_that_cannot_be_detached_keeps_no_other_attached() -> None:
    failing, other = sessions = [Session.of(granting()) for _ in range(2)]
    said, saying = os.pipe()

    def fail() -> None:
        raise OSError("of one link")

    def detached(link: bytes) -> Any:
        return SimpleNamespace(detach_in_fork=partial(os.write, saying, link), close=lambda: None)

    failing.context.pipeline.detach_in_fork = fail  # type: ignore[method-assign]  # to see what becomes of the others
    failing._tracking, other._tracking = detached(b"1"), detached(b"2")
    child = os.fork()
    if not child:
        os._exit(bool(_sessions) + 2 * sum(not session.context.forked for session in sessions))
    try:
        assert (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sorted(os.read(said, 2))) == (0, [*b"12"])
    finally:
        for end in (said, saying):
            os.close(end)
        for session in sessions:
            session.close()
