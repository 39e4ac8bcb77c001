"""A primary with one replica."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, final

from redis import Redis

from tests.support.servers import RedisServer

_CAUGHT_UP_WITHIN = 20.0


@final
@dataclass(frozen=True, slots=True)
class Replicated:
    """Two servers, of which one does as the other."""

    primary: RedisServer
    replica: RedisServer

    def catch_up(self) -> None:
        """Return when the replica has all that the primary has."""
        until = time.monotonic() + _CAUGHT_UP_WITHIN
        here: Any
        there: Any
        with Redis.from_url(self.primary.url) as here, Redis.from_url(self.replica.url) as there:
            while there.info("replication")["master_link_status"] != "up" or not here.wait(1, 100):
                assert time.monotonic() < until, "the replica does not come up"
                time.sleep(0.02)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        self.replica.pause()
        try:
            yield
        finally:
            self.replica.resume()


@contextmanager
def replicated() -> Iterator[Replicated]:
    with ExitStack() as stack:
        # By default a primary waits for 5 s whether more replicas come, and at its end for those that lag.
        primary = stack.enter_context(RedisServer(options={"repl-diskless-sync-delay": "0"}))
        replica = stack.enter_context(RedisServer(options={"replicaof": f"127.0.0.1 {primary.port}"}))
        both = Replicated(primary, replica)
        both.catch_up()
        yield both
