"""A server that cannot be asked, or a wrong URL, is one line and status 2 for every command (`run`: 69)."""

from collections.abc import Callable

import pytest

from aiolocks.cli import main
from tests.support.servers import RedisServer

COMMANDS = [
    "ls", "show x", "release x", "watch --once", "doctor", "bench --seconds 0.1", "demo",
]  # fmt: skip

RUN = "run x --wait 1 -- true"

NO_SERVER = "127.0.0.77"
"""An address of this host at which no program listens, not even at Redis's usual port."""


def ended(command: str, url: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run *command*; return its status and all that it said."""
    words, dashes, program = command.partition(" -- ")
    status = main([*words.split(), "--url", url, *(dashes + program).split()])
    said = capsys.readouterr()
    return status, said.out + said.err


def problems(url: str, says: str, capsys: pytest.CaptureFixture[str], *, away: bool = True) -> list[str]:
    """Return which commands did not end with one line that has *says* in it; *away*: the URL is right."""
    found = list[str]()
    for command in [*COMMANDS, RUN]:
        status, said = ended(command, url, capsys)
        expected = 69 if command == RUN and away else 2
        if status != expected or says not in said or len(said.strip().splitlines()) != 1:
            found.append(f"{command}: {status}\n{said}")
        if "s3same" in said:
            found.append(f"{command}: shows the password\n{said}")
    return found


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "redis+sentinel"])
def test_a_server_that_is_away_is_one_line_and_status_2(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = problems(f"{scheme}://{NO_SERVER}{'/orders' if 'sentinel' in scheme else ''}", NO_SERVER, capsys)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:s3same@{}?foo=1", "redis+cluster://user:s3same@{}?foo=1",
        "redis+sentinel://user:s3same@{}/orders?foo=1", "redis://user:s3same@{}:port", "redis://user:s3same@{}:99999",
        "https://user:s3same@{}",
    ],
)  # fmt: skip
def test_a_wrong_url_is_one_line_and_status_2(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = problems(url.format(NO_SERVER), "this --url ", capsys, away=False)
    assert not found, "\n".join(found)


def test_a_cluster_that_refuses_the_password_is_one_line_and_status_2(
    servers: Callable[..., RedisServer], capsys: pytest.CaptureFixture[str]
) -> None:
    node = servers(options={"requirepass": "right", "cluster-enabled": "yes"})
    found = problems(f"redis+cluster://:s3same@127.0.0.1:{node.port}", "password", capsys)
    assert not found, "\n".join(found)
