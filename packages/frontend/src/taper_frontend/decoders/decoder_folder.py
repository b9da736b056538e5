"""Make a language model of a local checkpoint: a folder of transformers, or a GGUF file.

Parameters are mapped from the files, or have the bits of a quantized checkpoint. Nothing is
downloaded, and no code of a folder is run.
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

from taper_frontend.decoders.gguf_decoder import gguf_config, gguf_names, gguf_tokenizer
from taper_frontend.errors import ExportError
from taper_frontend.quantized_checkpoint.load import load_quantized

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

#: The most missing weights in an error.
_LISTED = 5

#: The files by which a folder has a tokenizer.
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")


def open_decoder(path: str | os.PathLike[str]) -> tuple[Any, Any]:
    """Open a folder of transformers, or a GGUF file.

    Parameters
    ----------
    path : str or os.PathLike
        A folder with ``config.json`` and weights, which may be quantized, or a file ``*.gguf``.

    Returns
    -------
    tuple of torch.nn.Module and object
        A model in evaluation mode, and a fast tokenizer of transformers, or None.

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
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError) as error:
        raise ExportError(
            f"{place}: expected a checkpoint that transformers reads, got "
            f"{type(error).__name__}: {error}"
        ) from error


def _open_gguf(place: Path) -> tuple[Any, Any]:
    config = gguf_config(place)
    model = _without_parameters(config)
    load_quantized(model, place, names=gguf_names(config))
    return model, gguf_tokenizer(place)


def _open_folder(place: Path) -> tuple[Any, Any]:
    """Open a folder that has ``config.json``."""
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(place, **local)
    quantization = json.loads((place / "config.json").read_text(encoding="utf-8")).get(
        "quantization_config"
    )
    if quantization is None:
        # its tensors are views of mapped files, but for those that transformers joins or casts
        model, report = _kind(config).from_pretrained(
            place, **local, attn_implementation=_attention(config), output_loading_info=True
        )
        if missing := sorted(report["missing_keys"]):
            raise ExportError(
                f"{place}: expected weights of {', '.join(missing[:_LISTED])}, got none"
            )
    else:
        del config.quantization_config
        model = _without_parameters(config)
        load_quantized(model, place, config=quantization)
    if (place / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(place, **local)
    has_tokenizer = any((place / name).is_file() for name in _TOKENIZERS)
    tokenizer = (
        transformers.AutoTokenizer.from_pretrained(place, **local) if has_tokenizer else None
    )
    return model.eval(), tokenizer


def _attention(config: Any) -> str | None:
    """Return how attention is computed; None leaves it to transformers."""
    capped = getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None)
    return "eager" if capped else None


def _kind(config: Any) -> Any:
    """Return the class of transformers that makes models with heads of a config."""
    if type(config) in transformers.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING:
        return transformers.AutoModelForSpeechSeq2Seq
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModelForCausalLM


def _without_parameters(config: Any) -> Any:
    """Return a model whose parameters are on the ``meta`` device, and its buffers on the CPU."""
    with no_init_weights(), _parameters_on_meta():
        model = _kind(config).from_config(
            config,
            dtype=torch.float32,
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
