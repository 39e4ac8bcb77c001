"""How scripts are loaded: names come from the header, of libraries only what is used, and comments stay at home."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from aiolocks._redis import scripts as _scripts
from aiolocks._redis.scripts import Script, load, parts
from tests.scripts.calls import on_server
from tests.scripts.luacode import functions_unused_in, names_free_in, tokens
from tests.support.cases import one_by_one

_FOLDER = Path(_scripts.__file__).with_name("lua")
LIBRARIES = sorted(path.stem for path in _FOLDER.glob("libraries/*.lua"))
VERBS = sorted(f"{path.parent.name}/{path.stem}" for path in _FOLDER.glob("*/*.lua") if path.stem not in LIBRARIES)
every_script = one_by_one("name", VERBS)
_NOT_DECLARED = {
    "KEYS", "ARGV", "redis", "string", "math", "table", "ipairs", "pairs", "pcall", "tonumber", "tostring", "type"
}  # fmt: skip
"""And not `unpack`, which some managed servers forbid."""

ONE_AND_TWO = "-- A library.\n\nlocal function one()\n  return 1\nend\n\nlocal function two()\n  return one()\nend\n"
LoadText = Callable[..., Script]


@pytest.fixture
def load_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadText:
    """Load a script of this text, with libraries of these."""
    monkeypatch.setattr(_scripts, "_FOLDER", tmp_path)
    for folder in ("probe", "libraries"):
        (tmp_path / folder).mkdir()

    def load_anew(text: str, **libraries: str) -> Script:
        (tmp_path / "probe" / "verb.lua").write_text(text, encoding="utf-8")
        for name, content in libraries.items():
            (tmp_path / "libraries" / f"{name}.lua").write_text(content, encoding="utf-8")
        return load.__wrapped__("probe/verb")

    return load_anew


def _run(redis: Redis, script: Script, *values: str) -> object:
    answer: object = redis.eval(script.source.decode(), len(script.keys), *values)
    return answer


def _text(name: str) -> str:
    """Return what stands in a library, or in a script: of one that is `like` another, that one's."""
    library = name.startswith("libraries/")
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8") if library else _scripts.text_of(name)


def _used_by(name: str) -> list[str]:
    """Return the libraries that a script names, and those that they name."""
    return _scripts.libraries_of(_text(name))


def _needs(library: str) -> str:
    """Return which names a library says that it needs."""
    said = re.search(r"^-- Needs the names: ([^.]*(?:\n-- [^.]*)*)\.", _text(f"libraries/{library}"), re.MULTILINE)
    return said[1] if said else ""


def _given_by(*libraries: str) -> set[str]:
    return {name for library in libraries for part in parts(library) for name in part.gives}


def _code(load_text: Callable[..., Script], text: str, **libraries: str) -> list[str]:
    """Return the lines of a script behind its flag."""
    return load_text(text, **libraries).source.decode().splitlines()[1:]


def test_a_header_that_counts_wrongly_is_an_error(load_text: LoadText) -> None:
    with pytest.raises(ValueError, match="out of order"):
        load_text("-- KEYS[2]  holder  string  who\n-- KEYS[1]  fence  string  what\nreturn 1")
    with pytest.raises(ValueError, match="out of order"):
        load_text("-- ARGV[1]  token  bytes  who\n-- ARGV[3]  ttl_ms  int  how long\nreturn 1")


def test_a_script_that_is_like_another_has_its_text_and_libraries_of_its_own(load_text: LoadText) -> None:
    (_scripts._FOLDER / "probe" / "other.lua").write_text("-- KEYS[1]  a  x  y\n-- uses  some\nreturn one()")
    script = load_text(
        "-- like  probe/other\n-- uses  some, more", some=ONE_AND_TWO, more="local function one()\nend\n"
    )
    assert script.keys == ("a",)
    assert script.source.count(b"function one") == 2


def test_names_are_bound_to_keys_and_arguments_in_order(backend: Redis, load_text: LoadText) -> None:
    script = load_text("-- KEYS[1]  a  x  y\n-- KEYS[2]  b  x  y\n-- ARGV[1]  c  x  y\nreturn {c, b, a}")
    assert (script.keys, script.args) == (("a", "b"), ("c",))
    assert _run(backend, script, "k1", "k2", "v1") == [b"v1", b"k2", b"k1"]


def test_a_last_name_with_an_ellipsis_takes_all_the_rest(backend: Redis, load_text: LoadText) -> None:
    script = load_text("-- ARGV[1]  first  x  y\n-- ARGV[2…] rest  x  y\nreturn rest")
    assert _run(backend, script, "v1", "v2", "v3") == [b"v2", b"v3"]
    assert _run(backend, script, "v1") == []
    script = load_text("-- KEYS[1…] names  x  y\n-- ARGV[1…] values  x  y\nreturn {names[2], values[1], #values}")
    assert (script.keys, script.args) == (("names",), ("values",))
    assert backend.eval(script.source.decode(), 2, "k1", "k2", "v1") == [b"k2", b"v1", 1]


