"""The ear that listens for secrets hears them, in whatever way they are told."""

import dataclasses
import logging
import warnings
from urllib.parse import quote

import pytest

from tests.support.secrets import PASSWORD, listening

TOKEN = "0123456789abcdef0123456789abcdefg"


class Telling(Exception):
    """Shows what it should not in the way that is asked for."""

    def __init__(self, how: str) -> None:
        super().__init__({"args": TOKEN}.get(how, ""))
        if how == "note":
            self.add_note(f"the token was {TOKEN[11:24]}...")
        if how == "attribute":
            self.lease = TOKEN
        if how == "context":
            self.__context__ = ValueError(quote(PASSWORD, safe=""))


@pytest.mark.parametrize("how", ["args", "note", "attribute", "context", "log", "log arguments", "object", "warning"])
async def test_a_secret_is_noticed(how: str) -> None:
    with pytest.raises(AssertionError, match=r"bcdef0123456|s3same"), listening() as ear:
        ear.note_request(b"*3\r\nEVALSHA\r\n" + TOKEN.encode() + b"\r\n")
        log = logging.getLogger("aiolocks")
        match how:
            case "log":
                log.debug("granted %s", TOKEN)
            case "log arguments":
                log.debug("granted %.3s", TOKEN)
            case "object":
                ear.say("lease", dataclasses.make_dataclass("Lease", ["token"])(TOKEN))
            case "warning":
                with ear.warnings():
                    warnings.warn(f"connecting to redis://:{PASSWORD}@localhost", stacklevel=1)
            case _:
                with ear.raises(Telling):
                    raise Telling(how)
