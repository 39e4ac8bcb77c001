"""Rules that it takes an engine and the scripts together to keep: on one server, and on the nodes of a Cluster."""

import asyncio

import pytest

from aiolocks import Lock
from aiolocks._core.keys import slot_of
from tests.simulation.cluster_faults import NO_REPLICAS, READ_ONLY
from tests.simulation.rules.scene import Scene


def test_a_lease_counts_from_before_its_grant_though_its_notice_is_late(scene: Scene) -> None:
    """P1: a re-check for another name, which is answered meanwhile, says nothing of it."""
    owner, waiter = scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 4.0, ttl=1.0)
    scene.take(owner, "b", 0.0, 1.23, ttl=1.0)
    scene.take(waiter, "a", 0.1, 0.1, ttl=1.0)
    visit = scene.take(waiter, "b", 0.2, 3.0, ttl=1.0, renew=False)
    scene.until(1.22)
    [wire] = scene.wires(waiter, subscribed=True)
    wire._down.delay(0.24)
    scene.until(9.0)
    assert visit.began is not None
    assert visit.ended is not None
    released = scene.seen("release")[0]
    assert visit.ended < released.at + 1.0


def test_after_a_stall_of_the_server_the_order_is_as_before(scene: Scene) -> None:
    """W2: the engine brings the tickets back, whichever of its re-checks comes first."""
    owner = scene.program()
    scene.take(owner, "a", 0.0, 6.0, ttl=30.0)
    programs = [scene.program() for _ in range(6)]
    visits = [scene.take(program, "a", 0.1 + 0.02 * at, 0.1, ttl=30.0) for at, program in enumerate(programs)]
    scene.until(1.0)
    scene.stage.server.stopped = True
    scene.world.at(5.0, scene.stage.server.resume)
    scene.until(9.0)
    began = [visit.began for visit in visits]
    assert None not in began
    assert began == sorted(began, key=lambda at: at or 0.0)


def test_a_cancellation_after_the_grant_was_set_passes_it_on(scene: Scene) -> None:
    """W5: here the news and the cancellation wait together for a process that was stopped."""
    owner, waiter, other = scene.program(), scene.program(), scene.program()
    scene.take(owner, "a", 0.0, 1.2)
    visit = scene.take(waiter, "a", 0.1, 0.1)
    behind = scene.take(other, "a", 0.2, 0.1)
    scene.world.at(1.0, lambda: waiter.process.stop(suspend=False))
    scene.cancel(waiter, visit, 1.3)
    scene.world.at(1.5, waiter.process.resume)
    scene.until(3.0)
    assert visit.began is None
    assert behind.began is not None
    assert behind.began < 1.6


@pytest.mark.parametrize("kind", ["lock"])
def test_a_waiter_told_by_a_release_is_not_forgotten_when_the_releasing_task_is_cancelled(scene: Scene) -> None:
    """W5: grants in replies are dispatched by the connection's reader."""
    program = scene.program()

    async def release_by_hand() -> None:
        lease = await Lock(program.client, "a").acquire()
        await asyncio.sleep(1.0)
        await lease.release()

    program.process.begin(release_by_hand())
    releasing = program.process.tasks[-1]
    visit = scene.take(program, "a", 0.1, 0.1)
    while not scene.seen("release"):
        scene.until(scene.world.now + 0.0005)
    program.process.post(releasing.cancel)
    scene.until(1.05)  # before the next re-check, which would find it
    assert releasing.cancelled()
    assert visit.began is not None


def test_an_undo_sent_over_another_connection_leaves_a_tombstone_as_it_overtakes_its_request(scene: Scene) -> None:
    """W10: for as long as the request may be held up by the network, here until 5.4 s, longer than its TTL."""
    program = scene.program()
    scene.take(program, "b", 0.0, 9.0)
    visit = scene.take(program, "a", 0.5, 0.1)
    scene.world.at(0.4, lambda: scene.wires(program)[0].cut_off(5.0))
    scene.cancel(program, visit, 1.0)
    scene.until(5.3)
    [undone] = scene.seen("release")
    assert int(undone.args["tombstone_ms"]) >= 60_000
    scene.until(6.0)
    late = scene.seen("grant")[-1]
    assert late.at > 5.3
    assert (late.args["token"], late.reply) == (undone.args["token"], [b"withdrawn"])


def test_a_waiter_in_a_session_that_turns_keeps_its_place(scene: Scene) -> None:
    """W15: it leaves the line under the old name and stands in the new one in one go, by its old ticket."""
    owner, waiter = scene.program(), scene.program(channels=False)
    scene.take(owner, "a", 0.0, 6.0)
    scene.take(waiter, "a", 0.2, 0.1)
    scene.until(0.9)
    waiter.client.connection_pool.connection_kwargs["channels"] = True
    for wire in scene.wires(waiter):
        wire.socket.channels = True
    scene.until(5.0)
    farewells = [request for request in scene.seen("recheck") if request.args["life_ms"] == b"0"]
    [*_, before, place] = scene.seen("grant")
    assert farewells != []
    assert farewells[-1].args["session"].startswith(b"poll")
    assert place.args["session"] in farewells[-1].args["session"]
    assert int(place.args["ticket"]) == before.reply[1]
    assert place.at == farewells[-1].at, "others may come between"


def test_a_waiter_subscribes_at_the_node_that_has_the_slot_now(nodes: Scene) -> None:
    """I2: it is the former node that says so, unasked, and nothing else would for a re-check interval."""
    owner, waiter = nodes.program(), nodes.program()
    nodes.take(owner, "a", 0.0, 1.75)
    visit = nodes.take(waiter, "a", 0.1, 0.1)
    nodes.until(1.5)
    slot = slot_of(b"{a}")
    nodes.move(slot, 1 - nodes.cluster.owner(slot))
    nodes.until(4.0)
    released = nodes.seen("release", since=1.5)[0]
    assert visit.began is not None
    assert visit.began - released.at < 0.1, "found only by a re-check"
    assert not [request for request in nodes.seen("recheck") if request.args["session"].startswith(b"poll")]


@pytest.mark.parametrize("error", [pytest.param(NO_REPLICAS, id="replicas"), pytest.param(READ_ONLY, id="primary")])
def test_while_no_server_writes_leases_are_kept_and_requests_repeated(nodes: Scene, error: str) -> None:
    """I4: no user need know of an outage that is shorter than a lease."""
    holder, other = nodes.program(), nodes.program()
    held = nodes.take(holder, "a", 0.0, 5.0, ttl=4.0)
    for node in nodes.cluster.nodes:
        nodes.world.at(1.0, setattr, node, "refusing", error)
        nodes.world.at(3.5, setattr, node, "refusing", "")
    newcomer = nodes.take(other, "b", 1.5, 0.1)
    nodes.until(8.0)
    assert (held.error, newcomer.error) == (None, None)
    assert newcomer.began is not None
    assert 3.5 < newcomer.began < 4.0
