"""Read the tokenizer of a plan, an asset as the package tokenizers writes it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import InputError, TaperError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_runtime.plan.plan import Plan

#: The name of the asset.
TOKENIZER = "tokenizer.json"


def asset_of(plan: Plan, name: str) -> bytes:
    """Return the bytes of an asset that a text model must have.

    Raises
    ------
    InputError
        If the plan does not have it.
    """
    if name not in plan.assets:
        raise InputError(
            f"plan.assets: expected {name!r}, which taper_frontend.export_encoder and "
            f"export_decoder(tokenizer=...) write, got {[*plan.assets]}"
        )
    return plan.assets[name].tobytes()


def text_of(plan: Plan, name: str) -> str:
    """Return the text of an asset that a text model must have.

    Raises
    ------
    InputError
        If the plan does not have it, or it is not in UTF-8.
    """
    try:
        return asset_of(plan, name).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"plan.assets[{name!r}]: expected a text in UTF-8: {error}") from error


@contextmanager
def as_input_error(
    what: str = f"plan.assets[{TOKENIZER!r}]: the tokenizer fails",
) -> Iterator[None]:
    """Raise what a package in Rust raises as an InputError that begins with ``what``.

    Its panics are no Exceptions: a tokenizer with a wrong number in it, or a regular expression
    that backtracks without end, would end a server.
    """
    try:
        yield
    except InputError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{what}: {error}") from error


def read_tokenizer(plan: Plan, vocab_size: int) -> Any:
    """Return a plan's ``tokenizers.Tokenizer``.

    Parameters
    ----------
    plan : Plan
    vocab_size : int
        The most tokens that it may have.

    Raises
    ------
    InputError
        If the plan has none, the asset is no tokenizer, or it has more tokens.
    TaperError
        If the package tokenizers is not installed.
    """
    data = asset_of(plan, TOKENIZER)
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise TaperError(
            "taper_runtime.text needs the package tokenizers; install it with "
            "`pip install 'taper-runtime[text]'`"
        ) from error
    with as_input_error(f"plan.assets[{TOKENIZER!r}]: no tokenizer"):
        made = Tokenizer.from_buffer(data)
    count = made.get_vocab_size(with_added_tokens=True)
    if count > vocab_size:
        raise InputError(
            f"plan.assets[{TOKENIZER!r}]: expected at most the {vocab_size} tokens of the model, "
            f"got {count}"
        )
    return made
