"""Who waits in a session for one name, in virtual time: when the server is asked, what it is told, and what follows."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, final

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from aiolocks import LockError
from aiolocks._engine.request import Granted, Request
from aiolocks._grantors import wait_queue as _wait_queue
from aiolocks._grantors.session import Session
from tests.support.answering import SILENCE, Answering, Asked, Later, ended, session_of
from tests.support.extension import Adding
from tests.support.virtual import clock, gaps

HELD = 20_000
"""Ms for which the lease in the way lasts."""

SOON = 0.05


@final
class Hall(Answering):
    """A server at which callers wait, until it answers *grant*, or something to their *places* in a re-check.

    The lease in the way lasts for *busy_ms* (-1: for ever, -2: there is none). The server *found* so many subscribers
    of the session's channel. It answers *recheck* to a re-check, and *farewell* to one for an old name of the session.
    """

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.busy_ms, self.found, self.passed_over, self.fence = HELD, 1, 0, 0
        self.places: Callable[[bytes], int] = lambda token: 7
        self.grants: list[object] | int = 0
        self.grant: object = None
        self.recheck: object = None
        self.farewell: object = None
        self.allows, self.finds_anew = True, False
        self.confirms_in = self.delay = 0.0
        """Of subscriptions, and of re-checks."""

    def _answer(self, asked: Asked) -> object:
        match asked.what:
            case "lock_grant":
                return self.grant or [b"queued", 7, self.busy_ms, self.fence, self.found, 0]
            case "lock_recheck":
                special = self.farewell if asked.asker[1] == b"0" else self.recheck
                return Later(self.delay, self.standing(asked)) if special is None else special
            case "SUBSCRIBE":
                self.found = max(self.found, int(self.finds_anew))
                subscribed = Later(self.confirms_in, [b"subscribe", asked.words[1], 1])
                return subscribed if self.allows else NoPermissionError("NOPERM no &*")
            case "PUBSUB":
                self.finds_anew = True
                return [asked.words[2], 1]
            case "lock_holders":
                return [0]
            case _:
                return 1

    def standing(self, asked: Asked) -> list[object]:
        answers = [self.places(token) for token in tokens(asked)]
        return [self.found, self.busy_ms, self.fence, self.passed_over, answers, self.grants]

    def of(self, what: str, since: float = 0.0) -> list[Asked]:
        return [asked for asked in self.asked if asked.what == what and asked.at >= since]

    def rechecks(self, since: float = 0.0) -> list[float]:
        """Return when it was asked how all stand."""
        return [asked.at for asked in self.of("lock_recheck", since) if asked.asker[1] != b"0"]

    def farewells(self) -> list[Asked]:
        return [asked for asked in self.of("lock_recheck") if asked.asker[1] == b"0"]


@pytest.fixture
def hall() -> Hall:
    return Hall()


def tokens(asked: Asked) -> list[bytes]:
    return [entry.split()[0] for entry in asked.arguments[1:]]


def ask(hall: Hall, ttl: float = 30.0, *, wait: bool = True) -> Request:
    grantor, request = hall.grantor(), Request(ttl, 1, wait=wait)
    grantor.context.tokens[request.token] = request
    _ = grantor.grant(request)
    return request


async def waiting(hall: Hall, ttl: float = 30.0) -> Request:
    """Ask, and return the request once it stands in line."""
    request = ask(hall, ttl)
    await asyncio.sleep(0.001)
    return request


@asynccontextmanager
async def waiter(hall: Hall, ttl: float = 30.0) -> AsyncIterator[Request]:
    """A request that stands in line, and its session until the end of the block."""
    async with session_of(hall):
        yield await waiting(hall, ttl)


def leave(hall: Hall, request: Request) -> None:
    hall.grantor().queue.leave(request)


def polls(hall: Hall) -> bool:
    return Session.of(hall).servers.wakeups[0].polling


def tell(hall: Hall, request: Request, fence: int) -> None:
    Session.of(hall).servers.wakeups[0].deliver(request.token, fence, request.terms.ttl_ms, hall.grantor()._base)


# When it asks.


@pytest.mark.parametrize(
    ("busy_ms", "soonest", "latest"),
    [(HELD, 1.0, 1.0), (500, 0.502, 0.512), (0, 0.002, 0.012), (-2, 0.002, 0.012), (-1, 0.1, 0.5)],
)
async def test_a_queue_rechecks_once_the_lease_in_the_way_can_have_ended_or_after_its_interval(
    hall: Hall, busy_ms: int, soonest: float, latest: float
) -> None:
    """W6: and where no end is known, within half a second."""
    hall.busy_ms = busy_ms
    async with waiter(hall):
        await asyncio.sleep(2)
        first, second = hall.rechecks()[:2]
        for gap in (first, second - first):
            assert soonest - 1e-6 <= gap <= latest + 0.001


@pytest.mark.parametrize(("first", "second", "at"), [(HELD, 300, 0.4), (300, 700, 0.3)])
async def test_a_recheck_comes_at_the_earliest_end(hall: Hall, first: int, second: int, at: float) -> None:
    async with session_of(hall):
        hall.busy_ms = first
        await waiting(hall)
        await asyncio.sleep(0.1)
        hall.busy_ms = second
        await waiting(hall)
        hall.busy_ms = HELD
        await asyncio.sleep(4)
        assert at < hall.rechecks()[0] < at + 0.02
        assert gaps(hall.rechecks()) == [1.0, 1.0, 1.0]


async def test_a_queue_rechecks_as_often_as_the_shortest_ttl_needs_and_says_so(hall: Hall) -> None:
    """W3: the session is taken for dead after three intervals; four are within any waiter's TTL."""
    async with waiter(hall, ttl=30):
        assert hall.asked[-1].asker[1] == b"3000"
        await asyncio.sleep(0.3)
        hall.grant = Later(0.5, [b"queued", 8, HELD, 0, 1, 0])
        ask(hall, ttl=0.4)
        assert hall.asked[-1].asker[1] == b"300"
        hall.grant = None
        await asyncio.sleep(0.11)
        assert len(hall.rechecks()) == 1, "although the newcomer is not answered yet"
        await asyncio.sleep(1)
        before = len(hall.rechecks())
        await waiting(hall, ttl=30)
        assert hall.of("lock_grant")[-1].asker[1] == b"300"
        await asyncio.sleep(1)
        assert (len(hall.rechecks()) - before, hall.of("lock_recheck")[-1].asker[1]) == (10, b"300")


