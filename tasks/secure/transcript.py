"""Unambiguous byte strings: what is signed, derived from or stored, as length-prefixed fields.

Two different sequences of fields never give the same bytes, so a signature or a key bound to
one of them is bound to no other: ``("ab", "c")`` and ``("a", "bc")`` differ, and so do two uses
of one key, since the first field names the use and its version.
"""

from __future__ import annotations

_PREFIX = 8  # bytes of a length, big-endian


def encode(use: str, *fields: bytes | str) -> bytes:
    """Join fields, each behind its length; text goes as UTF-8.

    Parameters
    ----------
    use : str
        What the bytes are for, with a version, for example ``"fedapp/bundle/1"``.
    *fields : bytes or str
        The fields in order.

    Returns
    -------
    bytes
        The transcript.
    """
    parts: list[bytes] = []
    for field in (use, *fields):
        raw = field.encode() if isinstance(field, str) else field
        parts += (len(raw).to_bytes(_PREFIX, "big"), raw)
    return b"".join(parts)


def decode(data: bytes, use: str) -> list[bytes]:
    """Split what `encode` joined for the same use.

    Parameters
    ----------
    data : bytes
        The transcript.
    use : str
        The use it has to be for.

    Returns
    -------
    list of bytes
        The fields, without the use.

    Raises
    ------
    ValueError
        If the bytes are not such a transcript. The message has nothing of the bytes in it.
    """
    fields: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + _PREFIX + int.from_bytes(data[at : at + _PREFIX], "big")
        if end > len(data):
            raise ValueError(f"not a whole {use}")
        fields.append(data[at + _PREFIX : end])
        at = end
    if not fields or fields[0] != use.encode():
        raise ValueError(f"not a {use}")
    return fields[1:]
