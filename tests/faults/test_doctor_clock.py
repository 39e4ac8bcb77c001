"""The doctor sees by how much a server's clock is off, whatever the way there takes."""

import json
from collections.abc import Callable

import pytest

from aiolocks.cli import main
from tests.faults.support.server_clock import ServerClock
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.faults]


def test_a_clock_that_was_stepped_is_seen_and_judged_by_the_ttl(
    servers: Callable[..., RedisServer], clock: ServerClock, capsys: pytest.CaptureFixture[str]
) -> None:
    server = servers(environment=clock.environment)
    for ahead, verdict, ttl in (
        (0, "ok", 30),
        (2, "warning", 30),
        (2, "danger", 1),
        (60, "danger", 30),
        (60, "warning", 300),
        (-60, "danger", 30),
    ):
        clock.step(ahead - clock.ahead)
        status = main(["doctor", "--json", "--url", server.url, "--ttl", str(ttl)])
        checks = {check["check"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
        figures = checks["clock"]["figures"]
        assert (checks["clock"]["verdict"], status) == (verdict, int(verdict == "danger"))
        assert abs(figures["ahead_s"] - ahead) <= figures["doubt_s"] < 0.5
