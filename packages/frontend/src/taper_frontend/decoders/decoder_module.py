"""Make a decoder of transformers keep its cache in buffers, with positions for each row.

transformers lets a model write to any :class:`~transformers.cache_utils.Cache`, and looks up by
name how masks are made and attention is computed. So a model is captured as it is, with layers of
its cache that write each row at the row's positions, and with masks of these positions.
"""

from __future__ import annotations

import copy
import inspect
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from transformers import cache_utils, masking_utils, modeling_utils

from taper_frontend.capture.torch_lock import TORCH
from taper_frontend.decoders.recurrent_layers import RecurrentLayer, RecurrentSpec, recurrent_spec
from taper_frontend.errors import ExportError
from taper_runtime.base.records import NamedTuple
from taper_runtime.generation.decoder_convention import IDS, KEPT, POSITION, REACHED
from taper_runtime.plan.rewind_rule import RewindRule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

#: The layers of a growing cache that hold keys and values for each position; the last two have
#: recurrent states beside them.
_LAYERS = (
    cache_utils.DynamicLayer,
    cache_utils.DynamicSlidingWindowLayer,
    cache_utils.LinearAttentionAndFullAttentionLayer,
    cache_utils.LinearAttentionAndSlidingWindowAttentionLayer,
)

#: The names by which a forward may take its cache: that of transformers from 5.24 on, and before.
CACHES = ("cache", "past_key_values")

#: How attention may be computed, by transformers' names.
ATTENTION = ("sdpa", "eager")


#: The largest int8 of a cache, and the least largest number of a position, so that no scale is 0.
_STEPS, _LEAST = 127, 2.0**-100


class CacheSpec(NamedTuple):
    """Sizes and dtype of the keys and values of one cache layer, for each position.

    Attributes
    ----------
    keys, values : tuple of int
        Heads, and numbers of each.
    dtype : torch.dtype
    window : int or None
        The most positions that a query reads, its own included; None for all.
    """

    keys: tuple[int, int]
    values: tuple[int, int]
    dtype: torch.dtype
    window: int | None = None

    def length(self, context: int, room: int | None) -> int:
        """Return how many positions are kept: a window's and room for more, or the context.

        A run of up to ``room`` tokens overwrites no key that one of them reads, and a row may then
        go back by as many.
        """
        if self.window is None or room is None:
            return context
        return min(self.window + room, context)


