"""Read a PT2 archive: models by name, their weights as arrays, the user's own files."""

from __future__ import annotations

from mmap import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.buffers import aligned_array
from taper_runtime.base.checks import fail, is_size
from taper_runtime.base.errors import InputError, PlanFormatError
from taper_runtime.base.file_limits import Limits, check_limits, refuse_beyond
from taper_runtime.base.text import is_one_of
from taper_runtime.file.container import parse_json
from taper_runtime.file.mapping import mapped, named
from taper_runtime.pt2.dense_tensors import view_tensor
from taper_runtime.pt2.zipped import parse_members, read_member

if TYPE_CHECKING:
    from collections.abc import Collection

    from taper_runtime.base.loading import FilePath
    from taper_runtime.pt2.zipped import Member

#: The names of dtypes in torch's schema of exported programs.
_DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    10: "complex64",
    11: "complex128",
    12: "bool",
    13: "bfloat16",
}
_LIMITS = Limits()
_STRIDED = 7  # the value of the layout for dense tensors
_HINT = "taper_frontend.export reads the archive, with torch"


def open_archive(path: FilePath, limits: Limits = _LIMITS) -> Archive:
    """Open a PT2 archive, written by ``torch.export.save`` or ``package_pt2``.

    The file is mapped, not read, and must not be changed in place while the archive or one of its
    arrays exists. Nothing is unpacked or unpickled.

    Parameters
    ----------
    path : path
    limits : Limits
        Limits on the archive: ``members``, and for the JSON that describes weights
        ``header_bytes``, ``objects`` and ``tensors``.

    Raises
    ------
    InputError
        If a limit is not a number.
    PlanFormatError
        If it is not such an archive, is damaged, or exceeds the limits.
    OSError
        If it cannot be opened, or is not a regular file.
    """
    check_limits(limits)
    with mapped(path) as buffer:
        return Archive(buffer, path, limits)


