"""Recipes: from which parameters constants were made, as a plan and its file tell."""

import pytest

from plan_files import small_plan
from taper_runtime import PlanFormatError, load
from taper_runtime.plan.recipes import Step, parameter_names, parse_recipes, recipe_text
from taper_runtime.plan.validate import validate

W = ["PARAMETER", [], {"names": ["fc.weight", "head.weight"]}]
ONE = ["LITERAL", [], {"dtype": "float32", "shape": [], "values": 1.0}]
MASK = ["LITERAL", [], {"dtype": "bool", "shape": [9, 9]}]
TURNED = ["TRANSPOSE", [0], {"axis0": 0, "axis1": 1}]


def with_recipes(recipes):
    plan = small_plan()
    return plan._replace(metadata={**plan.metadata, "recipes": recipes})


def test_a_file_keeps_recipes(tmp_path):
    plan = with_recipes({"w": [W, TURNED]})
    plan.save(tmp_path / "m.taper")
    again = load(tmp_path / "m.taper")
    assert again.recipes == plan.recipes
    assert again.recipes["w"][1] == Step("TRANSPOSE", (0,), {"axis0": 0, "axis1": 1})
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
    recipe = parse_recipes({"recipes": {"w": steps}})["w"]
    assert recipe_text(recipe) == text


def test_names_of_all_parameters_stand_once():
    other = ["PARAMETER", [], {"names": ["b"]}]
    recipe = parse_recipes({"recipes": {"w": [W, other, W, ["CAT", [0, 1, 2], {"axis": 0}]]}})["w"]
    assert parameter_names(recipe) == ("fc.weight", "head.weight", "b")


def test_the_text_of_shared_steps_does_not_explode():
    steps = [W, *(["ADD", [place, place], {}] for place in range(200))]
    assert len(recipe_text(parse_recipes({"recipes": {"w": steps}})["w"])) < 300


def test_inspect_tells_what_became_of_a_parameter():
    plan = with_recipes({"w": [W, TURNED], "gone": [W]})
    assert "w: float32[4, 8] = TRANSPOSE(fc.weight = head.weight, axis0=0, axis1=1)" in str(plan)


def test_names_cannot_steer_a_terminal():
    hostile = ["PARAMETER", [], {"names": ["\x1b[2Jw\n"]}]
    assert "\x1b" not in str(with_recipes({"w": [hostile, TURNED]}))


@pytest.mark.parametrize(
    ("recipes", "field"),
    [
        ([], "recipes"),
        ({"w": []}, "recipes['w']"),
        ({"w": {}}, "recipes['w']"),
        ({"w": [["ADD", []]]}, "recipes['w'][0]"),
        ({"w": ["ADD"]}, "recipes['w'][0]"),
        ({"w": [[1, [], {}]]}, "recipes['w'][0][0]"),
        ({"w": [W, ["ADD", 0, {}]]}, "recipes['w'][1][1]"),
        ({"w": [W, ["ADD", [1], {}]]}, "recipes['w'][1][1]"),
        ({"w": [W, ["ADD", [-1], {}]]}, "recipes['w'][1][1]"),
        ({"w": [W, ["ADD", [True], {}]]}, "recipes['w'][1][1]"),
        ({"w": [W, ["ADD", [0], []]]}, "recipes['w'][1][2]"),
        ({"w": [["PARAMETER", [], {}]]}, "recipes['w'][0][2].names"),
        ({"w": [["PARAMETER", [], {"names": []}]]}, "recipes['w'][0][2].names"),
        ({"w": [["PARAMETER", [], {"names": [3]}]]}, "recipes['w'][0][2].names"),
        ({"w": [W, ["PARAMETER", [0], {"names": ["a"]}]]}, "recipes['w'][1][1]"),
        ({"w": [["LITERAL", [], {"dtype": "bool"}]]}, "recipes['w'][0][2].shape"),
        ({"w": [["LITERAL", [], {"dtype": 1, "shape": []}]]}, "recipes['w'][0][2].dtype"),
        ({"w": [["LITERAL", [], {"dtype": "bool", "shape": [-1]}]]}, "recipes['w'][0][2].shape"),
    ],
)
def test_another_form_is_refused(recipes, field):
    with pytest.raises(PlanFormatError) as caught:
        validate(with_recipes(recipes))
    assert caught.value.field == f"plan.metadata.{field}"
