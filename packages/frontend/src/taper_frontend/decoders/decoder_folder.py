"""Make a language model of a local checkpoint: a folder of transformers, or a GGUF file.

The module has no parameters of its own: they are mapped from the files, or have the bits of a
quantized checkpoint. Nothing is downloaded, and no code of a folder is run.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import transformers
from torch import nn
from transformers.initialization import no_init_weights

from taper_frontend.checkpoint import filled
from taper_frontend.decoders.gguf_decoder import gguf_config, gguf_names, gguf_tokenizer
from taper_frontend.errors import ExportError
from taper_frontend.quantized_checkpoint.load import load_quantized
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

#: The files of weights that are mapped, the first that a folder has.
_WEIGHTS = ("model.safetensors.index.json", "model.safetensors")

#: The files by which a folder has a tokenizer.
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")


class LocalDecoder(NamedTuple):
    """A language model that was opened.

    Attributes
    ----------
    model : torch.nn.Module
        In evaluation mode.
    checkpoint : str or None
        The file that has its parameters, if they are on the ``meta`` device.
    tokenizer : object or None
        A fast tokenizer of transformers, if there is one.
    """

    model: Any
    checkpoint: str | None
    tokenizer: Any


def open_decoder(path: str | os.PathLike[str]) -> LocalDecoder:
    """Open a folder of transformers, or a GGUF file.

    Parameters
    ----------
    path : str or os.PathLike
        A folder with ``config.json`` and weights, which may be quantized, or a file ``*.gguf``.

    Raises
    ------
    ExportError
        If there is no such checkpoint, or it cannot be read, or needs code of its own.
    """
    place = Path(path)
    if place.suffix == ".gguf" and place.is_file():
        return _open_gguf(place)
    if not (place / "config.json").is_file():
        raise ExportError(
            f"model: expected a folder with config.json, or a GGUF file, got {str(path)!r}"
        )
    try:
        return _open_folder(place)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ExportError(
            f"{place}: expected a checkpoint that transformers reads, got "
            f"{type(error).__name__}: {error}"
        ) from error


def _open_gguf(place: Path) -> LocalDecoder:
    config = gguf_config(place)
    model = _without_parameters(config, torch.float32)
    load_quantized(model, place, names=gguf_names(config))
    return LocalDecoder(model, None, gguf_tokenizer(place))


def _open_folder(place: Path) -> LocalDecoder:
    """Open a folder of transformers: its model, perhaps a checkpoint of it, and its tokenizer."""
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(place, **local)
    quantization = json.loads((place / "config.json").read_text(encoding="utf-8")).get(
        "quantization_config"
    )
    checkpoint = next((str(place / name) for name in _WEIGHTS if (place / name).is_file()), None)
    if quantization is not None:
        del config.quantization_config
        model = _without_parameters(config, torch.float32)
        load_quantized(model, place, config=quantization)
        checkpoint = None
    else:
        model = _without_parameters(config, config.dtype or torch.float32)
        if checkpoint is None or not _fits(model, checkpoint):
            model = type(model).from_pretrained(
                place, **local, attn_implementation=_attention(config)
            )
            checkpoint = None
    if (place / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(place, **local)
    has_tokenizer = any((place / name).is_file() for name in _TOKENIZERS)
    tokenizer = (
        transformers.AutoTokenizer.from_pretrained(place, **local) if has_tokenizer else None
    )
    return LocalDecoder(model.eval(), checkpoint, tokenizer)


def _fits(model: nn.Module, checkpoint: str) -> bool:
    """Return whether a checkpoint has the parameters of a model as the model has them.

    transformers gives others new names or another dtype, or joins them, as it reads them.
    """
    try:
        with filled(model, checkpoint):
            return True
    except ExportError:
        return False


def _attention(config: Any) -> str | None:
    """Return how attention is computed; None leaves it to transformers."""
    capped = getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None)
    return "eager" if capped else None


def _without_parameters(config: Any, dtype: torch.dtype) -> Any:
    """Return a model whose parameters are on the ``meta`` device, and its buffers on the CPU."""
    kind = type(config)
    if kind in transformers.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING:
        made: Any = transformers.AutoModelForSpeechSeq2Seq
    elif config.is_encoder_decoder:
        made = transformers.AutoModelForSeq2SeqLM
    else:
        made = transformers.AutoModelForCausalLM
    with no_init_weights(), _parameters_on_meta():
        model = made.from_config(
            config,
            dtype=dtype,
            attn_implementation=_attention(config),
            trust_remote_code=False,
        )
    model.tie_weights()
    return model.eval()


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    register = nn.Module.register_parameter

    def registered(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, parameter)

    with patch.object(nn.Module, "register_parameter", registered):
        yield
