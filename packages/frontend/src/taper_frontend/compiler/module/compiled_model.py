"""Compile a module of PyC's form, and run it with PyC's statuses and statistics."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.compile import compile_graph, fuse_again
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.graph.fingerprint import constants_digest, structure_digest
from taper_frontend.compiler.memory_budget import within_budget
from taper_frontend.compiler.module.module_ops import (
    BREAKS,
    DTYPES,
    CompileOptions,
    Module,
    ModuleError,
    Status,
)
from taper_frontend.compiler.module.pyc_statistics import (
    kernel_statistics,
    memory_statistics,
    peak_live_values,
)
from taper_frontend.compiler.pass_registry import pass_names
from taper_frontend.compiler.planning import make_plan, make_schedule
from taper_frontend.compiler.stages import STAGES
from taper_frontend.plan_cache import environment_parts, open_cache
from taper_runtime import InferenceSession, Plan, RuntimeController, SessionOptions
from taper_runtime.base.errors import InputError, TaperError
from taper_runtime.base.records import NamedTuple
from taper_runtime.native._kernels import active_isa

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import numpy as np

    from taper_frontend.compiler.module.module_ops import ModuleOp
    from taper_frontend.compiler.pipeline import PassRecord
    from taper_runtime.base.option_values import MemoryPlanning


class _Made(NamedTuple):
    """A plan, and how it was made."""

    plan: Plan
    records: Sequence[PassRecord]
    renamed: int
    inferred: int


def compile_module(
    module: Module | Graph | Plan,
    options: CompileOptions | None = None,
    backend: str = "cpu",
    *,
    cache: str | os.PathLike[str] | bool | None = None,
) -> CompiledModel:
    """Compile a module, a graph of Taper's or a plan, and open a session of it.

    Parameters
    ----------
    module : Module, Graph or Plan
        A graph is changed in place.
    options : CompileOptions, optional
    backend : str
        ``"cpu"``.
    cache : path or False, optional
        As for :func:`taper_frontend.export`.

    Raises
    ------
    TaperError, OSError
        Its ``status`` is INVALID_ARGUMENT for a wrong argument, VERIFY_FAILED for a module that is
        not valid, and COMPILE_FAILED for shapes that do not fit, or a database of times that cannot
        be read. One of the module or the options alone is a :class:`ModuleError`.
    """
    begin = time.perf_counter()
    _check_arguments(module, options, backend)
    used = (CompileOptions() if options is None else options).effective()
    try:
        made = _cached(module, used, False if used.cache_mode == "disabled" else cache)
        session = InferenceSession(made.plan, _session_options(used))
    except (TaperError, OSError) as error:
        _set_status(error, Status.COMPILE_FAILED)
        raise
    compile_ms = (time.perf_counter() - begin) * 1e3
    return CompiledModel(module, made, session, used, compile_ms)


def _check_arguments(module: object, options: object, backend: str) -> None:
    """Check what is compiled; see :func:`compile_module`."""
    if module is None:
        raise ModuleError("module: expected one, got None", Status.VERIFY_FAILED, 1)
    if not isinstance(module, (Module, Graph, Plan)):
        text = f"module: expected a Module, Graph or Plan, got {type(module).__name__}"
        raise ModuleError(text, Status.INVALID_ARGUMENT)
    if not isinstance(options, (CompileOptions, type(None))):
        text = f"options: expected CompileOptions, got {type(options).__name__}"
        raise ModuleError(text, Status.INVALID_ARGUMENT)
    if backend != "cpu":
        text = f"backend: expected 'cpu', got {backend!r}; an export can take delegates"
        raise ModuleError(text, Status.INVALID_ARGUMENT)
    if isinstance(module, Module):
        code, text = module.verify()
        if code:
            raise ModuleError(text, Status.VERIFY_FAILED, code)


def _set_status(error: Exception, status: Status) -> None:
    """Give an error a status, unless it has one."""
    vars(error).setdefault("status", status)


def _session_options(options: CompileOptions) -> SessionOptions:
    chosen = SessionOptions()
    planning: MemoryPlanning = chosen.memory_planning
    chosen.memory_planning = planning._replace(enabled=options.enable_memory_reuse)
    if options.enable_autotune:
        chosen.tuned = options.autotune_db_path
    return chosen


def _cached(
    module: Module | Graph | Plan,
    options: CompileOptions,
    cache: str | os.PathLike[str] | bool | None,
) -> _Made:
    """Return the plan of a module, by the cache if there is one."""
    if isinstance(module, Plan):
        return _Made(module, (), 0, 0)
    folder = open_cache(cache)
    if folder is None:
        return _make(module, options)
    if isinstance(module, Module):
        parts = {"module": hashlib.sha256(module.text().encode()).hexdigest()}
    else:
        parts = {"graph": structure_digest(module), "weights": constants_digest(module)}
    parts |= {
        "fusion": str(options.enable_fusion),
        "memory_budget": str(options.budget_to_meet),
        **environment_parts(),
    }
    made: list[_Made] = []

    def make() -> Plan:
        made.append(_make(module, options))
        return made[0].plan

    plan = folder.export(parts, make)
    return made[0]._replace(plan=plan) if made else _Made(plan, (), 0, 0)


def _make(module: Module | Graph, options: CompileOptions) -> _Made:
    passes = None if options.enable_fusion else _without_fusion()
    budget = options.budget_to_meet
    if isinstance(module, Graph):
        return _Made(*_planned(module, passes, None, budget), 0, 0)
    renamed = sum(not op.name for op in module.ops)
    inferred = sum(op.shape is None for op in module.ops)
    graph, names = _to_graph(module)
    return _Made(*_planned(graph, passes, names, budget), renamed, inferred)


def _planned(
    graph: Graph, passes: Sequence[str] | None, names: Sequence[str] | None, budget: int
) -> tuple[Plan, Sequence[PassRecord]]:
    """Optimize a graph, and make a plan of it; ``budget`` is of its arena, 0 for none."""
    unfused: list[Graph] = []
    records = compile_graph(
        graph,
        passes,
        output_names=names,
        before_fusion=lambda graph: unfused.append(graph.copy()) if budget else None,
    )
    if not budget:
        return make_plan(graph), records

    def form(room: int) -> Graph:
        return fuse_again(unfused[0], passes, room, graph.outputs)

    schedule = make_schedule(graph)
    fitted, schedule, told = within_budget(graph, schedule, budget, form if unfused else None, {})
    return make_plan(fitted, schedule, metadata={"memory": told}), records


def _without_fusion() -> list[str]:
    """Return the names of all passes of the pipeline but those that fuse nodes."""
    stages = {stage.name for stage in STAGES}
    return [name for name in pass_names() if name not in stages and not name.startswith("fuse_")]


def _to_graph(module: Module) -> tuple[Graph, list[str]]:
    """Return the graph of a valid module, and the names of its outputs.

    Raises
    ------
    ModuleError
        If shapes or dtypes do not fit.
    """
    graph = Graph()
    names: list[str] = []
    outputs: list[tuple[str, str]] = []
    for place, op in enumerate(module.ops):
        name = op.name or f"op_{place}"
        try:
            made = _add(graph, op, name, [names[i] for i in op.inputs])
        except TaperError as error:
            text = f"op {place} ({name}): {error}"
            raise ModuleError(text, Status.COMPILE_FAILED) from error
        found = graph.tensors[made]
        expected = DTYPES[op.dtype][1], found.shape if op.shape is None else tuple(op.shape)
        if expected != (found.dtype, found.shape):
            text = (
                f"op {place} ({name}): expected {expected}, inferred {found.dtype}, {found.shape}"
            )
            raise ModuleError(text, Status.COMPILE_FAILED)
        names.append(made)
        if op.kind == "output":
            outputs.append((name, made))
    if not outputs:
        raise ModuleError("module: expected an output, got none", Status.COMPILE_FAILED)
    if len({name for name, _ in outputs}) < len(outputs):
        raise ModuleError("module: expected outputs of different names", Status.COMPILE_FAILED)
    graph.set_outputs([made for _, made in outputs])
    return graph, [name for name, _ in outputs]


def _add(graph: Graph, op: ModuleOp, name: str, inputs: list[str]) -> str:
    """Add an op to a graph; return its tensor."""
    if op.kind == "input":
        return graph.add_input(name, DTYPES[op.dtype][1], tuple(op.shape or ()))
    if op.kind == "const" and op.value is not None:
        return graph.add_constant(name, op.value.copy())
    if op.kind == "output":
        return inputs[0]
    if op.kind == "matmul":  # PyC's has no batch
        for each in inputs:
            if len(graph.tensors[each].shape) != 2:
                raise InputError(f"matmul: expected 2 dims, got {graph.tensors[each].shape}")
    attrs: dict[str, Any] = {}
    if op.kind == "reduce_sum":
        rank = len(graph.tensors[inputs[0]].shape)
        attrs = {"axes": tuple(op.axes) or tuple(range(rank)), "keepdim": False}
    if op.kind == "layernorm":
        attrs = {"dims": 1, "eps": op.eps}
    kinds = {"reduce_sum": "SUM", "layernorm": "LAYER_NORM"}
    return graph.add_node(kinds.get(op.kind, op.kind.upper()), inputs, attrs, name=name)


# -- what was compiled -----------------------------------------------------------------------------


class CompiledModel:
    """A compiled module with a session.

    Attributes
    ----------
    status : Status
        Of the last call.
    plan : Plan
    session : InferenceSession
    options : CompileOptions
        As they are used.
    controller : RuntimeController
        It advises nothing until it observes ``session.stats()``.
    """

    def __init__(
        self,
        module: Module | Graph | Plan,
        made: _Made,
        session: InferenceSession,
        options: CompileOptions,
        compile_ms: float,
    ) -> None:
        self.status = Status.OK
        self.plan, self.session, self.options = made.plan, session, options
        self.controller = RuntimeController(options.rails, options.objective_mode)
        self._module, self._made, self._compile_ms = module, made, compile_ms
        self._fingerprint = made.plan.fingerprint()
        self._run_ms = 0.0
        self._guard_misses = 0
        self._contract = "ok"

    def run(
        self,
        inputs: Sequence[np.ndarray] | Mapping[str, np.ndarray],
        outputs: Sequence[np.ndarray] | None = None,
    ) -> list[np.ndarray]:
        """Run the model once.

        Parameters
        ----------
        inputs : sequence or mapping of numpy.ndarray
            In the order of the input ops, or by name.
        outputs : sequence of numpy.ndarray, optional
            Arrays to write to, in the order of the output ops.

        Raises
        ------
        TaperError
            Its ``status`` is INVALID_ARGUMENT for arrays that do not fit, else RUNTIME_FAILED.
        """
        begin = time.perf_counter()
        try:
            feed = _by_name("inputs", self.plan.inputs, inputs)
            out = None if outputs is None else _by_name("outputs", self.plan.outputs, outputs)
            results = self.session.run(None, feed, out=out)
        except TaperError as error:
            wrong = isinstance(error, InputError)
            self.status = Status.INVALID_ARGUMENT if wrong else Status.RUNTIME_FAILED
            _set_status(error, self.status)
            raise
        self.status = Status.OK
        self._run_ms = (time.perf_counter() - begin) * 1e3
        return results

    def check(self) -> None:
        """Compute the plan's fingerprint again, and compare it with the one at compilation.

        Raises
        ------
        ModuleError
            If they differ and the options are deterministic: RUNTIME_FAILED, with the reason
            ``fingerprint_mismatch``.
        """
        if self.session.plan.fingerprint() == self._fingerprint:
            return
        self._contract = "fingerprint_mismatch"
        self._guard_misses += 1
        if self.options.deterministic_strict:
            self.status = Status.RUNTIME_FAILED
            text = "fingerprint_mismatch: the plan is not the one that was compiled"
            raise ModuleError(text, Status.RUNTIME_FAILED)

    @property
    def report(self) -> dict[str, Any]:
        """Return what the passes did, under PyC's names."""
        made, records = self._made, self._made.records
        fused = [each.before - each.after for each in records if each.name.startswith("fuse_")]
        return {
            "passes_run": len(records),
            "warnings": [],
            "errors": [],
            "transformed_ops": made.renamed,
            "fused_patterns": sum(fused),
            "inferred_shapes": made.inferred,
            "peak_live_values": peak_live_values(self.plan),
            **self._breaks(),
        }

    def _breaks(self) -> dict[str, Any]:
        """Return PyC's statistics of graph breaks; the CPU computes each kind, so all are 0."""
        ops = len(self._module.ops) if isinstance(self._module, Module) else len(self.plan.nodes)
        return {
            "graph_break_count": 0,
            **{f"graph_break_{kind}_count": 0 for kind in BREAKS},
            "first_graph_break_op_id": -1,
            "first_graph_break_op_name": "none",
            "graph_break_summary": "breaks=0 first=none@-1 c=0 g=0 r=0 l=0 u=0",
            "compilability_score": 1.0 if ops else 0.0,
        }

    @property
    def stats(self) -> dict[str, Any]:
        """Return every statistic of PyC's, under its name."""
        stats, options = self.session.stats(), self.options
        memory = memory_statistics(self.plan, stats.layout)
        isa = active_isa()
        budget = options.memory_budget_bytes
        excess = max(0, memory["peak_bytes"] - budget) if budget else 0
        tuned = stats.tuned
        budget_ms = options.compile_budget_ms
        return {
            "compile_ms": self._compile_ms,
            "run_ms": self._run_ms,
            "dispatch_ms": 0.0,
            "graph_exec_ms": self._run_ms,
            "controller_ms": 0.0,
            "kernel_select_ms": 0.0,
            **memory,
            "pressure_events": int(excess > 0),
            "pressure_score": excess / budget if budget else 0.0,
            **kernel_statistics(self.plan, isa, self.session.decisions()),
            "active_mode": self.controller.mode,
            "rollback_reason": self.controller.rollback_reason,
            "rollback_count": self.controller.rollback_count,
            "deterministic_contract_enforced": options.deterministic_strict,
            "deterministic_contract_ok": self._contract == "ok",
            "deterministic_contract_reason": self._contract,
            "model_fingerprint": self._fingerprint,
            "compile_cache_hit": bool(self.plan.metadata.get("cache", {}).get("hit")),
            "compile_budget_exceeded": bool(budget_ms and self._compile_ms > budget_ms),
            "guard_miss_count": self._guard_misses,
            "fallback_count": sum(each.fallbacks for each in stats.delegates),
            **self._breaks(),
            "autotune_loaded": bool(tuned and tuned.chosen),
            "autotune_saved": False,
        }

    def last_decision_log(self) -> str:
        """Return PyC's line about the compilation; ``session.decision_log()`` tells more."""
        s, options = self.stats, self.options
        counts = ",".join(str(s[f"graph_break_{kind}_count"]) for kind in BREAKS)
        first = f"{s['first_graph_break_op_name']}@{s['first_graph_break_op_id']}"
        return (
            f"mode={options.objective_mode} budget={options.memory_budget_bytes} "
            f"pressure={s['pressure_score']:.6f} kernel={s['selected_kernel_symbol']} "
            f"score={s['selected_kernel_score']:.3f} util={s['estimated_utilization']:.3f} "
            f"det={options.deterministic_strict:d} cache_hit={s['compile_cache_hit']:d} "
            f"compile_ms={s['compile_ms']:.3f} budget_ms={options.compile_budget_ms:.3f} "
            f"budget_exceeded={s['compile_budget_exceeded']:d} "
            f"graph_breaks={s['graph_break_count']} break_first={first} break_counts={counts} "
            f"compilability={s['compilability_score']:.3f} autotune_loaded={s['autotune_loaded']:d}"
        )


def _by_name(
    what: str, names: Sequence[str], arrays: Sequence[np.ndarray] | Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """Return arrays by name.

    Raises
    ------
    InputError
        If they are neither a mapping nor one for each name.
    """
    if isinstance(arrays, Mapping):
        return arrays
    if not isinstance(arrays, (list, tuple)) or len(arrays) != len(names):
        got = len(arrays) if isinstance(arrays, (list, tuple)) else type(arrays).__name__
        raise InputError(f"{what}: expected {len(names)} arrays, got {got}")
    return dict(zip(names, arrays, strict=True))
