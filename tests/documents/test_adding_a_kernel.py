"""Compile the example in docs/adding-a-kernel.md as it stands, and run its own test."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "packages" / "kernels"
PAGE = ROOT / "docs" / "adding-a-kernel.md"

BLOCK = re.compile(r"^```c\n(/\* (\S+)\n.*?)^```$", re.MULTILINE | re.DOTALL)

#: The library without its families, and the harness of its tests.
LIBRARY = (
    *("src/cpu/cpu.c", "src/dispatch/dispatch.c", "src/machine/measure.c", "src/machine/memory.c"),
    *(
        "src/run/thread_pool.c",
        "src/run/team.c",
        "src/run/run.c",
        "src/run/ready.c",
        "src/os/posix.c",
        "src/os/linux.c",
        "src/os/cgroup.c",
    ),
    *("tests/check.c", "tests/host_posix.c"),
)

LEVELS = {"baseline": "-march=x86-64-v2", "avx2": "-march=x86-64-v3", "avx512": "-march=x86-64-v4"}

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wstrict-prototypes", "-Wvla", "-Werror")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's test, linked with a library whose only family is the page's, at every level."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("compiles for Linux on x86-64")
    directory = tmp_path_factory.mktemp("kernel")
    files = {path: text for text, path in BLOCK.findall(PAGE.read_text())}
    assert set(files) == {"src/snake/kernels.inc", "src/snake/snake.c", "tests/test_snake.c"}
    for path, text in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    (directory / "taper_config.h").write_text(
        f"#define TAPER_ISA_LIST(X) {' '.join(f'X({isa})' for isa in reversed(LEVELS))}\n"
        "#define TAPER_FAMILY_LIST(X, isa) X(isa, snake)\n"
    )
    include = [
        directory,
        directory / "src",
        KERNELS / "include",
        KERNELS / "src",
        KERNELS / "tests",
    ]
    common = ["cc", "-std=gnu11", "-O2", "-ffp-contract=off", "-pthread", *WARNINGS]
    common += [f"-I{path}" for path in include]
    objects = []
    for isa, march in LEVELS.items():
        for source in (directory / "src/snake/snake.c", KERNELS / "src/machine/probes.c"):
            objects.append(directory / f"{source.stem}_{isa}.o")
            flags = [march, f"-DTAPER_ISA={isa}", "-c", source, "-o", objects[-1]]
            subprocess.run([*common, *flags], check=True)
    sources = [KERNELS / path for path in LIBRARY] + [directory / "tests/test_snake.c"]
    program = directory / "test_snake"
    subprocess.run([*common, *sources, *objects, "-lm", "-o", program], check=True)
    return program


@pytest.mark.parametrize("isa", LEVELS)
def test_example_passes_its_test(program: Path, isa: str) -> None:
    ended = subprocess.run([program, "--isa", isa], check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if "SKIP" in ended.stdout:
        pytest.skip(f"this CPU has no {isa}")
    assert "ok 1 - values" in ended.stdout
    assert "ok 2 - not_served" in ended.stdout
