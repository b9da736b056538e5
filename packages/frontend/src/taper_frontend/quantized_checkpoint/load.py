"""Give a module the weights of a quantized checkpoint, in the bits of the checkpoint."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from taper_frontend.checkpoint import Place, lacking, places_of, read_index
from taper_frontend.errors import ExportError
from taper_frontend.quantized_checkpoint.gguf import GgufTensor, in_module_order, read_gguf
from taper_frontend.quantized_checkpoint.weight import QuantizedWeight, Scale, combined
from taper_frontend.quantized_checkpoint.weight_layouts import find_layout
from taper_runtime.base.dtypes import FILE_DTYPES
from taper_runtime.base.errors import TaperError
from taper_runtime.file.weights_file import StoredWeight, read_safetensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Names = str | Sequence[str] | Sequence[Sequence[str]]

#: The most problems in an error.
_LISTED = 20

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


def load_quantized(
    module: nn.Module,
    path: str | os.PathLike[str],
    *,
    names: Mapping[str, Names] | Callable[[str], Names] | None = None,
    config: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Give a module the weights of a quantized checkpoint.

    A weight that is stored quantized becomes a parameter of integers, which a parametrization
    decodes in each call; :func:`.export` stores such weights in their bits. Others are copied. The
    module may be on the ``meta`` device, so that its float weights never exist.

    The values are those that the checkpoint's own format defines: computed in float32, and then
    cast to the dtype of the module's parameter.

    Parameters
    ----------
    module : torch.nn.Module
        It is changed.
    path : str or os.PathLike
        A GGUF file, a safetensors file, the index of several, or a folder that has one of these
        beside ``config.json``.
    names : mapping or callable, optional
        For the name of a parameter or buffer, its name in the checkpoint; the same where it is not
        given. A sequence of names gives rows one behind the other, and a sequence of such sequences
        a stack of these, such as the experts of a layer.
    config : mapping, optional
        ``quantization_config`` of the checkpoint, in place of that of ``config.json``.

    Returns
    -------
    torch.nn.Module
        The module.

    Raises
    ------
    ExportError
        Listing what is wrong, by the names of tensors: a file that cannot be read, a tensor that is
        not there or has another shape, scales that are not finite and positive (a GGUF file may
        have any finite ones), zero points out of range, groups that do not divide a row.
    """
    file = _CheckpointFile(os.fspath(path), config)
    found: dict[int, torch.Tensor | QuantizedWeight] = {}
    problems = list(file.problems)
    alike: dict[int, list[Place]] = {}
    for place in places_of(module):
        alike.setdefault(id(place.tensor), []).append(place)
    transposed: set[int] = set()
    for key, group in [] if problems else alike.items():
        own = group[0].tensor
        stored = [
            name
            for place in group
            if place.persistent and file.has(name := _name_in(names, place.name))
        ]
        if not stored:
            if own.is_meta:
                problems.append(lacking(group))
            continue
        try:
            value, is_transposed = file.read(stored[0], tuple(own.shape))
        except TaperError as error:
            problems.append(str(error))
            continue
        if isinstance(value, np.ndarray):
            if _is_float(value) != own.is_floating_point():
                problems.append(f"{stored[0]}: expected {_type(own)}, got {value.dtype} numbers")
                continue
            plain = _plain(value, own)
            if plain is None:
                problems.append(f"{stored[0]}: expected {_type(own)}, got numbers that it rounds")
                continue
            found[key] = plain
        else:
            found[key] = value
            if is_transposed:
                transposed.add(key)
    if problems:
        more = len(problems) - _LISTED
        lines = problems[:_LISTED] + [f"and {more} more"] * (more > 0)
        raise ExportError(
            "\n  ".join([f"checkpoint {file.path!r} does not fit the module:", *lines])
        )
    for key, weight in found.items():
        place_weight(alike[key], weight, key in transposed)
    return module


def _name_in(names: Mapping[str, Names] | Callable[[str], Names] | None, name: str) -> Names:
    if names is None:
        return name
    return names(name) if callable(names) else names.get(name, name)


