"""Choose the formats of weights that are packed when a session is opened.

A recipe that ends in a PACK tells from which plain weight a packed one is made, and in which
format. On another CPU, or for other sizes, another format may be faster. Of the formats that all
readers of the weight accept, the one with the least estimated time is chosen.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from taper_runtime.base.errors import InputError, OpError, UnsupportedOpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.executor.executor import definition, input_types, output_types
from taper_runtime.executor.offers import find_offers
from taper_runtime.executor.program import example_sizes
from taper_runtime.executor.sites import Site, sites
from taper_runtime.executor.tuned_choice import TunedChoice, Way, fastest, offer_name
from taper_runtime.file.measurements import Quartiles
from taper_runtime.formats import FAMILIES, PLAIN, family, find
from taper_runtime.machine.choices import estimate_ns, least_estimate
from taper_runtime.machine.limits import typical
from taper_runtime.native import _kernels
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.features import with_inner
from taper_runtime.plan.plan import Placement
from taper_runtime.plan.replaceable import (
    completed,
    direct_weight,
    folded,
    is_packed,
    weight_values,
    weights_needed,
)
from taper_runtime.plan.specialize import specialize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from taper_runtime.extend.providers import Dispatch
    from taper_runtime.machine.choices import ChosenNode
    from taper_runtime.machine.limits import MachineLimits
    from taper_runtime.ops.opdef import TensorType
    from taper_runtime.plan.plan import Entry, Plan, PlanBlock, TensorSpec


def plan_to_run(
    plan: Plan, dispatch: Dispatch, *, fold: bool, packs: bool, other_bits: bool
) -> Plan:
    """Return the plan as a session runs it, with all its constants.

    Parameters
    ----------
    plan : Plan
    dispatch : Dispatch
        What computes nodes.
    fold : bool
        Whether to compute all constants with a recipe, rather than only those that the plan lacks.
    packs : bool
        Whether to pack weights for this machine: see :func:`packed_for_machine`.
    other_bits : bool
        As for :func:`packed_for_machine`.

    Raises
    ------
    InputError
        If the plan lacks the plain weights for that, or an op refuses the values of the weights.
    """
    if fold and not plan.weights:
        raise InputError(
            "runtime_const_folding: expected False, because the weights of the plan are fixed; "
            "export the module with weights='replaceable'"
        )
    if packs:
        for name in plan.constants.keys() - plan.derived.keys() - plan.states.keys():
            if is_packed(plan.tensors[name].type):
                raise InputError(
                    f"packing: expected 'stored', because the plan has weight {name!r} only in "
                    f"format {plan.tensors[name].format}; export the module with packing='at_open'"
                )
        plan = packed_for_machine(plan, dispatch, other_bits=other_bits)
    return folded(plan) if fold else completed(plan)


def made_at_open(plan: Plan, stored: Mapping[str, np.ndarray]) -> frozenset[str]:
    """Return the constants that :func:`plan_to_run` computed, given those ``stored`` before."""
    return frozenset(
        name
        for name, recipe in plan.derived.items()
        if direct_weight(recipe) is None and plan.constants[name] is not stored.get(name)
    )


class _Way(NamedTuple):
    """One way to compute a node."""

    kernel: str
    variant: str | None
    ns: float  # estimated
    told: ChosenNode
    times: Quartiles | None  # measured
    trips: int


def packed_for_machine(plan: Plan, dispatch: Dispatch, *, other_bits: bool) -> Plan:
    """Return the plan with each packed weight in the format that is fastest for its readers.

    Sizes that vary are taken from the samples, and times from the cost model for the machine's ISA
    level. A weight keeps its format if anything other than Taper's kernels reads it.

    Parameters
    ----------
    plan : Plan
        Its result lacks the values of weights with new formats: :func:`.folded` computes them.
    dispatch : Dispatch
        What computes nodes.
    other_bits : bool
        Whether formats are allowed with which nodes get other kernels or variants than before. If
        not, all results have the same bits.

    Raises
    ------
    OptionError
        If measured times are required, and are not known for a weight that may have several
        formats.
    """
    tuned = dispatch.choice if isinstance(dispatch.choice, TunedChoice) else None
    if tuned is not None:  # a node whose times are not known has another format perhaps
        dispatch = dispatch._replace(choice=tuned.not_required())
        other_bits = tuned.other_bits
    formats: dict[str, str] = {}
    for name, ways in _all_ways(plan, dispatch, other_bits=other_bits):
        own = plan.tensors[name].format
        if tuned is None:
            least = _least(ways, own, other_bits=other_bits)
        else:
            least = _measured_least(ways, own, tuned)
        if least != own:
            formats[name] = least
    return _with_formats(plan, formats)


def formats_of_weights(
    plan: Plan, dispatch: Dispatch, *, other_bits: bool
) -> dict[str, dict[str, float]]:
    """Return the formats that each weight may have, its own first, and the time for each.

    A time is the estimate for all readers, in nanoseconds; see :func:`packed_for_machine`.
    """
    found: dict[str, dict[str, float]] = {}
    for name, ways in _all_ways(plan, dispatch, other_bits=other_bits):
        own = ways[plan.tensors[name].format]
        times = {format: _total(own, each, other_bits) for format, each in ways.items()}
        found[name] = {format: ns for format, ns in times.items() if ns < float("inf")}
    return found


def _all_ways(
    plan: Plan, dispatch: Dispatch, *, other_bits: bool
) -> Iterator[tuple[str, dict[str, list[_Way] | None]]]:
    """Yield each packed weight, with the ways of computing its readers by format."""
    limits = typical(_kernels.active_isa(dispatch.isa))
    for name, found in _readers(plan, dispatch, other_bits=other_bits).items():
        own = plan.tensors[name].format
        formats = [own, *_candidates(plan.tensors[name].type, found)]
        yield name, {each: _ways(found, name, each, dispatch, limits) for each in formats}


def _least(ways: Mapping[str, Sequence[_Way] | None], own: str, *, other_bits: bool) -> str:
    """Return the format that is estimated to be fastest; its own if that is about as fast."""
    formats = sorted(ways, key=lambda format: format != own)
    return formats[least_estimate([_total(ways[own], ways[each], other_bits) for each in formats])]


def _measured_least(ways: Mapping[str, Sequence[_Way] | None], own: str, tuned: TunedChoice) -> str:
    """Return the format that was measured to be fastest.

    It must win against the one that is estimated to be fastest among those of the same bits, which
    is also taken if the times of some format are not known.
    """
    default = _least(ways, own, other_bits=False)
    allowed = {
        format: each
        for format, each in ways.items()
        if each is not None and _total(ways[own], each, tuned.other_bits) < float("inf")
    }
    if len(allowed) < 2:
        return default
    names = sorted(allowed, key=lambda format: format != default)
    unknown = [way for format in names for way in allowed[format] if way.times is None]
    if unknown:
        if tuned.required:
            raise tuned.missing(unknown[0].told, f"with weights in {', '.join(names)}")
        return default
    return names[fastest([_sum_of(allowed[format]) for format in names])]


def _sum_of(ways: Sequence[_Way]) -> Quartiles:
    """Return the measured time of all readers; the sum's quartiles are at most so far apart."""
    found = [(way.times, way.trips) for way in ways if way.times is not None]
    return Quartiles(*(sum(times[i] * trips for times, trips in found) for i in range(3)))


