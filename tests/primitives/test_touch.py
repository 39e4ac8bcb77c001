"""A lease between requests: handed off, touched by any process under its text, in the end dropped or adopted (W27)."""

import asyncio
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from aiolocks import HierarchicalLock, LeaseLostError, MultiLock
from tests.support.primitives import SHORT, Make, as_a_stranger, exclusive_handed_on_rows, free, handed_on_rows, queued


@handed_on_rows
async def test_a_touch_by_another_process_extends_the_lease_under_the_same_text(make: Make, stranger: Redis) -> None:
    lease = await make(ttl=SHORT).acquire()
    text = await lease.hand_off()
    there = make(client=stranger)
    assert await there.touch(text, ttl=timedelta(seconds=20)) == lease.fencing_token
    assert await make().touch(text.encode(), 0.1) == lease.fencing_token
    assert await make().touch(text) == lease.fencing_token
    await asyncio.sleep(1.5 * SHORT)
    assert all(holder.remaining > 10 for holder in await make().holders()), "it was shortened"
    adopted = await there.adopt(text)
    assert adopted.fencing_token > lease.fencing_token
    assert await adopted.release()
    await free(make())


@exclusive_handed_on_rows
async def test_a_lease_that_is_no_longer_touched_goes_to_the_next_waiter(make: Make, stranger: Redis) -> None:
    text = await (await make(ttl=60).acquire()).hand_off(ttl=0.1)  # the TTL in the text is shorter than what is left
    await make().drop(text)
    text = await (await make(ttl=0.2).acquire()).hand_off(ttl=timedelta(seconds=0.4))
    waiting = as_a_stranger(make(client=stranger).acquire(timeout=10))
    await queued(make(), 1)
    began = asyncio.get_running_loop().time()
    assert await make().touch(text) is not None
    fence = await make().touch(text)
    next_one = await waiting
    assert asyncio.get_running_loop().time() - began > 0.35, "the TTL in the text was not asked for again"
    assert fence is not None
    assert next_one.fencing_token > fence
    assert await make().touch(text) is None
    assert next_one.held
    assert await next_one.release()


@exclusive_handed_on_rows
async def test_a_drop_ends_it_at_once_and_only_once(make: Make, stranger: Redis) -> None:
    text = await (await make(min_hold=60).acquire()).hand_off()
    waiting = as_a_stranger(make(client=stranger).acquire(timeout=10))
    await queued(make(), 1)
    assert await make(min_hold=60).touch(text) is not None
    assert await make(min_hold=60).drop(text.encode()) is True
    next_one = await waiting
    for lock in (make(), make(client=stranger)):
        assert await lock.drop(text) is False
        assert await lock.touch(text, ttl=60) is None
        with pytest.raises(LeaseLostError):
            await lock.adopt(text)
    assert next_one.held
    assert await next_one.release()


@handed_on_rows
async def test_an_adoption_ends_the_text(make: Make, stranger: Redis) -> None:
    text = await (await make().acquire()).hand_off()
    adopted = await make(client=stranger).adopt(text)
    for lock in (make(), make(client=stranger)):
        assert await lock.touch(text) is None
        assert await lock.drop(text) is False
    assert await adopted.renew()
    second = await adopted.hand_off()
    assert await make().touch(text) is None
    assert await make().drop(text) is False, "a late drop of the first text"
    assert await make().touch(second) == adopted.fencing_token
    assert await make().drop(second) is True
    await free(make())


@handed_on_rows
async def test_revoking_ends_it_at_once_and_the_next_touch_returns_none(make: Make, stranger: Redis) -> None:
    text = await (await make(ttl=60).acquire()).hand_off()
    assert await make().touch(text) is not None
    assert await make(client=stranger).revoke(timeout=0) == (), "no process holds it"
    assert await make().touch(text) is None
    assert await make().drop(text) is False
    assert not await make().locked()
    text = await (await make(ttl=60).acquire()).hand_off()
    await make(client=stranger).revoke(force=True)
    assert await make().touch(text) is None
    assert not await make().locked()


@handed_on_rows
async def test_of_many_calls_at_once_one_ends_the_lease(make: Make, stranger: Redis) -> None:
    text = await (await make().acquire()).hand_off()
    locks = [make(client=client) for client in (None, stranger) for _ in range(4)]
    assert sum(await asyncio.gather(*(lock.drop(text) for lock in locks))) == 1
    await free(make())


async def test_when_one_of_several_names_is_gone_all_are_dropped(client: Redis, stranger: Redis) -> None:
    names = ["a", "b", "c"]
    lock = MultiLock(client, names)
    for gone in names:
        for taken in (False, True):
            text = await (await lock.acquire()).hand_off(ttl=60)
            await client.delete(f"aiolocks:multi:{{{gone}}}")
            another = await MultiLock(stranger, [gone]).try_acquire() if taken else None
            assert await MultiLock(stranger, names).touch(text) is None
            rest = MultiLock(client, [name for name in names if name != gone])
            assert not await rest.locked()
            if another is not None:
                assert await another.release(), "that of another holder was ended too"
    text = await (await lock.acquire()).hand_off(ttl=60)
    await client.delete("aiolocks:multi:{a}")
    assert await MultiLock(stranger, names).drop(text) is False, "it was gone before"
    assert not await lock.locked()


async def test_when_a_level_of_a_path_is_revoked_all_are_dropped(client: Redis, stranger: Redis) -> None:
    row, table = HierarchicalLock(client, "shop/orders/42"), HierarchicalLock(stranger, "shop/orders")
    for path in (row.read, row.write):
        text = await (await path.acquire()).hand_off(ttl=60)
        assert await path.touch(text) is not None
        assert await table.write.try_acquire() is None
        await table.write.revoke(timeout=0)
        assert await path.touch(text) is None
        for level in (row.write, table.write, HierarchicalLock(client, "shop").write):
            assert await (await level.acquire(timeout=1)).release()
