"""Decide which weight gets which scheme, and quantize the weights of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.quantization.rounding import round_matrix
from taper_frontend.compiler.quantization.schemes import parse_scheme
from taper_frontend.compiler.quantization.weights import find_weights, quantize_weight
from taper_frontend.errors import ExportError
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_frontend.compiler.graph.constants import Constant
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.quantization.schemes import QuantizationConfig, Scheme
    from taper_frontend.compiler.quantization.weights import FloatWeight, Layer


def quantize_weights(
    graph: Graph, names: Mapping[Constant, tuple[str, ...]], options: QuantizationConfig
) -> list[Layer]:
    """Store the float weights of a graph in fewer bits.

    Parameters
    ----------
    graph : Graph
        Changed in place.
    names : mapping of Constant to tuple of str
        The names of the parameters that constants are made of.
    options : QuantizationConfig

    Returns
    -------
    list of Layer
        One for each weight, those left as they are included.

    Raises
    ------
    ExportError
        If weights cannot have their scheme; the message has a line for each of them. Also if
        ``max_bytes`` cannot be kept, or a pattern of ``layers`` matches no weight.
    """
    weights, left = find_weights(graph, names)
    known = [name for weight in weights for name in weight.names]
    known += [name for layer in left for name in layer.name.split(" + ")]
    options.check_patterns(known)
    schemes = _choose(weights, options)
    layers: list[Layer] = []
    refused: list[str] = []
    for weight, scheme in zip(weights, schemes, strict=True):
        try:
            layer = quantize_weight(
                weight, scheme, search=options.search, activations=options.activations
            )
            layers.append(layer)
        except ExportError as error:
            refused.append(str(error))
    if refused:
        raise ExportError("\n".join(refused))
    return [*layers, *left]


def _choose(weights: Sequence[FloatWeight], options: QuantizationConfig) -> list[Scheme]:
    """Return the scheme of each weight."""
    named = [options.named(weight.names) for weight in weights]
    if options.max_bytes is None and options.max_error is None:
        chosen = [options.default if scheme is None else scheme for scheme in named]
        return [weight.served(s) for weight, s in zip(weights, chosen, strict=True)]
    offers = [
        _offers(weight, options) if scheme is None else [_offer(weight, scheme, options)]
        for weight, scheme in zip(weights, named, strict=True)
    ]
    if options.max_error is not None:
        limit = options.max_error
        return [next((o for o in each if o.error <= limit), each[-1]).scheme for each in offers]
    assert options.max_bytes is not None
    return _within(offers, options.max_bytes)


class _Offer(NamedTuple):
    """A scheme for a weight, its bytes and the sum of squared errors."""

    scheme: Scheme
    nbytes: float
    error: float
    lost: float


def _offers(weight: FloatWeight, options: QuantizationConfig) -> list[_Offer]:
    """Return the schemes that a weight can have, narrowest first; a wider one has less error."""
    schemes = {weight.served(parse_scheme(text)) for text in options.choices}
    rows = weight.shape[0]
    fitting = [s for s in schemes if not s.group or rows % s.group == 0]
    offers = [_offer(weight, scheme, options) for scheme in fitting]
    if not offers:
        raise ExportError(
            f"weight {weight.name!r}: expected one of {', '.join(options.choices)} whose groups "
            f"divide its {rows} rows"
        )
    offers.sort(key=lambda offer: offer.nbytes)
    kept = offers[:1]
    for offer in offers[1:]:
        if offer.lost < kept[-1].lost:
            kept.append(offer)
    return kept


def _offer(weight: FloatWeight, scheme: Scheme, options: QuantizationConfig) -> _Offer:
    scheme = weight.served(scheme)
    nbytes = scheme.bytes(*weight.shape)
    if scheme.dtype != "int":
        return _Offer(scheme, nbytes, 0.0, 0.0)  # next to that of integers
    matrix = weight.matrix()
    error = round_matrix(matrix, scheme, search=options.search, name=weight.name).error
    return _Offer(scheme, nbytes, error, error**2 * float((matrix**2).sum()))


def _within(offers: Sequence[Sequence[_Offer]], limit: int) -> list[Scheme]:
    """Widen the schemes that lose most for their bytes, while all fit into ``limit`` bytes."""
    places = [0] * len(offers)
    used = sum(each[0].nbytes for each in offers)
    if used > limit:
        raise ExportError(
            f"max_bytes: expected at least {int(used)}, which the narrowest schemes need, "
            f"got {limit}"
        )
    while True:
        best, gain = None, 0.0
        for index, each in enumerate(offers):
            if places[index] + 1 == len(each):
                continue
            now, wider = each[places[index] : places[index] + 2]
            more = wider.nbytes - now.nbytes
            if used + more <= limit and (now.lost - wider.lost) / more > gain:
                best, gain = index, (now.lost - wider.lost) / more
        if best is None:
            return [each[place].scheme for each, place in zip(offers, places, strict=True)]
        now, wider = offers[best][places[best] : places[best] + 2]
        used += wider.nbytes - now.nbytes
        places[best] += 1
