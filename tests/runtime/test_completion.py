"""Completion in shells: the scripts that `taper completion` prints."""

import shutil
import subprocess

import pytest

from taper_runtime.cli import command_line
from taper_runtime.cli.command_line import OWN
from taper_runtime.executor.executor_kinds import EXECUTORS


def complete(*words):
    """What bash offers for the last of these words."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = f"""
eval "$1"
COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}
_taper
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    (_, body, _) = taper_script("bash")
    result = subprocess.run(
        ["bash", "-c", script, "bash", body], check=True, capture_output=True, text=True
    )
    return result.stdout.split()


def taper_script(shell):
    args = command_line.command_parser("completion").parse_args([shell])
    result = args.command(args)
    return shell, result.text, result.data


def test_bash_completes():
    assert set(OWN) < set(complete("taper", ""))
    assert complete("taper", "prof") == ["profile"]
    assert complete("taper", "run", "m.taper", "--thr") == ["--threads"]
    assert complete("taper", "run", "--executor", "") == [
        name for name in EXECUTORS if name != "delegate"
    ]
    assert complete("taper", "completion", "z") == ["zsh"]
    assert complete("taper", "run", "m") == [], "left to bash, which completes files"


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_scripts_have_every_option(shell):
    _, script, _ = taper_script(shell)
    for name in OWN:
        lines = [line for line in script.splitlines() if name in line]
        for action in command_line.command_parser(name)._actions:
            for flag in action.option_strings:
                spelled = flag
                if shell == "fish":
                    spelled = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                assert any(spelled in line for line in lines), (name, flag)


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_shells_take_their_scripts(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    _, script, _ = taper_script(shell)
    subprocess.run([shell, "-n"], input=script, check=True, text=True)
