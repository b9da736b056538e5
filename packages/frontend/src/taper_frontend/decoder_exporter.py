"""Export decoders of transformers, with a cache for each sequence of a batch."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.export import Dim

from taper_frontend.checkpoint import filled
from taper_frontend.decoder_module import ATTENTION, as_decoder, example, read_caches
from taper_frontend.errors import ExportError, ExportWarning
from taper_frontend.exporter import export
from taper_frontend.text_assets import text_assets
from taper_runtime.generation.decoder_convention import (
    IDS,
    KEPT,
    LOGITS,
    POSITION,
    DecoderConvention,
)

if TYPE_CHECKING:
    import os

    from taper_frontend.compiler.quantization.schemes import QuantizationConfig
    from taper_runtime.plan.plan import Plan

#: Rows of the example. torch takes 1 for a case of its own.
_ROWS = 2

#: The most tokens of each row on which a decoder with buffers is compared with its model.
_CHECKED = 64

#: The largest relative error, in the L2 norm, of logits in float32, and in 16 bits.
_ERROR, _COARSE_ERROR = 1e-4, 3e-2


def export_decoder(
    model: Any,
    *,
    max_context: int,
    quantize: QuantizationConfig | str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    tokenizer: Any = None,
    **options: Any,
) -> Plan:
    """Export a decoder-only model of transformers to a plan that writes text.

    One program reads prompts and writes tokens, of one sequence or of a batch of sequences at
    positions of their own. :class:`taper_runtime.Generator` runs it;
    :mod:`taper_runtime.generation.decoder_convention` describes its inputs, output and states.

    Parameters
    ----------
    model : torch.nn.Module
        A model with a head, such as ``AutoModelForCausalLM`` makes, in evaluation mode. Its forward
        takes ``input_ids`` and a cache of keys and values. It is not changed.
    max_context : int
        The most tokens of a sequence, prompt included: the positions of its cache.
    quantize : QuantizationConfig or str, optional
        As for :func:`taper_frontend.export`.
    checkpoint : str or os.PathLike, optional
        As for :func:`taper_frontend.export`.
    tokenizer : object, optional
        A fast tokenizer of transformers, which becomes an asset of the plan, with its chat template
        and the model's defaults: for :class:`taper_runtime.text.TextGenerator`.
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
    _check(model, max_context)
    with filled(model, checkpoint):
        vocabulary = _vocabulary(model)
        assets = {} if tokenizer is None else text_assets(model, tokenizer, vocabulary)
        decoder = as_decoder(model, read_caches(model), max_context, _ROWS)
        _compare(model, decoder, vocabulary, max_context)
        names = [name for name in decoder._buffers if name not in model._buffers]
        row = {0: "rows"}
        count, kept = (Dim(name, min=1, max=max_context) for name in ("count", "kept"))
        inputs = {IDS: {0: "rows", 1: count}, POSITION: row, KEPT: {0: kept}}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ExportWarning)
            plan = export(
                decoder,
                kwargs=example(_ROWS, vocabulary),
                dynamic_shapes={**inputs, **dict.fromkeys(names, row)},
                output_names=[LOGITS],
                quantize=quantize,
                **options,
            )
    for each in caught:
        if getattr(each.message, "kind", "") != "state":
            warnings.warn(each.message, stacklevel=2)
    kept_notes = [note for note in plan.metadata["warnings"] if note["kind"] != "state"]
    one = {IDS: slice(1), POSITION: slice(1), KEPT: slice(None)}
    plan = plan._replace(
        metadata={**plan.metadata, "warnings": kept_notes},
        # of one row, as the session's own state has
        samples={name: plan.samples[name][one[name]] for name in plan.inputs},
    )
    convention = DecoderConvention(vocabulary, max_context, _eos_token_ids(model))
    return convention.recorded(plan).with_assets(assets)


def _check(model: Any, max_context: int) -> None:
    """Check what can be checked without a run."""
    if not isinstance(model, torch.nn.Module) or not hasattr(model, "config"):
        raise ExportError(
            f"model: expected a model of transformers, with a config, got {type(model).__name__}"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        raise ExportError(
            f"{type(model).__name__}: expected a decoder-only model, got an encoder and a decoder"
        )
    if model.training:
        raise ExportError("model: expected evaluation mode, got training mode; call eval() first")
    whole: Any = model.config
    config = whole.get_text_config(decoder=True)
    if type(max_context) is not int or max_context < 2:
        raise ExportError(f"max_context: expected an int of at least 2, got {max_context!r}")
    most = getattr(config, "max_position_embeddings", None)
    if type(most) is int and max_context > most:
        raise ExportError(
            f"max_context: expected at most {most}, the positions of {type(model).__name__} "
            f"(config.max_position_embeddings), got {max_context}"
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


def _compare(model: Any, decoder: torch.nn.Module, vocabulary: int, context: int) -> None:
    """Check that rows at different positions have the logits that a model gives whole texts.

    A model that finds positions on its own, such as by the length of its cache, has others.
    """
    count = min(_CHECKED, context)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (_ROWS, count), generator=generator)
    # the second row goes back by one position after the prompt
    first = max(count // 2, 1)
    starts = torch.tensor([first, first - 1])
    with torch.no_grad():
        try:
            whole = model(input_ids=ids, use_cache=False).logits
            decoder(ids[:, :first], torch.zeros(_ROWS, dtype=torch.int64), torch.tensor([0]))
            rest = count - first
            for begin, end in ((0, 1), (1, rest)):
                if begin == end:
                    continue
                places = starts[:, None] + torch.arange(begin, end)
                rows = torch.arange(_ROWS)[:, None]
                got = decoder(ids[rows, places], places[:, 0], torch.arange(end - begin))
                _check_close(model, got, whole[rows, places])
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(error, ExportError):
                raise
            raise ExportError(
                f"{type(model).__name__}: expected a decoder that takes a cache of its caller, got "
                f"{type(error).__name__}: {error}"
            ) from error
    for name, buffer in decoder._buffers.items():
        if name not in model._buffers and buffer is not None:
            buffer.zero_()


def _check_close(model: Any, got: torch.Tensor, expected: torch.Tensor) -> None:
    limit = _ERROR if expected.dtype == torch.float32 else _COARSE_ERROR
    error = float((got - expected).float().norm() / expected.float().norm())
    if not error <= limit:
        raise ExportError(
            f"{type(model).__name__}: expected the logits of whole texts from a cache whose rows "
            f"are at positions of their own, within {limit:g}, got a relative error of {error:.2g}"
            "; its forward does not take the positions from position_ids and the mask alone"
        )
