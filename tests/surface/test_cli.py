"""What holds for all of the command line: help, completion, what it imports, and that it repeats no password."""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.sentinel import MasterNotFoundError

import aiolocks
from aiolocks import LockManager
from aiolocks.cli import main
from aiolocks.cli._connect import reason
from tests.support.cases import one_by_one
from tests.support.servers import RedisServer
from tests.surface.commands import Capsys, Command, running
from tests.surface.test_run import result

pytestmark = pytest.mark.rest

BASH = """
source /dev/stdin <<<"$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_aiolocks
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.smoke
def test_without_a_command_there_is_help(capsys: Capsys) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: aiolocks")
    for command in ("run", "ls", "show", "doctor", "demo", "completion"):
        assert f"\n    {command}" in printed


WRONG_USAGE = """
nothing redis://:s3same@host; redis://:s3same@host; ls a redis://user:s3same@host; ls --kind rediss://:s3same@host
nothing "redis://:it's s3same@host"; ls a 'redis://:a "s3same@host'; show x --limit "redis://host?password=it's s3same"
show x --limit=redis://:s3same@host?password=s3same; ls a redis://:s3samepassword=1@host
doctor --ttl 0.01; doctor --ttl x; doctor --ttl nan
doctor --prefix {; demo extra; resize scraper 0; resize scraper -1; resize scraper 1.5; resize scraper 1000000001
resize scraper 2 --pin --unpin; resize scraper; pause scraper; pause scraper 0; pause scraper 86401; pause scraper soon
resume; bench --seconds 0; bench --tasks 1001; run name --url memory:// -- true
run name --url http://:s3same@host -- true; run name --ttl 0.01 -- true; run name --wait -1 -- true
run name --limit 0 -- true; run name --busy-exit 256 -- true; run name --max-waiting -1 -- true
run name --prefix { -- true; run '' -- true; run name redis://:s3same@host -- true
"""


@pytest.mark.smoke
@one_by_one("line", re.split("; |\n", WRONG_USAGE.strip()))
def test_wrong_usage_ends_with_2_and_shows_no_password(line: str, capsys: Capsys) -> None:
    try:
        status: object = main(shlex.split(line))
    except SystemExit as ended:
        status = ended.code
    captured = capsys.readouterr()
    assert (status, captured.out) == (2, "")
    assert "aiolocks" in captured.err
    assert "s3same" not in captured.err


READING = "ls {}; watch --once {}; show {}; release {}; release --json {}; release --dry-run --kind lock {}; resume {}"
CHANGING, JSON = "resize {} 2; pause {} 1; resume {}", "show --json {}; resize --json {} 2; resume --json {}"


@pytest.mark.redis
@pytest.mark.leaves_residue
@pytest.mark.parametrize("name", ["redis://:it's \"a s3same@host", "redis://host?password=it's s3same"])
async def test_a_url_in_place_of_a_name_shows_no_password(
    name: str, locks: LockManager, own_server: RedisServer, command: Command
) -> None:
    """JSON has the exact name of anything on the server, for the script that passes it on."""

    async def told(commands: str) -> list[str]:
        each = [[word.format(name) for word in line.split()] for line in commands.split("; ")]
        return [said.out + said.err for said in [await command(*words) for words in each]]

    assert "s3same" not in "".join(await told(f"{READING}; show --json {{}}; resume --json {{}}"))
    async with locks.lock(name), locks.rlock(name):
        texts = await told(f"{READING}; {CHANGING}")
        assert [("…" in text, "s3same" in text) for text in texts] == [(True, False)] * len(texts)
        assert all(json.dumps(name) in text for text in await told(JSON))
        for status, *arguments in ((75, name, "--wait", "0", "--", "true"), (127, "free", "--", name)):
            with running(own_server.tcp_url, *map(str, arguments)) as process:
                ended, _, text = await asyncio.to_thread(result, process)
            assert (ended, "…" in text, "s3same" in text) == (status, True, False)


COMMANDS = {
    "ls": 2, "show x": 2, "watch --once": 2, "release x": 2, "run x -- true": 69, "doctor": 2, "bench": 2,
}  # fmt: skip
"""With what each ends that cannot ask the server."""


@pytest.mark.redis
def test_an_error_by_a_password_says_where_to_give_it(
    servers: Callable[..., RedisServer], capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs, so that "start it" would be no help."""
    place = f"127.0.0.1:{servers(options={'requirepass': 's3same'}).port}"
    where = "in AIOLOCKS_URL or --url, as redis://USER:PASSWORD@HOST\n"
    wrong = "refuses this user or password: correct it"
    for credentials, says in (("", "asks for a password: give it"), (":wr0ng@", wrong), ("app:wr0ng@", wrong)):
        monkeypatch.setenv("AIOLOCKS_URL", f"redis://{credentials}{place}")
        for command, status in COMMANDS.items():
            assert main(command.split()) == status
            captured = capsys.readouterr()
            begins = f"aiolocks {command.split()[0]}: cannot use Redis at {place}: "
            assert (captured.out, captured.err) == ("", f"{begins}it {says} {where}")


@pytest.mark.smoke
@pytest.mark.redis
def test_a_missing_right_is_named(own_server: RedisServer, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    operator: Any = own_server.operator
    operator.execute_command("ACL", "SETUSER", "reader", "on", ">s3same", "~*", "+get", "+ping")
    monkeypatch.setenv("AIOLOCKS_URL", f"redis://reader:s3same@127.0.0.1:{own_server.port}")
    for command, right in {"ls": "+scan", "show x": "+time"}.items():
        assert main(command.split()) == 2
        assert f": this Redis user lacks the right {right}" in (said := capsys.readouterr().err)
        assert "start it" not in said


@pytest.mark.parametrize(("more", "says"), [("", "asks for a password"), ("?sentinel_password=s3same", "refuses this")])
def test_where_the_sentinels_want_another_password_it_says_how_to_give_that(more: str, says: str) -> None:
    """redis-py has what they answered in the text of its own error."""
    error = MasterNotFoundError("No master found for 'm' : <Redis<ConnectionPool>> - AuthenticationError('no, s3same')")
    said = reason(error, f"redis+sentinel://:s3same@host/m{more}")
    assert said.startswith(f"a Sentinel {says}")
    assert "sentinel_password=PASSWORD" in said
    assert "s3same" not in said
    assert reason(MasterNotFoundError("No master found for 'm' : <Redis>"), "redis+sentinel://host/m").endswith("'m'")


COMPLETED: list[tuple[list[str], set[str]]] = [
    (["aiolocks", ""], {"run", "ls", "show", "--help"}), (["aiolocks", "sh"], {"show"}),
    (["aiolocks", "run", "x", "--on-"], {"--on-lost"}), (["aiolocks", "run", "x", "--on-lost", ""], {"kill", "warn"}),
    (["aiolocks", "ls", "--kind", "rw"], {"rwlock"}), (["aiolocks", "completion", ""], {"bash", "zsh", "fish"}),
    (["aiolocks", "run", "x", "--", "bas"], {"bash"}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), COMPLETED)
def test_bash_completes_commands_options_and_choices(words: list[str], expected: set[str], capsys: Capsys) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    done = subprocess.run([bash, "-c", BASH, "bash", script, *words], capture_output=True, text=True, check=True)
    assert expected <= set(done.stdout.split())
    assert done.stderr == ""


@pytest.mark.parametrize(("words", "expected"), [*COMPLETED, (["aiolocks", "show", ""], set[str]())])
def test_fish_completes_them_and_no_files(words: list[str], expected: set[str], capsys: Capsys, tmp_path: Path) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("needs fish")
    assert main(["completion", "fish"]) == 0
    script = tmp_path / "aiolocks.fish"
    script.write_text(capsys.readouterr().out)
    asked = f"source {script}; complete -C '{' '.join(words)}'"
    if words[-1] == "":
        asked += "; complete -C '{}--'".format(" ".join(words))
    command = [fish, "--no-config", "-c", asked]
    home = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=home, cwd=tmp_path)
    found = {line.partition("\t")[0] for line in done.stdout.splitlines()}
    assert expected <= found
    assert script.name not in found
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_every_command_and_option(shell: str, capsys: Capsys) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("run", "ls", "show", "doctor", "busy-exit", "prefix", "strict"):
        assert word in script
    program = shutil.which(shell)
    if program is not None:
        assert subprocess.run([program, "-n"], input=script, text=True, check=False).returncode == 0


INTERRUPTED = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
module, sys.argv = sys.argv[1], ["/usr/bin/aiolocks", "ls"]

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from aiolocks.cli import main
sys.exit(main(["ls", "--url", "redis://127.0.0.1:1"]))
"""


@pytest.mark.parametrize("module", ["redis", "aiolocks._manager", "aiolocks.cli._doctor"])
def test_ctrl_c_while_modules_are_imported_ends_it_without_a_traceback(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, module], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_program_that_imports_the_library_keeps_its_own_ctrl_c() -> None:
    program = "import signal; own = signal.getsignal(2); import aiolocks; assert signal.getsignal(2) is own"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_package_works_from_a_zip_file(tmp_path: Path) -> None:
    package = Path(aiolocks.__file__).parent
    with zipfile.ZipFile(tmp_path / "aiolocks.zip", "w") as archive:
        for file in [*package.rglob("*.py"), *package.rglob("*.lua")]:
            archive.write(file, file.relative_to(package.parent))
    program = """
import aiolocks, aiolocks.sync
with aiolocks.sync.LockManager.from_url("memory://") as locks, locks.lock("orders:42"), locks.semaphore("scraper", 2):
    print(".zip" in aiolocks.__file__)
"""
    path = {**os.environ, "PYTHONPATH": str(tmp_path / "aiolocks.zip")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=path, cwd=tmp_path, check=False)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


@pytest.mark.smoke
@pytest.mark.redis
def test_bench_measures_free_and_contended_locks_and_leaves_nothing(own_server: RedisServer, capsys: Capsys) -> None:
    arguments = ["bench", "--url", own_server.url, "--seconds", "0.2", "--tasks", "10"]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["situation"] for one in told["figures"]] == ["free, one task", "free, 10 tasks", "one lock, 10 waiting"]
    for one in told["figures"]:
        assert one["pairs_per_second"] > 10
        assert 0 < one["median_s"] <= one["p99_s"]
    assert main([*arguments[:4], "1e-7", *arguments[5:]]) == 0  # one turn at least
    printed = capsys.readouterr().out
    assert "one lock, 10 waiting" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert [key for key in own_server.operator.scan_iter() if b"session" not in key] == []