class RowLayer(cache_utils.CacheLayerMixin):  # type: ignore[misc]
    """A cache layer of fixed length that writes each row at the row's own positions.

    Parameters
    ----------
    keys, values : torch.Tensor
        ``[rows, heads, length, width]``; the dtype may have fewer bits than what is written.
    positions : torch.Tensor
        int64 ``[rows, count]``; modulo the length of a ring.
    scales : sequence of torch.Tensor
        Of keys and of values if these are int8, float32 ``[rows, heads, length, 1]``: a number
        stands for itself times the scale, which is a 127th of the largest of its position and head.
    is_sliding : bool
        Whether queries read a window; transformers makes one mask for all such layers.
    """

    keys: Any  # transformers allows None, for layers that are not initialized
    values: Any

    def __init__(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        positions: torch.Tensor,
        scales: Sequence[torch.Tensor] = (),
        *,
        is_sliding: bool = False,
    ) -> None:
        super().__init__()
        self.is_sliding = is_sliding
        self.keys, self.values, self.positions = keys, values, positions
        self._scales = scales or (None, None)
        self.is_initialized = True

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        """Do nothing: the tensors are there."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new keys and values ``[rows, heads, count, width]``; return all."""
        keys, values = (
            self._write(*each)
            for each in zip(
                (self.keys, self.values), self._scales, (key_states, value_states), strict=True
            )
        )
        return keys, values

    def _write(
        self, stored: torch.Tensor, scale: torch.Tensor | None, new: torch.Tensor
    ) -> torch.Tensor:
        """Write to what is stored of keys or of values; return all in the dtype of the new ones."""
        rows = torch.arange(new.shape[0])[:, None]
        numbers = new
        if scale is not None:
            largest = new.float().abs().amax(-1, keepdim=True)
            factor = largest.clamp(min=_LEAST) / _STEPS
            scale[rows, :, self.positions] = factor.transpose(1, 2)
            numbers = torch.round(new / factor)
        stored[rows, :, self.positions] = numbers.transpose(1, 2).to(stored.dtype)
        if scale is None:
            return stored.to(new.dtype)
        return (stored.float() * scale).to(new.dtype)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length of the cache and its first position."""
        return self.get_max_length(), 0

    def get_seq_length(self) -> int:
        """Return 0, because rows have different positions."""
        return 0

    def get_max_length(self) -> int:
        """Return the number of positions that the cache has room for."""
        return int(self.keys.shape[2])


class LayerSpec(NamedTuple):
    """Keys and values of one cache layer, recurrent states, both, or neither."""

    attention: CacheSpec | None = None
    recurrent: RecurrentSpec | None = None


class MixedLayer(RowLayer, RecurrentLayer):
    """A cache layer with keys and values and with recurrent states: all attributes of both."""

    def __init__(self, attention: RowLayer, recurrent: RecurrentLayer) -> None:
        self.__dict__ = {**attention.__dict__, **recurrent.__dict__}


def _ring_positions(positions: torch.Tensor, length: int) -> torch.Tensor:
    """Return the positions of the keys in a ring, ``[rows, length]``; less than 0 before a text.

    Those of keys that a row has written and then gone back behind are too low by the length. They
    are outside the window of all queries, as those are that they stand for.
    """
    last = positions[:, -1:]
    place = last % length
    found = last - place + torch.arange(length)[None]
    return torch.where(torch.arange(length)[None] > place, found - length, found)


def _row_mask(
    positions: torch.Tensor, attention: str, rings: Collection[int]
) -> Callable[..., torch.Tensor | None]:
    """Return a function that makes masks for these positions; transformers calls it.

    ``sdpa`` takes masks of bool, ``eager`` takes numbers that it adds. Keys of as many positions as
    one of ``rings`` are in a ring.
    """

    def make(
        *,
        batch_size: int,
        kv_length: int,
        mask_function: Callable[..., torch.Tensor],
        dtype: torch.dtype = torch.float32,
        attention_mask: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor | None:
        """Return a mask [rows, 1, queries, keys]; None if everything may be read."""
        if mask_function is masking_utils.bidirectional_mask_function:  # of a source
            if attention_mask is None:
                return None
            seen = attention_mask[:, None, None, :].bool()
        else:
            keys = torch.arange(kv_length)[None]
            if kv_length in rings:
                keys = _ring_positions(positions, kv_length)
            seen = mask_function(
                torch.arange(batch_size)[:, None, None, None],
                torch.zeros((1, 1, 1, 1), dtype=torch.int64),
                positions[:, None, :, None],
                keys[:, None, None, :],
            )
            if kv_length in rings:
                seen = seen & (keys >= 0)[:, None, None, :]
        if attention == "sdpa":
            return seen
        return torch.where(seen, torch.zeros((), dtype=dtype), torch.finfo(dtype).min)

    return make


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    position_bias: torch.Tensor | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention as ``sdpa`` of transformers does, for any number of queries.

    transformers' own function decides by that number, so that 1 would need a program of its own.
    """
    if softcap is not None:
        raise ExportError(
            f"attention of {type(module).__name__}: expected none with softcap in 'sdpa'; make the "
            "model with attn_implementation='eager'"
        )
    if position_bias is not None and attention_mask is not None:
        least = torch.finfo(query.dtype).min
        attention_mask = torch.where(attention_mask, position_bias, least)
    elif position_bias is not None:
        attention_mask = position_bias
    result = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return result.transpose(1, 2).contiguous(), None


def read_caches(model: Any) -> list[LayerSpec]:
    """Run a model on two tokens, and return what each layer of its cache holds.

    Raises
    ------
    ExportError
        If it does not run with a cache of keys and values for each position.
    """
    first = next(model.parameters(), torch.zeros(()))
    ids = torch.zeros((1, 2), dtype=torch.int64, device=first.device)
    try:
        with torch.no_grad():
            result = model(input_ids=ids, use_cache=True)
    except Exception as error:
        raise ExportError(
            f"{type(model).__name__}: expected a decoder of transformers, which takes input_ids "
            f"and use_cache, got {type(error).__name__}: {error}"
        ) from error
    found = (getattr(result, name, None) for name in CACHES)
    cache = next((each for each in found if each is not None), None)
    if not isinstance(cache, cache_utils.Cache) or isinstance(
        cache, cache_utils.EncoderDecoderCache
    ):
        raise ExportError(
            f"{type(model).__name__}: expected a decoder-only model that returns a Cache of "
            f"transformers, got {type(cache).__name__}"
        )
    return [layer_spec(model, number, layer) for number, layer in enumerate(cache.layers)]


