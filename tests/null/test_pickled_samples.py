"""Sample inputs of PT2 archives, read without torch: what a stranger may have pickled."""

import contextlib
import io
import os
import pickle
import sys
import types
from collections import OrderedDict

import numpy as np
import pytest

from pt2_files import members, pack
from taper_runtime import InputError, Limits, PlanFormatError, pt2

PATH = "m/data/sample_inputs/model.pt"
BYTES = {"archive/data/0": np.arange(6, dtype=np.float32).tobytes(), "archive/byteorder": b"little"}


class Stored:
    """A storage, as torch's pickles refer to one."""

    def __init__(self, kind="FloatStorage", key="0", what="storage"):
        self.refers = what, kind, key, "cpu", 6


class Rebuilt:
    """A tensor, as torch pickles it: a call of a function with a storage."""

    def __init__(self, *arguments):
        self.arguments = arguments or (Stored(), 1, (2, 2), (3, 1))

    def __reduce__(self):
        return torch_like("torch._utils", "_rebuild_tensor_v2"), (*self.arguments, False, {})


def torch_like(module, name):
    """Return a function whose name a pickle can hold, of a module that need not be there."""
    found = sys.modules.setdefault(module, types.ModuleType(module))
    made = getattr(found, name, None) or (lambda *_: None)
    made.__module__, made.__qualname__ = module, name
    setattr(found, name, made)
    return made


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        if not isinstance(value, Stored):
            return None
        what, kind, *rest = value.refers
        return (what, torch_like("torch", kind), *rest)


@pytest.fixture(autouse=True)
def _as_without_torch(monkeypatch):
    """Let the modules that the pickles name be stand-ins during a test."""
    for name in ("torch", "torch._utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))


def pickled(value, protocol=2):
    file = io.BytesIO()
    Pickler(file, protocol).dump(value)
    return file.getvalue()


def archive(code, tmp_path, files=BYTES, **options):
    code = code if isinstance(code, bytes) else pickled(code)
    inner = pack({"archive/data.pkl": code, **files})
    (tmp_path / "m.pt2").write_bytes(pack(members() | {PATH: inner}))
    return pt2.open(tmp_path / "m.pt2", **options)


def test_samples_are_listed_and_read(tmp_path):
    values = [None, True, 3, -(2**40), 1.5, "text", (), (1,), (1, 2, 3, 4), OrderedDict()]
    found = archive(((Rebuilt(), values), {"mask": {"a": Rebuilt()}}), tmp_path)
    assert found.sample_names == ["model"]
    (tensor, plain), named = found.samples()
    np.testing.assert_array_equal(tensor, np.array([[1, 2], [4, 5]], np.float32), strict=True)
    np.testing.assert_array_equal(named["mask"]["a"], tensor)
    assert not tensor.flags.writeable
    assert plain == values
    (tmp_path / "m.pt2").write_bytes(pack(members()))
    without = pt2.open(tmp_path / "m.pt2")
    assert without.sample_names == []
    with pytest.raises(InputError, match=r"model 'model' has no samples; \[\] have"):
        without.samples()
    with pytest.raises(InputError, match="unknown model 'x'"):
        without.samples("x")


def cyclic():
    inner = []
    inner.append(inner)
    return ((inner,), {})


def laughs():
    """Lists that hold each other: 2 to the power of 40 numbers in a short pickle."""
    items = [1, 1]
    for _ in range(40):
        items = [items, items]
    return ((items,), {})


def doubled():
    """Return instructions that push a tuple of two tuples of two tuples, and so on: 2^60 items."""
    steps = (b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(60))
    return b")q\x00" + b"".join(steps)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (((os.system,), {}), "expected plain data and tensors, got '(posix|nt) system'"),
        (((types.SimpleNamespace(a=1),), {}), "expected plain data and tensors, got '"),
        (((Rebuilt(Stored("UntypedStorage"), 0, (1,), (1,)),), {}), "got 'torch UntypedStorage'"),
        (((Rebuilt(Stored(key="9"), 0, (1,), (1,)),), {}), "damaged: 'data/9'"),
        (((Rebuilt(Stored(what="other"), 0, (1,), (1,)),), {}), "a storage of an unknown kind"),
        (((Rebuilt(Stored(), 0, (7,), (1,)),), {}), "within the 24 bytes"),
        (((Rebuilt(Stored(), -1, (1,), (1,)),), {}), "expected a dense tensor"),
        (((Rebuilt(Stored(), 0, (2,), (1, 1)),), {}), "expected 1 strides"),
        (((Rebuilt(Stored(), 0, (1,) * 99, (1,) * 99),), {}), "expected at most"),
        (((Rebuilt(Stored("BoolStorage"), 0, (4,), (1,)),), {}), "only bytes 0 and 1"),
        (((Rebuilt(1, 0, (1,), (1,)),), {}), "expected a dense tensor"),
        (((Stored(),), {}), "expected plain data and tensors"),
        ([1], "expected a tuple of arguments and a dict"),
        (((1,), {1: 2}), "expected a tuple of arguments and a dict"),
        (cyclic(), "expected at most 100 levels"),
        (laughs(), "objects"),
        (b"\x80\x02}" + doubled() + b"K\x01s.", "a key that is no number or text"),
        (
            b"\x80\x02(X\x07\0\0\0storagectorch\nFloatStorage\n"
            + doubled()
            + b"X\x03\0\0\0cpuK\x06tQ.",
            "a storage of an unknown kind",
        ),
        (pickle.dumps(((1,), {}), 4), "the instruction FRAME"),
        (b"\x80\x02]q\x00(K\x01s.", "no dict"),
        (b"\x80\x02K\x01t.", "a container without a beginning"),
        (b"\x80\x02h\x09.", "damaged: 9"),
        (b"\x80\x02K\x01", "damaged"),
        (b"\x80\x02K\x01K\x02.", "damaged"),
        (b"\x80\x02X\xff\xff\xff\x7f.", "damaged"),
        (b"\x80\x02r\xff\xff\xff\x7f.", "damaged"),
        (b"\x80\x02K\x01K\x01R.", "damaged"),
        (b"", "damaged"),
    ],
)
def test_what_is_no_sample_is_refused(content, message, tmp_path):
    with pytest.raises(PlanFormatError, match=message) as caught:
        archive(content, tmp_path, limits=Limits(objects=10_000)).samples()
    assert "archive['data/sample_inputs/model.pt']" in str(caught.value)


def test_limits_of_samples(tmp_path):
    content = (([*range(300)],), {})
    for limit in ("objects", "header_bytes"):
        with pytest.raises(PlanFormatError, match=limit):
            archive(content, tmp_path, limits=Limits(**{limit: 200})).samples()
    (tmp_path / "m.pt2").write_bytes(pack(members() | {PATH: pack({"a/b": b""})}))
    with pytest.raises(PlanFormatError, match=r"with data\.pkl"):
        pt2.open(tmp_path / "m.pt2").samples()
    with pytest.raises(PlanFormatError, match=r"byteorder: expected 'little'"):
        archive(((), {}), tmp_path, {"archive/byteorder": b"big"}).samples()


def test_any_changed_byte_is_refused_or_read(tmp_path):
    """No change of the pickle ends in another error."""
    code = pickled(((Rebuilt(), [1, {"a": 2.5}]), {"k": "text"}))
    rng = np.random.default_rng(0)
    for at in range(len(code)):
        changed = bytearray(code)
        changed[at] = rng.integers(256)
        with contextlib.suppress(PlanFormatError):
            archive(bytes(changed), tmp_path).samples()
