"""Files broken at random: whatever loads is valid, everything else is refused as such."""

import copy
import json
from contextlib import suppress
from copy import deepcopy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from block_plans import CARRYING, two_entries
from op_samples import SAMPLED, samples_of, types_of
from plan_files import PlanFile, pack, small_file
from plan_oracle import Machine
from several_outputs import AFFINE, HALVES, registered
from sized_plans import sized_plan
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.executor.interpreted import InterpretedExecutor
from taper_runtime.file.container import dump_json
from taper_runtime.file.reader import loads
from taper_runtime.file.writer import to_document
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec

fuzz = settings(
    max_examples=120,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def blob():
    return small_file()


def check_message(text):
    """One line of bounded length, whatever the file says."""
    assert text.isprintable()
    assert len(text) < 600


def load_or_refuse(blob):
    """What loads has to prove itself by running on marked memory."""
    try:
        plan = loads(blob)
    except PlanFormatError as error:
        check_message(str(error))
        return
    if sum(spec.nbytes for spec in plan.tensors.values()) <= 2**16:
        Machine(plan).run()


@fuzz
@given(data=st.data())
def test_flipped_bytes(blob, data):
    broken = bytearray(blob)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    load_or_refuse(bytes(broken))


@fuzz
@given(junk=st.binary(max_size=200))
def test_junk(junk):
    load_or_refuse(junk)
    load_or_refuse(len(junk).to_bytes(8, "little") + junk)
    load_or_refuse((len(junk) + 2).to_bytes(8, "little") + b"{" + junk + b"}")


def paths(value, path=()):
    """Every place in a JSON value."""
    if path:
        yield path
    items = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in items:
        yield from paths(value[key], (*path, key))


def look_up(value, path):
    for key in path:
        value = value[key]
    return value


#: 4300 digits are the most that Python reads or prints: what these are multiplied to has more.
LONG = [10**400, 10**4000, 10**4299, -(10**4299)]

wild = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.sampled_from([64, 128, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63), *LONG]),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from("xwbhrstuy"),
    st.just([]),
    st.just({}),
    st.lists(st.integers(-2, 9), max_size=3),
    st.lists(st.sampled_from([1, -1, 2**62, *LONG]), max_size=3),
)


@fuzz
@given(data=st.data())
def test_mutated_json(blob, data):
    file = PlanFile(blob)
    for _ in range(data.draw(st.integers(1, 3))):
        root = data.draw(st.sampled_from([file.plan, file.plan, file.plan, file.header]))
        places = list(paths(root))
        *parents, key = data.draw(st.sampled_from(places))
        holder = look_up(root, parents)
        how = data.draw(st.sampled_from(["replace", "copy", "remove", "add", "nudge"]))
        if how == "replace":
            holder[key] = data.draw(wild)
        elif how == "copy":
            holder[key] = copy.deepcopy(look_up(root, data.draw(st.sampled_from(places))))
        elif how == "remove":
            del holder[key]
        elif how == "add" and isinstance(holder, list):
            holder.insert(key, data.draw(wild))
        elif how == "nudge" and type(holder[key]) is int:
            holder[key] += data.draw(st.sampled_from([-64, -1, 1, 4, 64]))
    load_or_refuse(file.pack())


@fuzz
@given(data=st.data())
def test_mutated_placements(blob, data):
    """Mostly plausible placements, some of them valid."""
    file = PlanFile(blob)
    for name in data.draw(st.sets(st.sampled_from("hrstu"), max_size=3)):
        tensor = file.plan["tensors"][name]
        tensor["root"] = data.draw(st.sampled_from(["h", "t", "y", name]))
        tensor["offset"] = data.draw(st.sampled_from([0, 16, 64, 128]))
    for node in file.plan["nodes"]:
        if data.draw(st.integers(0, 4)) == 0:
            node["scratch"] = [data.draw(st.sampled_from([0, 64, 128])), 64]
    load_or_refuse(file.pack())


@pytest.fixture(scope="module")
def sized_blob(tmp_path_factory):
    path = tmp_path_factory.mktemp("sized") / "m.taper"
    sized_plan().save(path)
    return path.read_bytes()


factors = st.one_of(
    st.sampled_from(["B", "S", "2*S", "B*S", "9" * 19, "9" * 20, "0", "-1"]),
    st.builds("*".join, st.lists(st.sampled_from(["9" * 19, "B", "S"]), max_size=100)),
)
expressions = st.one_of(
    factors,
    st.builds("{} + {}".format, factors, factors),
    st.builds("{}({}, {})".format, st.sampled_from(["floordiv", "min", "max"]), factors, factors),
    st.text("BS0129*+- ,()", max_size=20),
)


