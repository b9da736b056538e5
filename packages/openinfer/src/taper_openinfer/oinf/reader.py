"""Read a model file: header and tables when it is opened, everything else on demand."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from taper_openinfer.errors import (
    OinfError,
    OpenInferError,
    check_kind,
    check_texts,
    shown,
    similar,
)
from taper_openinfer.oinf.contents import (
    ArrayValue,
    Quantization,
    ScalarValue,
)
from taper_openinfer.oinf.layout import HEADER, Span, parse_header, parse_tables
from taper_openinfer.oinf.payloads import decoded, parse_quantization, parse_value
from taper_runtime.base.buffers import aligned_bytes
from taper_runtime.base.checks import MAX_TENSOR_BYTES
from taper_runtime.base.file_limits import Limits, check_limits
from taper_runtime.base.text import is_one_of
from taper_runtime.file.mapping import check_path, open_regular

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    import numpy as np

    from taper_openinfer.oinf.layout import MetadataEntry, TensorEntry
    from taper_openinfer.oinf.payloads import Value
    from taper_runtime.base.loading import FilePath

_MAX_U63 = 2**63 - 1


class _Storage(Protocol):
    """The interface to the bytes of a model."""

    nbytes: int

    def read_into(self, offset: int, memory: memoryview) -> int:
        """Fill ``memory`` from an offset on; return how many bytes were read."""

    def close(self) -> None:
        """Release the bytes."""


class _File:
    """A regular file; several threads may read ranges of it at once."""

    def __init__(self, path: FilePath) -> None:
        self._file = FileIO(path, "rb", opener=open_regular)
        self.nbytes = os.fstat(self._file.fileno()).st_size
        self._lock = Lock()

    def read_into(self, offset: int, memory: memoryview) -> int:
        done = 0
        with self._lock:
            self._file.seek(offset)
            while done < len(memory):
                with memory[done:] as rest:
                    count = self._file.readinto(rest)
                if not count:
                    break
                done += count
        return done

    def close(self) -> None:
        self._file.close()


class _Bytes:
    """The bytes of a file, in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.nbytes = len(data)

    def read_into(self, offset: int, memory: memoryview) -> int:
        found = self._data[offset : offset + len(memory)]
        memory[: len(found)] = found
        return len(found)

    def close(self) -> None:
        pass


