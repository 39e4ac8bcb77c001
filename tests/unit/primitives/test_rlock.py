"""A lock that its holder may take again, in virtual time: what is asked of the server, and who shares which lease."""

import asyncio
import gc
from collections.abc import Callable
from contextlib import aclosing
from contextvars import Context
from typing import Any

import pytest

from aiolocks import LeaseLostError, RLock
from aiolocks._primitives import reentry as _reentry
from tests.support.answering import Answering, Asked
from tests.support.inside import block_loop


class Server(Answering):
    """One that grants each name to whoever asks first, until it is released, or as long as it is renewed."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.renews = True
        self.fence = 0
        self._holders: dict[bytes, bytes] = {}

    def _answer(self, asked: Asked) -> object:
        if asked.what == "SUBSCRIBE":
            return [b"subscribe", asked.words[1], 1]
        if asked.what == "lock_recheck":
            return [1, 5000, 0, 0, 0, []]
        name, token = asked.keys[0], asked.arguments[0]
        if asked.what == "lock_grant":
            if self._holders.setdefault(name, token) != token:
                return [b"busy", 5000, 0] if asked.arguments[3].startswith(b"-") else [b"queued", 1, 5000, 0, 1, 0]
            self.fence += 1
            return self.fence
        if asked.what == "lock_renew":
            return int(self.renews and self._holders.get(name) == token)
        if asked.what == "lock_release":
            return int(self._holders.get(name) == token and bool(self._holders.pop(name)))
        raise AssertionError(asked.what)

    def forget(self) -> None:
        self._holders.clear()

    def verbs(self) -> list[str]:
        return [asked.what.removeprefix("lock_") for asked in self.asked]

    def lock(self, name: str = "orders", **options: Any) -> RLock:
        return RLock(self.client(), name, **options)


async def in_a_child(work: Callable[[], Any]) -> Any:
    return await asyncio.create_task(work())


def stranger(work: Any) -> "asyncio.Task[Any]":
    return asyncio.create_task(work, context=Context())


async def test_locks_of_two_names_or_at_two_servers_have_two_leases() -> None:
    async with aclosing(Server()) as one, aclosing(Server()) as other:
        orders, stock, elsewhere = one.lock("orders"), one.lock("stock"), other.lock("orders")
        async with orders as first, stock as second, elsewhere as third, orders as again, stock as more:
            assert first.token == again.token != second.token == more.token
            assert third.token not in {first.token, second.token}
            assert (first.fencing_token, second.fencing_token, third.fencing_token) == (1, 2, 1)
        assert (one.verbs(), other.verbs()) == (["grant", "grant", "release", "release"], ["grant", "release"])


async def test_a_child_waits_for_another_lock_than_its_parent_has_and_at_another_server() -> None:
    async with aclosing(Server()) as one, aclosing(Server()) as other:
        async with one.lock("orders"):
            for lock in (one.lock("stock"), other.lock("orders")):
                lease = await in_a_child(lock.acquire)
                assert await lease.release()


async def test_a_child_that_would_wait_for_any_of_several_locks_of_its_parent_gets_an_error() -> None:
    async with aclosing(Server()) as server:
        locks = [server.lock(name) for name in ("orders", "stock", "customers")]
        async with locks[0], locks[1], locks[2]:
            for lock in locks:
                with pytest.raises(RuntimeError, match="started this one"):
                    await in_a_child(lock.acquire)


async def test_a_child_does_not_wait_for_a_parent_whose_lease_is_lost_but_not_released() -> None:
    async with aclosing(Server()) as server:
        lost = await server.lock(ttl=3, renew=False).acquire()
        assert await lost.wait_lost()
        server.forget()
        lease = await in_a_child(server.lock().acquire)
        assert lease.held
        assert await lease.release()
        assert not await lost.release()
        async with server.lock(ttl=3, renew=False, on_lost="flag") as lost:
            assert await lost.wait_lost()
            server.forget()
            assert await (await in_a_child(server.lock().acquire)).release()


async def test_a_task_in_a_block_with_a_lost_lease_does_not_acquire_it_again_after_other_holders() -> None:
    async with aclosing(Server()) as server:
        with pytest.raises(LeaseLostError):
            async with server.lock(ttl=3, renew=False, on_lost="flag") as lost:
                await lost.wait_lost()
                server.forget()
                await (await stranger(server.lock().acquire())).release()
                gc.collect()
                await server.lock().acquire()


@pytest.mark.parametrize("how", ["block", "hold", "inner block", "inner hold"])
async def test_a_block_releases_its_own_hold_and_nothing_else_does_by_name(how: str) -> None:
    async with aclosing(Server()) as server:
        lock = server.lock()
        outer = await lock.acquire() if how.startswith("inner") else None
        if outer is not None:
            await lock.acquire()
            await lock.release()
        async with lock.hold() if how.endswith("hold") else lock as lease:
            if outer is not None:
                await lock.release()
                assert not outer.held
            with pytest.raises(RuntimeError, match="holds no lease to release"):
                await lock.release()
            assert lease.held
        assert server.verbs() == ["grant", "release"]


async def test_a_hold_says_why_it_is_lost_also_before_that_was_noted() -> None:
    async with aclosing(Server()) as server:
        lock = server.lock(ttl=30, on_lost="flag")
        outer, inner = await lock.acquire(), await lock.acquire()
        block_loop(30)
        with pytest.raises(LeaseLostError, match="not renewed within its 30 s TTL"):
            inner.check()
        await outer.release()
        await inner.release()


async def test_a_hold_says_what_the_server_said_when_it_was_lost_by_another_one() -> None:
    async with aclosing(Server()) as server:
        lock = server.lock(ttl=30)
        outer, inner = await lock.acquire(), await lock.acquire()
        server.forget()
        assert await inner.renew() is False
        for lease in (outer, inner):
            with pytest.raises(LeaseLostError, match="gone from the server"):
                lease.check()
        assert not await outer.release()
        assert not await inner.release()


async def test_a_block_in_another_goes_on_after_a_loss_if_it_says_so() -> None:
    async with aclosing(Server()) as server:
        async with server.lock(ttl=3, on_lost="flag") as outer, server.lock(on_lost="flag") as inner:
            server.renews = False
            await asyncio.sleep(60)
            assert inner.lost
            assert outer.lost


async def test_the_end_of_an_unrenewed_lease_is_a_warning_in_a_block_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with aclosing(Server()) as server:
        lease = await server.lock("invoices", ttl=10, renew=False).acquire()
        async with server.lock(ttl=10, renew=False, on_lost="flag") as in_block:
            await asyncio.sleep(60)
            assert in_block.lost
            assert lease.lost
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["rlock 'orders'"]
        await lease.release()


async def test_a_holder_of_an_older_lease_of_a_name_gets_no_share_of_the_newest() -> None:
    """The older one was lost on the server, and somebody else has been granted a newer one since."""
    async with aclosing(Server()) as server:
        async with server.lock(ttl=30, on_lost="flag") as older:
            server.forget()
            newer = await stranger(server.lock().acquire())
            async with server.lock() as again:
                assert again.token == older.token
            assert newer.held
            await newer.release()


async def test_a_released_lease_is_forgotten_at_once() -> None:
    async with aclosing(Server()) as server:
        lock = server.lock()
        gc.collect()
        gc.disable()
        before = len(_reentry._leases)  # of tests whose tracebacks are kept
        try:
            for _ in range(3):
                async with lock, lock:
                    assert len(_reentry._leases) == before + 1
            assert len(_reentry._leases) == before
        finally:
            gc.enable()
