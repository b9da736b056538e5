"""Call the command in this process, and read docs/cli.md's options and JSON."""

import json
import re
from pathlib import Path

import taper_runtime.cli
from taper_runtime.machine.limits import MachineLimits, Memory

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")

_LIMITS = MachineLimits(
    "avx2", 1, 100.0, 0.0, (Memory("L1", 1000, 50.0, 40.0), Memory("DRAM", 0, 9.0, 8.0))
)

_TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "anything": object,
}


def taper_command(capsys):
    """A function that runs `taper` with arguments: the exit code, stdout and stderr."""

    def call(*arguments):
        try:
            code = taper_runtime.cli.main([str(argument) for argument in arguments])
        except SystemExit as exit:
            code = exit.code
        return (code, *capsys.readouterr())

    return call


def without_measurement(monkeypatch):
    """Have commands take limits of a machine as given that they would measure for seconds."""
    monkeypatch.setattr(
        "taper_runtime.machine.measure.measure_limits",
        lambda levels, threads, advance: [
            _LIMITS._replace(isa=isa, threads=n) for isa in levels for n in threads
        ],
    )


def schema(name):
    """The form of what a command prints with --json."""
    return json.loads(re.search(rf"<!-- schema: {name} -->\n```json\n(.*?)```", PAGE, re.S)[1])


def section(command):
    """The text about a command."""
    return re.search(rf"^## taper {command}\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M)[1]


def check_json(form, value, where="$"):
    """Check that ``value`` has the form that the page shows."""
    if isinstance(form, str):
        if isinstance(value, bool):  # which is an int too
            assert form in ("boolean", "anything"), where
        assert any(isinstance(value, _TYPES[word]) for word in form.split(" | ")), where
    elif isinstance(form, list):
        assert isinstance(value, list), where
        for index, item in enumerate(value):
            check_json(form[0], item, f"{where}[{index}]")
    else:
        assert isinstance(value, dict), where
        if "<name>" not in form:
            assert value.keys() == form.keys(), where
        for key, item in value.items():
            check_json(form.get(key, form.get("<name>")), item, f"{where}.{key}")