async def test_once_all_waiters_have_left_no_recheck_is_sent_and_the_next_waiter_begins_again(hall: Hall) -> None:
    async with session_of(hall) as session:
        both = [await waiting(hall, ttl=0.4), await waiting(hall, ttl=30)]
        await asyncio.sleep(1)
        leave(hall, both[0])
        await asyncio.sleep(1)
        assert clock() - hall.rechecks()[-1] < 0.11, "one is still there"
        assert session.servers.queues
        leave(hall, both[1])
        leave(hall, both[1])
        assert not session.servers.queues
        left = clock()
        await asyncio.sleep(5)
        assert not hall.rechecks(since=left)
        again = clock()
        await waiting(hall, ttl=30)
        await asyncio.sleep(5)
        assert gaps([again, *hall.rechecks(since=again)]) == [1.0] * 5
        assert hall.of("lock_recheck")[-1].asker[1] == b"3000"


async def test_a_crowd_is_listed_in_parts(hall: Hall) -> None:
    """No script keeps the server from all others for long."""
    async with session_of(hall):
        crowd = [ask(hall) for _ in range(300)]
        await asyncio.sleep(1.1)
        parts = [tokens(asked) for asked in hall.of("lock_recheck")]
        assert [len(part) for part in parts] == [250, 50]
        assert {token for part in parts for token in part} == {request.token for request in crowd}
        await asyncio.sleep(1)
        assert len(hall.rechecks()) == 4


@pytest.mark.parametrize("free_in_ms", [None, 10_000])
async def test_asked_again_while_it_asks_it_asks_once_more_after_the_answer(hall: Hall, free_in_ms: int | None) -> None:
    async with waiter(hall):
        hall.delay = 0.5
        line = hall.grantor().queue
        for _ in range(3):
            line.recheck()
        await asyncio.sleep(0.4)
        assert len(hall.rechecks()) == 1
        line.recheck() if free_in_ms is None else line.look_again(free_in_ms)
        hall.delay = 0.0
        await asyncio.sleep(4)
        first, second, third, *_ = hall.rechecks()
        assert 0.5 <= second - first <= 0.521
        assert round(third - second, 3) == 1.0


