"""Replace a module's tensors by those of a checkpoint, mapped from the disk.

A checkpoint is a safetensors file, or several with an index. Its tensors are views of the mapped
files: the system reads used parts and may drop them again, so that no process holds all of them.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from taper_frontend.errors import ExportError
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INDEX = ".index.json"

#: The most problems in an error.
_LISTED = 20


class Place(NamedTuple):
    """The place of a parameter or buffer in a module."""

    name: str
    part: torch.nn.Module
    attribute: str
    tensor: torch.Tensor
    persistent: bool


@contextmanager
def filled(module: torch.nn.Module, checkpoint: str | os.PathLike[str] | None) -> Iterator[None]:
    """Give a module the tensors of a checkpoint in the context; its own are restored at the end.

    Parameters
    ----------
    module : torch.nn.Module
        The module, perhaps on the ``meta`` device. Tensors that have values and are not in the
        checkpoint are kept.
    checkpoint : str or os.PathLike, optional
        A safetensors file, or the index (``model.safetensors.index.json``) of several, which lie
        beside it. What is in it and not in the module's state dict is not read. Nothing is done
        without one.

    Raises
    ------
    ExportError
        Listing what is wrong: a file that cannot be read, a tensor that is not there, or has
        another shape or dtype, or a buffer on ``meta`` that no state dict has.
    """
    if checkpoint is None:
        yield
        return
    places = list(places_of(module))
    tensors = _matched(places, os.fspath(checkpoint))
    for place in places:
        if id(place.tensor) in tensors:
            setattr(place.part, place.attribute, tensors[id(place.tensor)])
    try:
        yield
    finally:
        for place in places:
            if id(place.tensor) in tensors:
                setattr(place.part, place.attribute, place.tensor)


def places_of(module: torch.nn.Module) -> Iterator[Place]:
    """Yield the parameters and buffers of a module; a tied one several times."""
    for prefix, part in module.named_modules():
        dot = f"{prefix}." if prefix else ""
        for name, parameter in part._parameters.items():
            if parameter is not None:
                yield Place(dot + name, part, name, parameter, True)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                kept = name not in part._non_persistent_buffers_set
                yield Place(dot + name, part, name, buffer, kept)


def _matched(places: list[Place], path: str) -> dict[int, torch.Tensor]:
    """Return the replacement of each tensor, by its id; tied tensors are one tensor."""
    stored, problems = _stored(path)
    names: dict[int, list[Place]] = {}
    for place in places:
        names.setdefault(id(place.tensor), []).append(place)
    tensors: dict[int, torch.Tensor] = {}
    for key, alike in [] if problems else names.items():
        own = alike[0].tensor
        known = [place.name for place in alike if place.persistent and place.name in stored]
        if not known:
            if own.is_meta:
                problems.append(lacking(alike))
            continue
        found = stored[known[0]]
        if (found.dtype, found.shape) != (own.dtype, own.shape):
            problems.append(f"{known[0]}: expected {_type(own)}, got {_type(found)}")
        elif isinstance(own, torch.nn.Parameter):
            tensors[key] = torch.nn.Parameter(found, requires_grad=own.requires_grad)
        else:
            tensors[key] = found.clone()  # the module may write to it
    if problems:
        more = len(problems) - _LISTED
        lines = problems[:_LISTED] + [f"and {more} more"] * (more > 0)
        raise ExportError("\n  ".join([f"checkpoint {path!r} does not fit the module:", *lines]))
    return tensors


def lacking(alike: list[Place]) -> str:
    """Return the message that a checkpoint lacks a tensor that is on ``meta``."""
    name, tensor = " = ".join(place.name for place in alike), alike[0].tensor
    if not any(place.persistent for place in alike):
        return (
            f"{name}: expected values, got a buffer on the meta device that is not part of a state "
            "dict; make the module with its buffers on the CPU"
        )
    return f"{name}: expected {_type(tensor)}, got nothing"


def _stored(path: str) -> tuple[Mapping[str, torch.Tensor], list[str]]:
    """Return the tensors of a checkpoint, and problems with reading it."""
    problems: list[str] = []
    tensors: dict[str, torch.Tensor] = {}
    try:
        shards = read_index(path) if path.endswith(_INDEX) else {path: None}
    except (OSError, ValueError) as error:
        return tensors, [f"expected an index of safetensors files, got {error}"]
    for file, names in shards.items():
        try:
            found = _mapped(file, names)
        except (OSError, ValueError) as error:
            problems.append(f"{file}: expected a safetensors file, got {error}")
            continue
        problems += [
            f"{name}: expected it in {file}, which the index names, got nothing"
            for name in names or ()
            if name not in found
        ]
        tensors |= found
    return tensors, problems


def read_index(path: str) -> dict[str, list[str] | None]:
    """Return the files of an index, each with the names of its tensors.

    Raises
    ------
    OSError, ValueError
        If the index cannot be read or is invalid.
    """
    with open(path, encoding="utf-8") as file:
        index: Any = json.load(file)
    weights = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weights, dict):
        raise ValueError("JSON without an object 'weight_map'")
    shards: dict[str, list[str] | None] = {}
    for name, shard in weights.items():
        # in the folder of the index
        if not isinstance(shard, str) or os.path.basename(shard) != shard or shard in ("", ".."):
            raise ValueError(
                f"{shard!r} for {name!r}, which is not the name of a file in the same folder"
            )
        names = shards.setdefault(os.path.join(os.path.dirname(path), shard), [])
        assert names is not None
        names.append(name)
    return shards


def _mapped(file: str, names: list[str] | None) -> dict[str, torch.Tensor]:
    """Return the named tensors of a file, or all.

    Raises
    ------
    OSError, ValueError
        If the file cannot be read or is not a safetensors file.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ExportError(
            "checkpoint: expected the package safetensors, got none: "
            "pip install taper-frontend[checkpoint]"
        ) from error
    try:
        with safe_open(file, framework="pt") as opened:
            known = set(opened.keys())
            wanted = known if names is None else known.intersection(names)
            return {name: opened.get_tensor(name) for name in sorted(wanted)}
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def _type(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
