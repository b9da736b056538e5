"""Find the modules whose results quantized layers read, and quantize these results."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.utils.hooks import RemovableHandle

    from taper_frontend.quantizing.layers import TensorQuantizer

#: The results that are remembered: what reads one runs soon after it is made.
_RECENT = 8


class _Result(NamedTuple):
    tensor: torch.Tensor
    version: int
    makers: tuple[str, ...]  # parts before what they are parts of

    def is_read_as(self, x: torch.Tensor) -> bool:
        """Return whether ``x`` is this result or a copy: models pad by 0 before a convolution."""
        if self.tensor._version != self.version or self.tensor.shape != x.shape:
            return False
        return self.tensor is x or (bool((x != x.reshape(-1)[0]).any()) and x.equal(self.tensor))


class Makers:
    """Remembers in runs of a module which submodule makes the input of each layer.

    A submodule counts if its result is what the layer reads in all calls of the layer, and if each
    run calls it once.
    """

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._called_often: set[str] = set()
        self._recent: deque[_Result] = deque(maxlen=_RECENT)
        self._seen: defaultdict[str, list[tuple[str, ...]]] = defaultdict(list)

    def watch(self, module: nn.Module) -> Iterator[RemovableHandle]:
        """Yield the hooks that watch the submodules of ``module``."""
        yield module.register_forward_pre_hook(self._begin)
        for name, each in module.named_modules():
            if name:
                yield each.register_forward_hook(self._keep(name))

    def _begin(self, module: nn.Module, args: Any) -> None:
        self._calls.clear()
        self._recent.clear()

    def _keep(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def keep(module: nn.Module, args: Any, result: Any) -> None:
            self._calls[name] += 1
            if self._calls[name] > 1:
                self._called_often.add(name)
            if not isinstance(result, torch.Tensor) or not result.numel():
                return
            parts: tuple[str, ...] = ()
            if self._recent and self._recent[-1].tensor is result:
                last = self._recent.pop()
                parts = last.makers if last.version == result._version else ()
            self._recent.append(_Result(result, result._version, (*parts, name)))

        return keep

    def see(self, layer: str, x: torch.Tensor) -> None:
        """Remember which submodule made ``x``, which a layer reads."""
        makers = (each.makers for each in reversed(self._recent) if each.is_read_as(x))
        self._seen[layer].append(next(makers, ()))

    def of(self, layer: str) -> str | None:
        """Return the innermost submodule that makes the input of a layer; None if none does."""
        first, *others = self._seen.get(layer, [()])
        return next(
            (
                name
                for name in first
                if name not in self._called_often and all(name in names for names in others)
            ),
            None,
        )


def quantize_result(module: nn.Module, quantizer: TensorQuantizer) -> None:
    """Make a module's result the values of bytes.

    Largest elements are among the values before: a pool's input is quantized in its place.
    """
    if isinstance(module, nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d):
        module.register_forward_pre_hook(_Before(quantizer))
    else:
        module.register_forward_hook(_After(quantizer))


class _Before:
    def __init__(self, quantizer: TensorQuantizer) -> None:
        self._quantizer = quantizer

    def __call__(self, module: nn.Module, args: tuple[torch.Tensor, ...]) -> Any:
        return self._quantizer.forward(args[0]), *args[1:]


class _After:
    def __init__(self, quantizer: TensorQuantizer) -> None:
        self._quantizer = quantizer

    def __call__(self, module: nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:
        return self._quantizer.forward(result)