async def test_a_lost_connection_is_reason_to_ask_at_once_over_a_new_one(hall: Hall) -> None:
    async with waiter(hall):
        await asyncio.sleep(0.3)
        hall.cut()
        await asyncio.sleep(SOON)
        assert len(hall.rechecks()) == 1
        assert 0.3 <= hall.rechecks()[0] <= 0.31


async def test_a_recheck_that_is_not_answered_for_an_interval_is_asked_over_a_new_connection(hall: Hall) -> None:
    async with waiter(hall) as request:
        hall.recheck = SILENCE
        await asyncio.sleep(1.9)
        hall.recheck = None
        assert len(hall.rechecks()) == 1
        await asyncio.sleep(0.2)
        assert gaps(hall.rechecks()) == [pytest.approx(1.0, abs=0.05)]
        await asyncio.sleep(1.5)
        assert len(hall.rechecks()) == 3
        assert not request.turn.done()


# What it asks, and what follows.


async def test_a_waiter_counts_from_the_newest_recheck_that_says_that_it_waits(hall: Hall) -> None:
    async with session_of(hall) as session:
        request = await waiting(hall)
        assert (request.place.ticket, request.valid_from, request.retry_after) == (7, 0.0, HELD / 1000)
        assert request.place.session == session.context.id
        hall.busy_ms, hall.fence, hall.places = 12_500, 40, lambda token: 1
        await asyncio.sleep(1.1)
        assert (request.place.ticket, request.place.session) == (1, session.context.id), "its undo names both"
        [asked] = hall.of("lock_recheck")
        assert asked.arguments[1:] == [request.entry()]
        assert request.valid_from == asked.at > 0.9
        assert request.retry_after == 12.5
        tell(hall, request, 40)
        assert not request.turn.done(), "W5: that is older than the answer"
        hall.busy_ms = -1
        await asyncio.sleep(1)
        assert request.retry_after == math.inf
        tell(hall, request, 41)
        assert request.turn.result() == Granted(41, request.valid_from)


async def test_a_turn_that_was_not_told_is_found_as_are_grants_beside_the_answer(hall: Hall) -> None:
    async with session_of(hall):
        one, beside, other = await waiting(hall), await waiting(hall), await waiting(hall)
        hall.fence = 41
        hall.places = lambda token: -41 if token == one.token else 7
        hall.grants = [beside.token, 42, 30_000]
        await asyncio.sleep(1.1)
        assert one.turn.result() == Granted(41, hall.rechecks()[0])
        assert beside.turn.result() == Granted(42, hall.rechecks()[0])
        assert not other.turn.done()
        await asyncio.sleep(1)
        assert tokens(hall.of("lock_recheck")[-1]) == [other.token]


async def test_one_for_whom_waiting_would_never_end_is_told_so(hall: Hall) -> None:
    """As the limit in force, which stands last in the answer, has become smaller."""
    async with session_of(hall):
        one, other = await waiting(hall), await waiting(hall)
        one.extensions = (Adding(objection=lambda limit: RuntimeError(f"only {limit}") if limit < 3 else None),)
        await asyncio.sleep(1.1)
        assert not one.turn.done()
        limit = 3

        def answer(asked: Asked) -> object:
            return [*hall.standing(asked), limit] if asked.what == "lock_recheck" else hall._answer(asked)

        hall.answer = answer
        await asyncio.sleep(1)
        assert not one.turn.done()
        limit = 2
        await asyncio.sleep(1)
        assert str(one.turn.exception()) == "only 2"
        assert not other.turn.done()
        await asyncio.sleep(1)
        assert (tokens(hall.of("lock_recheck")[-1]), len(hall.tried)) == ([other.token], 1)


