"""Split an encoder-decoder of transformers into two modules that share all of its parts.

One runs the encoder, and writes the keys and values of cross attention to buffers. The other reads
tokens of rows at positions of their own, as :func:`.decoder_module.as_decoder` makes it, with these
keys and values as arguments.
"""

from __future__ import annotations

import copy
import inspect
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from transformers import cache_utils
from transformers.modeling_outputs import BaseModelOutput

from taper_frontend.decoders.decoder_module import (
    CACHES,
    CacheSpec,
    LayerSpec,
    RowLayer,
    as_decoder,
    cache_spec,
    replaced,
)
from taper_frontend.errors import ExportError
from taper_runtime.base.records import NamedTuple
from taper_runtime.generation.decoder_convention import CROSS, SOURCE_LENGTH
from taper_runtime.generation.encoder_convention import SOURCE_FEATURES, SOURCE_IDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Tokens of the example's sources.
_SOURCE = 5


class SourceInput(NamedTuple):
    """Input of an encoder.

    Attributes
    ----------
    name : str
        The argument of its forward.
    vocabulary : int
        The number of its tokens; 0 for a spectrogram.
    positions : int
        The most positions that cross attention sees.
    bins, frames : int
        The size of a spectrogram, else 0.
    """

    name: str
    vocabulary: int
    positions: int
    bins: int = 0
    frames: int = 0

    def example(self, rows: int) -> torch.Tensor:
        """Return an example for so many rows."""
        generator = torch.Generator().manual_seed(0)
        if self.vocabulary:
            count = min(_SOURCE, self.positions)
            return torch.randint(0, self.vocabulary, (rows, count), generator=generator)
        return torch.randn((rows, self.bins, self.frames), generator=generator)


class EncoderDecoder(NamedTuple):
    """The two modules of an encoder-decoder.

    Attributes
    ----------
    encoder, decoder : torch.nn.Module
    cross : mapping of str to torch.Tensor
        What the decoder takes besides tokens and positions: zeros, by the names of the states.
    """

    encoder: torch.nn.Module
    decoder: torch.nn.Module
    cross: Mapping[str, torch.Tensor]


class SourceLayer(RowLayer):
    """A cache layer for the keys and values of a source; the encoder's entry writes it."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new keys and values ``[rows, heads, count, width]``; return these alone."""
        super().update(key_states, value_states, *args, **kwargs)
        return key_states, value_states


