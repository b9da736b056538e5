"""Tables of other people's kernels: whatever numbers they hold, an error names what is wrong."""

import ctypes
import platform
import random

import numpy as np
import pytest

from taper_runtime.base.errors import InputError, KernelError
from taper_runtime.native import _kernels
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType


class Attr(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("type", ctypes.c_int), ("offset", ctypes.c_size_t))


class Variant(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("other_bits", ctypes.c_bool),
        ("rows", ctypes.c_int32),
        ("columns", ctypes.c_int32),
    )


class Kernel(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("op", ctypes.c_char_p),
        ("needs", ctypes.c_char_p),
        ("variants", ctypes.POINTER(Variant)),
        ("output", ctypes.c_uint64),
        ("inputs", ctypes.c_uint64 * 4),
        ("n_operands", ctypes.c_int32),
        ("attrs", ctypes.POINTER(Attr)),
        ("n_attrs", ctypes.c_size_t),
        ("attrs_bytes", ctypes.c_size_t),
        ("state_bytes", ctypes.c_size_t),
        ("prepare", ctypes.c_void_p),
        ("run", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
    )


class Library(ctypes.Structure):
    _fields_ = (
        ("abi_version", ctypes.c_int32),
        ("kernel_bytes", ctypes.c_int32),
        ("tensor_bytes", ctypes.c_int32),
        ("call_bytes", ctypes.c_int32),
        ("n_kernels", ctypes.c_int32),
        ("kernels", ctypes.POINTER(Kernel)),
    )


class Work(ctypes.Structure):
    _fields_ = (
        ("tasks", ctypes.c_int64),
        ("scratch_bytes", ctypes.c_size_t),
        ("phases", ctypes.c_int64),
        ("variant", ctypes.c_int32),
        ("extra_flops", ctypes.c_int64),
        ("scratch_traffic", ctypes.c_int64),
    )


PREPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Work))
RUN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p
)
FLOAT32 = 1 | 1 << 32
TENSOR_BYTES, CALL_BYTES = 160, 64
#: Kernels in the memory of a table: what counts too many reads the others, which are zeros.
ROOM = 4100


class Table:
    """The table of a library with one kernel of SOFTMAX."""

    def __init__(self, work=(1, 0, 0)):
        def prepare(call, made):
            for (field, _), value in zip(Work._fields_, work, strict=False):
                setattr(made.contents, field, value)
            return 0

        self.functions = [PREPARE(prepare), RUN(lambda *arguments: 0)]
        prepare, run = (ctypes.cast(each, ctypes.c_void_p).value for each in self.functions)
        self.attrs = (Attr * 70)(Attr(b"axis", 0, 0), Attr(b"log", 2, 8))
        self.variants = (Variant * 70)(Variant(b"fast", True, 2, 8), Variant(b"slow"))
        self.kernels = (Kernel * ROOM)()
        self.kernels[0] = Kernel(
            b"mine", b"SOFTMAX", None, self.variants, FLOAT32, (FLOAT32, 0, 0, 0), 1, self.attrs,
            2, 16, 64, prepare, run, None,
        )  # fmt: skip
        self.library = Library(3, ctypes.sizeof(Kernel), TENSOR_BYTES, CALL_BYTES, 1, self.kernels)

    def read(self):
        return _kernels.read_library(ctypes.addressof(self.library), self, "lib.so")


def prepared(kernel):
    """A SOFTMAX of 2 x 3 floats by this kernel alone."""
    op, operand = REGISTRY["SOFTMAX"], (TensorType("float32", (2, 3)), (3, 1))
    attrs = op.complete({"axis": 1})
    return _kernels.prepare(op, attrs, [operand], [operand], kernels=(kernel,))


