"""`aiolocks doctor` on what Sentinels watch, on a Cluster, and on a server whose clock is off."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as synchronous

from aiolocks.cli import main
from tests.faults.support.server_clock import ServerClock
from tests.support.clients import documented_rights
from tests.support.clusters import ClusterSet
from tests.support.leftovers import Leftovers
from tests.support.sentinels import SentinelSet
from tests.support.servers import RedisServer, find_binary, version_of


@pytest.fixture
def cluster() -> Iterator[ClusterSet]:
    with ClusterSet(replicas=0) as running:
        yield running


def examined(url: str, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit status, and what was found."""
    status = main(["doctor", "--json", "--url", url, *options])
    printed = capsys.readouterr()
    assert not printed.err
    return status, json.loads(printed.out)["checks"]


def verdict(found: list[dict[str, Any]], check: str) -> set[str]:
    return {finding["verdict"] for finding in found if finding["check"] == check}


def test_a_clock_that_was_stepped_is_seen_and_judged_by_the_ttl(
    servers: Callable[..., RedisServer], clock: ServerClock, capsys: pytest.CaptureFixture[str]
) -> None:
    server = servers(environment=clock.environment)
    for ahead, verdict, ttl in (
        (0, "ok", 30), (2, "warning", 30), (2, "danger", 1), (60, "danger", 30), (60, "warning", 300),
        (-60, "danger", 30),
    ):  # fmt: skip
        clock.step(ahead - clock.ahead)
        status, found = examined(server.url, capsys, "--ttl", str(ttl))
        [check] = [finding for finding in found if finding["check"] == "clock"]
        assert (check["verdict"], status) == (verdict, int(verdict == "danger"))
        figures = check["figures"]
        assert abs(figures["ahead_s"] - ahead) <= figures["doubt_s"] < 0.5


def test_behind_sentinels_a_primary_that_writes_alone_is_a_danger(capsys: pytest.CaptureFixture[str]) -> None:
    with SentinelSet() as servers:
        url = servers.url
        status, found = examined(url, capsys)
        assert (status, verdict(found, "replication")) == (1, {"danger"})
        assert "min-replicas-to-write 1" in str(found)
        assert "without end" in str(found)
        with synchronous.Redis.from_url(servers.primary().url) as primary:
            primary.config_set("min-replicas-to-write", 1)
        status, found = examined(url, capsys)
        assert (status, verdict(found, "replication")) == (0, {"ok"})
        assert verdict(found, "hand-over") == {"ok"}


def test_of_a_cluster_each_primary_is_examined(capsys: pytest.CaptureFixture[str]) -> None:
    of_each = "server coverage replication eviction persistence clock latency rights wake-ups"
    with ClusterSet() as servers:
        status, found = examined(servers.url, capsys)
        assert status == 0
        for check in of_each.split():
            assert len([finding for finding in found if finding["check"] == check]) == 3, check
        assert verdict(found, "coverage") == {"warning"}
        assert {verdict(found, check).pop() for check in ("rights", "wake-ups", "versions", "hand-over")} == {"ok"}
        with synchronous.Redis.from_url(servers.primaries()[0].url) as primary:
            primary.config_set("cluster-require-full-coverage", "no")
        assert verdict(examined(servers.url, capsys)[1], "coverage") == {"ok", "warning"}


@pytest.mark.parametrize(("lacking", "check", "wanted"), [
    ("", "rights", set[str]()), ("-asking -zadd", "rights", {"+asking", "+zadd"}),
    ("-ssubscribe -spublish", "wake-ups", {"+ssubscribe", "+spublish"}),
], ids=["all that is documented", "what locks need", "what wakes waiters"])  # fmt: skip
@pytest.mark.skipif(version_of(find_binary()) < (7,), reason="channels of shards came with Redis 7")
def test_on_a_cluster_the_rights_of_the_user_are_tried_at_each_node(
    cluster: ClusterSet, capsys: pytest.CaptureFixture[str], lacking: str, check: str, wanted: set[str]
) -> None:
    rights = ["on", ">secret", *documented_rights(cluster=True), *lacking.split()]
    one, *others = cluster.primaries()
    for server in cluster.servers:
        with_all = [*rights[:2], *documented_rights(cluster=True)]
        operator: Any = server.operator
        operator.execute_command("ACL", "SETUSER", "user", "reset", *(rights if server is one else with_all))
    _, found = examined(cluster.url.replace("://", "://user:secret@"), capsys)
    bad = [finding for finding in found if finding["check"] == check and finding["verdict"] != "ok"]
    assert len(others) == 2
    assert [set(finding["figures"]["missing"]) for finding in bad] == ([wanted] if wanted else [])
    assert all(str(one.port) in finding["found"] for finding in bad)
    assert verdict(found, "hand-over") == ({"unknown"} if wanted else {"ok"})
    assert [key for server in cluster.primaries() for key in Leftovers(server).lasting_keys()] == []
