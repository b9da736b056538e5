"""Read a plan from a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.buffers import address, aligned_copy, read_only_bytes
from taper_runtime.base.checks import (
    ALIGNMENT,
    MAX_BLOCK_DEPTH,
    METADATA_NAME,
    SAMPLE_PREFIX,
    check_attr_items,
    check_name,
    check_variable,
    describe,
    fail,
    is_integer,
)
from taper_runtime.base.dtypes import FILE_DTYPES
from taper_runtime.base.errors import InputError, PlanFormatError
from taper_runtime.base.file_limits import (
    UNLIMITED,
    Budget,
    Limits,
    check_counts,
    check_limits,
    proofs,
)
from taper_runtime.base.loading import apart_if_large, watched
from taper_runtime.base.option_values import LOAD_MODES
from taper_runtime.base.sizes import variable
from taper_runtime.base.steps import ask, limited
from taper_runtime.base.text import is_one_of
from taper_runtime.file import FORMAT, FORMAT_VERSION
from taper_runtime.file.container import Container, StoredArray, parse_header, parse_json
from taper_runtime.file.fields import (
    ENTRY_FIELDS,
    FEATURES,
    PLAN_FIELDS,
    features,
    keys,
    read_arrays,
    read_fields,
)
from taper_runtime.file.json_objects import check_object, items_of, items_or_none, object_of
from taper_runtime.file.mapping import mapped
from taper_runtime.file.models import choose_model, member, model_names
from taper_runtime.file.plain_data import from_json
from taper_runtime.file.stored_recipes import PROVENANCE, StoredRecipes
from taper_runtime.formats import PLAIN
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import NO_ATTRS
from taper_runtime.plan.plan import (
    Entry,
    Placement,
    Plan,
    PlanBlock,
    PlanNode,
    ReadOnly,
    TensorSpec,
)
from taper_runtime.plan.validate import validate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from mmap import mmap

    from taper_runtime.base.loading import FilePath

_BLOCK_KEYS = frozenset({"inputs", "outputs", "nodes", "tensors"})
_ENTRY_KEYS = _BLOCK_KEYS | keys(ENTRY_FIELDS, optional=False)
_ENTRY_OPTIONS = keys(ENTRY_FIELDS, optional=True)
_PLAN_KEYS = (
    _ENTRY_KEYS
    | {"format_version", "features", "default", "metadata", "entries"}
    | keys(PLAN_FIELDS, optional=False)
)
_NODE_KEYS = frozenset({"op", "inputs", "outputs", "attrs", "source"})
#: The types of JSON values that contain others.
_NESTED = frozenset({dict, list})
#: Keys that are left out if their values are empty.
_PLAN_OPTIONS = _ENTRY_OPTIONS | keys(PLAN_FIELDS, optional=True)
_NODE_OPTIONS = frozenset({"blocks", "targets", "arguments"})
_TENSOR_OPTIONS = frozenset({"format", "complex"})
_TENSOR_KEYS = frozenset({"dtype", "shape", "role", "root", "offset", "strides"})


_DEFAULT = Limits()


def load(
    path: FilePath,
    model: str | None = None,
    *,
    load_mode: str = "map",
    limits: Limits = _DEFAULT,
    check_fingerprint: bool = False,
) -> Plan:
    """Open the plan file at ``path``.

    Parameters
    ----------
    path : path
    model : str, optional
        The plan's name, if the file has several; by default ``"model"``, or the only plan. The
        others are not looked at.
    load_mode : str
        ``"map"``: constants are read-only views of the file, whose pages the system loads when they
        are used and shares between processes. The mapping lives as long as one of them. The file
        may be deleted or replaced meanwhile, but not changed in place: where another process
        truncates it, the system ends this one (SIGBUS), as no page is left to read.
        ``"copy"``: the file is read into memory first; what becomes of it later has no effect.
    limits : Limits
        Limits on the contents; larger files are refused before they cost memory or time.
    check_fingerprint : bool
        Read all weights, and compare the plan's fingerprint with the one that the file's writer
        computed: a file in which a byte has changed that changes results is refused.

    Raises
    ------
    InputError
        If the file has no plan of this name (the message lists those that exist), the mode is
        unknown, or a limit is not a number.
    PlanFormatError
        If the file is not a valid plan file of this version, or exceeds the limits, or its plan has
        another fingerprint than the file says.
    OSError
        If it cannot be opened, or is no regular file: a folder, a device, a named pipe.
    MemoryError
        If there is no memory for the parts that are not mapped: nodes, and unaligned constants.
    """
    if not is_one_of(load_mode, LOAD_MODES):
        modes = " or ".join(map(repr, LOAD_MODES))
        raise InputError(f"load_mode: expected {modes}, got {load_mode!r}")
    check_limits(limits)
    with mapped(path, limits.copied_bytes if load_mode == "copy" else None) as buffer:
        return loads(buffer, model, limits=limits, check_fingerprint=check_fingerprint)


def load_all(path: FilePath) -> dict[str, Plan]:
    """Open all plans of the file at ``path``, by name; see :func:`load`."""
    with mapped(path) as buffer:
        header, document = _parse(buffer, UNLIMITED)
        return {
            name: _read(buffer, header, document, name, UNLIMITED) for name in model_names(document)
        }


def list_models(path: FilePath) -> list[str]:
    """Return the names of the plans in the file at ``path``, for ``model`` of :func:`load`.

    Raises
    ------
    PlanFormatError
        If it is not a plan file of this version.
    OSError
        As :func:`load`.
    """
    with mapped(path) as buffer:
        _, document = _parse(buffer, _DEFAULT)
        return model_names(document)


def loads(
    buffer: bytes | mmap,
    model: str | None = None,
    *,
    limits: Limits = _DEFAULT,
    check_fingerprint: bool = False,
) -> Plan:
    """Return the plan in ``buffer``, a whole file; its constants are views of ``buffer``.

    Raises
    ------
    InputError, PlanFormatError
        As :func:`load`.
    """
    header, document = _parse(buffer, check_limits(limits))
    plan = _read(buffer, header, document, model, limits)
    if check_fingerprint:
        name = choose_model(document, header.entries, model)[0]
        key = member("fingerprint", name, document)
        _check_fingerprint(plan, f"header.{METADATA_NAME}.{key}", header.metadata.get(key))
    return plan


def _check_fingerprint(plan: Plan, field: str, stored: str | None) -> None:
    """Raise a PlanFormatError unless the plan has the fingerprint that its file has in a field."""
    if stored is None:
        raise PlanFormatError(field, "fingerprint_unavailable: the file has none to compare with")
    computed = plan.fingerprint()
    if computed != stored:
        raise PlanFormatError(
            field,
            f"fingerprint_mismatch: expected {computed}, which nodes and weights have, got "
            f"{describe(stored)}: the file was changed after it was written",
        )


def _parse(buffer: bytes | mmap, limits: Limits) -> tuple[Container, Any]:
    """Return a file's header, and its document after checking the version."""
    header = parse_header(buffer, limits)
    metadata = header.metadata
    field = f"header.{METADATA_NAME}"
    if metadata.get("format") != FORMAT:
        raise PlanFormatError(
            f"{field}.format" if metadata else field,
            f"expected a .taper file, got a safetensors file without a plan; its format is "
            f"{describe(metadata.get('format'))}",
        )
    if "plan" not in metadata:
        fail(f"{field}.plan", "expected the JSON of a plan", None)
    document = parse_json(metadata["plan"], "plan")
    check_counts(document, limits)
    _check_version(document)
    return header, document


