"""Open the models that a server serves: writers of texts, encoders, and any other plan."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.file.reader import load
from taper_runtime.generation.decoder_convention import is_decoder
from taper_runtime.plan.plan import Plan
from taper_runtime.serving.server_limits import DEFAULT_LIMITS, ServerLimits
from taper_runtime.session.inference_session import InferenceSession
from taper_runtime.text import Encoder, TextGenerator
from taper_runtime.text.encoder_settings import SETTINGS
from taper_runtime.text.tokenizer_asset import TOKENIZER

if TYPE_CHECKING:
    import os

    from taper_runtime.session.options import SessionOptions


class ServedModel(NamedTuple):
    """A model of a server.

    Attributes
    ----------
    name : str
        What requests call it.
    session : InferenceSession
    writer : TextGenerator or None
        If the plan is a decoder with a tokenizer.
    encoder : Encoder or None
        If the plan is a text encoder.
    opened : int
        Seconds since 1970 when it was opened.
    assistant : InferenceSession or None
        Of the decoder that guesses what ``writer`` writes.
    """

    name: str
    session: InferenceSession
    writer: TextGenerator | None
    encoder: Encoder | None
    opened: int
    assistant: InferenceSession | None = None


def open_model(
    name: str,
    plan: Plan | str | os.PathLike[str],
    sess_options: SessionOptions | None = None,
    limits: ServerLimits = DEFAULT_LIMITS,
    *,
    assistant_model: Plan | str | os.PathLike[str] | None = None,
) -> ServedModel:
    """Open a model to serve it.

    Parameters
    ----------
    name : str
        What requests call it.
    plan : Plan, str or os.PathLike
        The plan, or the path of its file.
    sess_options : SessionOptions, optional
    limits : ServerLimits
    assistant_model : Plan, str or os.PathLike, optional
        A smaller decoder of the same tokens, which guesses what the model writes; see
        :class:`.Generator`.

    Raises
    ------
    InputError
        If the name is empty or has characters other than letters, digits and ``._:-``, a limit is
        out of range, an asset of the plan does not fit it, or ``assistant_model`` cannot guess for
        it.
    TaperError
        As :func:`taper_runtime.load` and :class:`taper_runtime.InferenceSession`.
    """
    if type(name) is not str or not name.isascii() or not name.translate(_MARKS).isalnum():
        raise InputError(
            f"name: expected a model's name of letters, digits and ._:-, got {name!r}; give one "
            "as NAME=FILE"
        )
    limits.check()
    opened = int(time.time())
    if not isinstance(plan, Plan):
        plan = load(plan)
    is_writer = is_decoder(plan) and TOKENIZER in plan.assets
    if assistant_model is not None and not is_writer:
        raise InputError(
            f"assistant_model: expected none for {name!r}, which is no decoder with a tokenizer"
        )
    if is_writer:
        assistant = None
        if assistant_model is not None:
            assistant = InferenceSession(assistant_model, sess_options)
        writer = TextGenerator(
            plan,
            sess_options,
            prefix_cache_bytes=limits.prefix_cache_bytes,
            max_active=limits.max_active,
            assistant_model=assistant,
        )
        return ServedModel(name, writer.session, writer, None, opened, assistant)
    if SETTINGS in plan.assets:
        encoder = Encoder(plan, sess_options)
        return ServedModel(name, encoder.session, None, encoder, opened)
    return ServedModel(name, InferenceSession(plan, sess_options), None, None, opened)


#: Marks that stand for a letter.
_MARKS: dict[int, Any] = str.maketrans(dict.fromkeys("._:-", "x"))
