"""Start processes whose modules have bytecode, as installed ones have."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import taper_runtime
from tools.peers.page import ROOT


@cache
def environment() -> dict[str, str]:
    """Return the environment of such a process.

    The loader of packages that are installed in place reads bytecode but writes none. So a new
    process would compile each module that it imports.
    """
    found = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    found["PYTHONPYCACHEPREFIX"] = str(ROOT / "build" / "bytecode")
    package = Path(taper_runtime.__file__).parent
    command = [sys.executable, "-m", "compileall", "-q", str(package)]
    subprocess.run(command, env=found, check=True)
    return found
