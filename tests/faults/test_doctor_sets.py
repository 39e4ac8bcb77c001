"""`aiolocks doctor` on what Sentinels watch, and on a Cluster."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
import redis as synchronous

from tests.support.clients import documented_rights
from tests.support.clusters import ClusterSet
from tests.support.leftovers import Leftovers
from tests.support.sentinels import SentinelSet
from tests.support.servers import find_binary, version_of

pytestmark = [pytest.mark.redis, pytest.mark.faults]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cluster() -> Iterator[ClusterSet]:
    with ClusterSet(replicas=0) as running:
        yield running


def examined(url: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit status, and what was found."""
    ended = run(
        [sys.executable, "-m", "aiolocks", "doctor", "--json", "--url", url],
        capture_output=True, text=True, check=False, timeout=60, cwd=ROOT,
    )  # fmt: skip
    assert not ended.stderr
    return ended.returncode, json.loads(ended.stdout)["checks"]


def verdict(found: list[dict[str, Any]], check: str) -> set[str]:
    return {finding["verdict"] for finding in found if finding["check"] == check}


def test_behind_sentinels_a_primary_that_writes_alone_is_a_danger() -> None:
    with SentinelSet() as servers:
        url = servers.url
        status, found = examined(url)
        assert (status, verdict(found, "replication")) == (1, {"danger"})
        assert "min-replicas-to-write 1" in str(found)
        assert "without end" in str(found)
        with synchronous.Redis.from_url(servers.primary().url) as primary:
            primary.config_set("min-replicas-to-write", 1)
        status, found = examined(url)
        assert (status, verdict(found, "replication")) == (0, {"ok"})
        assert verdict(found, "hand-over") == {"ok"}


def test_of_a_cluster_each_primary_is_examined() -> None:
    of_each = "server coverage replication eviction persistence clock latency rights wake-ups"
    with ClusterSet() as servers:
        status, found = examined(servers.url)
        assert status == 0
        for check in of_each.split():
            assert len([finding for finding in found if finding["check"] == check]) == 3, check
        assert verdict(found, "coverage") == {"warning"}
        assert {verdict(found, check).pop() for check in ("rights", "wake-ups", "versions", "hand-over")} == {"ok"}
        with synchronous.Redis.from_url(servers.primaries()[0].url) as primary:
            primary.config_set("cluster-require-full-coverage", "no")
        assert verdict(examined(servers.url)[1], "coverage") == {"ok", "warning"}


@pytest.mark.parametrize(
    ("lacking", "check", "wanted"),
    [
        ("", "rights", set[str]()),
        ("-asking -zadd", "rights", {"+asking", "+zadd"}),
        ("-ssubscribe -spublish", "wake-ups", {"+ssubscribe", "+spublish"}),
    ],
    ids=["all that is documented", "what locks need", "what wakes waiters"],
)
@pytest.mark.skipif(version_of(find_binary()) < (7,), reason="channels of shards came with Redis 7")
def test_on_a_cluster_the_rights_of_the_user_are_tried_at_each_node(
    cluster: ClusterSet, lacking: str, check: str, wanted: set[str]
) -> None:
    rights = ["on", ">secret", *documented_rights(cluster=True), *lacking.split()]
    one, *others = cluster.primaries()
    for server in cluster.servers:
        with_all = [*rights[:2], *documented_rights(cluster=True)]
        operator: Any = server.operator
        operator.execute_command("ACL", "SETUSER", "user", "reset", *(rights if server is one else with_all))
    _, found = examined(cluster.url.replace("://", "://user:secret@"))
    bad = [finding for finding in found if finding["check"] == check and finding["verdict"] != "ok"]
    assert len(others) == 2
    assert [set(finding["figures"]["missing"]) for finding in bad] == ([wanted] if wanted else [])
    assert all(str(one.port) in finding["found"] for finding in bad)
    assert verdict(found, "hand-over") == ({"unknown"} if wanted else {"ok"})
    assert [key for server in cluster.primaries() for key in Leftovers(server).lasting_keys()] == []
