"""Votes in virtual time: what is asked of each server, when it is decided, and for how long it is tried."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import AcquireTimeoutError, Lease, QuorumError
from aiolocks._core.keys import Keys
from aiolocks._core.options import Options
from aiolocks._core.timing import deadline
from aiolocks._core.tokens import fresh_token, own_part, session_of
from aiolocks._engine.acquire import Acquisition
from aiolocks._engine.request import Busy, Granted, Request
from aiolocks._grantors.quorum import Quorum, vote_timeout
from aiolocks._grantors.session import Session
from tests.support.answering import SILENCE, Answering, Asked, Later
from tests.support.inside import block_loop
from tests.support.jumping import timers
from tests.support.virtual import clock

TTL = 2.0
LONGEST_PAUSE = 0.3
"""Seconds between two attempts."""

EVER = float("inf")


class Voter:
    """A server that answers each script so, or with what that returns, or what is next in a tuple; without one, yes."""

    def __init__(self, **answers: object) -> None:
        self._answers = {name: list(each) if isinstance(each, tuple) else [each] for name, each in answers.items()}
        self.pool = Answering(self._answer)

    def _answer(self, asked: Asked) -> object:
        name = asked.what.removeprefix("lock_").removeprefix("redlock_")
        left = self._answers.get(name) or [YES[name]]
        answer = left.pop(0) if len(left) > 1 else left[0]
        if callable(answer):
            answer = answer()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def times(self, name: str) -> list[float]:
        return self.pool.times(f"redlock_{name}" if name in {"raise", "statistics"} else f"lock_{name}")

    def tokens(self, name: str) -> list[bytes]:
        return [asked.arguments[0] for asked in self.pool.asked if asked.what.endswith(f"lock_{name}")]


YES = {"grant": 7, "raise": 0, "renew": 1, "release": 1, "statistics": [1, 7, 0]}


def takes(milliseconds: int) -> list[object]:
    return [b"busy", milliseconds, 0]


BROKEN = ResponseError("MISCONF not able to persist on disk")
RUNS_A_SCRIPT = ResponseError("BUSY Redis is busy running a script")


@asynccontextmanager
async def quorum(*voters: Voter) -> AsyncIterator[Quorum]:
    sessions = [Session.of(voter.pool) for voter in voters]
    try:
        keys = Keys("aiolocks:", "redlock", "orders", "lock")
        yield Quorum([session.grantor(keys) for session in sessions], keys, list("abcde"[: len(voters)]))
    finally:
        for session in sessions:
            session.close()
        await asyncio.sleep(0)


async def acquire(majority: Quorum, *, ttl: float = TTL, timeout: float | None = None) -> Lease:
    request, options = Request(ttl, 1, wait=timeout is None or timeout > 0), Options(ttl, timeout)
    asking = Acquisition(majority.context, majority, b"orders", request, options, timeout)
    return await asking.acquire(Lease)


@pytest.mark.parametrize(("ttl", "seconds"), [(30.0, 1.0), (4.0, 1.0), (2.0, 0.5), (0.4, 0.1), (0.1, 0.1)])
async def test_a_server_has_a_quarter_of_the_ttl_to_vote_within_bounds(ttl: float, seconds: float) -> None:
    assert vote_timeout(ttl) == seconds
    async with quorum(Voter(), Voter(grant=SILENCE), Voter(grant=SILENCE)) as majority:
        with pytest.raises(QuorumError) as caught:
            await asyncio.wait_for(majority.grant(Request(ttl, 1, wait=False)), 5)
        assert clock() >= 1
        assert [caught.value.outcomes[place] == "answered" for place in "abc"] == [True, False, False]


async def test_one_server_is_a_majority_of_itself() -> None:
    voter = Voter()
    async with quorum(voter) as majority:
        request = Request(TTL, 1, wait=True)
        assert (await majority.grant(request), await majority.grant(request)) == (Granted(7, 0), Granted(7, 0))
        told: list[bool | Exception] = []
        majority.renew(request, TTL, told.append)
        majority.undo(request, told.append)
        await asyncio.sleep(0.1)
        assert told == [True, True]
        assert [len(voter.times(name)) for name in ("grant", "raise", "renew", "release")] == [1, 1, 2, 1]


async def test_no_vote_waits_in_line_at_a_server() -> None:
    """Lines at several servers could wait for each other."""
    voters = [Voter(grant=(takes(100), 7)) for _ in range(3)]
    async with quorum(*voters) as majority:
        await acquire(majority)
        tickets = [asked.arguments[3] for voter in voters for asked in voter.pool.asked if asked.what == "lock_grant"]
        assert len(tickets) == 6
        assert all(int(ticket) < 0 for ticket in tickets)


async def test_the_largest_fencing_token_of_the_vote_is_put_to_all() -> None:
    voters = [Voter(grant=7), Voter(grant=9), Voter(grant=4)]
    async with quorum(*voters) as majority:
        lease = await acquire(majority)
        assert lease.fencing_token == 9
        for voter in voters:
            ((token, number),) = [asked.arguments for asked in voter.pool.asked if asked.what == "redlock_raise"]
            assert (token, number) == (voters[0].tokens("grant")[0], b"9")
            assert own_part(voter.tokens("grant")[0]) == own_part(token), "one secret everywhere"
    assert len({session_of(voter.tokens("grant")[0]) for voter in voters}) == 3, "each server is told who asks there"


async def test_a_fencing_token_that_a_majority_refuses_is_raised_above_what_stands_in_the_way() -> None:
    voters = [Voter(**{"raise": (11, 0)}), Voter(**{"raise": (20, 0)}), Voter()]
    async with quorum(*voters) as majority:
        lease = await acquire(majority)
        assert lease.fencing_token == 21
        numbers = [asked.arguments[1] for asked in voters[2].pool.asked if asked.what == "redlock_raise"]
        assert numbers == [b"7", b"21"]
    async with quorum(Voter(), Voter(), Voter(**{"raise": 20})) as majority:
        assert (await acquire(majority)).fencing_token == 7


async def test_a_lease_counts_from_when_the_vote_began() -> None:
    voters = [Voter(grant=Later(0.2, 7), **{"raise": Later(0.1, 0)}) for _ in range(3)]
    async with quorum(*voters) as majority:
        lease = await acquire(majority, ttl=30)
        assert clock() == pytest.approx(0.3)
        assert lease.remaining() == pytest.approx(deadline(0, 30) - 0.3)


@pytest.mark.parametrize(("spare", "given"), [(0.001, True), (0.0, False), (-0.001, False)])
async def test_what_is_agreed_on_when_the_lease_is_over_is_given_back(spare: float, given: bool) -> None:
    ttl = 0.1
    delay = deadline(0, ttl) - spare
    voters = [Voter(**{"raise": Later(delay, 0)}) for _ in range(3)]
    async with quorum(*voters) as majority:
        request = Request(ttl, 1, wait=False)
        if given:
            assert await majority.grant(request) == Granted(7, 0)
            return
        with pytest.raises(RedisTimeoutError, match="agreeing took longer"):
            await majority.grant(request)
        await asyncio.sleep(0.01)
        assert [len(voter.times("release")) for voter in voters] == [1, 1, 1]
        with pytest.raises(RedisTimeoutError, match="agreeing took longer"):
            await majority.grant(request)
        assert [len(set(voter.tokens("grant"))) for voter in voters] == [2, 2, 2], "asked for anew"


async def test_an_attempt_whose_agreeing_took_too_long_is_repeated_however_long_that_goes_on() -> None:
    voters = [Voter(**{"raise": (*[Later(0.095, 0)] * 30, 0)}) for _ in range(3)]
    async with quorum(*voters) as majority:
        assert isinstance(await majority.grant(Request(0.1, 1, wait=True)), Granted)
        assert clock() > 30 * 0.095


async def test_too_few_servers_that_agree_are_an_error_that_names_the_outcome_of_each() -> None:
    answers = [RedisTimeoutError(), BROKEN, (9, 0), 0, SILENCE]
    async with quorum(*(Voter(**{"raise": answer}) for answer in answers)) as majority:
        with pytest.raises(QuorumError, match="2 of 5 servers answered in time, and it takes 3") as caught:
            await majority.grant(Request(TTL, 1, wait=False))
        outcomes = caught.value.outcomes
        assert (outcomes["c"], outcomes["d"]) == ("answered", "answered")
        assert "MISCONF" in outcomes["b"]
        assert outcomes["a"] != "answered"
        assert outcomes["e"] != "answered"


async def test_where_too_few_can_answer_the_others_have_a_tenth_of_a_second_to_say_so() -> None:
    """The error says what became of each; and one that hangs keeps nobody from asking again."""
    slow, hung = Voter(grant=Later(0.05, takes(100))), Voter(grant=SILENCE)
    for third, answers in [(slow, True), (hung, False)]:
        broken = Voter(grant=BROKEN)
        async with quorum(broken, Voter(grant=BROKEN), third) as majority:
            with pytest.raises(QuorumError) as caught:
                await majority.grant(Request(30, 1, wait=True))
            assert (caught.value.outcomes["c"] == "answered") == answers
            first, second, *_ = broken.times("grant")
            assert 0.05 < second - first < 0.1 + LONGEST_PAUSE
            assert len(broken.times("grant")) < 15, "there is no pause"


async def test_a_server_that_hangs_holds_up_no_decision_of_the_others() -> None:
    async with quorum(Voter(), Voter(), Voter(grant=SILENCE, **{"raise": SILENCE})) as majority:
        await acquire(majority)
        assert clock() == 0
    async with quorum(Voter(grant=takes(100)), Voter(grant=takes(100)), Voter(grant=SILENCE)) as majority:
        assert (await majority.grant(Request(TTL, 1, wait=False)), clock()) == (Busy(), 0)


async def test_votes_leave_no_timers_behind() -> None:
    async with quorum(*(Voter() for _ in range(3))) as majority:
        for _ in range(100):
            lease = await acquire(majority, ttl=30)
            await lease.release()
        assert clock() == 0
        assert timers() < 20


@pytest.mark.parametrize(("undone", "ttl", "seconds"), [(Later(0.2, 1), 2, 0.2), (SILENCE, 30, 1), (SILENCE, 0.5, 0.5)])
async def test_to_ask_a_quorum_once_gives_grants_back_first(undone: object, ttl: float, seconds: float) -> None:
    voters = [Voter(release=undone), Voter(grant=takes(1500)), Voter(grant=takes(900))]
    async with quorum(*voters) as majority:
        request = Request(ttl, 1, wait=False)
        assert await majority.grant(request) == Busy()
        assert clock() == pytest.approx(seconds)
        assert (set(voters[0].tokens("release")), request.retry_after) == (set(voters[0].tokens("grant")), 0.9)


async def test_a_failed_attempt_is_given_back_before_the_next_and_under_another_token() -> None:
    voters = [Voter(), Voter(grant=(takes(100), takes(100), 8)), Voter(grant=takes(100))]
    async with quorum(*voters) as majority:
        await acquire(majority)
        asked = [(asked.what, asked.arguments[0]) for asked in voters[0].pool.asked]
        first, second, third = voters[0].tokens("grant")
        assert asked == [
            ("lock_grant", first), ("lock_release", first), ("lock_grant", second), ("lock_release", second),
            ("lock_grant", third), ("redlock_raise", third),
        ]  # fmt: skip
        assert len({first, second, third}) == 3


async def test_a_cancelled_attempt_is_given_back() -> None:
    voters = [Voter(), Voter(grant=Later(0.2, takes(100))), Voter(grant=Later(0.2, takes(100)))]
    async with quorum(*voters) as majority:
        task = asyncio.create_task(acquire(majority))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])
        assert voters[0].tokens("release") == voters[0].tokens("grant")
        await asyncio.sleep(1)
        assert not any(context.undos.under_way or context.tokens for context in majority._contexts)


async def test_a_lease_is_released_where_a_majority_says_that_it_was_live() -> None:
    cases = [((1, 1, 0), True), ((1, 0, 0), False), ((1, 1, SILENCE), True), ((0, 0, SILENCE), False)]
    for releases, expected in cases:
        async with quorum(*(Voter(release=release) for release in releases)) as majority:
            lease = await acquire(majority)
            assert await lease.release() is expected, releases


async def test_a_lease_lives_for_as_long_as_a_majority_renews_it() -> None:
    voters = [Voter(), Voter(), Voter(renew=0)]
    async with quorum(*voters) as majority:
        lease = await acquire(majority, ttl=3)
        await asyncio.sleep(60)
        assert lease.held
        assert [len(voter.pool.connections) for voter in voters] == [1, 1, 1], "nor do its sessions end before it does"
        assert await lease.release()


async def test_a_lease_that_a_majority_does_not_renew_is_lost() -> None:
    async with quorum(Voter(), Voter(renew=0), Voter(renew=0)) as majority:
        lease = await acquire(majority, ttl=3)
        assert await lease.wait_lost()
        assert clock() <= 1.1


async def test_what_was_granted_a_while_ago_is_made_whole_where_a_majority_has_it_still() -> None:
    voters = [Voter(grant=8), Voter(), Voter(renew=0)]
    async with quorum(*voters) as majority:
        request = Request(TTL, 1, wait=True)
        assert await majority.grant(request) == Granted(8, 0)
        await asyncio.sleep(1)
        voters[0]._answers["renew"] = [Later(0.2, 1)]
        assert await majority.grant(request) == Granted(8, 1)
        assert clock() == pytest.approx(1.2)
        assert [len(voter.times("grant")) for voter in voters] == [1, 1, 1]


async def test_an_old_grant_without_a_majority_is_given_back_and_asked_for_again() -> None:
    voters = [Voter(grant=(8, 9)), Voter(renew=0), Voter(renew=0)]
    async with quorum(*voters) as majority:
        request = Request(TTL, 1, wait=True)
        assert await majority.grant(request) == Granted(8, 0)
        await asyncio.sleep(1)
        assert await majority.grant(request) == Granted(9, 1)
        for voter in voters:
            first, second = voter.tokens("grant")
            assert voter.tokens("release") == [first] != [second]


def voting(*phases: tuple[float, object]) -> list[Voter]:
    """Return three servers, of which two vote in phases, each until a time, and the third never does."""

    def vote() -> object:
        return next(vote for until, vote in phases if clock() < until)

    return [Voter(grant=vote), Voter(grant=vote), Voter(grant=BROKEN)]


@pytest.mark.parametrize(("servers", "wait", "seconds"), [
    (lambda: voting((EVER, BROKEN)), True, 1), (lambda: voting((EVER, BROKEN)), False, 1),
    (lambda: voting((0.5, takes(1000)), (EVER, BROKEN)), True, (0.5 + TTL)),
    (lambda: [Voter(**{"raise": BROKEN}) for _ in range(3)], True, TTL),
    (lambda: [Voter(**{"raise": BROKEN}) for _ in range(3)], False, 1),
    (lambda: [Voter(grant=answer) for answer in (RUNS_A_SCRIPT, BROKEN, BROKEN)], True, 1),
], ids=[
    "they never voted", "asked once", "enough had voted", "they do not agree", "asked once to agree",
    "one that runs a script would make no majority",
])  # fmt: skip
async def test_too_few_answers_are_an_error_after_a_second_or_after_a_ttl_where_there_were_enough_before(
    servers: Callable[[], list[Voter]], wait: bool, seconds: float
) -> None:
    async with quorum(*servers()) as majority:
        with pytest.raises(QuorumError):
            await majority.grant(Request(TTL, 1, wait=wait))
        pauses = 1 if seconds <= TTL else 2
        assert seconds <= clock() <= seconds + pauses * LONGEST_PAUSE


async def test_a_majority_that_says_busy_ends_the_time_in_which_too_few_answered() -> None:
    """Who waits for long meets many short outages, which must not add up to an error."""
    outages = [(2.0, BROKEN), (2.5, takes(1000)), (4.0, BROKEN), (4.5, takes(1000)), (6.0, BROKEN), (EVER, 7)]
    async with quorum(*voting((0.5, takes(1000)), *outages)) as majority:
        answer = await majority.grant(Request(TTL, 1, wait=True))
        assert isinstance(answer, Granted)
        assert 6 <= clock() <= 6 + LONGEST_PAUSE


async def test_pauses_between_attempts_are_random_and_double_up_to_a_fifth_of_a_second() -> None:
    """A rival whose attempt met with this one may win meanwhile."""
    pauses: dict[int, list[float]] = {}
    for _ in range(35):
        voter = Voter(grant=(*[takes(1)] * 8, 7))
        async with quorum(voter) as majority:
            await majority.grant(Request(TTL, 1, wait=True))
            for attempt, (before, after) in enumerate(pairwise(voter.times("grant")), 1):
                pauses.setdefault(attempt, []).append(after - before)
    shares: list[float] = []
    for attempt, seen in pauses.items():
        mean = min(0.005 * 2**attempt, 0.2)
        shares.extend(pause / mean for pause in seen)
        assert min(shares) >= 0.5
        assert max(shares) <= 1.5 + 1e-6
    assert max(pauses) == 8
    assert min(shares) < 0.55
    assert max(shares) > 1.45


@pytest.mark.parametrize(("round_trip", "mean"), [(0.01, 0.04), (0.02, 0.08), (0.2, 0.1)])
async def test_the_first_pause_grows_with_the_slowest_round_trip(round_trip: float, mean: float) -> None:
    pauses: list[float] = []
    for _ in range(30):
        voters = [Voter(grant=(Later(delay, takes(1)), 7)) for delay in (0.001, round_trip)]
        async with quorum(*voters) as majority:
            await majority.grant(Request(TTL, 1, wait=True))
            first, second = voters[0].times("grant")
            pauses.append(second - first - round_trip)
    assert 0.5 * mean - 1e-6 <= min(pauses)
    assert mean < max(pauses) <= 1.5 * mean + 1e-6


@pytest.mark.parametrize(
    "answers", [[RUNS_A_SCRIPT] * 3, [RUNS_A_SCRIPT, RUNS_A_SCRIPT, BROKEN], [RUNS_A_SCRIPT, 7, BROKEN]]
)
async def test_servers_that_run_a_script_are_waited_for_up_to_ten_seconds(answers: list[object]) -> None:
    async with quorum(*(Voter(grant=answer) for answer in answers)) as majority:
        with pytest.raises(QuorumError):
            await majority.grant(Request(TTL, 1, wait=True))
        assert 10 <= clock() <= 10 + LONGEST_PAUSE
        began = clock()
        with pytest.raises(QuorumError):
            await majority.grant(Request(TTL, 1, wait=False))
        assert clock() == began, "whoever asks once is told at once, and asked again by the client's own policy"


async def test_servers_that_had_answered_are_waited_for_a_whole_ttl_though_a_script_keeps_them_busy() -> None:
    async with quorum(*voting((0.5, takes(1000)), (11, RUNS_A_SCRIPT), (EVER, 7))) as majority:
        assert isinstance(await majority.grant(Request(12, 1, wait=True)), Granted)
        assert 11 <= clock() <= 11 + LONGEST_PAUSE


@pytest.mark.parametrize("answers", [[7, takes(1500), SILENCE], [takes(900), takes(1500), takes(2500)]])
async def test_a_caller_whose_time_is_over_is_told_when_a_majority_may_be_free(answers: list[object]) -> None:
    async with quorum(*(Voter(grant=answer) for answer in answers)) as majority:
        with pytest.raises(AcquireTimeoutError) as caught:
            await acquire(majority, ttl=30, timeout=0.2)
        assert caught.value.retry_after == 1.5
        assert clock() == pytest.approx(0.2)


async def test_a_caller_whose_time_is_over_is_told_of_servers_that_did_not_answer() -> None:
    async with quorum(Voter(), Voter(grant=SILENCE), Voter(grant=SILENCE)) as majority:
        with pytest.raises(QuorumError) as caught:
            await acquire(majority, ttl=30, timeout=0.2)
        assert caught.value.outcomes == {"a": "answered", "b": "no answer in time", "c": "no answer in time"}


async def test_a_caller_whose_time_is_over_is_told_of_the_attempt_before_where_that_says_more() -> None:
    second = (takes(1500), SILENCE)
    async with quorum(*(Voter(grant=second) for _ in range(3))) as majority:
        with pytest.raises(AcquireTimeoutError) as caught:
            await acquire(majority, ttl=30, timeout=0.2)
        assert caught.value.retry_after == 1.5
    async with quorum(*(Voter(grant=(BROKEN, SILENCE)) for _ in range(3))) as majority:
        with pytest.raises(QuorumError, match="MISCONF"):
            await acquire(majority, ttl=30, timeout=0.2)


async def test_a_caller_whose_time_is_over_while_servers_agree_is_not_told_that_others_hold_it() -> None:
    voters = [Voter(grant=(BROKEN, 7), **{"raise": SILENCE}) for _ in range(3)]
    async with quorum(*voters) as majority:
        with pytest.raises(RedisTimeoutError, match="did not answer"):
            await acquire(majority, ttl=30, timeout=0.2)
        for voter in voters:
            assert set(voter.tokens("release")) == set(voter.tokens("grant"))


@pytest.mark.parametrize(("replies", "expected"), [
    ([[1, 7, 0], [1, 9, 0], [0, 3, 0]], (True, 9, 0)), ([[1, 7, 0], [0, 3, 0], [0, 9, 0]], (False, 9, 0)),
    ([[0, 1, 0], [0, 0, 0], [0, 0, 0]], (False, 1, 0)), ([[0, 0, 0], [0, 0, 0], BROKEN], (False, 0, 0)),
    ([[1, 7, 0], [1, 5, 0], SILENCE], (True, 7, 0)), ([[1, 7, 50], [1, 7, 40], [0, 3, 0]], (True, 7, 50)),
    ([[1, 7, 50], [1, 7, 50], BROKEN], (True, 7, 50)), ([[1, 7, 50], [1, 9, 0], [1, 9, 0]], (True, 9, 0)),
    ([[1, 7, 50], [1, 9, 0], BROKEN], (True, 9, 0)), ([[1, 7, 50], [0, 3, 0], [0, 3, 0]], (False, 7, 0)),
    ([[0, 0, 0], (RUNS_A_SCRIPT, [0, 3, 0]), RUNS_A_SCRIPT], (False, 3, 0)),
    ([[1, 7, 50], [1, 9, 0], Later(0.1, [1, 7, 50])], (True, 9, 50)),
])  # fmt: skip
async def test_statistics_are_those_of_a_majority(replies: list[Any], expected: tuple[bool, int, int]) -> None:
    voters = [Voter(statistics=reply) for reply in replies]
    async with quorum(*voters) as majority:
        for _ in range(2):
            assert await majority.statistics(TTL) == expected


@pytest.mark.parametrize("others", [[BROKEN, BROKEN], [BROKEN, SILENCE], [SILENCE, SILENCE], [[0, 3, 0], BROKEN]])
async def test_statistics_that_a_majority_does_not_give_are_an_error(others: list[Any]) -> None:
    voters = [Voter(statistics=other) for other in others]
    async with quorum(Voter(), *voters) as majority:
        with pytest.raises(QuorumError) as caught:
            await majority.statistics(TTL)
        assert (caught.value.outcomes["a"], clock()) == ("answered", 0.5 if SILENCE in others else 0)


async def test_statistics_wait_up_to_ten_seconds_for_servers_busy_with_another_programs_script() -> None:
    async with quorum(*(Voter(statistics=RUNS_A_SCRIPT) for _ in range(3))) as majority:
        with pytest.raises(QuorumError):
            await majority.statistics(TTL)
        assert 9 <= clock() <= 10


async def test_a_holder_is_named_by_a_server_that_knows_its_session_and_lasts_as_on_most() -> None:
    token, unknown, known = fresh_token(), [None] * 4, [b"orders-1", b"42", b"", None]
    rows = [0, token, 7, 1500, 1], [0, token, 7, 900, 1]
    async with quorum(
        Voter(holders=rows[0], HMGET=unknown), Voter(holders=rows[1], HMGET=known), Voter(holders=[0])
    ) as majority:
        (holder,) = await majority.holders(TTL)
        assert (holder.host, holder.pid, holder.remaining) == ("orders-1", 42, 0.9)


async def test_a_revoke_asks_as_many_servers_as_block_every_majority() -> None:
    holds = Voter(revoke=[b"own", 7, 900])
    async with quorum(holds, holds, Voter(revoke=BROKEN)) as majority:
        assert await majority.revoke(TTL) == [(b"own", 7, 0.9)] * 2


async def test_a_loop_that_stands_still_between_two_attempts_ends_no_session_of_theirs() -> None:
    """What was granted by then could not be released any more."""
    voters = [Voter(grant=(takes(100), 7)) for _ in range(3)]
    async with quorum(*voters) as majority:
        asyncio.get_running_loop().call_later(0.001, block_loop, 2.0)
        lease = await acquire(majority)
        assert await lease.release()
        assert [len(voter.pool.connections) for voter in voters] == [1, 1, 1]


async def test_statistics_of_slow_servers_are_waited_for_as_long_as_a_vote_of_theirs() -> None:
    async with quorum(*(Voter(statistics=Later(0.9, [0, 3, 0])) for _ in range(3))) as majority:
        assert await majority.statistics(30) == (False, 3, 0)