class Archive:
    """A PT2 archive in memory or mapped; :func:`taper_runtime.pt2.open` opens one.

    Objects of an archive are pickled, so they are not read. Sample inputs are pickled too: tensors
    and plain data in them are read without running the pickle.

    Parameters
    ----------
    buffer : bytes or mmap
        The whole file.
    path : path, optional
        The path in errors.
    limits : Limits
        See :func:`taper_runtime.pt2.open`.

    Raises
    ------
    InputError
        If the buffer is not a buffer, or a limit is not a number.
    PlanFormatError
        If it is not a PT2 archive of little-endian numbers, is damaged, or exceeds the limits.
    """

    def __init__(self, buffer: bytes | mmap, path: FilePath = "", limits: Limits = _LIMITS) -> None:
        """Read the directory, and the models' names; check the archive's version and byte order."""
        if not isinstance(buffer, (bytes, mmap)):
            raise InputError(f"buffer: expected bytes, got {type(buffer).__name__}")
        self._path = path
        self._buffer = buffer
        self._limits = check_limits(limits)
        self._members = _without_root(parse_members(buffer, limits))
        self._records: dict[str, np.ndarray] = {}  # records, which several weights may share
        self._of_bools: set[str] = set()  # records of bools that were checked to hold only 0 and 1
        if "serialized_exported_program.json" in self._members:
            raise PlanFormatError(
                "archive",
                f"expected one of torch 2.8 or later, got an older one with pickled weights; "
                f"{_HINT}",
            )
        for name, expected, default in (
            ("archive_format", b"pt2", b""),
            ("archive_version", b"0", b"0"),
            ("byteorder", b"little", b"little"),
        ):
            got = bytes(self._read(name)) if name in self._members else default
            if got != expected:
                fail(f"archive[{name!r}]", f"expected {expected.decode()!r}", got)

    def __repr__(self) -> str:
        return f"<pt2 archive of {', '.join(map(repr, self.model_names)) or 'no model'}>"

    @property
    def model_names(self) -> list[str]:
        """Return the names of the exported programs, in alphabetical order."""
        names = (name for name in self._members if name.startswith("models/"))
        return sorted(n[len("models/") : -len(".json")] for n in names if n.endswith(".json"))

    @property
    def extra_names(self) -> list[str]:
        """Return the names of the files that the user added (``extra_files``)."""
        prefix = "extra/"
        return sorted(name[len(prefix) :] for name in self._members if name.startswith(prefix))

    def extra(self, name: str) -> bytes:
        """Return a file that the user added.

        Raises
        ------
        InputError
            If there is no file of this name.
        PlanFormatError
            If it is damaged.
        """
        if not is_one_of(name, self.extra_names):
            raise InputError(f"unknown extra file {name!r}; expected one of {self.extra_names}")
        with named(self._path):
            return bytes(self._read(f"extra/{name}"))

    def weight_names(self, model: str | None = None) -> list[str]:
        """Return the names of a model's parameters and buffers, as in its state dict.

        Parameters
        ----------
        model : str, optional
            One of :attr:`model_names`; by default the only one.

        Raises
        ------
        InputError
            If the model does not exist.
        PlanFormatError
            If the description of the model's weights is damaged, or they are pickled.
        """
        with named(self._path):
            return list(self._config("weights", model))

    def weights(self, model: str | None = None) -> dict[str, np.ndarray]:
        """Return a model's parameters and buffers by name.

        Weights that share memory in the module share it here. bfloat16 is returned as its bits, in
        uint16.

        Returns
        -------
        dict of str to numpy.ndarray
            Read-only; most are views of the file. Their bytes are read once, for the checksum.

        Raises
        ------
        InputError, PlanFormatError
            If :meth:`weight_names` raises them, or a weight is pickled, not dense, outside of its
            record, or of a dtype that plans lack.
        """
        return self._tensors("weights", model)

    def constants(
        self, model: str | None = None, names: Collection[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the tensors outside the state dict: constants and non-persistent buffers.

        See :meth:`weights`. Objects of the user's classes are pickled, and refused by name, unless
        ``names`` leaves them out.
        """
        return self._tensors("constants", model, names)

    def program(self, model: str | None = None) -> dict[str, Any]:
        """Return a model's program as torch's schema has it: plain data, parsed but not checked.

        :func:`taper_frontend.export` compiles it.

        Raises
        ------
        InputError
            If the model does not exist.
        PlanFormatError
            If it is not JSON, or exceeds the limits.
        """
        with named(self._path):
            path = f"models/{self._model(model)}.json"
            program = self._json(path)
            if type(program) is not dict:
                fail(path, "expected an object", program)
            return program

    @property
    def sample_names(self) -> list[str]:
        """Return the names of the models that have sample inputs, in alphabetical order."""
        return [name for name in self.model_names if _samples_path(name) in self._members]

    def samples(self, model: str | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that a model was exported with, positional and by name.

        Tensors are read-only arrays, in which bfloat16 is its bits, in uint16.

        Raises
        ------
        InputError
            If the model does not exist, or has no samples; :attr:`sample_names` lists those that
            have.
        PlanFormatError
            If they are damaged, exceed the limits, or have objects other than tensors, numbers,
            texts, None, lists, tuples and dicts.
        """
        with named(self._path):
            path = _samples_path(self._model(model))
            if path not in self._members:
                raise InputError(
                    f"model {self._model(model)!r} has no samples; {self.sample_names} have"
                )
            from taper_runtime.pt2.pickled_samples import read_samples

            return read_samples(bytes(self._read(path)), self._limits, f"archive[{path!r}]")

    def dtypes(
        self, model: str | None = None, names: Collection[str] | None = None
    ) -> dict[str, str]:
        """Return the dtype of each weight and constant of a model, or of some, as named in plans.

        Raises
        ------
        InputError, PlanFormatError
            If :meth:`weights` raises them.
        """
        with named(self._path):
            return {
                name: _dtype(_metadata(item, kind, name), _field(kind, name))
                for kind in ("weights", "constants")
                for name, item in self._config(kind, model).items()
                if names is None or name in names
            }

    def _model(self, name: str | None) -> str:
        names = self.model_names
        if name is None and len(names) == 1:
            return names[0]
        if not is_one_of(name, names):
            asked = "no model named" if name is None else f"unknown model {name!r}"
            raise InputError(f"{asked}; expected one of {names}")
        return name

    def _config(self, kind: str, model: str | None) -> dict[str, Any]:
        """Return the archive's description of each weight or constant of a model."""
        model = self._model(model)
        path = f"data/{kind}/{model}_{kind}_config.json"
        if path not in self._members:
            pickled = f"data/{kind}/{model}.pt"
            if pickled in self._members:
                raise PlanFormatError(
                    f"archive[{pickled!r}]", f"expected weights that are not pickled; {_HINT}"
                )
            return {}
        config = self._json(path)
        items = config.get("config") if type(config) is dict else None
        if type(items) is not dict:
            fail(path, "expected an object with the key 'config'", config)
        refuse_beyond(path, "tensors", len(items), self._limits.tensors)
        return items

    def _json(self, path: str) -> Any:
        """Parse a member that is JSON."""
        member, limits = self._members[path], self._limits
        refuse_beyond(path, "header_bytes", member.stop - member.start, limits.header_bytes)
        content = bytes(self._read(path))
        # an upper bound: braces and brackets in strings count too
        objects = content.count(b"{") + content.count(b"[")
        refuse_beyond(path, "objects", objects, limits.objects)
        try:
            return parse_json(content.decode(), path)
        except UnicodeDecodeError as error:
            raise PlanFormatError(path, f"expected UTF-8: {error.reason}") from None

    def _tensors(
        self, kind: str, model: str | None, names: Collection[str] | None = None
    ) -> dict[str, np.ndarray]:
        with named(self._path):
            items = self._config(kind, model).items()
            wanted = items if names is None else [item for item in items if item[0] in names]
            return {name: self._tensor(kind, name, item) for name, item in wanted}

    def _tensor(self, kind: str, name: str, item: Any) -> np.ndarray:
        """View one tensor in its record."""
        field = _field(kind, name)
        meta = _metadata(item, kind, name)
        path = f"data/{kind}/{item.get('path_name')}"
        if path not in self._members:
            fail(f"{field}.path_name", "expected a record of the archive", item.get("path_name"))
        dtype = _dtype(meta, field)
        shape, strides = (_sizes(meta, key, field) for key in ("sizes", "strides"))
        offset = _size(meta.get("storage_offset"), f"{field}.storage_offset")
        record = self._record(path)
        array = view_tensor(record, dtype, shape, strides, offset, field)
        if dtype == "bool" and path not in self._of_bools:
            if record.max(initial=0) > 1:
                fail(field, "expected only bytes 0 and 1 in a bool tensor", path)
            self._of_bools.add(path)
        return array

    def _record(self, path: str) -> np.ndarray:
        """Return the bytes of a record, aligned; its checksum is checked once."""
        if path not in self._records:
            self._records[path] = aligned_array(np.frombuffer(self._read(path), np.uint8))
        return self._records[path]

    def _read(self, name: str) -> memoryview:
        return read_member(self._buffer, self._members[name])


def _without_root(members: dict[str, Member]) -> dict[str, Member]:
    """Return the members by their paths inside the folder that contains all of them."""
    roots = {name.partition("/")[0] for name in members}
    if len(roots) != 1:
        fail("archive", "expected one folder with all files, as torch writes it", sorted(roots))
    found = {name.partition("/")[2]: member for name, member in members.items()}
    return {name: member for name, member in found.items() if name and not name.endswith("/")}


def _samples_path(model: str) -> str:
    return f"data/sample_inputs/{model}.pt"


def _field(kind: str, name: str) -> str:
    return f"{kind}[{name!r}]"


def _metadata(item: Any, kind: str, name: str) -> dict[str, Any]:
    """Return a tensor's description; refuse tensors that only a pickle describes."""
    field = _field(kind, name)
    if type(item) is not dict:
        fail(field, "expected an object", item)
    if item.get("use_pickle"):
        got = item.get("path_name")
        raise PlanFormatError(field, f"expected a tensor that is not pickled, got {got!r}; {_HINT}")
    meta = item.get("tensor_meta")
    if type(meta) is not dict:
        fail(f"{field}.tensor_meta", "expected an object", meta)
    if meta.get("layout") != _STRIDED:
        fail(f"{field}.layout", f"expected a dense tensor ({_STRIDED})", meta.get("layout"))
    return meta


def _dtype(meta: dict[str, Any], field: str) -> str:
    code = meta.get("dtype")
    if type(code) is not int or code not in _DTYPES:
        known = ", ".join(f"{number} ({name})" for number, name in _DTYPES.items())
        fail(f"{field}.dtype", f"expected one of {known}", code)
    return _DTYPES[code]


def _sizes(meta: dict[str, Any], key: str, field: str) -> list[int]:
    values = meta.get(key)
    if type(values) is not list:
        fail(f"{field}.{key}", "expected an array", values)
    return [_size(value, f"{field}.{key}") for value in values]


def _size(value: Any, field: str) -> int:
    """Return a number that the schema wraps: ``{"as_int": 3}``."""
    number = value.get("as_int") if type(value) is dict else value
    if not is_size(number):
        fail(field, "expected a number of at least 0", number)
    return number
