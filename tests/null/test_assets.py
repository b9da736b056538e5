"""Assets of a plan: files that travel with it, and what is refused."""

import numpy as np
import pytest

from plan_files import PlanFile, small_plan
from taper_runtime import InputError, PlanFormatError, load
from taper_runtime.base.buffers import address
from taper_runtime.reports.report import describe_plan, plan_data

FILES = {"tokenizer.json": b'{"model": {}}' * 10, "empty": b"", "é.txt": "ß".encode()}


@pytest.fixture
def plan():
    return small_plan().with_assets(FILES)


def contents(plan):
    return {name: array.tobytes() for name, array in plan.assets.items()}


def test_a_file_keeps_assets(plan, tmp_path):
    plan.save(tmp_path / "m.taper")
    file = PlanFile((tmp_path / "m.taper").read_bytes())
    assert file.plan["features"] == ["assets"]
    assert file.header["asset/tokenizer.json"]["dtype"] == "U8"
    again = load(tmp_path / "m.taper")
    assert contents(again) == FILES
    assert again.constants.keys() == plan.constants.keys()
    again.save(tmp_path / "again.taper")
    assert (tmp_path / "again.taper").read_bytes() == (tmp_path / "m.taper").read_bytes()


def test_an_asset_of_a_loaded_plan_is_a_view_of_the_file(plan, tmp_path):
    plan.save(tmp_path / "m.taper")
    again = load(tmp_path / "m.taper")
    owner = again.assets["tokenizer.json"]
    while isinstance(owner, np.ndarray):
        owner = owner.base
    start = address(owner)
    assert start <= again.assets["tokenizer.json"].ctypes.data < start + len(owner)
    with pytest.raises(ValueError, match="read-only"):
        again.assets["tokenizer.json"][0] = 0
    with pytest.raises(TypeError, match="cannot be changed"):
        again.assets["other"] = again.assets["empty"]


def test_a_plan_without_assets_has_the_same_bytes(tmp_path):
    small_plan().save(tmp_path / "a.taper")
    small_plan().with_assets({}).save(tmp_path / "b.taper")
    assert (tmp_path / "a.taper").read_bytes() == (tmp_path / "b.taper").read_bytes()


def test_assets_are_added_and_replaced(plan):
    more = plan.with_assets({"empty": b"now", "config.json": bytearray(b"{}")})
    assert contents(more) == {**FILES, "empty": b"now", "config.json": b"{}"}
    assert contents(plan) == FILES


def test_the_fingerprint_covers_names_and_bytes(plan):
    others = [small_plan(), plan.with_assets({"empty": b"x"}), plan.with_assets({"x": b""})]
    assert len({each.fingerprint() for each in (plan, *others)}) == 4


def test_entries_and_other_models_of_a_file_keep_their_assets(plan, tmp_path):
    assert contents(plan.entry("forward")) == FILES
    plan.save(tmp_path / "m.taper")
    small_plan().save(tmp_path / "m.taper", name="other", append=True)
    assert contents(load(tmp_path / "m.taper", "model")) == FILES
    assert contents(load(tmp_path / "m.taper", "other")) == {}


def test_the_report_tells_the_bytes(plan):
    assert plan_data(plan)["assets"] == {name: len(data) for name, data in FILES.items()}
    assert "\nasset   tokenizer.json: 0.1 kB\n" in describe_plan(plan)


NAMES = [
    "", ".", "..", "a/b", "/etc/passwd", "..\\x", "C:x", "a\0", "a\n", "\x1b[31m", " a", "a ", "a.",
    "a" * 256, "é" * 128, "a\u202eb", "what?",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_not_of_a_file_are_refused(name, tmp_path):
    with pytest.raises(PlanFormatError, match=r"expected the plain name of a file") as caught:
        small_plan().with_assets({name: b""})
    assert caught.value.field == f"plan.assets[{name!r}]"
    hostile = small_plan()._replace(assets={name: np.zeros(0, np.uint8)})
    with pytest.raises(PlanFormatError, match=r"expected the plain name of a file"):
        hostile.save(tmp_path / "m.taper")


@pytest.mark.parametrize("content", ["text", 5, None, [1]], ids=repr)
def test_contents_that_are_not_bytes_are_refused(content):
    with pytest.raises(InputError, match=r"assets\['a'\]: expected bytes, got "):
        small_plan().with_assets({"a": content})


@pytest.mark.parametrize(
    "array", [np.zeros(3), np.zeros((1, 3), np.uint8), np.zeros(6, np.uint8)[::2], b"abc"], ids=repr
)
def test_arrays_that_are_not_bytes_are_refused(array):
    with pytest.raises(PlanFormatError) as caught:
        small_plan()._replace(assets={"a": array}).with_assets({})
    assert caught.value.field.startswith("plan.assets['a']")


def test_a_constant_may_not_take_the_place_of_an_asset(plan, tmp_path):
    spec = plan.tensors["b"]._replace(name="asset/b")
    taken = plan._replace(
        tensors={**plan.tensors, "asset/b": spec},
        placements={**plan.placements, "asset/b": plan.placements["b"]._replace(root="asset/b")},
        constants={**plan.constants, "asset/b": plan.constants["b"]},
    )
    with pytest.raises(PlanFormatError, match="because files use this one for assets"):
        taken.save(tmp_path / "m.taper")
