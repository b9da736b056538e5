"""Torch's own samples of ops, each exported, saved, loaded, run without torch and compared.

Many samples are the calls of one module: capturing a module has a price that dwarfs that of a call.
Calls of ops that are not served are taken out; what fails otherwise is split until each call has a
verdict of its own.
"""

from __future__ import annotations

import functools
import signal
import warnings
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.testing._internal.common_device_type import toleranceOverride
from torch.utils._pytree import tree_leaves, tree_map

import taper_runtime
from taper_frontend.capture.attempts import CapturedProgram
from taper_frontend.capture.capture import capture
from taper_frontend.capture.read_exported import read_program
from taper_frontend.capture.tensors import DTYPE_NAMES, to_numpy
from taper_frontend.errors import ExportError, UnsupportedNodesError
from taper_frontend.lowering import HANDLERS
from taper_frontend.lowering.needed_calls import needed
from taper_frontend.program_to_plan import compile_program
from taper_frontend.request.program_inputs import read_inputs
from tools.opinfo.doubts import NEARER, ROUNDED, TIES, by_stable_sort, is_nearer, is_rounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from torch.export import ExportedProgram
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

DTYPES = (
    torch.float32,
    torch.int64,
    torch.bool,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
)

# What can become of a sample. The last two are not held against Taper.
RIGHT = "right"
WRONG = "wrong"
RUN = "does not run"
EXPORT = "not exported"
OUTSIDE = "not served"  # it needs an op or a dtype that Taper does not mean to serve
REFUSED = "refused by torch"  # torch cannot run or export it
VERDICTS = (RIGHT, WRONG, RUN, EXPORT, OUTSIDE, REFUSED)

#: Samples of one module, and the seconds each step may take with them.
TOGETHER = 48
_SECONDS = 120

#: Their values are whatever the memory holds.
_UNINITIALISED = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)

#: What no plan holds: reading a number out of a tensor, shapes that depend on values, mutation.
_LEFT_OUT = frozenset({"data-dependent", "mutation"})

# Torch lists its composite ops anew for every capture, which takes longer than capturing.
torch._export.utils._collect_all_valid_cia_ops_for_namespace = functools.cache(
    torch._export.utils._collect_all_valid_cia_ops_for_namespace
)


class Verdict(NamedTuple):
    """What became of one sample, and why."""

    verdict: str
    cause: str = ""


class Case(NamedTuple):
    """One sample of an op."""

    op: OpInfo
    sample: SampleInput


class Call(torch.nn.Module):
    """A call with tensors from outside among baked-in arguments."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.function = case.op.op
        self.arguments = ((case.sample.input, *case.sample.args), case.sample.kwargs)
        self.tensors = _tensors(self.arguments)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Call it with these tensors."""
        given = iter(tensors)
        args, kwargs = tree_map(
            lambda x: next(given) if isinstance(x, torch.Tensor) else x, self.arguments
        )
        return self.function(*args, **kwargs)


