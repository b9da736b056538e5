"""Read the asset of a speech recognizer: its first tokens, languages and timestamps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.checks import describe, parse_object
from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.text.tokenizer_asset import text_of

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan

#: The name of the asset.
SPEECH = "speech.json"


class SpeechSettings(NamedTuple):
    """The special tokens of a speech recognizer, from its asset.

    Attributes
    ----------
    start : int
        The token with which the decoder begins.
    end : int
        The token that ends a window. Tokens from ``no_timestamps + 1`` on are times.
    no_timestamps : int
        The token that asks for no times.
    forced : tuple of int or None
        Tokens after the first, unless a caller names a language or a task; None stands for the
        language.
    languages, tasks : mapping of str to int
        Tokens of languages, by codes such as ``"en"``, and of tasks.
    suppressed, suppressed_first : tuple of int
        Tokens that never follow, and that do not follow first.
    last_first_time : int or None
        The most steps of 20 ms at which the first segment may begin.
    """

    start: int
    end: int
    no_timestamps: int
    forced: tuple[int | None, ...]
    languages: dict[str, int]
    tasks: dict[str, int]
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    last_first_time: int | None


def read_speech_settings(plan: Plan, vocabulary: int) -> SpeechSettings:
    """Return the settings of a plan.

    Raises
    ------
    InputError
        If the plan has none, or a value is no token.
    """
    where = f"plan.assets[{SPEECH!r}]"
    found = parse_object(text_of(plan, SPEECH))
    if found is None or found.keys() != {*SpeechSettings._fields}:
        fields = ", ".join(SpeechSettings._fields)
        raise InputError(f"{where}: expected an object with {fields}")

    def check(is_right: bool, name: str, expected: str) -> None:
        if not is_right:
            raise InputError(f"{where}.{name}: expected {expected}, got {describe(found[name])}")

    def is_token(value: Any) -> bool:
        return type(value) is int and 0 <= value < vocabulary

    for name in ("start", "end", "no_timestamps"):
        check(is_token(found[name]), name, f"a token from 0 to {vocabulary - 1}")
    begin = found["no_timestamps"] + 1
    check(found["end"] < begin < vocabulary, "no_timestamps", "a token after the end, before times")
    for name in ("forced", "suppressed", "suppressed_first"):
        value, may_be_none = found[name], name == "forced"
        right = type(value) is list and all(
            is_token(each) or (may_be_none and each is None) for each in value
        )
        check(right, name, "a list of tokens")
    for name in ("languages", "tasks"):
        value = found[name]
        right = type(value) is dict and all(map(is_token, value.values()))
        check(right, name, "an object of tokens")
    last = found["last_first_time"]
    check(last is None or (type(last) is int and last >= 0), "last_first_time", "null or a number")
    lists = {name: tuple(value) for name, value in found.items() if type(value) is list}
    return SpeechSettings(**{**found, **lists})
