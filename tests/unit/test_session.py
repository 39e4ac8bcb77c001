"""Sessions of several loops and threads do not get into each other's way."""

import asyncio
import threading

from aiolocks._memory import memory_client
from aiolocks._session import Session, _sessions


class SlowToTell(asyncio.SelectorEventLoop):
    """A loop that, once closed, tells two threads so at the same moment."""

    both: threading.Barrier | None = None

    def __init__(self) -> None:
        self.told: set[int] = set()
        super().__init__()

    def is_closed(self) -> bool:
        closed, thread = super().is_closed(), threading.get_ident()
        if self.both is not None and thread not in self.told:
            self.told.add(thread)
            self.both.wait(5)
        return closed


def test_two_threads_may_find_the_sessions_of_one_closed_loop_at_the_same_moment() -> None:
    pools = [memory_client("memory://").connection_pool for _ in range(3)]

    async def begin(pool: object) -> None:
        Session.of(pool)

    closed = SlowToTell()
    closed.run_until_complete(begin(pools[0]))
    [key] = [key for key in _sessions if key[1] is closed]
    closed.close()
    closed.both = threading.Barrier(2)
    errors: list[BaseException] = []

    def find(pool: object) -> None:
        try:
            asyncio.run(begin(pool))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=find, args=(pool,)) for pool in pools[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    closed.both = None
    assert errors == []
    assert key not in _sessions
