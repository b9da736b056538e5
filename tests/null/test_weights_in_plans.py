"""Replaceable weights in a plan and its file: what is kept, computed, and refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from plan_files import PlanFile, assert_same_plan, small_plan
from taper_runtime import InputError, PlanFormatError, load
from taper_runtime.base.file_limits import Limits
from taper_runtime.executor.memory_use import memory_use
from taper_runtime.file.reader import loads
from taper_runtime.file.writer import to_document
from taper_runtime.plan.recipes import RecipeStep, parse_recipes
from taper_runtime.plan.replaceable import WeightSpec, folded, unfolded, weight_values
from taper_runtime.plan.validate import validate
from weighted_plans import K, Q, weight, weighted_plan


def file_of(plan, path, **how):
    plan.save(path / "m.taper", **how)
    return (path / "m.taper").read_bytes()


def test_a_file_keeps_weights(tmp_path):
    plan = weighted_plan()
    file = PlanFile(file_of(plan, tmp_path))
    assert file.plan["features"] == ["weights"]
    assert {name for name in file.header if name.startswith("weight/")} == {
        "weight/k",
        "weight/q",
        "weight/scale",
    }
    again = load(tmp_path / "m.taper")
    assert_same_plan(again, plan)
    assert again.weights == plan.weights
    assert again.derived == plan.derived
    for name, array in plan.originals.items():
        np.testing.assert_array_equal(again.originals[name], array)
    assert again.fingerprint() == plan.fingerprint()
    again.save(tmp_path / "again.taper")
    assert (tmp_path / "again.taper").read_bytes() == (tmp_path / "m.taper").read_bytes()


def test_a_plan_without_weights_says_nothing_of_them(tmp_path):
    file = PlanFile(file_of(small_plan(), tmp_path))
    assert not {"weights", "derived"} & file.plan.keys()


def test_a_file_without_what_is_computed_is_folded_with_the_same_bits(tmp_path):
    plan = weighted_plan()
    whole = len(file_of(plan, tmp_path))
    small = PlanFile(blob := file_of(plan, tmp_path, folded=False))
    assert "w" not in small.header
    assert "b" in small.header  # a weight itself
    assert len(blob) < whole
    again = load(tmp_path / "m.taper")
    assert "w" not in again.constants
    assert folded(again).fingerprint() == plan.fingerprint() != again.fingerprint()
    assert memory_use(again).arena == memory_use(plan).arena
    assert "w: float32[4, 8]" in str(again)
    assert folded(again).constants["w"].tobytes() == plan.constants["w"].tobytes()
    again.save(tmp_path / "whole.taper", folded=True)
    assert len((tmp_path / "whole.taper").read_bytes()) == whole
    again.save(tmp_path / "again.taper")
    assert (tmp_path / "again.taper").read_bytes() == blob


def test_names_lead_to_what_became_of_a_weight():
    plan = weighted_plan()
    assert plan.made_from("k") == plan.made_from("head.k") == ("w",)
    assert plan.made_from("b") == ("b",)
    assert plan.made_from("unused") == ()
    text = str(plan)
    assert "k = head.k: parameter float32[4, 4] -> w" in text
    assert "unused: buffer int64[] -> nothing" in text


def test_values_of_weights_are_constants_or_their_own():
    values = weight_values(weighted_plan())
    assert values.keys() == {"b", "k", "q", "scale"}
    np.testing.assert_array_equal(values["k"], K)
    assert values["b"] is weighted_plan().constants["b"] or values["b"].shape == (8,)


def test_a_fingerprint_covers_the_weights():
    plan = weighted_plan()
    other = plan._replace(originals={**plan.originals, "q": Q + 1})
    assert other.fingerprint() != plan.fingerprint()


def test_what_cannot_be_computed_is_named():
    plan = weighted_plan()
    recipe = (
        weight("q"),
        RecipeStep("INVERSE", (0,), {}),
        weight("k"),
        RecipeStep("CAT", (1, 2), {"axis": 1}),
    )
    plan = plan._replace(
        derived={**plan.derived, "w": recipe},
        originals={"q": np.zeros((4, 4), np.float32), "k": K},
    )
    validate(plan)
    with pytest.raises(InputError, match=r"constant 'w' cannot be computed: .*INVERSE"):
        folded(plan)
    assert "INVERSE(q)" in str(unfolded(plan))  # to look at a plan computes nothing
    assert len(unfolded(plan).fingerprint()) == 64


def derived(*steps):
    def attack(file):
        file.plan["derived"]["w"] = [list(step) for step in steps]

    return attack


def at(place, value):
    def attack(file):
        *keys, last = place.split("/")
        holder = file.plan
        for key in keys:
            holder = holder[int(key) if key.isdigit() else key]
        if value is None:
            del holder[last]
        else:
            holder[last] = value

    return attack


def without_data(name):
    def attack(file):
        info = file.header.pop(name)
        file.header["other"] = info

    return attack


LEAF = ["WEIGHT", [], {"name": "q"}]
BIG = ["EXPAND", [0], {"shape": [1 << 20, 1 << 20, 4, 4]}]

#: attack -> what breaks the file, and the field at fault.
ATTACKS = {
    "no derived": (at("derived", None), "plan.derived"),
    "no weights": (at("weights", None), "plan.weights"),
    "weights are empty": (at("weights", {}), "plan.weights"),
    "weights are a list": (at("weights", []), "plan.weights"),
    "a weight is a list": (at("weights/q", []), "plan.weights['q']"),
    "a weight without kind": (at("weights/q/kind", None), "plan.weights['q'].kind"),
    "a weight of another kind": (at("weights/q/kind", "tensor"), "plan.weights['q'].kind"),
    "a kind is a list": (at("weights/q/kind", []), "plan.weights['q'].kind"),
    "a weight of another key": (at("weights/q/data", "w"), "plan.weights['q'].data"),
    "an unknown dtype": (at("weights/q/dtype", "complex64"), "plan.weights['q'].dtype"),
    "a negative size": (at("weights/q/shape", [-4, 4]), "plan.weights['q'].shape"),
    "a size that varies": (at("weights/q/shape", ["S", 4]), "plan.weights['q'].shape"),
    "a huge weight": (at("weights/q/shape", [1 << 47, 4]), "plan.weights['q'].shape"),
    "another shape than its data": (at("weights/unused/shape", [2]), None),
    "its data has another shape": (at("weights/scale/shape", [1]), "plan.weights['scale'].shape"),
    "complex is false": (at("weights/q/complex", False), "plan.weights['q'].complex"),
    "complex of 4": (at("weights/q/complex", True), "plan.weights['q'].complex"),
    "no aliases": (at("weights/k/aliases", []), "plan.weights['k'].aliases"),
    "aliases are a string": (at("weights/k/aliases", "ab"), "plan.weights['k'].aliases"),
    "an alias is a number": (at("weights/k/aliases", [3]), "plan.weights['k']"),
    "an alias is another's name": (at("weights/k/aliases", ["q"]), "plan.weights['q']"),
    "an empty name": (at("weights/k/aliases", [""]), "plan.weights['k']"),
    "weights that the features hide": (at("features", []), "plan.features"),
    "derived is a list": (at("derived", []), "plan.derived"),
    "a recipe of nothing": (derived(), "plan.derived['w']"),
    "a recipe of itself": (derived(LEAF, ["RELU", [1], {}]), "plan.derived['w'][1][1]"),
    "a recipe of what comes later": (
        derived(["RELU", [1], {}], LEAF),
        "plan.derived['w'][0][1]",
    ),
    "an unknown weight": (
        derived(["WEIGHT", [], {"name": "nobody"}]),
        "plan.derived['w'][0][2].name",
    ),
    "an alias for a weight": (
        derived(["WEIGHT", [], {"name": "head.k"}]),
        "plan.derived['w'][0][2].name",
    ),
    "a weight with inputs": (
        derived(LEAF, ["WEIGHT", [0], {"name": "q"}]),
        "plan.derived['w'][1][1]",
    ),
    "a weight without a name": (derived(["WEIGHT", [], {}]), "plan.derived['w'][0][2].name"),
    "a weight that says more": (
        derived(["WEIGHT", [], {"name": "q", "path": "/etc/passwd"}]),
        "plan.derived['w'][0][2].name",
    ),
    "a parameter's step": (
        derived(["PARAMETER", [], {"names": ["q"]}]),
        "plan.derived['w'][0][0]",
    ),
    "a literal's step": (
        derived(["LITERAL", [], {"dtype": "float32", "shape": [4, 8]}]),
        "plan.derived['w'][0][0]",
    ),
    "an unknown op": (derived(LEAF, ["SYSTEM", [0], {}]), "plan.derived['w'][1][0]"),
    "an op of blocks": (derived(LEAF, ["IF", [0], {}]), "plan.derived['w'][1][0]"),
    "an output that the op has not": (
        derived(LEAF, ["RELU[1]", [0], {}]),
        "plan.derived['w'][1][0]",
    ),
    "output 0 by its number": (derived(LEAF, ["RELU[0]", [0], {}]), "plan.derived['w'][1][0]"),
    "an output with a sign": (derived(LEAF, ["RELU[-1]", [0], {}]), "plan.derived['w'][1][0]"),
    "an output of many digits": (
        derived(LEAF, ["TOPK[" + "9" * 5000 + "]", [0], {}]),
        "plan.derived['w'][1][0]",
    ),
    "no input where one is needed": (derived(LEAF, ["RELU", [None], {}]), "plan.derived['w'][1]"),
    "too many inputs": (derived(LEAF, ["RELU", [0, 0], {}]), "plan.derived['w'][1]"),
    "an unknown attr": (derived(LEAF, ["RELU", [0], {"x": 1}]), "plan.derived['w'][1]"),
    "an attr with a size": (
        derived(LEAF, ["RESHAPE", [0], {"shape": ["S", 4]}]),
        "plan.derived['w'][1]",
    ),
    "a recipe of another shape": (derived(LEAF), "plan.derived['w']"),
    "a recipe of another format": (
        derived(*[[*LEAF[:2], {"name": "b"}], ["RESHAPE", [0], {"shape": [4, 2]}]]),
        "plan.derived['w']",
    ),
    "more bytes than memory": (derived(LEAF, BIG), "plan.derived['w'][1]"),
    "many large steps": (
        derived(LEAF, *([["EXPAND", [0], {"shape": [1 << 16, 16, 4, 4]}]] * 20)),
        "plan.derived['w'][17]",
    ),
    "more bytes than memory, said to be a weight's": (
        lambda file: (at("weights/unused/shape", [1 << 40])(file), derived(LEAF, BIG)(file)),
        "plan.derived['w'][1]",
    ),
    "a recipe of no constant": (at("derived/x", [LEAF]), "plan.derived['x']"),
    "a recipe of no tensor": (at("derived/nobody", [LEAF]), "plan.derived['nobody']"),
    "a weight that is two constants": (
        at("derived/keep", [["WEIGHT", [], {"name": "b"}]]),
        "plan.derived['keep']",
    ),
    "a weight without data": (without_data("weight/q"), None),
    "data that no recipe needs": (
        lambda file: file.plan["derived"].pop("w"),
        "plan.weights['k']",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_refused(attack, tmp_path):
    change, field = ATTACKS[attack]
    file = PlanFile(file_of(weighted_plan(), tmp_path))
    change(file)
    blob = file.pack()
    if attack == "another shape than its data":  # it has none: nothing needs it
        assert loads(blob).weights["unused"].shape == (2,)
        return
    with pytest.raises(PlanFormatError) as caught:
        loads(blob)
    assert field in (None, caught.value.field), caught.value


def test_a_constant_may_not_take_the_place_of_a_weight(tmp_path):
    plan = weighted_plan()
    renamed = WeightSpec("b2", "buffer", "float32", (8,))
    named = plan._replace(
        tensors={**plan.tensors, "weight/x": plan.tensors["keep"]._replace(name="weight/x")},
        placements={
            **plan.placements,
            "weight/x": plan.placements["keep"]._replace(root="weight/x"),
        },
        constants={**plan.constants, "weight/x": plan.constants["keep"]},
        weights={**plan.weights, "b2": renamed},
    )
    for use in (lambda: named.save(tmp_path / "m.taper"), named.fingerprint):
        with pytest.raises(
            PlanFormatError, match="because files use this one for weights"
        ) as caught:
            use()
        assert caught.value.field == "plan.tensors['weight/x']"


def test_a_constant_that_no_recipe_computes_needs_its_data():
    plan = unfolded(weighted_plan())
    with pytest.raises(PlanFormatError) as caught:
        validate(plan._replace(constants={"b": plan.constants["b"]}))  # not keep's
    assert caught.value.field == "plan.tensors['keep']"


def test_page_shows_weights():
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
    shown = json.loads(re.search(r"<!-- weights -->\n```json\n(.*?)```", page, re.S)[1])
    k, scale = np.arange(32, dtype=np.float32).reshape(8, 4), np.array(2, np.float32)
    plan = small_plan()._replace(
        weights={
            "k": WeightSpec("k", "parameter", "float32", (8, 4), aliases=("head.k",)),
            "scale": WeightSpec("scale", "constant", "float32", ()),
        },
        derived=parse_recipes(shown["derived"], "plan.derived"),
        originals={"k": k, "scale": scale},
    )
    document = to_document(plan)
    for part in ("weights", "derived"):
        assert json.loads(json.dumps(document[part])) == shown[part]
    np.testing.assert_array_equal(folded(plan).constants["w"], (k * scale).T)


def test_steps_of_recipes_are_counted(tmp_path):
    blob = file_of(weighted_plan(), tmp_path)
    assert loads(blob, limits=Limits(nodes=7)).weights
    with pytest.raises(PlanFormatError, match=r"Limits\.nodes") as caught:
        loads(blob, limits=Limits(nodes=6))
    assert caught.value.field == "plan.derived"