class Calls(torch.nn.Module):
    """Several calls, each with tensors of its own."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        self.calls = torch.nn.ModuleList(map(Call, cases))

    def forward(self, *tensors: torch.Tensor) -> list[Any]:
        """Give the tensors among the results of the calls, in order; numbers are not compared."""
        given = iter(tensors)
        return [_tensors(call(*[next(given) for _ in call.tensors])) for call in self.calls]


def cases_of(op: OpInfo, dtype: torch.dtype, most: int | None = None) -> list[Case]:
    """Return the samples of an op, or at most so many of them, spread evenly."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # op.sample_inputs() would look through the call stack for every sample
        samples = list(op.sample_inputs_func(op, "cpu", dtype, False))
    if most is not None and len(samples) > most:
        samples = [samples[i * len(samples) // most] for i in range(most)]
    return [Case(op, sample) for sample in samples]


def judge(cases: Sequence[Case], dtype: torch.dtype) -> list[Verdict]:
    """Judge samples of ops, in one dtype; the verdicts come in their order."""
    verdicts: dict[int, Verdict] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the samples try deprecated and odd arguments
        able = []
        for index, case in enumerate(cases):
            try:
                with _in_time(), torch.no_grad():
                    call = Call(case)
                    wanted = call(*[t.clone() for t in call.tensors])
                able.append((index, case, _tensors(wanted)))
            except Exception as error:  # torch may raise anything
                verdicts[index] = Verdict(REFUSED, _first_line(error))
        for first in range(0, len(able), TOGETHER):
            _judge(able[first : first + TOGETHER], dtype, verdicts)
    return [verdicts[index] for index in range(len(cases))]


_Item = tuple[int, Case, list[torch.Tensor]]


def _judge(items: list[_Item], dtype: torch.dtype, verdicts: dict[int, Verdict]) -> None:
    """Judge what can be captured together, with its results."""
    if not items:
        return
    module = Calls([case for _, case, _ in items]).eval()
    tensors = [t for call in module.calls for t in call.tensors]
    try:
        with _in_time():
            program = capture(module, tuple(tensors))
        outside = _calls_outside(program)
        got = [] if outside else _run(program, tensors)
    except Exception as error:  # the verdict says what it was
        if len(items) == 1:
            verdicts[items[0][0]] = _failure(error)
            return
        part = -(-len(items) // 4)
        for first in range(0, len(items), part):
            _judge(items[first : first + part], dtype, verdicts)
        return
    if outside:
        for call, cause in outside.items():
            verdicts[items[call][0]] = Verdict(OUTSIDE, cause)
        rest = [item for call, item in enumerate(items) if call not in outside]
        _judge(rest, dtype, verdicts)
        return
    results = iter(got)
    for index, case, wanted in items:
        ours = [next(results) for _ in wanted]
        verdicts[index] = _compare(case, dtype, ours, wanted)


class _RunError(Exception):
    """The plan, once made, cannot be saved, loaded or run."""


def _run(program: ExportedProgram, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Make a plan, save, load and run it; return the results."""
    with _in_time():
        plan = compile_program(CapturedProgram(program, read_inputs(program))).plan
    try:
        with _in_time(), TemporaryDirectory() as folder:
            path = Path(folder) / "op.taper"
            plan.save(path)
            session = taper_runtime.InferenceSession(path)
            feed = dict(zip(session.plan.inputs, map(to_numpy, tensors), strict=True))
            return session.run(None, feed)
    except Exception as error:  # the verdict says what it was
        raise _RunError(_first_line(error)) from error


def _calls_outside(program: ExportedProgram) -> dict[int, str]:
    """Return the calls that are not served, each with its cause."""
    outside: dict[int, str] = {}
    wanted = {node.name for node in needed(read_program(program).nodes)}
    for node in program.graph.nodes:
        if (
            node.name not in wanted
            or node.op != "call_function"
            or not (cause := _why_outside(node))
        ):
            continue
        stack = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
        call = next((path.split(".")[-1] for path in stack if ".calls." in f".{path}"), None)
        if call is not None:
            outside.setdefault(int(call), f"{node.target}: {cause}")
    return outside


def _why_outside(node: torch.fx.Node) -> str:
    """Return why Taper does not mean to serve a node; empty if it does."""
    target = node.target
    for value in tree_leaves([n.meta.get("val") for n in (node, *node.all_input_nodes)]):
        if isinstance(value, torch.Tensor) and value.dtype not in DTYPE_NAMES:
            return f"tensors of {value.dtype}"
    if not isinstance(target, torch._ops.OpOverload) or str(target) in HANDLERS:
        return ""
    if why := why_left_out(target):
        return why
    return "" if torch.Tag.core in target.tags else "not Core ATen, and no handler"


def why_left_out(op: torch._ops.OpOverload[..., Any]) -> str:
    """Return why Taper does not mean to serve any call of an op; empty if it does."""
    tags = op.tags
    if "_backward" in str(op):
        return "a gradient"
    if torch.Tag.nondeterministic_seeded in tags:
        return "random numbers"
    if torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags:
        return "the result's shape, or a number, depends on values"
    return ""


def _failure(error: Exception) -> Verdict:
    """Return the verdict on a single sample that failed."""
    if isinstance(error, _RunError):
        return Verdict(RUN, str(error))
    if not isinstance(error, UnsupportedNodesError):
        refused = isinstance(error, ExportError)
        return Verdict(REFUSED if refused else EXPORT, _first_line(error.__cause__ or error))
    missing = [node for node in error.nodes if not _is_left_out(node)]
    node = (missing or error.nodes)[0]
    return Verdict(EXPORT if missing else OUTSIDE, f"{node.op}: {node.reason}")


def _is_left_out(node: Any) -> bool:
    """Whether an unsupported node is one that Taper does not mean to serve."""
    if node.category in _LEFT_OUT or "dense" in node.reason:
        return True
    namespace, _, rest = node.op.partition(".")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace, None), name, None)
    target = getattr(packet, overload, None)
    if not isinstance(target, torch._ops.OpOverload):
        return "_local_scalar_dense" in node.op
    is_served = torch.Tag.core in target.tags or node.op in HANDLERS
    return not is_served or bool(why_left_out(target))


def _compare(case: Case, dtype: torch.dtype, got: list[Any], theirs: list[torch.Tensor]) -> Verdict:
    ours = [_as_torch(x, torchs) for x, torchs in zip(got, theirs, strict=True)]
    if case.op.name in _UNINITIALISED:
        ours, theirs = ([torch.zeros_like(x) for x in values] for values in (ours, theirs))
    wrong = _differences(case.op, dtype, ours, theirs)
    if not wrong:
        return Verdict(RIGHT)
    stable = by_stable_sort(case.op.name, case.sample)
    if stable and not any(_differences(case.op, dtype, ours, stable)):
        return Verdict(RIGHT, TIES)
    exact = _exact(case)
    if exact and is_nearer(ours, theirs, exact):
        return Verdict(WRONG, NEARER)
    if exact and is_rounded(ours, exact):
        return Verdict(WRONG, ROUNDED)
    return Verdict(WRONG, wrong)


def _as_torch(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    tensor = torch.from_numpy(array.copy())
    return tensor.bfloat16() if like.dtype == torch.bfloat16 else tensor


def _differences(
    op: OpInfo, dtype: torch.dtype, ours: list[torch.Tensor], theirs: list[torch.Tensor]
) -> str:
    """Say what is not equal; empty if nothing is."""
    for mine, torchs in zip(ours, theirs, strict=True):
        exact = not (torchs.is_floating_point() or torchs.is_complex())
        rtol, atol = (None, None) if exact else _tolerance(op, dtype)
        try:
            torch.testing.assert_close(
                mine, torchs, rtol=rtol, atol=atol, equal_nan=True, check_stride=False
            )
        except AssertionError as error:
            return str(error).splitlines()[0]
    return ""


def _exact(case: Case) -> list[torch.Tensor]:
    """Return what torch gives in float64; nothing where an op does not take it."""

    def in_float64(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return wide(x)
        return x.to(wide(x.dtype)) if isinstance(x, torch.Tensor) else x

    def wide(dtype: torch.dtype) -> torch.dtype:
        if dtype.is_complex:
            return torch.complex128
        return torch.float64 if dtype.is_floating_point else dtype

    call = Call(case)
    call.arguments = tree_map(in_float64, call.arguments)
    try:
        return _tensors(call(*map(in_float64, call.tensors)))
    except (RuntimeError, TypeError, ValueError):
        return []


def _tolerance(op: OpInfo, dtype: torch.dtype) -> tuple[float | None, float | None]:
    """Return the widest tolerances that the OpInfo's own tests allow; None for the dtype's."""
    own = [
        override.d[dtype]
        for info in op.decorators
        for override in getattr(info, "decorators", [])
        if isinstance(override, toleranceOverride)
        and getattr(info, "device_type", None) in (None, "cpu")
        and dtype in override.d
    ]
    if not own:
        return None, None
    default = torch.testing._comparison.default_tolerances(dtype)
    rtols, atols = zip(default, *[(t.rtol, t.atol) for t in own], strict=True)
    return max(rtols), max(atols)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]


def _first_line(error: BaseException) -> str:
    lines = f"{type(error).__name__}: {error}".strip().splitlines()
    return lines[0][:160]


@contextmanager
def _in_time() -> Iterator[None]:
    """Raise TimeoutError in what takes too much of the processor's time."""

    def out_of_time(*_: object) -> None:
        raise TimeoutError(f"more than {_SECONDS} s")

    signal.signal(signal.SIGPROF, out_of_time)
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
