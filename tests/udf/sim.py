"""A generator of training steps: tensor x pipeline x data parallel, one forward one backward (1F1B), with noise.

Every time is known: who was late, which link was slow, how far each clock is off. Sends are buffered (they return
at once), receives and collectives block, as in Megatron-like trainers. A host holds one tensor-parallel group.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float64]

FORWARD_NS, BACKWARD_NS, OPTIMIZER_NS = 2_000_000, 4_000_000, 1_000_000
TENSOR_NS, DATA_NS, LINK_NS, SEND_NS, LOAD_NS = 50_000, 3_000_000, 20_000, 2_000, 100_000
START_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Sim:
    """One job. The slow rank computes `slow_factor` times longer; the slow link adds `slow_link_ns` to messages from
    its first stage to its second, in every replica."""

    tp: int = 2
    pp: int = 4
    dp: int = 2
    microbatches: int = 8
    sigma: float = 0.02
    last_stage: float = 1.25
    slow_rank: int | None = None
    slow_factor: float = 1.5
    slow_link: tuple[int, int] | None = None
    slow_link_ns: int = 0
    offset_ns: float = 0.0
    """clocks of hosts are off by a uniform amount up to this"""
    seed: int = 0

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.dp

    def rank(self, stage: int) -> npt.NDArray[np.int64]:
        """Ranks of a stage by [dp, tp]."""
        return stage * self.dp * self.tp + np.arange(self.dp * self.tp).reshape(self.dp, self.tp)


@dataclass(slots=True)
class Run:
    """What came out: spans, placements, the true bias of every host's clock, and each rank's true step end."""

    spans: pa.Table
    placements: pa.Table
    bias_ns: Floats
    step_ns: int


@dataclass(slots=True)
class _Recorder:
    parts: list[dict[str, Any]] = field(default_factory=list)

    def add(self, rank: Any, start: Floats, end: Floats, **rest: Any) -> None:
        self.parts.append({"rank": rank, "start": start, "end": end, **rest})


def simulate(sim: Sim, steps: int = 1) -> Run:
    """Steps of a job, each beginning when the one before has ended everywhere."""
    rng = np.random.default_rng(sim.seed)
    bias = rng.uniform(-1, 1, sim.pp * sim.dp) * sim.offset_ns
    recorder, now = _Recorder(), 0.0
    for step in range(steps):
        first = len(recorder.parts)
        now = _step(sim, rng, recorder, now)
        for part in recorder.parts[first:]:
            part["step"] = step
    return Run(_table(sim, recorder, bias), _placements(sim), bias, round(now))


def _schedule(sim: Sim) -> list[list[tuple[str, int]]]:
    """Per stage its forwards and backwards in 1F1B order."""
    result = []
    for stage in range(sim.pp):
        warm = min(sim.pp - stage - 1, sim.microbatches)
        order = [("forward", k) for k in range(warm)]
        for k in range(sim.microbatches - warm):
            order += [("forward", warm + k), ("backward", k)]
        order += [("backward", k) for k in range(sim.microbatches - warm, sim.microbatches)]
        result.append(order)
    return result


def _step(sim: Sim, rng: np.random.Generator, recorder: _Recorder, begin: float) -> float:
    shape = (sim.dp, sim.tp)
    now = [np.full(shape, begin + LOAD_NS) for _ in range(sim.pp)]
    for stage in range(sim.pp):
        start = np.full(shape, begin)
        recorder.add(sim.rank(stage), start, now[stage], name="data_load", category="io", phase="data_load")
    sent: dict[tuple[str, int, int], Floats] = {}
    todo = _schedule(sim)
    while any(todo):
        for stage in range(sim.pp):
            while todo[stage] and _ready(sim, sent, stage, *todo[stage][0]):
                now[stage] = _operation(sim, rng, recorder, (sent, now[stage]), (stage, *todo[stage].pop(0)))
    end = begin
    for stage in range(sim.pp):
        ranks = sim.rank(stage)
        done = np.broadcast_to(now[stage].max(axis=0), shape) + DATA_NS if sim.dp > 1 else now[stage]
        if sim.dp > 1:
            group = np.char.add(f"dp{stage}.", np.broadcast_to(np.arange(sim.tp), shape).astype(str))
            what = {"name": "dp_allreduce", "category": "collective", "phase": "dp_allreduce"}
            recorder.add(ranks, now[stage], done, communicator=group, seq=0, **what)
        final = done + OPTIMIZER_NS * _noise(sim, rng, ranks)
        recorder.add(ranks, done, final, name="optimizer", category="phase", phase="optimizer")
        recorder.add(ranks, np.full(shape, begin), final, name="train.step", category="step", phase=None)
        end = max(end, float(final.max()))
    return end


def _noise(sim: Sim, rng: np.random.Generator, ranks: npt.NDArray[np.int64]) -> Floats:
    factor = np.exp(rng.normal(0, sim.sigma, ranks.shape))
    return np.where(ranks == sim.slow_rank, factor * sim.slow_factor, factor)


def _ready(sim: Sim, sent: dict[tuple[str, int, int], Floats], stage: int, kind: str, k: int) -> bool:
    first = stage == (0 if kind == "forward" else sim.pp - 1)
    return first or (kind, stage, k) in sent


def _operation(
    sim: Sim,
    rng: np.random.Generator,
    recorder: _Recorder,
    state: tuple[dict[tuple[str, int, int], Floats], Floats],
    which: tuple[int, str, int],
) -> Floats:
    """Receive, compute, reduce over the tensor group, send; gives when the ranks of the stage are free again."""
    (sent, now), (stage, kind, k) = state, which
    ranks, began = sim.rank(stage), now
    side = 1 if kind == "forward" else -1
    message = {"category": "p2p", "seq": k, "inner": kind}
    if (kind, stage, k) in sent:
        delay = LINK_NS + (sim.slow_link_ns if sim.slow_link == (stage - side, stage) else 0)
        ready = np.maximum(now + SEND_NS, sent[kind, stage, k] + delay)
        recorder.add(
            ranks, now, ready, name="pp_recv", phase="pp_recv", communicator=_pair(sim, stage - side, stage), **message
        )
        now = ready
    base = (FORWARD_NS if kind == "forward" else BACKWARD_NS) * (sim.last_stage if stage == sim.pp - 1 else 1.0)
    computed = now + base * _noise(sim, rng, ranks)
    done = computed
    if sim.tp > 1:
        done = np.broadcast_to(computed.max(axis=1, keepdims=True), computed.shape) + TENSOR_NS
        group = np.char.add(f"tp{stage}.", np.broadcast_to(np.arange(sim.dp)[:, None], done.shape).astype(str))
        number = 2 * k + (kind == "backward")
        what = {"name": "tp_allreduce", "category": "collective", "phase": "tp_allreduce"}
        recorder.add(ranks, computed, done, communicator=group, seq=number, inner=kind, **what)
    if 0 <= stage + side < sim.pp:
        pair = _pair(sim, stage, stage + side)
        recorder.add(ranks, done, done + SEND_NS, name="pp_send", phase="pp_send", communicator=pair, **message)
        sent[kind, stage + side, k] = done
        done = done + SEND_NS
    recorder.add(ranks, began, done, name=kind, category="phase", phase=kind)
    return done


def _pair(sim: Sim, source: int, target: int) -> npt.NDArray[np.str_]:
    places = np.arange(sim.dp * sim.tp).reshape(sim.dp, sim.tp).astype(str)
    return np.char.add(f"pp{source}>{target}.", places)


def _table(sim: Sim, recorder: _Recorder, bias: Floats) -> pa.Table:
    def column(name: str, kind: type | str) -> npt.NDArray[Any]:
        parts = [np.broadcast_to(np.array(part.get(name), kind), part["rank"].shape).ravel() for part in recorder.parts]
        return np.concatenate(parts)

    rank = column("rank", np.int64)
    host = rank // sim.tp
    start = np.rint(column("start", np.float64)).astype(np.int64)
    end = np.rint(column("end", np.float64)).astype(np.int64)
    communicator = np.concatenate(
        [
            np.broadcast_to(np.array(part.get("communicator"), object), part["rank"].shape).ravel()
            for part in recorder.parts
        ]
    )
    texts = {name: column(name, object) for name in ("name", "category", "phase")}
    seq = [None if value is None else int(value) for value in column("seq", object)]
    step = column("step", np.int64)
    keys = [None if name is None else f"{name}.{number}" for name, number in zip(communicator, step, strict=True)]
    nothing = [None] * len(rank)
    return pa.table(
        {
            "step_id": step,
            "rank_id": pa.array(rank, pa.int32()),
            "host_id": pa.array([f"host-{h:03}" for h in host]),
            "gpu_uuid": pa.array([f"GPU-{r:04}" for r in rank]),
            "evidence_ref": pa.array(nothing, pa.string()),
            "ts_ns": START_NS + start + np.rint(bias[host]).astype(np.int64),
            "dur": end - start,
            "span_id": pa.array([f"{i:016x}" for i in range(len(rank))]),
            **{name: pa.array(values.tolist(), pa.string()) for name, values in texts.items()},
            "track": pa.array(["main"] * len(rank)),
            "correlation_id": pa.array(nothing, pa.int64()),
            "communicator_id": pa.array(keys, pa.string()),
            "seq": pa.array(seq, pa.int64()),
            "shift_ns": np.zeros(len(rank), np.int64),
        }
    )


def _placements(sim: Sim) -> pa.Table:
    rank = np.arange(sim.ranks)
    return pa.table(
        {
            "rank_id": pa.array(rank, pa.int32()),
            "host_id": pa.array([f"host-{h:03}" for h in rank // sim.tp]),
            "gpu_uuid": pa.array([f"GPU-{r:04}" for r in rank]),
            "dp": pa.array(rank // sim.tp % sim.dp, pa.int32()),
            "tp": pa.array(rank % sim.tp, pa.int32()),
            "pp": pa.array(rank // (sim.tp * sim.dp), pa.int32()),
        }
    )


def anonymous(run: Run) -> Run:
    """The same run whose spans name neither communicator nor sequence number."""
    nothing = {
        "communicator_id": pa.nulls(run.spans.num_rows, pa.string()),
        "seq": pa.nulls(run.spans.num_rows, pa.int64()),
    }
    spans = run.spans
    for name, values in nothing.items():
        spans = spans.set_column(spans.column_names.index(name), name, values)
    return replace(run, spans=spans)