async def test_a_lease_without_an_expiry_is_examined_once_a_live_holder_would_have_renewed_it(hall: Hall) -> None:
    hall.busy_ms = -1
    async with waiter(hall, ttl=30):
        await asyncio.sleep(60)
        (examined,) = hall.of("lock_holders")
        assert 15 <= examined.at - hall.rechecks()[0] <= 15.5


# Turns that are not told.


@asynccontextmanager
async def listening(hall: Hall) -> AsyncIterator[Session]:
    """A session with a waiter, which has subscribed."""
    hall.grant = [b"queued", 7, HELD, 0, 0, 0]
    async with session_of(hall) as session:
        await waiting(hall)
        hall.grant = None
        await asyncio.sleep(SOON)
        assert len(hall.times("SUBSCRIBE")) == 1
        yield session


async def find_turn(hall: Hall, *, told: bool = False) -> None:
    """Let one find its turn itself, though it may be *told* just before the answer."""
    request = await waiting(hall)
    hall.fence += 10
    fence = hall.fence
    hall.places = lambda token: -fence if token == request.token else 7
    hall.delay = 0.1 if told else 0.0
    if told:
        before = len(hall.rechecks())
        while len(hall.rechecks()) == before:
            await asyncio.sleep(0.01)
        tell(hall, request, fence)
    await request.turn
    await asyncio.sleep(0.2)


async def test_two_turns_in_a_row_that_were_not_told_are_reason_for_a_new_subscription(hall: Hall) -> None:
    async def subscriptions(*, told: bool = False) -> int:
        await find_turn(hall, told=told)
        return len(hall.times("SUBSCRIBE"))

    async with listening(hall):
        assert (await subscriptions(), await subscriptions(told=True)) == (1, 1)
        assert await subscriptions() == 1, "one was told between them"
        assert (await subscriptions(), await subscriptions()) == (2, 2)
        assert await subscriptions() == 3


async def test_a_session_that_is_passed_over_twice_in_a_row_although_it_subscribed_polls(hall: Hall) -> None:
    async with listening(hall):
        for passed_over in (1, 0, 1, 0, 1):
            hall.passed_over = passed_over
            await asyncio.sleep(1)
            assert not polls(hall)
        await asyncio.sleep(1)
        assert polls(hall)
        assert len(hall.times("SUBSCRIBE")) == 1


async def test_a_session_that_is_not_found_among_subscribers_subscribes_again_and_then_polls(hall: Hall) -> None:
    async with listening(hall):
        for times in (2, 3):
            hall.found, hall.finds_anew = 0, True
            await asyncio.sleep(3)
            assert (len(hall.times("SUBSCRIBE")), len(hall.connections)) == (times, 1 + times)
            assert not polls(hall)
        hall.found, hall.finds_anew = 0, False
        async with asyncio.timeout(1.1):
            while not polls(hall):
                await asyncio.sleep(0.01)


async def test_a_session_whose_subscription_is_on_its_way_does_not_turn_to_polling(hall: Hall) -> None:
    """The server finds no subscriber, as it must; only after the confirmation does that say something."""
    hall.confirms_in, hall.found, hall.passed_over = 4.5, 0, 1
    async with waiter(hall):
        await asyncio.sleep(4)
        assert len(hall.rechecks()) > 2
        assert len(hall.times("SUBSCRIBE")) == 1
        assert not polls(hall)
        async with asyncio.timeout(10):
            while not polls(hall):
                await asyncio.sleep(0.01)


async def test_what_was_not_found_before_it_polled_does_not_count_after(hall: Hall) -> None:
    async with listening(hall):
        hall.found = 0
        await asyncio.sleep(1.1)
        assert polls(hall)
        await asyncio.sleep(1.2)  # it is found when the server is asked, not found once more, and found again
        assert hall.times("PUBSUB")
        assert not polls(hall)
        await asyncio.sleep(3)
        assert not polls(hall)
        assert len(hall.times("PUBSUB")) == 1


async def test_a_session_that_has_not_subscribed_yet_does_so_when_it_is_not_found(hall: Hall) -> None:
    """As where all tasks of the loop were cancelled, which nevertheless goes on."""
    async with waiter(hall):
        assert not hall.times("SUBSCRIBE")
        hall.found, hall.finds_anew = 0, True
        await asyncio.sleep(3)
        assert hall.times("SUBSCRIBE") == [1.0]
        assert not polls(hall)


