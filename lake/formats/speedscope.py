"""Profiles in speedscope's own JSON (https://www.speedscope.app/file-format-schema.json), sampled and evented.

Also what py-spy writes with `--format speedscope`. Every profile of the file is a thread of its own.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lake.errors import Invalid
from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.calltree import paths
from lake.formats.columns import attributes_of, conform, fill_identity
from lake.formats.documents import load_objects, text, whole
from lake.formats.stacktable import frame_array, stack_rows

NAME: Final = "speedscope"

_SCHEMA: Final = re.compile(rb'"\$schema"\s*:\s*"[^"]*speedscope')
_TYPES: Final = re.compile(rb'"type"\s*:\s*"(evented|sampled)"')
_UNITS: Final = {
    "nanoseconds": ("time", "nanoseconds", 1),
    "microseconds": ("time", "nanoseconds", 1_000),
    "milliseconds": ("time", "nanoseconds", 1_000_000),
    "seconds": ("time", "nanoseconds", 1_000_000_000),
    "bytes": ("space", "bytes", 1),
}
_NO_UNIT: Final = ("samples", "samples", 1)
_INT64: Final = 1 << 63


def sniff(name: str, head: bytes) -> bool:
    """Whether it is a JSON object that names speedscope's schema, or holds profiles of its types."""
    if not head.lstrip().startswith(b"{"):
        return False
    return bool(_SCHEMA.search(head)) or (b'"profiles"' in head and bool(_TYPES.search(head)))


