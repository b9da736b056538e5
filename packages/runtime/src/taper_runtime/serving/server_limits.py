"""Limit what a client may ask of a server."""

from __future__ import annotations

from taper_runtime.base.checks import describe
from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple


class ServerLimits(NamedTuple):
    """Limits of a server.

    Attributes
    ----------
    max_body_bytes : int
        The most bytes of a request's body.
    max_requests : int
        The most requests at once, those that wait included. Others are refused.
    max_active : int
        The most texts that a model writes at once. Others wait for a place.
    max_new_tokens : int or None
        The most tokens of a text; None for as many as the context has room for.
    timeout_s : float
        The most seconds that a request takes, its wait included.
    prefix_cache_bytes : int
        Memory for what the states of earlier texts hold; see :class:`.Generator`. Logits are then
        the same within rounding errors, not bit for bit.
    prompt_lookup_num_tokens : int or None
        Guess up to that many tokens of a text that is written alone from what followed the last
        ones earlier in it, unless its model has an assistant; see :meth:`.Generator.submit`. Texts
        have the same tokens and logits, bit for bit.
    """

    max_body_bytes: int = 16 * 2**20
    max_requests: int = 256
    max_active: int = 32
    max_new_tokens: int | None = None
    timeout_s: float = 600.0
    prefix_cache_bytes: int = 0
    prompt_lookup_num_tokens: int | None = None

    def check(self) -> None:
        """Check all values.

        Raises
        ------
        InputError
            If one is out of range.
        """
        for name, value in self._asdict().items():
            if name in ("max_new_tokens", "prompt_lookup_num_tokens") and value is None:
                continue
            kinds = (int, float) if name == "timeout_s" else (int,)
            least = 0 if name == "prefix_cache_bytes" else 1
            if type(value) not in kinds or not least <= value < 2**53:
                raise InputError(f"{name}: expected a number from {least}, got {describe(value)}")


#: What a server takes that is told no others.
DEFAULT_LIMITS = ServerLimits()