def _read(
    buffer: bytes | mmap,
    header: Container,
    document: Any,
    model: str | None,
    limits: Limits,
) -> Plan:
    """Return one plan of a file; errors name fields by their full paths in the file."""
    whole = document
    model, document, stored, field = choose_model(document, header.entries, model)
    recipes = header.metadata.get(member(PROVENANCE, model, whole))
    try:
        if document is not whole:
            check_counts(document, limits)
        with limited(proofs(limits)):
            plan = _read_plan(buffer, document, stored, limits)
    except PlanFormatError as error:
        raise error.within(field) from error
    return plan if recipes is None else plan._replace(provenance=StoredRecipes(recipes))


def _read_plan(
    buffer: bytes | mmap, document: Any, stored: Mapping[str, StoredArray], limits: Limits
) -> Plan:
    """Build a plan from its own document, and from its tensors by the names in it."""
    arrays, samples = {}, {}
    base = address(buffer)
    for name, entry in watched(stored.items()):
        array = map_array(buffer, entry, base)
        if name.startswith(SAMPLE_PREFIX):
            samples[name.removeprefix(SAMPLE_PREFIX)] = array
        else:
            arrays[name] = array
    chars = Budget("plan", "expression_chars", limits.expression_chars)
    plan = _from_document(document, arrays, samples, chars)
    validate(plan, limits)
    if document["features"] != features(plan):
        fail(
            "plan.features",
            f"expected the features that the plan uses, {features(plan)}",
            document["features"],
        )
    return plan.read_only()


def map_array(buffer: bytes | mmap, entry: StoredArray, base: int) -> np.ndarray:
    """View an entry's bytes, or copy them if another tool left them unaligned.

    ``base`` is the address of the buffer.
    """
    storage = FILE_DTYPES[entry.dtype].storage
    # memory that a file was copied to is writable
    array = np.ndarray(entry.shape, storage, read_only_bytes(buffer), entry.start)
    boundary = storage.itemsize if array.nbytes % ALIGNMENT else ALIGNMENT
    return apart_if_large(aligned_copy, array) if (base + entry.start) % boundary else array


