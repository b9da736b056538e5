"""PT2 archives without torch: what they hold, and what a stranger may have put into one."""

import json
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pt2_files import CONFIG, STEPS, TABLE, edited, members, pack, payload, tensor_meta
from taper_runtime import Limits, pt2
from taper_runtime.base.errors import InputError, PlanFormatError


def opened(files, tmp_path, **options):
    path = tmp_path / "model.pt2"
    path.write_bytes(files if isinstance(files, bytes) else pack(files, **options))
    return pt2.open(path)


def test_weights_are_views_of_the_file_and_share_what_they_shared(tmp_path):
    archive = opened(members(), tmp_path)
    weights = archive.weights()
    assert archive.model_names == ["model"]
    assert archive.weight_names() == list(weights) == ["table", "tied", "steps"]
    np.testing.assert_array_equal(weights["table"], TABLE.reshape(3, 4))
    np.testing.assert_array_equal(weights["tied"], TABLE[4:].reshape(2, 4).T)
    np.testing.assert_array_equal(weights["steps"], STEPS)
    assert np.shares_memory(weights["table"], weights["tied"])
    assert not any(array.flags.writeable for array in weights.values())
    assert all(array.ctypes.data % array.itemsize == 0 for array in weights.values())
    assert archive.dtypes() == {"table": "float32", "tied": "float32", "steps": "int64"}


def test_an_archive_outlives_its_file(tmp_path):
    archive = opened(members(), tmp_path)
    (tmp_path / "model.pt2").unlink()
    np.testing.assert_array_equal(archive.weights()["steps"], STEPS)


def test_files_of_the_user_are_given_by_name(tmp_path):
    archive = opened(members(), tmp_path)
    assert archive.extra_names == ["notes/a.txt"]
    assert archive.extra("notes/a.txt") == b"hello"
    with pytest.raises(InputError, match=r"unknown extra file 'b'; expected one of \['notes/a.txt"):
        archive.extra("b")


def test_a_model_is_chosen_by_name(tmp_path):
    more = {"m/models/other.json": b"{}"}
    archive = opened(members() | more, tmp_path)
    assert archive.model_names == ["model", "other"]
    assert archive.weight_names("model") == list(CONFIG["config"])
    assert archive.weights("other") == {}
    with pytest.raises(InputError, match=r"no model named; expected one of \['model', 'other'\]"):
        archive.weights()
    with pytest.raises(InputError, match=r"unknown model 'x'; expected one of"):
        archive.weights("x")


def test_empty_and_scalar_weights(tmp_path):
    config = {
        "config": {
            "none": payload("weight_1", tensor_meta((0, 3), (3, 1), offset=9)),
            "one": payload("weight_1", tensor_meta((), (), offset=1, dtype=5)),
            "spread": payload("weight_1", tensor_meta((3,), (0,), dtype=5)),
        }
    }
    weights = opened(members(config), tmp_path).weights()
    assert weights["none"].shape == (0, 3)
    assert weights["one"] == -1
    assert weights["spread"].tolist() == [7, 7, 7]


def test_the_stride_of_a_dim_of_one_is_not_used(tmp_path):
    config = edited(sizes=[1, 2, 1], strides=[2**63 - 1, 1, 2**40])
    table = opened(members(config), tmp_path).weights()["table"]
    np.testing.assert_array_equal(table, TABLE[:2].reshape(1, 2, 1))


@pytest.mark.parametrize(
    ("name", "needed"),
    [("members", len(members())), ("header_bytes", None), ("objects", None), ("tensors", 3)],
)
def test_more_than_a_limit_is_refused_and_as_much_is_not(name, needed):
    files = members()
    text = files["m/data/weights/model_weights_config.json"]
    if needed is None:
        needed = len(text) if name == "header_bytes" else text.count(b"{") + text.count(b"[")
    raw = pack(files)
    assert len(pt2.Archive(raw, limits=Limits()._replace(**{name: needed})).weights()) == 3
    with pytest.raises(PlanFormatError, match=rf"Limits\.{name} sets this limit"):
        pt2.Archive(raw, limits=Limits()._replace(**{name: needed - 1})).weights()


def test_bools_of_one_record_are_checked_once(monkeypatch, tmp_path):
    """Else a file of many bools over one large record has work without end."""
    flags = {f"f{i}": payload("weight_2", tensor_meta((4,), (1,), dtype=12)) for i in range(50)}
    files = members({"config": flags}) | {"m/data/weights/weight_2": bytes([0, 1, 1, 0])}
    looks = []

    class Record(np.ndarray):
        def max(self, **options):
            looks.append(1)
            return super().max(**options)

    archive = opened(files, tmp_path)
    read = archive._record
    monkeypatch.setattr(archive, "_record", lambda path: read(path).view(Record))
    assert len(archive.weights()) == 50
    assert len(looks) == 1


