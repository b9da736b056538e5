"""Files that are no plans: the error says what they are, and which file it is."""

import gc
import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import safetensors.numpy

from plan_files import PlanFile, small_file
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.file.reader import load


def written(write, *arguments):
    buffer = io.BytesIO()
    write(buffer, *arguments)
    return buffer.getvalue()


def zipped(name, content=b"", extra=b""):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.extra = extra
        archive.writestr(info, content)
    return buffer.getvalue()


def older(version):
    file = PlanFile(small_file())
    file.plan["format_version"] = version
    return file.pack()


def with_format(name):
    file = PlanFile(small_file())
    file.header["__metadata__"]["format"] = name
    return file.pack()


#: kind -> its bytes, and what the error says.
FILES = {
    "nothing": (b"", "got an empty file"),
    "npy": (written(np.save, np.ones(3)), r"got a NumPy array \(.npy\)"),
    "oinf": (b"OINF\0\2" + bytes(80), r"got an OpenInfer model file \(.oinf\)"),
    "npz": (written(np.savez, np.ones(3)), r"got a NumPy archive \(.npz\)"),
    "zip": (zipped("readme.txt"), "got a zip archive"),
    "zip_of_torch": (
        zipped("m/data.pkl", extra=b"FB\x04\x00ZZZZ"),
        r"got a PyTorch file \(.pt, .pth, .pt2\)",
    ),
    **{
        f"pickle_{version}": (pickle.dumps({"w": 1}, version), "got a pickle")
        for version in (2, 3, 4, 5)
    },
    "pickle_of_torch": (
        pickle.dumps(0x1950A86A20F9469CFC6C, 2),
        r"got a PyTorch checkpoint \(.pt, .pth\)",
    ),
    # ir_version 8, producer_name "pytorch", then a graph of 300 bytes, in protobuf's encoding
    "onnx": (b"\x08\x08\x12\x07pytorch\x3a\xac\x02" + bytes(300), "got an ONNX model"),
    # protobuf allows any order: a function of 300 bytes (field 25, a tag of two bytes) first
    "onnx_of_functions": (b"\x08\x0a\xca\x01\xac\x02" + bytes(300), "got an ONNX model"),
    # field 1 is 2326, which is no ir_version
    "other_protobuf": (b"\x08\x96\x12\x07pytorch", "got something else"),
    "text": (b"#!/usr/bin/env python\nimport torch\n", "got a text file"),
    "short_text": (b"taper", "got a text file"),
    "control_characters": (
        b"\x01\x02\x03\x04\x05\x06\x07\x08{",
        "got something else: its header would have",
    ),
    "safetensors": (
        safetensors.numpy.save({"w": np.ones(3)}),
        "got a safetensors file without a plan",
    ),
    "safetensors_of_torch": (
        safetensors.numpy.save({"w": np.ones(3)}, {"format": "pt"}),
        "got a safetensors file without a plan; its format is 'pt'",
    ),
    "older": (
        older(2),
        "expected 3 .*an older Taper wrote the file; export the model again.*, got 2",
    ),
    "newer": (older(4), "expected 3 .*a newer Taper wrote the file.*, got 4"),
    "cut_in_its_header": (small_file()[:100], "is it truncated"),
    "cut_in_its_data": (small_file()[:-10], "is the file truncated"),
}


@pytest.mark.parametrize("kind", FILES)
def test_the_error_says_what_it_is(kind, tmp_path):
    blob, message = FILES[kind]
    path = tmp_path / "model.bin"
    path.write_bytes(blob)
    with pytest.raises(PlanFormatError, match=message) as caught:
        load(path)
    field = f"{caught.value.field}: " if caught.value.shows_field else "expected "
    assert str(caught.value).startswith(f"{path}: {field}")
    assert caught.value.path == str(path)


def lowest_descriptor():
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


@pytest.mark.parametrize("kind", ["nothing", "text", "safetensors", "cut_in_its_data"])
def test_a_file_that_is_refused_is_closed(kind, tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(FILES[kind][0])
    free = lowest_descriptor()
    with pytest.raises(PlanFormatError):
        load(path)
    gc.collect()
    assert lowest_descriptor() == free


def test_a_folder_is_named(tmp_path):
    with pytest.raises(IsADirectoryError, match=tmp_path.name):
        load(tmp_path)


@pytest.mark.parametrize("name", ["\x1b]0;owned\x07", b"\xff\n"])
def test_a_path_cannot_steer_the_terminal(name, tmp_path):
    path = bytes(tmp_path) + b"/" + name if type(name) is bytes else tmp_path / name
    with open(path, "wb"):
        pass
    with pytest.raises(PlanFormatError) as caught:
        load(path)
    assert str(caught.value).isprintable()
    assert "an empty file" in str(caught.value)
