"""Register Taper as an export format of transformers: importing this module does it.

>>> import taper_frontend.transformers_backend
>>> from transformers.exporters import AutoHfExporter
>>> exporter = AutoHfExporter.from_config({"export_format": "taper"})
>>> exported = exporter.export(model, inputs, {"dynamic": True})
>>> exported.save_pretrained("folder")  # model.taper, and what transformers records of it

transformers captures the model, as for its own format ``dynamo``; Taper makes a plan of that.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.export.graph_signature import ConstantArgument, OutputKind
from torch.utils._pytree import tree_flatten
from transformers.exporters import ModelRunner, register_backend
from transformers.exporters.configs import DynamoConfig
from transformers.exporters.exporter_dynamo import DynamoExporter
from transformers.exporters.metadata import load_treespec

import taper_runtime
from taper_frontend.errors import ExportError, ExportWarning
from taper_frontend.exporter import export
from taper_frontend.lowering.lower import written_name
from taper_runtime.plan.trees import TENSORS, leaves

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from taper_runtime import InferenceSession, Plan

#: The name of the format, and the suffix of its files.
FORMAT, _SUFFIX = "taper", ".taper"


@dataclass
class TaperConfig(DynamoConfig):  # type: ignore[misc]
    """Options of an export, beside those of ``DynamoConfig``.

    Parameters
    ----------
    verify : bool or str
        As for :func:`taper_frontend.export`.
    quantize : str, optional
        As for :func:`taper_frontend.export`.
    """

    export_format: str = FORMAT
    verify: bool | str = True
    quantize: str | None = None


class TaperExporter(DynamoExporter):  # type: ignore[misc]
    """Exports models of transformers to plans."""

    export_format = FORMAT
    config_class = TaperConfig
    program_suffix = _SUFFIX
    requires_trust_remote_code = False

    def export_program(
        self, model: Any, sample_inputs: Mapping[str, Any], config: TaperConfig
    ) -> tuple[Plan, Any]:
        """Return the plan of one graph, and the metadata that transformers keeps for it.

        Raises
        ------
        ExportError
            As :func:`taper_frontend.export`.
        """
        program, metadata = super().export_program(model, sample_inputs, config)
        results = [
            spec.arg
            for spec in program.graph_signature.output_specs
            if spec.kind == OutputKind.USER_OUTPUT
        ]
        metadata.out_constants = [
            [place, each.value]
            for place, each in enumerate(results)
            if isinstance(each, ConstantArgument)
        ]
        with warnings.catch_warnings():
            # the runner gives the caller's arrays the new values
            warnings.filterwarnings("ignore", "the module writes to its arg", ExportWarning)
            return export(program, verify=config.verify, quantize=config.quantize), metadata

    @classmethod
    def save_program(cls, program: Plan, path: str | os.PathLike[str]) -> None:
        """Write a plan."""
        program.save(path)

    @classmethod
    def load_program(cls, path: str | os.PathLike[str]) -> Plan:
        """Map a plan."""
        return taper_runtime.load(path)


class TaperRunner(ModelRunner):  # type: ignore[misc]
    """Runs a plan as the model that it was made of: torch's tensors in and out."""

    def __init__(self, session: InferenceSession, metadata: Any) -> None:
        super().__init__(metadata)
        self._session = session
        kinds = [kind for kind, _ in leaves(session.plan.output_tree)]
        self._kinds = [kind for kind in kinds if kind in TENSORS]
        self._order = load_treespec(metadata.in_spec).children()[1].context

    @property
    def device(self) -> torch.device:
        """Return the device of a plan, which is the CPU."""
        return torch.device("cpu")

    @classmethod
    def from_program(cls, program: Plan, metadata: Any, device: Any = None) -> Self:
        """Open a session over a plan.

        Raises
        ------
        ExportError
            If the device is another than the CPU.
        """
        if device is not None and torch.device(device).type != "cpu":
            raise ExportError(f"device: expected the CPU, got {device!r}")
        return cls(taper_runtime.InferenceSession(program), metadata)

    def __call__(
        self, share_inputs: bool = True, share_outputs: bool = False, **kwargs: Any
    ) -> Any:
        """Return what the model returns.

        The plan reads inputs in place, and writes outputs to new arrays, whatever is asked for.
        Inputs that the model writes to, such as a static cache, are written to.
        """
        given = {**self.metadata.in_constants, **kwargs}
        flat, _ = tree_flatten({name: given[name] for name in self._order if name in given})
        tensors = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
        names = [each.name for each in self._session.get_inputs()]
        if len(tensors) != len(names):
            raise ExportError(
                f"inputs: expected {len(names)} tensors, {names}, got {len(tensors)} in {[*given]}"
            )
        feed = dict(zip(names, (each.detach().numpy() for each in tensors), strict=True))
        results = zip(self._session.run(None, feed), self._kinds, strict=True)
        found = [
            each.item() if kind == "number" else torch.from_numpy(each) for each, kind in results
        ]
        count = self.out_spec.num_leaves - len(self.out_constants)
        ends = [each.name for each in self._session.get_outputs()][count:]
        new = dict(zip(ends, found[count:], strict=True))
        for name, tensor in zip(names, tensors, strict=True):
            if written_name(name) in new:
                tensor.copy_(new[written_name(name)])
        return self.unflatten(found[:count])


register_backend(TaperExporter, TaperRunner)
