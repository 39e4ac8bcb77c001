"""What only an all-seeing observer can check: it reads each request, each reply, and the keys behind them.

The promises that it checks are numbered as in README, the rules as in aiolocks/ARCHITECTURE.md.
"""

import math
import re
from collections.abc import Callable
from typing import Any, final

from aiolocks._core.tokens import own_part
from aiolocks._redis.scripts import Script

from .cluster import Cluster
from .history import History
from .modes import in_modes, suffices
from .names import Name, Waiter
from .process import Process
from .replies import MORE, Replies
from .requests import Asked, read, scripts, whole
from .server import WAKE, RawError, Server, ServerSocket
from .things import Thing
from .world import World

VOTED = "aiolocks:quorum:"
"""What is held by a majority of servers: of those, one alone cannot tell."""

LATE = 0.1
"""Seconds after its grant until which a start begins that counts in full, even if its release is lost."""

_NOTICE = re.compile(rb"(\S+) (-?\d+) (\d+) (.+)", re.DOTALL)

_REDIRECTIONS = ("MOVED ", "ASK ", "TRYAGAIN ", "CLUSTERDOWN ", "NOREPLICAS ", "READONLY ")
"""How answers begin after which nothing was done; but a script whose first write is refused may have read."""

_BROKEN_OFF = "non local key"

Seen = Server | Cluster
"""What is looked over."""


