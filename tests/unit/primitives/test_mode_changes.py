"""Leases that change their mode, in virtual time: what is asked of the server, for how long, and what is told."""

import asyncio
from contextlib import aclosing
from typing import Any, cast

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import LeaseLostError, RWLock
from aiolocks._core.modes import FRONT, UPGRADE
from tests.support.answering import SILENCE, Answering, Asked, Later
from tests.support.virtual import clock


class Server(Answering):
    """One that grants whatever is asked for, but answers upgrades and downgrades with what comes next."""

    def __init__(self, upgrades: tuple[object, ...] = (9,), downgrades: tuple[object, ...] = ([1],)) -> None:
        super().__init__(self._answer)
        self._upgrades, self._downgrades = list(upgrades), list(downgrades)
        self.renews: object = 1

    def _answer(self, asked: Asked) -> object:
        if asked.what == "modes_renew":
            return 1 if b"+" in asked.arguments[0] else self.renews
        if asked.what == "semaphore_renew_many":
            return [1 if b"+" in token else self.renews for token in asked.arguments[::2]]
        if asked.what == "modes_grant":
            return self._upgrades.pop(0) if int(asked.arguments[2]) == UPGRADE else 7
        return self._downgrades.pop(0) if asked.what == "modes_downgrade" else 1

    def rw(self, **options: Any) -> RWLock:
        return RWLock(self.client(), "catalogue", **options)

    def upgrades(self) -> list[Asked]:
        return [asked for asked in self.runs("modes_grant") if int(asked.arguments[2]) == UPGRADE]


async def test_a_bad_time_out_of_an_upgrade_is_an_error_but_of_a_reader_s_its_mode_is() -> None:
    async with aclosing(Server()) as server:
        async with server.rw().read as reader:
            with pytest.raises(RuntimeError, match="a read lease cannot be upgraded"):
                reader.upgrade(timeout=-1)
        async with server.rw().upgradeable as upgradeable:
            with pytest.raises(ValueError, match="timeout must be >= 0"):
                upgradeable.upgrade(timeout=-1)
            with pytest.raises(TypeError, match="timeout must be a number of seconds"):
                upgradeable.upgrade(timeout=cast("Any", "soon"))


@pytest.mark.parametrize(
    ("timeout", "ticket"), [(0, ~FRONT), (0.0, ~FRONT), (0.5, FRONT), (1, FRONT), (5, FRONT), (None, FRONT)]
)
async def test_an_upgrade_is_asked_for_before_all_others(timeout: float | None, ticket: int) -> None:
    async with aclosing(Server(upgrades=([b"withdrawn"], 9))) as server:
        async with server.rw().upgradeable as lease, lease.upgrade(timeout=timeout) as alone:
            assert (lease.fencing_token, alone.fencing_token) == (7, 9)
        (first, *terms), (again, *same) = [upgrade.arguments[:4] for upgrade in server.upgrades()]
        assert [int(term) for term in terms[1:]] == [UPGRADE, ticket]
        assert (terms, first) == (same, first) != (same, again), "the token is another"


@pytest.mark.parametrize(("terms", "words", "granted"), [
    ({"acquire_timeout": 0.3}, {}, False), ({"acquire_timeout": 0.3}, {"timeout": 5}, True),
    ({"acquire_timeout": 0.3}, {"timeout": None}, True), ({"acquire_timeout": 5}, {"timeout": 0.3}, False),
    ({}, {}, True),
])  # fmt: skip
async def test_an_upgrade_waits_for_its_time_out_or_that_of_its_lease(
    terms: dict[str, Any], words: dict[str, Any], granted: bool
) -> None:
    async with aclosing(Server(upgrades=(Later(0.6, 9), Later(0.6, 9)))) as server:
        async with server.rw(**terms).upgradeable as lease:
            if granted:
                async with lease.upgrade(**words):
                    assert clock() == pytest.approx(0.6)
                return
            with pytest.raises(RedisTimeoutError):
                async with lease.upgrade(**words):
                    pytest.fail("it took too long")
            assert lease.held


async def test_an_upgrade_of_what_was_downgraded_meanwhile_is_refused_with_that_reason() -> None:
    async with aclosing(Server(upgrades=([b"refused", 0, []],))) as server:
        async with server.rw().upgradeable as lease:
            with pytest.raises(LeaseLostError, match="no longer upgradeable"):
                async with lease.upgrade():
                    pytest.fail("it was refused")
            assert lease.held


async def test_an_upgrade_of_a_lease_that_is_lost_is_refused_with_why_it_was_lost() -> None:
    async with aclosing(Server(upgrades=([b"refused", 0, []],))) as server:
        server.renews = Later(0.5, 0)
        lease = await server.rw(ttl=3).upgradeable.acquire()
        await asyncio.sleep(1.2)  # its renewal is under way
        with pytest.raises(LeaseLostError, match="gone from the server"):
            async with lease.upgrade():
                pytest.fail("it was refused")
        assert not await lease.release()


@pytest.mark.parametrize(("released", "reason"), [(True, "released before"), (False, "gone from the server")])
async def test_a_lease_that_is_over_changes_its_mode_no_more_and_says_why(released: bool, reason: str) -> None:
    async with aclosing(Server()) as server:
        server.renews = 0
        lease = await server.rw(ttl=3).upgradeable.acquire()
        block = lease.upgrade()
        if released:
            await lease.release()
        else:
            assert await lease.wait_lost()
        with pytest.raises(LeaseLostError, match=reason):
            async with block:
                pytest.fail("it is over")
        with pytest.raises(LeaseLostError, match=reason):
            await lease.downgrade()
        assert server.upgrades() == server.runs("modes_downgrade") == []


async def test_a_lease_past_its_longest_hold_can_be_upgraded_for_as_long_as_it_lasts() -> None:
    async with aclosing(Server()) as server:
        async with server.rw(ttl=30, max_hold=20).upgradeable as lease:
            await asyncio.sleep(25)
            async with lease.upgrade() as alone:
                assert alone.held
            assert lease.held


@pytest.mark.parametrize(("ttl", "count"), [(4.0, 3), (100.0, 4)])
async def test_a_downgrade_is_asked_for_within_ten_seconds_or_the_lease(ttl: float, count: int) -> None:
    """Each time twice as patiently. The holder has given up the right to upgrade all the same."""
    async with aclosing(Server(downgrades=(SILENCE,) * 100)) as server:
        lease = await server.rw(ttl=ttl, renew=False).upgradeable.acquire()
        with pytest.raises(RedisTimeoutError):
            await lease.downgrade()
        assert server.times("modes_downgrade") == pytest.approx([0, 1, 3, 7][:count], abs=0.5)
        with pytest.raises(RuntimeError, match="read lease cannot be upgraded"):
            lease.upgrade()
        await lease.release()