PICKLED = {"m/data/weights/model.pt": b"\x80\x02", "m/models/model.json": b"{}"}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            members(edited(use_pickle=True)),
            r"weights\['table'\]: .* not pickled, got .*'weight_0'.*frontend",
        ),
        (
            {"m/archive_format": b"pt2", **PICKLED},
            r"archive\['data/weights/model.pt'\]: .* not pickled; taper_frontend",
        ),
        (members(edited(path_name="weight_9")), "expected a record of the archive, got 'weight_9'"),
        (members(edited(path_name="../../models/model.json")), "expected a record of the archive"),
        (members(edited(path_name=None)), "expected a record of the archive, got None"),
        (members(edited(sizes=[{"as_int": 4}, {"as_int": 4}])), "within the 48 bytes .* got 64"),
        (members(edited(sizes=[{"as_int": 1}, {"as_int": 13}])), "within the 48 bytes .* got 52"),
        (members(edited(storage_offset={"as_int": 1})), "within the 48 bytes .* got 52"),
        (
            members(edited(strides=[{"as_int": 1}])),
            r"strides: expected 2 strides, one per dim, got 1",
        ),
        (members(edited(strides=[{"as_int": -4}, 1])), r"strides: .* at least 0, got -4"),
        (members(edited(sizes=[{"as_expr": "s0"}, 4])), r"sizes: .* at least 0, got None"),
        (members(edited(sizes=[2**63, 4])), r"sizes: .* got an integer of 64 bits"),
        (members(edited(sizes=[2**62, 2**62], strides=[0, 0])), r"sizes: expected at most 281474"),
        (
            members(edited(sizes=[1] * 33, strides=[1] * 33)),
            r"sizes: expected at most 32 dims, got 33",
        ),
        (members(edited(sizes=[2**61, 0])), r"sizes: expected at most 281474"),
        (members(edited(sizes=[0, 2**62, 2**62], strides=[1, 1, 1])), r"sizes: expected at most"),
        (members(edited(sizes=[2**31] * 10 + [0], strides=[1] * 11)), r"sizes: expected at most"),
        (members(edited(sizes=7)), r"sizes: expected an array, got 7"),
        (members(edited(dtype=29)), r"dtype: expected one of 1 \(uint8\), .* got 29"),
        (members(edited(dtype=True)), r"dtype: expected one of .* got True"),
        (members(edited(dtype=12)), r"only bytes 0 and 1 in a bool tensor"),
        (members(edited(layout=1)), r"layout: expected a dense tensor \(7\), got 1"),
        (members(edited(tensor_meta=None)), r"tensor_meta: expected an object, got None"),
        (members({"config": {"table": 3}}), r"weights\['table'\]: expected an object, got 3"),
        (members({"config": []}), r"expected an object with the key 'config'"),
        (members([]), r"expected an object with the key 'config'"),
        (
            members() | {"m/data/weights/model_weights_config.json": b'{"config": NaN}'},
            "expected JSON",
        ),
        (members() | {"m/data/weights/model_weights_config.json": b"\xff"}, "expected UTF-8"),
        (
            members() | {"m/data/weights/model_weights_config.json": b"[" * 10**6},
            "nested too deeply",
        ),
    ],
)
def test_what_is_wrong_with_a_weight_is_named(files, message, tmp_path):
    archive = opened(files, tmp_path)
    with pytest.raises(PlanFormatError, match=message) as error:
        archive.weights()
    assert error.value.path.endswith("model.pt2")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"m/archive_format": b"zip"}, r"archive\['archive_format'\]: expected 'pt2', got b'zip'"),
        ({"m/data.pkl": b""}, r"archive\['archive_format'\]: expected 'pt2', got b''"),
        (members() | {"m/byteorder": b"big"}, r"archive\['byteorder'\]: expected 'little'"),
        (members() | {"m/archive_version": b"1"}, r"archive\['archive_version'\]: expected '0'"),
        ({"serialized_exported_program.json": b"{}"}, r"archive"),
        (
            {"m/serialized_exported_program.json": b"{}"},
            r"torch 2.8 or later, got an older one with pickled weights",
        ),
        (members() | {"other/x": b""}, r"expected one folder with all files, .* got an array"),
        (members() | {"m/../../etc/passwd": b""}, "expected a path inside the archive"),
        (members() | {"/m/x": b""}, "expected a path inside the archive"),
        (members() | {"m/a\\..\\b": b""}, "expected a path inside the archive"),
        (members() | {"m//x": b""}, "expected a path inside the archive"),
        ({}, r"expected one folder with all files"),
    ],
)
def test_no_archive_of_torch(files, message, tmp_path):
    with pytest.raises(PlanFormatError, match=message):
        opened(files, tmp_path)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    bomb = members() | {"m/extra/zeros": bytes(10**7)}
    with pytest.raises(PlanFormatError, match="as torch stores it, not compressed"):
        opened(bomb, tmp_path, compression=zipfile.ZIP_DEFLATED)