@fuzz
@given(data=st.data())
def test_mutated_expressions(sized_blob, data):
    file = PlanFile(sized_blob)
    tensors = file.plan["tensors"]
    places = [
        (tensors[name][key], index)
        for name in tensors
        for key in ("shape", "strides")
        for index in range(len(tensors[name][key]))
    ]
    places += [(tensors[name], "offset") for name in tensors]
    for _ in range(data.draw(st.integers(1, 4))):
        holder, key = data.draw(st.sampled_from(places))
        holder[key] = data.draw(st.one_of(expressions, wild))
    with suppress(PlanFormatError):
        loads(file.pack())


def single_node(op, sample):
    """A plan that is one sample of an op."""
    specs, placements = {}, {}
    types = types_of(sample.inputs)
    named = {f"x{i}": (t, "input") for i, t in enumerate(types) if t is not None}
    results = op.infer_types(types, sample.attrs)
    named |= {f"y{i}": (t, "output") for i, t in enumerate(results)}
    for name, (tensor_type, role) in named.items():
        specs[name] = TensorSpec(name, tensor_type.dtype, tensor_type.shape, role)
        placements[name] = Placement(name, 0, contiguous_strides(tensor_type.shape))
    inputs, outputs = ([name for name in named if name[0] == first] for first in "xy")
    reads = tuple(None if t is None else f"x{i}" for i, t in enumerate(types))
    node = PlanNode(op.name, reads, tuple(outputs), sample.attrs)
    return Plan((node,), specs, placements, tuple(inputs), tuple(outputs), {})


sizes = st.sampled_from([-1, 0, 1, 2, 3, 7, 2**31, 2**40, 2**62])
attr_values = st.one_of(
    sizes, st.lists(sizes, max_size=5), wild, st.lists(st.sampled_from(["ADD", "EXP", "NONE"]))
)


@settings(fuzz, max_examples=160)
@given(data=st.data())
def test_mutated_nodes(data):
    """An op's type rule stands between the file and the kernel: it may only refuse."""
    op = data.draw(st.sampled_from(SAMPLED))
    plain = [s for s in samples_of(op.name) if {*s.formats.values()} <= {"plain"}]
    sample = data.draw(st.sampled_from(plain))
    plan = json.loads(dump_json(to_document(single_node(op, sample))))
    node, tensors = plan["nodes"][0], plan["tensors"]
    for _ in range(data.draw(st.integers(1, 3))):
        what = data.draw(st.sampled_from(["attr", "shape", "dtype", "inputs"]))
        target = tensors[data.draw(st.sampled_from(sorted(tensors)))]
        if what == "attr" and op.attrs:
            node["attrs"][data.draw(st.sampled_from(sorted(op.attrs)))] = data.draw(attr_values)
        elif what == "shape":
            shape = data.draw(st.lists(sizes.filter(lambda size: size >= 0), max_size=5))
            target.update(shape=shape, strides=list(contiguous_strides(tuple(shape))))
        elif what == "dtype":
            target["dtype"] = data.draw(st.sampled_from(sorted(DTYPES)))
        elif what == "inputs":
            node["inputs"] = data.draw(
                st.lists(st.sampled_from([*plan["inputs"], "y0", None]), max_size=5)
            )
    with suppress(PlanFormatError):
        loads(pack(json.dumps({"__metadata__": {"format": "taper", "plan": json.dumps(plan)}})))


def places(value):
    """Every place in JSON: what holds it, and its key."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


@settings(fuzz, max_examples=160)
@given(data=st.data())
def test_mutated_blocks_and_entries(data):
    """Anything anywhere, or what stands elsewhere in the plan: a block in itself, say."""
    with registered(HALVES, AFFINE, CARRYING):
        plan = json.loads(dump_json(to_document(two_entries())))
        for _ in range(data.draw(st.integers(1, 3))):
            holder, key = data.draw(st.sampled_from(list(places(plan))))
            other, at = data.draw(st.sampled_from(list(places(plan))))
            holder[key] = deepcopy(data.draw(st.just(other[at]) | wild))
        w = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
        header = {"__metadata__": {"format": "taper", "plan": json.dumps(plan)}, "w": w}
        with suppress(PlanFormatError):
            InterpretedExecutor.compile(loads(pack(json.dumps(header), bytes(24))))
