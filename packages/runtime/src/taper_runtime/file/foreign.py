"""Guess a file's type from its first bytes, for error messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmap import mmap

#: Beginnings of files (PyTorch's own magic number, as it pickles it, before pickles in general).
_MAGIC = {
    b"\x93NUMPY": "a NumPy array (.npy)",
    b"OINF\0": "an OpenInfer model file (.oinf)",
    b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19": "a PyTorch checkpoint (.pt, .pth)",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
}

#: Tags of the fields of ONNX's ModelProto that may follow its first, ir_version.
_ONNX_TAGS = b"\x12\x1a\x22\x28\x32\x3a\x42\x72\xa2\xca"

_HEAD_BYTES = 1 << 10


def identify(buffer: bytes | mmap) -> str:
    """Return what a file is that has no header of safetensors; empty where unknown."""
    head = bytes(buffer[:_HEAD_BYTES])
    if not head:
        return "an empty file"
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    if head.startswith(b"PK\x03\x04"):
        return _identify_zip(head)
    if len(head) > 2 and head[0] == 8 and head[1] < 128 and head[2] in _ONNX_TAGS:
        return "an ONNX model"
    return ""


def _identify_zip(head: bytes) -> str:
    """Tell archives apart by the local header of their first member (APPNOTE.TXT, 4.3.7)."""
    name_end = 30 + int.from_bytes(head[26:28], "little")
    if head[name_end - 4 : name_end] == b".npy":
        return "a NumPy archive (.npz)"
    if head[name_end : name_end + 2] == b"FB":  # PyTorch pads with this extra field, for alignment
        return "a PyTorch file (.pt, .pth, .pt2)"
    return "a zip archive"