@final
class Observer:
    """Counts what the scripts did, and sees whether they might. *sane*: what is held is held, as nothing is lost."""

    def __init__(self, world: World, server: Seen, history: History) -> None:
        self._world = world
        self._server = server
        self._history = history
        self._scripts = scripts(world.seed)
        self._names: dict[bytes, Name] = {}
        self._published: list[bytes] = []
        self._replies = Replies(world, server, history)
        self.sane = True
        self.stepped_back = 0.0  # seconds
        server.watcher = self
        history.look = self.look
        history.free_since, history.started = self.free_since, self.started

    def executed(self, socket: ServerSocket, fields: list[bytes], reply: Any) -> None:
        script = self._scripts.get(fields[1]) if len(fields) > 1 and fields[0] in (b"EVAL", b"EVALSHA") else None
        if script is None:
            if fields[0] == b"UNSUBSCRIBE":
                self.unsubscribed([])
            # What a session has published is of this very process, and so never the same.
            if self._world.tracing and not (fields[0] == b"HMGET" and b":session:" in fields[1]):
                self._world.note("server", f"{socket.number}: {b' '.join(fields)!r} -> {reply!r}")
            return
        if isinstance(reply, RawError):
            self._error(script, reply, socket, fields)
            return
        asked = read(script, fields)
        if script.name == "session/introduce":  # of this very process, and so never the same
            return
        if self._world.tracing:
            shown = b" ".join([asked.base, b" ".join(asked.values)]).decode()
            self._world.note("server", f"{socket.number}: {script.name} {shown} -> {reply!r}")
        kind, _, verb = script.name.partition("/")
        if script.name == "modes/fence":
            self._seal([key for key in fields[3 : 3 + int(fields[2])] if key.endswith(b":meta")])
            return
        if kind == "redlock":
            self._world.meet("fencing tokens refused by a server" if verb == "raise" and reply else "votes", "server")
            return
        if verb == "renew_many":
            keys = fields[3 : 3 + int(fields[2])]
            self._renewed(keys if kind == "lock" else keys[::2], reply)
            return
        name = self._names.setdefault(asked.base, Name(asked.base))
        if not socket.channels:  # it cannot ask who listens, and so passes over all others
            for waiter in name.waiting.values():
                waiter.reachable = waiter.reachable and waiter.session == asked.args.get("session")
        known = dict(name.waiting)
        asker = getattr(socket.outlet, "process", None)
        if asker is not None and "token" in asked.args:
            name.askers[asked.args["token"]] = asker
        self._replies.note(name, verb, asked, reply, of_ghost=socket.outlet is None, sane=self.sane)
        self._compare(name, kind, known, asked.args, adopted=verb == "adopt")
        if verb == "grant":
            self._check_refusal(name, asked, reply)

    def published(self, channel: bytes, message: bytes, subscribers: int) -> None:
        """W1: a session that nobody listens for is handed nothing."""
        notice = _NOTICE.fullmatch(message)
        if notice is None or not channel.startswith(WAKE):
            return
        token, fence = notice[1], int(notice[2])
        if fence == MORE:
            self._world.meet("notices that there is more", "server")
            return
        if fence < 0:
            self._world.meet("refusals sent", "server")
            self._names[notice[4]].waiting.pop(token, None)
            return
        self._world.meet("hand-offs to another session", "server")
        self._published.append(token)
        if not subscribers:
            self._world.violate(f"W1: {notice[4].decode()}: handed to {channel.decode()}, where nobody listens")

    def unsubscribed(self, channels: list[bytes]) -> None:
        for name in self._names.values():
            for waiter in name.waiting.values():
                if waiter.reachable and not self._server.listeners(name.base, waiter.session):
                    waiter.reachable = False

    def forget(self) -> None:
        for name in self._names.values():
            name.forget()

    def held(self, base: bytes) -> bool:
        name = self._names.get(base)
        return name is not None and bool(self._holders(name))

    def free_since(self, base: str) -> float:
        """Return the true time at which the last lease of *base* ended; infinity while there is one."""
        name = self._names.get(base.encode())
        if name is None:
            return float("-inf")
        return name.taken_until if name.taken_until < self._world.now else float("inf")

    def unwanted(self, base: bytes, longest: float, asking: Callable[[Process], bool]) -> str | None:
        """P7: return what nobody has wanted, or what has been free though somebody waits, for *longest* seconds.

        *asking*: whether a process asks for several names just now, one of which it may have got already.
        """
        name = self._names.get(base)
        if name is None:
            return None
        now, holders = self._world.now, self._holders(name)
        started = {fence for _, _, fence, _ in name.starts}  # a call that is cancelled has used no start
        odd = {
            token: "is held by nobody"
            for token in holders
            if token.decode() not in self._history.taken and not (token in name.askers and asking(name.askers[token]))
            if token not in name.marks or (b":rate:" in base and holders[token][0] not in started)
        }
        if not holders and name.waiting:
            odd[b""] = "is free, but somebody waits"
        since = name.unknown_since = {token: name.unknown_since.get(token, now) for token in odd}
        for token, begun in since.items():
            if now - begun > longest:
                return f"{base.decode()} {odd[token]}, for {now - begun:.3f} s"
        return None

    def holds(self, base: str, token: str) -> bool:
        """Return whether *token* holds *base* on the server just now: by its secret, as each server has a session."""
        name = self._names.get(base.encode())
        return name is not None and own_part(token.encode()) in map(own_part, self._holders(name))

    def look(self, base: str) -> None:
        if self.sane and (name := self._names.get(base.encode())) is not None:
            name.holders = self._holders(name)
            self._check_held(name, base)

    def started(self, thing: Thing, fence: int, cost: int) -> None:
        """W28: no window has too many starts, and no start begins after its permit has ended.

        A start counts for all of the window if its release came in time, or if it began soon after its grant.
        """
        name, per, now = self._names[thing.base.encode()], thing.ttl, self._server.clock() + self.stepped_back
        self._holders(name)
        granted = name.granted.get(fence, -math.inf)
        name.starts.append((now, min(now, granted + LATE), fence, cost))
        counts = [cost for at, sure, of, cost in name.starts if now < per + (at if of in name.kept else sure)]
        if sum(counts) > thing.limit:
            self._world.violate(f"W28: {thing.base}: {sum(counts)} starts within {per:g} s, not {thing.limit}")
        elif self.sane and now > granted + per + LATE + 0.002:
            self._world.violate(f"W28: {thing.base}: a start began {now - granted:.3f} s after its grant")

    def _error(self, script: Script, error: RawError, socket: ServerSocket, fields: list[bytes]) -> None:
        self._world.note("server", f"{socket.number}: {script.name} -> {error}")
        text = str(error)
        if text.startswith("NOSCRIPT"):
            self._world.meet("NOSCRIPT", "server")
        elif text.startswith(_REDIRECTIONS):
            self._world.meet(f"answers {text.partition(' ')[0]}", "server")
        elif _BROKEN_OFF in text:
            self._world.meet("scripts that broke off", "server")
            self._published = []
            self._holders(self._names.setdefault(fields[3], Name(fields[3])))
        else:
            self._world.violate(f"{script.name} failed: {error}")

    def _renewed(self, bases: list[bytes], reply: list[int]) -> None:
        self._world.meet("leases renewed together", "server")
        for base, answer in zip(bases, reply, strict=True):
            self._world.meet("renewals" if answer == 1 else "renewals that were put off", "server")
            name = self._names.setdefault(base, Name(base))
            self._compare(name, base.split(b":")[1].decode(), dict(name.waiting), {})

    def _seal(self, metas: list[bytes]) -> None:
        """P8: what all levels of a path are given is larger than all that was given at one of them."""
        given: set[int] = set()
        for meta in metas:
            name = self._names.setdefault(meta.removesuffix(b":meta"), Name(meta.removesuffix(b":meta")))
            name.holders = self._holders(name)
            for token, (fence, _) in name.holders.items():
                if name.fences.get(token) != fence:
                    given.add(fence)
                    name.fences[token] = fence
                    if fence <= name.newest:
                        self._world.violate(f"P8: {name.base.decode()}: sealed with {fence} after {name.newest}")
                    name.newest = max(name.newest, fence)
        if given:
            self._world.meet("paths sealed with one fencing token", "server")
        if len(given) > 1:
            self._world.violate(f"P8: {metas[-1].decode()}: sealed with several fencing tokens: {given}")

    def _holders(self, name: Name) -> dict[bytes, tuple[int, int]]:
        """Return who holds *name* on the server: fencing token and permits of each token. Check P3 on the way."""
        marked = name.marks
        holders, ends = name.standing(self._server.database())
        for token, mark in name.marks.items():
            if token not in marked:
                self._world.meet(f"marks {mark.decode()}", "server")
            elif mark == b"R" and ends[token] > name.ends.get(token, math.inf) + 2e-3:
                self._world.violate(f"W16: a lease of {name.base.decode()} was extended after its revocation")
        if not self.stepped_back:
            for token, end in ends.items():
                # In memory, keys end between milliseconds, which a mark rounds away; a lease that cools ends sooner.
                early = math.inf if name.marks.get(token) == b"C" else 2e-3 if token in name.marks else 1e-4
                if end < name.ends.get(token, 0.0) - early:
                    self._world.violate(
                        f"P3: a lease of {name.base.decode()} was shortened by {name.ends[token] - end} s"
                    )
        for token in ends.keys() - name.marks.keys():
            if ends[token] > name.ends.get(token, 0.0):
                name.granted[holders[token][0]] = self._server.clock() + self.stepped_back
        if self.sane:
            for token in [token for token, end in ends.items() if end != name.ends.get(token)]:
                self._world.at(self._server.true_time(ends[token]) + 0.001, self._history.look, name.base.decode())
        name.ends = ends
        return holders

    def _compare(
        self, name: Name, kind: str, known: dict[bytes, Waiter], args: dict[str, bytes], *, adopted: bool = False
    ) -> None:
        after = name.holders = self._holders(name)
        ended = max((self._server.true_time(end) for end in name.ends.values()), default=self._world.now)
        name.taken_until = ended if after else min(name.taken_until, ended)
        published, self._published = self._published, []
        text = name.base.decode()
        kind = "modes" if in_modes(text) else kind  # holders of modes are read by a script of semaphores
        if kind == "semaphore":
            self._note_limit(name)
        # Without a fencing token it is no grant: its entry in the hash was lost, as on a node that came back empty.
        offered = {token: after[token][0] for token, mark in name.marks.items() if mark == b"O"}
        name.fences |= offered  # W17: the secret stands for the lease that was handed off
        granted = [token for token, (fence, _) in after.items() if fence and fence != name.fences.get(token)]
        for token in sorted(granted, key=lambda each: after[each][0]):
            fence = after[token][0]
            self._world.meet("grants", "server")
            self._world.meet(f"grants of {text.split(':')[1]}", "server")
            name.fences[token] = fence
            name.waiting.pop(token, None)
            if fence <= name.newest:
                self._world.violate(f"P8: {text}: fencing token {fence} after {name.newest}")
            name.newest = max(name.newest, fence)
            asked_anew = int(args.get("ticket", b"0").replace(b"+", b"0")) if token == args.get("token") else 0
            if not adopted:
                self._check_order(name, token, known, asked_anew, text)
        if kind == "modes":
            for modes in name.at_odds():
                self._world.violate(f"C1: {text}: the modes {modes} are held at one time on the server")
        elif granted and not adopted:  # a limit can have been lowered since the grant
            used = sum(permits for _, permits in after.values())
            if used > name.limit:
                self._world.violate(f"P9: {text}: {used} permits granted, the limit is {name.limit}")
        self._check_held(name, text)
        for token in published:
            if token not in after:
                self._world.violate(f"{text}: a grant was announced that is none")

    def _check_refusal(self, name: Name, asked: Asked, reply: Any) -> None:
        """C3: a free name for which no caller waits is not refused, unless a script had no time to look."""
        answer = whole("grant", reply)
        if answer[0] != b"busy" or any(fence == MORE for _, fence, _ in answer[2]):
            return
        token, wanted = asked.args["token"], int(asked.values[2])
        if name.admits(token, wanted) and not self._server.database().get(name.base + b":queue"):
            self._world.violate(f"C3: {name.base.decode()}: {token.decode()[:8]} was told busy, though it was free")

    def _check_order(self, name: Name, token: bytes, known: dict[bytes, Waiter], asked_anew: int, text: str) -> None:
        """FIFO among those who are known to wait, to live, and to be reachable."""
        if not self.sane:
            return
        for other in name.overtaken(token, known, asked_anew, self._server.clock()):
            self._world.violate(
                f"FIFO: {text}: {token.decode()[:8]} was granted before {other.decode()[:8]} of "
                f"{name.waiting[other].session.decode()[:8]}, which was reachable and had waited for longer"
            )

    def _check_held(self, name: Name, text: str) -> None:
        """P1, P2, P4: whoever believes to hold does, on the server, at every instant."""
        if not self.sane or text.startswith(VOTED):
            return
        for believed, permits in self._history.believed(text).items():
            _, has = name.holders.get(believed.encode(), (0, 0))
            if not has:
                self._world.violate(f"P1: {text}: {believed[:8]} believes to hold, but does not on the server")
            elif in_modes(text) and not suffices(has, permits):
                self._world.violate(f"P1: {text}: {believed[:8]} believes to hold in mode {permits}, not {has}")

    def _note_limit(self, name: Name) -> None:
        limit = name.limit_in_force(self._server.database())
        if limit and limit != name.limit:
            name.limit = limit
            self._history.limit(name.base.decode(), limit)