def _total(own: Sequence[_Way] | None, ways: Sequence[_Way] | None, other_bits: bool) -> float:
    """Return the time of all readers; infinity if one does not accept the format, or must not."""
    if ways is None:
        return float("inf")
    if not other_bits and (own is None or [way[:2] for way in ways] != [way[:2] for way in own]):
        return float("inf")
    return sum(way.ns for way in ways)


def _readers(plan: Plan, dispatch: Dispatch, *, other_bits: bool) -> dict[str, list[Site]]:
    """Return the nodes that read each packed weight whose recipe ends in a PACK.

    Without ``other_bits``, weights that are read by entries with varying sizes are left out,
    because the kernels for other sizes are not known.
    """
    names = {
        name
        for name, recipe in plan.derived.items()
        if recipe[-1].op == "PACK" and is_packed(plan.tensors[name].type)
    }
    found: dict[str, list[Site]] = {name: [] for name in sorted(names)}
    unknown = Counter[str]()  # reads, less those by nodes that a run computes
    for entry in map(plan.entry, plan.entry_names if names else ()):
        unknown.update(_reads(entry.as_block(), names))
        if entry.sizes and not other_bits:
            continue
        static = specialize(entry, example_sizes(entry))
        for site in sites(static, dispatch):
            for name in names.intersection(site.node.reads):
                unknown[name] -= site.node.reads.count(name)
                found[name].append(site)
        places = entry.placements.items()
        unknown.update(place.root for name, place in places if name != place.root)  # views
    return {name: each for name, each in found.items() if each and not unknown[name]}