def _type(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def place_weight(
    places: Sequence[Place], value: torch.Tensor | QuantizedWeight, is_transposed: bool
) -> None:
    """Put a value in all places of a tensor; one that is quantized is decoded in each call."""
    own = places[0].tensor
    if isinstance(value, torch.Tensor):
        if isinstance(own, nn.Parameter):
            value = nn.Parameter(value, requires_grad=own.requires_grad)
        for place in places:
            setattr(place.part, place.attribute, value)
        return
    levels = nn.Parameter(_tensor(value.levels), requires_grad=False)
    decode = Dequantize(value, own.dtype, is_transposed)
    for place in places:
        setattr(place.part, place.attribute, levels)
        parametrize.register_parametrization(place.part, place.attribute, decode, unsafe=True)


def _plain(array: np.ndarray, own: torch.Tensor) -> torch.Tensor | None:
    """Return numbers in the dtype of a module's tensor; None if it would round them."""
    tensor = _tensor(array)
    value = tensor.to(own.dtype)
    exact = torch.equal(value.to(tensor.dtype), tensor) or bool(
        torch.isnan(tensor).any() and torch.equal(torch.isnan(value), torch.isnan(tensor))
    )
    return value if exact else None


def _is_float(array: np.ndarray) -> bool:
    """Return whether numbers are floats; uint16 has the bits of bfloat16."""
    return array.dtype.kind == "f" or array.dtype == np.uint16


def _tensor(array: np.ndarray) -> torch.Tensor:
    """Return a copy; uint16 has the bits of bfloat16."""
    if array.dtype == np.uint16:
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, array.dtype.newbyteorder("=")))


class Dequantize(nn.Module):
    """Compute a weight from its levels ``[..., N, K]``, as :class:`.QuantizedWeight` says."""

    zero: torch.Tensor | None
    table: torch.Tensor | None
    group: torch.Tensor | None
    offset_common: torch.Tensor | None

    def __init__(self, weight: QuantizedWeight, dtype: torch.dtype, is_transposed: bool) -> None:
        super().__init__()
        self.dtype = dtype
        self.is_transposed = is_transposed
        parts: dict[str, np.ndarray | None] = {
            "zero": weight.zero,
            "table": weight.table,
            "group": weight.group,
        }
        for name, scale in (("scale", weight.scale), ("offset", weight.offset)):
            for part in Scale._fields:
                parts[f"{name}_{part}"] = None if scale is None else getattr(scale, part)
        for name, array in parts.items():
            self.register_buffer(name, None if array is None else _tensor(array))

    def forward(self, levels: torch.Tensor) -> torch.Tensor:
        """Return the weight, in its dtype."""
        shape = levels.shape
        numbers = levels.float() if self.table is None else self.table[levels.long()]
        scale = self._numbers("scale")
        if self.group is None:
            numbers = numbers.view(*shape[:-1], scale.shape[-1], -1)
        if self.zero is not None:
            numbers = numbers - self._each(self.zero.float())
        numbers = numbers * self._each(scale)
        if self.offset_common is not None:
            numbers = numbers + self._each(self._numbers("offset"))
        numbers = numbers.view(shape)
        if self.is_transposed:
            numbers = numbers.transpose(-1, -2)
        return numbers.to(self.dtype)

    def _each(self, x: torch.Tensor) -> torch.Tensor:
        """Give each scale the axis of its block."""
        return x[..., None] if self.group is None else x.index_select(-1, self.group)

    def _numbers(self, name: str) -> torch.Tensor:
        parts: list[torch.Tensor | None] = [
            getattr(self, f"{name}_{part}") for part in Scale._fields
        ]
        common, factors, table = parts
        if factors is None:
            assert common is not None
            return common.float()
        factors = factors.float() if table is None else table[factors.long()]
        if common is None:
            return factors
        each = factors.view(*common.shape, -1) * common.float()[..., None]
        return each.view(factors.shape)