def layer_spec(model: torch.nn.Module, number: int, layer: Any) -> LayerSpec:
    """Return what a layer of a cache holds that has read some tokens."""
    if not isinstance(layer, cache_utils.LinearAttentionCacheLayerMixin):
        return LayerSpec(cache_spec(model, number, layer))
    is_mixed = isinstance(layer, cache_utils.CacheLayerMixin)
    return LayerSpec(cache_spec(model, number, layer) if is_mixed else None, recurrent_spec(layer))


def cache_spec(model: torch.nn.Module, number: int, layer: Any) -> CacheSpec | None:
    """Return what a layer of a growing cache holds."""
    if isinstance(layer, cache_utils.DummyLayer):
        return None
    if type(layer) not in _LAYERS:
        expected = ", ".join(each.__name__ for each in _LAYERS)
        raise ExportError(
            f"{type(model).__name__}: layer {number} of the cache: expected one of {expected}, of "
            f"keys and values for each position, got a {type(layer).__name__}; states of "
            "other kinds are not supported"
        )
    (_, heads, _, width), (_, value_heads, _, value_width) = layer.keys.shape, layer.values.shape
    window = getattr(layer, "sliding_window", None)
    return CacheSpec((heads, width), (value_heads, value_width), layer.keys.dtype, window)


def ring_lengths(caches: Sequence[LayerSpec], context: int, room: int | None) -> set[int]:
    """Return the lengths of caches that do not keep the whole context."""
    attention = (spec.attention for spec in caches if spec.attention is not None)
    return {each.length(context, room) for each in attention} - {context}


def rewind_rule(caches: Sequence[LayerSpec], context: int, room: int | None) -> RewindRule | None:
    """Return how far back rows of these caches can go; None if they can go to any position."""
    if any(spec.recurrent is not None for spec in caches):
        return RewindRule(POSITION, REACHED, 0, 0)
    rings = ring_lengths(caches, context, room)
    if room is None or not rings:
        return None
    return RewindRule(POSITION, REACHED, room, min(rings))