def _check_version(document: Any) -> None:
    if type(document) is not dict:
        fail("plan", "expected an object", document)
    version = document.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        hint = ""
        if is_integer(version):
            older = "an older Taper wrote the file; export the model again"
            hint = f" ({older if version < FORMAT_VERSION else 'a newer Taper wrote the file'})"
        fail("plan.format_version", f"expected {FORMAT_VERSION}{hint}", version)


def _from_document(
    document: Any,
    arrays: dict[str, np.ndarray],
    samples: dict[str, np.ndarray],
    chars: Budget,
) -> Plan:
    """Build the plan from its JSON. :func:`validate` checks the values inside."""
    _check_version(document)
    listed = items_of(document, "features") if "features" in document else ()
    for index, feature in enumerate(listed):
        if feature not in FEATURES:
            known = ", ".join(FEATURES)
            fail(
                f"plan.features[{index}]",
                f"expected a feature that this version knows ({known})",
                feature,
            )
    check_object(document, _PLAN_KEYS, "plan", _PLAN_OPTIONS)
    # features that it does not list are told of when it has been read
    hidden = [field.feature for field in PLAN_FIELDS if field.name in document]
    metadata = from_json(document["metadata"], "plan.metadata")
    if type(metadata) is not dict:
        fail("plan.metadata", "expected an object", metadata)
    check_name(document["default"], "plan.default")
    entries = object_of(document, "entries")
    by_entry = _samples_by_entry(samples, [document["default"], *entries] if entries else [])
    default = _entry(document, by_entry.get(document["default"], samples), chars)
    return Plan(
        **default._asdict(),
        metadata=metadata,
        default=document["default"],
        entries={n: _other(n, item, by_entry[n], chars) for n, item in entries.items()},
        **dict(read_fields(document, PLAN_FIELDS)),
        **read_arrays(arrays, {*listed, *hidden}),
    )


def _other(name: str, item: Any, samples: dict[str, np.ndarray], chars: Budget) -> Entry:
    """Return an additional entry."""
    try:
        return _entry(check_object(item, _ENTRY_KEYS, "plan", _ENTRY_OPTIONS), samples, chars)
    except PlanFormatError as error:
        raise error.within(f"plan.entries[{name!r}]") from error


def _samples_by_entry(
    samples: dict[str, np.ndarray], entries: list[Any]
) -> dict[Any, dict[str, np.ndarray]]:
    """Return the samples of each entry; empty if the plan has only one entry."""
    found: dict[Any, dict[str, np.ndarray]] = {name: {} for name in entries if type(name) is str}
    for name, array in samples.items() if entries else ():
        entry, _, sample = name.partition("/")
        if entry not in found:
            raise PlanFormatError(
                f"plan.samples[{name!r}]", "expected the name of an entry before '/'"
            )
        found[entry][sample] = array
    return found


def _entry(item: dict[str, Any], samples: dict[str, np.ndarray], chars: Budget) -> Entry:
    origins = object_of(item, "origins")
    sizes, expressions = _sizes(item["sizes"], origins, chars)
    return Entry(
        *_block(item, expressions, 0),
        samples=samples,
        sizes=sizes,
        **dict(read_fields(item, ENTRY_FIELDS)),
    )


def _sizes(
    item: Any, origins: Mapping[str, Any], chars: Budget
) -> tuple[dict[str, tuple[int, int]], _Expressions]:
    """Return the ranges of the size variables, and the parser of their expressions."""
    if type(item) is not dict:
        fail("plan.sizes", "expected an object", item)
    ranges: dict[str, tuple[int, int]] = {}
    known: dict[str, int] = {}
    for name, limits in item.items():
        if type(limits) is list:
            field = f"plan.sizes[{name!r}].most"
            limits = _parse_sizes(tuple(limits), _Expressions(known, chars), field)
        check_variable(name, limits, is_computed=name in origins)
        ranges[name] = limits
        known[name] = variable(name, *limits)
    return ranges, _Expressions(known, chars)


class _Expressions(dict[str, int]):
    """The size expressions of a plan by text; each is parsed when it is first looked up.

    Parameters
    ----------
    known : mapping of str to size
        The variables.
    chars : Budget
        The quota of characters of all texts.
    """

    def __init__(self, known: Mapping[str, int], chars: Budget) -> None:
        self._known = known
        self.chars = chars

    def __missing__(self, text: str) -> int:
        # imported here because most plans do not need it
        from taper_runtime.file.expression import parse

        self.chars.spend(len(text))
        size = self[text] = ask(lambda text: parse(text, self._known), text)
        return size