def test_of_a_library_comes_what_is_used_and_what_that_uses(load_text: LoadText) -> None:
    assert _code(load_text, "-- uses  some\nreturn one()", some=ONE_AND_TWO) == [
        "local function one()", "return 1", "end", "return one()"
    ]  # fmt: skip
    both = _code(load_text, "-- uses  some\nreturn two()", some=ONE_AND_TWO)
    assert [line for line in both if "function" in line] == ["local function one()", "local function two()"]


def test_a_library_brings_the_libraries_that_it_uses(backend: Redis, load_text: LoadText) -> None:
    more = "-- Another.\n-- uses  some\n\nlocal function three()\n  return two() + 2\nend\n"
    script = load_text("-- uses  more\nreturn three()", some=ONE_AND_TWO, more=more)
    assert _run(backend, script) == 3
    both = load_text("-- uses  more, some\nreturn three()", some=ONE_AND_TWO, more=more)
    assert both.source == script.source, "it comes once, ahead of the library that uses it"


def test_libraries_come_in_the_order_named_and_parts_in_that_of_the_text(backend: Redis, load_text: LoadText) -> None:
    script = load_text(
        "-- KEYS[1]  a  x  y\n-- uses  one, two\nreturn two()",
        one="-- A library.\n\nlocal function one()\n  return a .. '1'\nend",
        two="-- Another.\n\nlocal TWO = '2'\n\nlocal function two()\n  return one() .. TWO\nend",
    )
    assert _run(backend, script, "k") == b"k12"


def test_what_acts_comes_always_and_once(load_text: LoadText) -> None:
    text = "-- uses  some\nif x then\n  -- slow path\n  f()\nend\n\n-- slow path\nreturn 1"
    acting = "redis.call('PING')\n\nlocal x = 1\nif x then\n  x = 2\nend\n\nlocal function f()\n  return x\nend"
    lines = _code(load_text, text, some=acting)
    assert [lines.count(line) for line in ("redis.call('PING')", "local x = 1", "x = 2")] == [1, 1, 1]
    assert lines.index("x = 2") < lines.index("local function f()")


def test_what_sets_a_name_comes_with_it(load_text: LoadText) -> None:
    lines = _code(load_text, "-- uses  one, two\nreturn a", one="local a, b", two="a = 1\n\nb = 2\n\nlocal c = 3")
    assert lines == ["local a, b", "a = 1", "return a"]


def test_what_only_the_slow_path_uses_comes_there(backend: Redis, load_text: LoadText) -> None:
    script = load_text(
        "-- KEYS[1]  a  x  y\n-- uses  some\nif a == 'k' then return one() end\n-- slow path\nreturn two() + one()",
        some=ONE_AND_TWO,
    )
    assert [_run(backend, script, "k"), _run(backend, script, "l")] == [1, 2]
    fast, _, slow = script.source.decode().partition("if a == 'k'")
    assert ("function one" in fast, "function two" in fast) == (True, False)
    assert ("function one" in slow, "function two" in slow) == (False, True)


def test_what_a_branch_uses_is_good_for_that_branch(backend: Redis, load_text: LoadText) -> None:
    branch = "if a == 'k' then\n  -- slow path: why\n  return two()\nend"
    script = load_text(f"-- KEYS[1]  a  x  y\n-- uses  some\n{branch}\nreturn one()", some=ONE_AND_TWO)
    assert [_run(backend, script, "k"), _run(backend, script, "l")] == [1, 1]
    assert script.source.count(b"function one") == 1
    script = load_text(f"-- KEYS[1]  a  x  y\n-- uses  some\n{branch}\n-- slow path\nreturn one()", some=ONE_AND_TWO)
    assert [_run(backend, script, "k"), _run(backend, script, "l")] == [1, 1]
    assert script.source.count(b"function one") == 2


def test_a_library_has_slow_paths_too(backend: Redis, load_text: LoadText) -> None:
    inner = "local function three(a)\n  if a == 'k' then\n    -- slow path\n    return two()\n  end\n  return 3\nend\n"
    script = load_text("-- KEYS[1]  a  x  y\n-- uses  some\nreturn three(a)", some=f"{ONE_AND_TWO}\n-- Three.\n{inner}")
    assert [_run(backend, script, "k"), _run(backend, script, "l")] == [1, 3]
    assert script.source.index(b"function three") < script.source.index(b"function one")


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 10, 16, 17, 18, 500])
def test_a_list_is_passed_as_arguments_without_unpack(backend: Redis, load_text: LoadText, count: int) -> None:
    script = load_text(
        "-- ARGV[1…] list  x  y\n-- uses  numbers\nreturn { spread(list, 1, #list) }",
        numbers=_text("libraries/numbers"),
    )
    values = [str(value) for value in range(count)]
    assert _run(backend, script, *values) == [value.encode() for value in values]


