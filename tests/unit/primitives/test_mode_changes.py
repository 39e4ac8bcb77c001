"""Leases that change their mode, in virtual time: what is asked of the server, for how long, and what is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.exceptions import TimeoutError as RedisTimeoutError

from aiolocks import LeaseLostError, RWLock
from aiolocks._core.modes import FRONT, SHARED, UPGRADE, UPGRADEABLE
from aiolocks._core.timing import deadline
from tests.support.answering import SILENCE, Answering, Asked, Later
from tests.support.jumping import jumping
from tests.support.virtual import clock


class Server:
    """One that grants whatever is asked for, but answers upgrades and downgrades with what comes next."""

    def __init__(self, upgrades: tuple[object, ...] = (9,), downgrades: tuple[object, ...] = ([1],)) -> None:
        self._upgrades, self._downgrades = list(upgrades), list(downgrades)
        self.renews: object = 1
        self.pool = Answering(self._answer)

    def _answer(self, asked: Asked) -> object:
        if asked.what == "modes_renew":
            return 1 if b"+" in asked.arguments[0] else self.renews
        if asked.what == "semaphore_renew_many":
            return [1 if b"+" in token else self.renews for token in asked.arguments[::2]]
        if asked.what == "modes_grant":
            return self._upgrades.pop(0) if int(asked.arguments[2]) == UPGRADE else 7
        return self._downgrades.pop(0) if asked.what == "modes_downgrade" else 1

    def rw(self, **options: Any) -> RWLock:
        return RWLock(self.pool.client(), "catalogue", **options)

    def upgrades(self) -> list[Asked]:
        return [asked for asked in self.pool.runs("modes_grant") if int(asked.arguments[2]) == UPGRADE]


@asynccontextmanager
async def serving(**answers: Any) -> AsyncIterator[Server]:
    server = Server(**answers)
    try:
        yield server
    finally:
        await server.pool.close()


# Upgrades.


@jumping
async def test_what_cannot_be_upgraded_says_so_whatever_else_is_wrong() -> None:
    async with serving() as server:
        anyhow: Any = "soon"
        reader = await server.rw().read.acquire()
        with pytest.raises(RuntimeError, match="a read lease cannot be upgraded"):
            reader.upgrade(timeout=-1)
        upgradeable = await server.rw().upgradeable.acquire()
        with pytest.raises(ValueError, match="timeout must be >= 0"):
            upgradeable.upgrade(timeout=-1)
        with pytest.raises(TypeError, match="timeout must be a number of seconds"):
            upgradeable.upgrade(timeout=anyhow)
        await reader.release()
        await upgradeable.release()


@pytest.mark.parametrize(
    ("timeout", "ticket"), [(0, ~FRONT), (0.0, ~FRONT), (0.5, FRONT), (1, FRONT), (5, FRONT), (None, FRONT)]
)
@jumping
async def test_an_upgrade_is_asked_for_before_all_others_and_waits_unless_its_timeout_is_none_at_all(
    timeout: float | None, ticket: int
) -> None:
    async with serving() as server:
        async with server.rw().upgradeable as lease, lease.upgrade(timeout=timeout) as alone:
            assert (lease.fencing_token, alone.fencing_token) == (7, 9)
        ((_, _, mode, asked, *_),) = [upgrade.arguments for upgrade in server.upgrades()]
        assert (int(mode), int(asked)) == (UPGRADE, ticket)


@pytest.mark.parametrize(("terms", "words", "granted"), [
    ({"acquire_timeout": 0.3}, {}, False),
    ({"acquire_timeout": 0.3}, {"timeout": 5}, True),
    ({"acquire_timeout": 0.3}, {"timeout": None}, True),
    ({"acquire_timeout": 5}, {"timeout": 0.3}, False),
    ({}, {}, True),
])  # fmt: skip
@jumping
async def test_an_upgrade_waits_for_its_time_out_or_else_for_that_of_its_lease(
    terms: dict[str, Any], words: dict[str, Any], granted: bool
) -> None:
    async with serving(upgrades=(Later(0.6, 9), Later(0.6, 9))) as server:
        async with server.rw(**terms).upgradeable as lease:
            if granted:
                async with lease.upgrade(**words):
                    assert clock() == pytest.approx(0.6)
                return
            with pytest.raises(RedisTimeoutError):
                async with lease.upgrade(**words):
                    pytest.fail("it took too long")
            assert lease.held


@jumping
async def test_an_upgrade_s_token_begins_with_that_of_its_lease_by_which_the_server_knows_it() -> None:
    async with serving() as server:
        async with server.rw().upgradeable as lease, lease.upgrade() as alone:
            stem, plus, own = alone.token.partition("+")
            assert (stem, plus) == (lease.token, "+")
            assert len(own) >= 32


@jumping
async def test_an_upgrade_of_what_was_downgraded_meanwhile_is_refused_with_that_reason() -> None:
    async with serving(upgrades=([b"refused", 0, []],)) as server:
        async with server.rw().upgradeable as lease:
            with pytest.raises(LeaseLostError, match="no longer upgradeable"):
                async with lease.upgrade():
                    pytest.fail("it was refused")
            assert lease.held


@jumping
async def test_an_upgrade_of_a_lease_that_is_lost_is_refused_with_why_it_was_lost() -> None:
    async with serving(upgrades=([b"refused", 0, []],)) as server:
        server.renews = Later(0.5, 0)
        lease = await server.rw(ttl=3).upgradeable.acquire()
        await asyncio.sleep(1.2)  # its renewal is under way
        with pytest.raises(LeaseLostError, match="gone from the server"):
            async with lease.upgrade():
                pytest.fail("it was refused")
        assert not await lease.release()


@pytest.mark.parametrize(("released", "reason"), [(True, "released before"), (False, "gone from the server")])
@jumping
async def test_a_lease_that_is_over_changes_its_mode_no_more_and_says_why(released: bool, reason: str) -> None:
    async with serving() as server:
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
        assert server.upgrades() == server.pool.runs("modes_downgrade") == []


@jumping
async def test_an_upgrade_is_renewed_until_its_lease_would_not_be_any_more() -> None:
    async with serving() as server:
        async with server.rw(ttl=3, max_hold=20, on_lost="flag").upgradeable as lease:
            await asyncio.sleep(8)
            async with lease.upgrade() as alone:
                assert await alone.wait_lost()
                asked = [*server.pool.runs("modes_renew"), *server.pool.runs("semaphore_renew_many")]
                renewals = sorted(one.at for one in asked if alone.token.encode() in one.arguments[::2])
                assert 20 - 1.2 < renewals[-1] <= 20
                assert clock() == pytest.approx(deadline(renewals[-1], 3))


@jumping
async def test_a_lease_past_its_longest_hold_can_be_upgraded_for_as_long_as_it_lasts() -> None:
    async with serving() as server:
        async with server.rw(ttl=30, max_hold=20).upgradeable as lease:
            await asyncio.sleep(25)
            async with lease.upgrade() as alone:
                assert alone.held
            assert lease.held


# Downgrades.


@jumping
async def test_a_downgrade_names_the_mode_and_the_session_for_grants() -> None:
    async with serving() as server:
        async with server.rw().write as lease:
            await lease.downgrade()
        ((token, mode, *waiter),) = [asked.arguments for asked in server.pool.runs("modes_downgrade")]
        assert (token.decode(), int(mode), len(waiter)) == (lease.token, SHARED, 3)


@jumping
async def test_a_downgrade_whose_answer_was_lost_is_asked_for_again() -> None:
    async with serving(downgrades=(SILENCE, [1])) as server:
        async with server.rw().write as lease:
            await lease.downgrade()
            assert lease.held
        assert len({asked.arguments[0] for asked in server.pool.runs("modes_downgrade")}) == 1


@pytest.mark.parametrize(("ttl", "count"), [(4.0, 3), (100.0, 4)])
@jumping
async def test_a_downgrade_is_asked_for_within_ten_seconds_or_as_long_as_the_lease_lasts(
    ttl: float, count: int
) -> None:
    """Each time twice as patiently."""
    async with serving(downgrades=(SILENCE,) * 100) as server:
        lease = await server.rw(ttl=ttl, renew=False).write.acquire()
        with pytest.raises(RedisTimeoutError):
            await lease.downgrade()
        assert server.pool.times("modes_downgrade") == pytest.approx([0, 1, 3, 7][:count], abs=0.5)
        await lease.release()


@jumping
async def test_a_holder_whose_downgrade_failed_has_given_up_the_right_to_upgrade() -> None:
    async with serving(downgrades=(SILENCE,) * 100) as server:
        lease = await server.rw(ttl=100).upgradeable.acquire()
        with pytest.raises(RedisTimeoutError):
            await lease.downgrade()
        with pytest.raises(RuntimeError, match="read lease cannot be upgraded"):
            lease.upgrade()
        await lease.release()


@jumping
async def test_a_downgrade_of_what_the_server_has_lost_is_a_loss() -> None:
    async with serving(downgrades=([0],)) as server:
        lease = await server.rw().write.acquire()
        with pytest.raises(LeaseLostError, match="gone from the server"):
            await lease.downgrade()
        assert lease.lost


@pytest.mark.parametrize("mode", ["read", "write", "upgradeable"])
@jumping
async def test_each_mode_is_asked_for_by_its_number(mode: str) -> None:
    async with serving() as server:
        async with getattr(server.rw(), mode):
            pass
        (asked,) = server.pool.runs("modes_grant")
        assert int(asked.arguments[2]) == {"read": SHARED, "upgradeable": UPGRADEABLE, "write": 6}[mode]
