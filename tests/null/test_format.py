"""Test the plan file: the writer, the reader, and what docs/format.md says about both."""

import copy
import json
import math
import mmap
import os
import pickle
import re
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plan_files import PlanFile, assert_same_plan, pack, small_plan
from plan_strategies import plain, plans, shapes
from taper_runtime.base import checks, polynomials
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.file import container, expression
from taper_runtime.file.container import MAX_HEADER_BYTES, make_header, parse_header
from taper_runtime.file.plain_data import from_json, to_json
from taper_runtime.file.reader import load, loads
from taper_runtime.ops.opdef import TensorType, contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, TensorSpec
from weighted_plans import weighted_plan

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")

bounded = settings(
    max_examples=40,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def example(marker):
    return json.loads(re.search(rf"<!-- {marker} -->\n```json\n(.*?)```", PAGE, re.S)[1])


def constants_plan(constants):
    """A plan that is nothing but constants: name -> (dtype, array)."""
    return Plan(
        nodes=(),
        tensors={
            name: TensorSpec(name, dtype, array.shape, "constant")
            for name, (dtype, array) in constants.items()
        },
        placements={
            name: Placement(name, 0, contiguous_strides(array.shape))
            for name, (_, array) in constants.items()
        },
        inputs=(),
        outputs=(),
        constants={name: array for name, (_, array) in constants.items()},
    )


def base_of(array):
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return array


@bounded
@given(plan=plans())
def test_round_trip(plan, tmp_path):
    path = tmp_path / "m.taper"
    plan.save(path)
    assert_same_plan(load(path), plan)


@bounded
@given(plan=plans())
def test_safetensors_reads_every_file(plan, tmp_path):
    path = tmp_path / "m.taper"
    plan.save(path)
    expected = plan.constants | {f"sample/{name}": a for name, a in plan.samples.items()}
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata()["format"] == "taper"
        assert set(file.keys()) == expected.keys()
        for name, array in expected.items():
            assert file.get_slice(name).get_shape() == list(array.shape)
    if not any(spec.dtype == "bfloat16" for spec in plan.tensors.values()):  # numpy has none
        read = safetensors.numpy.load_file(path)
        for name, array in expected.items():
            assert read[name].dtype == array.dtype
            assert read[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 32), (5, 0, 7)])
def test_every_dtype_and_shape_round_trips(dtype, shape, tmp_path):
    array = np.arange(math.prod(shape)).reshape(shape).astype(DTYPES[dtype].storage)
    plan = constants_plan({"c": (dtype, array)})
    plan.save(tmp_path / "m.taper")
    assert_same_plan(load(tmp_path / "m.taper"), plan)
    with safetensors.safe_open(tmp_path / "m.taper", "np") as file:
        assert file.get_slice("c").get_dtype() == DTYPES[dtype].code


@bounded
@given(
    types=st.dictionaries(
        st.text("abc", min_size=1),
        st.builds(TensorType, st.sampled_from(list(DTYPES)), shapes, st.just("plain")),
    )
)
def test_layout_is_aligned(types):
    header, order = make_header({"format": "taper"}, types)
    assert len(header) % 64 == 0
    position = len(header)
    for name in order:
        if types[name].nbytes % 64 == 0:
            assert position % 64 == 0
        assert position % DTYPES[types[name].dtype].size == 0
        position += types[name].nbytes
    entries = parse_header(header + bytes(position - len(header))).entries
    assert {name: TensorType(e.dtype, e.shape) for name, e in entries.items()} == types


def test_equal_plans_give_equal_bytes(tmp_path):
    plan = small_plan()

    def backwards(mapping):
        return dict(reversed(mapping.items()))

    shuffled = plan._replace(
        tensors=backwards(plan.tensors),
        placements=backwards(plan.placements),
        constants=backwards(plan.constants),
        metadata=backwards(plan.metadata),
        nodes=tuple(node._replace(attrs=backwards(node.attrs)) for node in plan.nodes),
    )
    plan.save(tmp_path / "a.taper")
    shuffled.save(tmp_path / "b.taper")
    assert (tmp_path / "a.taper").read_bytes() == (tmp_path / "b.taper").read_bytes()
    load(tmp_path / "a.taper").save(tmp_path / "c.taper")
    assert (tmp_path / "a.taper").read_bytes() == (tmp_path / "c.taper").read_bytes()


