"""A primary with one replica."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from redis import Redis

from tests.support.servers import RedisServer, wait_while

_CAUGHT_UP_WITHIN = 20.0


@final
@dataclass(frozen=True, slots=True)
class Replicated:
    """Two servers, of which one does as the other."""

    primary: RedisServer
    replica: RedisServer

    def catch_up(self) -> None:
        """Return when the replica has all that the primary has."""
        with Redis.from_url(self.primary.url) as here, Redis.from_url(self.replica.url) as there:
            wait_while(partial(_defect, here, there), _CAUGHT_UP_WITHIN)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        self.replica.pause()
        try:
            yield
        finally:
            self.replica.resume()


def _defect(primary: Any, replica: Any) -> str:
    in_sync = replica.info("replication")["master_link_status"] == "up" and primary.wait(1, 100)
    return "" if in_sync else "the replica is not in sync"


@contextmanager
def replicated() -> Iterator[Replicated]:
    with ExitStack() as stack:
        # By default a primary waits for 5 s whether more replicas come, and at its end for those that lag.
        primary = stack.enter_context(RedisServer(options={"repl-diskless-sync-delay": "0"}))
        replica = stack.enter_context(RedisServer(options={"replicaof": f"127.0.0.1 {primary.port}"}))
        both = Replicated(primary, replica)
        both.catch_up()
        yield both