async def test_a_session_that_subscribed_since_it_was_passed_over_does_not_poll(hall: Hall) -> None:
    """W15: a subscription that moved or was lost is no sign of missing rights."""
    async with listening(hall) as session:
        hall.passed_over = 1
        for _ in range(6):
            await asyncio.sleep(0.8)
            session.servers.wakeups[0].subscriber.reconnect()
        assert not polls(hall)


# Polling.


async def test_a_session_that_may_not_subscribe_polls_four_times_a_second_and_its_name_says_so(hall: Hall) -> None:
    hall.allows, hall.found = False, 0
    async with session_of(hall) as session:
        await waiting(hall)
        await asyncio.sleep(5)
        assert gaps(hall.rechecks())[-8:] == [0.25] * 8
        [*_, newest] = hall.of("lock_recheck")
        assert newest.asker == [b"poll250-" + session.context.id, b"750", b"aiolocks:wake:"]
        assert newest.keys[3] == b"aiolocks:lock:{orders}:q:poll250-" + session.context.id
        await waiting(hall, ttl=0.4)
        assert hall.of("lock_grant")[-1].asker[0] == b"poll100-" + session.context.id
        await asyncio.sleep(1)
        assert gaps(hall.rechecks())[-8:] == [0.1] * 8
        [*_, newest] = hall.of("lock_recheck")
        assert newest.asker[:2] == [b"poll100-" + session.context.id, b"300"]


async def turn_to_polling(hall: Hall) -> Request:
    """Return one that waits in a session that turns to polling half a second later."""
    request = await waiting(hall)
    hall.allows = False
    await asyncio.sleep(0.5)
    Session.of(hall).servers.wakeups[0].subscriber.listen(hall.grantor().channel())
    await asyncio.sleep(0.001)
    return request


async def test_a_session_with_a_new_name_leaves_the_queue_under_the_old_and_asks_for_its_old_place(hall: Hall) -> None:
    """W15: in this order, as a waiter in two lines could be granted twice."""
    async with session_of(hall) as session:
        request = await turn_to_polling(hall)
        [farewell] = hall.farewells()
        assert farewell.arguments == [session.context.id + b" 0 aiolocks:wake:"]
        assert farewell.keys[3] == b"aiolocks:lock:{orders}:q:" + session.context.id
        [_, again] = hall.of("lock_grant")
        assert hall.asked.index(farewell) < hall.asked.index(again)
        assert again.arguments[0] == request.token
        assert (again.arguments[3], again.asker[0]) == (b"7", b"poll250-" + session.context.id)
        assert again.keys[3] == b"aiolocks:lock:{orders}:q:poll250-" + session.context.id
        assert again.at - farewell.at < 0.001
        await asyncio.sleep(5)
        assert len(hall.farewells()) == 1


async def test_a_turn_that_comes_while_it_takes_leave_is_had(hall: Hall) -> None:
    async with waiter(hall) as request:
        hall.farewell = [1, HELD, 0, 0, [], [request.token, 41, 30_000]]
        hall.allows = False
        Session.of(hall).servers.wakeups[0].subscriber.listen(hall.grantor().channel())
        await asyncio.sleep(0.1)
        assert request.turn.result().fence == 41


async def test_leave_that_was_refused_is_taken_again_and_again_until_the_old_name_is_dead_anyway(hall: Hall) -> None:
    hall.farewell = ResponseError("OOM")
    async with session_of(hall):
        await turn_to_polling(hall)
        await asyncio.sleep(10)
        times = [asked.at for asked in hall.farewells()]
        assert set(gaps(times)) == {0.05}
        assert 2.9 < times[-1] - times[0] <= 3.0


async def test_leave_that_was_not_answered_is_taken_again_ahead_of_what_is_sent_next(hall: Hall) -> None:
    hall.farewell = SILENCE
    async with session_of(hall):
        await turn_to_polling(hall)
        hall.farewell = None
        hall.cut()
        before = len(hall.asked)
        await asyncio.sleep(0.01)
        assert (hall.asked[before:][0].what, hall.asked[before:][0].asker[1]) == ("lock_recheck", b"0")
        await asyncio.sleep(5)
        assert len(hall.farewells()) == 2


