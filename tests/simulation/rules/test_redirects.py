"""I2 and I4: what holds when a slot goes to another node, and of any server that cannot write just now."""

import pytest

from aiolocks._core.slots import slot_of
from tests.simulation.cluster_faults import NO_REPLICAS, READ_ONLY
from tests.simulation.rules.scene import Scene

# A process that the simulation ends has coroutines destroyed in a loop that is closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SLOT = slot_of(b"{a}")
"""Of the name that is fought over."""


def _elsewhere(nodes: Scene) -> int:
    """Return a primary that does not have the slot."""
    return 1 - nodes.cluster.owner(SLOT)


def test_a_waiter_subscribes_at_the_node_that_has_the_slot_now(nodes: Scene) -> None:
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


def test_a_lease_that_has_moved_ahead_of_its_slot_is_renewed_there(nodes: Scene) -> None:
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


def test_a_caller_that_asks_while_some_keys_have_gone_is_served_when_all_have(nodes: Scene) -> None:
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
