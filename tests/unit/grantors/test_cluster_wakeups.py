"""How the waiters of a Cluster's names are told of their turns, in virtual time: by the node that has the name."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.exceptions import ClusterDownError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import Lock, MultiLock, Semaphore
from aiolocks._core.keys import SLOTS, Keys, slot_of
from aiolocks._engine.request import Request
from aiolocks._grantors.session import Session
from aiolocks._redis.cluster import Router
from tests.support.answering import SILENCE, Asked, Later
from tests.support.answering_nodes import HOST, Node, Nodes
from tests.support.virtual import clock

BASE = b"aiolocks:lock:{orders}"


class Busy(Nodes):
    """All names are at the second of three nodes, held for hours; *old* nodes lack sharded channels."""

    def __init__(self) -> None:
        super().__init__(1, 2, 3, does=self._does)
        self.owners = [2] * SLOTS
        self.finds = 1
        self.old = False

    def session(self) -> Session:
        return Session.of(self.client.nodes_manager)

    def rechecks(self, base: bytes, since: float) -> int:
        """Return how often it was asked how those stand who wait for a name."""
        asked = [*self[2].runs("lock_recheck"), *self[2].runs("semaphore_recheck")]
        return sum(each.keys[0] == base and each.at >= since for each in asked)

    def _does(self, node: Node, asked: Asked) -> object:
        found = self.finds if node.port in self.owners else 0
        match asked.what:
            case "lock_grant" | "semaphore_grant":
                owns = self.owners[slot_of(asked.keys[0])] == node.port
                return [b"queued", 1, 3_600_000, 0, found, 0] if owns else self.moved(asked.keys[0])
            case "lock_recheck" | "semaphore_recheck":
                waiting = [1] * (len(asked.arguments) - 1)
                return [found, 3_600_000, 0, 0 if found else 1, waiting, 0, 5]
            case "semaphore_resize":
                return [1] if node.port == 2 else self.moved(asked.keys[0])
            case "SUBSCRIBE" | "SSUBSCRIBE":
                if self.old:
                    return ResponseError("unknown command `SSUBSCRIBE`, with args beginning with: `orders`, ")
                return [asked.what.lower().encode(), asked.words[1], 1]
            case "PUBSUB":
                return [asked.words[2], found]
            case _:
                return 1


async def test_even_the_first_request_names_the_channels_of_the_slots() -> None:
    """With others, a first `resize` found none of the waiters: each looked for itself, a second later."""
    nodes = Busy()
    await Semaphore(nodes.client, "orders", 1).resize(2)
    [asked] = nodes[2].runs("semaphore_resize")
    assert asked.asker[2] == b"aiolocks:wake:{"
    await asyncio.sleep(1)


async def test_a_waiter_that_polls_on_a_cluster_is_woken_again_once_the_node_of_the_name_finds_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "aiolocks")
    nodes = Busy()
    session = nodes.session()
    grantors = [session.grantor(Keys("aiolocks:", "lock", f"{number}")) for number in range(4)]
    nodes.finds = 0
    asked = [grantor.grant(Request(30.0, 1, wait=True)) for grantor in grantors]
    await asyncio.sleep(5)
    [polling] = [listening for listening in session.servers.wakeups if listening.polling]
    assert caplog.text.count("tried again in 1 s") == 1
    nodes.finds = 1
    await asyncio.sleep(6)
    assert not polling.polling
    assert all(polling.subscriber.listening(grantor.channel(), clock()) for grantor in grantors)
    assert not any(future.done() for future in asked)
    session.close()
    await asyncio.sleep(0)


async def test_waiters_poll_on_a_cluster_without_sharded_channels(caplog: pytest.LogCaptureFixture) -> None:
    nodes = Busy()
    nodes.old, nodes.finds = True, 0
    session = nodes.session()
    asked = session.grantor(Keys("aiolocks:", "lock", "orders")).grant(Request(30.0, 1, wait=True))
    since = clock()
    await asyncio.sleep(10)
    assert nodes.rechecks(BASE, since) >= 30
    assert "older than Redis 7" in caplog.text
    subscribed = [each for each in nodes[2].asked if each.what == "SSUBSCRIBE"]
    assert len(subscribed) <= 4, "tried less and less often"
    assert not asked.done()
    session.close()
    await asyncio.sleep(0)


async def test_names_with_one_channel_are_all_looked_after_and_it_is_left_with_the_last() -> None:
    """A lock and a semaphore of one name, or the paths below one root."""
    nodes = Busy()
    session = nodes.session()
    grantors = [session.grantor(Keys("aiolocks:", kind, "orders")) for kind in ("lock", "semaphore")]
    requests = [Request(30.0, 1, wait=True) for _ in grantors]
    bases = [b"aiolocks:lock:{orders}", b"aiolocks:semaphore:{orders}"]
    for grantor, request in zip(grantors, requests, strict=True):
        session.context.tokens[request.token] = request
        await asyncio.wait([grantor.grant(request)], timeout=0.3)
    [listening] = [one for one in session.servers.wakeups if one.own_queues()]
    channel = grantors[0].channel()
    assert channel == grantors[1].channel()
    assert listening.subscriber.listening(channel, clock())

    since = clock()
    listening.subscriber.reconnect()
    await asyncio.sleep(0.06)
    assert [nodes.rechecks(base, since) for base in bases] == [1, 1], "both may have been passed over"

    listening.subscriber.leave(b"other")
    for base, request in zip(bases, requests, strict=True):
        assert listening.subscriber.listening(channel, clock())
        session.servers.queues[base].leave(request)
        for number in range(100):  # of names that nobody waits for any more
            listening.subscriber.listen(b"{%d}" % number)
            listening.subscriber.leave(b"{%d}" % number)
    assert not listening.subscriber.listening(channel, clock())
    session.close()
    await asyncio.sleep(0)


def router_of(nodes: Nodes) -> Router:
    router = Session.of(nodes.client.nodes_manager).context.pipeline
    assert isinstance(router, Router)
    return router


class Moving(Nodes):
    """A lock whose slot goes from the *first* node to the *second* while its release is on its way to the first.

    The first takes so long to say so, or answers something else; the second takes so long to answer.
    """

    def __init__(self, first: object, second: float) -> None:
        super().__init__(1, 2, does=self._does)
        self.first, self.second = first, second
        self.held = self.silent = False

    def _does(self, node: Node, asked: Asked) -> object:
        if node.port == 1 and self.silent:
            return SILENCE
        if node.port == 1 and self.owners[slot_of(BASE)] != 1:
            return Later(self.first, self.moved(BASE)) if isinstance(self.first, float) else self.first
        match asked.what:
            case "lock_release":
                was, self.held = self.held, False
                return int(was)
            case "lock_statistics":
                return Later(self.second, [int(self.held), int(self.held), 0, 0, 1, 0, 0, 0])
            case "lock_grant":
                was, self.held = self.held, True
                return Later(self.second, [b"busy", 30_000, 0] if was else 7)
            case _:
                return 1


@pytest.mark.parametrize("ask", [Lock.try_acquire, Lock.locked])
@pytest.mark.parametrize(("first", "second"), [
    pytest.param(0.1, 0.01, id="on its way to the first node when the second has answered"),
    pytest.param(0.1, 0.2, id="sent to the second behind what it should be ahead of"),
    pytest.param(SILENCE, 0.01, id="not answered"), pytest.param(RedisConnectionError("gone"), 0.01, id="refused"),
    pytest.param(ClusterDownError("down"), 0.01, id="put off"),
])  # fmt: skip
async def test_a_release_that_is_sent_to_another_node_is_not_overtaken(
    ask: Callable[[Lock], Awaitable[Any]], first: object, second: float
) -> None:
    """W24: the session would find its own lease in the way, of which it had let go."""
    nodes = Moving(first, second)
    lock = Lock(nodes.client, "orders", wait_release=False)
    async with lock:
        nodes.give(BASE, 2)
    router_of(nodes).moved(slot_of(BASE), (HOST, 2))
    lease = await ask(lock)
    assert clock() < 1.1
    if ask is Lock.locked:
        assert lease is False
    else:
        assert await lease.release()
    await asyncio.sleep(1)


async def test_a_release_that_is_never_answered_is_waited_for_no_longer_than_a_reply() -> None:
    """P13: after many silences, the release waits much longer for its reply; nothing else may wait as long."""
    nodes = Moving(SILENCE, 0.01)
    lock = Lock(nodes.client, "orders", ttl=60, wait_release=False)
    async with lock:
        nodes.silent = True
    await asyncio.sleep(4.5)
    nodes.give(BASE, 2)
    router_of(nodes).moved(slot_of(BASE), (HOST, 2))
    asked = clock()
    assert await lock.try_acquire() is None, "the other node has the lease still"
    assert 0.9 < clock() - asked < 1.2
    await asyncio.sleep(0.1)
    assert not nodes[2].runs("lock_release"), "both requests were answered"
    nodes.silent, nodes.first = False, 0.01
    await asyncio.sleep(10)


async def test_a_caller_that_gives_up_while_a_release_is_awaited_asks_no_more() -> None:
    nodes = Moving(0.2, 0.01)
    lock = Lock(nodes.client, "orders", wait_release=False)
    async with lock:
        nodes.give(BASE, 2)
    router_of(nodes).moved(slot_of(BASE), (HOST, 2))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(lock.try_acquire(), 0.1)
    await asyncio.sleep(1)
    assert len(nodes[2].runs("lock_grant")) == 1
    assert not nodes.held


async def test_leases_are_renewed_whose_slots_have_gone_to_another_node_and_no_others() -> None:
    """Of a MultiLock, if any of its names has."""
    nodes = Nodes(1, 2, does=lambda node, asked: 7 if asked.what == "lock_grant" else 1)
    nodes.give(b"{bills}", 2)  # so there is a link to either, and no other reason
    leases = [await Lock(nodes.client, name).acquire() for name in ("orders", "bills")]
    leases.append(await MultiLock(nodes.client, ["orders", "bills"]).acquire())
    await asyncio.sleep(1)
    for name, renewed in ((b"aiolocks:lock:{nothing}", 0), (BASE, 3)):
        nodes.give(name, 2)
        router_of(nodes).moved(slot_of(name), (HOST, 2))
        begun = clock()
        await asyncio.sleep(0.5)
        runs = [*nodes[1].runs("lock_renew"), *nodes[2].runs("lock_renew")]
        assert len([run for run in runs if run.at >= begun]) == renewed
    for lease in leases:
        await lease.release()
    await asyncio.sleep(1)


async def test_waiters_are_rechecked_at_once_where_a_link_was_lost_or_their_slot_has_moved_and_nowhere_else() -> None:
    nodes = Busy()
    nodes.give(b"{bills}", 1)
    session = nodes.session()
    for name in ("orders", "bills"):
        request = Request(30.0, 1, wait=True)
        session.context.tokens[request.token] = request
        _ = session.grantor(Keys("aiolocks:", "lock", name)).grant(request)
    await asyncio.sleep(0.5)

    def rechecked(since: float) -> dict[int, set[bytes]]:
        return {port: {run.keys[0] for run in nodes[port].runs("lock_recheck") if run.at >= since} for port in (1, 2)}

    begun = clock()
    nodes[2].cut()
    await asyncio.sleep(0.02)
    assert rechecked(begun) == {1: set(), 2: {BASE}}
    await asyncio.sleep(0.3)
    begun = clock()
    nodes.give(BASE, 1)
    router_of(nodes).moved(slot_of(BASE), (HOST, 1))
    await asyncio.sleep(0.02)
    assert rechecked(begun) == {1: {BASE}, 2: set()}
    session.close()
    await asyncio.sleep(0)