async def test_a_session_that_has_ended_leaves_no_queue_any_more(hall: Hall) -> None:
    hall.farewell = ResponseError("OOM")
    async with session_of(hall) as session:
        await turn_to_polling(hall)
        session.close()
        await asyncio.sleep(5)
        assert len(hall.farewells()) == 1
        assert len(hall.tried) == 2, "no connection is made for it"


async def test_a_place_that_the_server_has_forgotten_is_asked_for_by_the_old_ticket(hall: Hall) -> None:
    """As after a restart, or silence for too long."""
    async with waiter(hall) as request:
        hall.places = lambda token: 0
        await asyncio.sleep(1.1)
        [_, again] = hall.of("lock_grant")
        assert (again.arguments[0], again.arguments[3]) == (request.token, b"7")
        assert not request.turn.done()
        await asyncio.sleep(1)
        assert len(hall.of("lock_grant")) == 3, "it was forgotten once more"


async def test_one_recheck_is_on_its_way_at_a_time(hall: Hall) -> None:
    async with session_of(hall) as session:
        await waiting(hall)
        hall.places = lambda token: 0
        hall.grant = Later(0.9, [b"queued", 7, HELD, 0, 1, 0])
        await asyncio.sleep(1.1)
        assert len(hall.of("lock_grant")) == 2
        session.servers.wakeups[0].subscriber._on_subscribed(b"")  # has all lines ask
        await asyncio.sleep(0.2)
        assert len(hall.of("lock_grant")) == 2


def not_implemented(amount: int) -> LockError | None:
    raise NotImplementedError


@pytest.mark.parametrize(("answer", "refusal", "outcome"), [
    (41, {}, Granted), ([b"refused", 3, 0], {}, LockError),
    ([b"refused", 3, 0], {"refusal": not_implemented}, NotImplementedError),
])  # fmt: skip
async def test_a_waiter_that_asks_for_its_old_place_is_told_how_that_ended(
    hall: Hall, answer: object, refusal: dict[str, Any], outcome: type
) -> None:
    async with session_of(hall):
        one, other = await waiting(hall), await waiting(hall)
        one.extensions = (Adding(**refusal),)
        hall.places = lambda token: 0 if token == one.token else 7
        hall.grant = answer
        await asyncio.sleep(1.1)
        if outcome is Granted:
            assert one.turn.result() == Granted(41, hall.of("lock_grant")[-1].at)
        else:
            assert isinstance(one.turn.exception(), outcome)
        assert not other.turn.done()
        await asyncio.sleep(1)
        assert tokens(hall.of("lock_recheck")[-1]) == [other.token]


async def test_trouble_with_an_old_place_is_raised_after_a_ttl_of_nothing_else(hall: Hall) -> None:
    async with waiter(hall, ttl=5) as request:
        hall.places = lambda token: 0
        hall.grant = ResponseError("OOM")
        await asyncio.sleep(4)
        hall.grant = [b"queued", 7, HELD, 0, 1, 0]
        await asyncio.sleep(1.1)
        hall.grant = ResponseError("OOM")
        since = clock()
        await asyncio.sleep(5)
        assert not request.turn.done(), "it had a place meanwhile"
        await asyncio.sleep(2)
        assert "OOM" in str(request.turn.exception())
        assert 5 <= hall.of("lock_grant")[-1].at - since <= 7
        tried = gaps(asked.at for asked in hall.of("lock_grant", since))
        assert all(0.1 <= gap <= 0.501 for gap in tried), tried
        assert not hall.grantor().queue.waiting


@pytest.mark.parametrize("turns", range(6))
async def test_a_grant_is_had_though_its_task_is_cancelled_as_it_comes(hall: Hall, turns: int) -> None:
    """As by a program that cancels all tasks there are, and goes on."""
    async with session_of(hall) as session:
        request = await waiting(hall)
        hall.places = lambda token: 0
        hall.grant = Later(0.1, 41)
        await asyncio.sleep(1.05)
        hall.places = lambda token: -41
        await asyncio.sleep(hall.of("lock_grant")[-1].at + 0.1 - clock())
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in list(session.context._tasks):
            task.cancel()
        await asyncio.sleep(0.6)
        assert request.turn.result().fence == 41


