"""LiveCodeBench's private tests: base64 of zlib of a pickled text of JSON. Read here without unpickling anything."""

import base64
import binascii
import pickletools
import zlib

MAX_UNPACKED = 1 << 27
"""Bytes that packed tests may unpack to: a kilobyte of zlib can hold a megabyte of zeros."""

TEXT_OPCODES = frozenset(
    {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
)
SILENT_OPCODES = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"})
"""Opcodes that neither make a value nor call anything."""


def unpack_text(packed: str) -> str:
    """The text inside. Raises ValueError for anything but one packed text, and for one past MAX_UNPACKED."""
    try:
        squeezed = base64.b64decode(packed, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"is not base64 ({error})") from None
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(squeezed, MAX_UNPACKED)
    except zlib.error as error:
        raise ValueError(f"is not zlib inside base64 ({error})") from None
    if inflater.unconsumed_tail:
        raise ValueError(f"unpacks to more than {MAX_UNPACKED >> 20} MiB")
    if not inflater.eof:
        raise ValueError("is cut short")
    return pickled_text(data)


def pickled_text(data: bytes) -> str:
    """The one text or bytes that a pickle consists of. Every opcode that could do more is refused, none is run."""
    found: list[str | bytes] = []
    ended = False
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name in TEXT_OPCODES and isinstance(argument, str | bytes):
                found.append(argument)
            elif opcode.name == "STOP":
                ended = True
            elif opcode.name not in SILENT_OPCODES:
                raise ValueError(f"holds the pickle opcode {opcode.name}; only one plain text is read")
    except (IndexError, OverflowError, MemoryError) as error:
        raise ValueError(f"is no pickle ({error})") from None
    if not ended or len(found) != 1:
        raise ValueError(f"holds {len(found)} texts; exactly one is read")
    return found[0] if isinstance(found[0], str) else found[0].decode()