def as_decoder(
    model: Any,
    caches: Sequence[LayerSpec],
    context: int,
    rows: int,
    dtype: torch.dtype | None = None,
    room: int | None = None,
) -> torch.nn.Module:
    """Return a module that shares all parts of a model, and has its cache in buffers.

    Its forward takes and returns what :mod:`taper_runtime.generation.decoder_convention` says.

    Parameters
    ----------
    model : torch.nn.Module
    caches : sequence of LayerSpec
        For each layer of the cache.
    context : int
        The positions of the cache.
    rows : int
        The rows of the buffers.
    dtype : torch.dtype, optional
        That of the buffers; by default that of the cache. int8 has buffers of scales beside it.
    room : int, optional
        How many positions the caches of sliding windows keep beside the window; by default they
        keep all.
    """
    decoder: torch.nn.Module = copy.copy(model)
    decoder._buffers = dict(model._buffers)
    decoder._non_persistent_buffers_set = set(model._non_persistent_buffers_set)
    recurrent = {
        name: one
        for number, layer in enumerate(caches)
        if layer.recurrent is not None
        for name, one in layer.recurrent.names(number)
    }
    for name, one in recurrent.items():
        zeros = torch.zeros((rows, *one.shape[1:]), dtype=one.dtype)
        decoder.register_buffer(name, zeros, persistent=False)
    for number, (spec, _) in enumerate(caches):
        if spec is None:
            continue
        for name, (heads, width) in (("keys", spec.keys), ("values", spec.values)):
            length = spec.length(context, room)
            zeros = torch.zeros((rows, heads, length, width), dtype=dtype or spec.dtype)
            decoder.register_buffer(f"{name}_{number}", zeros, persistent=False)
            if dtype == torch.int8:
                scale = torch.zeros((rows, heads, length, 1))
                decoder.register_buffer(f"{name}_scale_{number}", scale, persistent=False)
    if rewind_rule(caches, context, room) is not None:
        none = torch.zeros(rows, dtype=torch.int64)
        decoder.register_buffer(REACHED, none, persistent=False)
    original = type(model).forward
    takes = inspect.signature(original).parameters
    cache_name = next((name for name in CACHES if name in takes), None)
    if cache_name is None:
        raise ExportError(
            f"{type(model).__name__}.forward: expected an argument {' or '.join(CACHES)}, got "
            f"{', '.join([*takes][1:])}"
        )

    rings = ring_lengths(caches, context, room)

    def attention(number: int, spec: CacheSpec, positions: torch.Tensor) -> RowLayer:
        """Return keys and values of a layer."""
        scaled = ("keys_scale", "values_scale") if dtype == torch.int8 else ()
        keys, values, *scales = (
            getattr(decoder, f"{name}_{number}") for name in ("keys", "values", *scaled)
        )
        length = spec.length(context, room)
        places = positions if length == context else positions % length
        return RowLayer(keys, values, places, scales, is_sliding=spec.window is not None)

    def states(number: int, spec: RecurrentSpec) -> RecurrentLayer:
        """Return recurrent states of a layer."""
        names = [name for name, _ in spec.names(number)]
        return RecurrentLayer(number, spec, {name: getattr(decoder, name) for name in names})

    def layers(positions: torch.Tensor) -> Iterator[Any]:
        """Yield the layers of a cache over the buffers."""
        for number, (keys, recurrence) in enumerate(caches):
            row = None if keys is None else attention(number, keys, positions)
            state = None if recurrence is None else states(number, recurrence)
            if row is not None and state is not None:
                yield MixedLayer(row, state)
            else:
                yield row or state or cache_utils.DummyLayer()

    def forward(
        input_ids: torch.Tensor, position: torch.Tensor, logits_to_keep: torch.Tensor
    ) -> torch.Tensor:
        positions = position[:, None] + torch.arange(input_ids.shape[1])
        if REACHED in decoder._buffers:
            count_positions(decoder, [*recurrent], position, input_ids.shape[1])
        cache = cache_utils.Cache(layers=[*layers(positions)])
        given = {IDS: input_ids, cache_name: cache, "use_cache": True, "return_dict": True}
        if "position_ids" in takes:
            given["position_ids"] = positions
        if KEPT in takes:
            given[KEPT] = logits_to_keep
        with replaced(positions, rings):
            logits: torch.Tensor = original(decoder, **given).logits
        return logits if KEPT in takes else logits[:, logits_to_keep]

    decoder.forward = forward
    return decoder


def count_positions(
    decoder: torch.nn.Module, recurrent: Sequence[str], position: torch.Tensor, count: int
) -> None:
    """Count the positions of each row, and begin rows at position 0 anew.

    Parameters
    ----------
    decoder : torch.nn.Module
    recurrent : sequence of str
        The buffers that are of all tokens so far.
    position : torch.Tensor
        int64 ``[rows]``.
    count : int
        How many tokens a run reads.
    """
    begins = position == 0
    reached = decoder.get_buffer(REACHED)
    reached.copy_(torch.maximum(torch.where(begins, 0, reached), position + count))
    for name in recurrent:
        state = decoder.get_buffer(name)
        rows = begins.reshape(-1, *[1] * (state.ndim - 1))
        state.copy_(torch.where(rows, torch.zeros((), dtype=state.dtype), state))


def replaced(positions: torch.Tensor, rings: Collection[int] = ()) -> ExitStack:
    """Return a context in which transformers makes masks for these positions.

    ``rings`` are the lengths of caches whose positions are taken modulo the length.
    """
    masks = {name: _row_mask(positions, name, rings) for name in ATTENTION}
    stack = ExitStack()
    stack.enter_context(TORCH)
    for interface, functions in (
        (masking_utils.AttentionMaskInterface, masks),
        (modeling_utils.AttentionInterface, {"sdpa": _attend}),
    ):
        stack.enter_context(patch.dict(interface._global_mapping, functions))
    return stack


def example(rows: int, vocabulary: int, count: int = 3) -> dict[str, torch.Tensor]:
    """Return example inputs: some tokens of rows at different positions."""
    generator = torch.Generator().manual_seed(0)
    return {
        IDS: torch.randint(0, vocabulary, (rows, count), generator=generator),
        POSITION: torch.arange(rows),
        KEPT: torch.tensor([0, 2] if count > 2 else [0]),
    }
