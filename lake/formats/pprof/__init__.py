"""pprof profiles (https://github.com/google/pprof/blob/main/proto/profile.proto), told by the shape of their fields."""

from __future__ import annotations

from typing import Final

from lake.formats.base import Decoded, Format, Source
from lake.formats.otlp.sniff import wire_fields

NAME: Final = "pprof"

_VARINT, _LENGTH = 0, 2
_SCALARS: Final = frozenset({7, 8, 9, 10, 12, 13, 14, 15})
_INNER: Final[dict[int, dict[int, tuple[int, ...]]]] = {
    1: {1: (0,), 2: (0,)},
    2: {1: (0, 2), 2: (0, 2), 3: (2,)},
    3: dict.fromkeys(range(1, 11), (0,)),
    4: {1: (0,), 2: (0,), 3: (0,), 4: (2,), 5: (0,)},
    5: dict.fromkeys(range(1, 6), (0,)),
    11: {1: (0,), 2: (0,)},
}
"""Wire types of the fields of each message of a profile, by the number of the field that holds it."""
_FIELDS_READ: Final = 256


def sniff(name: str, head: bytes) -> bool:
    """Whether the bytes begin a profile: every field has a number and shape of a profile's, and not all are alike."""
    seen: set[int] = set()
    try:
        # The head of a longer file is cut somewhere: the last field may run past it.
        for count, (number, wire, start, end) in enumerate(wire_fields(head, 0, 1 << 62)):
            if not _fits(head, number, wire, (start, end)):
                return False
            seen.add(number)
            if count >= _FIELDS_READ:
                break
    except EOFError:
        pass
    except ValueError:
        return False
    return len(seen & {1, 2, 3, 4, 5, 6}) >= 2 and bool(seen & {1, 2})


def _fits(head: bytes, number: int, wire: int, place: tuple[int, int]) -> bool:
    if number in _SCALARS:
        return wire == _VARINT or (number == 13 and wire == _LENGTH)
    if wire != _LENGTH or number not in {6, *_INNER}:
        return False
    if number == 6:
        return True
    try:
        known = _INNER[number]
        return all(kind in known.get(inner, ()) for inner, kind, _, _ in wire_fields(head, *place))
    except EOFError:
        return place[1] > len(head)


def decode(source: Source) -> Decoded:
    """`samples` rows, one a sample and value type, and `stacks` rows; see `lake.formats.pprof.profile`.

    Raises:
        Invalid: the bytes are no profile, or nothing of it can be taken.
        LimitExceeded: its stacks or texts are larger than is read.
    """
    # The compiled decoder is loaded only when there is something to decode.
    from lake.formats.pprof.profile import decode_profile

    return decode_profile(source)


FORMAT: Final = Format(name=NAME, sniff=sniff, decode=decode)