def test_a_good_table_is_read():
    table = Table()
    (kernel,) = table.read()
    assert (kernel.name, kernel.op, kernel.attrs) == (
        "mine", "SOFTMAX", {"axis": "int", "log": "bool"},
    )  # fmt: skip
    assert kernel.variants == [("fast", True, (2, 8)), ("slow", False, None)]
    assert (kernel.needs, kernel.is_here) == ([], True)
    node = prepared(kernel)
    assert (node.kernel_name, node.tasks) == ("mine", 1)
    x = np.ones((2, 3), np.float32)
    node.run([x], [x.copy()], 2)


@pytest.mark.parametrize(
    ("part", "field", "value", "words"),
    [
        ("library", "abi_version", 2, "expected version 3 of the interface of kernels, got 2"),
        ("library", "kernel_bytes", 0, "expected structs of"),
        ("library", "tensor_bytes", -1, "expected structs of"),
        ("library", "call_bytes", 2**31 - 1, "expected structs of"),
        ("library", "n_kernels", -1, "expected 0 to 4096 kernels, got -1"),
        ("library", "n_kernels", 2**31 - 1, "expected 0 to 4096 kernels, got 2147483647"),
        ("library", "n_kernels", 2, "kernel 1: name: expected a name, got none"),
        ("library", "kernels", None, "expected 1 kernels, got no array of them"),
        ("kernel", "name", None, "kernel 0: name: expected a name, got none"),
        ("kernel", "name", b"x" * 100_000, "kernel 0: name: .* fewer than 256 bytes, got 'xxx"),
        ("kernel", "name", b"\x1b[2J", "kernel 0: name: expected printable UTF-8"),
        ("kernel", "name", b"\xff\xfe", "kernel 0: name: expected printable UTF-8"),
        ("kernel", "op", None, "kernel 0, 'mine': op: expected a name"),
        ("kernel", "op", b"x" * 300, "kernel 0, 'mine': op: .* fewer than 256"),
        ("kernel", "needs", b"x" * 300, "kernel 0, 'mine': needs: .* fewer than 256"),
        ("kernel", "needs", b"avx512_vni", "needs: unknown feature 'avx512_vni'; did you mean"),
        ("kernel", "needs", b"baseline ", "needs: unknown feature ''"),
        ("variant", "name", b"slow", "expected variants of different names, got 'slow' twice"),
        ("variant", "name", b"\xff", "variant 0: expected printable UTF-8"),
        ("kernel", "n_operands", -1, "expected 0 to 4 operands, got -1"),
        ("kernel", "n_operands", 5, "expected 0 to 4 operands, got 5"),
        ("kernel", "attrs", None, "0 to 64 attrs with descriptors, got 2 without"),
        (
            "kernel",
            "n_attrs",
            2**64 - 1,
            "0 to 64 attrs with descriptors, got 18446744073709551615",
        ),
        ("kernel", "n_attrs", 3, "attr 2: expected a name, got none"),
        ("kernel", "attrs_bytes", 0, "attr 'axis': expected it inside the struct"),
        ("kernel", "attrs_bytes", 2**60, "attrs and a state of at most"),
        ("kernel", "state_bytes", 2**64 - 1, "attrs and a state of at most"),
        ("kernel", "prepare", None, "expected the functions prepare and run"),
        ("kernel", "run", None, "expected the functions prepare and run"),
        ("attr", "name", None, "attr 0: expected a name"),
        ("attr", "name", b"x" * 300, "attr 0: .* fewer than 256"),
        ("attr", "type", -1, "attr 'axis': expected a type, got 4294967295"),
        ("attr", "type", 99, "attr 'axis': expected a type, got 99"),
        ("attr", "offset", 16, "attr 'axis': expected it inside the struct"),
        ("attr", "offset", 2**64 - 8, "attr 'axis': expected it inside the struct"),
        ("attr", "offset", 3, "attr 'axis': expected it aligned, got offset 3"),
    ],
)
def test_what_is_wrong_in_a_table_is_named(part, field, value, words):
    table = Table()
    places = {
        "library": table.library,
        "kernel": table.kernels[0],
        "attr": table.attrs[0],
        "variant": table.variants[0],
    }
    setattr(places[part], field, value)
    with pytest.raises(InputError, match=f"lib.so: .*{words}|lib.so: {words}"):
        table.read()


