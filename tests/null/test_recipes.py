"""Recipes: from which parameters constants were made, as a plan and its file tell."""

import pytest

from plan_files import PlanFile, small_file, small_plan
from taper_runtime import InferenceSession, PlanFormatError, load
from taper_runtime.file.reader import loads
from taper_runtime.plan.recipes import RecipeStep, parameter_names, parse_recipes, recipe_text

W = ["PARAMETER", [], {"names": ["fc.weight", "head.weight"]}]
ONE = ["LITERAL", [], {"dtype": "float32", "shape": [], "values": 1.0}]
MASK = ["LITERAL", [], {"dtype": "bool", "shape": [9, 9]}]
TURNED = ["TRANSPOSE", [0], {"axis0": 0, "axis1": 1}]


def with_recipes(recipes):
    """The small plan of a file that says this of its constants; nothing has asked for it."""
    file = PlanFile(small_file())
    file.provenance = recipes
    return loads(file.pack())


def test_a_file_keeps_recipes(tmp_path):
    plan = with_recipes({"w": [W, TURNED]})
    assert not isinstance(plan.provenance, dict)  # parsed when it is asked for
    plan.save(tmp_path / "m.taper")
    again = load(tmp_path / "m.taper")
    assert again.recipes == plan.recipes
    assert again.recipes["w"][1] == RecipeStep("TRANSPOSE", (0,), {"axis0": 0, "axis1": 1})
    assert again.made_from("head.weight") == ("w",)
    assert again.made_from("other") == ()


def test_a_plan_without_recipes_has_none():
    assert small_plan().recipes == {}
    assert small_plan().made_from("w") == ()


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([W], "fc.weight = head.weight"),
        ([W, ONE, ["ADD", [0, 1], {}]], "ADD(fc.weight = head.weight, 1.0)"),
        ([MASK], "bool[9, 9]"),
        ([["PARAMETER", [], {"names": ["a"]}], ["CAT", [0, 0], {"axis": 1}]], "CAT(a, a, axis=1)"),
    ],
)
def test_text(steps, text):
    recipe = parse_recipes({"w": steps}, "w")["w"]
    assert recipe_text(recipe) == text


def test_names_of_all_parameters_stand_once():
    other = ["PARAMETER", [], {"names": ["b"]}]
    recipe = parse_recipes({"w": [W, other, W, ["CAT", [0, 1, 2], {"axis": 0}]]}, "w")["w"]
    assert parameter_names(recipe) == ("fc.weight", "head.weight", "b")


def test_the_text_of_shared_steps_does_not_explode():
    steps = [W, *(["ADD", [place, place], {}] for place in range(200))]
    assert len(recipe_text(parse_recipes({"w": steps}, "w")["w"])) < 300


def test_inspect_tells_what_became_of_a_parameter():
    plan = with_recipes({"w": [W, TURNED], "gone": [W]})
    assert "w: float32[4, 8] = TRANSPOSE(fc.weight = head.weight, axis0=0, axis1=1)" in str(plan)


def test_names_cannot_steer_a_terminal():
    hostile = ["PARAMETER", [], {"names": ["\x1b[2Jw\n"]}]
    assert "\x1b" not in str(with_recipes({"w": [hostile, TURNED]}))


@pytest.mark.parametrize(
    ("recipes", "field"),
    [
        ([1], ""),
        ({"w": []}, "['w']"),
        ({"w": {}}, "['w']"),
        ({"w": [["ADD", []]]}, "['w'][0]"),
        ({"w": ["ADD"]}, "['w'][0]"),
        ({"w": [[1, [], {}]]}, "['w'][0][0]"),
        ({"w": [W, ["ADD", 0, {}]]}, "['w'][1][1]"),
        ({"w": [W, ["ADD", [1], {}]]}, "['w'][1][1]"),
        ({"w": [W, ["ADD", [-1], {}]]}, "['w'][1][1]"),
        ({"w": [W, ["ADD", [True], {}]]}, "['w'][1][1]"),
        ({"w": [W, ["ADD", [0], []]]}, "['w'][1][2]"),
        ({"w": [["PARAMETER", [], {}]]}, "['w'][0][2].names"),
        ({"w": [["PARAMETER", [], {"names": []}]]}, "['w'][0][2].names"),
        ({"w": [["PARAMETER", [], {"names": [3]}]]}, "['w'][0][2].names"),
        ({"w": [W, ["PARAMETER", [0], {"names": ["a"]}]]}, "['w'][1][1]"),
        ({"w": [["LITERAL", [], {"dtype": "bool"}]]}, "['w'][0][2].shape"),
        ({"w": [["LITERAL", [], {"dtype": 1, "shape": []}]]}, "['w'][0][2].dtype"),
        ({"w": [["LITERAL", [], {"dtype": "bool", "shape": [-1]}]]}, "['w'][0][2].shape"),
    ],
)
def test_another_form_is_refused(recipes, field, tmp_path):
    plan = with_recipes(recipes)
    for ask in (lambda: plan.recipes, lambda: str(plan), lambda: plan.save(tmp_path / "m.taper")):
        with pytest.raises(PlanFormatError) as caught:
            ask()
        assert caught.value.field == f"plan.provenance{field}"
    assert InferenceSession(plan).run(None, plan.samples)  # no run needs it


@pytest.mark.parametrize("text", ["", "[", '{"w": 1, "w": 2}', '{"w": NaN}', "[" * 100_000])
def test_text_that_is_no_json_is_refused(text):
    file = PlanFile(small_file())
    file.header["__metadata__"]["provenance"] = text
    plan = loads(file.pack())
    with pytest.raises(PlanFormatError) as caught:
        len(plan.provenance)
    assert caught.value.field == "plan.provenance"


def test_a_plan_with_recipes_of_another_form_is_not_saved(tmp_path):
    plan = small_plan()._replace(provenance={"w": [RecipeStep("ADD", (0,), {})]})
    with pytest.raises(PlanFormatError) as caught:
        plan.save(tmp_path / "m.taper")
    assert caught.value.field == "plan.provenance['w'][0][1]"
    assert not (tmp_path / "m.taper").exists()


def test_each_model_of_a_file_has_its_own(tmp_path):
    for name in ("one", "two"):
        plan = small_plan()._replace(
            provenance={"w": [RecipeStep("PARAMETER", (), {"names": [name]})]}
        )
        plan.save(tmp_path / "m.taper", name=name, append=True)
    for name in ("one", "two"):
        assert load(tmp_path / "m.taper", name).made_from(name) == ("w",)
