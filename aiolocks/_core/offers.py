"""The text of a lease that is handed on: what is held, the secret under which it is offered, and for how long.

It names no server. Who reads it can adopt the lease, or release it; so it is shown nowhere, and no error quotes it.
"""

import json
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Any, final

_START = "lease1."


@final
@dataclass(frozen=True, slots=True, repr=False)
class Offer:
    """What such a text says."""

    kind: str
    bases: tuple[bytes, ...]
    """The key of each holder, which is made of the prefix, the kind and the name."""
    share: int
    """Of a semaphore the permits; a mode."""
    secret: bytes
    ttl: float
    """Seconds that it lasts at least, from when it was handed off."""

    def secret_of(self, at: int) -> bytes:
        """Return what stands in place of the token of the name at that place: no two of one lease are the same."""
        return b"%b.%d" % (self.secret, at) if len(self.bases) > 1 else self.secret

    def text(self) -> str:
        names = [base.decode() for base in self.bases]
        said = json.dumps([self.kind, names, self.share, self.secret.decode(), self.ttl]).encode()
        return _START + urlsafe_b64encode(zlib.crc32(said).to_bytes(4, "big") + said).decode()


def offer_of(text: str | bytes) -> Offer:
    """Read a text.

    Raises:
        TypeError: It is neither str nor bytes.
        ValueError: It is another text, or not the whole of one.
    """
    given: object = text
    if not isinstance(given, (str, bytes)):
        raise TypeError(f"text must be what hand_off() returned, not {type(given).__name__}")
    given = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    offer = _read(given)
    if offer is None or offer.text() != given:  # raised here, as an error of what reads it would keep the text
        raise ValueError("text must be what hand_off() returned: this is another text, or not the whole of it")
    return offer


def _read(text: str) -> Offer | None:
    try:
        whole = urlsafe_b64decode(text.removeprefix(_START).encode("ascii"))
        said = whole[4:]
        if not text.startswith(_START) or zlib.crc32(said).to_bytes(4, "big") != whole[:4]:
            return None
        fields: Any = json.loads(said)
        kind, names, share, secret, ttl = fields
        return Offer(kind, tuple(name.encode() for name in names), share, secret.encode(), ttl)
    except (ValueError, TypeError, AttributeError):
        return None
