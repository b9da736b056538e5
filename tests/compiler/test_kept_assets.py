"""Assets of a plan stay with the plans that are made of it."""

import pytest

from plan_files import small_plan
from taper_frontend.compiler.from_plan import run_passes
from taper_frontend.compiler.planning import join_plans
from taper_frontend.errors import ExportError
from taper_frontend.quantized_plan import quantize_plan

FILES = {"tokenizer.json": b"{}", "empty": b""}


def contents(plan):
    return {name: array.tobytes() for name, array in plan.assets.items()}


def test_passes_quantization_and_joins_keep_assets():
    plan = small_plan().with_assets(FILES)
    assert contents(run_passes(plan, [])) == FILES
    assert contents(quantize_plan(plan, "float16")) == FILES
    joined = join_plans({"a": plan, "b": plan.with_assets({"b": b"b"})})
    assert contents(joined) == contents(joined.entry("b")) == {**FILES, "b": b"b"}


def test_assets_of_one_name_must_be_equal_in_a_join():
    plan = small_plan().with_assets(FILES)
    with pytest.raises(ExportError, match=r"assets\['empty'\]: expected the same in all entries"):
        join_plans({"a": plan, "b": plan.with_assets({"empty": b"b"})})
