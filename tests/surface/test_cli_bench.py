"""`aiolocks bench`: figures for each situation, and nothing left behind."""

import json
from contextlib import closing

import pytest
from redis import Redis

from aiolocks.cli import main
from tests.support.servers import RedisServer

pytestmark = pytest.mark.redis


def test_bench_measures_free_and_contended_locks_and_leaves_nothing(
    own_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", "--url", own_server.url, "--seconds", "0.2", "--tasks", "10"]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["situation"] for one in told["figures"]] == ["free, one task", "free, 10 tasks", "one lock, 10 waiting"]
    for one in told["figures"]:
        assert one["pairs_per_second"] > 10
        assert 0 < one["median_s"] <= one["p99_s"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "one lock, 10 waiting" in printed
    assert max(map(len, printed.splitlines())) <= 80
    with closing(Redis.from_url(own_server.url)) as admin:
        assert [key for key in admin.scan_iter() if b"session" not in key] == []
