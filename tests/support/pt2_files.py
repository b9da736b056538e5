"""PT2 archives made without torch, to be damaged byte by byte."""

from __future__ import annotations

import copy
import io
import json
import zipfile

import numpy as np


def tensor_meta(shape, strides, offset=0, dtype=7):
    """What torch's schema says of a dense tensor."""
    return {
        "dtype": dtype,
        "sizes": [{"as_int": n} for n in shape],
        "requires_grad": False,
        "device": {"type": "cpu", "index": None},
        "strides": [{"as_int": n} for n in strides],
        "storage_offset": {"as_int": offset},
        "layout": 7,
    }


def payload(path_name, meta, *, use_pickle=False):
    return {
        "path_name": path_name,
        "is_param": True,
        "use_pickle": use_pickle,
        "tensor_meta": meta,
    }


#: Two weights of one record, one of them transposed, and one of its own.
CONFIG = {
    "config": {
        "table": payload("weight_0", tensor_meta((3, 4), (4, 1))),
        "tied": payload("weight_0", tensor_meta((4, 2), (1, 4), offset=4)),
        "steps": payload("weight_1", tensor_meta((2,), (1,), dtype=5)),
    }
}
TABLE = np.arange(12, dtype=np.float32)
STEPS = np.array([7, -1])


def members(config=CONFIG, **more):
    """Return the files of an archive by path; those of ``more`` at paths with dots for slashes."""
    return {
        "m/data/weights/weight_0": TABLE.tobytes(),
        "m/data/weights/weight_1": STEPS.tobytes(),
        "m/data/weights/model_weights_config.json": json.dumps(config).encode(),
        "m/models/model.json": b"{}",
        "m/extra/notes/a.txt": b"hello",
        "m/archive_format": b"pt2",
        "m/archive_version": b"0",
        "m/byteorder": b"little",
        "m/.data/version": b"6\n",
    } | more


def edited(**changes):
    """Return the config with other values in the entry of ``table``; None leaves a key out."""
    config = copy.deepcopy(CONFIG)
    entry = config["config"]["table"]
    for key, value in changes.items():
        target = entry if key in entry else entry["tensor_meta"]
        target[key] = value
        if value is None:
            del target[key]
    return config


def pack(files, compression=zipfile.ZIP_STORED):
    """Return the bytes of a zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = compression
            archive.writestr(info, content)
    return buffer.getvalue()
