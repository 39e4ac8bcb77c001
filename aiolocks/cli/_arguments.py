"""Arguments that several commands share, and a parser that never repeats a password."""

import argparse
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from .._core.keys import check_name, check_prefix
from .._core.options import MAX_NOTE, check_ttl
from .._core.values import printable

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]

URL_VARIABLE = "AIOLOCKS_URL"

_CREDENTIALS = re.compile(r"(?s)(?<=://)(?:.*password=.*@.*|.*(?=@))|(?<=password=).+")
"""Credentials in a text. A password may contain any character. So a match extends to the last @, or after `password=`
to the end of the text. If an @ follows that, all behind :// can be credentials."""


class Unusable(Exception):
    """The arguments or the server cannot be used. The text is one line that says how to fix it, without credentials."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors show no credentials: an argument in the wrong place may be a URL."""

    def error(self, message: str) -> NoReturn:
        super().error(masked(message))


def masked(text: str) -> str:
    """Return *text* without the credentials of a URL (P14)."""
    return _CREDENTIALS.sub("…", text)


def shown(text: str) -> str:
    """Return a name, pattern or prefix as printable text without credentials, as it may be a URL in the wrong place."""
    return masked(printable(text))


def add_url(parser: argparse.ArgumentParser) -> None:
    """Add ``--url``; see `url_of`."""
    parser.add_argument(
        "--url",
        help="redis://HOST:PORT/DB, rediss://, unix:///PATH, redis+sentinel://HOST,HOST/SERVICE or "
        f"redis+cluster://HOST,HOST; if left out, the variable {URL_VARIABLE} (better for a password, because lists of "
        "processes show arguments), else redis://localhost",
    )


def url_of(arguments: argparse.Namespace) -> str:
    """Return the URL of the arguments, or else of the environment.

    An empty URL, from an unset shell variable, is an error. With a default instead, hosts that each have a local Redis
    would not exclude each other.

    Raises:
        Unusable: The variable is empty.
    """
    if arguments.url is not None:
        return str(arguments.url)
    url = os.environ.get(URL_VARIABLE, "redis://localhost")
    if not url:
        raise Unusable(f"{URL_VARIABLE} is empty; set it to the URL of your Redis, or unset it for redis://localhost")
    return url


def add_prefix(parser: argparse.ArgumentParser) -> None:
    """Add ``--prefix``."""
    about = "prefix of your keys, aiolocks: if left out"
    parser.add_argument("--prefix", type=_checked(check_prefix), default="aiolocks:", help=about)


def add_json(parser: argparse.ArgumentParser, what: str = "print one JSON object, for scripts") -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help=what)


def _checked(check: Callable[[Any], object]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        try:
            check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return convert


name = _checked(check_name)
"""Type of an argument: the name of a lock."""


def ttl(text: str) -> float:
    """Type of an argument: a TTL."""
    try:
        return check_ttl(float(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def seconds(text: str) -> float:
    """Type of an argument: a duration."""
    try:
        given = float(text)
    except ValueError:
        given = -1
    if not 0 <= given <= 10**9:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, 0 or more, not {text!r}")
    return given


def count(text: str) -> int:
    """Type of an argument: a count."""
    if len(text) > 9:
        raise argparse.ArgumentTypeError(f"must be less than 1e9, not {text!r}")
    return fencing_token(text)


def note(text: str) -> str:
    """Type of an argument: a text for the holders of a lease."""
    if len(text) > MAX_NOTE:
        raise argparse.ArgumentTypeError(f"must have at most {MAX_NOTE} characters, not {len(text)}")
    return text


def fencing_token(text: str) -> int:
    """Type of an argument: a fencing token."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, not {text!r}")
    return int(text)