class _CheckpointFile:
    """The tensors of a checkpoint.

    Attributes
    ----------
    problems : list of str
        Why it cannot be read.
    """

    def __init__(self, path: str, config: Mapping[str, Any] | None) -> None:
        self.path = path
        self.problems: list[str] = []
        self.tensors: dict[str, StoredWeight] = {}
        self.blocks: dict[str, GgufTensor] = {}
        self.config: dict[str, Any] = {} if config is None else dict(config)
        try:
            self._open(config is None)
        except (TaperError, ValueError, OSError) as error:
            self.problems.append(str(error))

    def _open(self, reads_config: bool) -> None:
        """Read the file, all files of an index, or the first of a folder that has weights."""
        path = self.path
        if os.path.isdir(path):
            if reads_config:
                self._read_config(os.path.join(path, "config.json"))
            kinds = (_INDEX, _SINGLE)
            known = [os.path.join(path, each) for each in kinds]
            known += [os.path.join(path, each) for each in sorted(os.listdir(path))
                      if each.endswith(".gguf")]  # fmt: skip
            path = next((each for each in known if os.path.isfile(each)), "")
            if not path:
                raise ValueError(f"expected {' or '.join(kinds)} or a GGUF file in it, got none")
        elif reads_config:
            self._read_config(os.path.join(os.path.dirname(path), "config.json"))
        if path.endswith(".gguf"):
            self.blocks = in_module_order(*read_gguf(np.memmap(path, np.uint8, "r")))
            return
        files = read_index(path) if path.endswith(".index.json") else {path: None}
        for file, names in files.items():
            found = read_safetensors(file, FILE_DTYPES)
            missing = [name for name in names or () if name not in found]
            self.problems += [f"{name}: expected it in {file}, got nothing" for name in missing]
            self.tensors |= found

    def _read_config(self, path: str) -> None:
        if not os.path.isfile(path):
            return
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        found = config.get("quantization_config") if isinstance(config, dict) else None
        self.config = found if isinstance(found, dict) else {}

    def has(self, names: Names) -> bool:
        """Return whether the checkpoint has a weight."""
        if not isinstance(names, str):
            return len(names) > 0 and all(self.has(name) for name in names)
        if names in self.tensors or names in self.blocks:
            return True
        return find_layout(self.tensors, names, self.config) is not None

    def read(
        self, names: Names, shape: tuple[int, ...]
    ) -> tuple[QuantizedWeight | np.ndarray, bool]:
        """Return a weight of this shape, and whether it is transposed.

        Raises
        ------
        TaperError
            If it has another shape, or is no valid weight.
        """
        if not isinstance(names, str):
            return self._read_all(names, shape), False
        if names in self.blocks:
            tensor = self.blocks[names]
            if tensor.shape != shape:
                raise ExportError(
                    f"{names}: expected {[*shape]}, got {tensor.type.name}{[*tensor.shape]}"
                )
            weight = tensor.weight()
            if isinstance(weight, QuantizedWeight):
                _check_finite(names, weight)
            return weight, False
        found = find_layout(self.tensors, names, self.config)
        if found is None:
            dtype, array = self.tensors[names]
            if array.shape != shape or dtype.startswith("float8"):
                raise ExportError(f"{names}: expected {[*shape]}, got {dtype}{[*array.shape]}")
            return array, False
        layout, parts = found
        if len(shape) < 2:
            raise ExportError(f"{names}: expected a tensor {[*shape]}, got a quantized weight")
        if len(shape) != 2 and not layout.takes_stacks:
            raise ExportError(f"{names}: expected {[*shape]}, got a quantized matrix")
        return layout.read(parts, shape), layout.is_transposed

    def _read_all(
        self, names: Sequence[str] | Sequence[Sequence[str]], shape: tuple[int, ...]
    ) -> QuantizedWeight | np.ndarray:
        """Return the concatenated rows of several weights, or a stack of them."""
        text = str(names[0])
        stacks = not isinstance(names[0], str)
        if len(shape) < 2 or shape[0] % len(names) or (stacks and shape[0] != len(names)):
            raise ExportError(f"{text}: expected {[*shape]}, got {len(names)} parts of it")
        part = shape[1:] if stacks else (shape[0] // len(names), *shape[1:])
        read = [self.read(name, part)[0] for name in names]
        join = np.stack if stacks else np.concatenate
        plain = [each for each in read if isinstance(each, np.ndarray)]
        if len(plain) == len(read):
            return np.asarray(join(plain))
        weights = [each for each in read if isinstance(each, QuantizedWeight)]
        whole = combined(weights, join) if len(weights) == len(read) else None
        if whole is None:
            raise ExportError(f"{text}: expected parts of one layout, got several")
        return whole


def _check_finite(name: str, weight: QuantizedWeight) -> None:
    for scale in (weight.scale, weight.offset):
        if scale is not None and not np.isfinite(scale.numbers).all():
            raise ExportError(f"{name}: expected finite scales, got others")
