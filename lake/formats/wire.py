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

from lake.errors import Invalid
from lake.formats import kernels
from lake.formats.arena import Arena

Spans = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int64]

_F: Final = FieldDescriptor
_VARINTS: Final = {
    _F.TYPE_INT32: "int32",
    _F.TYPE_ENUM: "int32",
    _F.TYPE_INT64: "int64",
    _F.TYPE_UINT64: "int64",
    _F.TYPE_UINT32: "uint32",
    _F.TYPE_SINT32: "zigzag",
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


class _Slot(NamedTuple):
    """Where a field is kept: number in the flat arrays, its node, and how the raw 64 bits read."""

    number: int
    node: int
    kind: str


@dataclass(slots=True)
class _Layout:
    """A plan under construction."""

    nodes: dict[str, int] = field(default_factory=lambda: {"": 0})
    slots: dict[tuple[str, str], _Slot] = field(default_factory=dict)
    marks: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    lists: dict[tuple[str, str], _Slot] = field(default_factory=dict)
    states: list[dict[int, int]] = field(default_factory=list)
    actions: list[list[int]] = field(default_factory=list)
    opaque: dict[str, int] = field(default_factory=dict)
    sequences: list[int] = field(default_factory=list)

    def slot(self, node: str, name: str, kind: str) -> int:
        known = self.slots.setdefault((node, name), _Slot(len(self.slots), self.nodes[node], kind))
        if known.kind != kind:
            raise ValueError(f"slot {name} of node {node} is both {known.kind} and {kind}")
        return known.number

    def mark(self, node: str, name: str) -> int:
        return self.marks.setdefault((node, name), (len(self.marks), self.nodes[node]))[0]

    def sequence(self, node: str, name: str, kind: str) -> int:
        return self.lists.setdefault((node, name), _Slot(len(self.lists), self.nodes[node], kind)).number

    def act(self, *action: int) -> int:
        self.actions.append(list(action))
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
        for action in layout.actions:
            if action[0] not in (kernels.ROWS, kernels.MESSAGE) and action[3] >= 0:
                action[3] += len(layout.nodes)
        layout.act(-1, -1, -1, -1, -1, -1)
        self._actions = np.array(layout.actions, np.int64)
        self._slot_nodes = np.array([slot.node for slot in layout.slots.values()], np.int64)
        self._mark_nodes = np.array([node for _, node in layout.marks.values()], np.int64)

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
            mark = layout.mark(node, grouped) if oneof is not None else -1
            if f.message_type is None:
                state[f.number] = self._scalar(f, node, grouped, mark)
                continue
            kind = "oneof" if grouped != name else "span"
            below = f"{path}{f.name}"
            if f.message_type.full_name in self._opaque:
                slot = -1 if f.is_repeated else layout.slot(node, grouped, kind)
                child = self._checked(f.message_type)
                state[f.number] = layout.act(kernels.MESSAGE, slot, mark, -1, f.number, child)
            elif f.is_repeated:
                below = self._shared.get(below, below)
                row = layout.nodes.setdefault(below, len(layout.nodes))
                child = self._state(f.message_type, node=below, path=f"{below}.", prefix="", above=above)
                state[f.number] = layout.act(kernels.ROWS, -1, -1, row, f.number, child)
            else:
                slot = layout.slot(node, grouped, kind)
                child = self._state(f.message_type, node=node, path=f"{below}.", prefix=f"{name}.", above=above)
                state[f.number] = layout.act(kernels.MESSAGE, slot, mark, -1, f.number, child)
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
            sequence = layout.sequence(node, name, kind)
            return layout.act(action, sequence, -1, sequence, f.number, -1)
        shared = f.containing_oneof is not None and not f.containing_oneof.name.startswith("_")
        return layout.act(action, layout.slot(node, name, "oneof" if shared else kind), mark, -1, f.number, -1)

    def _checked(self, message: Descriptor) -> int:
        """The state that only checks `message`, which may contain itself."""
        layout = self._layout
        if message.full_name not in layout.opaque:
            layout.opaque[message.full_name] = number = len(layout.states)
            state: dict[int, int] = {}
            layout.states.append(state)
            for f in message.fields:
                if f.message_type is not None:
                    state[f.number] = layout.act(kernels.MESSAGE, -1, -1, -1, f.number, self._checked(f.message_type))
            return number
        return layout.opaque[message.full_name]

    def scan(self, data: bytes | memoryview) -> Scan:
        """The columns of one message.

        Raises:
            Invalid: the bytes are not one message of this type; says where.
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
        layout = self._layout
        counts = np.zeros(len(layout.nodes) + len(layout.lists), np.int64)
        no_ints, no_bytes = np.zeros(0, np.int64), np.zeros(0, np.uint8)
        bases = (no_ints, no_ints, no_ints, no_ints)
        out = (no_ints, no_bytes, no_ints, no_ints, no_ints)
        code, offset, _ = kernels.scan(data, self._lookup, self._states, self._actions, False, counts, bases, out)
        if code != kernels.OK:
            name = self.message.DESCRIPTOR.name
            raise Invalid(f"not a {name}: {_REASONS[code]}, at byte {offset} of {len(data)}")
        nodes = counts[: len(layout.nodes)].copy()
        lengths = (nodes[self._slot_nodes], nodes[self._mark_nodes], counts[len(nodes) :].copy(), nodes)
        ends = tuple(np.cumsum(length) for length in lengths)
        bases = tuple(end - length for end, length in zip(ends, lengths, strict=True))
        total = [int(end[-1]) if len(end) else 0 for end in ends]
        values, parents = np.zeros(total[0], np.int64), np.zeros(total[3], np.int64)
        out = (
            values,
            np.zeros(total[1], np.uint8),
            parents,
            np.zeros(total[2], np.int64),
            np.zeros(total[2], np.int64),
        )
        irregular = kernels.scan(data, self._lookup, self._states, self._actions, True, counts, bases, out)[2]
        return None if irregular else Scan(layout, Arena(data), nodes, lengths[2], bases, out)


class Scan:
    """The columns of one scanned message; `arena` holds the bytes that its spans point into.

    Slots that were not on the wire read as zero or as an empty span. Strings that are not UTF-8 were
    repaired; `repaired` counts them by node and slot.
    """

    def __init__(self, layout: _Layout, arena: Arena, rows: Ints, sizes: Ints, bases: Any, out: Any) -> None:
        self.arena = arena
        self.repaired: dict[str, int] = {}
        self._layout, self._rows, self._sizes, self._bases, self._out = layout, rows, sizes, bases, out
        for (node, name), slot in layout.slots.items():
            if slot.kind == "string":
                self.repair(node, name)
        for (node, name), slot in layout.lists.items():
            if slot.kind == "string":
                self._repair(self._list(slot.number), f"{node}.{name}", np.zeros(0, np.bool_))

    def rows(self, node: str) -> int:
        """Number of rows of a node."""
        return int(self._rows[self._layout.nodes[node]])

    def parent(self, node: str) -> Ints:
        """Row in the parent node of every row, never decreasing."""
        number = self._layout.nodes[node]
        start = self._bases[3][number]
        return self._out[2][start : start + self._rows[number]]  # type: ignore[no-any-return]

    def offsets(self, node: str, parent_rows: int) -> Ints:
        """`parent_rows + 1` offsets: the rows of `node` under parent row i are `offsets[i]:offsets[i + 1]`."""
        return _offsets(self.parent(node), parent_rows)

    def raw(self, node: str, slot: str) -> Ints:
        """The 64 bits of a slot as they were read (of a string, bytes or message: its span)."""
        number, owner, _ = self._layout.slots[node, slot]
        start = self._bases[0][number]
        return self._out[0][start : start + self._rows[owner]]  # type: ignore[no-any-return]

    def numbers(self, node: str, slot: str) -> npt.NDArray[Any]:
        """A numeric slot in its own type: int64 (also for unsigned: read the bits), float64 or bool."""
        return _numbers(self.raw(node, slot), self._layout.slots[node, slot].kind)

    def which(self, node: str, oneof: str) -> npt.NDArray[np.uint8]:
        """Field number of the member of a oneof that is set, or of an `optional` field; 0 when none is."""
        number, owner = self._layout.marks[node, oneof]
        start = self._bases[1][number]
        return self._out[1][start : start + self._rows[owner]]  # type: ignore[no-any-return]

    def sequence(self, node: str, name: str) -> tuple[Ints, npt.NDArray[Any]]:
        """A repeated scalar: offsets by row of `node`, and the elements."""
        slot = self._layout.lists[node, name]
        start, size = self._bases[2][slot.number], self._sizes[slot.number]
        owners = self._out[4][start : start + size]
        return _offsets(owners, self.rows(node)), _numbers(self._list(slot.number), slot.kind)

    def repair(self, node: str, slot: str, chosen: npt.NDArray[np.bool_] | None = None) -> None:
        """Replace text of a slot that is not UTF-8 (where `chosen`); strings that are no oneof members already are."""
        self._repair(self.raw(node, slot), f"{node}.{slot}", np.zeros(0, np.bool_) if chosen is None else chosen)

    def _list(self, number: int) -> Ints:
        start = self._bases[2][number]
        return self._out[3][start : start + self._sizes[number]]  # type: ignore[no-any-return]

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


def _numbers(raw: Ints, kind: str) -> npt.NDArray[Any]:
    match kind:
        case "int32":
            return raw.astype(np.int32).astype(np.int64)
        case "uint32":
            return raw & 0xFFFFFFFF
        case "zigzag":
            return (raw.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(raw & 1)
        case "bool":
            return raw != 0
        case "double":
            return raw.view(np.float64)
        case "float":
            return raw.astype(np.uint32).view(np.float32).astype(np.float64)
    return raw
