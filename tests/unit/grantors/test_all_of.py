"""Several names taken one after the other, in virtual time: what is asked of each, when, and what is given back."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import AcquireTimeoutError, Lease, LeaseLostError
from aiolocks._core.options import Options
from aiolocks._core.timing import deadline
from aiolocks._engine.acquire import Acquisition
from aiolocks._engine.context import Grantor
from aiolocks._engine.extension import Extension
from aiolocks._engine.lease import Hold
from aiolocks._engine.request import Busy, Granted, Queued, Request
from aiolocks._grantors.all_of import AllOf
from aiolocks._grantors.replication import ReplicasOption
from aiolocks.testing import After, ScriptedGrantor
from aiolocks.testing._scripted import Answer
from tests.support.virtual import clock
from tests.unit.engine.leases import later


class Several:
    """A chain of stubs, each with its own script of answers."""

    def __init__(self, *grants: Sequence[Answer | After]) -> None:
        first = ScriptedGrantor(grants=grants[0], name="a")
        self.session = first.session
        others = [
            ScriptedGrantor(grants=script, name=name, session=first.session)
            for name, script in zip("bcd", grants[1:], strict=False)
        ]
        self.stubs = [first, *others]
        self.grantors: list[Grantor] = [*self.stubs]
        self.wishes: list[tuple[int, int]] | None = None
        self.seal: Callable[[Request], Awaitable[int]] | None = None
        self.options = Options(30.0)
        self.extensions: tuple[Extension, ...] = ()

    def asking(self, *, ttl: float = 30.0, timeout: float | None = None) -> Acquisition:
        options = replace(self.options, ttl=ttl, acquire_timeout=timeout)
        chain = AllOf(self.session.context, "stubs", "a, b", self.grantors, options, self.wishes, self.seal)
        request = Request(ttl, 1, timeout is None or timeout > 0, extensions=self.extensions)
        base = tuple(stub.name.encode() for stub in self.stubs)
        return Acquisition(self.session.context, chain, base, request, options, timeout)

    def hold(self, *, ttl: float = 30.0, timeout: float | None = None) -> Hold:
        return Hold(lambda: self.acquire(ttl=ttl, timeout=timeout), self)

    async def acquire(self, *, ttl: float = 30.0, timeout: float | None = None) -> Lease:
        return await self.asking(ttl=ttl, timeout=timeout).acquire(Lease)

    async def try_acquire(self) -> Lease | None:
        return await self.asking(timeout=0).try_acquire(Lease)

    def verbs(self) -> list[list[str]]:
        return [[asked.verb for asked in stub.asked] for stub in self.stubs]

    def nothing_left(self) -> bool:
        undrawn = [set(stub.tokens("grant")) - set(stub.tokens("withdraw")) for stub in self.stubs]
        context = self.session.context
        return not (any(undrawn) or context.tokens or context.undos.under_way or context.holdings.in_use())


async def test_what_is_free_is_asked_for_at_once_and_counts_from_that() -> None:
    several = Several([After(1, 7)], [After(10, 5)], [After(1, 9)])
    async with several.hold() as lease:
        assert (clock(), lease.fencing_tokens) == (10, {"a": 7, "b": 5, "c": 9})
        assert (lease.fencing_token, lease.remaining()) == (9, deadline(sent_at=0, ttl=30) - 10)
    assert several.verbs() == [["grant", "withdraw"]] * 3
    assert several.nothing_left()


async def test_what_was_granted_out_of_turn_is_given_back_before_it_waits() -> None:
    several = Several([9], ["busy", "queued"], [5, 6])
    later(3, several.stubs[1].hand_over, 8)
    async with several.hold() as lease:
        assert (clock(), several.verbs()) == (3, [["grant"], ["grant", "grant"], ["grant", "withdraw", "grant"]])
        assert (several.stubs[2].times("withdraw"), len(set(several.stubs[2].tokens("grant")))) == ([0], 2)
        assert (lease.fencing_tokens, lease.fencing_token) == ({"a": 9, "b": 8, "c": 6}, 9)
    assert several.nothing_left()


@pytest.mark.parametrize("options", [Options(30.0), Options(30.0, renew=False, max_hold=5.0)], ids=["usual", "own"])
async def test_what_is_held_is_renewed_on_any_terms_while_another_is_waited_for(options: Options) -> None:
    several = Several([7], ["busy", "queued", 8])
    several.options = options
    later(100, several.stubs[1].hand_over, 8)
    async with several.hold(ttl=30) as lease:
        assert clock() == 100
        assert 9 <= len(several.stubs[0].times("renew")) <= 12
        assert not several.stubs[0].times("withdraw")
        assert not several.stubs[1].times("renew")
        assert lease.held
        assert lease.remaining() > 15
    assert several.nothing_left()


@pytest.mark.parametrize("recheck", [False, True])
async def test_the_lease_counts_from_the_oldest_of_its_parts_and_not_from_a_recheck(recheck: bool) -> None:
    """The newer of two would leave the caller sure of a lease that another holder may have by then."""
    several = Several([7], ["busy", "queued"])
    if recheck:  # one that left at 4
        later(4, lambda: several.stubs[1].requests[-1].queued(1, 4, 0, b"home"))
    later(5, several.stubs[1].hand_over, 8)
    async with several.hold(ttl=30) as lease:
        assert clock() == 5
        assert lease.remaining() == pytest.approx(deadline(sent_at=0, ttl=30) - 5)


@pytest.mark.parametrize("late", [0, 1])
async def test_what_is_free_counts_from_the_first_request_that_left_though_another_left_later(late: int) -> None:
    """As one does whose server must be connected to first."""
    several = Several([7], [8])
    stub = several.stubs[late]
    grant = stub.grant

    async def connect_first(request: Request) -> Granted | Queued | Busy:
        await asyncio.sleep(4)
        return await grant(request)

    stub.grant = connect_first  # type: ignore[method-assign]  # to see when it counts from
    async with several.hold(ttl=30) as lease:
        assert (clock(), stub.times("grant")) == (4, [4])
        assert lease.remaining() == deadline(sent_at=0, ttl=30) - 4


async def test_a_part_lost_while_its_caller_waits_for_another_makes_all_begin_again() -> None:
    several = Several([7, 17], ["busy", "queued", 18])
    several.stubs[0]._renewals = [False]
    async with several.hold(ttl=30) as lease:
        assert 9 <= clock() <= 11
        assert lease.fencing_tokens == {"a": 17, "b": 18}
        assert several.verbs() == [["grant", "renew", "withdraw", "grant"], ["grant", "grant", "withdraw", "grant"]]
    assert several.nothing_left()


@pytest.mark.parametrize(("took", "renewals"), [(15, [False, True]), (40, [RedisConnectionError()])], ids=["", "over"])
async def test_a_part_lost_while_the_last_is_requested_makes_all_begin_again(took: int, renewals: Any) -> None:
    """No caller waits in line any more, so only a look at all parts tells of the loss.

    A part runs out if its renewals get lost and the answer to the last question comes after its end.
    """
    several = Several([7, 17], ["busy", "queued", 18], [9, After(took, 19), 29])
    several.stubs[0]._renewals = renewals
    later(1, several.stubs[1].hand_over, 8)
    async with several.hold(ttl=30) as lease:
        assert several.stubs[2].times("grant") == [0, 1, clock()]
        assert 1 < several.stubs[0].times("renew")[0] < clock() == 1 + took
        assert lease.held
        assert lease.fencing_tokens == {"a": 17, "b": 18, "c": 29}
        assert lease.remaining() == pytest.approx(deadline(sent_at=clock(), ttl=30) - clock())
    assert several.nothing_left()


@pytest.mark.parametrize(("renewal", "lost_at"), [(False, 10), (RedisConnectionError(), deadline(sent_at=0, ttl=30))])
async def test_the_loss_of_one_is_the_loss_of_all(renewal: Answer, lost_at: float) -> None:
    several = Several([7], [8])
    several.stubs[1]._renewals = [renewal]
    with pytest.raises(LeaseLostError):
        async with several.hold(ttl=30):
            await anyio.sleep_forever()
    assert clock() == pytest.approx(lost_at, abs=1 if renewal is False else 0)
    await asyncio.sleep(1)  # by the clock that jumps: until all has been given back
    assert several.nothing_left()


async def test_a_cancellation_gives_back_what_was_held() -> None:
    several = Several([7], ["busy", "queued"])
    with anyio.move_on_after(5):
        await several.acquire()
    assert clock() == 5
    assert several.nothing_left()


async def test_to_ask_once_gives_back_what_was_granted_and_seals_nothing() -> None:
    async def seal(request: Request) -> int:
        raise AssertionError("it is not held")

    several = Several([7], ["busy"], [9])
    several.seal = seal
    assert await several.try_acquire() is None
    assert several.verbs() == [["grant", "withdraw"], ["grant"], ["grant", "withdraw"]]
    assert not several.session.context.tokens


async def test_an_answer_that_was_lost_is_asked_for_again_under_its_token() -> None:
    several = Several([7], [RedisConnectionError(), 8])
    async with several.hold() as lease:
        assert (lease.fencing_tokens, len(set(several.stubs[1].tokens("grant")))) == ({"a": 7, "b": 8}, 1)
    assert several.nothing_left()


async def test_a_wait_with_trouble_in_its_first_request_may_last() -> None:
    """Whoever is in line is not timed out as one that could not be asked."""
    several = Several([RedisConnectionError(), "queued", 7], [8])
    later(60, several.stubs[0].hand_over, 7)
    async with several.hold():
        assert clock() == 60


async def test_trouble_with_one_after_a_long_wait_for_another_is_ridden_out_for_as_long_as_any_other() -> None:
    several = Several(["busy", "queued", 7], ["busy", *[After(2.5, RedisConnectionError())] * 3, 8])
    later(60, several.stubs[0].hand_over, 7)
    async with several.hold():
        assert several.stubs[1].times("grant") == [0, 60, 62.5, 65, clock()]
    assert several.nothing_left()


async def test_a_grant_that_took_over_half_the_ttl_is_made_whole_by_renewals_and_counts_from_their_request() -> None:
    several = Several([9], [After(20, 8)])
    several.stubs[1]._renewals = [After(3, True)]
    async with several.hold(ttl=30) as lease:
        assert clock() == 23
        assert lease.remaining() == pytest.approx(deadline(sent_at=20, ttl=30) - 23)
        assert (several.verbs(), lease.fencing_token) == ([["grant", "renew"], ["grant", "renew"]], 9)


async def test_a_lease_that_is_never_released_leaves_no_tokens_once_it_is_lost() -> None:
    several = Several([7], [8])
    several.stubs[0]._renewals = [After(math.inf, True)]
    lease = await several.acquire(ttl=30)
    assert await lease.wait_lost()
    assert not several.session.context.tokens


async def test_only_the_first_that_is_missing_is_waited_for_in_line() -> None:
    several = Several([7, 17], ["busy", "queued", "busy", "queued"], [5])
    several.stubs[0]._renewals = [False, True]

    def noting(stub: ScriptedGrantor) -> list[bool]:
        grant, waits = stub.grant, list[bool]()

        async def granting(request: Request) -> Granted | Queued | Busy:
            waits.append(request.wait)
            return await grant(request)

        stub.grant = granting  # type: ignore[method-assign]  # to see what it is asked for
        return waits

    waits = [noting(stub) for stub in several.stubs]
    later(15, lambda: several.stubs[1].hand_over(8))
    async with several.hold(ttl=30):
        assert clock() == 15
    assert waits == [[False] * 2, [False, True] * 2, [False] * 3]


@pytest.mark.parametrize("wishes", [[(2, 0), (6, 1)], None])
async def test_each_is_asked_for_with_its_own_permits_and_place(wishes: list[tuple[int, int]] | None) -> None:
    several = Several([After(1, 7)], [After(1, 8)])
    several.wishes = wishes
    known: list[bytes] = []
    later(0.5, lambda: known.extend(several.session.context.tokens))
    async with several.hold():
        asked = [request for stub in several.stubs for request in stub.requests]
        assert [(request.terms.permits, request.place.ticket) for request in asked] == (wishes or [(1, 0), (1, 0)])
        assert {request.token for request in asked} <= {*known}, "or a grant would be given back at once"


async def test_a_sealed_lease_has_one_fencing_token_for_all() -> None:
    sealed: list[list[int]] = []

    async def seal(request: Request) -> int:
        sealed.append([part.fence for part in request.parts])
        await asyncio.sleep(1)
        return 50

    several = Several([7], [8])
    several.seal = seal
    async with several.hold(ttl=30) as lease:
        assert (sealed, lease.fencing_tokens) == ([[7, 8]], {"a": 50, "b": 50})
        assert lease.fencing_token == 50
        assert lease.remaining() == pytest.approx(deadline(sent_at=0, ttl=30) - 1)
    assert several.nothing_left()


@pytest.mark.parametrize("sealed", [True, False])
async def test_a_grant_that_cannot_be_sealed_or_renewed_is_begun_again(sealed: bool) -> None:
    seals = [0, 60]

    async def seal(request: Request) -> int:
        return seals.pop(0)

    several = Several([7, 17], [8 if sealed else After(20, 8), 18])
    if sealed:
        several.seal = seal
    else:
        several.stubs[1]._renewals = [False, True]
    async with several.hold(ttl=30) as lease:
        assert clock() == (0 if sealed else 20)
        assert lease.fencing_tokens == ({"a": 60, "b": 60} if sealed else {"a": 17, "b": 18})
        for stub in several.stubs:
            first, second = stub.tokens("grant")
            assert stub.tokens("withdraw") == [first] != [second]
    assert several.nothing_left()


@pytest.mark.parametrize(("undone_in", "ttl", "seconds"), [(0.4, 30, 0.4), (math.inf, 30, 1.0), (math.inf, 0.5, 0.5)])
async def test_to_ask_once_waits_a_second_for_what_is_given_back(undone_in: float, ttl: float, seconds: float) -> None:
    several = Several([7], ["busy"])
    several.stubs[0]._withdrawals = [After(undone_in, True)]
    assert await several.asking(ttl=ttl, timeout=0).try_acquire(Lease) is None
    assert clock() == pytest.approx(seconds)
    assert bool(several.session.context.undos.under_way) == (undone_in > 1)


async def test_a_caller_that_asks_once_for_all_learns_when_all_can_be_free() -> None:
    for waits in ([4.0, 2.0], [2.0, 4.0], [0.0, 0.0]):
        several = Several(["busy"], ["busy"])
        for stub, seconds in zip(several.stubs, waits, strict=True):
            stub.retry_after = seconds
        with pytest.raises(AcquireTimeoutError) as caught:
            await several.acquire(timeout=0)
        assert caught.value.retry_after == max(waits)


@pytest.mark.parametrize("late", [0, 16])
@pytest.mark.parametrize("timeout", [0.0, None])
async def test_a_refusal_of_one_is_told_at_once_and_the_others_are_given_back(timeout: float | None, late: int) -> None:
    """P3: also if all were granted before, but so late that they are confirmed, and one is gone by then."""
    before = [After(late, 5)] if late else []
    several = Several([*before, 7], [*before, ResponseError("NOPERM no permissions")], [*before, 9])
    several.stubs[2]._renewals = [False]
    with pytest.raises(ResponseError, match="NOPERM"):
        await several.acquire(timeout=timeout)
    assert clock() == late
    assert several.nothing_left()


async def test_the_error_of_one_part_is_raised_when_the_granted_parts_are_given_back() -> None:
    first: Any
    for first, until in (([7], 0.4), ([RedisConnectionError("lost"), 7], 0.8)):
        several = Several(first, [RedisConnectionError("refused")])
        several.stubs[0]._withdrawals = [After(0.4, True)]
        with pytest.raises(RedisConnectionError, match="refused"):
            await several.acquire()
        assert clock() == until
        assert several.nothing_left()


async def test_a_time_out_for_all_says_when_the_missing_part_can_be_free() -> None:
    several = Several([7], ["busy", After(1, "queued")])
    several.stubs[1].retry_after = 4.0
    later(0.5, setattr, several.stubs[1], "retry_after", 2.5)
    with pytest.raises(AcquireTimeoutError) as caught:
        await several.acquire(timeout=5)
    assert clock() == 5
    assert (caught.value.name, caught.value.retry_after) == ("a, b", 2.5)
    assert several.nothing_left()


async def test_a_time_out_while_one_part_does_not_answer_does_not_say_that_others_hold_it() -> None:
    several = Several(["busy", "queued"], [8, After(math.inf, 8)])
    later(3, several.stubs[0].hand_over, 7)
    with pytest.raises(RedisTimeoutError, match="did not answer"):
        await several.acquire(timeout=5)
    assert clock() >= 5


def replicated(*delays: float, error: Exception | None = None) -> tuple[Several, list[object]]:
    """Return parts that replicas have after *delays*, except that the last ends in *error*; and what is noted."""
    several, noted = Several([7], [8]), list[object]()
    several.extensions = (ReplicasOption(2),)

    def replicating(delay: float, error: Exception | None) -> Callable[[Request, int], Awaitable[Granted]]:
        async def replicate(request: Request, replicas: int) -> Granted:
            noted.append((clock(), replicas))
            try:
                await asyncio.sleep(delay)
            except asyncio.CancelledError:
                noted.append("cancelled")
                raise
            if error is not None:
                raise error
            return Granted(71, 0)

        return replicate

    stub: Any
    for stub, delay, trouble in zip(several.stubs, delays, (None, error), strict=True):
        stub.replicate = replicating(delay, trouble)
    return several, noted


async def test_replicas_of_all_are_waited_for_at_once_and_the_lease_counts_from_that_request() -> None:
    several, noted = replicated(3, 2)
    async with several.hold(ttl=30) as lease:
        assert (clock(), noted) == (3, [(0, 2), (0, 2)])
        assert lease.remaining() == pytest.approx(deadline(0, 30) - 3)
        assert set(lease.fencing_tokens.values()) == {71}


async def test_too_few_replicas_of_one_are_an_error_at_once_and_of_the_others_nothing_is_awaited() -> None:
    several, noted = replicated(20, 1, error=RedisTimeoutError("1 of 2 replicas"))
    with pytest.raises(RedisTimeoutError, match="1 of 2 replicas"):
        await several.acquire(ttl=30)
    await asyncio.sleep(0)
    assert (clock(), noted[2:]) == (1, ["cancelled"])
    assert several.nothing_left()


@pytest.mark.parametrize(("spare", "given"), [(0.5, True), (0.0, False), (-0.5, False)])
async def test_a_lease_that_ran_out_before_the_last_had_its_replicas_is_an_error(spare: float, given: bool) -> None:
    several, _ = replicated(1, deadline(0, 30) - spare)
    if given:
        lease = await several.acquire(ttl=30)
        assert lease.remaining() == pytest.approx(spare)
        await lease.release()
        return
    with pytest.raises(RedisTimeoutError, match="ran out before replicas had it"):
        await several.acquire(ttl=30)
    assert several.nothing_left()
