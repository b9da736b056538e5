"""Read the outer layer of an archive: a zip file with uncompressed members.

PKWARE's APPNOTE.TXT defines the layout. The file is not trusted: its directory is checked against
the bytes before it is used. Nothing is unpacked: a member is a range of the file.
"""

from __future__ import annotations

import zlib
from itertools import accumulate
from struct import Struct
from typing import TYPE_CHECKING

from taper_runtime.base.checks import fail
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.base.file_limits import refuse_beyond
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from mmap import mmap

    from taper_runtime.base.file_limits import Limits

_END = Struct("<4s4H2LH")  # end of central directory record, 4.3.16
_END64 = Struct("<4sQ2H2L4Q")  # zip64 end of central directory record, 4.3.14
_LOCATOR64 = Struct("<4sLQL")  # zip64 end of central directory locator, 4.3.15
_CENTRAL = Struct("<4s6H3L5H2L")  # central directory header, 4.3.12
_LOCAL = Struct("<4s5H3L2H")  # local file header, 4.3.7
_EXTRA = Struct("<2H")  # 4.5.1

_ZIP64 = 1  # id of the extra field of sizes beyond 32 bits, 4.5.3
_BEYOND_32_BITS = 0xFFFFFFFF
_ENCRYPTED = 1  # bit of the flags, 4.4.4
_LONGEST_COMMENT = 0xFFFF
_DIRECTORY = "archive.directory"


class Member(NamedTuple):
    """One file of an archive: its bytes are ``start`` to ``stop`` of the archive."""

    name: str
    start: int
    stop: int
    crc: int


class _Listed(NamedTuple):
    """An entry of the central directory."""

    name: bytes
    header: int
    size: int
    crc: int


def parse_members(buffer: bytes | mmap, limits: Limits) -> dict[str, Member]:
    """Return the members of a zip file by name, without reading them.

    Raises
    ------
    PlanFormatError
        If there are more members than ``limits`` allow, the directory is damaged, or a member is
        compressed, encrypted, outside of the file, overlaps another one, or has a name that would
        make an unpacker write outside its folder.
    """
    members: dict[str, Member] = {}
    filled = 0
    begin, listed = _directory(buffer, limits)
    for item in sorted(listed, key=lambda item: item.header):
        name = _name(item.name)
        field = f"archive[{name!r}]"
        if name in members:
            raise PlanFormatError(field, "expected each name once, got it again")
        start = _data_start(buffer, item, field)
        if item.header < filled:
            raise PlanFormatError(field, "expected members apart, got one that overlaps another")
        if start + item.size > begin:
            fail(field, f"expected an end before the directory at byte {begin}", start + item.size)
        filled = start + item.size
        members[name] = Member(name, start, filled, item.crc)
    return members


def read_member(buffer: bytes | mmap, member: Member) -> memoryview:
    """Return the bytes of a member, without a copy.

    Raises
    ------
    PlanFormatError
        If their checksum is wrong.
    """
    content = memoryview(buffer)[member.start : member.stop]
    if zlib.crc32(content) != member.crc:
        raise PlanFormatError(
            f"archive[{member.name!r}]",
            "damaged: expected the checksum in the directory, got another",
        )
    return content


def _directory(buffer: bytes | mmap, limits: Limits) -> tuple[int, list[_Listed]]:
    """Return the position of the central directory, and its entries."""
    count, size, begin, end = _find_directory(buffer)
    refuse_beyond(_DIRECTORY, "members", count, limits.members)
    if begin + size > end:
        fail(_DIRECTORY, f"expected an end of at most byte {end}", begin + size)
    listed = list(_listed(buffer[begin : begin + size]))
    if len(listed) != count:
        fail(_DIRECTORY, f"expected {count} members", len(listed))
    return begin, listed