class CrossLayer(RowLayer):
    """A cache layer for the keys and values of a source; the decoder reads it."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__(keys, values, torch.zeros((1, 1), dtype=torch.int64))

    def get_seq_length(self) -> int:
        """Return its length, so that transformers takes the layer to be filled."""
        return self.get_max_length()


def read_source(model: Any, max_source: int | None) -> SourceInput:
    """Return what the encoder of a model reads.

    Raises
    ------
    ExportError
        If it is neither tokens nor a spectrogram as Whisper's, or ``max_source`` does not fit.
    """
    kind = type(model).__name__
    if model.main_input_name == SOURCE_FEATURES:
        encoder = model.get_encoder()
        bins, positions = (
            getattr(encoder, n, None) for n in ("num_mel_bins", "max_source_positions")
        )
        convs: list[Any] = [getattr(encoder, name, None) for name in ("conv1", "conv2")]
        if bins is None or positions is None or None in convs:
            raise ExportError(
                f"{kind}: expected an encoder of spectrograms as Whisper's, got another"
            )
        if max_source is not None:
            raise ExportError(
                f"max_source: expected None for {kind}, whose encoder has {positions} positions, "
                f"got {max_source!r}"
            )
        frames = positions * convs[0].stride[0] * convs[1].stride[0]
        return SourceInput(SOURCE_FEATURES, 0, positions, bins, frames)
    if model.main_input_name != SOURCE_IDS:
        raise ExportError(
            f"{kind}: expected an encoder of {SOURCE_IDS} or {SOURCE_FEATURES}, got one of "
            f"{model.main_input_name}"
        )
    if type(max_source) is not int or max_source < 2:
        raise ExportError(
            "max_source: expected an int of at least 2, the most tokens of a source, got "
            f"{max_source!r}"
        )
    most = getattr(model.config, "max_position_embeddings", None)
    if type(most) is int and max_source > most:
        raise ExportError(
            f"max_source: expected at most {most}, the positions of {kind} "
            f"(config.max_position_embeddings), got {max_source}"
        )
    table = model.get_encoder().get_input_embeddings()
    return SourceInput(SOURCE_IDS, table.weight.shape[0], max_source)


def split(model: Any, source: SourceInput, context: int, rows: int) -> EncoderDecoder:
    """Return the two modules of a model.

    Parameters
    ----------
    model : torch.nn.Module
        An encoder-decoder of transformers.
    source : SourceInput
    context : int
        The positions of the decoder's cache.
    rows : int
        The rows of buffers and examples.

    Raises
    ------
    ExportError
        If it does not run with a cache of keys and values for each position.
    """
    own, cross = _read_caches(model, source)
    zeros = _cross_states(source, cross, rows)
    return EncoderDecoder(
        _as_encoder(model, source, zeros), _as_decoder(model, source, own, context, zeros), zeros
    )


def _read_caches(model: Any, source: SourceInput) -> tuple[list[CacheSpec | None], list[CacheSpec]]:
    """Run a model on an example; return what its caches hold of the decoder and of the source."""
    kind = type(model).__name__
    given = {
        source.name: source.example(1),
        "decoder_input_ids": torch.zeros((1, 2), dtype=torch.int64),
    }
    try:
        with torch.no_grad():
            result = model(**given, use_cache=True)
    except Exception as error:  # of any kind: the forward is the model's own
        raise ExportError(
            f"{kind}: expected an encoder-decoder of transformers, which takes {source.name}, "
            f"decoder_input_ids and use_cache, got {type(error).__name__}: {error}"
        ) from error
    cache = next((c for name in CACHES if (c := getattr(result, name, None)) is not None), None)
    if not isinstance(cache, cache_utils.EncoderDecoderCache):
        raise ExportError(
            f"{kind}: expected a model that returns an EncoderDecoderCache, got "
            f"{type(cache).__name__}"
        )
    own, cross = (
        [cache_spec(model, number, layer) for number, layer in enumerate(each.layers)]
        for each in (cache.self_attention_cache, cache.cross_attention_cache)
    )
    return own, [spec for spec in cross if spec is not None]


def _cross_states(
    source: SourceInput, cross: Sequence[CacheSpec], rows: int
) -> dict[str, torch.Tensor]:
    """Return zeros for the states that the encoder writes."""
    zeros = {
        f"{CROSS}{name}_{number}": torch.zeros(
            (rows, heads, source.positions, width), dtype=spec.dtype
        )
        for number, spec in enumerate(cross)
        for name, (heads, width) in (("keys", spec.keys), ("values", spec.values))
    }
    if source.vocabulary:
        zeros[SOURCE_LENGTH] = torch.zeros(rows, dtype=torch.int64)
    return zeros


def _layers(states: Mapping[str, torch.Tensor], make: Callable[..., RowLayer]) -> cache_utils.Cache:
    """Return the cache that holds a source's keys and values."""
    count = sum(name.startswith(f"{CROSS}keys") for name in states)
    return cache_utils.Cache(
        layers=[
            make(states[f"{CROSS}keys_{number}"], states[f"{CROSS}values_{number}"])
            for number in range(count)
        ]
    )


def _cache_name(model: Any) -> str:
    takes = inspect.signature(type(model).forward).parameters
    found = next((name for name in CACHES if name in takes), None)
    if found is None:
        raise ExportError(
            f"{type(model).__name__}.forward: expected an argument {' or '.join(CACHES)}, got "
            f"{', '.join([*takes][1:])}"
        )
    return found


def _as_encoder(
    model: Any, source: SourceInput, zeros: Mapping[str, torch.Tensor]
) -> torch.nn.Module:
    """Return a module that encodes a source and fills the buffers."""
    encoder: torch.nn.Module = copy.copy(model)
    encoder._buffers = dict(model._buffers)
    encoder._non_persistent_buffers_set = set(model._non_persistent_buffers_set)
    for name, tensor in zeros.items():
        encoder.register_buffer(name, tensor.clone(), persistent=False)
    original, cache_name = type(model).forward, _cache_name(model)

    def forward(source: torch.Tensor) -> torch.Tensor:
        """Return the encoder's result, ``[rows, positions, width]``."""
        rows = source.shape[0]
        with replaced(torch.zeros((rows, 1), dtype=torch.int64)):
            hidden: torch.Tensor = model.get_encoder()(source)[0]
            positions = torch.arange(hidden.shape[1]).expand(rows, -1)
            states = {name: getattr(encoder, name) for name in zeros}
            own = cache_utils.Cache(layer_class_to_replicate=cache_utils.DynamicLayer)
            cross = _layers(states, partial(SourceLayer, positions=positions))
            # all that is kept of this token's run are the keys and values of the source
            first = torch.zeros((rows, 1), dtype=torch.int64)
            cache = cache_utils.EncoderDecoderCache(own, cross)
            original(
                encoder,
                encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
                decoder_input_ids=first,
                **{cache_name: cache, "use_cache": True},
            )
        if SOURCE_LENGTH in states:
            states[SOURCE_LENGTH].copy_(torch.full_like(states[SOURCE_LENGTH], hidden.shape[1]))
        return hidden

    encoder.forward = forward
    return encoder


