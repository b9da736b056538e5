"""Join several plans that share weights and states into one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.compiler.planning.join_weights import WeightJoiner, digest
from taper_frontend.errors import ExportError
from taper_runtime.base.checks import check_name
from taper_runtime.file.fields import KEPT_FIELDS
from taper_runtime.plan.plan import STORED, Entry, Placement, Plan, PlanBlock
from taper_runtime.plan.validate import validate

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from taper_runtime.plan.plan import PlanNode, TensorSpec
    from taper_runtime.plan.recipes import RecipeStep


def join_plans(plans: Mapping[str, Plan]) -> Plan:
    """Join several plans into one, with an entry for each.

    Constants of equal type, format and bytes are merged, whatever their names. Constants that
    depend on replaceable weights are merged if they are computed alike. States of the same name are
    shared: each entry continues with the value that the others left.

    Parameters
    ----------
    plans : mapping of str to Plan
        Plans with one entry each, such as exports of parts of one model, by the names of the
        entries. The first one is the default entry, and its metadata are kept.

    Returns
    -------
    Plan

    Raises
    ------
    ExportError
        If there is no plan, a plan has several entries, a state of one plan is a constant in
        another (whose results would not change with the state), or states, weights or items of
        other shared fields with the same name differ.
    PlanFormatError
        If an entry's name is not an identifier.
    """
    if not plans:
        raise ExportError("plans: expected at least one")
    for name, plan in plans.items():
        check_name(name, f"plan.entries[{name!r}]")
        if plan.entries:
            raise ExportError(f"{name}: expected a plan of one entry, got {len(plan.entry_names)}")
    _check_states(plans)
    joiner = _Joiner(plans)
    entries = {name: joiner.entry(plan) for name, plan in plans.items()}
    (default, first), *others = entries.items()
    plan = Plan(
        **{
            **first._asdict(),
            "tensors": {**first.tensors, **joiner.tensors},
            "placements": {**first.placements, **joiner.placements},
        },
        constants=joiner.constants,
        metadata=plans[default].metadata,
        provenance=plans[default].provenance,
        default=default,
        entries=dict(others),
        **{**_shared_fields(plans), **joiner.weights()},
    )
    validate(plan)
    return plan.read_only()


def _check_states(plans: Mapping[str, Plan]) -> None:
    """Check that states with one name agree, and that no plan has a state as a constant."""
    owners: dict[str, str] = {}
    for entry, plan in plans.items():
        for name in plan.states:
            before = plans[owners.setdefault(name, entry)]
            if before.tensors[name].type != plan.tensors[name].type or not _is_equal(
                before.first_value(name), plan.first_value(name)
            ):
                raise ExportError(
                    f"state {name!r}: expected the same type and first value in all entries, "
                    f"got different ones in {owners[name]!r} and {entry!r}"
                )
    for entry, plan in plans.items():
        for name in owners:
            if name not in plan.states and (name in plan.tensors or plan.made_from(name)):
                raise ExportError(
                    f"state {name!r} of {owners[name]!r}: expected a state of {entry!r} too, got "
                    "a constant, because the module of that entry does not write to it"
                )


def _shared_fields(plans: Mapping[str, Plan]) -> dict[str, Any]:
    """Return the items of the fields that the joined plan has once, except those of weights.

    Raises
    ------
    ExportError
        If an item differs between two plans.
    """
    joined: dict[str, Any] = {}
    for field in KEPT_FIELDS:  # the joiner handles the others, for it renames constants
        items = joined[field] = {}
        for name, plan in plans.items():
            for key, value in getattr(plan, field).items():
                if not _is_equal(items.setdefault(key, value), value):
                    raise ExportError(
                        f"{field}[{key!r}]: expected the same in all entries, got another in "
                        f"{name!r}"
                    )
    return joined


def _is_equal(a: Any, b: Any) -> bool:
    """Return whether two items of a field are equal; arrays must have equal bytes."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    return bool(a == b)


class _Joiner:
    """The constants and weights that the entries share, under their names in the joined plan."""

    def __init__(self, plans: Mapping[str, Plan]) -> None:
        self.constants: dict[str, np.ndarray] = {}
        self.tensors: dict[str, TensorSpec] = {}
        self.placements: dict[str, Placement] = {}
        self._by_key: dict[tuple[TensorSpec, Hashable], str] = {}
        self._weights = WeightJoiner(plans)
        self._derived: dict[str, tuple[RecipeStep, ...]] = {}
        # A constant must not have the name of another tensor of any entry.
        self._taken = {
            name
            for plan in plans.values()
            for name in _all_names(plan.as_block())
            if name not in plan.tensors or plan.tensors[name].role != "constant"
        }

    def entry(self, plan: Plan) -> Entry:
        """Convert a plan to an entry, and add its constants and states to the shared ones."""
        names = {}
        for name, spec in plan.tensors.items():
            if spec.role == "constant":
                names[name] = self._constant(plan, name)
            elif spec.role == "state":
                self.tensors[name], self.placements[name] = spec, plan.placements[name]
                if name in plan.constants:
                    self.constants[name] = plan.constants[name]
        block = _renamed(plan.as_block(), names)
        own = {n: spec for n, spec in block.tensors.items() if spec.role not in STORED}
        fields = {field: getattr(plan, field) for field in Entry._fields}
        return Entry(
            **{
                **fields,
                "nodes": block.nodes,
                "tensors": own,
                "placements": {name: block.placements[name] for name in own},
            }
        )

    def _constant(self, plan: Plan, name: str) -> str:
        """Return a constant's name in the joined plan."""
        spec, recipe = plan.tensors[name], self._weights.recipe(plan, name)
        alike = digest(plan.constants[name]) if recipe is None else repr(recipe)
        key = spec._replace(name=""), alike
        if key not in self._by_key:
            new, count = name, 1
            while new in self._taken:
                new, count = f"{name}_{count}", count + 1
            self._taken.add(new)
            self._by_key[key] = new
            if recipe is not None:
                self._derived[new] = recipe
            self.tensors[new] = spec._replace(name=new)
            self.placements[new] = plan.placements[name]._replace(root=new)
        if name in plan.constants:  # else a session computes it
            self.constants[self._by_key[key]] = plan.constants[name]
        return self._by_key[key]

    def weights(self) -> dict[str, Any]:
        """Return the fields about weights, after all entries were added."""
        return self._weights.joined(self._derived) if self._derived else {}


def _all_names(block: PlanBlock) -> set[str]:
    """Return the names of the tensors of a block, including inner blocks."""
    inner = (_all_names(each) for node in block.nodes for each in node.blocks)
    return {*block.tensors}.union(*inner)


def _renamed(block: PlanBlock, names: Mapping[str, str]) -> PlanBlock:
    """Return a block with constants renamed, in its nodes and placements."""

    def node(old: PlanNode) -> PlanNode:
        return old._replace(
            inputs=tuple([name if name is None else names.get(name, name) for name in old.inputs]),
            blocks=tuple([_renamed(each, names) for each in old.blocks]),
        )

    return block._replace(
        nodes=tuple(map(node, block.nodes)),
        placements={
            name: place._replace(root=names.get(place.root, place.root))
            for name, place in block.placements.items()
        },
    )
