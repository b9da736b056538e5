"""Export encoder-decoders of transformers: an entry for the encoder, and one for the decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.export import Dim

from taper_frontend.compiler.planning import join_plans
from taper_frontend.decoders.decoder_module import example
from taper_frontend.decoders.encoder_decoder_module import (
    EncoderDecoder,
    SourceInput,
    read_source,
    split,
)
from taper_frontend.decoders.export_rows import ROW, ROWS, check_close, export_rows
from taper_frontend.errors import ExportError
from taper_runtime.generation.decoder_convention import IDS, KEPT, LOGITS, POSITION
from taper_runtime.generation.encoder_convention import ENCODE, EncoderConvention

if TYPE_CHECKING:
    from collections.abc import Collection

    from taper_runtime.plan.plan import Plan

#: The most tokens of each row on which the two modules are compared with their model.
_CHECKED = 64

#: The argument of the decoder with the states that the encoder writes.
_STATES = "states"


def export_encoder_decoder(
    model: Any, vocabulary: int, max_context: int, max_source: int | None, **options: Any
) -> Plan:
    """Export a model that was checked; see :func:`taper_frontend.export_decoder`."""
    source = read_source(model, max_source)
    parts = split(model, source, max_context, ROWS)
    _compare(model, parts, source, vocabulary, max_context)
    encoded: dict[int, Any] = dict(ROW)
    if source.vocabulary:
        encoded[1] = Dim("source", min=1, max=source.positions)
    encode = export_rows(
        parts.encoder,
        {"source": source.example(ROWS)},
        {"source": encoded, **dict.fromkeys(parts.cross, ROW)},
        input_names=[source.name],
        output_names=["last_hidden_state"],
        **options,
    )
    names = [name for name in parts.decoder._buffers if name not in model._buffers]
    count, kept = (Dim(name, min=1, max=max_context) for name in ("count", "kept"))
    decode = export_rows(
        parts.decoder,
        {**example(ROWS, vocabulary), _STATES: dict(parts.cross)},
        {
            IDS: {0: "rows", 1: count},
            POSITION: ROW,
            KEPT: {0: kept},
            _STATES: dict.fromkeys(parts.cross, ROW),
            **dict.fromkeys(names, ROW),
        },
        input_names=[IDS, POSITION, KEPT, *parts.cross],
        output_names=[LOGITS],
        shared=[KEPT],
        **options,
    )
    plan = join_plans({"decode": with_read_states(decode, parts.cross), ENCODE: encode})
    return EncoderConvention(source.vocabulary, source.positions, _start(model)).recorded(plan)


def with_read_states(plan: Plan, names: Collection[str]) -> Plan:
    """Return a plan that reads some of its inputs from the state, without changing them."""
    tensors = {
        name: spec._replace(role="state") if name in names else spec
        for name, spec in plan.tensors.items()
    }
    inputs = tuple(name for name in plan.inputs if name not in names)
    return plan._replace(
        tensors=tensors,
        inputs=inputs,
        states={**plan.states, **{name: name for name in names}},
        samples={name: plan.samples[name] for name in inputs},
        input_tree=[
            "tuple",
            [["tuple", []], ["dict", [[name, ["tensor", name]] for name in inputs]]],
        ],
    )


def _start(model: Any) -> tuple[int, ...]:
    """Return the tokens with which the decoder begins."""
    config = getattr(model, "generation_config", None) or model.config
    names = ("decoder_start_token_id", "forced_bos_token_id")
    found = [getattr(config, name, None) for name in names]
    if found[0] is None:
        found[0] = getattr(model.config, names[0], None)
    if type(found[0]) is not int:
        raise ExportError(
            f"{type(model).__name__}: expected a generation_config with {names[0]}, the token with "
            f"which the decoder begins, got {found[0]!r}"
        )
    return tuple(token for token in found if type(token) is int)


def _compare(
    model: Any, parts: EncoderDecoder, source: SourceInput, vocabulary: int, context: int
) -> None:
    """Check that rows at different positions get the logits of the model on whole texts."""
    count = min(_CHECKED, context)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (ROWS, count), generator=generator)
    given = source.example(ROWS)
    # the second row goes back by one position after the prompt
    first = max(count // 2, 1)
    starts = torch.tensor([first, first - 1])
    with torch.no_grad():
        try:
            whole = model(**{source.name: given}, decoder_input_ids=ids, use_cache=False).logits
            parts.encoder(given)
            states = {name: getattr(parts.encoder, name) for name in parts.cross}
            begin = torch.zeros(ROWS, dtype=torch.int64)
            parts.decoder(ids[:, :first], begin, torch.tensor([0]), states)
            rest = count - first
            for start, end in ((0, 1), (1, rest)):
                if start == end:
                    continue
                places = starts[:, None] + torch.arange(start, end)
                rows = torch.arange(ROWS)[:, None]
                kept = torch.arange(end - start)
                got = parts.decoder(ids[rows, places], places[:, 0], kept, states)
                check_close(model, got, whole[rows, places])
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            if isinstance(error, ExportError):
                raise
            raise ExportError(
                f"{type(model).__name__}: expected an encoder and a decoder that takes caches of "
                f"its caller, got {type(error).__name__}: {error}"
            ) from error
    for module in (parts.encoder, parts.decoder):
        for name, buffer in module._buffers.items():
            if name not in model._buffers and buffer is not None:
                buffer.zero_()
