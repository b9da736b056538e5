"""Make the assets of a language model: its tokenizer, chat template and defaults."""

from __future__ import annotations

import json
from typing import Any

from taper_frontend.errors import ExportError
from taper_runtime.text.chat_template import TEMPLATE
from taper_runtime.text.text_generator import DEFAULTS, DRAWS, KNOWN
from taper_runtime.text.tokenizer_asset import TOKENIZER


def text_assets(model: Any, tokenizer: Any, vocabulary: int) -> dict[str, bytes]:
    """Return the assets by their names.

    Parameters
    ----------
    model : torch.nn.Module
        Of transformers; its ``generation_config`` has the defaults.
    tokenizer : object
        A fast tokenizer of transformers.
    vocabulary : int
        The tokens that the model has logits for.

    Raises
    ------
    ExportError
        If the tokenizer is another, or has more tokens, or several templates.
    """
    if not getattr(tokenizer, "is_fast", False):
        got = type(tokenizer).__name__
        raise ExportError(f"tokenizer: expected a fast tokenizer of transformers, got {got}")
    own = tokenizer.backend_tokenizer
    count = own.get_vocab_size(with_added_tokens=True)
    if count > vocabulary:
        raise ExportError(
            f"tokenizer: expected at most the {vocabulary} tokens of the model, got {count}"
        )
    config = getattr(model, "generation_config", None)
    defaults = {name: getattr(config, name, None) for name in KNOWN}
    drawn = defaults["do_sample"] is True
    defaults = {
        name: value
        for name, value in defaults.items()
        if type(value) in KNOWN[name] and (drawn or name not in DRAWS)
    }
    names = ("bos_token", "eos_token")
    words = {name: word for name in names if (word := getattr(tokenizer, name, None)) is not None}
    made = {
        TOKENIZER: own.to_str().encode(),
        DEFAULTS: json.dumps({"tokens": words, "defaults": defaults}).encode(),
    }
    template = tokenizer.chat_template
    if isinstance(template, str):
        made[TEMPLATE] = template.encode()
    elif template is not None:
        raise ExportError(f"tokenizer.chat_template: expected one template, got {[*template]}")
    return made
