"""Compute a whole model with AOTInductor: the delegate "aoti", which needs torch where it runs.

>>> plan = taper_frontend.aoti.export_aoti(module, args)
>>> options.delegates, options.allow_native_code = {"aoti": AotiDelegate}, True
"""

from __future__ import annotations

import json
import tempfile
from contextvars import ContextVar
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, TensorArgument

from taper_frontend.delegates import CannotDelegate, register_backend
from taper_frontend.errors import ExportError
from taper_runtime.base.errors import InputError
from taper_runtime.base.text import counted
from taper_runtime.extend.delegates import Delegate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_frontend.compiler.graph.graph import Graph
    from taper_runtime.extend.servers import ServedNode
    from taper_runtime.plan.plan import Plan

#: The delegate's name in ``SessionOptions.delegates``.
NAME = "aoti"


class _Package:
    """A program that AOTInductor compiles; it is the only subgraph of its export."""

    def __init__(self, program: ExportedProgram, configs: dict[str, Any]) -> None:
        self._program, self._configs = program, configs
        self._n_inputs = len(program.graph_signature.user_inputs)
        self._n_outputs = len(program.graph_signature.user_outputs)
        self._inputs: list[str] = []

    def subgraphs(self, graph: Graph) -> list[list[str]]:
        """Return all nodes as one subgraph.

        Raises
        ------
        ExportError
            If the graph's inputs and outputs are not those of the program, or there is a state.
        """
        made = {name for node in graph.order() for name in node.outputs}
        outputs = [name for name in dict.fromkeys(graph.outputs) if name in made]
        if graph.states or len(graph.inputs) != self._n_inputs or len(outputs) != self._n_outputs:
            raise ExportError(
                "export_aoti: expected a model without states that writes to no argument, and "
                "whose outputs are different tensors and no arguments or weights"
            )
        self._inputs = list(graph.inputs)
        return [list(graph.nodes)]

    def blob(self, subgraph: Graph) -> bytes:
        """Return the package behind a line of JSON with the names of the model's inputs."""
        unused = [name for name in self._inputs if name not in subgraph.inputs]
        if unused:
            raise CannotDelegate(f"expected a model that reads all its inputs, got {unused} unread")
        package = _compiled(self._program, self._configs)
        return json.dumps({"inputs": self._inputs}).encode() + b"\n" + package


_PACKAGE: ContextVar[_Package] = ContextVar("taper_aoti_package")


def _compile(subgraph: Graph) -> bytes:
    """Return the blob of the subgraph of the export in progress."""
    package = _PACKAGE.get(None)
    if package is None:
        raise CannotDelegate("expected an export by taper_frontend.aoti.export_aoti")
    return package.blob(subgraph)


class AotiDelegate(Delegate):
    """Runs a model that :func:`export_aoti` has compiled; its threads are those of torch.

    Raises
    ------
    InputError
        If the blob is not what :func:`export_aoti` writes, or torch cannot load it here.
    """

    runs_machine_code: ClassVar[bool] = True

    def __init__(self, node: ServedNode) -> None:
        """Load the package with torch."""
        super().__init__(node)
        header, _, package = node.blob.tobytes().partition(b"\n")
        try:
            self._order = [node.names.index(name) for name in json.loads(header)["inputs"]]
        except (ValueError, LookupError, TypeError) as error:
            raise InputError(
                f"node {node.name!r}: expected the names of the inputs and a package of "
                f"AOTInductor: {error}"
            ) from error
        self._inputs = [node.inputs[i].dtype for i in self._order]  # type: ignore[union-attr]
        self._outputs = [type_.dtype for type_ in node.outputs]
        try:
            self._model = torch._inductor.aoti_load_package(BytesIO(package))
        except Exception as error:  # torch raises errors of many types
            raise InputError(
                f"node {node.name!r}: torch cannot load its package: {error}"
            ) from error

    def run(self, inputs: tuple[np.ndarray, ...], outputs: tuple[np.ndarray, ...]) -> None:
        """See :meth:`taper_runtime.Server.run`."""
        given = [
            _tensor(np.ascontiguousarray(inputs[i]), dtype)
            for i, dtype in zip(self._order, self._inputs, strict=True)
        ]
        with torch.no_grad():
            results = self._model.loader.boxed_run(given)
        for array, dtype, result in zip(outputs, self._outputs, results, strict=True):
            _tensor(array, dtype).copy_(result)


def _tensor(array: np.ndarray, dtype: str) -> torch.Tensor:
    """Return a tensor over an array in its storage type."""
    if dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


register_backend(NAME, _compile, AotiDelegate)


def export_aoti(
    module: torch.nn.Module | ExportedProgram,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    inductor_configs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Plan:
    """Export a model that AOTInductor computes, in one node of the delegate "aoti".

    The plan has the model's own nodes and weights too, for sessions without the delegate.

    Parameters
    ----------
    module : torch.nn.Module or ExportedProgram
        A module is captured by ``torch.export.export``. It must not have states.
    args, kwargs, dynamic_shapes
        As in ``torch.export.export``; a program has its own. All arguments must be contiguous
        tensors on the CPU.
    inductor_configs : mapping of str to object, optional
        As in ``torch._inductor.aoti_compile_and_package``.
    **options
        Further options of :func:`taper_frontend.export`.

    Returns
    -------
    Plan

    Raises
    ------
    ExportError
        If an argument is not a contiguous tensor, the model has states, writes to an argument, has
        an input that it does not read, or an output that is an argument, a weight or another
        output; AOTInductor cannot compile the model, for example because there is no C++ compiler;
        or for a reason of :func:`taper_frontend.export`.
    """
    from taper_frontend.exporter import export

    own = {"partition", "delegate", "weights"} & options.keys()
    if own:
        raise ExportError(f"export_aoti: expected other options, got {', '.join(sorted(own))}")
    program = (
        module
        if isinstance(module, ExportedProgram)
        else torch.export.export(module, args, dict(kwargs or {}), dynamic_shapes=dynamic_shapes)
    )
    _check(program)
    package = _Package(program, dict(inductor_configs or {}))
    token = _PACKAGE.set(package)
    try:
        plan = export(program, partition=package.subgraphs, delegate=NAME, **options)
    finally:
        _PACKAGE.reset(token)
    others = sum(node.op != "CALL_DELEGATE" for node in filter(plan.is_executed, plan.nodes))
    if others:
        reasons = "; ".join(note["text"] for note in plan.metadata["warnings"])
        raise ExportError(
            f"export_aoti: expected one node, got {counted(others, 'other node')}: {reasons}"
        )
    return plan


def _check(program: ExportedProgram) -> None:
    """Check the arguments of a program."""
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT and not isinstance(spec.arg, TensorArgument):
            raise ExportError(f"export_aoti: argument {spec.arg.name!r}: expected a tensor")
    args, kwargs = program.example_inputs or ((), {})
    for each in torch.utils._pytree.tree_leaves((args, kwargs)):
        if isinstance(each, torch.Tensor) and not each.is_contiguous():
            raise ExportError("export_aoti: expected contiguous arguments, got one with strides")


def _compiled(program: ExportedProgram, configs: dict[str, Any]) -> bytes:
    """Return the package that AOTInductor makes of a program."""
    with tempfile.TemporaryDirectory(prefix="taper-") as folder, torch.no_grad():
        path = Path(folder, "model.pt2")
        try:
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(path), inductor_configs=configs
            )
        except Exception as error:  # torch raises errors of many types
            raise ExportError(
                f"export_aoti: AOTInductor cannot compile the model: {error}"
            ) from error
        return path.read_bytes()
