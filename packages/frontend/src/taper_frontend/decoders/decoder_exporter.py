"""Export language models of transformers, with a cache for each sequence of a batch."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import torch
from torch.export import Dim

from taper_frontend.checkpoint import filled
from taper_frontend.compiler.quantization.schemes import read_quantization
from taper_frontend.decoders.decoder_folder import open_decoder
from taper_frontend.decoders.decoder_module import (
    ATTENTION,
    as_decoder,
    example,
    read_caches,
    rewind_rule,
    ring_lengths,
)
from taper_frontend.decoders.encoder_decoder_exporter import export_encoder_decoder
from taper_frontend.decoders.export_rows import ROW, ROWS, check_close, export_rows
from taper_frontend.decoders.speech_assets import speech_assets
from taper_frontend.decoders.text_assets import text_assets
from taper_frontend.errors import ExportError
from taper_frontend.exporter import quantized_module
from taper_runtime.generation.decoder_convention import (
    IDS,
    KEPT,
    LOGITS,
    POSITION,
    DecoderConvention,
)
from taper_runtime.generation.encoder_convention import SOURCE_FEATURES

if TYPE_CHECKING:
    from taper_frontend.compiler.quantization.schemes import QuantizationConfig
    from taper_runtime.plan.plan import Plan

#: What states may keep keys and values in.
CACHE_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}

#: How many positions beside a sliding window are kept. A run of 64 tokens takes as long for each of
#: them as one of 256, so prompts need no more.
WINDOW_ROOM = 64

#: The most tokens of each row on which a decoder with buffers is compared with its model.
_CHECKED = 64

#: The same for a decoder with recurrent states, which may read them one by one.
_CHECKED_IN_ORDER = 12


def export_decoder(
    model: Any,
    *,
    max_context: int,
    max_source: int | None = None,
    cache_dtype: str | None = None,
    window_room: int | None = WINDOW_ROOM,
    quantize: QuantizationConfig | str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    tokenizer: Any = None,
    **options: Any,
) -> Plan:
    """Export a language model of transformers to a plan that writes text.

    One program reads prompts and writes tokens, of one sequence or of a batch of sequences at
    positions of their own. An encoder-decoder becomes two entries: one encodes a source, once for
    each sequence. :class:`taper_runtime.Generator` runs both;
    :mod:`taper_runtime.generation.decoder_convention` and ``encoder_convention`` describe inputs,
    outputs and states.

    Parameters
    ----------
    model : torch.nn.Module, str or os.PathLike
        A model with a head, such as ``AutoModelForCausalLM`` makes, in evaluation mode. Its forward
        takes ``input_ids`` and a cache of keys and values, of recurrent states or of both. It is
        not changed. Or a local folder of transformers, or a GGUF file: with its tokenizer, chat
        template and defaults. The weights of a folder are mapped, but for those that transformers
        joins or casts as it reads them. Quantized weights, of a GGUF file or of a
        checkpoint that :func:`taper_frontend.load_quantized` reads, stay in their bits, and what
        is not quantized becomes float32. Nothing is downloaded, and no code of a folder is run.
    max_context : int
        The most tokens of a sequence, prompt included: the positions of its cache.
    max_source : int, optional
        The most tokens that the encoder of an encoder-decoder reads; None for others, and for
        encoders of spectrograms.
    cache_dtype : str, optional
        The dtype in which states keep keys and values: ``"float32"``, ``"float16"``,
        ``"bfloat16"`` or ``"int8"``, which has a scale for each position and head; by default that
        of the model. Runs round what they write, and compute in the dtype of the model.
    window_room : int or None
        How many positions a layer with a sliding window keeps beside the window, if the context has
        more: by so many a text can go back, and so many tokens of a prompt are read in a run. None
        keeps the whole context.
    quantize : QuantizationConfig or str, optional
        As for :func:`taper_frontend.export`.
    checkpoint : str or os.PathLike, optional
        As for :func:`taper_frontend.export`; None for a folder or a file.
    tokenizer : object, optional
        A fast tokenizer of transformers, which becomes an asset of the plan, with its chat template
        and the model's defaults; by default that of the folder or file. It is
        for :class:`taper_runtime.text.TextGenerator`, and of Whisper for
        :class:`taper_runtime.speech.Transcriber`.
    **options
        Further options of :func:`taper_frontend.export`: ``verify``, ``progress``, ``metadata``,
        ``packing``, ``trace``, ``cache``, ``passes``.

    Returns
    -------
    Plan

    Raises
    ------
    ExportError
        If the model is no such decoder, or computes other logits with a cache whose rows are at
        positions of their own, or as :func:`taper_frontend.export`.

    Warns
    -----
    ExportWarning
        As :func:`taper_frontend.export`, but not of the caches, which are meant.
    """
    if isinstance(model, (str, os.PathLike)):
        if checkpoint is not None:
            raise ExportError(
                f"checkpoint: expected None for {os.fspath(model)!r}, which has weights, got "
                f"{os.fspath(checkpoint)!r}"
            )
        model, own = open_decoder(model)
        tokenizer = own if tokenizer is None else tokenizer
    _check(model, max_context)
    if cache_dtype not in (None, *CACHE_DTYPES):
        expected = ", ".join(CACHE_DTYPES)
        raise ExportError(f"cache_dtype: expected None or one of {expected}, got {cache_dtype!r}")
    if window_room is not None and (type(window_room) is not int or window_room < 1):
        raise ExportError(
            f"window_room: expected None or an int of at least 1, got {window_room!r}"
        )
    options["quantize"] = quantize
    with filled(model, checkpoint):
        vocabulary = _vocabulary(model)
        assets = {} if tokenizer is None else text_assets(model, tokenizer, vocabulary)
        if assets and model.main_input_name == SOURCE_FEATURES:
            assets |= speech_assets(model, vocabulary)
        if getattr(model.config, "is_encoder_decoder", False):
            if cache_dtype is not None:
                raise ExportError(
                    f"cache_dtype: expected None for {type(model).__name__}, an encoder-decoder, "
                    f"got {cache_dtype!r}"
                )
            if _needs_module(quantize):
                raise ExportError(
                    f"quantize: expected activations='', 'rounded' or 'grouped' for "
                    f"{type(model).__name__}, an encoder-decoder, got {quantize!r}"
                )
            plan = export_encoder_decoder(model, vocabulary, max_context, max_source, **options)
        elif max_source is not None:
            raise ExportError(
                f"max_source: expected None for {type(model).__name__}, which has no encoder, got "
                f"{max_source!r}"
            )
        else:
            plan = _export_decoder(
                model, vocabulary, max_context, cache_dtype, window_room, **options
            )
    convention = DecoderConvention(vocabulary, max_context, _eos_token_ids(model))
    return convention.recorded(plan).with_assets(assets)


def _export_decoder(
    model: Any,
    vocabulary: int,
    max_context: int,
    cache_dtype: str | None,
    room: int | None,
    **options: Any,
) -> Plan:
    """Export a checked model that has no encoder."""
    caches = read_caches(model)
    rule = rewind_rule(caches, max_context, room)
    decoder = as_decoder(model, caches, max_context, ROWS, room=room)
    recurrent = [spec.recurrent for spec in caches if spec.recurrent is not None]
    reads_one = any(spec.reads_one for spec in recurrent)
    # no more tokens than rings have room for
    rings = ring_lengths(caches, max_context, room)
    most = min(max_context, room) if rings and room is not None else max_context
    if recurrent:
        _compare_in_order(model, decoder, vocabulary, max_context, 1 if reads_one else 3)
    else:
        _compare(model, decoder, vocabulary, max_context, most)
    quantized = model
    if _needs_module(options["quantize"]):
        # before the parts are shared: a copy of a decoder would run the one that it was made of
        quantized = quantized_module(model, options["quantize"])
        options["quantize"] = None
    if quantized is not model or cache_dtype is not None:
        # rounding is no part of the comparison
        kept_in = None if cache_dtype is None else CACHE_DTYPES[cache_dtype]
        decoder = as_decoder(quantized, caches, max_context, ROWS, kept_in, room)
    names = [name for name in decoder._buffers if name not in model._buffers]
    count, kept = (Dim(name, min=1, max=most) for name in ("count", "kept"))
    inputs = {IDS: {0: "rows", 1: count}, POSITION: ROW, KEPT: {0: kept}}
    if reads_one:
        inputs = {IDS: ROW, POSITION: ROW, KEPT: {}}
    plan = export_rows(
        decoder,
        example(ROWS, vocabulary, 1 if reads_one else 3),
        {**inputs, **dict.fromkeys(names, ROW)},
        input_names=[*inputs],
        output_names=[LOGITS],
        shared=[KEPT],
        **options,
    )
    return plan if rule is None else rule.recorded(plan)


def _needs_module(quantize: QuantizationConfig | str | None) -> bool:
    return quantize is not None and read_quantization(quantize).needs_module


def _check(model: Any, max_context: int) -> None:
    """Check the model and the arguments, without running the model."""
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise ExportError(
            f"model: expected a model of transformers, with a config, got {type(model).__name__}"
        )
    if model.training:
        raise ExportError("model: expected evaluation mode, got training mode; call eval() first")
    whole: Any = model.config
    config = whole.get_text_config(decoder=True)
    if type(max_context) is not int or max_context < 2:
        raise ExportError(f"max_context: expected an int of at least 2, got {max_context!r}")
    for name in ("max_position_embeddings", "max_target_positions"):
        most = getattr(config, name, None)
        if type(most) is int and max_context > most:
            raise ExportError(
                f"max_context: expected at most {most}, the positions of {type(model).__name__} "
                f"(config.{name}), got {max_context}"
            )
    if config._attn_implementation not in ATTENTION:
        raise ExportError(
            f"attention of {type(model).__name__}: expected {' or '.join(ATTENTION)}, got "
            f"{config._attn_implementation!r}; make the model with attn_implementation='sdpa'"
        )


def _vocabulary(model: Any) -> int:
    """Return the number of a model's logits."""
    head = model.get_output_embeddings()
    table = model.get_input_embeddings()
    words = None if head is None else head.weight.shape[0]
    if words is None or table is None or table.weight.shape[0] < words:
        raise ExportError(
            f"{type(model).__name__}: expected a model with an embedding and a head of logits for "
            f"its tokens, such as AutoModelForCausalLM makes, got {words or 'no'} logits"
        )
    return int(words)


