"""Compares the clocks of replicas and primary: a promoted replica ends leases by its own clock (limit L4)."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from ..._core.timing import margin
from ..._core.untyped import untyped
from ..._redis.clients import pool_of
from .._connect import PATIENCE
from . import _timing
from ._finding import Finding, Verdict

_SHARED_OPTIONS = ("username", "password", "credential_provider", "db")
"""Options of the primary's client that also apply to its replicas, besides those for TLS."""


async def clocks_of(client: Any, info: Mapping[str, Any]) -> dict[str, Sequence[_timing.Sample]]:
    """Ask each replica in the primary's INFO for its time. A replica that does not answer has no samples."""
    found = dict[str, Sequence[_timing.Sample]]()
    for field, value in sorted(info.items()):
        if field.removeprefix("slave").isdigit() and isinstance(value, dict):
            server = cast("dict[str, Any]", value)
            host, port = str(server["ip"]), int(server["port"])
            found[f"{host}:{port}"] = await _ask(client, host, port)
    return found


async def _ask(client: Any, host: str, port: int) -> Sequence[_timing.Sample]:
    options: dict[str, Any] = getattr(pool_of(client), "connection_kwargs", {})
    shared = {name: value for name, value in options.items() if name in _SHARED_OPTIONS or name.startswith("ssl_")}
    shared |= {"socket_connect_timeout": PATIENCE, "socket_timeout": PATIENCE}
    tls = issubclass(untyped(pool_of(client)).connection_class, SSLConnection)
    try:
        async with Redis(host=host, port=port, ssl=tls, retry=Retry(NoBackoff(), 0), **shared) as replica:
            return await _timing.sample(replica)
    except (RedisError, OSError):
        return ()


def clocks(primary: Sequence[_timing.Sample], replicas: Mapping[str, Sequence[_timing.Sample]], ttl: float) -> Finding:
    """Do leases end early or too late after a replica is promoted?"""
    silent = [place for place, samples in replicas.items() if not samples]
    apart = dict[str, float]()
    if primary:
        ahead, doubt = _timing.offset(primary)
        for place, samples in replicas.items():
            if samples:
                its, its_doubt = _timing.offset(samples)
                apart[place] = max(abs(its - ahead) - doubt - its_doubt, 0.0)
    figures = {"apart_s": {place: round(seconds, 6) for place, seconds in apart.items()}, "silent": silent}
    far = {place: seconds for place, seconds in apart.items() if seconds > margin(ttl)}
    if far:
        found = ", ".join(f"{place} is {_timing.in_words(seconds)} off" for place, seconds in far.items())
        advice = "have NTP slew their clocks: after a failover leases end that much too early or too late"
        return Finding("replica clocks", Verdict.WARNING, f"{found} from their primary's clock", advice, figures)
    if silent or not primary:
        found = f"no answer from {', '.join(silent or replicas)}"
        return Finding("replica clocks", Verdict.UNKNOWN, found, "run doctor on a host that reaches them", figures)
    return Finding("replica clocks", Verdict.OK, "the same as their primary's", figures=figures)
