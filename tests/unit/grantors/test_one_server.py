"""What is asked of one Redis about one name, in virtual time, and what becomes of each answer."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MovedError, NoPermissionError, NoScriptError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import LimitMismatchError, Lock
from aiolocks._core.answers import NotNowError
from aiolocks._core.keys import Keys
from aiolocks._engine.request import LONGEST_RETRY, Busy, Granted, Queued, Request
from aiolocks._grantors.families import RenewalBatch
from aiolocks._grantors.hand_off import Adoption
from aiolocks._grantors.one_server import RedisGrantor
from aiolocks._grantors.session import Session
from aiolocks._redis.endpoints import Pipelines
from aiolocks._redis.scripts import PreparedScript, load
from tests.support.answering import SILENCE, Answering, Asked, Later
from tests.support.extension import Adding
from tests.support.pipelines import pipeline_in
from tests.support.virtual import clock

BASE = b"aiolocks:lock:{orders}"
TTL = 30.0

BUSY = ResponseError("BUSY Redis is busy running a script.")


class Says(dict[str, Any]):
    """What the server answers: by script what, or what makes it of the question; the usual to all else."""

    def __call__(self, asked: Asked) -> object:
        said = self.get(asked.what, 1)
        if asked.what == "SUBSCRIBE":
            return [b"subscribe", asked.words[1], 1]
        if asked.what.endswith("_recheck") and asked.what not in self:
            return [1, 20_000, 0, 0, [1] * (len(asked.arguments) - 3), 0]
        return said(asked) if callable(said) else said


class Scene:
    """A name on a server that answers so, and who asks for it."""

    def __init__(self, says: Says, kind: str, family: str = "") -> None:
        self.says = says
        self.server = Answering(says)
        self.session = Session.of(self.server)
        self.grantor: RedisGrantor = self.session.grantor(Keys("aiolocks:", kind, "orders", family))
        self.pipelines: list[Pipelines] = []

    @property
    def together(self) -> RenewalBatch:
        together = self.grantor.together
        assert together is not None
        return together

    def thread(self) -> Pipelines:
        """Return the pipelines of another loop; of this one here."""
        self.pipelines.append(Pipelines(self.session.loop, clock, lambda: None, lambda: None))
        return self.pipelines[-1]

    def request(self, ttl: float = TTL, permits: int = 1, *, wait: bool = True, ticket: int = 0) -> Request:
        request = Request(ttl, permits, wait, ticket=ticket)
        self.session.context.tokens[request.token] = request
        return request

    def ask(self, **terms: Any) -> "tuple[Request, asyncio.Future[Any]]":
        request = self.request(**terms)
        return request, self.grantor.grant(request)

    async def wait_in_line(self, **terms: Any) -> "tuple[Request, asyncio.Future[Any]]":
        script = f"{self.grantor.kind}_grant"
        self.says[script], before = [b"queued", 1, 20_000, 5, 1, 0], self.says.get(script, 1)
        request, turn = self.ask(**terms)
        await asyncio.sleep(0.01)
        assert not turn.done()
        assert request.token in self.grantor.queue.waiting
        self.says[script] = before
        return request, turn

    def undo(self, request: Request) -> list[object]:
        told: list[object] = []
        self.session.context.forget(request)
        self.grantor.undo(request, told.append)
        return told

    def asked(self, what: str) -> list[Asked]:
        return [asked for asked in self.server.asked if asked.what == what]


@asynccontextmanager
async def scene(kind: str = "lock", family: str = "", **says: Any) -> AsyncIterator[Scene]:
    there = Scene(Says(says), kind, family)
    try:
        with there.session.context.in_use():  # so that it goes on
            yield there
    finally:
        there.session.close()
        for pipelines in there.pipelines:
            pipelines.close()
        await asyncio.sleep(0)


# What is asked.


async def test_a_request_names_the_keys_of_the_name_of_the_session_and_of_its_token() -> None:
    async with scene() as there:
        request, granted = there.ask(ttl=2.0)
        await granted
        session, [asked] = there.session.context.id, there.server.asked
        queue, waiters, tombstone = BASE + b":queue", BASE + b":q:" + session, BASE + b":t:" + request.token
        assert asked.keys == [BASE, BASE + b":fence", queue, waiters, tombstone, BASE + b":ticket"]
        assert asked.arguments == [request.token, b"2000", b"1", b"0", session + b" 1500 aiolocks:wake:"]
        assert there.grantor.channel() == b"aiolocks:wake:" + session
    async with scene("redlock", "lock") as there:
        await there.ask()[1]
        sent = [(asked.what, asked.keys[0]) for asked in there.server.asked]
        assert sent == [("lock_grant", b"aiolocks:quorum:{orders}")]


@pytest.mark.parametrize(
    ("wait", "ticket", "sent"), [(True, 0, b"0"), (True, 7, b"7"), (False, 0, b"-1"), (False, 7, b"-8")]
)
async def test_a_caller_that_does_not_wait_asks_once_even_with_a_place(wait: bool, ticket: int, sent: bytes) -> None:
    async with scene() as there:
        await there.ask(wait=wait, ticket=ticket)[1]
        assert there.server.asked[0].arguments[3] == sent


async def test_only_a_newcomer_to_a_lock_that_waits_on_known_terms_asks_for_a_short_answer() -> None:
    async with scene() as there:
        await there.wait_in_line()
        cases: list[tuple[dict[str, Any], bytes]]
        cases = [({"ticket": 3}, b"3"), ({"wait": False}, b"-1"), ({"ttl": 2.0}, b"0")]
        for terms, sent in cases:
            await there.ask(**terms)[1]
            assert there.asked("lock_grant")[-1].arguments[3] == sent
    async with scene() as there:
        await there.wait_in_line()
        there.says["lock_grant"] = BUSY
        request, refused = there.ask()
        with pytest.raises(NotNowError):
            await refused
        assert there.asked("lock_grant")[-1].arguments[3] == b"+", "the first was not run"
        request.was_reached()
        there.says["lock_grant"] = 7
        await there.grantor.grant(request)
        assert there.asked("lock_grant")[-1].arguments[3] == b"0"
    async with scene("semaphore") as there:
        await there.wait_in_line()
        await there.ask()[1]
        assert there.asked("semaphore_grant")[-1].arguments[3] == b"+"


async def test_a_session_promises_signs_of_life_by_the_shortest_ttl_that_waits() -> None:
    async with scene() as there:
        for ttl, life_ms in [(30.0, b"3000"), (2.0, b"1500"), (1.0, b"750"), (30.0, b"3000")]:
            await there.ask(ttl=ttl)[1]
            assert there.asked("lock_grant")[-1].asker[1] == life_ms
        await there.wait_in_line(ttl=2.0)
        await there.ask(ttl=30.0)[1]
        assert there.asked("lock_grant")[-1].asker[1] == b"1500"


async def test_what_is_sent_once_more_names_one_session_though_it_polls_meanwhile() -> None:
    """Or the waiter would stand in the line of one session, and that of another in the queue."""
    async with scene() as there:
        await there.ask()[1]
        there.says["lock_grant"] = Later(0.5, NoScriptError("NOSCRIPT No matching script."))
        there.ask()
        await asyncio.sleep(0.2)
        there.session.servers.wakeups[0].polling = True
        there.session.servers.wakeups[0].forget_addresses()
        there.says["lock_grant"] = 1
        await asyncio.sleep(1)
        again = there.asked("lock_grant")[-1]
        assert (again.words[0], again.keys[3]) == (b"EVAL", BASE + b":q:" + again.asker[0])


async def test_what_is_declared_is_sent_once_unless_that_was_not_run() -> None:
    async with scene(lock_grant=BUSY) as there:
        request = there.request()
        request.extensions = (Adding(5),)
        for said, sent in [(BUSY, [b"5", b"1"]), (SILENCE, [b"5", b"1"]), (7, [b"5", b"0"]), (7, [b"5", b"0"])]:
            there.says["lock_grant"] = said
            answer = there.grantor.grant(request)
            await asyncio.sleep(20)
            assert answer.done()
            answer.exception()
            assert there.asked("lock_grant")[-1].arguments[5:] == sent


async def test_a_grant_counts_from_when_its_request_left() -> None:
    for number, said in ((1, 1), (1, [b"granted", 1, 0]), (0, [b"granted", 0, 0])):
        async with scene(lock_grant=Later(0.5, said)) as there:
            await asyncio.sleep(5)
            begun = clock()
            request, granted = there.ask()
            assert request.unanswered
            assert await granted == Granted(number, begun)
            assert (request.valid_from, request.reached, request.unanswered) == (begun, True, ())
            assert clock() == begun + 0.5


@pytest.mark.parametrize("said", [7, [b"granted", 7, 0]], ids=str)
async def test_a_caller_whose_repeated_request_is_granted_waits_no_more(said: object) -> None:
    async with scene() as there:
        request, turn = await there.wait_in_line()
        other, _ = await there.wait_in_line()
        there.says["lock_grant"] = said
        assert await there.grantor.grant(request) == Granted(7, clock())
        assert list(there.grantor.queue.waiting) == [other.token]
        assert not turn.done(), "who asked passes it on"


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_caller_that_has_left_hears_nothing_of_a_late_grant_and_does_not_wait(cancelled: bool) -> None:
    for said in (7, [b"granted", 7, 0], [b"queued", 1, 20, 5, 1, 0], [b"busy", 20, 0], [b"withdrawn"], BUSY):
        async with scene(lock_grant=Later(0.5, said)) as there:
            request, asked = there.ask()
            if cancelled:
                asked.cancel()
            request.give_up(there.session.loop)
            await asyncio.sleep(3)
            assert asked.cancelled() == cancelled
            assert cancelled or asked.exception() or asked.result()
            assert not there.grantor.queue.waiting


# What waits.


@pytest.mark.parametrize("said", [[b"queued", 9, -2, 0, 1, 0], -9], ids=str)
async def test_a_waiter_that_has_looked_at_its_turn_before_learns_that_it_waits(said: object) -> None:
    async with scene() as there:
        if said == -9:  # the short answer, which only those get that join others
            await there.wait_in_line()
        there.says["lock_grant"] = said
        request = there.request()
        assert not request.turn.done()
        assert isinstance(await there.grantor.grant(request), Queued)
        assert request.token in there.grantor.queue.waiting
        assert request.retry_after is not None
        there.grantor.deliver_grant(request.token, 41, 30_000)
        assert request.turn.done()


async def test_a_caller_of_a_busy_lock_learns_for_how_long() -> None:
    for busy_ms, seconds in [(1500, 1.5), (0, 0), (-1, math.inf), (-2, 0)]:
        async with scene(lock_grant=[b"busy", busy_ms, 0]) as there:
            request, asked = there.ask(wait=False)
            assert await asked == Busy()
            assert request.retry_after == seconds
            assert not request.unanswered, "there is nothing to undo"


async def test_a_request_overtaken_by_its_undo_is_an_error_and_nothing_is_learned_from_it() -> None:
    async with scene(lock_grant=[b"withdrawn"]) as there:
        request = there.request()
        request.extensions = (Adding(on_reply=lambda *_: pytest.fail("there is nothing to learn")),)
        with pytest.raises(RedisError, match="withdrawn before it came"):
            await there.grantor.grant(request)


async def test_a_primitive_is_shown_the_arguments_and_the_answer() -> None:
    async with scene(lock_grant=[b"busy", 20, 0]) as there:
        request, learned = there.request(wait=False), list[Any]()
        request.extensions = (Adding(on_reply=lambda *shown: learned.append(shown)),)
        assert await there.grantor.grant(request) == Busy()
        [(args, reply)] = learned
        assert (args[0], args[3], reply) == (request.token, -1, [b"busy", 20, 0])


@pytest.mark.parametrize("said", [[b"queued", 9, 20_000, 0, 1], [b"busy", 20_000], [b"granted", 7]], ids=str)
async def test_an_objection_is_raised_but_the_grants_of_others_beside_it_are_theirs(said: list[Any]) -> None:
    def object_to(*_: object) -> None:
        raise RuntimeError("no such limit")

    async with scene() as there:
        other, turn = await there.wait_in_line()
        there.says["lock_grant"] = [*said, [other.token, 41, 30_000]]
        request = there.request()
        request.extensions = (Adding(on_reply=object_to),)
        with pytest.raises(RuntimeError, match="no such limit"):
            await there.grantor.grant(request)
        assert turn.result().fence == 41
        assert request.reached, "there may be something to undo"


# Trouble.


async def test_after_an_error_it_is_known_whether_the_request_may_have_been_run() -> None:
    """Reached: Redis has said so. Unanswered: it may come still."""
    for said, reached, unanswered in [
        (BUSY, False, False), (ResponseError("OOM command not allowed"), True, False),
        (RedisConnectionError("gone"), False, True),
        (ReadOnlyError("You can't write against a read only replica."), False, False), (SILENCE, False, True),
        ([b"granted", b"7", 0], True, True),
    ]:  # fmt: skip
        async with scene(lock_grant=said) as there:
            request, asked = there.ask()
            with pytest.raises(RedisError) as caught:
                await asked
            assert (request.reached, bool(request.unanswered)) == (reached, unanswered), said
            assert not isinstance(caught.value, ReadOnlyError), "asking again may mend it"
            unreachable = isinstance(said, (RedisConnectionError, ReadOnlyError, list))
            assert isinstance(caught.value, RedisConnectionError) == unreachable


async def test_a_request_for_which_there_was_no_connection_leaves_nothing_to_undo() -> None:
    async with scene() as there:
        there.server.refuses = True
        request, asked = there.ask()
        with pytest.raises(RedisConnectionError):
            await asked
        assert (request.reached, request.unanswered) == (False, ())
        assert there.undo(request) == [False]


async def test_a_request_waits_for_a_connection_for_ten_seconds_and_no_less() -> None:
    async with scene() as there:
        pipeline_in(there.session.context)._connect_time = 50  # else that is over sooner
        there.server.hangs = True
        with pytest.raises(RedisTimeoutError):
            await there.ask()[1]
        assert clock() == 10


# Grants that come beside an answer.


@pytest.mark.parametrize("said", [[b"queued", 9, 20_000, 0, 1], [b"busy", 20_000], [b"granted", 7], [b"refused", 3]],
                         ids=str)  # fmt: skip
async def test_grants_beside_any_answer_go_to_whom_they_are_for(said: list[Any]) -> None:
    async with scene() as there:
        other, turn = await there.wait_in_line()
        refused, refusal = await there.wait_in_line(permits=4)
        there.says["lock_grant"] = [*said, [other.token, b"41", b"30000", refused.token, b"-1", b"3"]]
        _, asked = there.ask(wait=False)
        await asyncio.wait([asked, turn, refusal], timeout=1, return_when=asyncio.FIRST_EXCEPTION)
        await asyncio.sleep(0.01)
        assert turn.result() == Granted(41, 0)
        assert isinstance(refusal.exception(), LimitMismatchError)
        assert "limit is 3" in str(refusal.exception())
        assert not {other.token, refused.token} & {*there.grantor.queue.waiting}
        asked.cancel()


async def test_a_grant_that_no_one_here_wants_is_given_back_at_once_and_a_refusal_is_not() -> None:
    async with scene(lock_grant=[b"busy", 20, [b"t" * 32, 1, 2500, b"u" * 32, 0, 1, b"v" * 32, -1, 3]]) as there:
        assert await there.ask(wait=False)[1] == Busy()
        await asyncio.sleep(0.01)
        [released] = there.asked("lock_release")
        assert released.arguments[:3] == [b"t" * 32, b"2500 1", b"0"]
        assert released.keys == [BASE, BASE + b":fence", BASE + b":queue", BASE + b":q:" + there.session.context.id]


async def test_a_caller_continues_a_script_that_had_no_time_for_all_free_names() -> None:
    def answer(asked: Asked) -> object:
        return [b"busy", 20, [b"", -2, 0]] if len(there.asked("lock_grant")) < 3 else 7

    async with scene(lock_grant=answer) as there:
        request, asked = there.ask(wait=False)
        assert await asked == Granted(7, 0)
        assert {asked.arguments[0] for asked in there.asked("lock_grant")} == {request.token}
        assert (request.unanswered, len(there.asked("lock_grant")), there.asked("lock_recheck")) == ((), 3, [])


async def test_a_caller_that_continues_a_script_is_undone_with_that_too() -> None:
    def answer(asked: Asked) -> object:
        return [b"busy", 20, [b"", -2, 0]] if len(there.asked("lock_grant")) < 2 else SILENCE

    async with scene(lock_grant=answer, lock_release=lambda _: 1) as there:
        request, _ = there.ask(wait=False)
        await asyncio.sleep(0.1)
        assert len(request.unanswered) == 1
        there.server.cut()
        await asyncio.sleep(0.1)
        there.undo(request)
        await asyncio.sleep(0.1)
        assert there.asked("lock_release")[0].arguments[2] == b"60000", "it may still come"


@pytest.mark.parametrize("gone", ["cancelled", "undone"])
async def test_where_the_caller_is_gone_the_session_continues_its_script(gone: str) -> None:
    async with scene(lock_grant=Later(0.5, [b"busy", 20, [b"", -2, 0]])) as there:
        request, asked = there.ask(wait=False)
        await asyncio.sleep(0.2)
        asked.cancel() if gone == "cancelled" else there.undo(request)
        await asyncio.sleep(1)
        assert len(there.asked("lock_grant")) == 1
        assert [len(asked.arguments) for asked in there.asked("lock_recheck")] == [1], "one, for no waiter"


async def test_what_an_undo_had_no_time_for_is_gone_on_with_by_the_session() -> None:
    async with scene(lock_release=b"1 - -2 0") as there:
        request, granted = there.ask()
        await granted
        assert there.undo(request) == []
        await asyncio.sleep(0.1)
        assert [len(asked.arguments) for asked in there.asked("lock_recheck")] == [1], "one, for no waiter"


# Renewing.


async def test_a_renewal_says_what_the_server_did() -> None:
    for said, told in [(1, True), (0, False)]:
        async with scene(lock_renew=said) as there:
            request, outcomes = there.request(), list[object]()
            there.grantor.renew(request, 2.5, outcomes.append)
            await asyncio.sleep(0.1)
            assert outcomes == [told]
            [asked] = there.server.asked
            assert (asked.keys, asked.arguments) == ([BASE], [request.token, b"2500"])


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(
    ("ttl", "round_trip", "seconds"),
    [(30, 0, 1.0), (2, 0, 0.5), (0.4, 0, 0.25), (30, 0.5, 2.0), (3, 0.5, 1.0), (6, 9, 2.0), (0.9, 9, 0.3)],
)
async def test_a_renewal_is_given_up_in_time(ttl: float, round_trip: float, seconds: float, many: bool) -> None:
    async with scene(lock_renew=SILENCE, lock_renew_many=SILENCE) as there:
        await there.ask()[1]
        pipeline_in(there.session.context).round_trip = round_trip
        outcomes: list[Any] = []

        def tell(told: object) -> None:
            outcomes.append((clock(), told))

        if many:
            there.together.renew([(there.grantor, there.request(ttl=each)) for each in (30, ttl, 30)], tell)
        else:
            there.grantor.renew(there.request(), ttl, tell)
        await asyncio.sleep(20)
        [(at, told)] = outcomes
        assert at == pytest.approx(seconds)
        assert isinstance(told, RedisTimeoutError)


async def test_renewals_go_by_the_pipeline_of_the_thread_that_renews() -> None:
    async with scene(lock_renew=0, lock_renew_many=[1, 1]) as there:
        outcomes: list[object] = []
        thread = there.thread()
        there.grantor.renew(there.request(), TTL, outcomes.append, thread)
        there.together.renew([(there.grantor, there.request()) for _ in range(2)], outcomes.append, thread)
        await asyncio.sleep(0.1)
        assert outcomes == [False, [1, 1]]
        assert pipeline_in(there.session.context).ready is None


@pytest.mark.parametrize(
    ("kind", "family", "most", "keys"),
    [("lock", "", 100, [b""]), ("exact", "", 100, [b""]), ("semaphore", "", 50, [b"", b":meta"]),
     ("readwrite", "modes", 50, [b"", b":meta"])],
)  # fmt: skip
async def test_a_renewal_of_many_says_which_for_how_long(kind: str, family: str, most: int, keys: list[bytes]) -> None:
    script = kind if most == 100 else "semaphore"
    async with scene(kind=kind, family=family, **{f"{script}_renew_many": [1, 0]}) as there:
        other: RedisGrantor = there.session.grantor(Keys("aiolocks:", kind, "pages", family))
        assert other.together is there.grantor.together
        assert there.together.most == most
        first, second, outcomes = there.request(ttl=2.5), there.request(ttl=30), list[object]()
        there.together.renew([(there.grantor, first), (other, second)], outcomes.append)
        assert not outcomes
        await asyncio.sleep(0.1)
        assert outcomes == [[1, 0]]
        [asked] = there.server.asked
        bases = [f"aiolocks:{kind}:{{{name}}}".encode() for name in ("orders", "pages")]
        assert asked.keys == [base + key for base in bases for key in keys]
        assert asked.arguments == [first.token, b"2500", second.token, b"30000"]


async def test_each_kind_and_each_session_renews_its_own_together() -> None:
    async with scene() as there, scene() as elsewhere:
        assert there.grantor.together is not elsewhere.grantor.together
        semaphore: RedisGrantor = there.session.grantor(Keys("aiolocks:", "semaphore", "orders"))
        assert there.grantor.together is not semaphore.together
        assert semaphore.together is there.session.grantor(Keys("aiolocks:", "readwrite", "orders", "modes")).together


# Undoing.


async def test_an_undo_says_whether_it_ended_a_live_lease() -> None:
    for said, told in [(1, True), (0, False)]:
        async with scene(lock_release=said) as there:
            request, granted = there.ask()
            await granted
            outcomes = there.undo(request)
            await asyncio.sleep(0.1)
            assert outcomes == [told]
            asked, session = there.asked("lock_release")[0], there.session.context.id
            assert asked.arguments == [request.token, b"30000 1", b"0", session + b" 3000 aiolocks:wake:", b"0"]
            assert asked.keys[2:] == [BASE + b":queue", BASE + b":q:" + session]


@pytest.mark.parametrize("ended", [0, 1])
async def test_grants_in_the_answer_to_an_undo_come_before_its_caller_goes_on(ended: int) -> None:
    order: list[object] = []
    async with scene() as there:
        request, granted = there.ask()
        await granted
        other, turn = await there.wait_in_line()
        turn.add_done_callback(lambda _: order.append("granted"))
        there.says["lock_release"] = b"%d %b 41 30000" % (ended, other.token)
        there.grantor.undo(request, order.append)
        await asyncio.sleep(0.1)
        assert order == ["granted", ended == 1]
        assert turn.result().fence == 41


async def test_what_never_left_is_undone_at_once_and_never_leaves() -> None:
    async with scene() as there:
        there.server.slow = 1.0
        request, asked = there.ask()
        await asyncio.sleep(0.5)
        assert there.undo(request) == [False]
        assert isinstance(asked.exception(), RedisConnectionError)
        await asyncio.sleep(5)
        assert there.undo(there.request()) == [False], "nothing was asked for"
        assert not there.server.asked


@pytest.mark.parametrize("granted", [True, False])
async def test_a_waiter_that_is_undone_waits_no_more_and_its_turn_is_over(granted: bool) -> None:
    """W8: an answer to an older re-check must not ask for it again."""
    async with scene() as there:
        request, turn = await there.wait_in_line()
        other, _ = await there.wait_in_line()
        assert not granted or request.grant(7, 0.0)
        outcomes = there.undo(request)
        assert list(there.grantor.queue.waiting) == [other.token]
        assert turn.cancelled() is not granted
        again, asked = there.ask()
        await asked
        turn = again.turn
        there.undo(again)
        assert turn.cancelled()
        await asyncio.sleep(0.1)
        assert outcomes == [True]


@pytest.mark.parametrize("ttl", [30.0, 90.0])
async def test_a_request_that_may_still_come_is_buried_only_if_it_left_over_another_connection(ttl: float) -> None:
    async with scene(lock_grant=SILENCE) as there:
        request, asked = there.ask(ttl=ttl)
        await asyncio.sleep(0.1)
        there.undo(request)
        assert there.asked("lock_release")[0].arguments[2] == b"0", "it comes before its undo"
        assert len(there.asked("lock_release")[0].keys) == 4
        asked.exception() if asked.done() else asked.cancel()
    async with scene(lock_grant=SILENCE) as there:
        request, asked = there.ask(ttl=ttl)
        await asyncio.sleep(0.1)
        there.server.cut()
        await asyncio.sleep(0.1)
        assert isinstance(asked.exception(), RedisConnectionError)
        there.undo(request)
        await asyncio.sleep(0.1)
        [released] = there.asked("lock_release")
        assert released.arguments[2] == b"%d" % (1000 * max(ttl, LONGEST_RETRY))
        assert released.keys[4:] == [BASE + b":t:" + request.token]


async def test_a_silence_counts_where_an_undo_may_have_been_carried_out() -> None:
    async def silences(there: Scene) -> int:
        request = there.request()
        request.was_reached()
        told = there.undo(request)
        await asyncio.sleep(20)
        assert len(told) == 1
        assert isinstance(told[0], Exception)
        return request.silences

    for said, expected in [(SILENCE, 1), (RedisConnectionError("gone"), 1), (BUSY, 0), (ResponseError("OOM"), 0)]:
        async with scene(lock_release=said) as there:
            assert await silences(there) == expected, said
    async with scene() as there:
        there.server.refuses = True
        assert await silences(there) == 0, "it has not left"


async def test_an_undo_is_waited_for_briefly_but_with_others_that_wait_for_longer() -> None:
    async def given_up_after(silences: int, *, others: bool = False) -> float:
        async with scene(lock_release=SILENCE, lock_grant=lambda _: SILENCE if others else 7) as there:
            begun, request = clock(), there.request()
            request.was_reached()
            for _ in range(silences):
                request.undo_unanswered()
            asked = there.ask()[1]
            await asyncio.sleep(0)
            outcomes: list[float] = []
            there.grantor.undo(request, lambda told: outcomes.append(clock() - begun))
            await asyncio.sleep(20)
            asked.exception()
            return round(outcomes[0], 6)

    assert await given_up_after(0) == 0.25
    assert await given_up_after(2) == 1.0
    assert await given_up_after(0, others=True) == 1.0


# For replicas.


def had_by(replicas: int, delay: float = 0.0) -> dict[str, Any]:
    """Answer after *delay* as where so many have what is written, by whom more are waited for in vain."""

    def wait(asked: Asked) -> object:
        return Later(delay if replicas >= int(asked.words[1]) else int(asked.words[2]) / 1000, replicas)

    return {"WAIT": wait}


async def test_for_replicas_a_lease_is_written_again_a_little_longer_and_never_queued() -> None:
    async with scene(**had_by(2, 0.02), lock_grant=7) as there:
        await asyncio.sleep(5)
        request = there.request()
        request.extensions = (Adding(5),)
        assert (await there.grantor.replicate(request, 2), clock()) == (Granted(7, 5), 5.02)
        written = there.asked("lock_grant")[0]
        assert written.arguments[:4] == [request.token, b"30001", b"1", b"-1"]
        assert written.arguments[5:] == [b"5", b"0"]
        assert (request.unanswered, written.words[0]) == ((), b"EVAL")


@pytest.mark.parametrize(("ttl", "bound"), [(30.0, 1.0), (4.0, 1.0), (2.0, 0.5)])
async def test_replicas_are_waited_for_as_long_as_a_quarter_of_the_ttl_or_a_second(ttl: float, bound: float) -> None:
    async with scene(**had_by(1), lock_grant=7) as there:
        with pytest.raises(RedisTimeoutError, match=rf"orders.*1 of 2 replicas had it within {bound:g} s"):
            await there.grantor.replicate(there.request(ttl), 2)
        assert clock() == pytest.approx(bound, abs=0.002)


async def test_what_was_written_for_replicas_and_not_answered_is_known_to_be_on_its_way() -> None:
    async with scene(**had_by(2), lock_grant=SILENCE) as there:
        request = there.request(2.0)
        with pytest.raises(RedisTimeoutError):
            await there.grantor.replicate(request, 2)
        assert len(request.unanswered) == 1
        sent = len(there.server.asked)
        await asyncio.sleep(5)
        assert len(there.server.asked) == sent, "replicas are waited for still"


async def test_a_lease_that_was_not_there_to_be_written_again_is_not_granted() -> None:
    async with scene(**had_by(2), lock_grant=[b"busy", 20, 0]) as there:
        with pytest.raises(RedisTimeoutError, match="ran out"):
            await there.grantor.replicate(there.request(), 2)


async def test_a_caller_whose_write_was_refused_waits_for_no_replicas() -> None:
    async with scene(**had_by(0), lock_grant=ResponseError("OOM command not allowed")) as there:
        with pytest.raises(ResponseError, match="OOM"):
            await there.grantor.replicate(there.request(), 2)
        await asyncio.sleep(5)
        assert len(there.asked("WAIT")) == 1, "the one that was sent with it"


@pytest.mark.parametrize(("ttl", "until"), [(30.0, 10.0), (4.0, 3.758)])
async def test_a_busy_server_is_ridden_out_for_ten_seconds_or_the_lease(ttl: float, until: float) -> None:
    await asyncio.sleep(100)
    async with scene(**had_by(2), lock_grant=BUSY) as there:
        with pytest.raises(NotNowError):
            await there.grantor.replicate(there.request(ttl), 2)
        assert 100 + until - 0.25 <= clock() < 100 + until
        assert len(there.asked("lock_grant")) > 10


# Other questions.


async def test_a_question_goes_with_its_arguments_and_its_own_keys_if_it_has_any() -> None:
    async with scene(lock_statistics=statistics(3, 0)) as there:
        assert await there.grantor.ask("statistics", (0,)) == statistics(3, 0)
        script = PreparedScript(load("lock/statistics"), (b"a", b"b"))
        assert await there.grantor.ask_once(script, (7,)) == statistics(3, 0)
        first, second = there.asked("lock_statistics")
        assert (first.keys[0], first.arguments) == (BASE, [b"0"])
        assert (second.keys, second.arguments) == ([b"a", b"b"], [b"7"])
        assert pipeline_in(there.session.context).patience == 1.0


async def test_a_request_as_a_waiter_names_its_session_and_passes_grants_on() -> None:
    async with scene("semaphore") as there:
        other, turn = await there.wait_in_line()
        there.says["semaphore_resize"] = [5, other.token, b"41", b"30000"]
        answer = await there.grantor.ask_once("resize", (5, -1), as_waiter=True)
        assert (answer[0], turn.result().fence) == (5, 41)
        asked = there.asked("semaphore_resize")[0]
        assert asked.arguments == [b"5", b"-1", there.session.context.id + b" 3000 aiolocks:wake:"]
        assert asked.keys[3] == b"aiolocks:semaphore:{orders}:q:" + there.session.context.id
        there.says["semaphore_resize"] = ResponseError("OOM command not allowed")
        with pytest.raises(ResponseError, match="OOM"):
            await there.grantor.ask_once("resize", (5, -1), as_waiter=True)


async def test_a_question_that_is_cancelled_before_it_left_never_leaves() -> None:
    async with scene() as there:
        there.server.slow = 1.0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await there.grantor.ask_once("statistics", (0,))
        await asyncio.sleep(10)
        await there.ask()[1]
        assert [asked.what for asked in there.server.asked] == ["lock_grant"]


def statistics(waiting: int, place: int) -> list[int]:
    return [1, 0, waiting, 0, 0, place, 0, 0]


async def test_statistics_count_all_waiters_whose_sessions_one_script_cannot_count() -> None:
    places = {0: statistics(100, 7), 7: statistics(20, 9), 9: statistics(3, 0)}
    async with scene(lock_statistics=lambda asked: list(places[int(asked.arguments[0])])) as there:
        assert (await there.grantor.statistics(), len(there.server.asked)) == ([1, 0, 123, 0, 0, 7, 0, 0], 3)
        assert await there.grantor.statistics(waiting=False) == [1, 0, 100, 0, 0, 7, 0, 0]
        assert len(there.server.asked) == 4
        places |= {7: statistics(20, 1), 1: statistics(4, 0)}
        assert (await there.grantor.statistics())[2] == 124
        places[0] = statistics(5, 0)
        assert (await there.grantor.statistics())[2] == 5


async def test_statistics_are_asked_for_again_while_leases_have_run_out_that_must_be_dropped_first() -> None:
    answers = [statistics(0, -1), statistics(0, -1), statistics(2, 0)]
    async with scene(lock_statistics=lambda _: answers.pop(0)) as there:
        assert await there.grantor.statistics() == statistics(2, 0)
        assert [asked.arguments for asked in there.server.asked] == [[b"0"]] * 3


@pytest.mark.parametrize(("kind", "beside"), [("lock", []), ("semaphore", [b":meta"])])
async def test_a_holder_guards_by_its_own_token(kind: str, beside: list[bytes]) -> None:
    async with scene(kind) as there:
        request = there.request()
        held, base = there.grantor.guarding(request), f"aiolocks:{kind}:{{orders}}".encode()
        holders = (base, *(base + part for part in beside))
        assert (held.script, held.holders, held.tokens) == (f"{kind}/guard", holders, (request.token,))
        assert held.record == base + b":g:" + request.token


@pytest.mark.parametrize(("refusal", "text"), [
    (MovedError("7638 10.0.0.1:7001"), "pass a client of the Cluster, redis.asyncio.cluster.RedisCluster"),
    (NoPermissionError("this user has no permissions to run the 'eval' command"), "lacks the right [+]eval"),
])  # fmt: skip
async def test_a_request_that_is_never_run_fails_at_once_without_an_undo(refusal: Exception, text: str) -> None:
    """Its undo was refused as well, and waited for: for a second."""
    server = Answering(lambda asked: refusal)
    for ask in (Lock(server.client(), "orders").acquire, Lock(server.client(), "orders").try_acquire):
        with pytest.raises(ResponseError, match=text):
            await ask()
    assert clock() == 0
    assert [asked.what for asked in server.asked] == ["lock_grant"] * 2
    await asyncio.sleep(1)


async def test_a_caller_that_asks_once_waits_two_seconds_for_a_connection_at_most() -> None:
    """However patient the attempt to connect is that others have begun; and as often as the client would try."""
    server = Answering(lambda asked: 7)
    server.connection_kwargs["retry"] = Retry(NoBackoff(), 0)
    server.hangs = True
    lock = Lock(server.client(), "orders")
    for ask in (lock.try_acquire, lambda: lock.acquire(timeout=0), lock.try_acquire):
        began = clock()
        with pytest.raises(RedisTimeoutError):
            await ask()
        assert clock() - began <= 2
    await asyncio.sleep(1)


async def test_waiters_look_again_when_the_name_is_free_as_the_server_says() -> None:
    """W18: after `min_hold`; otherwise they looked a second later."""
    async with scene() as there:
        await there.wait_in_line()
        there.grantor.deliver_grant(b"", -3, 300)
        await asyncio.sleep(0.32)
        assert len(there.asked("lock_recheck")) == 1


async def test_an_adoption_that_is_not_answered_is_undone_as_any_request() -> None:
    """Its arguments are fewer: they do not name the session."""
    async with scene(lock_adopt=SILENCE) as there:
        request = there.request()
        adoption = Adoption(there.grantor, b"secret", lambda: pytest.fail("not refused"))
        request.extensions = (adoption,)
        asked = there.grantor.grant(request)
        await asyncio.sleep(0.1)
        assert there.undo(request) == []
        [undone] = there.asked("lock_release")
        assert (undone.arguments[0], undone.asker[0]) == (request.token, there.session.context.id)
        asked.cancel()
        adoption.others = [adoption]
        adoption.on_undone(request, ended=False)
        assert adoption.others, "the offer stands"
