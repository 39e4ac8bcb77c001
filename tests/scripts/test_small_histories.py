"""Histories of the two scripts that keep no lease: a versioned value, and a fencing token that servers agree on."""

from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from redis import Redis

from aiolocks._redis.scripts import load
from tests.scripts.histories import LONG, SETTINGS
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(0 if LONG else 60)]

_VALUES = st.sampled_from([b"one", b"two", b"", b"1"])
_READER = st.integers(0, 2)
_ABSENT = ("", None)

Version = tuple[str, bytes | None]
"""Which write made a value, or "" where that is not known; and the value."""


class VersionedHistory(RuleBasedStateMachine):
    """Readers who write what they have read anew, and others who write without asking."""

    redis: ClassVar[Any]

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        self.value: bytes | None = None
        self.mark: Version | None = None
        self.done: dict[str, Version] = {}
        self.seen: list[Version] = [_ABSENT] * 3
        self.writes = 0

    @property
    def version(self) -> Version:
        if self.value is not None and self.mark is not None and self.mark[1] == self.value:
            return self.mark
        return "", self.value

    @rule(reader=_READER)
    def read(self, reader: int) -> None:
        value, version = self.redis.eval(load("versioned/read").source, 2, "value", "mark")
        assert (value, version) == (self.value, _text(self.version))
        self.seen[reader] = self.version

    @rule(reader=_READER, new=_VALUES, again=st.integers(0, 2))
    def write(self, reader: int, new: bytes, again: int) -> None:
        self.writes += 1
        for _ in range(1 + again):
            self._write(f"w{self.writes}", reader, new)

    @rule(reader=_READER, new=_VALUES)
    def a_late_copy_of_the_last_write_comes(self, reader: int, new: bytes) -> None:
        if f"w{self.writes}" in self.done:
            self._write(f"w{self.writes}", reader, new)

    def _write(self, write: str, reader: int, new: bytes) -> None:
        expected, now = self.seen[reader], self.version
        outcome, version = self.redis.eval(
            load("versioned/write").source, 3, "value", "mark", f"done {write}",
            _text(expected), new, write, 0, 86_400_000, 60_000,
        )  # fmt: skip
        if write in self.done:
            assert (outcome, version) == (1, _text(self.done[write])), "the same write is done once"
            return
        alike = self.mark is None and self.value is not None and expected[1] == self.value
        if expected == now or alike:
            self.value, self.mark = new, (write, new)
            self.done[write] = self.mark
            assert (outcome, version) == (1, _text(self.mark))
        else:
            assert (outcome, version) == (0, _text(now)), "a conflict names the version that is in the way"
        assert self.redis.get("value") == self.value

    @rule(value=_VALUES | st.none())
    def somebody_writes_without_asking(self, value: bytes | None) -> None:
        self.value = value
        if value is None:
            self.redis.delete("value")
        else:
            self.redis.set("value", value)

    @rule()
    def the_mark_lapses(self) -> None:
        self.redis.delete("mark")
        self.mark = None


def _text(version: Version) -> bytes:
    write, value = version
    return b"absent" if value is None else f"{write}-{sha1(value).hexdigest()}".encode()


@dataclass(slots=True)
class Proposal:
    """A fencing token that somebody puts to the servers, one after the other."""

    token: str
    number: int
    not_above: int
    """The largest that had been agreed on when it was first put to one."""
    accepted: set[int] = field(default_factory=set[int])


class AgreementHistory(RuleBasedStateMachine):
    """Three servers, reached in any order, late or twice."""

    redis: ClassVar[Any]

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        self.proposals: list[Proposal] = []
        self.largest = [(0, "")] * 3
        self.fences = [0] * 3
        self.agreed: dict[int, str] = {}

    @rule(ahead=st.integers(-2, 3), asker=st.integers(0, 3), server=st.integers(0, 2))
    def propose(self, ahead: int, asker: int, server: int) -> None:
        number = max(1_763_733_600_000_000, *(number for number, _ in self.largest)) + ahead
        token = f"token{asker}"
        known = [old for old in self.proposals if (old.token, old.number) == (token, number)]
        if not known:
            self.proposals.append(Proposal(token, number, max(self.agreed, default=0)))
        self._put(known[0] if known else self.proposals[-1], server)

    @rule(which=st.integers(0, 9), server=st.integers(0, 2))
    def put_to_another(self, which: int, server: int) -> None:
        if self.proposals:
            self._put(self.proposals[-1 - which % len(self.proposals)], server)

    @rule(server=st.integers(0, 2), ahead=st.integers(1, 5))
    def a_server_grants(self, server: int, ahead: int) -> None:
        """By itself, with a fencing token of its own."""
        self.fences[server] += ahead
        self.redis.set(f"fence{server}", self.fences[server])

    def _put(self, proposal: Proposal, server: int) -> None:
        answer = self.redis.eval(
            load("redlock/raise").source, 2, f"agreed{server}", f"fence{server}", proposal.token, proposal.number
        )
        number, owner = self.largest[server]
        if number > proposal.number or (number == proposal.number and owner != proposal.token):
            assert answer == number, "refused with what is in the way"
        else:
            assert answer == 0
            self.largest[server] = proposal.number, proposal.token
            self.fences[server] = max(self.fences[server], proposal.number)
            proposal.accepted.add(server)
        assert int(self.redis.get(f"fence{server}") or 0) == self.fences[server], "grants go on from there"
        if len(proposal.accepted) >= 2:
            assert self.agreed.setdefault(proposal.number, proposal.token) == proposal.token, "one token, one owner"
            assert proposal.number > proposal.not_above, "what is agreed on later is larger"


@pytest.mark.parametrize("machine", [VersionedHistory, AgreementHistory])
def test_any_history_is_that_of_the_model(
    machine: type[VersionedHistory | AgreementHistory], server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Redis.from_url(server.url) as redis:
        monkeypatch.setattr(machine, "redis", redis, raising=False)
        run_state_machine_as_test(machine, settings=SETTINGS)