def _find_directory(buffer: bytes | mmap) -> tuple[int, int, int, int]:
    """Return the number of members, the directory's size, its start, and its end record's."""
    tail = max(len(buffer) - _END.size - _LONGEST_COMMENT, 0)
    at = buffer.rfind(b"PK\5\6", tail)
    if at < 0 or at + _END.size > len(buffer):
        raise PlanFormatError("archive", "expected a zip archive (is the file truncated?)")
    _, *disks, count, size, begin, comment = _END.unpack_from(buffer, at)
    if at + _END.size + comment != len(buffer):
        raise PlanFormatError(_DIRECTORY, "expected its end record at the end of the file")
    locator = at - _LOCATOR64.size
    if locator >= 0 and buffer[locator : locator + 4] == b"PK\6\7":
        _, _, at, _ = _LOCATOR64.unpack_from(buffer, locator)
        if at + _END64.size > locator or buffer[at : at + 4] != b"PK\6\6":
            fail(_DIRECTORY, "expected the end record of a 64-bit directory", at)
        *_, disk, first_disk, here, count, size, begin = _END64.unpack_from(buffer, at)
        disks = [disk, first_disk, here]
    if disks != [0, 0, count]:
        raise PlanFormatError(_DIRECTORY, "expected an archive in one file")
    return count, size, begin, at


def _listed(directory: bytes) -> Iterator[_Listed]:
    """Yield the entries of a central directory."""
    at = 0
    while at < len(directory):
        if directory[at : at + 4] != b"PK\1\2" or at + _CENTRAL.size > len(directory):
            fail(_DIRECTORY, "expected an entry at this byte", at)
        (_, _, _, flags, method, _, _, crc, packed, size, *lengths, disk, _, _, header) = (
            _CENTRAL.unpack_from(directory, at)
        )
        begin = at + _CENTRAL.size
        name_end, extra_end, at = tuple(accumulate(lengths, initial=begin))[1:]
        if at > len(directory):
            fail(_DIRECTORY, f"expected an entry within its {len(directory)} bytes", at)
        name = directory[begin:name_end]
        field = f"archive[{name.decode(errors='replace')!r}]"
        if disk or flags & _ENCRYPTED or method:
            raise PlanFormatError(field, "expected a member as torch stores it, not compressed")
        size, packed, header = _wide(directory[name_end:extra_end], [size, packed, header], field)
        if size != packed:
            fail(field, f"expected {packed} bytes, because members are not compressed", size)
        yield _Listed(name, header, size, crc)


def _wide(extra: bytes, values: list[int], field: str) -> list[int]:
    """Return the values, taking those that exceed 32 bits from the extra field."""
    if _BEYOND_32_BITS not in values:
        return values
    wanted = [i for i, value in enumerate(values) if value == _BEYOND_32_BITS]
    at = 0
    while at + _EXTRA.size <= len(extra):
        kind, size = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size
        content = extra[at : at + size]
        if kind == _ZIP64 and len(content) >= 8 * len(wanted):
            wide = dict(zip(wanted, Struct(f"<{len(wanted)}Q").unpack_from(content), strict=True))
            return [wide.get(i, value) for i, value in enumerate(values)]
        at += size
    raise PlanFormatError(field, "expected sizes of 64 bits")


def _data_start(buffer: bytes | mmap, item: _Listed, field: str) -> int:
    """Return the start of a member's bytes, after its local header, which must have its name."""
    begin = item.header
    if begin + _LOCAL.size > len(buffer) or buffer[begin : begin + 4] != b"PK\3\4":
        fail(field, "expected the header of a member at this byte", begin)
    *_, name_length, extra_length = _LOCAL.unpack_from(buffer, begin)
    begin += _LOCAL.size
    if buffer[begin : begin + name_length] != item.name:
        raise PlanFormatError(field, "expected the same name in the directory and in the header")
    return begin + int(name_length) + int(extra_length)


def _name(raw: bytes) -> str:
    """Return the name of a member, if it is safe as the name of a file."""
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise PlanFormatError(_DIRECTORY, f"expected names in UTF-8, got {raw[:40]!r}") from None
    parts = name.removesuffix("/").split("/")
    if "\\" in name or "\0" in name or not all(part not in ("", ".", "..") for part in parts):
        raise PlanFormatError(f"archive[{name!r}]", "expected a path inside the archive")
    return name
