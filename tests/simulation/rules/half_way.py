"""W9: a script is not rolled back, so each ends what it began: at the memory limit, and without rights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from redis import Redis
from redis.exceptions import ResponseError

from tests.scripts import calls
from tests.scripts.calls import TTL, Grant, Scripts
from tests.scripts.states import configured, fence_of, holders, line, listening, pttl, sessions, tickets
from tests.simulation.planting import before, both, instead, without
from tests.simulation.rules.table import LOCK, SEMAPHORE, clause
from tests.support.garden import Garden


@contextmanager
def _unbroken() -> Iterator[None]:
    """Have no script end in an error."""
    try:
        yield
    except ResponseError as error:
        raise AssertionError(f"stopped half-way: {error}") from error


@contextmanager
def _full(scripts: Scripts) -> Iterator[None]:
    with configured(scripts, maxmemory=1, maxmemory_policy="noeviction"), _unbroken():
        yield


@contextmanager
def _without(scripts: Scripts, *rights: str) -> Iterator[Scripts]:
    """Have the scripts run by a user who has all rights but these."""
    scripts.redis.execute_command("ACL", "SETUSER", "limited", "reset", "on", "nopass", "~*", "&*", "+@all", *rights)
    path = scripts.redis.connection_pool.connection_kwargs["path"]
    try:
        with Redis(unix_socket_path=path, username="limited", password="any") as client, _unbroken():
            yield scripts.over(client)
    finally:
        scripts.redis.execute_command("ACL", "DELUSER", "limited")


_WRITES = "redis.call('SET', 'another', '')"


def _flagged(garden: Garden) -> None:
    """Have scripts begin with the line by which Redis refuses them whole."""
    load = calls.load  # type: ignore[attr-defined]  # where it is used
    garden.put(calls, "load", lambda name: replace(load(name), source=b"#!lua\n" + load(name).source))


@clause(
    "W9",
    before("W9-release", _WRITES),
    _flagged,
)
@_unbroken()  # before Redis 7, a script with that line is an error of its own
def a_release_ends_and_hands_over_at_the_memory_limit(scripts: Scripts) -> None:
    """W9: it begins with what frees memory; after that, Redis accepts every write of a script without `#!lua`."""
    scripts.granted("ann")
    scripts.queued("ben")
    with _full(scripts):
        assert scripts.release("ann").mine == [Grant("ben", fence_of(scripts, "ben"), TTL)]
    assert list(holders(scripts)) == ["ben"]


@clause(
    "W9",
    both(before("W9-leave", _WRITES), before("W9-release", _WRITES)),
)
def a_waiter_leaves_the_line_at_the_memory_limit(scripts: Scripts) -> None:
    """W9: a withdrawal begins with ZREM."""
    scripts.granted("ann")
    scripts.queued("ben")
    scripts.queued("cat")
    with _full(scripts):
        scripts.release("ben")
    assert line(scripts) == ["cat"]


@clause(
    "W9",
    both(instead("W9-renew", "redis.call('SET', holder, value, 'PX', ttl_ms)"), without("W9-extend")),
    _flagged,
)
@_unbroken()
def a_lease_is_renewed_at_the_memory_limit(scripts: Scripts) -> None:
    """W9: a renewal begins with PEXPIRE."""
    scripts.granted("ann", ttl_ms=5_000)
    with _full(scripts):
        assert scripts.renew("ann", TTL)
    assert holders(scripts)["ann"] > 20_000


@clause("W9", before("W3-recheck", _WRITES), _flagged)
@_unbroken()
def a_recheck_puts_its_session_back_at_the_memory_limit(scripts: Scripts) -> None:
    """W9: it begins with PEXPIRE too, as to stand in the queue takes memory."""
    scripts.granted("ann")
    scripts.queued("ben")
    scripts.redis.delete(scripts.key("queue"))
    with _full(scripts):
        assert scripts.recheck("ben").passed_over
    assert sessions(scripts) == ["home"]


@clause("W9", instead("W9-tombstone", "redis.call('SET', tombstone, '', 'PX', tombstone_ms)"), kinds=SEMAPHORE)
def a_tombstone_that_may_not_be_written_keeps_nobody_waiting(scripts: Scripts) -> None:
    """W9: it is a protected call, after which the permits still go to the next."""
    scripts.granted("ann")
    scripts.queued("ben")
    with _without(scripts, "-set") as limited:
        assert [grant.who for grant in limited.release("ann", tombstone_ms=60_000).mine] == ["ben"]


@clause("W9", instead("W9-count", "local reply = redis.call('PUBSUB', count, channel)"))
def a_user_who_may_not_count_subscribers_waits_and_releases(scripts: Scripts) -> None:
    """W9: NUMSUB is a protected call: nobody is known to listen then."""
    scripts.granted("ann")
    scripts.queued("ben", session="away")
    with _without(scripts, "-pubsub") as limited:
        assert limited.queued("cat").subscribers == 0
        assert [grant.who for grant in limited.release("ann").mine] == ["cat"]


@clause(
    "W9",
    instead("W9-publish", "local reply = redis.call(publish, channel, message)"),
    instead("W9-notify", "notify(head, token, text, ttl_ms)\nif true then"),
)
def a_user_who_may_not_publish_leaves_it_with_nobody_who_was_not_told(scripts: Scripts) -> None:
    """W9: PUBLISH is a protected call, and its failure takes the lease back: or nobody would own it, for a TTL."""
    scripts.granted("ann")
    scripts.queued("ben", session="away")
    before = tickets(scripts, "away")
    with listening(scripts, "away"), _without(scripts, "resetchannels") as limited:
        assert limited.release("ann").ended
    assert holders(scripts) == {}
    assert tickets(scripts, "away") == before
    assert pttl(scripts, scripts.key("waiters", session="away")) > 0


@clause(
    "W9",
    without("W9-taken-out"),
    kinds=LOCK,
)
def who_is_handed_it_is_taken_out_of_the_line_first(scripts: Scripts) -> None:
    """W9: so a grant that stops there has changed nothing, and one that goes on tells nobody twice."""
    scripts.granted("ann")
    scripts.queued("ben")
    scripts.release("ann")
    assert list(holders(scripts)) == ["ben"]
    assert line(scripts) == []
