"""A node of a Cluster takes the scripts: what each of them uses is in one slot, however odd the name is."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from aiolocks import Versioned
from aiolocks._core.keys import SLOTS, Keys
from aiolocks._redis import scripts as _scripts
from tests.scripts.calls import TTL, Scripts, token
from tests.scripts.states import holders, listening
from tests.support.odd_names import odd_names
from tests.support.servers import RedisServer

pytestmark = pytest.mark.redis


@pytest.fixture(scope="module")
def node() -> Iterator[RedisServer]:
    """A Cluster of one node, which has all slots."""
    with RedisServer(options={"cluster-enabled": "yes"}) as server:
        client: Any = server.operator
        client.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS))
        until = time.monotonic() + 20
        while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
            assert time.monotonic() < until, "the Cluster does not come up"
            time.sleep(0.02)
        yield server


@pytest.fixture
def strict(node: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """A node that refuses scripts that use keys or channels of several slots, though not declared.

    It does so to those that say `#!lua`. Ours must not: they would be refused as a whole at the memory limit.
    """
    if node.version < (7,):
        pytest.skip("older than Redis 7, which brought such scripts and the channels of shards")
    monkeypatch.setattr(_scripts, "_FLAG", "#!lua\n" + _scripts._FLAG)
    _scripts.load.cache_clear()
    yield node
    monkeypatch.undo()
    _scripts.load.cache_clear()


def test_the_node_would_refuse_a_channel_in_another_slot(strict: RedisServer) -> None:
    """Or what follows would show nothing."""
    client: Any = strict.operator
    text = "#!lua\nredis.call('GET', KEYS[1])\nreturn redis.call('SPUBLISH', ARGV[1], '')"
    assert client.eval(text, 1, "{a}", "{a}:channel") == 0
    with pytest.raises(ResponseError, match="same slot"):
        client.eval(text, 1, "{a}", "{b}:channel")


@pytest.mark.parametrize("kind", ["lock", "semaphore", "rwlock"])
def test_each_script_uses_one_slot_however_odd_the_name(strict: RedisServer, kind: Any) -> None:
    for name in odd_names(60):
        family = "modes" if kind == "rwlock" else kind
        scripts = Scripts(strict.operator, kind, keys=Keys("aiolocks:", kind, name, family), sharded=True)
        scripts.granted("ann")
        scripts.queued("ben", session="away")
        scripts.queued("cat")
        with listening(scripts, "away") as inbox:
            scripts.release("ann", tombstone_ms=1_000)
            assert [message.who for message in inbox.messages()] == ["ben"], name
        assert scripts.renew("ben")
        assert scripts.renew_many((scripts, "ben", TTL)) == [True]
        assert scripts.recheck("cat").answers[0] > 0
        assert scripts.statistics().waiting == 1
        assert [grant.who for grant in scripts.release("ben", session="home").mine] == ["cat"]
        if kind == "semaphore":
            scripts.resize(2)
            assert (scripts.pause(TTL)[0], scripts.pause(0)[0]) == (TTL, 1)
        if kind == "rwlock":
            assert scripts.downgrade("cat", 3) == (True, [])
        assert list(holders(scripts)) == ["cat"]
        record = scripts.keys.part(b"g:" + token("cat"))
        guard = _scripts.load("lock/guard" if kind == "lock" else "semaphore/guard")
        words = (1, 1_000, 1, token("cat"), 1, "PING")
        keys = [record, *(scripts.key(field) for field in _scripts.load(f"{scripts.family}/renew").keys)]
        answer: Any = scripts.redis.execute_command("EVAL", guard.source, len(keys), *keys, *words)
        assert answer == b"*1\r\n+PONG\r\n"


@pytest.mark.rest
async def test_a_versioned_value_has_all_its_keys_in_one_slot_however_odd_its_key(node: RedisServer) -> None:
    """Else the node would refuse the scripts: they declare their keys."""
    async with Redis.from_url(node.url) as client:
        for key in odd_names(300):
            value = Versioned(client, key, expire=60)
            _, version = await value.update(lambda _: "one")
            await value.write("two", version)
            assert (await value.read())[0] == b"two"