def test_constants_are_views_of_the_mapped_file(tmp_path):
    path = tmp_path / "m.taper"
    small_plan().save(path)
    plan = load(path)
    mapping = base_of(plan.constants["w"])
    assert isinstance(mapping, mmap.mmap)
    for array in [*plan.constants.values(), *plan.samples.values()]:
        assert base_of(array) is mapping
        assert np.shares_memory(array, np.frombuffer(mapping, np.uint8))
        assert not array.flags.writeable
    assert plan.constants["w"].ctypes.data % 64 == 0


def test_constants_outlive_the_file_and_the_plan(tmp_path):
    path = tmp_path / "m.taper"
    plan = small_plan()
    plan.save(path)
    weights = load(path).constants["w"]
    path.unlink()
    np.testing.assert_array_equal(weights, plan.constants["w"])


def test_a_file_that_is_replaced_keeps_serving_the_old_plan(tmp_path):
    path = tmp_path / "m.taper"
    plan = small_plan()
    plan.save(path)
    weights = load(path).constants["w"]
    other = plan._replace(constants=plan.constants | {"w": plan.constants["w"] + 1})
    other.save(path)
    np.testing.assert_array_equal(weights, plan.constants["w"])
    np.testing.assert_array_equal(load(path).constants["w"], plan.constants["w"] + 1)


def test_a_file_written_anew_by_safetensors_is_aligned_by_copy(tmp_path):
    plan = small_plan()
    plan.save(tmp_path / "m.taper")
    with safetensors.safe_open(tmp_path / "m.taper", "np") as file:
        metadata = file.metadata() | {"note": "touched"}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for note in ("", "0" * 8, "0" * 16, "0" * 24, "0" * 32, "0" * 40, "0" * 48, "0" * 56):
        metadata["note"] = note
        safetensors.numpy.save_file(tensors, tmp_path / "n.taper", metadata)
        again = load(tmp_path / "n.taper")
        assert_same_plan(again, plan)
        assert again.constants["w"].ctypes.data % 64 == 0
        assert not again.constants["w"].flags.writeable
        mapped = isinstance(base_of(again.constants["w"]), mmap.mmap)
        start = parse_header((tmp_path / "n.taper").read_bytes()).entries["w"].start
        assert mapped == (start % 64 == 0)


def test_misaligned_items_are_copied(tmp_path):
    """An odd header length is legal in safetensors."""
    plan = small_plan()
    plan.save(tmp_path / "m.taper")
    blob = (tmp_path / "m.taper").read_bytes()
    length = int.from_bytes(blob[:8], "little")
    odd = (length + 1).to_bytes(8, "little") + blob[8 : 8 + length] + b" " + blob[8 + length :]
    again = loads(odd)
    assert_same_plan(again, plan)
    assert all(array.flags.aligned for array in again.constants.values())


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError, Killed])
def test_save_is_atomic(moment, error, tmp_path, monkeypatch):
    path = tmp_path / "m.taper"
    path.write_bytes(b"old")

    def fail(*args):
        raise error

    monkeypatch.setattr(os, moment, fail)
    with pytest.raises(error):
        small_plan().save(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["m.taper"]


def test_save_syncs_before_it_replaces(tmp_path, monkeypatch):
    done = []
    fsync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append("fsync"), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("replace"), rename(a, b)))
    small_plan().save(tmp_path / "m.taper")
    assert done == ["fsync", "replace"]


def test_save_obeys_the_umask(tmp_path):
    """Unlike tempfile's files, which only their owner may read."""
    old = os.umask(0o022)
    try:
        small_plan().save(tmp_path / "m.taper")
    finally:
        os.umask(old)
    assert (tmp_path / "m.taper").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_save_keeps_the_mode_of_what_it_replaces(mode, tmp_path):
    path = tmp_path / "m.taper"
    path.write_bytes(b"old")
    path.chmod(mode)
    small_plan().save(path)
    assert path.stat().st_mode & 0o777 == mode
    assert_same_plan(load(path), small_plan())


def test_nobody_else_reads_a_private_model_while_it_is_written(tmp_path, monkeypatch):
    path = tmp_path / "m.taper"
    path.write_bytes(b"old")
    path.chmod(0o600)
    modes = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (modes.append(os.fstat(fd).st_mode), fsync(fd)))
    small_plan().save(path)
    assert [mode & 0o777 for mode in modes] == [0o600]


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


OTHERS = {"a directory": os.mkdir, "a FIFO": os.mkfifo, "a socket": make_socket}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("linked", [False, True])
def test_save_replaces_nothing_but_files(kind, linked, tmp_path):
    path = tmp_path / "thing"
    OTHERS[kind](path)
    before = path.stat()
    if linked:
        path = tmp_path / "link"
        path.symlink_to("thing")
    names = os.listdir(tmp_path)
    with pytest.raises(
        FileExistsError, match=rf"expected a regular file .* got {kind}: '.*{path.name}'"
    ):
        small_plan().save(path)
    after = path.stat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert os.listdir(tmp_path) == names


