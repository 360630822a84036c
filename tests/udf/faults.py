"""Faults put into recorded spans: the noise stays real, the fault is known."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from tests.udf.recorded import Row, table, tables

MS = 1_000_000


class Recording:
    """Spans and collectives of a recorded attempt that may be changed."""

    def __init__(self, name: str, attempt_id: int) -> None:
        chosen = {key: tables(name)[key].to_pylist() for key in ("spans", "collectives", "placements")}
        for rows in chosen.values():
            rows[:] = [row for row in rows if row["attempt_id"] == attempt_id]
        self.spans: list[Row] = chosen["spans"]
        self.collectives: list[Row] = chosen["collectives"]
        self.placements: list[Row] = chosen["placements"]
        self.run_id = self.spans[0]["run_id"]
        self.attempt_id = attempt_id
        self.by_id = {span["span_id"]: span for span in self.spans}
        for span in self.spans:
            span["ts"] = span["ts"].value
        for row in self.collectives:
            row["ts"] = row["scheduled_at"] = row["entered"] = row["scheduled_at"].value
        self.delays: dict[int, int] = {}
        """step → what it takes longer (ns): everything after it comes later, on all ranks"""

    def lengthen(self, span: Row, by_ns: int) -> None:
        """Make a span, and everything around it, longer."""
        step = span["step_id"]
        self.delays[step] = max(self.delays.get(step, 0), by_ns)
        while span is not None:
            span["dur"] += by_ns
            span = self.by_id.get(span["parent_id"])

    def find(self, name: str, ranks: Iterable[int], steps: Iterable[int]) -> list[Row]:
        """Spans of a name on some ranks in some steps."""
        wanted = {(rank, step) for rank in ranks for step in steps}
        return [s for s in self.spans if s["name"] == name and (s["rank_id"], s["step_id"]) in wanted]

    def slow_work(self, name: str, rank: int, steps: Iterable[int], by_ms: float) -> None:
        """More own time in a phase."""
        for span in self.find(name, [rank], steps):
            self.lengthen(span, int(by_ms * MS))

    def pauses(self, rank: int, steps: Iterable[int], by_ms: float) -> None:
        """Garbage collection inside of forward."""
        for number, span in enumerate(self.find("forward", [rank], steps)):
            self.lengthen(span, int(by_ms * MS))
            own = {"name": "python_gc", "category": "gc", "phase": "python_gc", "dur": int(by_ms * MS)}
            self.spans.append(span | own | {"parent_id": span["span_id"], "span_id": f"gc{rank}/{number}"})

    def late_entry(self, rank: int, peer: int, steps: Iterable[int], by_ms: float) -> None:
        """A rank that sleeps inside of dp_allreduce before it enters the first collective; its peer waits there."""
        by_ns = int(by_ms * MS)
        for span in self.find("dp_allreduce", [rank, peer], steps):
            inside = [
                row
                for row in self.collectives
                if row["rank_id"] == span["rank_id"] and span["ts"] <= row["entered"] <= span["ts"] + span["dur"]
            ]
            for row in inside[0 if span["rank_id"] == rank else 1 :]:
                row["scheduled_at"] += by_ns
            self.lengthen(span, by_ns)

    def slow_send(self, rank: int, receiver: int, steps: Iterable[int], by_ms: float) -> None:
        """Sends that take longer although the receiver is there."""
        for name, who in (("pp_send", rank), ("pp_recv", receiver)):
            for span in self.find(name, [who], steps):
                self.lengthen(span, int(by_ms * MS))

    def more_work(self, ranks: Iterable[int], steps: Iterable[int], factor: float) -> None:
        """Forward and backward of some ranks take several times their own time."""
        for name in ("forward", "backward"):
            for span in self.find(name, ranks, steps):
                inner = sum(s["dur"] for s in self.spans if s["parent_id"] == span["span_id"])
                self.lengthen(span, int((span["dur"] - inner) * (factor - 1)))

    def _delay(self) -> None:
        for rank in {span["rank_id"] for span in self.spans}:
            spans = [s for s in self.spans if s["rank_id"] == rank]
            starts = sorted((s["ts"], s["step_id"]) for s in spans if s["name"] == "train.step")
            entries = [row for row in self.collectives if row["rank_id"] == rank]
            for row in entries:
                own = bisect.bisect([ts for ts, _ in starts], row["entered"]) - 1
                row["scheduled_at"] += sum(by for step, by in self.delays.items() if own >= 0 and step < starts[own][1])
            for span in spans:
                span["ts"] += sum(by for step, by in self.delays.items() if step < span["step_id"])
        for row in self.collectives:
            row.pop("entered")
        self.delays.clear()

    def arrow(self) -> dict[str, pa.Table]:
        """The tables that `stragglers` reads."""
        self._delay()
        return {name: table(name, getattr(self, name)) for name in ("spans", "collectives", "placements")}


def pipeline(
    dp: int, pp: int, steps: int, rng: np.random.Generator, shape: Callable[[int, int, int], float]
) -> dict[str, pa.Table]:
    """Spans of a synthetic job: `shape(replica, stage, step)` is the forward time (ms), 16 microbatches with 2 % noise.

    Sequence length varies by (replica, step) with coefficient of variation 0.6; the last stage is 1.25 times as
    heavy. Rank = stage · dp + replica.
    """
    rows, places = [], []
    lengths = np.exp(rng.normal(0, np.sqrt(np.log(1.36)), (dp, steps)))
    for stage in range(pp):
        for replica in range(dp):
            rank = stage * dp + replica
            identity = {"run_id": "sim", "attempt_id": 0, "rank_id": rank}
            places.append(identity | {"dp": replica, "pp": stage, "tp": 0})
            for step in range(steps):
                base = shape(replica, stage, step) * lengths[replica, step] * (1.25 if stage == pp - 1 else 1.0)
                for name, weight in (("forward", 1.0), ("backward", 2.0)):
                    dur = int(base * weight * np.exp(rng.normal(0, 0.02 / 4)) * MS)
                    own = {"step_id": step, "name": name, "category": "phase", "phase": name, "dur": dur}
                    rows.append(identity | own | {"ts": 0, "span_id": f"{rank}/{step}/{name}", "source": "otlp"})
    return {"spans": table("spans", rows), "placements": table("placements", places)}
