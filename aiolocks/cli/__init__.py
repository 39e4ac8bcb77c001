"""The command line: `aiolocks COMMAND`. Each command is a module with a function `register`, which adds its parser.

Exit status: 0 when all is well, 1 when the answer is no, 2 when Redis could not be asked, 130 after Ctrl-C. `run` exits
with the status of its command, or with another status that its help lists.
"""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._core import VERSION, interrupts
from . import _bench, _completion, _demo, _doctor, _ls, _pause, _release, _resize, _run, _watch
from ._arguments import Parser, Unusable
from ._connect import REFUSALS

if TYPE_CHECKING:
    from ._arguments import Commands

_INTERRUPTED = 130
"""Exit status after SIGINT: 128 + 2, as shells expect."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in *argv*, by default that of the process, and return the exit status.

    Raises:
        SystemExit: From argparse, after ``--help`` (0) or unusable arguments (2).
    """
    command = ""
    try:
        interrupts.raise_again()
        _make_writable()
        given = list(sys.argv[1:] if argv is None else argv)
        parser, commands = _parser()
        if not given:
            parser.print_help()
            return 0
        arguments = _parse(parser, commands, given)
        command = f" {arguments.command}"
        answer = arguments.run(arguments)
        status: int = asyncio.run(answer) if asyncio.iscoroutine(answer) else answer
        if arguments.command != "run":  # `run` prints nothing to stdout itself
            sys.stdout.flush()
    except Unusable as error:
        print(f"aiolocks{command}: {error}", file=sys.stderr)
        return 2
    except REFUSALS as error:  # P14: redis-py's texts hold no password
        print(f"aiolocks{command}: Redis cannot be asked: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"aiolocks{command}: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has gone. Without this, Python would report it again when it flushes at exit.
        _discard_output()
        return 1
    except OSError as error:  # writing the output failed: a full disk
        with contextlib.suppress(OSError):
            print(f"aiolocks{command}: the output cannot be written: {error.strerror}", file=sys.stderr)
        _discard_output()
        return 2
    return status


def _make_writable() -> None:
    """Make sure that stdout and stderr exist and accept any character: a job may lack them, or use ASCII."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # open until exit
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(parser: Parser, commands: "Commands", given: list[str]) -> argparse.Namespace:
    """Parse *given*. Words after ``run … --`` belong to another program."""
    own, words = given, list[str]()
    if given[0] == "run" and "--" in given:
        at = given.index("--")
        own, words = given[:at], given[at + 1 :]
    arguments, unknown = parser.parse_known_args(own)
    if unknown:
        hint = _run.hint(unknown) if arguments.command == "run" else ""
        commands.choices[arguments.command].error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    if arguments.command == "run":
        arguments.words = words
    return arguments


def _parser() -> "tuple[Parser, Commands]":
    parser = Parser(prog="aiolocks", description="Locks and semaphores on Redis for asyncio.")
    parser.add_argument("--version", action="version", version=f"aiolocks {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (_demo, _run, _ls, _watch, _release, _resize, _pause, _doctor, _bench, _completion):
        module.register(commands)
    return parser, commands
