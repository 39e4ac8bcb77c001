"""`aiolocks completion SHELL`: print a script that completes commands and options, made from the parser."""

import argparse
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._arguments import Commands

_BASH = """\
# aiolocks: completion for bash; put this into ~/.bashrc:  eval "$(aiolocks completion bash)"
_aiolocks() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" at words=
  for ((at = 1; at < COMP_CWORD; at++)); do
    if [[ ${COMP_WORDS[at]} == -- ]]; then
      [[ ${COMP_WORDS[1]} == run ]] && COMPREPLY=($(compgen -o default -c -f -- "$word"))
      return
    fi
  done
  if ((COMP_CWORD == 1)); then
    words="@COMMANDS@"
  else
    case "${COMP_WORDS[1]} $before" in
@CHOICES@
      *) case "${COMP_WORDS[1]}" in
@OPTIONS@
      esac ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -F _aiolocks aiolocks
"""

_ZSH = """\
#compdef aiolocks
# aiolocks: completion for zsh; put this into ~/.zshrc, below compinit:  eval "$(aiolocks completion zsh)"
_aiolocks() {
  local -a commands
  commands=(
@COMMANDS@
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  if [[ ${words[2]} == run && ${words[(ie)--]} -lt $CURRENT ]]; then
    shift ${words[(ie)--]} words
    (( CURRENT = $#words ))
    _normal
    return
  fi
  case ${words[2]} in
@OPTIONS@
  esac
}
compdef _aiolocks aiolocks
"""

_FISH = """\
# aiolocks: completion for fish; put this into ~/.config/fish/completions/aiolocks.fish
function __aiolocks_command
  set -l words (commandline -opc)
  set -l at (contains -i -- -- $words)
  and complete -C (string join ' ' -- (string escape -- $words[(math $at + 1)..]) (commandline -ct))
end
complete -c aiolocks -f
complete -c aiolocks -f -n 'contains -- -- (commandline -opc)' -a '(__aiolocks_command)'
complete -c aiolocks -f -n __fish_use_subcommand -l help -l version
"""


def register(commands: "Commands") -> None:
    """Add this command. Its script completes the commands that *commands* has when it runs."""
    own = commands.add_parser(
        "completion",
        help="print a script that completes commands and options",
        description='Print a script that completes commands and options: eval "$(aiolocks completion bash)".',
    )
    own.add_argument("shell", choices=sorted(_SCRIPTS), help="your shell")

    def run(arguments: argparse.Namespace) -> int:
        print(_SCRIPTS[arguments.shell](commands), end="")
        return 0

    own.set_defaults(run=run)


def _helps(commands: "Commands") -> dict[str, str]:
    return {action.dest: action.help or "" for action in commands._get_subactions()}


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.help is not argparse.SUPPRESS]


def _choices(action: argparse.Action) -> list[str]:
    return [str(choice) for choice in action.choices or ()]


def _bash(commands: "Commands") -> str:
    options, choices = list[str](), list[str]()
    for name, parser in commands.choices.items():
        words = [word for action in _options(parser) for word in (action.option_strings or _choices(action))]
        options.append(f"      {name}) words='{' '.join(words)}' ;;")
        for action in _options(parser):
            if action.choices and action.option_strings:
                patterns = "|".join(f"'{name} {option}'" for option in action.option_strings)
                choices.append(f"      {patterns}) words='{' '.join(_choices(action))}' ;;")
    text = _BASH.replace("@COMMANDS@", " ".join((*commands.choices, "--help", "--version")))
    return text.replace("@OPTIONS@", "\n".join(options)).replace("@CHOICES@", "\n".join(choices))


def _zsh(commands: "Commands") -> str:
    listed = [f"    {_quoted(f'{name}:{text}')}" for name, text in _helps(commands).items()]
    options = list[str]()
    for name, parser in commands.choices.items():
        specs = list[str]()
        for action in _options(parser):
            text = re.sub(r"[\[\]:]", " ", _short(action))
            takes = f":{action.dest}:({' '.join(_choices(action))})" if action.choices else f":{action.dest}: "
            if action.option_strings:
                specs += [
                    _quoted(f"{option}[{text}]{'' if action.nargs == 0 else takes}") for option in action.option_strings
                ]
            else:
                specs.append(_quoted(f":{action.dest}:({' '.join(_choices(action))})" if action.choices else takes))
        options.append(f"    {name}) _arguments '1: :' {' '.join(specs)} ;;")
    return _ZSH.replace("@COMMANDS@", "\n".join(listed)).replace("@OPTIONS@", "\n".join(options))


def _fish(commands: "Commands") -> str:
    lines = list[str]()
    for name, text in _helps(commands).items():
        lines.append(f"complete -c aiolocks -f -n __fish_use_subcommand -a {name} -d {_quoted(text)}")
    for name, parser in commands.choices.items():
        begin = f"complete -c aiolocks -f -n '__fish_seen_subcommand_from {name}'"
        for action in _options(parser):
            choices = f" -a {_quoted(' '.join(_choices(action)))}" if action.choices else ""
            if action.option_strings:
                long = " ".join(
                    f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
                    for option in action.option_strings
                )
                takes = "" if action.nargs == 0 else f" -x{choices}"
                lines.append(f"{begin} {long}{takes} -d {_quoted(_short(action))}")
            elif choices:
                lines.append(f"{begin}{choices}")
    return _FISH + "\n".join(lines) + "\n"


def _short(action: argparse.Action) -> str:
    """Return the first part of an option's help."""
    return re.split(r"[;,(]", action.help or "")[0].strip()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


_SCRIPTS = {"bash": _bash, "fish": _fish, "zsh": _zsh}