def _reads(block: PlanBlock, names: set[str]) -> Iterator[str]:
    """Yield the names that nodes read, also those in blocks, once for each read."""
    for node in with_inner(block.nodes):
        yield from (name for name in node.reads if name in names)
    yield from (name for name in block.outputs if name in names)


def _candidates(type_: TensorType, readers: Sequence[Site]) -> list[str]:
    """Return the formats in which some kernels accept weights; not all suit this weight."""
    formats = [PLAIN, *(example for each in FAMILIES for example in family(each).examples)]
    for site in readers:
        op, attrs = definition(site.node)
        asked = op.packing and op.packing(type_._replace(format=PLAIN), attrs)
        formats += [asked] if asked else []
    known = [each for each in dict.fromkeys(formats) if each == PLAIN or find(each).is_for_kernels]
    return [each for each in known if each != type_.format and _is_storable(each, type_)]


def _is_storable(format: str, type_: TensorType) -> bool:
    try:
        find(format).storage(type_.dtype, type_.shape)
    except OpError:
        return False
    return True


def _ways(
    readers: Sequence[Site], name: str, format: str, dispatch: Dispatch, limits: MachineLimits
) -> list[_Way] | None:
    """Return how each reader would be computed with a weight in a format; None if one cannot be."""
    found = []
    for site in readers:
        way = _way(site, name, format, dispatch, limits)
        if way is None:
            return None
        found.append(way)
    return found


def _way(
    site: Site, name: str, format: str, dispatch: Dispatch, limits: MachineLimits
) -> _Way | None:
    """Return how one reader would be computed with a weight in a format; None if it cannot be."""
    plan, node = site.plan, site.node
    op, attrs = definition(node)
    places = [place for place, each in enumerate(node.inputs) if each == name]
    types = input_types(plan, node)
    strides = [() if each is None else plan.placements[each].strides for each in node.inputs]
    for place in places:
        type_ = types[place]
        if type_ is None or place not in op.formatted:
            return None
        types[place] = type_ = type_._replace(format=format)
        strides[place] = contiguous_strides(type_.storage.shape)
    outputs = output_types(plan, node)
    try:
        if list(op.infer_types(types, attrs)) != outputs:
            return None
        told, *_, offer = find_offers(plan, node, dispatch, types, strides)
    except (OpError, UnsupportedOpError):
        return None
    if offer is None:
        return None
    ns = estimate_ns(told, offer, limits)
    tuned = dispatch.choice if isinstance(dispatch.choice, TunedChoice) else None
    times = None if tuned is None else tuned.times(told, Way(offer_name(offer)))
    return _Way(offer.kernel, offer.variant, site.trips * ns, told, times, site.trips)


def _with_formats(plan: Plan, formats: Mapping[str, str]) -> Plan:
    """Return the plan with packed weights in other formats, without their values."""
    if not formats:
        return plan
    derived, constants = dict(plan.derived), dict(plan.constants)
    values, direct = weight_values(plan), set(map(direct_weight, plan.derived.values()))
    specs: dict[str, TensorSpec] = {}
    for name, format in formats.items():
        *before, pack = plan.derived[name]
        weight = direct_weight(before)
        if format == PLAIN and weight in direct:  # two constants would be one weight
            continue
        steps = before if format == PLAIN else [*before, pack._replace(attrs={"format": format})]
        specs[name], derived[name] = plan.tensors[name]._replace(format=format), tuple(steps)
        constants.pop(name, None)
        if format == PLAIN and weight is not None:
            direct.add(weight)
            constants[name] = values[weight]
    needed = weights_needed(derived) - direct
    return plan._replace(
        **_with_specs(plan.as_block(), specs)._asdict(),
        entries={n: _with_specs(entry, specs) for n, entry in plan.entries.items()},
        derived=derived,
        constants=constants,
        originals={name: values[name] for name in sorted(needed)},
    )


_Stored = TypeVar("_Stored", "PlanBlock", "Entry")


def _with_specs(block: _Stored, specs: Mapping[str, TensorSpec]) -> _Stored:
    """Return a block, or an entry, with other specs of some constants."""
    tensors, placements = dict(block.tensors), dict(block.placements)
    for name in tensors.keys() & specs.keys():
        tensors[name] = specs[name]
        placements[name] = Placement(name, 0, contiguous_strides(specs[name].storage.shape))
    return block._replace(tensors=tensors, placements=placements)
