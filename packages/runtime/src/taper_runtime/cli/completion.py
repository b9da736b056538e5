"""Add the command ``taper completion``, which makes a shell script from the parsers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from taper_runtime.cli.command_line import Result, command_names, command_parser

if TYPE_CHECKING:
    from collections.abc import Iterable


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "print a script that completes commands and options in a shell"
    parser.add_argument("shell", choices=sorted(_SCRIPTS))
    parser.set_defaults(command=_completion)


def _completion(args: argparse.Namespace) -> Result:
    script = _SCRIPTS[args.shell]()
    return Result({"shell": args.shell, "script": script}, script)


def _commands() -> list[tuple[str, str, list[argparse.Action]]]:
    """List the name, description and arguments of every command."""
    parsers = [(name, command_parser(name)) for name in command_names()]
    return [(name, parser.description or "", parser._actions) for name, parser in parsers]


def _takes_value(action: argparse.Action) -> bool:
    return action.nargs != 0


def _flags(actions: Iterable[argparse.Action]) -> str:
    return " ".join(flag for action in actions for flag in action.option_strings)


def _choices(action: argparse.Action) -> str:
    return " ".join(map(str, action.choices or ()))


def _bash() -> str:
    """Return bash code that completes known words, and file names elsewhere."""
    names = " ".join(command_names())
    lines = [
        "_taper() {",
        "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} words=",
        "    if ((COMP_CWORD == 1)); then",
        f"        words='{names} --help --version'",
        "    else",
        "        case ${COMP_WORDS[1]},$previous,$current in",
    ]
    for name, _, actions in _commands():
        limited = [action for action in actions if action.choices]
        for action in limited:
            before = "|".join(f"{name},{flag},*" for flag in action.option_strings)
            if before:
                lines.append(f"            {before}) words='{_choices(action)}' ;;")
        lines.append(f"            {name},*,-*) words='{_flags(actions)}' ;;")
        lines += [
            f"            {name},*) words='{_choices(action)}' ;;"
            for action in limited
            if not action.option_strings
        ]
    lines += [
        "        esac",
        "    fi",
        "    COMPREPLY=()",
        '    if [[ -n $words ]]; then COMPREPLY=($(compgen -W "$words" -- "$current")); fi',
        "}",
        "complete -o default -F _taper taper",
    ]
    return "\n".join(lines)


def _zsh() -> str:
    """Return zsh code that completes commands, options and their values."""
    lines = ["#compdef taper", "_taper() {", "    local -a commands=("]
    commands = _commands()
    lines += [f"        {_quote(f'{name}:{description}')}" for name, description, _ in commands]
    lines += [
        "    )",
        "    if ((CURRENT == 2)); then _describe command commands; return; fi",
        "    local command=$words[2]",
        "    shift words",
        "    ((CURRENT--))",
        "    case $command in",
    ]
    for name, _, actions in commands:
        specs = " ".join(_quote(spec) for action in actions for spec in _zsh_specs(action))
        lines.append(f"        {name}) _arguments {specs} ;;")
    lines += [
        "    esac",
        "}",
        'if [[ $funcstack[1] == _taper ]]; then _taper "$@"; else compdef _taper taper; fi',
    ]
    return "\n".join(lines)


def _zsh_specs(action: argparse.Action) -> list[str]:
    """Return the specs of one argument for zsh's ``_arguments``."""
    values = f"({_choices(action)})" if action.choices else "_files"
    if not action.option_strings:
        return [f"*:{action.dest}:{values}"]
    repeated = "*" if isinstance(action, argparse._AppendAction) else ""
    text = (action.help or "").translate({ord(c): f"\\{c}" for c in "[]:\\"})
    value = f":{action.dest}:{values}" if _takes_value(action) else ""
    return [f"{repeated}{flag}[{text}]{value}" for flag in action.option_strings]


def _fish() -> str:
    """Return fish code that completes commands, options and their values."""
    first = "complete -c taper -n __fish_use_subcommand -f"
    lines = [f"{first} -l version", f"{first} -l help -s h"]
    for name, description, actions in _commands():
        lines.append(f"{first} -a {name} -d {_quote(description)}")
        start = f"complete -c taper -n '__fish_seen_subcommand_from {name}'"
        for action in actions:
            flags = "".join(
                f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}"
                for flag in action.option_strings
            )
            if action.choices:
                flags += f" {'-x' if flags else '-f'} -a '{_choices(action)}'"
            elif flags and _takes_value(action):
                flags += " -r"
            if flags:
                lines.append(f"{start}{flags} -d {_quote(action.help or '')}")
    return "\n".join(lines)


def _quote(text: str) -> str:
    """Quote text for any shell: each quote closes the string, is escaped, and opens a new one."""
    return "'" + text.replace("'", "'\\''") + "'"


_SCRIPTS = {"bash": _bash, "fish": _fish, "zsh": _zsh}