def test_comments_are_left_at_home(load_text: LoadText) -> None:
    script = load_text("-- Says one.\n-- returns  int\nlocal x = 1 -- one\n\n  -- and no more\nreturn x")
    assert script.source == b"--!df flags=allow-undeclared-keys\nlocal x = 1\nreturn x"


@every_script
def test_stripping_comments_changes_no_script(name: str) -> None:
    """The loader takes ` -- ` for a comment wherever it stands, so no string may hold it."""
    whole = {line: tokens(line) for text in (name, *(f"libraries/{used}" for used in _used_by(name)))
             for line in _text(text).splitlines()}  # fmt: skip
    for line, words in whole.items():
        assert tokens(line.split(" -- ")[0]) == words, line


@every_script
def test_no_comment_is_sent_but_the_flag_for_dragonfly(name: str) -> None:
    """It must be the first line."""
    assert load(name).source.startswith(b"--!df flags=allow-undeclared-keys\n")
    assert load(name).source.count(b"--") == 1


@on_server
@every_script
def test_the_server_compiles_it_and_gives_it_the_same_digest(backend: Redis, name: str) -> None:
    script = load(name)
    digest: object = backend.script_load(script.source.decode())
    assert digest in (script.sha, script.sha.decode())
    assert load(name) is script, "it is read once"


@every_script
def test_every_name_used_is_declared_above_and_every_function_is_used(name: str) -> None:
    """Redis would notice only when that line runs."""
    source = load(name).source.decode()
    assert names_free_in(source) <= _NOT_DECLARED
    assert functions_unused_in(source) == set()


@every_script
def test_every_name_in_the_header_is_used(name: str) -> None:
    code = load(name).source.decode().splitlines()
    words = tokens("\n".join(line for line in code if not re.match(r"local [\w, ]+ = (KEYS|ARGV)\[|for at = ", line)))
    assert [field for field in (*load(name).keys, *load(name).args) if field not in words] == []


@every_script
def test_each_library_that_a_script_names_gives_something_to_it(name: str) -> None:
    source = load(name).source.decode()
    for library in _used_by(name):
        lines = [_scripts._strip(part.text).splitlines()[0] for part in parts(library)]
        assert any(line in source.splitlines() for line in lines), f"{library} is not needed"


@every_script
def test_each_slow_path_has_something_put_there(name: str) -> None:
    """Where it does not, the words would promise what is not so."""
    text = _text(name)
    for place in re.finditer(r"^ *-- slow path.*$", text, re.MULTILINE):
        without = text[: place.start()] + text[place.end() :]
        assert _scripts._strip(_scripts._with_libraries(text)) != _scripts._strip(_scripts._with_libraries(without))


@every_script
def test_what_a_script_knows_is_read_once(name: str) -> None:
    """Functions and constants may come into several branches; a second copy of a state would go its own ways."""
    code = tokens(load(name).source.decode())
    for part in (part for library in _used_by(name) for part in parts(library)):
        states = {given for given in part.gives if not given.isupper() and f"function {given}(" not in part.text}
        for state in states - {"session"}:  # read from an argument, and set by nothing
            declared = [at for at, word in enumerate(code) if word == "local" and state in code[at + 1 : at + 2]]
            if re.search(rf"^local {state}\b", part.text, re.MULTILINE):
                words = tokens(_scripts._strip(part.text))
                copies = [at for at in declared if code[at : at + len(words)] == words]
                assert len(copies) <= 1, state


@one_by_one("name", LIBRARIES)
def test_a_library_says_which_names_it_needs(name: str) -> None:
    """Its own parts are found in the order of the text, those of the libraries it names before them."""
    text = _text(f"libraries/{name}")
    said = _needs(name)
    quoted = {word.strip("`") for word in re.findall(r"`\w+`", said)}
    words = set(re.findall(r"\w+", re.sub(r"`\w+`|\b(?:for|of|the|primitive|and)\b", "", said)))
    used = _given_by(*quoted & {*LIBRARIES})
    found = names_free_in(text) - _NOT_DECLARED
    assert found - used == words
    assert {*_used_by(f"libraries/{name}")} <= quoted
    assert all(_given_by(library) & found for library in quoted & {*LIBRARIES})


@every_script
def test_libraries_stand_behind_the_libraries_that_they_need(name: str) -> None:
    used = _used_by(name)
    for at, library in enumerate(used):
        quoted = {word.strip("`") for word in re.findall(r"`\w+`", _needs(library))}
        assert (quoted & {*LIBRARIES}).intersection(used) <= {*used[:at]}, library


@every_script
def test_a_header_says_what_a_script_does_uses_and_returns(name: str) -> None:
    text = _text(name)
    header = text.partition("\n--\n")
    assert re.match(r"-- [A-Z].*\.", header[0])
    assert re.search(r"^-- returns  ", header[2], re.MULTILINE)
    uses = re.findall(r"-- uses\b", text)
    assert len(uses) == len(re.findall(r"^-- uses\b", text, re.MULTILINE)) <= 1, "once, and not in a branch"
