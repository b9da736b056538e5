"""Check a model and its example arguments before torch sees them."""

from __future__ import annotations

import inspect
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils._pytree import SUPPORTED_NODES, keystr, tree_flatten_with_path

from taper_frontend.errors import ExportError
from taper_frontend.request.refusals import CACHE_HINT

if TYPE_CHECKING:
    import os

_EXPECTED = "expected a torch.nn.Module, an ExportedProgram or the path of a .pt2 file"


def check_model(model: Any) -> None:
    """Check that a model is of a kind that can be exported.

    Raises
    ------
    ExportError
        If it is not; the message says what it is.
    """
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise ExportError(
            f"the model is TorchScript ({type(model).__name__}), which torch.export refuses: "
            f"{_EXPECTED}; build the module from its Python class and give it the weights, "
            "module.load_state_dict(scripted.state_dict())"
        )
    if isinstance(model, str | Path) or hasattr(model, "__fspath__"):
        _check_file(model)
    elif isinstance(model, type) and issubclass(model, torch.nn.Module):
        raise ExportError(f"{_EXPECTED}, got the class {model.__name__}: call it to make a module")
    elif isinstance(model, Mapping):
        raise ExportError(f"{_EXPECTED}, got a {type(model).__name__}; {_what_is_in(model)}")
    elif not isinstance(model, torch.nn.Module | ExportedProgram):
        raise ExportError(f"{_EXPECTED}, got {type(model).__name__}")


def check_arguments(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
    """Check that example arguments can be passed to a module.

    Raises
    ------
    ExportError
        If ``args`` is not a tuple, they contain numpy arrays or a cache of transformers, or the
        module's forward does not accept them.
    """
    if not isinstance(args, tuple | list):
        hint = ", (x,) for one tensor" if isinstance(args, torch.Tensor | np.ndarray) else ""
        raise ExportError(
            f"args: expected a tuple of the example arguments{hint}, got {type(args).__name__}"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ExportError(f"kwargs: expected a dict, got {type(kwargs).__name__}")
    for what, given in (("args", tuple(args)), ("kwargs", dict(kwargs or {}))):
        for key, value in given.items() if isinstance(given, dict) else enumerate(given):
            kind = type(value)
            if kind.__module__ == "transformers.cache_utils" and kind not in SUPPORTED_NODES:
                raise ExportError(
                    f"{what}[{key!r}]: expected tensors, got a {kind.__name__}: {CACHE_HINT}"
                )
        for path, leaf in tree_flatten_with_path(given)[0]:
            if isinstance(leaf, np.ndarray | np.generic):
                advice = (
                    "torch.from_numpy makes a tensor of an array"
                    if isinstance(leaf, np.ndarray)
                    else "torch.tensor makes a tensor of it, and .item() a Python number"
                )
                raise ExportError(
                    f"{what}{keystr(path)}: expected a torch.Tensor, got {type(leaf).__name__}; "
                    f"{advice}"
                )
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*args, **(kwargs or {}))
    except TypeError as error:
        got = [*(type(arg).__name__ for arg in args), *(f"{name}=" for name in kwargs or {})]
        raise ExportError(
            f"the arguments do not fit {type(module).__name__}.forward: {error}; "
            f"expected {signature}, got ({', '.join(got)})"
        ) from None


def _check_file(path: str | os.PathLike[str]) -> None:
    """Check that a path names a program; torch checks the contents."""
    file = Path(path)
    name = repr(str(file))
    if not file.exists():
        raise ExportError(f"torch could not read {name}: no such file; {_EXPECTED}")
    if file.is_dir():
        raise ExportError(f"torch could not read {name}: it is a folder; {_EXPECTED}")
    if not zipfile.is_zipfile(file):
        raise ExportError(
            f"torch could not read {name}: it is not an archive of torch; {_EXPECTED}"
        )
    with zipfile.ZipFile(file) as archive:
        members = {member.partition("/")[2] for member in archive.namelist()}
    if "constants.pkl" in members and "data.pkl" in members:
        raise ExportError(
            f"{name} is TorchScript (torch.jit.save), which torch.export refuses: "
            f"{_EXPECTED}; build the module from its Python class and give it the weights"
        )
    if "data.pkl" in members:
        try:
            content = torch.load(file, map_location="meta", weights_only=True)
        except Exception:  # a pickle of classes is not opened
            what = "it holds a pickled object; load it with torch.load and give the module"
        else:
            what = _what_is_in(content)
        raise ExportError(f"{name} was written by torch.save: {_EXPECTED}; {what}")


def _what_is_in(content: Any) -> str:
    """Describe the content of a checkpoint, and what to do with it."""
    if isinstance(content, Mapping) and any(isinstance(x, torch.Tensor) for x in content.values()):
        return (
            f"it is a state dict of {len(content)} tensors, which has no model: make the module, "
            "call module.load_state_dict(...), and export the module"
        )
    if isinstance(content, Mapping):
        keys = ", ".join(map(repr, list(content)[:5]))
        return f"it is a dict with the keys {keys}: make the module, load its weights and export it"
    return f"it is a {type(content).__name__}, not a program that torch.export.save wrote"
