"""Which node a call goes to, in virtual time: what is learnt from refusals, and what is asked when a node is gone."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from redis.exceptions import AskError, ClusterDownError, MovedError, NoPermissionError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError

from aiolocks import Lock
from aiolocks._core.answers import NotNowError
from aiolocks._core.keys import SLOTS, slot_of
from aiolocks._redis.cluster import Router
from aiolocks._redis.connection import ConnectionCancelled
from aiolocks._redis.pipeline import PendingCall
from aiolocks._redis.scripts import NamedScript, PlainCommand, load
from tests.support.answering import SILENCE, Asked, Later
from tests.support.answering_nodes import HOST, Node, Nodes
from tests.support.cases import one_by_one
from tests.support.jumping import jumping, timers
from tests.support.virtual import clock

RUN = PlainCommand("RUN")
LOW, MIDDLE, HIGH = b"b", b"c", b"a"
"""Names in a slot of the first, second and last third or so."""


class Answers:
    def __init__(self) -> None:
        self.all: list[object] = []
        self.at: list[float] = []

    def __call__(self, call: PendingCall, reply: object) -> None:
        self.all.append(reply)
        self.at.append(clock())


@asynccontextmanager
async def router_of(nodes: Nodes, *ports: int) -> AsyncGenerator[Router]:
    """A router that knows the nodes at *ports* at first, or all."""
    manager = (nodes.client_of(*ports) if ports else nodes.client).nodes_manager
    router = Router(manager, asyncio.get_running_loop(), clock, lambda: None, lambda: None)
    try:
        yield router
    finally:
        router.close()
        await asyncio.sleep(0)


async def ask(router: Router, base: bytes, *, wait: float = 0.5) -> object:
    answers = Answers()
    router.route(base).submit(RUN, (), answers, 5)
    await asyncio.sleep(wait)
    [answer] = answers.all
    return answer


async def test_calls_go_to_the_node_that_has_their_slot() -> None:
    nodes = Nodes(1, 2, 3)
    nodes.give(LOW, 2)
    nodes.give(HIGH, 3)
    async with router_of(nodes) as router:
        assert [await ask(router, base) for base in (MIDDLE, LOW, HIGH)] == [1, 2, 3]
        assert nodes.refresh_times() == [0]


async def test_before_anything_is_known_a_call_goes_to_any_node_and_from_there_to_its_own() -> None:
    nodes = Nodes(1, 2, does=lambda node, asked: nodes.moved(LOW) if node.port == 1 else 2)
    nodes.give(LOW, 2)
    async with router_of(nodes, 1) as router:
        assert await ask(router, LOW) == 2
        assert len(nodes[1].work) == len(nodes[2].work) == 1


async def test_a_slot_that_has_moved_is_learnt_at_the_first_refusal_and_the_call_goes_on() -> None:
    told: list[float] = []
    nodes = Nodes(
        1, 2, does=lambda node, asked: node.port if nodes.owners[slot_of(LOW)] == node.port else nodes.moved(LOW)
    )
    async with router_of(nodes) as router:
        router.on_changed = lambda: told.append(clock())
        assert await ask(router, LOW) == 1
        nodes.give(LOW, 2)
        nodes.knows[1, "CLUSTER"] = nodes.knows[2, "CLUSTER"] = SILENCE
        assert [await ask(router, LOW, wait=0.01) for _ in range(2)] == [2, 2]
        assert (len(nodes[1].work), len(nodes[2].work)) == (2, 2)
        assert told == [0, 0.5]


async def test_many_slots_that_have_moved_are_one_change() -> None:
    """What waits and what is held is looked through each time: once for each of a thousand refusals took seconds."""
    nodes, told = Nodes(1, 2), list[float]()
    async with router_of(nodes) as router:
        await ask(router, LOW)
        names = [b"%d" % number for number in range(1000)]
        nodes.owners = [2] * SLOTS
        nodes.knows[1, "CLUSTER"] = SILENCE
        nodes.does = lambda node, asked: nodes.moved(asked.words[1]) if node.port == 1 else 2
        router.on_changed = lambda: told.append(clock())
        answers = Answers()
        for name in names:
            router.route(name).submit(RUN, (name,), answers, 5)
        await asyncio.sleep(0.01)
        assert answers.all == [2] * 1000
        assert len(told) < 20


async def test_a_node_without_a_host_is_where_the_one_is_that_says_so() -> None:
    nodes = Nodes(1, 2)
    nodes.knows[1, "CLUSTER"] = [[0, SLOTS - 1, [None, 2, b"id of 2", []]]]
    async with router_of(nodes, 1) as router:
        await ask(router, LOW)
        assert await ask(router, LOW) == 2
        nodes.does = lambda node, asked: MovedError(f"{slot_of(LOW)} :1") if node.port == 2 else 1
        assert await ask(router, LOW) == 1


async def test_addresses_of_nodes_are_mapped_as_the_users_client_maps_them() -> None:
    nodes = Nodes(1, 2)
    nodes.owners = [7002] * SLOTS
    client = nodes.client_of(1)
    client.nodes_manager.address_remap = lambda address: (HOST, address[1] - 7000)
    router = Router(client.nodes_manager, asyncio.get_running_loop(), clock, lambda: None, lambda: None)
    await ask(router, LOW)
    assert await ask(router, LOW) == 2
    router.close()
    await asyncio.sleep(0)


async def test_a_call_that_is_to_go_elsewhere_once_goes_whole_and_behind_asking() -> None:
    """The new node does not know the script perhaps, and could not say so without a word on the slot."""
    renew = NamedScript(load("lock/renew"), LOW, LOW)
    nodes = Nodes(1, 2)
    async with router_of(nodes) as router:
        await ask(router, MIDDLE)
        nodes.does = lambda node, asked: AskError(f"{slot_of(LOW)} {HOST}:2") if node.port == 1 else 1
        for _ in range(2):
            answers = Answers()
            router.route(LOW).submit(renew, (b"token", 1), answers, 5)
            await asyncio.sleep(1)
            assert answers.all == [1]
        assert [asked.words[0] for asked in nodes[2].work] == [b"ASKING", b"EVAL"] * 2
        assert len(nodes[1].work) == 3, "the slot is still its own"


async def test_without_the_right_to_asking_one_warning_names_it(caplog: pytest.LogCaptureFixture) -> None:
    """Leases in a slot that was held open for longer than their ttl ended without a word."""

    def does(node: Node, asked: Asked) -> object:
        if node.port == 1:
            return AskError(f"{slot_of(LOW)} {HOST}:2") if clock() < 20 else 1
        return NoPermissionError("no permissions") if asked.what == "ASKING" else nodes.moved(LOW)

    nodes = Nodes(1, 2, does=does)
    told: list[float] = []
    async with router_of(nodes) as router:
        await ask(router, MIDDLE)
        router.on_changed = lambda: told.append(clock())
        answers = [await ask(router, LOW) for _ in range(19)]
        assert all(isinstance(answer, NotNowError) for answer in answers)
        assert [type(await ask(router, LOW)) for _ in range(30)][-1] is int
    assert len(nodes[2].runs("ASKING")) <= 3, "nor is it tried all the time"
    assert len(told) < 20
    [warning] = caplog.messages
    assert "lacks the right +asking: while a slot of the Cluster is being moved" in warning


async def test_without_the_right_to_know_the_slots_one_warning_names_it(caplog: pytest.LogCaptureFixture) -> None:
    nodes = Nodes(1, 2)
    for port in (1, 2):
        nodes.knows[port, "CLUSTER"] = NoPermissionError("no permissions")
    nodes.give(LOW, 2)
    nodes.does = lambda node, asked: nodes.moved(LOW) if node.port == 1 else 2
    async with router_of(nodes) as router:
        assert [await ask(router, LOW) for _ in range(5)] == [2] * 5
    [warning] = caplog.messages
    assert "lacks the right +cluster|slots: " in warning


async def test_a_call_that_was_given_up_is_not_sent_again() -> None:
    """Its undo may have been ahead of it."""
    for refusal in (AskError, MovedError):
        nodes = Nodes(1, 2)
        async with router_of(nodes) as router:
            await ask(router, LOW)
            nodes.does = lambda node, asked, refusal=refusal: Later(1, refusal(f"{slot_of(LOW)} {HOST}:2"))  # type: ignore[misc]
            answers = Answers()
            call = router.route(LOW).submit(RUN, (), answers, 5)
            call.abandon()
            await asyncio.sleep(2)
            assert nodes[2].work == []
            [told] = answers.all
            assert isinstance(told, NotNowError), "it was not carried out"


async def test_a_call_given_up_while_it_waits_for_the_other_node_is_not_sent() -> None:
    nodes = Nodes(1, 2)
    nodes[2].slow = 1.5
    async with router_of(nodes) as router:
        await ask(router, LOW)
        nodes.give(LOW, 2)
        nodes.does = lambda node, asked: nodes.moved(LOW) if node.port == 1 else 2
        answers = Answers()
        call = router.route(LOW).submit(RUN, (), answers, 5)
        await asyncio.sleep(1)
        call.abandon()
        await asyncio.sleep(2)
        assert nodes[2].work == []
        assert len(answers.all) == 1
        assert call.link is None, "it has not left, as far as its undo has to know"


async def test_nodes_that_send_a_call_to_each_other_do_so_for_a_while_only() -> None:
    nodes = Nodes(1, 2, does=lambda node, asked: MovedError(f"{slot_of(LOW)} {HOST}:{3 - node.port}"))
    async with router_of(nodes) as router:
        assert isinstance(await ask(router, LOW), NotNowError)
        assert len(nodes[1].work) + len(nodes[2].work) == 17


@pytest.mark.parametrize("refusal", [TryAgainError("in part"), ClusterDownError("down")])
async def test_what_a_node_cannot_do_just_now_is_asked_again_by_the_lock(refusal: Exception) -> None:
    def does(node: Node, asked: Asked) -> object:
        return refusal if clock() < 3 else 1

    nodes = Nodes(1, does=does)
    async with Lock(nodes.client, "orders"):
        assert 3 <= clock() < 3.5
    assert len(nodes[1].runs("lock_grant")) < 30, "and not without a pause"
    await asyncio.sleep(1)
    assert timers() == 0


async def test_the_slots_are_asked_for_five_times_a_second_at_most() -> None:
    nodes = Nodes(1, 2)
    async with router_of(nodes) as router:
        for at in range(200):
            router.moved(0, (HOST, 1 + at % 2))
            router.refresh()
            await ask(router, LOW, wait=0.01)
        assert 9 <= len(nodes.refresh_times()) <= 11
        assert all(later - sooner >= 0.199 for sooner, later in pairwise(nodes.refresh_times()))


@pytest.mark.parametrize("how", ["refuses", "hangs"])
@one_by_one("down", [[1], [1, 3], [1, 2, 3]])
@jumping
async def test_at_the_beginning_nodes_that_are_down_are_passed_over(down: list[int], how: str) -> None:
    """Two of them were asked by turns, and so one that is up was not."""
    nodes = Nodes(1, 2, 3, 4)
    nodes.owners = [4 if 2 in down else 2] * SLOTS
    for port in down:
        setattr(nodes[port], how, True)
    async with router_of(nodes) as router:
        answers = Answers()
        for _ in range(10):
            router.route(LOW).submit(RUN, (), answers, 1)
            await asyncio.sleep(2)
        assert answers.all[-1] == nodes.owners[0]
        if how == "refuses":
            assert answers.all == [nodes.owners[0]] * 10, "and no caller is told of it"


async def test_when_all_nodes_are_down_a_call_is_told_at_once() -> None:
    nodes = Nodes(1, 2)
    for port in (1, 2):
        nodes[port].refuses = True
    async with router_of(nodes) as router:
        for _ in range(3):
            assert isinstance(await ask(router, LOW, wait=0.001), RedisConnectionError)


async def test_a_connection_that_is_cancelled_is_no_reason_to_open_another() -> None:
    """So ends `asyncio.run`: what is begun then is destroyed in the midst of it, with warnings."""
    nodes = Nodes(1, 2)
    nodes[1].hangs = True
    async with router_of(nodes) as router:
        answers = Answers()
        router.route(LOW).submit(RUN, (), answers, 5)
        await asyncio.sleep(0.5)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.01)
        assert nodes[2].tried == []
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert [type(answer) for answer in answers.all] == [ConnectionCancelled]


async def test_what_waits_for_a_node_that_is_gone_follows_its_slot() -> None:
    nodes = Nodes(1, 2)
    async with router_of(nodes) as router:
        await ask(router, LOW)
        nodes[1].hangs = True
        nodes[1].cut()
        await asyncio.sleep(0.01)
        answers = Answers()
        router.route(LOW).submit(RUN, (), answers, 5)
        await asyncio.sleep(1)
        assert answers.all == []
        nodes.owners = [2] * SLOTS
        await asyncio.sleep(0.3)
        assert answers.all == [2]


@pytest.mark.parametrize("gone", [True, False])
async def test_another_node_is_asked_for_the_slots_of_a_node_that_is_gone_or_cannot_serve_them(gone: bool) -> None:
    """A primary that is cut off from the others, and not from us, names itself for ever."""
    nodes = Nodes(1, 2, 3)
    nodes.give(HIGH, 2)
    async with router_of(nodes) as router:
        await ask(router, LOW)
        if not gone:
            nodes.knows[1, "CLUSTER"] = nodes.slots()
            nodes.does = lambda node, asked: ClusterDownError("The cluster is down") if node.port == 1 else node.port
        nodes.owners = [3 if owner == 1 else owner for owner in nodes.owners]
        if gone:
            nodes[1].refuses = True
            nodes[1].cut()
            await asyncio.sleep(1)
        else:
            assert isinstance(await ask(router, LOW), NotNowError)
        assert [await ask(router, LOW) for _ in range(5)] == [3] * 5
        assert await ask(router, HIGH) == 2


async def test_nodes_without_a_connection_are_asked_for_the_slots_if_all_others_refuse() -> None:
    nodes = Nodes(1, 2, 3)
    nodes.give(HIGH, 2)
    async with router_of(nodes) as router:
        assert [await ask(router, base) for base in (LOW, HIGH)] == [1, 2]
        nodes.knows |= {(port, "CLUSTER"): NoPermissionError("no permissions") for port in (1, 2, 3)}
        for times in (1, 2):  # in a second round too, which follows one in which all have failed
            router.refresh()
            await asyncio.sleep(2)
            assert len(nodes[3].times("CLUSTER")) == times


async def test_closing_leaves_no_timer_and_opens_nothing() -> None:
    for trouble in ("none", "refuses", "hangs", "cut"):
        nodes = Nodes(1, 2)
        async with router_of(nodes) as router:
            if trouble in {"refuses", "hangs"}:
                setattr(nodes[1], trouble, True)
            router.route(LOW).submit(RUN, (), Answers(), 5)
            await asyncio.sleep(0.01)
            if trouble == "cut":
                nodes[1].cut()
                await asyncio.sleep(0)
            router.refresh()
            router.moved(slot_of(LOW), (HOST, 2))
        tried = len(nodes[1].tried) + len(nodes[2].tried)
        router.refresh()
        await asyncio.sleep(0)
        assert timers() == 0, trouble
        await asyncio.sleep(5)
        assert len(nodes[1].tried) + len(nodes[2].tried) == tried
