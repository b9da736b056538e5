"""Define an architecture of the zoo: how to make it, and how to call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

#: Keyword arguments of a call, drawn for a module.
Inputs = Callable[[torch.nn.Module], dict[str, torch.Tensor]]


class Architecture(NamedTuple):
    """How to make a module, and arguments for it; both draw from torch's generator.

    Attributes
    ----------
    make : callable
        Makes the module.
    inputs : callable
        Draws keyword arguments for the module.
    varying : mapping of str to int
        Input -> its axis whose size may vary. All of them grow together.
    """

    make: Callable[[], torch.nn.Module]
    inputs: Inputs
    varying: Mapping[str, int] = MappingProxyType({})

    def build(self) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
        """The module in eval mode and keyword arguments for it, the same every time."""
        torch.manual_seed(0)
        module = as_trained(self.make()).eval()
        return module, self.inputs(module)


def pretrained(
    inputs: Inputs, table: Mapping[str, Mapping[str, Any]], **common: Any
) -> dict[str, Architecture]:
    """Architectures of transformers.

    Parameters
    ----------
    inputs
        What all of them are called with.
    table : mapping of str to mapping
        Name of a model class -> its configuration, where that differs from the default.
    **common
        Configuration of all of them.
    """
    return {
        name: Architecture(partial(_pretrained, name, {**common, **sizes}), inputs)
        for name, sizes in table.items()
    }


def _pretrained(name: str, sizes: Mapping[str, Any]) -> torch.nn.Module:
    import transformers

    model = getattr(transformers, name)
    config = model.config_class
    # a config takes any keyword, but one that it does not know would leave a model large
    sized = {key for key in sizes if not key.endswith("_token_id")}
    unknown = sized - config.__dataclass_fields__.keys() - config.attribute_map.keys()
    if unknown:
        raise TypeError(f"{config.__name__} has no {', '.join(sorted(unknown))}")
    return model(config(**sizes))


def as_trained(module: torch.nn.Module) -> torch.nn.Module:
    """Give weights that training might have left, and return the module.

    Fresh ones hide mistakes: norms and biases do nothing, layer scales are near zero, attention is
    even and signals fade from layer to layer.
    """
    norms = torch.nn.modules.batchnorm._BatchNorm
    running = [
        buffer
        for layer in module.modules()
        if isinstance(layer, norms) and layer.running_mean is not None
        for buffer in (layer.running_mean, layer.running_var)
    ]
    with torch.no_grad():
        for weight in (*module.parameters(), *running):
            if weight.dim() >= 2:
                torch.nn.init.xavier_normal_(weight)
            elif weight.is_floating_point():
                weight.copy_(weight.clamp(0, 1) + 0.5 * torch.rand_like(weight))
    return module