@dataclass(frozen=True, eq=False)
class TensorInfo:
    """The description of a tensor in a model file, without its data.

    Attributes
    ----------
    name : str
    dtype : str
        A name of :data:`taper_openinfer.dtypes.DTYPES`.
    shape : tuple of int
    has_data : bool
    value_range : tuple of int or None
        The data's range in the file: the first byte, and one past the last. None without data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    has_data: bool
    value_range: tuple[int, int] | None
    _model: Model
    _quantization: Span | None

    @property
    def dims(self) -> tuple[str, ...]:
        """Return the shape in the spelling of programs."""
        return tuple(map(str, self.shape))

    def read(self) -> np.ndarray:
        """Read the data; see :meth:`Model.read`."""
        return self._model.read(self.name)

    @property
    def is_quantized(self) -> bool:
        """Return whether the file has quantisation info of the tensor."""
        return self._quantization is not None

    @property
    def quantization(self) -> Quantization | None:
        """Read the quantisation info from the file; None if the tensor has none.

        Raises
        ------
        OinfError
            If a field breaks a rule of the format; the message names it.
        """
        span = self._quantization
        if span is None:
            return None
        field = f"tensors[{self.name!r}].quantization"
        return parse_quantization(self._model.read_bytes(span, field), self.shape, field)


class Metadata(Mapping[str, Any]):
    """The metadata of a model; each value is read on access.

    A value is a bool, an int, a float, a string, a :class:`Bitset`, or an array as
    :mod:`taper_openinfer.dtypes` keeps its elements in memory.
    """

    def __init__(self, model: Model, entries: Mapping[str, MetadataEntry]) -> None:
        self._model, self._entries = model, entries

    def __getitem__(self, key: str) -> Any:
        value = self.typed(key)
        if isinstance(value, ScalarValue):
            return value.value
        return value.values if isinstance(value, ArrayValue) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def typed(self, key: str) -> Value:
        """Return a value with its element type, in the form that :func:`write_model` takes.

        Raises
        ------
        KeyError
            If there is no such key.
        OinfError
            If its bytes are not a value of its type.
        """
        code, span = self._entries[key]
        field = f"metadata[{key!r}]"
        return parse_value(code, self._model.read_bytes(span, field), field)


class Model:
    """An open model file: named sizes, metadata and tensors.

    Opening it reads only the header and the tables. Several threads may read it.

    Attributes
    ----------
    version : int
        The version of the format.
    sizevars : mapping of str to int
    metadata : Metadata
    tensors : mapping of str to TensorInfo
    bytes_read : int
        How many bytes of the file have been read so far.
    """

    def __init__(self, storage: _Storage, limits: Limits) -> None:
        self._storage = storage
        self.bytes_read = 0
        self._counting = Lock()
        head = self._read(Span(min(HEADER.size, storage.nbytes), 0), "header")
        header = parse_header(head.tobytes(), storage.nbytes, limits)
        start = header.offset_sizevars
        tables = self._read(Span(header.offset_data - start, start), "header.offset_data")
        sizevars, metadata, tensors = parse_tables(header, tables.data)
        self.version = header.version
        self.sizevars: Mapping[str, int] = sizevars
        self.metadata = Metadata(self, metadata)
        self.tensors = {name: self._info(name, entry) for name, entry in tensors.items()}

    @classmethod
    def of(cls, source: object, version: int | None = None) -> Model:
        """Make a model in memory from what :func:`write_model` takes.

        Raises
        ------
        OinfError
            If the format cannot hold it.
        """
        from taper_openinfer.oinf.writer import dump_model

        return cls.from_bytes(dump_model(source, version))

    @classmethod
    def from_bytes(cls, data: bytes, limits: Limits | None = None) -> Model:
        """Make a model from the bytes of a file.

        Raises
        ------
        OinfError
            Naming the field that breaks a rule.
        InputError
            If ``data`` are no bytes, or ``limits`` no limits.
        """
        return cls(_Bytes(check_kind("data", data, bytes)), _limits(limits))

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; arrays that were read stay valid."""
        self._storage.close()

    def var_info(self, name: str) -> TensorInfo:
        """Return what the file says about a tensor.

        Raises
        ------
        OpenInferError
            If the model has no tensor of this name.
        """
        if not is_one_of(name, self.tensors):
            hint = similar(name, self.tensors)
            raise OpenInferError(f"the model has no tensor {shown(name)}{hint}")
        return self.tensors[name]

    def read(self, name: str) -> np.ndarray:
        """Read a tensor's data.

        Returns
        -------
        numpy.ndarray
            Read-only, aligned to 64 bytes, as :mod:`taper_openinfer.dtypes` keeps elements
            of the type in memory.

        Raises
        ------
        OpenInferError
            If there is no such tensor, or it has no data.
        OinfError
            If the file was truncated after it was opened, or some bytes are not values of the type.
        """
        info = self.var_info(name)
        if info.value_range is None:
            raise OpenInferError(f"tensor {name!r} has no data in the model")
        start, stop = info.value_range
        field = f"tensors[{name!r}].data"
        return decoded(
            info.dtype, self.read_bytes(Span(stop - start, start), field), info.shape, field
        )

    def read_bytes(self, span: Span, field: str) -> np.ndarray:
        """Read a range into new, read-only memory; an error names ``field``."""
        data = self._read(span, field)
        data.flags.writeable = False
        return data

    def size_of(self, name: str) -> int:
        """Return the value of a named size.

        Raises
        ------
        OpenInferError
            If the model has no size of this name.
        """
        if not is_one_of(name, self.sizevars):
            hint = similar(name, self.sizevars)
            raise OpenInferError(f"the model has no size {shown(name)}{hint}")
        return self.sizevars[name]

    def resolve_dim_value(self, dim: str) -> int:
        """Return the value of a dim: a number, a named size, or a product of two of these.

        Raises
        ------
        OpenInferError
            If a size is unknown, or the product does not fit into 63 bits.
        """
        atoms = check_kind("dim", dim, str).split("*", 1)
        value = math.prod(self._resolve_atom(atom.strip()) for atom in atoms)
        if value > _MAX_U63:
            raise OpenInferError(f"dim {dim!r}: expected at most {_MAX_U63}, got {value}")
        return value

    def _resolve_atom(self, atom: str) -> int:
        if atom.isascii() and atom.isdigit() and len(atom) < 20:
            return int(atom)
        return self.size_of(atom)

    def resolve_shape(self, dims: Sequence[str]) -> tuple[int, ...]:
        """Return what each dim is; see :meth:`resolve_dim_value`."""
        return tuple(map(self.resolve_dim_value, check_texts("dims", dims)))

    def resolve_len(self, dims: Sequence[str]) -> int:
        """Return the number of elements of an array with these dims.

        Raises
        ------
        OpenInferError
            If a size is unknown, or the number exceeds what a process can address.
        """
        count = math.prod(self.resolve_shape(dims))
        if count > MAX_TENSOR_BYTES:
            raise OpenInferError(
                f"dims [{', '.join(dims)}]: expected at most {MAX_TENSOR_BYTES} elements, "
                f"got {count}"
            )
        return count

    def _info(self, name: str, entry: TensorEntry) -> TensorInfo:
        data = entry.data
        where = (data.offset, data.offset + data.nbytes) if data else None
        return TensorInfo(
            name, entry.dtype, entry.shape, data is not None, where, self, entry.quantization
        )

    def _read(self, span: Span, field: str) -> np.ndarray:
        memory = aligned_bytes(span.nbytes)
        try:
            done = self._storage.read_into(span.offset, memory.data)
        except ValueError:  # the file is closed
            raise OpenInferError(f"{field}: the model is closed") from None
        with self._counting:
            self.bytes_read += done
        if done < span.nbytes:
            raise OinfError(field, f"expected {span.nbytes} bytes, got {done} (truncated?)")
        return memory


def _limits(limits: Limits | None) -> Limits:
    return Limits() if limits is None else check_limits(limits)


def open_model(path: FilePath, limits: Limits | None = None) -> Model:
    """Open a model file; reads only its header and tables.

    The file is read, not mapped: if it is truncated later, :meth:`Model.read` raises an error, and
    the process gets no signal.

    Parameters
    ----------
    path : path
    limits : Limits, optional
        ``header_bytes`` limits the tables, ``tensors`` the entries of each.

    Raises
    ------
    OinfError
        If a field breaks a rule of docs/openinfer/files.md; the message names it.
    InputError
        If ``path`` is no path, which a number is not either, or ``limits`` are no limits.
    OSError
        If the file cannot be opened, or is not a regular file.
    """
    check_path(path)
    limits = _limits(limits)
    storage = _File(path)
    try:
        return Model(storage, limits)
    except OinfError as error:
        storage.close()
        error.path = os.fsdecode(path)
        raise
    except BaseException:
        storage.close()
        raise