async def test_a_loop_whose_tasks_were_all_cancelled_and_that_goes_on_asks_for_the_old_place_again(hall: Hall) -> None:
    async with waiter(hall) as request:
        hall.places = lambda token: 0
        hall.grant = SILENCE
        await asyncio.sleep(1.1)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        hall.grant = 41
        await asyncio.sleep(2)
        assert request.turn.result().fence == 41


# No answer.


async def test_a_server_that_cannot_be_reached_is_trouble_after_a_ttl_for_each(hall: Hall) -> None:
    async with session_of(hall):
        short, long = await waiting(hall, ttl=5), await waiting(hall)
        await asyncio.sleep(0.1)
        hall.refuses = True
        hall.cut()
        await asyncio.sleep(4.9)
        assert not short.turn.done()
        await asyncio.sleep(0.4)
        assert isinstance(short.turn.exception(), RedisConnectionError)
        tried = [round(gap, 2) for gap in gaps(hall.tried[1:])]
        assert (tried[:4], set(tried[4:])) == ([0.04, 0.08, 0.16, 0.2], {0.2})
        await asyncio.sleep(20)
        assert not long.turn.done()
        hall.refuses = False
        await asyncio.sleep(10)
        assert not long.turn.done(), "it was answered meanwhile"
        hall.refuses = True
        hall.tried.clear()
        hall.cut()
        await asyncio.sleep(1)
        assert [round(gap, 2) for gap in gaps(hall.tried)][:3] == [0.04, 0.08, 0.16], "as if for the first time"
        await asyncio.sleep(28)
        assert not long.turn.done()
        await asyncio.sleep(2)
        assert isinstance(long.turn.exception(), RedisConnectionError)
        tried_then = len(hall.tried)
        await asyncio.sleep(5)
        assert len(hall.tried) == tried_then


async def test_rechecks_that_are_not_answered_are_trouble_since_the_first_of_them_left(hall: Hall) -> None:
    async with waiter(hall, ttl=5) as request:
        hall.recheck = SILENCE
        await asyncio.sleep(0.9)
        left = 1.0
        await asyncio.wait([request.turn], timeout=60)
        assert hall.rechecks()[0] == pytest.approx(left, abs=0.01)
        assert 5 <= clock() - left <= 6.3
        assert isinstance(request.turn.exception(), RedisError)


async def test_what_was_answered_after_a_recheck_left_is_no_sign_of_trouble(hall: Hall) -> None:
    """Its own answer comes behind that one."""
    async with waiter(hall, ttl=4.6) as request:
        await asyncio.sleep(0.9)
        hall.grant, hall.recheck = Later(0.8, [b"queued", 7, HELD, 0, 1, 0]), SILENCE
        ask(hall)
        await asyncio.wait([request.turn], timeout=60)
        assert 1.7 + 4.6 <= clock() < 9.5


async def test_a_waiter_that_came_during_the_trouble_of_others_has_a_ttl_of_its_own(hall: Hall) -> None:
    """As on a Cluster, where a newcomer is queued while re-checks are refused because a slot moves."""
    async with waiter(hall, ttl=5) as request:
        hall.recheck = ResponseError("TRYAGAIN")
        await asyncio.sleep(4)
        late = await waiting(hall, ttl=5)
        await asyncio.sleep(4)
        assert isinstance(request.turn.exception(), RedisError)
        assert not late.turn.done()
        await asyncio.sleep(2)
        assert isinstance(late.turn.exception(), RedisError)


async def test_trouble_that_is_not_redis_own_is_raised_as_such(hall: Hall) -> None:
    """So that a caller can name what may happen."""
    async with waiter(hall, ttl=1) as request:
        hall.trouble = OSError("no route to host")
        hall.refuses = True
        hall.cut()
        await asyncio.sleep(2)
        error = request.turn.exception()
        assert isinstance(error, RedisError)
        assert str(error) == "no route to host"


