"""How scripts are loaded: names come from the header, shared files stand where they are used, comments stay at home."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from aiolocks._redis import scripts as _scripts
from aiolocks._redis.scripts import Script, load
from tests.scripts.calls import on_server
from tests.scripts.luacode import names_free_in, tokens
from tests.support.cases import one_by_one

pytest_plugins = ["tests.scripts.fixtures"]

_FOLDER = Path(_scripts.__file__).with_name("lua")
SHARED = sorted(f"libraries/{path.stem}" for path in _FOLDER.glob("libraries/*.lua"))
VERBS = sorted({f"{path.parent.name}/{path.stem}" for path in _FOLDER.glob("*/*.lua")} - {*SHARED})
every_script = one_by_one("name", VERBS)
_NOT_DECLARED = {
    "KEYS", "ARGV", "redis", "string", "math", "table", "ipairs", "tonumber", "tostring", "type", "unpack"
}  # fmt: skip

LoadText = Callable[..., Script]


@pytest.fixture
def load_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadText:
    """Load a script of this text, with shared files of these."""
    monkeypatch.setattr(_scripts, "_FOLDER", tmp_path)

    for folder in ("probe", "libraries"):
        (tmp_path / folder).mkdir()

    def load_anew(text: str, **shared: str) -> Script:
        (tmp_path / "probe" / "verb.lua").write_text(text, encoding="utf-8")
        for name, content in shared.items():
            (tmp_path / "libraries" / f"{name}.lua").write_text(content, encoding="utf-8")
        return load.__wrapped__("probe/verb")

    return load_anew


def _run(redis: Redis, script: Script, *values: str) -> object:
    answer: object = redis.eval(script.source.decode(), len(script.keys), *values)
    return answer


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")


def _shared_by(name: str) -> list[str]:
    used = re.findall(r"^ *-- uses\s+(.+)$", _text(name), re.MULTILINE)
    return [f"libraries/{shared.strip()}" for files in used for shared in files.split(",")]


def _whole(name: str) -> str:
    """Return the text of a script, with the shared files where it says that it uses them."""
    text = _text(name)
    for used in set(re.findall(r"^ *-- uses\s+.+$", text, re.MULTILINE)):
        files = used.lstrip().removeprefix("-- uses").split(",")
        text = text.replace(used, "\n".join(_whole(f"libraries/{shared.strip()}") for shared in files))
    return text


def _declared(name: str) -> list[str]:
    return [*load(name).keys, *load(name).args]


def test_names_are_taken_from_the_header_in_order() -> None:
    script = load("lock/renew")
    assert (script.keys, script.args) == (("holder",), ("token", "ttl_ms"))


def test_a_header_that_counts_wrongly_is_an_error(load_text: LoadText) -> None:
    with pytest.raises(ValueError, match="out of order"):
        load_text("-- KEYS[2]  holder  string  who\n-- KEYS[1]  fence  string  what\nreturn 1")
    with pytest.raises(ValueError, match="out of order"):
        load_text("-- ARGV[1]  token  bytes  who\n-- ARGV[3]  ttl_ms  int  how long\nreturn 1")


def test_a_script_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        load("lock/steal")


def test_names_are_bound_to_keys_and_arguments(backend: Redis, load_text: LoadText) -> None:
    script = load_text("-- KEYS[1]  a  x  y\n-- KEYS[2]  b  x  y\n-- ARGV[1]  c  x  y\nreturn {c, b, a}")
    assert _run(backend, script, "k1", "k2", "v1") == [b"v1", b"k2", b"k1"]


def test_a_last_name_with_an_ellipsis_takes_all_the_rest(backend: Redis, load_text: LoadText) -> None:
    script = load_text("-- ARGV[1]  first  x  y\n-- ARGV[2…] rest  x  y\nreturn rest")
    assert _run(backend, script, "v1", "v2", "v3") == [b"v2", b"v3"]
    assert _run(backend, script, "v1") == []


def test_shared_files_come_in_the_order_named(backend: Redis, load_text: LoadText) -> None:
    script = load_text(
        "-- KEYS[1]  a  x  y\n-- uses  one, two\nreturn two()",
        one="-- A shared file.\nlocal function one()\n  return a .. '1'\nend",
        two="local function two()\n  return one() .. '2'\nend",
    )
    assert _run(backend, script, "k") == b"k12"


def test_comments_are_left_at_home(load_text: LoadText) -> None:
    script = load_text("-- Says one.\n-- returns  int\nlocal x = 1 -- one\n\n  -- and no more\nreturn x")
    assert script.source == b"local x = 1\nreturn x"


def test_what_stands_before_a_shared_file_does_without_it(backend: Redis, load_text: LoadText) -> None:
    script = load_text(
        "-- KEYS[1]  a  x  y\nif a == 'k' then return 'early' end\n-- uses  one\nreturn one()",
        one="local function one()\n  return a .. '1'\nend",
    )
    assert [_run(backend, script, "k"), _run(backend, script, "l")] == [b"early", b"l1"]


@every_script
def test_stripping_comments_changes_no_script(name: str) -> None:
    """The loader takes ` -- ` for a comment wherever it stands, so no string may hold it."""
    assert tokens(load(name).source.decode()) == tokens(_prelude(name)) + tokens(_whole(name))


@every_script
def test_no_comment_is_sent(name: str) -> None:
    assert b"--" not in load(name).source


@every_script
def test_a_script_is_called_by_the_digest_that_redis_gives_it(name: str) -> None:
    script = load(name)
    assert script.sha == hashlib.sha1(script.source).hexdigest().encode()


@on_server
@every_script
def test_the_server_compiles_it_and_gives_it_the_same_digest(backend: Redis, name: str) -> None:
    digest: object = backend.script_load(load(name).source.decode())
    assert digest in (load(name).sha, load(name).sha.decode())


@every_script
def test_every_name_used_is_declared(name: str) -> None:
    """Redis would notice only when that line runs."""
    assert names_free_in(load(name).source.decode()) <= _NOT_DECLARED


@every_script
def test_every_name_in_the_header_is_used(name: str) -> None:
    code = tokens(_whole(name))
    assert [field for field in _declared(name) if field not in code] == []


@every_script
def test_a_script_uses_every_shared_file_it_names(name: str) -> None:
    used = _shared_by(name)
    for shared in used:
        others = [token for part in [*used, name] if part != shared for token in tokens(_text(part))]
        defined = set(re.findall(r"^local (?:function )?(\w+)", _text(shared), re.MULTILINE))
        functions = re.search(r"^local function", _text(shared), re.MULTILINE)
        acts = re.search(r"^(if|for|return|redis|\w+ =)\b", _text(shared), re.MULTILINE)
        assert (acts and not functions) or defined & set(others), f"{shared} is not needed"


@one_by_one("name", SHARED)
def test_a_shared_file_says_which_names_it_needs(name: str) -> None:
    """All others come from `clock` and `digits`, which are in front of everything."""
    said = re.search(r"^-- Needs the names: ([^.]*(?:\n-- [^.]*)*)\.", _text(name), re.MULTILINE)
    needs = set(re.findall(r"\w+", re.sub(r"and from the\s+(?:-- )?primitive", "", said[1]))) if said else set()
    clock = set(
        re.findall(r"^local (?:function )?(\w+)", _text("libraries/clock") + _text("libraries/digits"), re.MULTILINE)
    )
    assert names_free_in(_whole(name)) - _NOT_DECLARED - clock == needs


@every_script
def test_a_header_says_what_a_script_does_and_returns(name: str) -> None:
    header = _text(name).partition("\n--\n")
    assert re.match(r"-- [A-Z].*\.", header[0])
    assert re.search(r"^-- returns  ", header[2], re.MULTILINE)


def test_a_script_is_read_once() -> None:
    assert load("lock/grant") is load("lock/grant")


def _prelude(name: str) -> str:
    lines = load(name).source.decode().splitlines()
    return "\n".join(line for line in lines if re.match(r"local [\w, ]+ = \{?unpack\((KEYS|ARGV)", line))
