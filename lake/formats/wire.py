"""Protobuf wire format → flat columns, for any message described by a descriptor.

A `Plan` turns a message type into a tree of *nodes*: the message itself (node "") and every repeated message below it,
named by its dotted path. A node has one row per occurrence, in document order, and every singular field under it (also
through singular messages) is a *slot* of that row, named by the path from the node. The members of a oneof share
the slot named after the oneof. Opaque messages are checked, and kept as a span of bytes.

`Plan.scan` walks the bytes twice in compiled code (count, then fill); no Python object per message. It accepts and
rejects what the official parser does (https://protobuf.dev/programming-guides/encoding/), except that a string
which is not UTF-8 is repaired with U+FFFD and reported, not refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from lake.errors import Invalid, LimitExceeded
from lake.formats import kernels
from lake.formats.arena import Arena

Spans = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int64]

_FREE_BYTES: Final = 256 << 20
_MAX_GROWTH: Final = 32
"""Columns may take this many times the size of a message, once above `_FREE_BYTES`; telemetry takes 3 to 6 times."""

_F: Final = FieldDescriptor
_VARINTS: Final = {
    _F.TYPE_INT32: "int32",
    _F.TYPE_ENUM: "int32",
    _F.TYPE_INT64: "int64",
    _F.TYPE_UINT64: "int64",
    _F.TYPE_UINT32: "uint32",
    _F.TYPE_SINT32: "zigzag32",
    _F.TYPE_SINT64: "zigzag",
    _F.TYPE_BOOL: "bool",
}
_FIXED: Final = {
    _F.TYPE_FIXED64: ("int64", kernels.FIXED64),
    _F.TYPE_SFIXED64: ("int64", kernels.FIXED64),
    _F.TYPE_DOUBLE: ("double", kernels.FIXED64),
    _F.TYPE_FIXED32: ("uint32", kernels.FIXED32),
    _F.TYPE_SFIXED32: ("int32", kernels.FIXED32),
    _F.TYPE_FLOAT: ("float", kernels.FIXED32),
}
_REASONS: Final = {
    kernels.TRUNCATED: "a field runs past the end of its message",
    kernels.BAD_TAG: "not a field tag",
    kernels.BAD_VARINT: "a varint of more than 10 bytes",
    kernels.BAD_LENGTH: "not a length",
    kernels.BAD_GROUP: "a group ends that did not begin",
    kernels.TOO_DEEP: f"messages nested deeper than {kernels.MAX_NESTING}",
    kernels.BAD_PACKED: "a packed field of broken size",
}


class _Column(NamedTuple):
    """A column of the scan: its number, the counter that tells its length, and how the raw 64 bits read."""

    number: int
    counter: int
    kind: str


@dataclass(slots=True)
class _Layout:
    """A plan under construction: counters (one a node and one a list), columns by name, states and actions."""

    counters: list[str] = field(default_factory=lambda: [""])
    nodes: dict[str, int] = field(default_factory=lambda: {"": 0})
    columns: dict[tuple[str, str, str], _Column] = field(default_factory=dict)
    states: list[dict[int, int]] = field(default_factory=list)
    actions: list[tuple[int, ...]] = field(default_factory=list)
    opaque: dict[str, int] = field(default_factory=dict)

    def column(self, role: str, node: str, name: str, kind: str = "int64", counter: int | None = None) -> int:
        """Number of a column, made when it is new; `role` is slot, mark, parent, list or rows."""
        owner = self.nodes[node] if counter is None else counter
        known = self.columns.setdefault((role, node, name), _Column(len(self.columns), owner, kind))
        if known.kind != kind:
            raise ValueError(f"{role} {name} of node {node} is both {known.kind} and {kind}")
        return known.number

    def node(self, name: str) -> int:
        """Counter of a node, made when it is new."""
        if name not in self.nodes:
            self.nodes[name] = len(self.counters)
            self.counters.append(name)
        return self.nodes[name]

    def sequence(self, node: str, name: str, kind: str) -> tuple[int, int, int]:
        """Columns of the elements of a repeated scalar and of their rows, and its counter."""
        known = self.columns.get(("list", node, name))
        counter = known.counter if known else len(self.counters)
        if known is None:
            self.counters.append(f"{node}.{name}")
        return (
            self.column("list", node, name, kind, counter),
            self.column("rows", node, name, "int64", counter),
            counter,
        )

    def act(self, *action: int) -> int:
        """Number of a new action: kind, column, mark, counter, field number, child state, column of rows."""
        self.actions.append(action)
        return len(self.actions) - 1


class Plan:
    """How to walk one message type and which columns come out.

    `shared` gives repeated messages at different paths one node: `{path: node name}`; their slots of one name
    must be of one kind. `opaque` names message types (full names) that are only checked and kept as spans, which
    those that contain themselves must be.
    """

    def __init__(
        self, message: type[Message], shared: Mapping[str, str] | None = None, opaque: Collection[str] = ()
    ) -> None:
        self.message = message
        self._shared = shared or {}
        self._opaque = frozenset(opaque)
        self._layout = _Layout()
        self._state(message.DESCRIPTOR, node="", path="", prefix="", above=frozenset())
        layout = self._layout
        sizes = [max(state, default=-1) + 1 for state in layout.states]
        starts = np.concatenate(([0], np.cumsum(sizes)[:-1]))
        self._states = np.column_stack((starts, sizes)).astype(np.int64)
        self._lookup = np.full(sum(sizes), -1, np.int64)
        for start, state in zip(starts, layout.states, strict=True):
            for number, action in state.items():
                self._lookup[start + number] = action
        layout.act(-1, -1, -1, -1, -1, -1, -1)
        self._actions = np.array(layout.actions, np.int64)
        self._owners = np.array([column.counter for column in layout.columns.values()], np.int64)
        self._counters = len(layout.counters)

    @property
    def walker(self) -> tuple[Ints, Ints, Ints, int]:
        """What `kernels.scan` needs to check a message alone: lookup, states, actions, number of counters."""
        return self._lookup, self._states, self._actions, self._counters

    def _state(self, message: Descriptor, *, node: str, path: str, prefix: str, above: frozenset[str]) -> int:
        """The state that reads `message` into slots of `node`; `path` names nodes, `prefix` names slots."""
        layout = self._layout
        number = len(layout.states)
        state: dict[int, int] = {}
        layout.states.append(state)
        if message.full_name in above:
            raise ValueError(f"{message.full_name} contains itself, it must be opaque")
        above |= {message.full_name}
        for f in message.fields:
            oneof = f.containing_oneof
            name = prefix + f.name
            grouped = prefix + oneof.name if oneof is not None and not oneof.name.startswith("_") else name
            mark = layout.column("mark", node, grouped) if oneof is not None else -1
            if f.message_type is None:
                state[f.number] = self._scalar(f, node, grouped, mark)
                continue
            kind = "oneof" if grouped != name else "span"
            below = f"{path}{f.name}"
            if f.message_type.full_name in self._opaque:
                slot = -1 if f.is_repeated else layout.column("slot", node, grouped, kind)
                child = self._checked(f.message_type)
                state[f.number] = layout.act(kernels.MESSAGE, slot, mark, -1, f.number, child, -1)
            elif f.is_repeated:
                below = self._shared.get(below, below)
                counter = layout.node(below)
                child = self._state(f.message_type, node=below, path=f"{below}.", prefix="", above=above)
                rows = layout.column("parent", below, "")
                state[f.number] = layout.act(kernels.ROWS, -1, -1, counter, f.number, child, rows)
            else:
                slot = layout.column("slot", node, grouped, kind)
                child = self._state(f.message_type, node=node, path=f"{below}.", prefix=f"{name}.", above=above)
                state[f.number] = layout.act(kernels.MESSAGE, slot, mark, -1, f.number, child, -1)
        return number

    def _scalar(self, f: FieldDescriptor, node: str, name: str, mark: int) -> int:
        layout = self._layout
        if f.type in _VARINTS:
            kind, action = _VARINTS[f.type], kernels.VARINT
        elif f.type in _FIXED:
            kind, action = _FIXED[f.type]
        else:
            kind, action = ("string" if f.type == _F.TYPE_STRING else "span"), kernels.TEXT
        if f.is_repeated:
            elements, rows, counter = layout.sequence(node, name, kind)
            return layout.act(action, elements, -1, counter, f.number, -1, rows)
        shared = f.containing_oneof is not None and not f.containing_oneof.name.startswith("_")
        slot = layout.column("slot", node, name, "oneof" if shared else kind)
        return layout.act(action, slot, mark, -1, f.number, -1, -1)

    def _checked(self, message: Descriptor) -> int:
        """The state that only checks `message`, which may contain itself."""
        layout = self._layout
        if message.full_name not in layout.opaque:
            layout.opaque[message.full_name] = number = len(layout.states)
            state: dict[int, int] = {}
            layout.states.append(state)
            for f in message.fields:
                if f.message_type is not None:
                    state[f.number] = layout.act(
                        kernels.MESSAGE, -1, -1, -1, f.number, self._checked(f.message_type), -1
                    )
            return number
        return layout.opaque[message.full_name]

    def scan(self, data: bytes | memoryview) -> Scan:
        """The columns of one message.

        Raises:
            Invalid: the bytes are not one message of this type; says where.
            LimitExceeded: it has so many empty messages that its columns would be many times its size.
        """
        scan = self._walk(np.frombuffer(data, np.uint8))
        if scan is None:
            # Fields that must be merged are rare enough to leave to the official parser: what it writes has none.
            try:
                plain = self.message.FromString(bytes(data)).SerializeToString()
            except DecodeError as error:
                raise Invalid(f"not a {self.message.DESCRIPTOR.name}: {error}") from error
            scan = self._walk(np.frombuffer(plain, np.uint8))
            assert scan is not None
        return scan

    def _walk(self, data: npt.NDArray[np.uint8]) -> Scan | None:
        if len(data) > 0x7FFFFFFF:
            raise Invalid(f"a protobuf message has at most 2 GiB, this one has {len(data)} bytes")
        counts = np.zeros(self._counters, np.int64)
        walk = (data, self._lookup, self._states)
        code, offset, _ = kernels.scan(*walk, self._actions, False, counts, np.zeros(0, np.int64))
        if code != kernels.OK:
            name = self.message.DESCRIPTOR.name
            raise Invalid(f"not a {name}: {_REASONS[code]}, at byte {offset} of {len(data)}")
        # Every column has a place in one array: slots, marks, parents, elements of lists, their rows.
        lengths = counts[self._owners]
        places = np.cumsum(lengths) - lengths
        actions = self._actions.copy()
        for at in (1, 2, 6):
            wanted = actions[:, at] >= 0
            actions[wanted, at] = places[actions[wanted, at]]
        size = 8 * int(lengths.sum())
        if size > max(_FREE_BYTES, _MAX_GROWTH * len(data)):
            raise LimitExceeded(
                f"{len(data)} bytes of {self.message.DESCRIPTOR.name} would take {size} bytes of memory: "
                "nearly all of its messages are empty"
            )
        heap = np.zeros(size // 8, np.int64)
        irregular = kernels.scan(*walk, actions, True, counts, heap)[2]
        if irregular:
            return None
        columns = [
            heap[place : place + length] for place, length in zip(places.tolist(), lengths.tolist(), strict=True)
        ]
        return Scan(self._layout, Arena(data), columns, counts.tolist())


class Scan:
    """The columns of one scanned message; `arena` holds the bytes that its spans point into.

    Slots that were not on the wire read as zero or as an empty span. Strings that are not UTF-8 were
    repaired; `repaired` counts them by node and slot.
    """

    def __init__(self, layout: _Layout, arena: Arena, columns: list[Ints], counts: list[int]) -> None:
        self.arena = arena
        self.repaired: dict[str, int] = {}
        self._layout, self._columns, self._counts = layout, columns, counts
        for (_, node, name), column in layout.columns.items():
            if column.kind == "string":
                self._repair(columns[column.number], f"{node}.{name}", np.zeros(0, np.bool_))

    def rows(self, node: str) -> int:
        """Number of rows of a node."""
        return self._counts[self._layout.nodes[node]]

    def parent(self, node: str) -> Ints:
        """Row in the parent node of every row, never decreasing."""
        return self._column("parent", node, "")[0]

    def offsets(self, node: str, parent_rows: int) -> Ints:
        """`parent_rows + 1` offsets: the rows of `node` under parent row i are `offsets[i]:offsets[i + 1]`."""
        return _offsets(self.parent(node), parent_rows)

    def raw(self, node: str, slot: str) -> Ints:
        """The 64 bits of a slot as they were read (of a string, bytes or message: its span)."""
        return self._column("slot", node, slot)[0]

    def numbers(self, node: str, slot: str) -> npt.NDArray[Any]:
        """A numeric slot in its own type: int64 (also for unsigned: read the bits), float64 or bool."""
        numbers: npt.NDArray[Any] = _numbers(*self._column("slot", node, slot))
        return numbers

    def which(self, node: str, oneof: str) -> Ints:
        """Field number of the member of a oneof that is set, or of an `optional` field; 0 when none is."""
        return self._column("mark", node, oneof)[0]

    def sequence(self, node: str, name: str) -> tuple[Ints, npt.NDArray[Any]]:
        """A repeated scalar: offsets by row of `node`, and the elements."""
        rows = self._column("rows", node, name)[0]
        return _offsets(rows, self.rows(node)), _numbers(*self._column("list", node, name))

    def repair(self, node: str, slot: str, chosen: npt.NDArray[np.bool_] | None = None) -> None:
        """Replace text of a slot that is not UTF-8 (where `chosen`); strings that are no oneof members already are."""
        self._repair(self.raw(node, slot), f"{node}.{slot}", np.zeros(0, np.bool_) if chosen is None else chosen)

    def _column(self, role: str, node: str, name: str) -> tuple[Ints, str]:
        number, _, kind = self._layout.columns[role, node, name]
        return self._columns[number], kind

    def _repair(self, spans: Spans, name: str, chosen: npt.NDArray[np.bool_]) -> None:
        if len(spans) == 0:
            return
        bad = kernels.malformed_text(self.arena.octets, spans, chosen)
        if len(bad):
            texts = [self.arena.bytes_at(int(span)).decode(errors="replace") for span in spans[bad].tolist()]
            spans[bad] = self.arena.add_texts(texts)
            self.repaired[name] = len(bad)


def _offsets(owners: Ints, rows: int) -> Ints:
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(owners, minlength=rows), out=offsets[1:])
    return offsets


def _numbers(raw: Any, kind: str) -> Any:
    """The 64-bit values of a column in the type that its kind says."""
    match kind:
        case "int32":
            return raw.astype(np.int32).astype(np.int64)
        case "uint32":
            return raw & 0xFFFFFFFF
        case "zigzag":
            return (raw.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(raw & 1)
        case "zigzag32":
            return _numbers(raw & 0xFFFFFFFF, "zigzag")
        case "bool":
            return raw != 0
        case "double":
            return raw.view(np.float64)
        case "float":
            return raw.astype(np.uint32).view(np.float32).astype(np.float64)
    return raw
