"""I1 to I4: what holds of a Cluster when a slot goes to another node, and of any server that cannot write just now."""

from typing import Any

from aiolocks._core import answers as _answers
from aiolocks._core.slots import slot_of
from tests.simulation.cluster_faults import NO_REPLICAS, READ_ONLY
from tests.simulation.defects import sent_on
from tests.simulation.planting import Plant, instead, never, without
from tests.simulation.rules.scene import Scene
from tests.simulation.rules.table import clause
from tests.support.garden import Garden

SLOT = slot_of(b"{a}")
"""Of the name that is fought over."""


def _unknown(table: str, *words: str) -> Plant:
    """Have no idea of what these answers mean."""

    def plant(garden: Garden) -> None:
        known: dict[str, Any] = getattr(_answers, table)
        garden.put(_answers, table, {word: known[word] for word in known if word not in words})

    return plant


def _elsewhere(nodes: Scene) -> int:
    """Return a primary that does not have the slot."""
    return 1 - nodes.cluster.owner(SLOT)


@clause("I1", sent_on)
def what_was_given_up_is_not_sent_to_the_next_node(nodes: Scene) -> None:
    """I1: here its undo comes to the node that has the slot again, while the request was on its way from that."""
    program, elsewhere = nodes.program(), _elsewhere(nodes)
    here = 1 - elsewhere
    nodes.take(program, "a", 0.0, 0.1)
    nodes.until(0.3)
    nodes.move(SLOT, elsewhere)
    visit = nodes.take(program, "a", 0.301, 0.1)

    def refused(verb: str) -> None:
        if verb == "grant":
            nodes.when_run = lambda verb: None
            nodes.cancel(program, visit, nodes.world.now)
            nodes.world.after(0.0, nodes.move, SLOT, here)

    nodes.when_run = refused
    nodes.until(1.0)
    assert visit.began is None
    [token] = {request.args["token"] for request in nodes.seen("release", since=0.3)}
    late = [request for request in nodes.seen("grant", since=0.3) if request.args["token"] == token]
    assert not late, "it was run after its undo"


@clause("I2", never("I2-ended"))
def who_waits_subscribes_at_the_node_that_has_the_slot_now(nodes: Scene) -> None:
    """I2: it is the former node that says so, unasked, and nothing else would for a re-check interval."""
    owner, waiter = nodes.program(), nodes.program()
    nodes.take(owner, "a", 0.0, 1.75)
    visit = nodes.take(waiter, "a", 0.1, 0.1)
    nodes.until(1.5)
    nodes.move(SLOT, _elsewhere(nodes))
    nodes.until(4.0)
    released = nodes.seen("release", since=1.5)[0]
    assert visit.began is not None
    assert visit.began - released.at < 0.1, "found only by a re-check"
    assert not [request for request in nodes.seen("recheck") if request.args["session"].startswith(b"poll")]


@clause("I3", without("I3-moved"))
def leases_are_renewed_as_soon_as_another_node_has_them(nodes: Scene) -> None:
    """I3: whether it has them is known a round trip after the news, which any request may bring."""
    program, elsewhere = nodes.program(), _elsewhere(nodes)
    beside = next(name for name in map(str, range(10**6)) if slot_of(name.encode()) == SLOT)
    there = next(name for name in map(str, range(99)) if nodes.cluster.owner(slot_of(name.encode())) == elsewhere)
    nodes.take(program, "a", 0.0, 9.0, ttl=9.0)
    nodes.take(program, there, 0.0, 9.0, ttl=9.0)  # so there is a link, and no other reason
    nodes.until(3.7)
    nodes.move(SLOT, elsewhere)
    nodes.take(program, beside, 3.8, 0.1)
    nodes.until(4.0)
    assert len(nodes.seen("renew", since=3.7)) == 1, "only when its turn came, or others without need"


@clause("I4", _unknown("_NOT_NOW", "NOREPLICAS "))
def while_replicas_are_missing_leases_are_kept_and_requests_repeated(scene: Scene) -> None:
    """I4: no user need know of an outage that is shorter than a lease."""
    _outage(scene, NO_REPLICAS)


@clause("I4", _unknown("_NO_PRIMARY", "READONLY "))
def while_a_server_is_no_primary_leases_are_kept_and_requests_repeated(nodes: Scene) -> None:
    """I4: the same, where another takes over."""
    _outage(nodes, READ_ONLY)


def _outage(scene: Scene, error: str) -> None:
    holder, other = scene.program(), scene.program()
    held = scene.take(holder, "a", 0.0, 5.0, ttl=4.0)
    for node in [scene.stage.server] if scene.stage.cluster is None else scene.cluster.nodes:
        scene.world.at(1.0, setattr, node, "refusing", error)
        scene.world.at(3.5, setattr, node, "refusing", "")
    newcomer = scene.take(other, "b", 1.5, 0.1)
    scene.until(8.0)
    assert (held.error, newcomer.error) == (None, None)
    assert newcomer.began is not None
    assert 3.5 < newcomer.began < 4.0


@clause("I4", instead("I4-asking", "call.asking = False"), instead("I4-whole", "call.via = self"))
def a_lease_that_has_moved_ahead_of_its_slot_is_renewed_there(nodes: Scene) -> None:
    """I4: the node that it has gone to must be told that it is asked on purpose, and may not have the script."""
    program = nodes.program()
    visit = nodes.take(program, "a", 0.0, 5.0, ttl=1.5)
    nodes.until(1.0)
    nodes.cluster.begin_move(SLOT, _elsewhere(nodes))
    for key in nodes.cluster.keys_to_move(SLOT):
        nodes.cluster.migrate(SLOT, key)
    nodes.until(4.0)
    nodes.cluster.end_move(SLOT)
    nodes.until(6.0)
    assert visit.error is None


@clause("I4", _unknown("_NOT_NOW", "TRYAGAIN "))
def who_asks_while_some_keys_have_gone_is_served_when_all_have(nodes: Scene) -> None:
    """I4: neither node can run a script meanwhile."""
    holder, other = nodes.program(), nodes.program()
    nodes.take(holder, "a", 0.0, 1.5, ttl=9.0)
    visit = nodes.take(other, "a", 1.2, 0.1, ttl=9.0)
    nodes.until(1.0)
    nodes.cluster.begin_move(SLOT, _elsewhere(nodes))
    nodes.cluster.migrate(SLOT, nodes.cluster.keys_to_move(SLOT)[0])
    nodes.until(4.0)
    nodes.cluster.end_move(SLOT)
    nodes.until(8.0)
    assert visit.error is None
    assert visit.began is not None
    assert 4.0 < visit.began < 5.5
