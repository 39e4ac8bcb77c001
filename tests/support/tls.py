"""A redis-server that speaks TLS and nothing else on TCP, with certificates that a test may get wrong."""

from pathlib import Path
from typing import Any, final

import pytest
import trustme

from .servers import RedisServer, ServerError

_FILES = {"ca-cert": "ca.pem", "cert": "cert.pem", "key": "key.pem"}


@final
class TlsServer:
    """Start one with a certificate for localhost, by an authority of its own.

    Skips the test where redis-server was built without TLS.
    """

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self._directory = directory
        self.present(self.authority)
        try:
            self.server = RedisServer(options={"port": "0", **tls_options(directory, "{port}")})
        except ServerError as error:
            if "Bad directive" not in str(error):
                raise
            pytest.skip("this redis-server was built without TLS")
        self.port = self.server.port

    def present(self, authority: trustme.CA, host: str = "localhost", **terms: Any) -> None:
        """Show a certificate of this kind from the next start on."""
        write_certificate(self._directory, authority, host, **terms)

    def url(self, *, host: str = "localhost", trusts: trustme.CA | None = None) -> str:
        """Return the URL of a client that knows the server by *host* and trusts one authority."""
        path = self._directory / f"trusted-{'own' if trusts is None else id(trusts)}.pem"
        (trusts or self.authority).cert_pem.write_to_path(path)
        return f"rediss://{host}:{self.port}?ssl_ca_certs={path}"


def write_certificate(directory: Path, authority: trustme.CA, *hosts: str, **terms: Any) -> None:
    certificate = authority.issue_cert(*hosts, **terms)
    authority.cert_pem.write_to_path(directory / "ca.pem")
    certificate.private_key_pem.write_to_path(directory / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(directory / "cert.pem")


def tls_options(directory: Path, port: str) -> dict[str, str]:
    """Return the lines for redis.conf by which a server speaks TLS at *port*, with what was written to *directory*."""
    files = {f"tls-{name}-file": str(directory / file) for name, file in _FILES.items()}
    return {"tls-port": port, "tls-auth-clients": "no", **files}
