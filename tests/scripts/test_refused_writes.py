"""A server that refuses writes refuses whole scripts: above all, nobody is told of a lease that was not granted.

That is a primary which has become a replica, one that has lost its replicas, and one that cannot save.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import pytest
from redis.exceptions import ResponseError

from tests.scripts.calls import Scripts, on_server
from tests.scripts.states import configured, contents, demoted, lapse, listening
from tests.support.servers import fail_to_save

pytestmark = on_server

VERBS: dict[str, Callable[[Scripts], object]] = {
    "grant": lambda scripts: scripts.grant("cat"),
    "grant without waiting": lambda scripts: scripts.grant("cat", wait=False),
    "recheck": lambda scripts: scripts.recheck("cat"),
    "release": lambda scripts: scripts.release("cat"),
    "revoke": lambda scripts: scripts.revoke(0, 10**16),
    "revoke by force": lambda scripts: scripts.revoke(0, 10**16, force=True),
    "release of what is held": lambda scripts: scripts.release("ann"),
    "release with tombstone": lambda scripts: scripts.release("cat", tombstone_ms=60_000),
}


@contextmanager
def _refused(scripts: Scripts, refusal: str) -> Iterator[None]:
    """Refuse writes for such a reason, and check that it is the one that the block's only error states."""
    refuse, text = _REFUSALS[refusal]
    with refuse(scripts), pytest.raises(ResponseError, match=text):
        yield


def _unsaved(scripts: Scripts) -> AbstractContextManager[None]:
    fail_to_save(scripts.redis)
    return configured(scripts, save="3600 1")


_REFUSALS: dict[str, tuple[Callable[[Scripts], AbstractContextManager[None]], str]] = {
    "too few replicas": (partial(configured, min_replicas_to_write=1), "(?i)not enough good replicas to write"),
    "demoted": (demoted, "(?i)can't write against a read only replica"),
    "cannot save": (_unsaved, "MISCONF"),
}


@pytest.mark.parametrize("refusal", _REFUSALS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_refused_script_changes_nothing_and_sends_no_message(awaited: Scripts, verb: str, refusal: str) -> None:
    if verb != "release of what is held":
        lapse(awaited, "ann")
    before = contents(awaited)
    with listening(awaited, "away") as inbox:
        with _refused(awaited, refusal):
            VERBS[verb](awaited)
        assert (inbox.texts(), contents(awaited)) == ([], before)


@pytest.mark.parametrize("refusal", _REFUSALS)
def test_a_refused_resize_changes_no_limit_and_sends_no_message(full: Scripts, refusal: str) -> None:
    full.queued("ben", session="away")
    before = contents(full)
    with listening(full, "away") as inbox:
        with _refused(full, refusal):
            full.resize(9)
        assert (inbox.texts(), contents(full)) == ([], before)
