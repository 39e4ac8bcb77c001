"""What the tests start does not outlive them."""

import os
import signal
import sys

import pytest

from tests.support import workers
from tests.support.children import family
from tests.surface.test_run import alive, wait_until

pytestmark = pytest.mark.rest

_SERVING = """
import time
from tests.support.servers import RedisServer
with RedisServer() as server:
    print(server.pid, flush=True)
    time.sleep(60)
"""

_FORKED_AND_STOPPED = """
import os, signal, time
if child := os.fork():
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends them")
def test_a_server_ends_with_the_process_that_started_it_even_if_that_is_killed() -> None:
    with workers.spawn("-c", _SERVING) as worker:
        server = int(worker.line())
        os.kill(server, 0)
        worker.kill()
        wait_until(lambda: not alive(server))


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


def test_no_worker_survives_its_block_though_stopped_or_forked() -> None:
    with workers.spawn("-c", _FORKED_AND_STOPPED) as worker:
        child = int(worker.line())
        worker.wait_until_stopped()
    assert worker.wait() == -signal.SIGKILL
    wait_until(lambda: not alive(child))
