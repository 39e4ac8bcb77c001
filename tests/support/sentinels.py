"""Sentinels that watch a primary and its replicas under a service name, all of them real processes.

What waits here blocks, for seconds: a test whose event loop must go on meanwhile calls it by `asyncio.to_thread`.
"""

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Any, final

from redis import ResponseError
from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel

from tests.support.servers import RedisServer, ServerError, reserved_port, wait_while

SERVICE = "locks"

_FAILOVER_TIMEOUT = 3.0
"""Seconds after which a failover is given up. Sentinels ask a replica once a second whether it is promoted by now."""

_NAMED_WITHIN = 30.0
"""Seconds. A failover that was given up is tried again after twice `_FAILOVER_TIMEOUT`."""

_DEMANDED_WITHIN = 3 * _FAILOVER_TIMEOUT
_DEMANDS = 3
"""One that was demanded and given up is not tried again by itself."""

_WHOLE_WITHIN = 45.0
"""Seconds. Each Sentinel takes 10 to 20 to see an old primary made a replica."""

_USUAL = {"info-period": "10000", "publish-period": "2000", "ping-period": "200"}
_HURRIED = {**_USUAL, "info-period": "500", "publish-period": "250"}
"""Milliseconds. A server that comes back as a primary is made a replica after four times the second. After the third a
Sentinel connects again: with the default, 1000, a server whose new role cuts all connections is taken for dead."""

_HURRY_SINCE = (7,)

