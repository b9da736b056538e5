"""Guess a file's type from its first bytes, for error messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmap import mmap

#: The first bytes of file types. PyTorch's pickled magic number comes before pickles in general.
_MAGIC = {
    b"\x93NUMPY": "a NumPy array (.npy)",
    b"OINF\0": "an OpenInfer model file (.oinf)",
    b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19": "a PyTorch checkpoint (.pt, .pth)",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
}

#: The tags of fields that may follow the first one, ir_version, in ONNX's ModelProto.
_ONNX_TAGS = b"\x12\x1a\x22\x28\x32\x3a\x42\x72\xa2\xca"

_HEAD_BYTES = 1 << 10

#: How many of them must be readable in a text file.
_TEXT_BYTES = 8


def identify(buffer: bytes | mmap) -> str:
    """Return the type of a file that has no safetensors header; empty if it is unknown."""
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
    if head[:_TEXT_BYTES].isascii() and head[:_TEXT_BYTES].decode().strip().isprintable():
        return "a text file"
    return ""


def _identify_zip(head: bytes) -> str:
    """Identify an archive by the local header of its first member (APPNOTE.TXT, 4.3.7)."""
    name_end = 30 + int.from_bytes(head[26:28], "little")
    if head[name_end - 4 : name_end] == b".npy":
        return "a NumPy archive (.npz)"
    if head[name_end : name_end + 2] == b"FB":  # PyTorch pads with this extra field, for alignment
        return "a PyTorch file (.pt, .pth, .pt2)"
    return "a zip archive"
