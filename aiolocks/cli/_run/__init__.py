"""`aiolocks run NAME -- COMMAND…`: run a command while holding a lock, as flock(1) does, for many hosts.

If the lease is lost, the command is stopped within the margin, before another caller can be granted the lock.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import _arguments
from .._arguments import Unusable

if TYPE_CHECKING:
    from .._arguments import Commands

_BUSY = 75
"""EX_TEMPFAIL of sysexits.h."""

_EXPLAINED = """
exit status: the command's own, 128+N if signal N ended it;
  75  not acquired within --wait, or --max-waiting others wait already (see --busy-exit)
  74  the lease was lost or revoked, and the command was stopped
  69  Redis could not be asked
   2  wrong usage
 126  the command cannot be run; 127: it was not found

The command has AIOLOCKS_NAME and AIOLOCKS_FENCING_TOKEN in its environment. It runs in a process group of its own:
TERM, INT, HUP, QUIT and WINCH are passed on to the whole group, USR1 and USR2 to the command alone. If the lease is
lost, the group ends, and on Linux all other processes that descend from the command. If this program is killed, so is
the group. Processes that outlive the command are not guarded any more.

  aiolocks run nightly --wait 0 --min-hold 50 --busy-exit 0 -- ./backup.sh

With --again this host stands in the election NAME, for ever. Whenever it is elected, the command is started. If the
lease is lost, the command is stopped, and the host stands again. This ends only when the command ends by itself, with
its exit status, or by a signal. An outage of Redis is one line a minute. It excludes other runs with --again and
programs with an aiolocks.Election of the same name and prefix, but no run without --again.

  aiolocks run scheduler --again --ttl 10 -- ./scheduler.sh
"""


def register(commands: "Commands") -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "run",
        help="run a command while holding a lock",
        usage="aiolocks run NAME [options] -- COMMAND [ARGUMENT ...]",
        description="Run a command while holding a lock: on any number of hosts, one at a time.",
        epilog=_EXPLAINED,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", type=_arguments.name, help="the name of the lock")
    _arguments.add_url(parser)
    _arguments.add_prefix(parser)
    parser.add_argument(
        "--limit", type=_arguments.count, metavar="N", help="use a semaphore: N commands may run at the same time"
    )
    parser.add_argument(
        "--ttl", type=_arguments.ttl, default=30.0, metavar="S",
        help="seconds until another may run after this host dies, 30 if left out; renewed while the command runs",
    )  # fmt: skip
    parser.add_argument(
        "--wait", type=_arguments.seconds, metavar="S",
        help="seconds to wait for the lock; 0 asks once; for ever if left out",
    )  # fmt: skip
    parser.add_argument(
        "--max-waiting", type=_waiting, metavar="N",
        help="do not wait if N others wait already; 0 never waits; no bound if left out",
    )  # fmt: skip
    parser.add_argument(
        "--min-hold", type=_arguments.seconds, default=0.0, metavar="S",
        help="minimum time in seconds until another may run, even if the command ends earlier: for jobs that several "
        "hosts start in the same minute",
    )  # fmt: skip
    parser.add_argument(
        "--on-lost", choices=("kill", "warn"), default="kill",
        help="reaction to the loss of the lease: kill the command (TERM, then KILL; if left out) or only warn",
    )  # fmt: skip
    parser.add_argument(
        "--busy-exit", type=_status, default=_BUSY, metavar="N",
        help="exit status if the lock is not acquired within --wait, or too many wait, 75 if left out; 0 also prints "
        "nothing",
    )  # fmt: skip
    parser.add_argument(
        "--again", action="store_true",
        help="stand in the election NAME, and start the command whenever this host is elected again",
    )  # fmt: skip
    parser.set_defaults(run=_run, words=[])


_OF_FLOCK = {
    "-n": "--wait 0", "--nb": "--wait 0", "--nonblock": "--wait 0",
    "-w": "--wait", "--timeout": "--wait", "-E": "--busy-exit", "--conflict-exit-code": "--busy-exit",
}  # fmt: skip
"""Options of flock(1), with their names here."""


def hint(unknown: Sequence[str]) -> str:
    """Return a hint about the first of the *unknown* arguments, to follow an error's text, or ""."""
    first = unknown[0].partition("=")[0]
    if not first.startswith("-"):
        return "; write -- before the command"
    return f"; use {_OF_FLOCK[first]}" if first in _OF_FLOCK else ""


def _status(text: str) -> int:
    if not text.isdecimal() or int(text) > 255:
        raise argparse.ArgumentTypeError(f"must be between 0 and 255, not {text!r}")
    return int(text)


def _waiting(text: str) -> int:
    if not text.isdecimal() or int(text) > 10**9:
        raise argparse.ArgumentTypeError(f"must be between 0 and 1,000,000,000, not {text!r}")
    return int(text)


def _check_again(arguments: argparse.Namespace) -> None:
    """Raise Unusable for options that make no sense in an election."""
    for option, given, why in (
        ("--limit", arguments.limit is not None, "one host is elected"),
        ("--wait", arguments.wait is not None, "it stands until it is elected"),
        ("--max-waiting", arguments.max_waiting is not None, "it stands until it is elected"),
        ("--busy-exit", arguments.busy_exit != _BUSY, "it stands until it is elected"),
        ("--min-hold", arguments.min_hold > 0, "it leads until the command ends"),
        ("--on-lost warn", arguments.on_lost == "warn", "the command is stopped before the next host is elected"),
    ):
        if given:
            raise Unusable(f"--again goes without {option}: {why}")


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.words:
        raise Unusable("the command is missing: aiolocks run NAME -- COMMAND")
    if arguments.again:
        _check_again(arguments)
    url = _arguments.url_of(arguments)
    if url.startswith("memory:"):
        raise Unusable("memory:// excludes no other process; give the --url of a Redis")
    if sys.platform == "win32":
        raise Unusable("it needs the process groups of POSIX systems")
    from . import _held

    return _held.run(arguments, url)
