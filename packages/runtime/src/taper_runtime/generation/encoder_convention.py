"""Define the convention of plans with an encoder: a second entry, and its states.

Such a plan follows :mod:`.decoder_convention`. Its entry ``encode`` is run once for each text,
before the decoder. It reads a source, and writes the keys and values that the decoder's cross
attention reads:

====================  ===========================  ===============================================
``input_ids``         int64 ``[rows, count]``      the tokens of a source; or in its place
``input_features``    float ``[rows, bins, n]``    a spectrogram, always of the same size
``cross_keys_0``...   ``[rows, heads, s, width]``  states: keys of each layer, for ``s`` positions
``cross_values_0``..  ``[rows, heads, s, width]``  states: values
``source_length``     int64 ``[rows]``             a state: positions that count; not with features
====================  ===========================  ===============================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.checks import describe
from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import is_static
from taper_runtime.generation.decoder_convention import (
    CROSS,
    POSITION_AXIS,
    SOURCE_LENGTH,
    as_plain_ids,
)

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan

#: Names of the entry, and of the inputs that it may have.
ENCODE, SOURCE_IDS, SOURCE_FEATURES = "encode", "input_ids", "input_features"

#: The key in a plan's metadata.
_KEY = "encoder"


class EncoderConvention(NamedTuple):
    """Sizes of an encoder and first tokens of its decoder, as their plan records them.

    Attributes
    ----------
    vocabulary : int
        The number of tokens of a source; 0 if it is a spectrogram.
    positions : int
        The most positions of a source.
    decoder_input_ids : tuple of int
        The tokens with which the decoder begins, unless a request says otherwise.
    """

    vocabulary: int
    positions: int
    decoder_input_ids: tuple[int, ...]

    def recorded(self, plan: Plan) -> Plan:
        """Return the plan with these sizes in its metadata.

        Raises
        ------
        InputError
            If it does not.
        """
        data = {**self._asdict(), "decoder_input_ids": list(self.decoder_input_ids)}
        made = plan._replace(metadata={**plan.metadata, _KEY: data})
        read_encoder(made, self.vocabulary or max(self.decoder_input_ids) + 1)
        return made


class SourceEncoder(NamedTuple):
    """The recorded sizes and the input of a plan's encoder.

    Attributes
    ----------
    convention : EncoderConvention
    input : str
        The name of the input.
    shape : tuple of size
        Its shape.
    """

    convention: EncoderConvention
    input: str
    shape: tuple[Any, ...]

    def checked(self, source: Any) -> np.ndarray:
        """Return a source as the encoder's input, with one row.

        Parameters
        ----------
        source : sequence of int or numpy.ndarray
            Token ids, or a spectrogram, float32 ``[bins, n]``.

        Raises
        ------
        InputError
            If it is no such thing, or has too many tokens.
        """
        convention = self.convention
        if self.input == SOURCE_IDS:
            ids = as_plain_ids(source, convention.vocabulary, "ids")
            if not 1 <= len(ids) <= convention.positions:
                raise InputError(
                    f"ids: expected a source of 1 to {convention.positions} tokens, the positions "
                    f"of the encoder, got {len(ids)}"
                )
            return np.array([ids], np.int64)
        expected = (*map(int, self.shape[1:]),)
        if getattr(source, "dtype", None) != np.float32 or source.shape != expected:
            found = getattr(source, "shape", None)
            got = describe(source) if found is None else f"{source.dtype} of shape {found}"
            raise InputError(f"ids: expected a spectrogram, float32 of shape {expected}, got {got}")
        return np.ascontiguousarray(source[None])


def read_encoder(plan: Plan, words: int) -> SourceEncoder | None:
    """Return a plan's encoder; None if the plan is a decoder alone.

    Parameters
    ----------
    plan : Plan
    words : int
        The number of the decoder's tokens.

    Raises
    ------
    InputError
        If its entry or its states are not as recorded.
    """
    data = plan.metadata.get(_KEY)
    if data is None and ENCODE not in plan.entries:
        return None
    if not isinstance(data, dict) or data.keys() != {*EncoderConvention._fields}:
        expected = ", ".join(EncoderConvention._fields)
        raise InputError(f"metadata.{_KEY}: expected an object with {expected}, got {data!r:.80}")
    vocabulary, positions, ids = (data[name] for name in EncoderConvention._fields)
    for name, value, least in (("vocabulary", vocabulary, 0), ("positions", positions, 1)):
        if type(value) is not int or value < least:
            raise InputError(
                f"metadata.{_KEY}.{name}: expected an int of at least {least}, got "
                f"{describe(value)}"
            )
    if not isinstance(ids, list) or not ids:
        raise InputError(
            f"metadata.{_KEY}.decoder_input_ids: expected a list of ids, got {describe(ids)}"
        )
    start = as_plain_ids(ids, words, f"metadata.{_KEY}.decoder_input_ids")
    return _checked_ends(plan, EncoderConvention(vocabulary, positions, tuple(start)))


def _checked_ends(plan: Plan, convention: EncoderConvention) -> SourceEncoder:
    """Return the encoder of a plan whose entry and states are as recorded."""
    if ENCODE not in plan.entries:
        raise InputError(f"plan: expected an entry {ENCODE!r}, got {[*plan.entry_names]}")
    entry = plan.entry(ENCODE)
    name = SOURCE_IDS if convention.vocabulary else SOURCE_FEATURES
    dtype, rank = ("int64", 2) if convention.vocabulary else ("float32", 3)
    spec = entry.tensors.get(name)
    if entry.inputs != (name,) or spec is None or (spec.dtype, len(spec.shape)) != (dtype, rank):
        got = ", ".join(
            f"{n}: {entry.tensors[n].dtype}{[*entry.tensors[n].shape]}" for n in entry.inputs
        )
        raise InputError(
            f"entry {ENCODE!r}: expected one input {name!r}, {dtype} of rank {rank}, got {got}"
        )
    if name == SOURCE_FEATURES and not all(map(is_static, spec.shape[1:])):
        raise InputError(
            f"entry {ENCODE!r}: input {name!r}: expected [rows, bins, n] of fixed size, got "
            f"{[*spec.shape]}"
        )
    for state in entry.states:
        shape = plan.tensors[state].shape
        is_cross = state.startswith(CROSS) and len(shape) == 4
        if not (
            (is_cross and shape[POSITION_AXIS] == convention.positions)
            or (state == SOURCE_LENGTH and len(shape) == 1)
        ):
            raise InputError(
                f"state {state!r} of entry {ENCODE!r}: expected {CROSS}keys or {CROSS}values, "
                f"[rows, heads, {convention.positions}, width], or {SOURCE_LENGTH}, [rows], got "
                f"{[*shape]}"
            )
    return SourceEncoder(convention, name, spec.shape)
