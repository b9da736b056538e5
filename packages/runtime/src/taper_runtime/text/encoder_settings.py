"""Define the settings of sentences, which an asset of an encoder's plan has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from taper_runtime.base.checks import describe, parse_object
from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.text.tokenizer_asset import text_of

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan

#: The asset that has the settings, of a plan that embeds sentences and of one that scores pairs.
SETTINGS = "encoder.json"
PAIR_SETTINGS = "cross_encoder.json"


class EncoderSettings(NamedTuple):
    """Settings for the work of an encoder before its plan runs.

    Attributes
    ----------
    prompts : dict of str to str
        What may stand before sentences, by name.
    default_prompt_name : str or None
        The name of the prompt that stands there if none is asked for.
    include_prompt : bool
        Whether the tokens of the prompt take part in pooling. If not, the plan has the input
        ``pooling_mask``.
    vocab_size : int
        The tokens that the model has embeddings for.
    """

    prompts: dict[str, str]
    default_prompt_name: str | None
    include_prompt: bool
    vocab_size: int

    def to_json(self) -> str:
        """Return the settings as an asset has them."""
        return json.dumps(self._asdict())


def read_settings(plan: Plan, asset: str) -> EncoderSettings:
    """Return the settings of a plan's sentences, which are in an asset of this name.

    Raises
    ------
    InputError
        If the plan has none, or others than :class:`EncoderSettings` describes.
    """
    text = text_of(plan, asset)
    found = parse_object(text)
    if found is None or found.keys() != {*EncoderSettings._fields}:
        raise _error(asset, "", f"an object with {', '.join(EncoderSettings._fields)}", found)
    prompts, default = found["prompts"], found["default_prompt_name"]
    if type(prompts) is not dict or {*map(type, prompts.values())} - {str}:
        raise _error(asset, ".prompts", "an object of texts", prompts)
    if default is not None and (type(default) is not str or default not in prompts):
        raise _error(asset, ".default_prompt_name", f"null or one of {[*prompts]}", default)
    if type(found["include_prompt"]) is not bool:
        raise _error(asset, ".include_prompt", "true or false", found["include_prompt"])
    if type(found["vocab_size"]) is not int or found["vocab_size"] < 1:
        raise _error(asset, ".vocab_size", "a number from 1 on", found["vocab_size"])
    return EncoderSettings(**found)


def _error(asset: str, place: str, expected: str, got: Any) -> InputError:
    return InputError(f"plan.assets[{asset!r}]{place}: expected {expected}, got {describe(got)}")