def test_save_replaces_no_device(monkeypatch):
    monkeypatch.delattr(os, "replace")  # should the check fail, the machine keeps its device
    with pytest.raises(FileExistsError, match="a character device: '/dev/null'"):
        small_plan().save("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("exists", [True, False])
def test_save_goes_through_a_link(exists, tmp_path):
    (tmp_path / "models").mkdir()
    target, link = tmp_path / "models" / "m.taper", tmp_path / "latest.taper"
    if exists:
        target.write_bytes(b"old")
    link.symlink_to("models/m.taper")
    small_plan().save(link)
    assert link.is_symlink()
    assert_same_plan(load(target), small_plan())
    assert os.listdir(tmp_path / "models") == ["m.taper"]


def test_save_refuses_links_in_a_circle(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        small_plan().save(tmp_path / "a")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("name", ["m" * 255, b"m.taper", b"\xff.taper", "größe.taper"])
def test_save_takes_every_name_that_a_file_may_have(name, tmp_path):
    path = os.path.join(os.fsencode(tmp_path), name) if type(name) is bytes else tmp_path / name
    small_plan().save(path)
    assert os.listdir(os.fsencode(tmp_path)) == [os.fsencode(name)]
    assert_same_plan(load(path), small_plan())


def test_save_into_no_directory_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        small_plan().save(tmp_path / "none" / "m.taper")


def test_save_refuses_an_invalid_plan_and_keeps_the_old_file(tmp_path):
    path = tmp_path / "m.taper"
    path.write_bytes(b"old")
    with pytest.raises(PlanFormatError) as caught:
        small_plan()._replace(inputs=()).save(path)
    assert caught.value.field == "plan.tensors['x'].role"
    assert os.listdir(tmp_path) == ["m.taper"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"a": np.float32(1)}, "plan.metadata.a"),
        ({"a": {1: 2}}, "plan.metadata.a.1"),
        ({"a": [2**63]}, "plan.metadata.a[0]"),
        ({"a": {"float": 1.0}}, "plan.metadata.a"),
        ({"a": "\ud800"}, "plan.metadata.a"),
        ({"a": {1, 2}}, "plan.metadata.a"),
    ],
)
def test_save_refuses_what_is_not_plain_data(metadata, field, tmp_path):
    with pytest.raises(PlanFormatError) as caught:
        small_plan()._replace(metadata=metadata).save(tmp_path / "m.taper")
    assert caught.value.field == field


def test_save_refuses_data_nested_too_deep(tmp_path):
    value = None
    for _ in range(checks.MAX_DEPTH):
        value = [value]
    small_plan()._replace(metadata={"a": value[0]}).save(tmp_path / "m.taper")
    assert load(tmp_path / "m.taper").metadata == {"a": value[0]}
    with pytest.raises(PlanFormatError, match="levels"):
        small_plan()._replace(metadata={"a": value}).save(tmp_path / "m.taper")


def test_save_refuses_a_header_over_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(container, "MAX_HEADER_BYTES", 1000)
    with pytest.raises(PlanFormatError) as caught:
        small_plan().save(tmp_path / "m.taper")
    assert caught.value.field == "header.length"
    assert os.listdir(tmp_path) == []


def test_load_of_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "m.taper")


@bounded
@given(value=plain)
def test_plain_data_round_trips_through_strict_json(value):
    text = json.dumps(to_json(value, "v"), allow_nan=False)
    assert repr(from_json(json.loads(text), "v")) == repr(sort_keys(value))


def sort_keys(value):
    if isinstance(value, dict):
        return {key: sort_keys(value[key]) for key in sorted(value)}
    return [sort_keys(item) for item in value] if isinstance(value, list) else value


def test_infinite_attrs_round_trip(tmp_path):
    plan = small_plan()
    first = plan.nodes[0]._replace(attrs={"alpha": -math.inf})
    plan._replace(nodes=(first, *plan.nodes[1:])).save(tmp_path / "m.taper")
    assert load(tmp_path / "m.taper").nodes[0].attrs == {"alpha": -math.inf}


def test_page_spells_floats():
    values = from_json(example("floats"), "v")
    assert values[:2] == [math.inf, -math.inf]
    assert math.isnan(values[2])
    assert to_json(values, "v") == example("floats")