QUICK_REPLICATION = {"repl-diskless-sync": "no", "repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}
"""Replicas that come one after the other are all given the same file; without one, the second waits for the first."""


@final
class SentinelSet(AbstractContextManager["SentinelSet"]):
    """Run a primary, its replicas and the Sentinels that watch them under the name `SERVICE`.

    Args:
        groups: Number of such sets, which share only the service name. This is the first; its `groups` are all of them.
        down_after: Seconds without an answer after which a server is taken for dead; at least 2 before Redis 7.0.
        options: Lines for the servers' redis.conf. Those about TLS are for the Sentinels too.
        replica_environment: Variables that only the first replicas get.
    """

    def __init__(
        self, *, replicas: int = 2, sentinels: int = 3, groups: int = 1, down_after: float = 1.0,
        options: Mapping[str, str] | None = None, replica_environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.servers: list[RedisServer] = []
        """The primary that was the first, and its replicas."""
        self.sentinels: list[RedisServer] = []
        self.groups: tuple[SentinelSet, ...] = (self,)
        # All are reserved before the first starts: a Sentinel is told where the others will be.
        self._reserved = [reserved_port() for _ in range(1 + replicas + sentinels)]
        ports = [one.getsockname()[1] for one in self._reserved]
        try:
            self._start_servers(ports[: 1 + replicas], {**QUICK_REPLICATION, **(options or {})}, replica_environment)
            tls = {name: value for name, value in (options or {}).items() if name == "port" or name.startswith("tls-")}
            self._start_sentinels(ports[1 + replicas :], ports[0], down_after, tls)
            if groups > 1:  # before this one is waited for
                others = SentinelSet(
                    replicas=replicas, sentinels=sentinels, groups=groups - 1, down_after=down_after, options=options
                )
                self.groups += others.groups
            self.wait_until_whole()
        except BaseException:
            self.stop()
            raise

    @property
    def sentinel_addresses(self) -> list[tuple[str, int]]:
        """Where the Sentinels are, also those that do not run now."""
        return [("127.0.0.1", one.port) for one in self.sentinels]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'{host}:{port}' for host, port in self.sentinel_addresses)}/{SERVICE}"

    @asynccontextmanager
    async def client(self, sentinel_kwargs: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Redis]:
        """Give redis-py's client of the primary, whichever it is; *options* are those of `master_for`.

        It closes its clients of the Sentinels too, which its own `aclose` does not.
        """
        make: Any = Sentinel  # it has no annotations
        manager = make(self.sentinel_addresses, sentinel_kwargs=sentinel_kwargs)
        try:
            client: Redis
            async with manager.master_for(SERVICE, **options) as client:
                yield client
        finally:
            for one in manager.sentinels:  # older ones of redis-py cannot close all by one call
                await one.aclose()

    def primary(self) -> RedisServer:
        """Return the server which all Sentinels name that run, and which says itself that it is the primary."""
        named = {int(_fields(_ask(one, "MASTER", SERVICE))["port"]) for one in self._answering_sentinels()}
        found = [server for server in self.servers if server.port in named]
        if len(named) != 1 or len(found) != 1:
            raise ServerError(f"the Sentinels name {sorted(named) or 'no primary'}")
        role = role_of(found[0])
        if role[0] != b"master":
            raise ServerError(f"the Sentinels name {named}, which is {role[0]!r}")
        return found[0]

    def replicas(self) -> list[RedisServer]:
        primary = self.primary()
        return [server for server in self.servers if server is not primary]

    def failover(self) -> RedisServer:
        """Have the Sentinels make a replica the primary, and return it once all of them name it.

        The old primary goes on as if nothing had happened, for up to 11 s (redis/redis#6062) or `wait_until_whole`.
        """
        old = self.primary()
        said = ""
        for _ in range(_DEMANDS):
            wait_while(partial(_refusal, self._answering_sentinels()[0]), _NAMED_WITHIN)
            try:
                return self.wait_for_primary(other_than=old, within=_DEMANDED_WITHIN)
            except ServerError as error:
                said = str(error)
        raise ServerError(f"no failover: {said}")

    def wait_for_primary(self, *, other_than: RedisServer | None = None, within: float = _NAMED_WITHIN) -> RedisServer:
        """Return the primary once all Sentinels that run name the same, and not *other_than*."""
        found = other_than

        def problem() -> str:
            nonlocal found
            try:
                found = self.primary()
            except ServerError as error:
                return str(error)
            return f"the primary is still at {found.port}" if found is other_than else ""

        wait_while(problem, within)
        assert found is not None
        return found

    def wait_until_whole(self) -> None:
        """Return when all servers and Sentinels run, each replica is in sync with the primary, and each Sentinel knows.

        One that does not would undo the next failover. From Redis 7.0 on, Sentinels are hurried meanwhile.
        """
        self._set_periods(_HURRIED)
        try:
            wait_while(self._defect, _WHOLE_WITHIN)
        finally:
            self._set_periods(_USUAL)

    def stop(self) -> None:
        """End all processes, and remove their directories. May be called again."""
        for group in self.groups[1:]:
            group.stop()
        for one in (*self.sentinels, *self.servers):
            one.kill()  # told to end, a primary would wait for replicas that lag
            one.stop()
        for reserved in self._reserved:
            reserved.close()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_servers(
        self, ports: list[int], options: dict[str, str], replica_environment: Mapping[str, str] | None
    ) -> None:
        environment = None
        for port in ports:
            self.servers.append(RedisServer(port=port, options=options, environment=environment))
            options, environment = {**options, "replicaof": f"127.0.0.1 {ports[0]}"}, replica_environment
        # Only then the Sentinels: they would ask again after 10 s how a replica does that is not in sync.
        wait_while(partial(self._replication_defect, self.servers[0]), _WHOLE_WITHIN)

    def _start_sentinels(self, ports: list[int], primary: int, down_after: float, tls: dict[str, str]) -> None:
        if self.servers[0].version < _HURRY_SINCE:
            down_after = max(down_after, 2.0)
        ids = {port: secrets.token_hex(20) for port in ports}
        common = {
            "sentinel monitor": f"{SERVICE} 127.0.0.1 {primary} {len(ports) // 2 + 1}",
            "sentinel down-after-milliseconds": f"{SERVICE} {down_after * 1000:.0f}",
            "sentinel failover-timeout": f"{SERVICE} {_FAILOVER_TIMEOUT * 1000:.0f}",
            "sentinel parallel-syncs": f"{SERVICE} {len(self.servers)}",
        }
        for port in ports:
            # They would find each other by themselves, with the messages that they publish every 2 s.
            known = f"sentinel known-sentinel {SERVICE} 127.0.0.1"
            others = {f"{known} {other}": ids[other] for other in ports if other != port}
            options = {"sentinel myid": ids[port], **tls, **common, **others}
            self.sentinels.append(RedisServer(port=port, options=options, arguments=("--sentinel",)))

    def _set_periods(self, periods: dict[str, str]) -> None:
        for one in self.sentinels:
            if one.answering and one.version >= _HURRY_SINCE:
                for name, milliseconds in periods.items():
                    _ask(one, "DEBUG", name, milliseconds)

    def _answering_sentinels(self) -> list[RedisServer]:
        found = [one for one in self.sentinels if one.answering]
        if not found:
            raise ServerError("no Sentinel runs")
        return found

    def _defect(self) -> str:
        for one in (*self.servers, *self.sentinels):
            if not one.answering:
                return f"the one at {one.port} does not run"
        try:
            primary = self.primary()
        except ServerError as error:
            return str(error)
        return self._replication_defect(primary) or "".join(map(self._ignorance, self.sentinels))

    def _replication_defect(self, primary: RedisServer) -> str:
        for server in self.servers:
            role = role_of(server)
            wanted = [b"slave", primary.port, b"connected"]
            if server is not primary and [role[0], *role[2:4]] != wanted:
                return f"the one at {server.port} says that it is {role}, and {primary.port} is the primary"
        role = role_of(primary)
        return "" if len(role) == 3 and len(role[2]) == len(self.servers) - 1 else f"the primary says that it is {role}"

    def _ignorance(self, sentinel: RedisServer) -> str:
        """Return what *sentinel* does not know yet, or takes to be down."""
        known = {
            "master": [_fields(_ask(sentinel, "MASTER", SERVICE))],
            "slave": [_fields(one) for one in _ask(sentinel, "REPLICAS", SERVICE)],
            "sentinel": [_fields(one) for one in _ask(sentinel, "SENTINELS", SERVICE)],
        }
        wanted = {"master": 1, "slave": len(self.servers) - 1, "sentinel": len(self.sentinels) - 1}
        for kind, found in known.items():
            flags = [one["flags"] for one in found]
            if flags != [kind] * wanted[kind]:
                return f"the Sentinel at {sentinel.port} knows of {kind}s: {flags}. "
        port = known["master"][0]["port"]
        for one in known["slave"]:
            told = one["role-reported"], one["master-port"], one["master-link-status"]
            if told != ("slave", port, "ok"):
                return f"the Sentinel at {sentinel.port} was told by the replica at {one['port']}: {told}. "
        return ""


def _ask(sentinel: RedisServer, *words: str) -> Any:
    operator: Any = sentinel.operator
    return operator.execute_command("SENTINEL", *words)


def _refusal(sentinel: RedisServer) -> str:
    """Demand a failover; return why it was refused, if that may pass: one is under way, or no replica is fit yet."""
    try:
        _ask(sentinel, "FAILOVER", SERVICE)
    except ResponseError as error:
        if not str(error).startswith(("INPROG", "NOGOODSLAVE")):
            raise
        return str(error)
    return ""


def _fields(reply: Any) -> dict[str, str]:
    """Return a map, which by RESP 2 is a list of names and values."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(): str(value, "utf-8", "replace") for name, value in pairs}


def role_of(server: RedisServer) -> list[Any]:
    operator: Any = server.operator
    return list(operator.execute_command("ROLE")) if server.answering else [b"down"]
