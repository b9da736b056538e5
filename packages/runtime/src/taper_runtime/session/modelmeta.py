"""Describe a plan as ONNX Runtime's metadata does, and its tensors in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from json import dumps
from typing import TYPE_CHECKING

from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan, TensorSpec


class ModelMeta(NamedTuple):
    """A plan's producer, description and custom metadata.

    Attributes
    ----------
    producer_name : str
        The packages that exported the plan, with their versions.
    custom_metadata_map : dict of str to str
        The ``metadata`` that the export was given; the export report is ``session.plan.metadata``.
    graph_name, domain, description, graph_description : str
        Empty: a plan has none.
    version : int
        0: a plan has none.
    """

    producer_name: str
    custom_metadata_map: dict[str, str]
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = 0


def read_modelmeta(plan: Plan) -> ModelMeta:
    """Return a plan's metadata; values that are not text are returned as JSON."""
    user = plan.metadata.get("user")
    return ModelMeta(
        str(plan.metadata.get("producer", "")),
        {
            str(key): value if isinstance(value, str) else dumps(value)
            for key, value in (user.items() if isinstance(user, Mapping) else ())
        },
    )


def brief(specs: Sequence[TensorSpec]) -> str:
    """Describe some tensors in printable text."""
    shown = [
        f"{spec.name if spec.name.isidentifier() else repr(spec.name):.40} "
        f"{spec.seen.dtype}[{', '.join(map(str, spec.seen.shape)):.40}]"
        for spec in specs[:3]
    ]
    more = [f"{len(specs) - 3} more"] if len(specs) > 3 else []
    return ", ".join(shown + more) or "nothing"
