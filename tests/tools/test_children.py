"""What the tests start does not outlive them."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.children import family

pytestmark = pytest.mark.rest

_PROGRAM = """
from tests.support.servers import RedisServer
with RedisServer() as server:
    print(server._running().pid, flush=True)
    input()
"""


def _runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text(encoding="utf-8")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends them")
def test_a_server_ends_with_the_process_that_started_it_even_if_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        server = int(process.stdout.readline())
        assert _runs(server)
        process.kill()
    give_up_at = time.monotonic() + 5
    while _runs(server):
        assert time.monotonic() < give_up_at, "it runs on"
        time.sleep(0.01)


@pytest.mark.smoke
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_family_hears_signals_though_this_process_ignores_them(number: signal.Signals) -> None:
    """As when the tests were started by nohup, or by a script with `&`."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with family("sh", "-c", f"kill -{number.name.removeprefix('SIG')} $$; echo deaf") as process:
            assert process.communicate(timeout=10)[0] == ""
    finally:
        signal.signal(number, before)
    assert process.returncode == -number
