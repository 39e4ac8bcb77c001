"""W9: a script is not rolled back, so each ends what it began: at the memory limit, and without rights."""

from collections.abc import Iterator
from contextlib import contextmanager

from redis import Redis
from redis.exceptions import ResponseError

from tests.scripts.calls import Scripts
from tests.simulation.planting import instead
from tests.simulation.rules.table import SEMAPHORE, clause


@contextmanager
def _unbroken() -> Iterator[None]:
    """Have no script end in an error."""
    try:
        yield
    except ResponseError as error:
        raise AssertionError(f"stopped half-way: {error}") from error


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


@clause("W9", instead("W9-tombstone", "redis.call('SET', tombstone, '', 'PX', tombstone_ms)"), kinds=SEMAPHORE)
def a_tombstone_that_may_not_be_written_keeps_nobody_waiting(scripts: Scripts) -> None:
    """W9: it is a protected call, after which the permits still go to the next."""
    scripts.granted("ann")
    scripts.queued("ben")
    with _without(scripts, "-set") as limited:
        assert [grant.who for grant in limited.release("ann", tombstone_ms=60_000).mine] == ["ben"]