def _as_decoder(
    model: Any,
    source: SourceInput,
    own: Sequence[CacheSpec | None],
    context: int,
    zeros: Mapping[str, torch.Tensor],
) -> torch.nn.Module:
    """Return a module that reads tokens, with the states of the encoder as its last argument."""
    original, cache_name = type(model).forward, _cache_name(model)
    takes = inspect.signature(original).parameters
    width = model.get_decoder().get_input_embeddings().weight.shape[1]
    held: list[Mapping[str, torch.Tensor]] = []

    def forward(
        self: Any,
        input_ids: torch.Tensor,
        cache: Any,
        position_ids: torch.Tensor,
        use_cache: bool,
        return_dict: bool,
    ) -> Any:
        """Run the decoder on tokens, with the states of the encoder."""
        (states,) = held
        rows = input_ids.shape[0]
        seen = None
        if SOURCE_LENGTH in states:
            seen = torch.arange(source.positions) < states[SOURCE_LENGTH][:, None]
        given = {
            # not read, for the keys and values are there
            "encoder_outputs": BaseModelOutput(last_hidden_state=torch.zeros((rows, 1, width))),
            "decoder_input_ids": input_ids,
            "attention_mask": seen,
            cache_name: cache_utils.EncoderDecoderCache(cache, _layers(states, CrossLayer)),
            "use_cache": use_cache,
            "return_dict": return_dict,
        }
        if "decoder_position_ids" in takes:
            given["decoder_position_ids"] = position_ids
        with _positions(model.get_decoder(), position_ids):
            return original(self, **given)

    view = copy.copy(model)
    view.__class__ = type(type(model).__name__, (type(model),), {"forward": forward})
    layers = [LayerSpec(spec) for spec in own]
    decoder = as_decoder(view, layers, context, next(iter(zeros.values())).shape[0])
    inner = decoder.forward

    def run(
        input_ids: torch.Tensor,
        position: torch.Tensor,
        logits_to_keep: torch.Tensor,
        states: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        held.append(states)
        try:
            logits: torch.Tensor = inner(input_ids, position, logits_to_keep)
        finally:
            held.clear()
        return logits

    decoder.forward = run
    return decoder


def _positions(decoder: torch.nn.Module, positions: torch.Tensor) -> ExitStack:
    """Return a context in which position embeddings and biases use the rows' own positions.

    transformers gives these parts the length of the cache, which is that of all rows.
    """
    stack = ExitStack()
    for kind in {type(part) for part in decoder.modules()}:
        takes = inspect.signature(kind.forward).parameters
        if "position_ids" in takes and issubclass(kind, torch.nn.Embedding):
            stack.enter_context(patch.object(kind, "forward", _embedding(kind.forward, positions)))
        if hasattr(kind, "compute_bias"):
            method = _bias(kind.compute_bias, positions)
            stack.enter_context(patch.object(kind, "compute_bias", method))
    return stack


def _embedding(original: Callable[..., Any], positions: torch.Tensor) -> Callable[..., Any]:
    """Return a ``forward`` that looks up positions ``[rows, count]`` as one long row."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        found: torch.Tensor = original(
            self, *args, **{**kwargs, "position_ids": positions.reshape(-1)}
        )
        return found.reshape(*positions.shape, found.shape[-1])

    return forward


def _bias(original: Callable[..., Any], positions: torch.Tensor) -> Callable[..., Any]:
    """Return T5's bias by relative position, ``[rows, heads, count, keys]``.

    It depends on how far a key is before a query alone, so that one row has all of it. Keys behind
    a query, which the mask excludes, get that of no distance.
    """

    def compute_bias(self: Any, query_length: int, key_length: int, **kwargs: Any) -> torch.Tensor:
        last = key_length - 1
        row = original(self, 1, key_length, **{**kwargs, "past_seen_tokens": last})[0, :, 0]
        distances = (torch.arange(key_length) - positions[..., None]).clamp(max=0)
        found: torch.Tensor = row.T[last + distances]
        return found.permute(0, 3, 1, 2)

    return compute_bias
