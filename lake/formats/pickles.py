"""Pickles of plain values only (dict, list, tuple, text, numbers, bool, None), checked before they are loaded.

A pickle is a program. Here its opcodes are first run on counters instead of values (`_scan`): every opcode that
could import, call or build an object is refused; memo slots must be used in order; dictionary keys must be text;
a container may not change once it was fetched from the memo, so that there are no cycles and the size of the
fully expanded value, with shared parts counted as often as they appear, is known exactly and limited
("billion laughs"). Only then is it loaded, by an unpickler that has no globals. Opcodes: Lib/pickletools.py.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Final

import numba
import numpy as np
import numpy.typing as npt

from lake.errors import Invalid, LimitExceeded

MAX_PICKLE_BYTES: Final = 128 << 20
_MAX_EXPANSION: Final = 8
"""Values of the expanded object per byte of the pickle; torch dumps, whose frames are shared, stay under 1."""
_MIN_VALUES: Final = 1_000_000

_NOTHING, _ATOM, _TEXT, _CONTAINER, _MARK, _FILL, _TUPLE, _TUPLE_N, _FILL_N, _PUT, _MEMOIZE, _GET, _STOP = range(13)
_LENGTH_1, _LENGTH_4, _LENGTH_8, _REFUSED = -1, -4, -8, -100
_OPCODES: Final = {
    # name: (code, action, argument bytes or kind of length prefix, values popped)
    "PROTO": (0x80, _NOTHING, 1, 0),
    "FRAME": (0x95, _NOTHING, 8, 0),
    "NONE": (ord("N"), _ATOM, 0, 0),
    "NEWTRUE": (0x88, _ATOM, 0, 0),
    "NEWFALSE": (0x89, _ATOM, 0, 0),
    "BININT": (ord("J"), _ATOM, 4, 0),
    "BININT1": (ord("K"), _ATOM, 1, 0),
    "BININT2": (ord("M"), _ATOM, 2, 0),
    "LONG1": (0x8A, _ATOM, _LENGTH_1, 0),
    "BINFLOAT": (ord("G"), _ATOM, 8, 0),
    "SHORT_BINUNICODE": (0x8C, _TEXT, _LENGTH_1, 0),
    "BINUNICODE": (ord("X"), _TEXT, _LENGTH_4, 0),
    "BINUNICODE8": (0x8D, _TEXT, _LENGTH_8, 0),
    "EMPTY_DICT": (ord("}"), _CONTAINER, 0, 0),
    "EMPTY_LIST": (ord("]"), _CONTAINER, 0, 0),
    "EMPTY_TUPLE": (ord(")"), _TUPLE_N, 0, 0),
    "TUPLE1": (0x85, _TUPLE_N, 0, 1),
    "TUPLE2": (0x86, _TUPLE_N, 0, 2),
    "TUPLE3": (0x87, _TUPLE_N, 0, 3),
    "MARK": (ord("("), _MARK, 0, 0),
    "TUPLE": (ord("t"), _TUPLE, 0, 0),
    "APPEND": (ord("a"), _FILL_N, 0, 1),
    "SETITEM": (ord("s"), _FILL_N, 0, 2),
    "APPENDS": (ord("e"), _FILL, 0, 1),
    "SETITEMS": (ord("u"), _FILL, 0, 2),
    "BINPUT": (ord("q"), _PUT, 1, 0),
    "LONG_BINPUT": (ord("r"), _PUT, 4, 0),
    "MEMOIZE": (0x94, _MEMOIZE, 0, 0),
    "BINGET": (ord("h"), _GET, 1, 0),
    "LONG_BINGET": (ord("j"), _GET, 4, 0),
    "STOP": (ord("."), _STOP, 0, 0),
}
_ACTION: Final = np.zeros(256, np.int64)
_ARGUMENT: Final = np.full(256, _REFUSED, np.int64)
_POPS: Final = np.zeros(256, np.int64)
for _code, _action, _argument, _pops in _OPCODES.values():
    _ACTION[_code], _ARGUMENT[_code], _POPS[_code] = _action, _argument, _pops

_OK, _TRUNCATED, _OPCODE, _BROKEN, _MEMO, _SHARED, _KEY, _LARGE, _DEEP = range(9)
_REASONS: Final = {
    _BROKEN: "its stack does not fit its opcodes",
    _MEMO: "it uses memo slots out of order",
    _SHARED: "it changes a container that is already part of another",
    _KEY: "a dictionary key is not text",
}


class _NoGlobals(pickle.Unpickler):
    """Second lock behind the scan: nothing can be imported or looked up."""

    def find_class(self, module: str, name: str) -> Any:
        """Never gives anything; the loader turns the error into `Invalid`."""
        raise pickle.UnpicklingError(f"global {module}.{name} is not allowed")

    def persistent_load(self, pid: Any) -> Any:
        """Never gives anything; the loader turns the error into `Invalid`."""
        raise pickle.UnpicklingError("persistent ids are not allowed")


def load_plain(data: bytes | memoryview, *, max_depth: int) -> tuple[Any, bool]:
    """The value of a pickle of plain values, and whether its end was cut.

    Of a cut pickle everything complete is kept: its open lists and dictionaries are closed where it ends.

    Raises:
        Invalid: it is not a pickle, or holds anything but plain values (nothing was executed).
        LimitExceeded: it is larger, deeper or expands to more values than allowed.
    """
    if len(data) > MAX_PICKLE_BYTES:
        raise LimitExceeded(f"pickle has {len(data)} bytes, at most {MAX_PICKLE_BYTES} are read")
    raw = np.frombuffer(data, np.uint8)
    limit = max(_MIN_VALUES, _MAX_EXPANSION * len(raw))
    status, position, stack, marks = _scan(raw, _ACTION, _ARGUMENT, _POPS, (limit, max_depth))
    program = bytes(data)
    if status == _TRUNCATED:
        program = program[:position] + _closing(raw, stack, marks)
    elif status != _OK:
        raise _refusal(int(status), int(position), raw, limit=limit, max_depth=max_depth)
    try:
        return _NoGlobals(io.BytesIO(program)).load(), status == _TRUNCATED
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, IndexError, KeyError, OverflowError) as error:
        raise Invalid(f"pickle cannot be loaded: {error}") from error


def _refusal(
    status: int, position: int, raw: npt.NDArray[np.uint8], *, limit: int, max_depth: int
) -> Invalid | LimitExceeded:
    if status == _LARGE:
        return LimitExceeded(f"pickle expands to more than {limit} values at byte {position}, refused as a bomb")
    if status == _DEEP:
        return LimitExceeded(f"pickle nests deeper than LAKE_MAX_DEPTH={max_depth} at byte {position}")
    if status == _OPCODE:
        code = int(raw[position])
        return Invalid(
            f"pickle needs more than plain values (opcode {code:#04x} at byte {position}): "
            "it could run code, nothing of it was executed"
        )
    return Invalid(f"pickle is broken at byte {position}: {_REASONS[status]}")


def _closing(raw: npt.NDArray[np.uint8], stack: npt.NDArray[np.int64], marks: npt.NDArray[np.int64]) -> bytes:
    """Opcodes that close every open container of a cut pickle, innermost first.

    `stack` holds for every value the opcode that made it; `marks` the stack heights at which marks lie.
    """
    end = bytearray()
    height = len(stack)
    for mark in reversed(marks.tolist()):
        items = height - mark
        owner = int(stack[mark - 1]) if mark else 0
        if owner == ord("}"):
            end += b"0" * (items % 2) + b"u"
        elif owner == ord("]"):
            end += b"e"
        else:
            raise Invalid("pickle is cut and nothing of it can be read")
        height = mark
    if height != 1:
        raise Invalid("pickle is cut and nothing of it can be read")
    return bytes(end) + b"."


_WEIGHT, _DEPTH, _MAKER, _IS_SHARED = range(4)
_DICT, _LIST, _TEXT_BYTES = ord("}"), ord("]"), 8


@numba.njit(cache=True)
def _number(raw, start, size):  # type: ignore[no-untyped-def]
    """Little-endian unsigned number; negative when it does not fit 63 bits."""
    value = np.int64(0)
    for index in range(min(size, 8)):
        value |= np.int64(raw[start + index]) << np.int64(8 * index)
    return value


@numba.njit(cache=True)
def _fold(node, owner, items, pairs):  # type: ignore[no-untyped-def]
    """Add the items to the node that owns them; gives a status."""
    maker = node[owner, _MAKER]
    if pairs and maker != (_DICT if pairs == 2 else _LIST):
        return _BROKEN
    if pairs and node[owner, _IS_SHARED]:
        return _SHARED
    if pairs == 2 and len(items) % 2:
        return _BROKEN
    for index in range(len(items)):
        item = items[index]
        if pairs == 2 and index % 2 == 0 and node[item, _MAKER] != _TEXT:
            return _KEY
        node[owner, _WEIGHT] += node[item, _WEIGHT]
        node[owner, _DEPTH] = max(node[owner, _DEPTH], node[item, _DEPTH] + 1)
    return _OK


@numba.njit(cache=True)
def _apply(state, counts, operation, limits):  # type: ignore[no-untyped-def]
    """Run one opcode that makes or fills a value; gives (status, stack height, number of marks)."""
    node, stack, marks = state
    fresh, height, marked = counts
    code, act, pops, length = operation
    floor = marks[marked - 1] if marked else 0
    base = height - pops
    if act in (_FILL, _TUPLE):
        if not marked:
            return _BROKEN, height, marked
        base, marked = floor, marked - 1
        floor = marks[marked - 1] if marked else 0
    elif act != _FILL_N and act != _TUPLE_N:
        base = height
    pairs = pops if act in (_FILL, _FILL_N) else 0
    if base - (1 if pairs else 0) < floor:
        return _BROKEN, height, marked
    owner = stack[base - 1] if pairs else fresh
    if not pairs:
        node[owner, _WEIGHT] = 1 + (length // _TEXT_BYTES if act == _TEXT else 0)
        node[owner, _DEPTH] = 0
        node[owner, _MAKER] = _TEXT if act == _TEXT else code
        node[owner, _IS_SHARED] = 0
    status = _fold(node, owner, stack[base:height], pairs)
    if status != _OK:
        return status, height, marked
    if node[owner, _WEIGHT] > limits[0]:
        return _LARGE, height, marked
    if node[owner, _DEPTH] > limits[1]:
        return _DEEP, height, marked
    if pairs:
        return _TRUNCATED, base, marked
    stack[base] = owner
    return _TRUNCATED, base + 1, marked


@numba.njit(cache=True)
def _scan(raw, action, argument, pops, limits):  # type: ignore[no-untyped-def]
    """(status, byte position, makers of the values on the stack, heights of the marks) after the last whole opcode."""
    size = len(raw)
    node = np.empty((size + 1, 4), np.int64)
    stack, marks, memo = np.empty(size + 1, np.int64), np.empty(size + 1, np.int64), np.empty(size + 1, np.int64)
    nodes = height = marked = memos = position = 0
    status = _TRUNCATED
    while position < size and status == _TRUNCATED:
        code = raw[position]
        act, length, start = action[code], argument[code], position + 1
        if length == _REFUSED:
            status = _OPCODE
            break
        if length < 0:
            if start - length > size:
                break
            start, length = start - length, _number(raw, start, -length)
        if length < 0 or length > size - start:
            break
        floor = marks[marked - 1] if marked else 0
        if act in (_PUT, _MEMOIZE):
            slot = memos if act == _MEMOIZE else _number(raw, start, length)
            if slot > memos or height == floor:
                status = _MEMO
                break
            memo[slot] = stack[height - 1]
            memos = max(memos, slot + 1)
        elif act == _GET:
            slot = _number(raw, start, length)
            if slot >= memos:
                status = _MEMO
                break
            stack[height] = memo[slot]
            node[memo[slot], _IS_SHARED] = 1
            height += 1
        elif act == _MARK:
            marks[marked] = height
            marked += 1
        elif act == _STOP:
            status = _OK if height == 1 and marked == 0 else _BROKEN
        elif act != _NOTHING:
            status, height, marked = _apply(
                (node, stack, marks), (nodes, height, marked), (code, act, pops[code], length), limits
            )
            nodes += 1
        if status in (_TRUNCATED, _OK):
            position = start + length
    makers = np.empty(height, np.int64)
    for index in range(height):
        makers[index] = node[stack[index], _MAKER]
    return status, position, makers, marks[:marked].copy()
