"""What holds for all of the command line: help, completion, what it imports, and that it repeats no password."""

import shutil
import subprocess
import sys

import pytest

from aiolocks.cli import main

BASH = """
source /dev/stdin <<<"$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_aiolocks
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: aiolocks")
    for command in ("run", "ls", "show", "doctor", "demo", "completion"):
        assert f"\n    {command}" in printed


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", "a", "redis://user:s3same@host"],
        ["nothing", "redis://:s3same@host"],
        ["redis://:s3same@host"],
        ["show", "x", "--limit=redis://:s3same@host?password=s3same"],
        ["ls", "--kind", "rediss://:s3same@host"],
    ],
)
def test_an_argument_in_the_wrong_place_is_repeated_without_its_password(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert "usage: aiolocks" in captured.err
    assert "s3same" not in captured.out + captured.err


def test_it_imports_nothing_optional() -> None:
    program = "import sys, aiolocks.cli; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "redis" in loaded
    assert not {"rich", "fakeredis", "lupa"} & set(loaded)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["aiolocks", ""], {"run", "ls", "show", "--help"}),
        (["aiolocks", "sh"], {"show"}),
        (["aiolocks", "run", "x", "--on-"], {"--on-lost"}),
        (["aiolocks", "run", "x", "--on-lost", ""], {"kill", "warn"}),
        (["aiolocks", "ls", "--kind", "rw"], {"rwlock"}),
        (["aiolocks", "completion", ""], {"bash", "zsh", "fish"}),
        (["aiolocks", "run", "x", "--", "bas"], {"bash"}),
    ],
)
def test_bash_completes_commands_options_and_choices(
    words: list[str], expected: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    done = subprocess.run([bash, "-c", BASH, "bash", script, *words], capture_output=True, text=True, check=True)
    assert expected <= set(done.stdout.split())
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_every_command_and_option(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("run", "ls", "show", "doctor", "busy-exit", "prefix", "strict"):
        assert word in script
    program = shutil.which(shell)
    if program is not None:
        assert subprocess.run([program, "-n"], input=script, text=True, check=False).returncode == 0