def test_a_name_that_stands_twice_is_refused(tmp_path):
    raw = pack(members() | {"m/archive_formaT": b"pt2"}).replace(
        b"m/archive_formaT", b"m/archive_format"
    )
    with pytest.raises(PlanFormatError, match="expected each name once"):
        opened(raw, tmp_path)


def test_damaged_bytes_are_found_by_their_checksum(tmp_path):
    raw = pack(members()).replace(TABLE.tobytes(), TABLE[::-1].tobytes())
    archive = opened(raw, tmp_path)
    with pytest.raises(PlanFormatError, match=r"weight_0'\]: damaged: expected the checksum"):
        archive.weights()


def entry(raw, name):
    """Return where the directory's entry of a member begins."""
    at = raw.rfind(name)
    return raw.rfind(b"PK\1\2", 0, at)


def poked(raw, at, layout, value):
    raw = bytearray(raw)
    struct.pack_into(layout, raw, at, value)
    return bytes(raw)


WHOLE = pack(members())
END = len(WHOLE) - 22
AT = entry(WHOLE, b"m/data/weights/weight_1")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "expected a zip archive"),
        (b"PK\5\6", "expected a zip archive"),
        (WHOLE[:-1], "expected a zip archive"),
        (WHOLE[:END], "expected a zip archive"),
        (WHOLE + b"x", "at the end of the file"),
        (WHOLE[100:], "expected"),
        (poked(WHOLE, END + 10, "<H", 5), "one file"),
        (poked(poked(WHOLE, END + 10, "<H", 5), END + 8, "<H", 5), "expected 5 members, got 9"),
        (poked(WHOLE, END + 12, "<L", 2**31), "expected an end of at most"),
        (poked(WHOLE, END + 16, "<L", 2**31), "expected an end of at most"),
        (poked(WHOLE, END + 16, "<L", 3), "expected an entry at this byte"),
        (poked(WHOLE, AT + 8, "<H", 1), "as torch stores it"),
        (poked(WHOLE, AT + 20, "<L", 17), "expected 17 bytes, because .* not compressed, got 16"),
        (poked(poked(WHOLE, AT + 20, "<L", 10**6), AT + 24, "<L", 10**6), "before the directory"),
        (poked(poked(WHOLE, AT + 20, "<L", 400), AT + 24, "<L", 400), "one that overlaps another"),
        (poked(WHOLE, AT + 24, "<L", 2**32 - 1), "expected sizes of 64 bits"),
        (poked(WHOLE, AT + 28, "<H", 60000), "an entry within its"),
        (poked(WHOLE, AT + 42, "<L", 2**31), "expected the header of a member at"),
        (poked(WHOLE, AT + 42, "<L", 0), "expected the same name in the directory"),
        (poked(WHOLE, AT + 46, "<B", 0xFF), "expected names in UTF-8|one name"),
    ],
)
def test_a_directory_that_lies_is_refused(raw, message, tmp_path):
    with pytest.raises(PlanFormatError, match=message):
        opened(raw, tmp_path)


def test_too_many_members_are_refused_before_they_are_read(tmp_path):
    raw = poked(poked(WHOLE, END + 10, "<H", 0xFFFF), END + 8, "<H", 0xFFFF)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, END, 1)
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 10**9, 10**9, 0, 0)
    with pytest.raises(PlanFormatError, match=r"at most 100000, got 1000000000; Limits\.members"):
        opened(raw[:END] + end64 + locator + raw[END:], tmp_path)


@settings(max_examples=120)
@given(data=st.data())
def test_a_byte_changed_anywhere_is_refused_or_harmless(data):
    """Whatever stands in the file, the archive gives arrays or a PlanFormatError."""
    raw = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, raw[at] ^ 1, raw[at] ^ 0x40]))
    try:
        archive = pt2.Archive(bytes(raw))
        for model in archive.model_names:
            for array in archive.weights(model).values():
                array.sum()
    except PlanFormatError:
        pass


def test_the_config_that_the_edits_start_from_is_right(tmp_path):
    """No edit above is refused for another reason than its own."""
    assert json.loads(json.dumps(edited())) == CONFIG
    assert opened(members(edited()), tmp_path).weights()["table"].shape == (3, 4)
