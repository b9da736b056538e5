"""Run transformers' exporter tests on the format "taper".

    python -m tools.exporter_tests CHECKOUT [ARCHITECTURE ...]

CHECKOUT has transformers' sources of the installed version, with its tests. Architectures are
folders of its ``tests/models``; by default those of ``architectures.txt``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LISTED = Path(__file__).with_name("architectures.txt")


def architectures() -> list[str]:
    """Return the architectures whose tests have to pass."""
    lines = LISTED.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def main(checkout: str, *chosen: str) -> int:
    """Run the tests in a process of their own, for their package is named as this project's."""
    root = Path(checkout).resolve()
    files = [f"tests/models/{name}/test_modeling_{name}.py" for name in chosen or architectures()]
    missing = [file for file in files if not (root / file).is_file()]
    if missing:
        print(f"{root}: expected transformers' sources with {', '.join(missing)}", file=sys.stderr)
        return 2
    places = [str(root), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"RUN_SLOW": "1", "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tools.exporter_tests.taper_format"]
    command += ["--noconftest", "-c", os.devnull, "--rootdir", str(root), "-W", "ignore"]
    command += ["-p", "no:cacheprovider", "--tb=short", "-k", "test_torch_export", *files]
    return subprocess.call(command, cwd=root, env=environment)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
