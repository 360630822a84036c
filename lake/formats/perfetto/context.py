"""What all decoders of payloads share."""

from __future__ import annotations

from dataclasses import dataclass, field

from lake.formats.base import Problem
from lake.formats.perfetto.clocks import Clocks
from lake.formats.perfetto.envelope import Packets
from lake.formats.perfetto.processes import People
from lake.formats.perfetto.sequences import Interned, Sequences
from lake.formats.perfetto.stream import Stream


@dataclass(slots=True)
class Context:
    """A trace while it is decoded."""

    packets: Packets
    sequences: Sequences
    interned: Interned
    clocks: Clocks
    max_depth: int
    people: People
    stream: Stream = field(default_factory=Stream)

    def problem(self, message: str, *, rejected: int = 0) -> None:
        """Report something that was not taken as it stood."""
        self.packets.problems.append(Problem(message=message, rejected=rejected))