@dataclass(slots=True)
class _Tree:
    """Stacks seen so far as nodes (parent, frame), and the weight of every sample with its node and profile."""

    frames: int
    known: dict[tuple[int, int], int] = field(default_factory=dict)
    samples: list[tuple[int, int, int]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def child(self, node: int, frame: Any) -> int:
        """The node of `frame` called from `node` (-1: from nowhere).

        Raises:
            Invalid: there is no such frame.
        """
        if type(frame) is not int or not 0 <= frame < self.frames:
            raise Invalid(f"frame {frame!r} is none of the {self.frames} frames")
        return self.known.setdefault((node, frame), len(self.known))

    def note(self, count: int, what: str, *, rejected: bool = True) -> None:
        """A problem, when there are any."""
        if count:
            self.problems.append(Problem(message=f"{count} {what}", rejected=count if rejected else 0))


def decode(source: Source) -> Decoded:
    """One `samples` row a sample, or a stretch of time with one stack for evented profiles, and `stacks` rows.

    `sample_type` and `unit`: time in nanoseconds (also `dur`), space in bytes, else samples. `thread` is the profile's
    name; times count from the profile's start, so `ts` is null. Where events do not balance, frames are closed with
    what they were called from, or at the end, and that is reported.

    Raises:
        Invalid: it is not whole JSON, has no profiles, or nothing of them can be taken.
        LimitExceeded: it is too large for such a document.
    """
    document = load_objects(source.data, "speedscope profile")[0]
    shared, profiles = document.get("shared"), document.get("profiles")
    frames = shared.get("frames") if isinstance(shared, dict) else None
    if not isinstance(frames, list) or not isinstance(profiles, list):
        raise Invalid("speedscope profile has no shared.frames or no profiles")
    tree = _Tree(len(frames))
    kinds = []
    for number, profile in enumerate(profiles):
        profile = profile if isinstance(profile, dict) else {}
        kinds.append((text(profile.get("name")), *_UNITS.get(str(profile.get("unit")), _NO_UNIT)))
        read = _evented if profile.get("type") == "evented" else _sampled
        try:
            read(profile, tree, number, kinds[-1][3])
        except (Invalid, TypeError, ValueError, OverflowError) as error:
            tree.problems.append(Problem(message=f"profile {number} is cut where it is wrong: {error}", rejected=1))
    decoded = Decoded(identity=source.identity, problems=tree.problems, empty=not tree.samples)
    if not tree.samples and tree.problems:
        raise Invalid(tree.problems[0].message)
    if tree.samples:
        _tables(decoded, tree, (frames, kinds), source)
    return decoded


def _number(value: Any, scale: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Invalid(f"{value!r} is no number")
    scaled = value * scale if isinstance(value, int) else round(value * scale)
    if not -_INT64 <= scaled < _INT64:
        raise Invalid(f"{value} does not fit")
    return scaled


def _sampled(profile: dict[str, Any], tree: _Tree, number: int, scale: int) -> None:
    samples, weights = profile.get("samples"), profile.get("weights")
    if not isinstance(samples, list) or not isinstance(weights, list):
        raise Invalid("no samples or no weights")
    tree.note(abs(len(samples) - len(weights)), f"samples or weights of profile {number} have no counterpart")
    fractions = 0
    for stack, weight in zip(samples, weights, strict=False):
        node = -1
        for frame in stack:
            node = tree.child(node, frame)
        fractions += scale == 1 and isinstance(weight, float) and not weight.is_integer()
        tree.samples.append((number, node, _number(weight, scale)))
    tree.note(fractions, f"weights of profile {number} are no whole numbers, rounded", rejected=False)


def _evented(profile: dict[str, Any], tree: _Tree, number: int, scale: int) -> None:
    """Stretches between events, each with the stack that was open."""
    events = profile.get("events")
    if not isinstance(events, list):
        raise Invalid("no events")
    stack: list[tuple[int, int]] = []
    last, wrong = _number(profile.get("startValue", 0), scale), 0
    opened: Counter[int] = Counter()
    for event in events:
        if not isinstance(event, dict):
            raise Invalid(f"{event!r} is no event")
        at = _number(event.get("at"), scale)
        if at < last:
            raise Invalid(f"event at {event.get('at')} comes after a later one")
        if stack and at > last:
            tree.samples.append((number, stack[-1][1], at - last))
        last = at
        frame = event.get("frame")
        if type(frame) is not int:
            raise Invalid(f"{frame!r} is no frame")
        if event.get("type") == "O":
            stack.append((frame, tree.child(stack[-1][1] if stack else -1, frame)))
            opened[frame] += 1
            continue
        wrong += not stack or stack[-1][0] != frame
        while opened[frame]:
            closed = stack.pop()[0]
            opened[closed] -= 1
            if closed == frame:
                break
    end = _number(profile.get("endValue", last), scale)
    if stack and end > last:
        tree.samples.append((number, stack[-1][1], end - last))
    tree.note(wrong, f"frames of profile {number} are closed that are not the innermost", rejected=False)
    tree.note(len(stack), f"frames of profile {number} are never closed, taken to its end", rejected=False)


def _tables(decoded: Decoded, tree: _Tree, named: tuple[list[Any], list[Any]], source: Source) -> None:
    frames, kinds = named
    pairs = np.array(list(tree.known), np.int64).reshape(-1, 2)
    number, node, value = np.array(tree.samples, np.int64).T
    used, which = np.unique(node, return_inverse=True)
    offsets, nodes = paths(pairs[:, 0], used[used >= 0])
    if len(used) and used[0] < 0:
        offsets = np.concatenate(([0], offsets))
    ids, stacks = stack_rows(_frames(frames), offsets, pairs[nodes, 1], source=NAME, evidence_ref=source.evidence_ref)
    profile = pa.array(number)
    names, types, units, _ = (pa.array(column).take(profile) for column in zip(*kinds, strict=True))
    columns: dict[str, Any] = {
        "source": NAME,
        "evidence_ref": source.evidence_ref,
        "value": value,
        "dur": pa.array(value, mask=np.asarray([kind[1] != "time" for kind in kinds])[number]),
        "sample_type": types.cast(pa.string()),
        "unit": units.cast(pa.string()),
        "stack_id": ids.take(pa.array(which)),
        "thread": names.cast(pa.string()),
    }
    columns["attributes"], columns["attribute_types"] = attributes_of({"profile.number": ("i", profile)}, len(value))
    fill_identity(columns, source.identity)
    decoded.tables["samples"] = conform("samples", columns, len(value))
    if stacks.num_rows:
        decoded.tables["stacks"] = stacks


def _frames(frames: list[Any]) -> pa.StructArray:
    known = [frame if isinstance(frame, dict) else {} for frame in frames]
    return frame_array(
        len(known),
        function=pa.array([text(frame.get("name")) for frame in known], pa.string()),
        file=pa.array([text(frame.get("file")) for frame in known], pa.string()),
        line=pa.array([whole(frame.get("line")) for frame in known], pa.int64()),
    )


FORMAT: Final = Format(name=NAME, sniff=sniff, decode=decode)
