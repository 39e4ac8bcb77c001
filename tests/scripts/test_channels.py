"""Where a session is told of its turns: on one channel for all names, or on one in the slot of each (W1)."""

from contextlib import closing
from typing import Any

import pytest
from redis import Redis

from aiolocks._core.keys import Keys, channel_of
from aiolocks._redis.scripts import parts
from tests.scripts.calls import Scripts, told_by_shards, told_either_way_on_server
from tests.scripts.states import holders, listening
from tests.scripts.test_costs import _cost
from tests.support.odd_names import odd_names

_CHANNEL_OF = next(part.text for part in parts("queue") if "channel_of" in part.gives)
_PROBE = f"local queue, channels, other = KEYS[1], ARGV[1], ARGV[2]\n{_CHANNEL_OF}\nreturn {{ channel_of(other) }}"


@pytest.mark.parametrize("ending", ["", "{"])
def test_lua_and_python_name_the_same_channel(backend: Redis, ending: str) -> None:
    probe = backend.register_script(_PROBE)
    bases = [Keys("app:", "lock", name).base for name in odd_names(500)]
    bases += [Keys("app:", "hierarchy", f"r{name}/{name}", path=True).base for name in odd_names(500)]
    channels = b"app:wake:" + ending.encode()
    for base in bases:
        channel, publish, count = probe(keys=[base], args=[channels, b"ho{me}"])
        assert channel == channel_of(base, channels, b"ho{me}")
        assert (publish, count) == ((b"SPUBLISH", b"SHARDNUMSUB") if ending else (b"PUBLISH", b"NUMSUB"))


@told_by_shards
def test_a_subscriber_for_another_name_is_not_reached(awaited: Scripts) -> None:
    """Its channel may be at another node."""
    with listening(awaited.named("orders:43"), "away") as inbox:
        awaited.release("ann")
        assert inbox.texts() == []
    assert holders(awaited) == {}


@told_by_shards
def test_a_subscriber_of_all_nodes_is_not_reached(awaited: Scripts) -> None:
    """What is published to a shard is heard by subscribers of shards alone, whatever the channel is called."""
    pubsub: Any = awaited.redis.pubsub()
    with closing(pubsub):
        pubsub.subscribe(awaited.channel("away"))
        assert pubsub.get_message(timeout=5)["type"] == "subscribe"
        awaited.release("ann")
    assert holders(awaited) == {}


@told_either_way_on_server
def test_a_turn_is_told_to_the_shard_alone_or_without_a_brace_to_all_nodes(awaited: Scripts) -> None:
    with listening(awaited, "away"):
        cost = _cost(awaited, lambda: awaited.release("ann"))
    told = (cost["pubsub|shardnumsub"], cost["spublish"], cost["publish"])
    assert told == ((1, 1, 0) if awaited.sharded else (0, 0, 1))


def test_without_known_shards_no_session_is_reached_and_no_script_breaks_off(exclusive: Scripts) -> None:
    """As on the server in memory, and on any before Redis 7."""
    older = Scripts(exclusive.redis, exclusive.kind, limit=1, sharded=True)
    older.granted("ann")
    assert older.queued("ben", session="away").subscribers == 0
    assert older.release("ann").ended
    assert holders(exclusive) == {}
    assert [grant.who for grant in older.recheck("ben", session="away").mine] == ["ben"]