def _parse_size(value: Any, expressions: _Expressions, field: str) -> Any:
    """Return the expression of a string; other values are checked elsewhere."""
    if type(value) is not str:
        return value
    try:
        return expressions[value]
    except ValueError as error:
        raise PlanFormatError(field, f"{error}, got {describe(value)}") from error


def _parse_sizes(values: tuple[Any, ...], expressions: _Expressions, field: str) -> tuple[Any, ...]:
    """Parse each of ``values`` with :func:`_parse_size`."""
    if str not in map(type, values):
        return values
    return tuple([_parse_size(value, expressions, field) for value in values])


def _block(item: dict[str, Any], expressions: _Expressions, depth: int) -> PlanBlock:
    """Build the common part of a plan and a block; ``item`` has the keys.

    Parts of ``item`` are deleted after reading, because deleting everything at once takes long.
    """
    tensors: dict[str, TensorSpec] = {}
    placements: dict[str, Placement] = {}
    described = object_of(item, "tensors")
    for name, tensor in watched(described.items()):
        try:
            tensors[name], placements[name] = _tensor(name, tensor, expressions)
        except PlanFormatError as error:
            raise error.within(f"plan.tensors[{name!r}]") from error
        described[name] = None
    nodes: list[PlanNode] = []
    items_of(item, "nodes")
    for step, node in enumerate(watched(item["nodes"])):
        try:
            nodes.append(_node(node, expressions, depth))
        except PlanFormatError as error:
            raise error.within(f"plan.nodes[{step}]") from error
        item["nodes"][step] = None
    ends = items_of(item, "inputs"), items_of(item, "outputs")
    return PlanBlock(tuple(nodes), tensors, placements, *ends)


def _tensor(name: str, item: Any, expressions: _Expressions) -> tuple[TensorSpec, Placement]:
    check_object(item, _TENSOR_KEYS, "plan", _TENSOR_OPTIONS)
    shape = _parse_sizes(items_of(item, "shape"), expressions, "plan.shape")
    strides = _parse_sizes(items_of(item, "strides"), expressions, "plan.strides")
    offset = _parse_size(item["offset"], expressions, "plan.offset")
    format = item.get("format", PLAIN)
    if format == PLAIN and "format" in item:
        fail("plan.format", f"expected no key 'format' for format {PLAIN}", format)
    is_complex = item.get("complex", False)
    if is_complex is not True and "complex" in item:
        fail("plan.complex", "expected true or no key 'complex'", is_complex)
    spec = TensorSpec(name, item["dtype"], shape, item["role"], format, is_complex)
    return spec, Placement(item["root"], offset, strides)


def _node(item: Any, expressions: _Expressions, depth: int) -> PlanNode:
    check_object(item, _NODE_KEYS, "plan", _NODE_OPTIONS)
    return PlanNode(
        item["op"],
        items_of(item, "inputs"),
        items_of(item, "outputs"),
        _attrs(item, expressions),
        item["source"],
        _blocks(item, expressions, depth) if "blocks" in item else (),
        items_or_none(item, "targets") if "targets" in item else (),
        # null is not left out: it is refused like any other value that is not the JSON of an object
        ("" if item["arguments"] is None else item["arguments"]) if "arguments" in item else None,
    )


def _attrs(item: dict[str, Any], expressions: _Expressions) -> ReadOnly:
    """Return a node's attrs, with size expressions parsed if the op allows them.

    The op checks all other values (:meth:`.OpDef.complete`).
    """
    op = item["op"]
    declared = REGISTRY[op].attrs if type(op) is str and op in REGISTRY else NO_ATTRS
    attrs = {}
    for name, value in object_of(item, "attrs").items():
        check_attr_items(value, f"plan.attrs.{name}")
        if type(value) is dict or (
            type(value) is list and not _NESTED.isdisjoint(map(type, value))
        ):
            value = from_json(value, f"plan.attrs.{name}")
        if type(value) is list:
            value = tuple(value)
        if name in declared and declared[name].sized:
            field = f"plan.attrs.{name}"
            parse = _parse_sizes if type(value) is tuple else _parse_size
            value = parse(value, expressions, field)
        attrs[name] = value
    return ReadOnly(attrs)


def _blocks(item: dict[str, Any], expressions: _Expressions, depth: int) -> tuple[PlanBlock, ...]:
    if depth >= MAX_BLOCK_DEPTH:
        fail("plan.blocks", f"expected at most {MAX_BLOCK_DEPTH} levels of blocks", item["blocks"])
    blocks: list[PlanBlock] = []
    for block in items_or_none(item, "blocks"):
        try:
            blocks.append(_block(check_object(block, _BLOCK_KEYS, "plan"), expressions, depth + 1))
        except PlanFormatError as error:
            raise error.within(f"plan.blocks[{len(blocks)}]") from error
    return tuple(blocks)
