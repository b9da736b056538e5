"""Check that a library compiled for one ISA level exports only that level's tables.

Any other external symbol could be linked into another level's code: a weak function compiled for
AVX-512 would then run on a CPU without it.

    check_symbols.py NM LEVEL LIBRARY
"""

import re
import subprocess
import sys


def offenders(listing: str, level: str) -> list[str]:
    """Return the lines of `nm -gP` output that name a symbol the level may not export.

    Sanitizers add an indicator per table, named `__odr_asan`.
    """
    table = re.compile(rf"taper_[a-z0-9_]+__{re.escape(level)} [BDRS] ")
    lines = [line for line in listing.splitlines() if line and not line.endswith(":")]
    return [line for line in lines if not table.match(line) and "__odr_asan" not in line]


def main() -> int:
    """Print each offending symbol; the exit status says whether there were any."""
    nm, level, library = sys.argv[1:]
    listing = subprocess.run(
        [nm, "-gP", "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    if f"__{level} " not in listing:
        sys.exit(f"{library} exports no table of {level}")
    bad = offenders(listing, level)
    for line in bad:
        print(f"{library}: {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