def test_page_shows_a_valid_file(tmp_path):
    header, document = example("header"), example("plan")
    header["__metadata__"]["plan"] = json.dumps(document)
    plan = loads(pack(json.dumps(header), bytes(288)))
    plan.save(tmp_path / "m.taper")
    written = PlanFile((tmp_path / "m.taper").read_bytes())
    assert written.plan == document
    header["__metadata__"].pop("plan")
    assert written.header["__metadata__"].pop("fingerprint") == plan.fingerprint()
    assert written.header == header
    assert list(written.header) == list(header)


def test_page_shows_a_file_of_models(tmp_path):
    path = tmp_path / "m.taper"
    small_plan().save(path, name="encoder")
    small_plan().save(path, name="decoder", append=True)
    document, shown = PlanFile(path.read_bytes()).plan, example("models")
    assert {**document, "models": None} == {**shown, "models": None}
    for model in document["models"].values():
        assert model.keys() == shown["models"]["encoder"].keys()
        assert model["tensors"]["w"] == "w"


def test_page_states_the_limits():
    stated = re.search(r"## Limits\n\n(.*?)\n\n", PAGE, re.S)[1]
    assert [int(n) for n in re.findall(r"\| (\d+) \|", stated)] == [
        MAX_HEADER_BYTES,
        checks.MAX_RANK,
        checks.MAX_TENSOR_BYTES,
        checks.MAX_ARENA_BYTES,
        expression.MAX_TEXT,
        expression.MAX_NESTING,
        polynomials.MAX_TERMS,
        checks.MAX_BLOCK_DEPTH,
        checks.MAX_DEPTH,
        checks.MAX_ATTR_ITEMS,
    ]


def test_page_lists_the_dtypes():
    line = re.search(r"- `dtype` is (.*)\.", PAGE)[1]
    assert re.findall(r"`(\w+)`", line) == list(DTYPES)


def test_a_fingerprint_is_about_what_is_computed(tmp_path):
    plan = small_plan()
    plan.save(tmp_path / "m.taper")
    first = plan.fingerprint()
    assert load(tmp_path / "m.taper").fingerprint() == first
    said = plan.nodes[0]._replace(source="other.py:1", targets=("aten.mm.default",))
    alike = plan._replace(nodes=(said, *plan.nodes[1:]), metadata={}, samples={})
    assert alike.fingerprint() == first
    half = plan.nodes[0]._replace(attrs={"alpha": 0.25})
    weights = {**plan.constants, "b": -plan.constants["b"]}
    others = [
        plan._replace(nodes=(half, *plan.nodes[1:])),
        plan._replace(constants=weights),
        plan._replace(default="main"),
    ]
    assert len({first, *(other.fingerprint() for other in others)}) == 4


def inner(data):
    """Yield the lists and dicts in plain data and in recipes."""
    if isinstance(data, (list, dict)):
        yield data
    if isinstance(data, (list, tuple, dict)):
        for item in data.values() if isinstance(data, dict) else data:
            yield from inner(item)


def test_a_loaded_plan_cannot_be_changed(tmp_path):
    report = {"passes": ["a", {"b": [1.5]}], "verified": {"trials": 3}}
    small_plan()._replace(metadata=report).save(tmp_path / "m.taper")
    weighted_plan().save(tmp_path / "w.taper")
    plan, weighted = load(tmp_path / "m.taper"), load(tmp_path / "w.taper")
    assert plan.metadata == report
    data = [*inner((plan.metadata, plan.input_tree, weighted.derived))]
    assert all(each in data for each in (report["passes"], {"trials": 3}, {"name": "q"}))
    for each in data:
        for change in (
            lambda x: x.__setitem__(0, None),
            lambda x: x.clear(),
            lambda x: x.__delitem__(slice(0)),
            lambda x: x.sort() if isinstance(x, list) else x.update(a=1),
            lambda x: x.append(0) if isinstance(x, list) else x.pop("a"),
        ):
            with pytest.raises(TypeError, match="a plan cannot be changed"):
                change(each)
    again = pickle.loads(pickle.dumps(plan.metadata))  # noqa: S301 - our own
    assert copy.deepcopy(plan.metadata) == again == report
    mappings = [value for value in plan if isinstance(value, Mapping)]
    for mapping in (*mappings, *(node.attrs for node in plan.nodes)):
        with pytest.raises(TypeError, match=r"a plan cannot be changed|does not support item"):
            mapping["x"] = None
    with pytest.raises(TypeError, match="a plan cannot be changed"):
        plan.tensors.update(plan.tensors)
    assert json.dumps(plan.metadata)
    assert type(pickle.loads(pickle.dumps(plan.tensors))) is type(plan.tensors)  # noqa: S301
    for array in (*plan.constants.values(), *plan.samples.values()):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