async def test_a_waiter_that_joins_others_asks_for_a_short_answer_once_the_server_knows_the_session(hall: Hall) -> None:
    async with waiter(hall):
        await waiting(hall)
        assert [asked.arguments[3] for asked in hall.of("lock_grant")] == [b"0", b"+"]
        hall.busy_ms = 12_500
        await asyncio.sleep(1.1)
        hall.grant = -8
        short = await waiting(hall)
        assert (short.place.ticket, short.retry_after) == (8, 12.5)
        await asyncio.sleep(1)
        assert short.entry() in hall.of("lock_recheck")[-1].arguments
        hall.busy_ms = -1
        await asyncio.sleep(1)
        assert (await waiting(hall)).retry_after == math.inf
        hall.grant = None
        await waiting(hall, ttl=0.4)
        assert [asked.arguments[3] for asked in hall.of("lock_grant")][-2:] == [b"+", b"0"], "it lives for less now"
        await waiting(hall, ttl=0.4)
        assert hall.of("lock_grant")[-1].arguments[3] == b"+"
        hall.grant = [b"busy", HELD, 0]
        ask(hall, ttl=0.2, wait=False)
        await asyncio.sleep(0.1)
        ask(hall, ttl=0.2)
        assert hall.of("lock_grant")[-1].arguments[3] == b"+", "a re-check has told the server"


async def test_a_waiter_that_joins_others_that_have_left_meanwhile_asks_how_it_stands(hall: Hall) -> None:
    async with waiter(hall) as first:
        hall.grant = Later(0.1, -8)
        ask(hall)
        leave(hall, first)
        await asyncio.sleep(0.7)
        assert 0.1 <= hall.rechecks()[0] - 0.1 <= 0.501


MORE = -2


async def test_what_the_server_had_no_time_to_hand_over_is_handed_over_at_once(hall: Hall) -> None:
    async with session_of(hall) as session:
        request = await waiting(hall)
        await asyncio.sleep(0.1)
        hall.delay = 0.1
        hall.grants = [request.token, 41, 30_000]
        grantor = hall.grantor()
        base = grantor._base
        session.servers.grantors[base] = grantor  # which holds the lease that is granted here
        for _ in range(2):
            session.servers.wakeups[0].deliver(b"-", MORE, 0, base)
        await asyncio.sleep(0.15)
        [asked] = hall.of("lock_recheck")
        assert (asked.arguments, request.turn.result().fence) == ([session.context.id + b" 3000 aiolocks:wake:"], 41)
        hall.recheck = ResponseError("OOM")
        session.servers.wakeups[0].deliver(b"-", MORE, 0, base)
        await asyncio.sleep(0.15)
        session.servers.wakeups[0].deliver(b"-", MORE, 0, base)
        await asyncio.sleep(0.15)
        assert len(hall.rechecks()) == 3, "trouble with one is no reason against the next"


async def test_a_session_that_hands_over_stays_for_a_while(hall: Hall) -> None:
    async with session_of(hall) as session:
        request = await waiting(hall)
        leave(hall, request)
    session, grantor = Session.of(hall), hall.grantor()
    session.context.schedule_idle_close()
    await asyncio.sleep(0.4)
    grantor.queue.hand_over()
    await asyncio.sleep(0.4)
    assert not ended(session)
    await asyncio.sleep(0.2)
    assert ended(session)
    tried = len(hall.tried)
    grantor.queue.hand_over()
    await asyncio.sleep(0.1)
    assert len(hall.tried) == tried, "what has ended asks no more"


def test_an_answer_beyond_every_fencing_token_is_no_grant() -> None:
    """A ticket that damaged keys have made too large for a reply comes as the smallest number there is."""
    _wait_queue._check([1, 5_000, 0, 0, [-(2**53) + 1], 0], 1)
    with pytest.raises(ValueError):
        _wait_queue._check([1, 5_000, 0, 0, [-(2**63)], 0], 1)


async def test_a_recheck_whose_grants_cannot_be_read_counts_as_unanswered_and_is_sent_again(hall: Hall) -> None:
    async with waiter(hall) as request:
        hall.grants = [b"token", b"no number", 30_000]
        await asyncio.sleep(1.1)
        hall.grants, hall.places = 0, lambda token: -41
        await asyncio.sleep(5)
        assert request.turn.result().fence == 41
