"""Write a plan to a file."""

from __future__ import annotations

import os
from itertools import chain
from typing import TYPE_CHECKING, Any

from taper_runtime.base.checks import SAMPLE_PREFIX, check_name
from taper_runtime.base.errors import InputError
from taper_runtime.base.option_values import flag
from taper_runtime.file import FORMAT, FORMAT_VERSION
from taper_runtime.file.container import dump_json, make_header
from taper_runtime.file.fields import (
    ENTRY_FIELDS,
    PLAN_FIELDS,
    features,
    size_text,
    write_arrays,
    write_fields,
)
from taper_runtime.file.mapping import check_path
from taper_runtime.file.models import DEFAULT_MODEL, Joined, member
from taper_runtime.file.plain_data import to_json
from taper_runtime.file.replacing import replace_file
from taper_runtime.file.stored_recipes import PROVENANCE, write_recipes
from taper_runtime.formats import PLAIN
from taper_runtime.ops.opdef import TensorType
from taper_runtime.plan.validate import validate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np

    from taper_runtime.base.loading import FilePath
    from taper_runtime.plan.plan import Entry, Plan, PlanBlock, PlanNode


def save(plan: Plan, path: FilePath, *, name: str = DEFAULT_MODEL, append: bool = False) -> None:
    """Write ``plan`` to ``path`` atomically: other processes see the old file or the new one.

    Equal plans give equal bytes. The file is written beside ``path`` as ``.taper-*.tmp`` and
    renamed when it is complete; only a killed process leaves the temporary file. The new file gets
    the permissions of an existing one. The target of a symbolic link is replaced, and the link
    stays.

    Parameters
    ----------
    plan : Plan
    path : path
    name : str
        The name of the plan in the file.
    append : bool
        Whether to keep the plans in an existing file. The whole file is rewritten; tensors with
        equal bytes are stored once.

    Raises
    ------
    InputError
        If ``append`` is True and the file already has a plan of this name.
    PlanFormatError
        If the plan is not valid, its attrs, trees or metadata are not plain data, or ``append`` is
        True and the file is not valid.
    FileExistsError
        If ``path`` is a directory, a device or anything else that is not a regular file.
    OSError
        If the file cannot be written. An existing file at ``path`` is then unchanged.
    """
    check_path(path)
    check_name(name, "name")
    validate(plan)
    plans = {name: plan}
    if flag("append", append) and os.path.exists(path):
        from taper_runtime.file.reader import load_all

        others = load_all(path)
        if name in others:
            raise InputError(
                f"name: expected a name that the file does not have ({[*others]}), got {name!r}"
            )
        plans |= others
    header, arrays = _file(plans)
    # Arrays are contiguous, so no bytes are copied.
    parts = (array.reshape(-1).view("u1").data for array in arrays)
    replace_file(os.fsdecode(path), chain([header], parts))


def _file(plans: Mapping[str, Plan]) -> tuple[bytes, Iterable[np.ndarray]]:
    """Return the header of a file, and the arrays that follow it."""
    if [*plans] == [DEFAULT_MODEL]:
        document = to_document(plans[DEFAULT_MODEL])
        arrays, types = _stored(plans[DEFAULT_MODEL])
    else:
        joined = Joined()
        for name in sorted(plans):
            joined.add(name, to_document(plans[name]), *_stored(plans[name]))
        document, arrays, types = joined.document(), joined.arrays, joined.types
    metadata = {"format": FORMAT, "plan": dump_json(document)}
    for name in sorted(plans):
        if recipes := write_recipes(plans[name].provenance, f"plan.{PROVENANCE}"):
            metadata[member(PROVENANCE, name, document)] = dump_json(recipes)
        metadata[member("fingerprint", name, document)] = plans[name].fingerprint()
    header, order = make_header(metadata, types)
    return header, (arrays[name] for name in order)


def _stored(plan: Plan) -> tuple[dict[str, np.ndarray], dict[str, TensorType]]:
    """Return the arrays in the file of a single plan, and their types, by name."""
    arrays: dict[str, np.ndarray] = {}
    types: dict[str, TensorType] = {}
    functions: dict[str, Plan | Entry] = {plan.default: plan, **plan.entries}
    for name, array, dtype in write_arrays(plan):
        arrays[name], types[name] = array, TensorType(dtype, array.shape)
    for entry, function in functions.items():
        prefix = f"{SAMPLE_PREFIX}{entry}/" if plan.entries else SAMPLE_PREFIX
        for name, array in function.samples.items():
            arrays[prefix + name] = array
            types[prefix + name] = TensorType(function.tensors[name].storage.dtype, array.shape)
    return arrays, types


def to_document(plan: Plan) -> dict[str, Any]:
    """Return the JSON object of ``plan`` in the file; equal plans give equal order."""
    return {
        "format_version": FORMAT_VERSION,
        "features": features(plan),
        "default": plan.default,
        **dict(write_fields(plan, PLAN_FIELDS, "plan")),
        **_function(plan, "plan"),
        "metadata": to_json(dict(plan.metadata), "plan.metadata"),
        "entries": {
            name: _function(plan.entries[name], f"plan.entries[{name!r}]")
            for name in sorted(plan.entries)
        },
    }


def _function(entry: Plan | Entry, field: str) -> dict[str, Any]:
    """Return the JSON of an entry's fields."""
    return {**_block(entry.as_block(), field), **dict(write_fields(entry, ENTRY_FIELDS, field))}


def _block(block: PlanBlock, field: str) -> dict[str, Any]:
    """Return the JSON of the fields that blocks and entries share."""
    tensors = {}
    for name in sorted(block.tensors):
        spec, placement = block.tensors[name], block.placements[name]
        tensors[name] = {
            "dtype": spec.dtype,
            "shape": [size_text(size) for size in spec.shape],
            "role": spec.role,
            "root": placement.root,
            "offset": size_text(placement.offset),
            "strides": [size_text(stride) for stride in placement.strides],
        }
        if spec.format != PLAIN:
            tensors[name]["format"] = spec.format
        if spec.is_complex:
            tensors[name]["complex"] = True
    return {
        "inputs": block.inputs,
        "outputs": block.outputs,
        "nodes": [_node(node, f"{field}.nodes[{i}]") for i, node in enumerate(block.nodes)],
        "tensors": tensors,
    }


def _node(node: PlanNode, field: str) -> dict[str, Any]:
    """Return the JSON of a node; empty optional fields are left out."""
    attrs = {name: _sizes(value) for name, value in node.attrs.items()}
    written = {
        "op": node.op,
        "inputs": node.inputs,
        "outputs": node.outputs,
        "attrs": to_json(attrs, f"{field}.attrs"),
        "source": node.source,
    }
    if node.blocks:
        written["blocks"] = [
            _block(block, f"{field}.blocks[{i}]") for i, block in enumerate(node.blocks)
        ]
    if node.targets:
        written["targets"] = node.targets
    if node.arguments is not None:
        written["arguments"] = node.arguments
    return written


def _sizes(value: Any) -> Any:
    return tuple(map(size_text, value)) if type(value) in (tuple, list) else size_text(value)
