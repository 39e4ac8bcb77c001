"""Handing a lease on: offered by one process, adopted by another, once, and nobody in between."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from aiolocks import AcquireTimeoutError, HierarchicalLock, Lease, LeaseLostError, Lock, MultiLock, RLock, RWLock
from tests.support import clients, primitives
from tests.support.heard import hearing
from tests.support.inside import secret_of
from tests.support.primitives import SHORT, Make, Row, exclusive_handed_on_rows, free, handed_on_rows, scripts_run


def uses(lock: primitives.Acquirable) -> list[Callable[[Any], Awaitable[object]]]:
    return [lock.adopt, lock.touch, lock.drop]


@handed_on_rows
async def test_another_process_goes_on_with_it(make: Make, stranger: Redis) -> None:
    lease = await make(ttl=SHORT).acquire()
    text = await lease.hand_off()
    assert (lease.held, lease.lost, lease.remaining()) == (False, False, 0.0)
    assert await lease.wait_lost() is False
    assert await lease.release() is False
    assert await lease.renew() is False
    with pytest.raises(LeaseLostError):
        lease.check()
    with pytest.raises(LeaseLostError):
        await lease.hand_off()
    adopted = await make(client=stranger, ttl=primitives.STEADY).adopt(text)
    assert adopted.fencing_token > lease.fencing_token
    assert adopted.token != lease.token
    assert await adopted.renew()
    await asyncio.sleep(1.5 * primitives.STEADY)
    assert adopted.held, "nobody renewed it"
    assert await adopted.release()
    await free(make())


@exclusive_handed_on_rows
async def test_no_waiter_comes_in_between(make: Make, stranger: Redis) -> None:
    lease = await make().acquire()
    waiting = primitives.as_a_stranger(make(client=stranger).acquire())
    await primitives.queued(make(), 1)
    text = await lease.hand_off()
    assert not waiting.done()
    adopted = await make(client=stranger).adopt(text)
    assert not waiting.done()
    assert await adopted.release()
    next_one = await waiting
    assert next_one.fencing_token > adopted.fencing_token
    assert await next_one.release()


@handed_on_rows
async def test_an_adopted_lease_of_a_task_that_failed_lapses(make: Make) -> None:
    """Nothing of the library may keep the task, whose traceback refers to the lease."""
    text = await (await make(ttl=SHORT).acquire()).hand_off()

    async def job() -> None:
        _lease = await make(ttl=SHORT).adopt(text)
        raise ValueError

    async def until_it_has_lapsed() -> None:
        await asyncio.gather(job(), return_exceptions=True)
        await asyncio.sleep(2.5 * SHORT)

    with pytest.warns(ResourceWarning, match="dropped"):
        await until_it_has_lapsed()
    await free(make())


async def test_the_release_of_an_adopted_lease_of_several_names_asks_once_for_each(redis: Redis) -> None:
    names = [f"{number}" for number in range(5)]
    text = await (await MultiLock(redis, names).acquire()).hand_off()
    lease = await MultiLock(redis, names).adopt(text)
    before = await scripts_run(redis)
    assert await lease.release()
    await asyncio.sleep(0.1)  # what is sent in the background has arrived
    assert await scripts_run(redis) - before == len(names)


@handed_on_rows
async def test_a_block_whose_lease_was_handed_off_ends_without_releasing_it(make: Make) -> None:
    lock = make()
    async with lock as lease:
        text = await lease.hand_off()
        lost = asyncio.ensure_future(lease.wait_lost())
        assert await lost is False
    adopted = await lock.adopt(text)
    assert await adopted.release()
    async with lock.hold() as lease, asyncio.timeout(10):
        text = await lease.hand_off()
    assert await (await lock.adopt(text)).release()


@handed_on_rows
async def test_of_many_processes_that_adopt_one_gets_the_lease(make: Make, stranger: Redis) -> None:
    text = await (await make().acquire()).hand_off()
    adopters = [make(client=client) for client in (None, stranger) for _ in range(5)]
    answers = await asyncio.gather(*(one.adopt(text) for one in adopters), return_exceptions=True)
    (adopted,) = [answer for answer in answers if isinstance(answer, Lease)]
    assert all(isinstance(answer, LeaseLostError) for answer in answers if answer is not adopted)
    assert adopted.held
    assert await adopted.renew()
    assert await adopted.release()
    with pytest.raises(LeaseLostError):
        await make().adopt(text)


@handed_on_rows
async def test_a_lease_that_is_over_is_not_handed_off(make: Make) -> None:
    lease = await make().acquire()
    await lease.release()
    with pytest.raises(LeaseLostError):
        await lease.hand_off()
    lease = await make(ttl=0.2, renew=False).acquire()
    await asyncio.sleep(0.25)
    with pytest.raises(LeaseLostError):
        await lease.hand_off()
    lease = await make().acquire()
    await make.take_away()
    with pytest.raises(LeaseLostError):
        await lease.hand_off()


@handed_on_rows
async def test_a_bad_ttl_changes_nothing(make: Make) -> None:
    async with make() as lease:
        for bad in (0, -1, float("nan")):
            with pytest.raises(ValueError, match="ttl"):
                await lease.hand_off(ttl=bad)
        assert await lease.renew()
        text = await lease.hand_off()
    for bad in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="ttl"):
            await make().touch(text, ttl=bad)
    assert await make().drop(text)


@handed_on_rows
async def test_a_text_of_another_kind_name_or_prefix_is_refused(row: Row, make: Make, client: Redis) -> None:
    text = await (await make().acquire()).hand_off()
    others = [make("of another name"), make(prefix="other:")]
    for other in primitives.rows_where(lambda kind: kind.handed_on and kind is not row.kind).values():
        others += [other.make(client, "orders"), other.make(client, "of another name")]
    assert len(others) > 10
    for use in (use for wrong in others for use in uses(wrong)):
        with pytest.raises(ValueError, match="another kind") as caught:
            await use(text)
        assert text not in str(caught.value)
    adopted = await make().adopt(text.encode())
    assert await adopted.release()


@handed_on_rows
async def test_a_broken_text_is_refused(make: Make) -> None:
    text = await (await make().acquire()).hand_off()
    flipped = text[:-9] + ("A" if text[-9] != "A" else "B") + text[-8:]
    for use in uses(make()):
        for broken in ("", text[:-4], text[1:], flipped, text + "AAAA", "lease1.\u00e9", "x" * 100):
            with pytest.raises(ValueError, match="hand_off") as caught:
                await use(broken)
            assert caught.value.__context__ is None
            assert not broken or broken not in str(caught.value)
        with pytest.raises(TypeError):
            await use(None)
    assert await (await make().adopt(text)).release()


@handed_on_rows
async def test_a_hand_off_waits_for_a_guard_and_the_adopter_guards_again(make: Make, row: Row, client: Redis) -> None:
    if clients.CHOSEN == "cluster" and row.slots > 1:
        pytest.skip("on a Cluster, names in different slots cannot guard")
    counter = row.tag + "counted"
    lock = make()
    lease = await lock.acquire()
    guarding = asyncio.ensure_future(lease.guard(("INCR", counter)))
    await asyncio.sleep(0)
    handing = asyncio.ensure_future(lease.hand_off())
    await asyncio.sleep(0)
    handing.cancel()
    await asyncio.wait([handing])
    assert lease.held, "the hand-off still waited for the guard"
    text = await lease.hand_off()
    assert await guarding == [1]
    with pytest.raises(LeaseLostError):
        await lease.guard(("INCR", counter))
    adopted = await lock.adopt(text)
    assert (await adopted.guard(("INCR", counter)), await adopted.guard(("INCR", counter))) == ([2], [3])
    assert await adopted.release()
    await client.delete(counter)


@pytest.mark.rest
@handed_on_rows
async def test_a_cancelled_hand_off_or_adoption_leaves_nothing_held(make: Make) -> None:
    for turns in range(6):
        lease = await make().acquire()
        handing = asyncio.ensure_future(lease.hand_off())
        for _ in range(turns):
            await asyncio.sleep(0)
        handing.cancel()
        answer = (await asyncio.gather(handing, return_exceptions=True))[0]
        assert turns or lease.held, "it had not begun"
        if isinstance(answer, str):
            lease = await make().adopt(answer)
        await lease.release()
        await free(make())
        text = await (await make(ttl=SHORT).acquire()).hand_off()
        adopting = asyncio.ensure_future(make().adopt(text))
        for _ in range(turns):
            await asyncio.sleep(0)
        adopting.cancel()
        (adopted,) = await asyncio.gather(adopting, return_exceptions=True)
        if isinstance(adopted, Lease):
            await adopted.release()
        await free(make())


@handed_on_rows
async def test_a_lease_that_is_handed_off_ends_once_for_its_listeners_whether_it_is_adopted_or_not(make: Make) -> None:
    with hearing() as heard:
        text = await (await make(ttl=SHORT).acquire()).hand_off()
        assert await make().touch(text)
        assert await make().drop(text)
        assert heard.kinds("renewed") == ["acquired", "released"]
    await free(make())
    with hearing() as heard:
        lease = await make().acquire()
        handing = asyncio.ensure_future(lease.hand_off())
        await asyncio.sleep(0)
        handing.cancel()
        await asyncio.wait([handing])
        assert handing.cancelled()
        assert heard.kinds("renewed") == ["acquired", "released"]
    await free(make())
    with hearing() as heard:
        lease = await make().acquire()
        await make.take_away()
        with pytest.raises(LeaseLostError):
            await lease.hand_off()
        assert heard.kinds("renewed") == ["acquired", "lost"]
    with hearing() as heard:
        lease = await make().acquire()
        with pytest.raises(AcquireTimeoutError, match="revoked"):
            await make().revoke(timeout=0)
        with pytest.raises(LeaseLostError) as caught:
            await lease.hand_off()
        assert (caught.value.reason, heard.kinds("renewed")) == ("revoked", ["acquired", "revoked"])
    await free(make())


@exclusive_handed_on_rows
async def test_min_hold_of_an_adopted_lease_counts_from_the_adoption(make: Make) -> None:
    lease = await make(min_hold=60).acquire()
    text = await lease.hand_off()
    adopted = await make(min_hold=1.0).adopt(text)
    assert await adopted.release()
    assert await primitives.as_a_stranger(make().try_acquire()) is None
    await free(make())
    await make.take_away()


@pytest.mark.parametrize("row", [row for row in primitives.EVERY_ROW if not row.kind.handed_on], ids=str, indirect=True)
async def test_the_lease_of_a_redlock_stays_where_it_is(make: Make, client: Redis) -> None:
    lock = make()
    lease = await lock.acquire()
    with pytest.raises(TypeError, match="several servers"):
        await lease.hand_off()
    assert lease.held
    for use in uses(lock):
        with pytest.raises(TypeError, match="several servers"):
            await use("lease1.x")
    assert await lease.release()


async def test_an_rlock_is_handed_on_when_it_is_held_once(client: Redis) -> None:
    lock = RLock(client, "again")
    async with lock as lease:
        async with lock as inner:
            for each in (lease, inner):
                with pytest.raises(RuntimeError, match="2 times"):
                    await each.hand_off()
            assert inner.held
        text = await lease.hand_off()
        assert not lease.held
    adopted = await lock.adopt(text)
    async with lock.hold(timeout=5) as again:
        assert again.fencing_token == adopted.fencing_token, "its task is the holder"
    assert await adopted.release()
    assert not await lock.locked()


async def test_an_upgradeable_lease_is_handed_on_while_it_is_not_upgraded(client: Redis) -> None:
    rw = RWLock(client, "catalogue")
    async with rw.upgradeable as lease:
        async with lease.upgrade() as alone:
            for each in (lease, alone):
                with pytest.raises(RuntimeError, match="upgrade"):
                    await each.hand_off()
                assert each.held
        text = await lease.hand_off()
    for other in (rw.read, rw.write):
        with pytest.raises(ValueError, match="mode"):
            await other.adopt(text)
    adopted = await rw.upgradeable.adopt(text)
    async with rw.read, adopted:
        pass
    adopted = await rw.upgradeable.adopt(await (await rw.upgradeable.acquire()).hand_off())
    async with adopted.upgrade() as alone:
        assert alone.held
    await adopted.downgrade()
    readers = await rw.read.adopt(await adopted.hand_off())
    assert await readers.release()


async def test_when_one_of_several_names_is_gone_all_are_released(client: Redis, stranger: Redis) -> None:
    lock = MultiLock(client, ["a", "b", "c"])
    for gone in "abc":
        text = await (await lock.acquire()).hand_off(ttl=60)
        await client.delete(f"aiolocks:multi:{{{gone}}}")
        with pytest.raises(LeaseLostError):
            await MultiLock(stranger, ["a", "b", "c"]).adopt(text)
        if gone == "a":  # it is asked first, and alone: of two adopters one gets all
            for name in "bc":
                await client.delete(f"aiolocks:multi:{{{name}}}")
        assert not await lock.locked()
        lease = await lock.acquire()
        await client.delete(f"aiolocks:multi:{{{gone}}}")
        with pytest.raises(LeaseLostError):
            await lease.hand_off(ttl=60)
        assert not await lock.locked()


async def test_a_multilock_has_a_fencing_token_of_each_name_and_a_path_one_for_all_levels(client: Redis) -> None:
    lock = MultiLock(client, ["a", "b"])
    lease = await lock.acquire()
    before = dict(lease.fencing_tokens)
    text = await lease.hand_off()
    assert await lock.touch(text) == lease.fencing_token == max(before.values())
    adopted = await lock.adopt(text)
    assert all(adopted.fencing_tokens[name] > fence for name, fence in before.items())
    assert await adopted.release()
    path = HierarchicalLock(client, "shop/orders/42").write
    adopted = await path.adopt(await (await path.acquire()).hand_off())
    assert set(adopted.fencing_tokens.values()) == {adopted.fencing_token}
    assert await adopted.release()


async def test_no_line_of_the_log_has_the_text_or_its_secret(client: Redis, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    lock = Lock(client, "orders:42")
    lease = await lock.acquire()
    text = await lease.hand_off()
    secret = secret_of(text)
    assert lease.token not in text
    assert secret not in lease.token
    adopted = await lock.adopt(text)
    assert secret not in adopted.token
    with pytest.raises(LeaseLostError) as caught:
        await lock.adopt(text)
    shown = repr(lease) + repr(adopted) + str(caught.value)
    assert text not in shown
    assert secret not in shown
    assert await adopted.release()
    assert "orders:42" in caplog.text
    assert text not in caplog.text
    assert secret not in caplog.text
