"""Several names taken one after the other, in virtual time: what is asked of each, when, and what is given back."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import AcquireTimeoutError, Lease, LeaseLostError
from aiolocks._chain import Chain
from aiolocks._deadlines import deadline
from aiolocks._hold import Hold, obtain
from aiolocks._lease_state import LeaseState
from aiolocks._options import Options
from aiolocks._request import Busy, Granted, Grantor, Queued, Request
from aiolocks.testing import After, ScriptedGrantor
from aiolocks.testing._scripted import Answer
from tests.support.jumping import clock, jumping


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

    def asking(self, *, ttl: float = 30.0, timeout: float | None = None) -> LeaseState:
        options = Options(ttl, timeout)
        chain = Chain(self.session, "stubs", "a, b", self.grantors, options)
        request = Request(ttl, 1, wait=timeout is None or timeout > 0)
        base = tuple(stub.name.encode() for stub in self.stubs)
        return LeaseState(self.session, chain, base, request, options, timeout, asyncio.current_task())

    def hold(self, *, ttl: float = 30.0, timeout: float | None = None) -> Hold:
        return Hold(lambda: self.acquire(ttl=ttl, timeout=timeout))

    async def acquire(self, *, ttl: float = 30.0, timeout: float | None = None) -> Lease:
        return await obtain(self.asking(ttl=ttl, timeout=timeout), must=True)

    async def try_acquire(self) -> Lease | None:
        return await obtain(self.asking(timeout=0), must=False)

    def verbs(self) -> list[list[str]]:
        """Return what each was asked, oldest first."""
        return [[asked.verb for asked in stub.asked] for stub in self.stubs]

    def nothing_left(self) -> bool:
        undrawn = [set(stub.tokens("grant")) - set(stub.tokens("withdraw")) for stub in self.stubs]
        return not (any(undrawn) or self.session.tokens or self.session.withdrawing or self.session.ledger.in_use())


@dataclass
class Late:
    """A stub whose first question leaves only *delay* seconds after it is asked."""

    stub: ScriptedGrantor
    delay: float

    def __post_init__(self) -> None:
        self.name, self.kind, self.session = self.stub.name, self.stub.kind, self.stub.session
        self.renew, self.withdraw = self.stub.renew, self.stub.withdraw

    async def grant(self, request: Request) -> Granted | Queued | Busy:
        await asyncio.sleep(self.delay)
        return await self.stub.grant(request)


def later(seconds: float, callback: Callable[..., object], *args: object) -> None:
    asyncio.get_running_loop().call_later(seconds, callback, *args)


@jumping
async def test_what_is_free_is_asked_for_at_once() -> None:
    several = Several([After(1, 7)], [After(1, 5)], [After(1, 9)])
    async with several.hold() as lease:
        assert clock() == 1
        assert lease.fencing_tokens == {"a": 7, "b": 5, "c": 9}
        assert lease.fencing_token == 9
    assert several.verbs() == [["grant", "withdraw"]] * 3
    assert several.nothing_left()


@jumping
async def test_validity_counts_from_the_request_of_all() -> None:
    several = Several([After(1, 7)], [After(10, 5)])
    async with several.hold() as lease:
        assert lease.remaining() == deadline(sent_at=0, ttl=30) - 10


@jumping
async def test_what_was_granted_out_of_turn_is_given_back_before_it_waits() -> None:
    several = Several([7], ["busy", "queued"], [5, 6])
    later(3, several.stubs[1].hand_over, 8)
    async with several.hold() as lease:
        assert clock() == 3
        assert several.verbs() == [["grant"], ["grant", "grant"], ["grant", "withdraw", "grant"]]
        assert several.stubs[2].times("withdraw") == [0]
        assert len(set(several.stubs[2].tokens("grant"))) == 2
        assert lease.fencing_tokens == {"a": 7, "b": 8, "c": 6}
    assert several.nothing_left()


@jumping
async def test_what_is_held_is_renewed_while_another_is_waited_for() -> None:
    several = Several([7], ["busy", "queued", 8])
    later(100, several.stubs[1].hand_over, 8)
    async with several.hold(ttl=30) as lease:
        assert clock() == 100
        assert 9 <= len(several.stubs[0].times("renew")) <= 12
        assert not several.stubs[1].times("renew")
        assert lease.remaining() > 15
    assert several.nothing_left()


@jumping
async def test_the_lease_counts_from_the_oldest_of_its_parts() -> None:
    several = Several([7], ["busy", "queued"])
    later(5, several.stubs[1].hand_over, 8)
    async with several.hold(ttl=30) as lease:
        assert lease.remaining() == pytest.approx(deadline(sent_at=0, ttl=30) - 5)


@jumping
async def test_the_lease_counts_from_the_oldest_of_its_parts_though_a_later_one_counts_from_a_recheck() -> None:
    """The newer of two would leave the caller sure of a lease that another holder may have by then."""
    several = Several([7], ["busy", "queued"])
    later(4, lambda: several.stubs[1].requests[-1].queued(1, 4, 0))  # a re-check that left at 4
    later(5, several.stubs[1].hand_over, 8)
    async with several.hold(ttl=30) as lease:
        assert clock() == 5
        assert lease.remaining() == pytest.approx(deadline(sent_at=0, ttl=30) - 5)


@pytest.mark.parametrize("late", [0, 1])
@jumping
async def test_what_is_free_counts_from_the_first_request_that_left_though_another_left_later(late: int) -> None:
    """As one does whose server must be connected to first."""
    several = Several([7], [8])
    punctual = several.stubs[late]
    several.grantors[late] = Late(punctual, 4)
    async with several.hold(ttl=30) as lease:
        assert (clock(), punctual.times("grant")) == (4, [4])
        assert lease.remaining() == deadline(sent_at=0, ttl=30) - 4


@jumping
async def test_a_part_that_is_lost_while_another_is_waited_for_begins_all_anew() -> None:
    several = Several([7, 17], ["busy", "queued", 18])
    several.stubs[0]._renewals = [False]
    async with several.hold(ttl=30) as lease:
        assert 9 <= clock() <= 11
        assert lease.fencing_tokens == {"a": 17, "b": 18}
        assert several.verbs() == [["grant", "renew", "withdraw", "grant"], ["grant", "grant", "withdraw", "grant"]]
    assert several.nothing_left()


@jumping
async def test_a_part_that_is_lost_while_the_last_one_is_asked_for_begins_all_anew() -> None:
    """Nobody waits in line any more, so that only a look at all parts tells of the loss."""
    several = Several([7, 17], ["busy", "queued", 18], [9, After(15, 19), 29])
    several.stubs[0]._renewals = [False, True]
    later(1, several.stubs[1].hand_over, 8)
    async with several.hold(ttl=30) as lease:
        assert several.stubs[2].times("grant") == [0, 1, 16]
        (lost_at, *_) = several.stubs[0].times("renew")
        assert 1 < lost_at < 16
        assert lease.held
        assert lease.fencing_tokens == {"a": 17, "b": 18, "c": 29}
    assert several.nothing_left()


@jumping
async def test_a_part_whose_time_ran_out_while_the_last_one_was_asked_for_begins_all_anew() -> None:
    """Its renewals get lost, and the answer to the last question comes after its end."""
    several = Several([7, 17], ["busy", "queued", 18], [9, After(40, 19), 29])
    several.stubs[0]._renewals = [RedisConnectionError()]
    later(1, several.stubs[1].hand_over, 8)
    async with several.hold(ttl=30) as lease:
        assert clock() == 41
        assert lease.fencing_tokens == {"a": 17, "b": 18, "c": 29}
        assert lease.remaining() == pytest.approx(deadline(sent_at=41, ttl=30) - 41)
    assert several.nothing_left()


@jumping
async def test_the_loss_of_one_is_the_loss_of_all() -> None:
    several = Several([7], [8])
    several.stubs[1]._renewals = [False]
    with pytest.raises(LeaseLostError):
        async with several.hold(ttl=30):
            await anyio.sleep_forever()
    assert 9 <= clock() <= 11
    await asyncio.sleep(1)  # by the clock that jumps: until all has been given back
    assert several.nothing_left()


@jumping
async def test_the_lease_ends_when_one_cannot_be_renewed() -> None:
    several = Several([7], [8])
    several.stubs[1]._renewals = [RedisConnectionError()]
    with pytest.raises(LeaseLostError):
        async with several.hold(ttl=30):
            await anyio.sleep_forever()
    assert clock() == deadline(sent_at=0, ttl=30)


@jumping
async def test_a_timeout_gives_back_what_was_held() -> None:
    several = Several([7], ["busy", "queued"])
    several.stubs[1].retry_after = 4.0
    with pytest.raises(AcquireTimeoutError) as caught:
        await several.acquire(timeout=5)
    assert clock() == 5
    assert (caught.value.name, caught.value.retry_after) == ("a, b", 4.0)
    assert several.nothing_left()


@jumping
async def test_a_cancellation_gives_back_what_was_held() -> None:
    several = Several([7], ["busy", "queued"])
    with anyio.move_on_after(5):
        await several.acquire()
    assert clock() == 5
    assert several.nothing_left()


@jumping
async def test_to_ask_once_gives_back_what_was_granted() -> None:
    several = Several([7], ["busy"], [9])
    assert await several.try_acquire() is None
    assert several.verbs() == [["grant", "withdraw"], ["grant"], ["grant", "withdraw"]]
    assert not several.session.tokens


@jumping
async def test_an_answer_that_was_lost_is_asked_for_again_under_its_token() -> None:
    several = Several([7], [RedisConnectionError(), 8])
    async with several.hold() as lease:
        assert lease.fencing_tokens == {"a": 7, "b": 8}
        assert len(set(several.stubs[1].tokens("grant"))) == 1
    assert several.nothing_left()


@jumping
async def test_one_that_cannot_be_asked_is_the_error_of_all() -> None:
    several = Several([7], [RedisConnectionError("refused")])
    with pytest.raises(RedisConnectionError, match="refused"):
        await several.acquire()
    assert several.nothing_left()


@jumping
async def test_a_wait_with_trouble_in_its_first_request_may_last() -> None:
    """Whoever is in line is not timed out as one that could not be asked."""
    several = Several([RedisConnectionError(), "queued", 7], [8])
    later(60, several.stubs[0].hand_over, 7)
    async with several.hold():
        assert clock() == 60


@jumping
async def test_a_grant_that_took_over_half_the_ttl_is_made_whole_by_renewals() -> None:
    several = Several([7], [After(20, 8)])
    async with several.hold(ttl=30) as lease:
        assert lease.remaining() == pytest.approx(deadline(sent_at=20, ttl=30) - 20)
        assert several.verbs() == [["grant", "renew"], ["grant", "renew"]]


@jumping
async def test_a_grant_made_whole_counts_from_the_request_to_renew_it_and_not_from_the_reply() -> None:
    several = Several([7], [After(20, 8)])
    several.stubs[1]._renewals = [After(3, True)]
    async with several.hold(ttl=30) as lease:
        assert clock() == 23
        assert lease.remaining() == pytest.approx(deadline(sent_at=20, ttl=30) - 23)


@jumping
async def test_a_lease_that_nobody_releases_leaves_no_tokens_once_it_is_lost() -> None:
    several = Several([7], [8])
    several.stubs[0]._renewals = [After(math.inf, True)]
    lease = await several.acquire(ttl=30)
    assert await lease.wait_lost()
    assert not several.session.tokens
