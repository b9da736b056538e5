"""Constants that C and Python both state: each has one value."""

import re
from pathlib import Path

import pytest

from taper_runtime.base.checks import ALIGNMENT
from taper_runtime.formats.panels import PANEL
from taper_runtime.ops import map as tile_programs

KERNELS = Path(__file__).parents[2] / "packages/kernels"


@pytest.mark.parametrize(
    ("header", "name", "value"),
    [
        ("include/taper/kernels.h", "TAPER_ALIGNMENT", ALIGNMENT),
        ("src/gemm/engine.h", "GEMM_NR", PANEL),
        ("src/map/program.h", "PROGRAM_MAX_INPUTS", tile_programs.MAX_INPUTS),
        ("src/map/program.h", "PROGRAM_MAX_INSTRUCTIONS", tile_programs.MAX_INSTRUCTIONS),
    ],
)
def test_kernels_and_plans_agree(header, name, value):
    text = (KERNELS / header).read_text()
    (found,) = re.findall(rf"^(?:#define )? *{name}(?: =)? (\d+)\b", text, re.MULTILINE)
    assert int(found) == value