@pytest.mark.parametrize(
    "work",
    [(-1, 0, 0), (1, 2**64 - 1, 0), (1, 2**50, 1), (1, 0, -1), (3, 0, 2), (-(2**63), 0, 2**63 - 1)],
)
def test_work_that_makes_no_sense_is_refused(work):
    (kernel,) = Table(work).read()
    with pytest.raises(KernelError, match="kernel 'mine': expected tasks of at least 0"):
        prepared(kernel)


@pytest.mark.parametrize("more", [(3, 0, 0), (-1, 0, 0), (0, -1, 0), (1, 0, -1)])
def test_what_a_kernel_says_of_its_variant_is_checked(more):
    (kernel,) = Table((1, 0, 0, *more)).read()
    with pytest.raises(KernelError, match="kernel 'mine': expected one of its 2 variants"):
        prepared(kernel)


def test_a_list_of_variants_without_an_end_is_refused():
    table = Table()
    for i in range(70):
        table.variants[i].name = b"v%d" % i
    with pytest.raises(InputError, match="expected at most 64 variants"):
        table.read()


def test_a_row_that_needs_what_no_cpu_here_has_is_passed_over():
    table = Table()
    table.kernels[0].needs = b"neon" if platform.machine() == "x86_64" else b"avx2 baseline"
    assert table.read() == []
    table.kernels[0].needs = b"baseline"
    assert [kernel.needs for kernel in table.read()] == [["baseline"]]


def test_a_kernel_without_operands_takes_none():
    table = Table()
    table.kernels[0].n_operands = 0
    (kernel,) = table.read()
    assert prepared(kernel) is None


@pytest.mark.parametrize(
    "shape", [(2**40, 2**40), (2**40, 2**40, 0), (2**62, 2, 0), (-1, 3), (2**63 - 1,), (0, 2**49)]
)
def test_no_kernel_is_asked_about_tensors_beyond_memory(shape):
    """The product of their dims does not fit in 64 bits, or hardly."""
    op = REGISTRY["SOFTMAX"]
    operand = (TensorType("float32", shape), (0,) * len(shape))
    attrs = op.complete({"axis": 0})
    for kernels in [(None,), tuple(Table().read())]:
        assert _kernels.prepare(op, attrs, [operand], [operand], kernels=kernels) is None


NUMBERS = (0, 1, 2, 3, 7, 8, 9, 16, 64, 65, 255, 4096, 4097, 2**31 - 1, 2**31, 2**63, 2**64 - 1)
NAMES = (None, b"", b"x", b"SOFTMAX", b"log", b"axis", b"avx512_vnni", b"\xff", b"x" * 1000)


def test_random_tables_are_refused_or_serve():
    rng, outcomes = random.Random(0), set()
    for _ in range(1500):
        table = Table()
        for _ in range(rng.randint(1, 3)):
            place = rng.choice((table.library, table.kernels[0], *table.attrs[:2]))
            name, kind = rng.choice(place._fields_)
            if kind is ctypes.c_char_p:
                setattr(place, name, rng.choice(NAMES))
            elif kind in (ctypes.c_void_p, *map(ctypes.POINTER, (Attr, Kernel, Variant))):
                setattr(place, name, None)
            elif name == "inputs":
                place.inputs[rng.randrange(4)] = rng.choice(NUMBERS)
            else:
                setattr(place, name, kind(rng.choice(NUMBERS)).value)
        try:
            kernels = table.read()
        except InputError:
            outcomes.add("refused")
            continue
        for kernel in kernels:
            if kernel.op == "SOFTMAX" and kernel.attrs == {"axis": "int", "log": "bool"}:
                node = prepared(kernel)
                outcomes.add("passed on" if node is None else "served")
    assert outcomes == {"refused", "passed on", "served"}