def _eos_token_ids(model: Any) -> tuple[int, ...]:
    """Return the tokens that end a text, from the generation config if there is one."""
    config = getattr(model, "generation_config", None) or model.config
    found = config.eos_token_id
    if found is None:
        return ()
    return tuple(found) if isinstance(found, (list, tuple)) else (int(found),)


def _compare(
    model: Any, decoder: torch.nn.Module, vocabulary: int, context: int, most: int
) -> None:
    """Check that rows at different positions get the logits of the model on whole texts.

    A model that finds positions on its own, such as by the length of its cache, has others. No run
    has more tokens than ``most``.
    """
    count = min(_CHECKED, context)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (ROWS, count), generator=generator)
    # the second row goes back by one position after the prompt
    first = max(count // 2, 1)
    starts = torch.tensor([first, first - 1])
    with torch.no_grad():
        try:
            whole = model(input_ids=ids, use_cache=False).logits
            for begin in range(0, first, most):
                read = ids[:, begin : min(begin + most, first)]
                decoder(read, torch.full((ROWS,), begin), torch.tensor([0]))
            bounds = [0, *range(1, count - first, most), count - first]
            for begin, end in itertools.pairwise(bounds):
                places = starts[:, None] + torch.arange(begin, end)
                rows = torch.arange(ROWS)[:, None]
                got = decoder(ids[rows, places], places[:, 0], torch.arange(end - begin))
                check_close(model, got, whole[rows, places])
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(error, ExportError):
                raise
            raise _no_decoder(model, error) from error
    _clear(model, decoder)


def _compare_in_order(
    model: Any, decoder: torch.nn.Module, vocabulary: int, context: int, step: int
) -> None:
    """Check that a decoder with recurrent states gets, step by step, the logits of whole texts."""
    count = min(_CHECKED_IN_ORDER, context)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (ROWS, count), generator=generator)
    with torch.no_grad():
        try:
            whole = model(input_ids=ids, use_cache=False).logits
            for first in range(0, count, step):
                new = ids[:, first : first + step]
                position = torch.full((ROWS,), first)
                got = decoder(new, position, torch.arange(new.shape[1]))
                check_close(model, got, whole[:, first : first + step])
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(error, ExportError):
                raise
            raise _no_decoder(model, error) from error
    _clear(model, decoder)


def _no_decoder(model: Any, error: Exception) -> ExportError:
    return ExportError(
        f"{type(model).__name__}: expected a decoder that takes a cache of its caller, got "
        f"{type(error).__name__}: {error}"
    )


def _clear(model: Any, decoder: torch.nn.Module) -> None:
    """Reset the states to their first values."""
    for name, buffer in decoder._buffers.items():
        if name not in model._buffers and buffer is not None:
            buffer.zero_()
