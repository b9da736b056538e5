"""Keep the states of recurrent layers and of short convolutions in buffers, a row for each text.

transformers has them in layers of its cache, alone or beside keys and values. A state of zeros is
that before the first token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import cache_utils

from taper_runtime.base.records import NamedTuple
from taper_runtime.generation.decoder_convention import CONV, RECURRENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class RecurrentSpec(NamedTuple):
    """States of one layer of a cache.

    Attributes
    ----------
    states : mapping of str to mapping of int to torch.Tensor
        By :data:`.CONV` and :data:`.RECURRENT`, examples of one row by their numbers in the layer.
    """

    states: Mapping[str, Mapping[int, torch.Tensor]]

    @property
    def reads_one(self) -> bool:
        """Return whether a run reads exactly one token.

        transformers' recurrent layers go on from a state with one token; with several they begin
        anew, or take loops over them that no program of any number can have.
        """
        return bool(self.states[RECURRENT])

    def names(self, layer: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the name of each state, and an example of it."""
        for kind, found in self.states.items():
            for number, tensor in found.items():
                yield f"{kind}{layer}_{number}", tensor


class RecurrentLayer(cache_utils.LinearAttentionCacheLayerMixin):  # type: ignore[misc]
    """A layer of a cache whose states are buffers.

    Parameters
    ----------
    layer : int
        Its number.
    spec : RecurrentSpec
    buffers : mapping of str to torch.Tensor
        By :meth:`RecurrentSpec.names`.
    """

    is_compileable = True

    def __init__(
        self, layer: int, spec: RecurrentSpec, buffers: Mapping[str, torch.Tensor]
    ) -> None:
        conv, recurrent = spec.states[CONV], spec.states[RECURRENT]
        numbers = {*conv, *recurrent}
        super().__init__(number_of_states=len(numbers))
        self.conv_states = {number: buffers[f"{CONV}{layer}_{number}"] for number in conv}
        self.recurrent_states = {n: buffers[f"{RECURRENT}{layer}_{n}"] for n in recurrent}
        self.is_conv_states_initialized = dict.fromkeys(conv, True)
        self.is_recurrent_states_initialized = dict.fromkeys(recurrent, True)
        # without, a layer takes update_conv_state for any number of tokens
        self.has_previous_state = dict.fromkeys(numbers, spec.reads_one)

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        """Do nothing: the tensors are there."""

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        """Store the last inputs ``[rows, channels, count]``; return earlier ones and these."""
        state = self.conv_states[state_idx]
        whole = torch.cat([state, conv_states], -1)
        state.copy_(whole[..., -state.shape[-1] :])
        return whole

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        """Write a state, and return it."""
        self.recurrent_states[state_idx].copy_(recurrent_states)
        return self.recurrent_states[state_idx]


def recurrent_spec(layer: Any) -> RecurrentSpec:
    """Return the states of a cache layer that has read some tokens."""
    found = {CONV: layer.conv_states, RECURRENT: layer.recurrent_states}
    return RecurrentSpec(
        {
            kind: {n: each for n, each in states.items() if each is not None}
            for kind, states in found.items()
        }
    )
