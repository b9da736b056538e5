"""Describe each field of a plan once: its key in the file, how it is written and read, its feature.

Writer, reader and the list of features follow from :data:`PLAN_FIELDS`, :data:`ENTRY_FIELDS` and
:data:`ARRAY_FIELDS`; docs/adding-a-format-feature.md adds fields. What gives the others their names
(tensors, nodes, samples, entries) is not in the tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.checks import WEIGHT_PREFIX, fail, tensor_field
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import Size, variables
from taper_runtime.file.json_objects import check_object, items_of, items_or_none
from taper_runtime.file.plain_data import from_json, to_json
from taper_runtime.file.stored_recipes import read_recipes, write_recipes
from taper_runtime.plan.features import SHOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    import numpy as np

    from taper_runtime.plan.plan import Entry, Plan
    from taper_runtime.plan.replaceable import WeightSpec


class FileField(NamedTuple):
    """One field of a plan or an entry, and its form in the file.

    Attributes
    ----------
    name : str
        Name of the attribute of :class:`.Plan`, and of the key in the file.
    write : callable
        ``(value, path) -> JSON``, the same for equal values; errors name ``path``.
    read : callable or None
        ``(JSON, path) -> value``; it raises PlanFormatError for a value of another type.
        :func:`~taper_runtime.plan.validate.validate` checks the values inside. None if the reader
        needs the field before the nodes, and reads it together with them.
    feature : str
        The feature that a plan lists under ``features`` if the field is not empty; "" if every
        reader knows the field.
    optional : bool
        Whether the key is left out if all fields of the feature are empty.
    """

    name: str
    write: Callable[[Any, str], Any]
    read: Callable[[Any, str], Any] | None
    feature: str = ""
    optional: bool = False


class ArrayField(NamedTuple):
    """One field of a plan that is arrays by name, which the file has as tensors.

    Attributes
    ----------
    name : str
        Of the attribute of :class:`.Plan`, a mapping of str to array.
    prefix : str
        What stands before the names in the file.
    feature : str
        As of :class:`FileField`. Only where a file lists it are tensors of the prefix this field's.
    dtype : callable
        ``(plan, name) -> str``: Taper's dtype of an array, as numpy's may not tell.
    """

    name: str
    prefix: str
    feature: str
    dtype: Callable[[Plan, str], str]


# -- weights ---------------------------------------------------------------------------------------

_WEIGHT_KEYS = frozenset({"kind", "dtype", "shape"})
_WEIGHT_OPTIONS = frozenset({"complex", "aliases"})


def _write_weights(weights: Mapping[str, WeightSpec], path: str) -> dict[str, Any]:
    return {name: _write_weight(weights[name]) for name in sorted(weights)}


def _write_weight(spec: WeightSpec) -> dict[str, Any]:
    written: dict[str, Any] = {"kind": spec.kind, "dtype": spec.dtype, "shape": spec.shape}
    if spec.is_complex:
        written["complex"] = True
    if spec.aliases:
        written["aliases"] = spec.aliases
    return written


def _read_weights(item: Any, path: str) -> dict[str, WeightSpec]:
    if not _read_object(item, path):
        fail(path, "expected no key 'weights' for an empty object", item)
    return {name: _read_weight(name, weight) for name, weight in item.items()}


def _read_weight(name: str, item: Any) -> WeightSpec:
    from taper_runtime.plan.replaceable import WeightSpec  # which most plans do not need

    try:
        check_object(item, _WEIGHT_KEYS, "plan", _WEIGHT_OPTIONS)
        if "complex" in item and item["complex"] is not True:
            fail("plan.complex", "expected true or no key 'complex'", item["complex"])
        aliases = items_or_none(item, "aliases") if "aliases" in item else ()
        shape = items_of(item, "shape")
    except PlanFormatError as error:
        raise error.within(f"plan.weights[{name!r}]") from error
    return WeightSpec(name, item["kind"], item["dtype"], shape, "complex" in item, aliases)


# -- sizes and states ------------------------------------------------------------------------------


def size_text(value: Any) -> Any:
    """Return a size as it is written in the file: an expression as its text."""
    return str(value) if isinstance(value, Size) else value


def _write_sizes(sizes: Mapping[str, tuple[int, int]], path: str) -> dict[str, Any]:
    """Write the size variables, each after those that limit it."""
    depths: dict[str, int] = {}
    # the sizes of a plan, which are already in such an order
    for name, (_, limit) in sizes.items():
        depths[name] = 1 + max((depths[atom.text] for atom in variables(limit)), default=0)
    return {
        name: [size_text(limit) for limit in sizes[name]]
        for name in sorted(sizes, key=lambda name: (depths[name], name))
    }


def _write_origins(origins: Mapping[str, tuple[str, int]], path: str) -> dict[str, Any]:
    return {name: list(origins[name]) for name in sorted(origins)}


def _read_origins(item: Any, path: str) -> dict[str, Any]:
    return {
        name: tuple(origin) if type(origin) is list else origin
        for name, origin in _read_object(item, path).items()
    }


def _write_states(states: Mapping[str, str], path: str) -> dict[str, str]:
    return {name: states[name] for name in sorted(states)}


def _read_object(item: Any, path: str) -> dict[str, Any]:
    if type(item) is not dict:
        fail(path, "expected an object", item)
    value: dict[str, Any] = item
    return value


# -- the tables ------------------------------------------------------------------------------------

#: Fields that a plan has once, in the order of the file; they follow ``default``.
PLAN_FIELDS = (
    FileField("weights", _write_weights, _read_weights, "weights", optional=True),
    FileField("derived", write_recipes, read_recipes, "weights", optional=True),
)

#: Fields that each entry has, in the order of the file; they follow its tensors.
ENTRY_FIELDS = (
    FileField("input_tree", to_json, from_json),
    FileField("output_tree", to_json, from_json),
    FileField("states", _write_states, _read_object),
    FileField("sizes", _write_sizes, None),
    FileField("origins", _write_origins, _read_origins, "origins"),
)

#: Arrays that a plan has once; those without a prefix come first.
ARRAY_FIELDS = (
    ArrayField("constants", "", "", lambda plan, name: plan.tensors[name].storage.dtype),
    ArrayField("originals", WEIGHT_PREFIX, "weights", lambda plan, name: plan.weights[name].dtype),
    ArrayField("assets", "asset/", "assets", lambda plan, name: "uint8"),
)

#: The names of the fields that have nothing to do with constants: a plan that is made of another
#: keeps them as they are.
KEPT_FIELDS = tuple(
    field.name
    for field in (*PLAN_FIELDS, *ARRAY_FIELDS)
    if field.feature != "weights" and field.name != "constants"
)

#: All that plans of this version may make use of, in alphabetical order.
FEATURES = tuple(
    sorted({*SHOWN, *(f.feature for f in (*PLAN_FIELDS, *ENTRY_FIELDS, *ARRAY_FIELDS))} - {""})
)


def features(plan: Plan) -> list[str]:
    """Return the features that a plan uses, in alphabetical order."""
    used = {name for name, is_used in SHOWN.items() if is_used(plan)}
    used |= {f.feature for f in (*PLAN_FIELDS, *ARRAY_FIELDS) if getattr(plan, f.name)}
    for entry in (plan, *plan.entries.values()):
        used |= {field.feature for field in ENTRY_FIELDS if getattr(entry, field.name)}
    return [name for name in FEATURES if name in used]


def keys(fields: tuple[FileField, ...], *, optional: bool) -> frozenset[str]:
    """Return the keys that are required, or those that are optional."""
    return frozenset(field.name for field in fields if field.optional == optional)


def write_fields(
    item: Plan | Entry, fields: tuple[FileField, ...], path: str
) -> Iterator[tuple[str, Any]]:
    """Yield the key and the JSON of each field that a plan or an entry has in the file."""
    used = {field.feature for field in fields if field.optional and getattr(item, field.name)}
    for field in fields:
        if not field.optional or field.feature in used:
            yield field.name, field.write(getattr(item, field.name), f"{path}.{field.name}")


def read_fields(item: dict[str, Any], fields: tuple[FileField, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each field found, without those read with the nodes.

    Raises
    ------
    PlanFormatError
        If a value is wrong, or only some fields of an optional feature are there.
    """
    used = {field.feature for field in fields if field.optional and field.name in item}
    for field in fields:
        if field.name not in item:
            if field.feature in used:
                raise PlanFormatError(f"plan.{field.name}", "is missing")
        elif field.read is not None:
            yield field.name, field.read(item[field.name], f"plan.{field.name}")


def write_arrays(plan: Plan) -> Iterator[tuple[str, np.ndarray, str]]:
    """Yield the name in the file, the value and the dtype of each array that a plan has once.

    Raises
    ------
    PlanFormatError
        If a constant has a name that the file keeps for another field of the plan.
    """
    used = features(plan)
    kept = {field.prefix: field.feature for field in ARRAY_FIELDS if field.feature in used}
    for field in ARRAY_FIELDS:
        for name, array in getattr(plan, field.name).items():
            for prefix, feature in kept.items() if not field.prefix else ():
                if name.startswith(prefix):
                    reason = f"expected another name, because files use this one for {feature}"
                    raise PlanFormatError(tensor_field(name), reason)
            yield field.prefix + name, array, field.dtype(plan, name)


def read_arrays(arrays: dict[str, np.ndarray], features: Collection[str]) -> dict[str, Any]:
    """Return the arrays of each field of a plan that lists these features."""
    first, *others = ARRAY_FIELDS
    found: dict[str, dict[str, np.ndarray]] = {first.name: arrays}
    for field in others:
        if field.feature in features:
            own = [name for name in arrays if name.startswith(field.prefix)]
            found[field.name] = {name.removeprefix(field.prefix): arrays.pop(name) for name in own}
    return found
