"""SQL: incident-shaped queries on a generated run, this engine against DuckDB on the same Parquet files."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from lake.catalog import open_catalog
from lake.parquet import write_table
from lake.query import Engine
from lake.records import DataFile, Publication
from lake.schemas import TABLES
from lake.settings import Settings
from lake.store import open_store

RANKS, STEPS, FILE_STEPS = 128, 480, 40
T0 = 1_767_225_600_000_000_000
STEP_NS = 2_000_000_000
PHASES = ("data_load", "forward", "pp_send", "backward", "pp_recv", "dp_allreduce", "optimizer")
KERNELS = 60
"""spans of kernels a rank and step, beside its phases"""
ROUNDS = 7

QUERIES = {
    "step time of every rank": "SELECT rank_id, avg(dur) FROM spans WHERE category = 'step' GROUP BY rank_id",
    "the slow window": "SELECT step_id, max(dur) - min(dur) FROM spans WHERE category = 'step' AND run_id = 'run-1'"
    " AND step_id BETWEEN 100 AND 140 GROUP BY step_id ORDER BY step_id",
    "phases of one step": "SELECT rank_id, name, ts, dur FROM spans WHERE run_id = 'run-1' AND step_id = 120"
    " AND category = 'phase' ORDER BY rank_id, ts",
    "slowest forward": "SELECT step_id, rank_id, dur FROM spans WHERE name = 'forward'"
    " ORDER BY dur DESC, step_id LIMIT 20",
    "kernels of a rank against its peers": "SELECT name, avg(CASE WHEN rank_id = 7 THEN dur END) AS mine, avg(dur)"
    " FROM spans WHERE category = 'kernel' AND step_id BETWEEN 110 AND 130 GROUP BY name"
    " ORDER BY mine DESC, name LIMIT 10",
    "span by id": "SELECT * FROM spans WHERE span_id = '{span}'",
    "metric around an incident": "SELECT rank_id, avg(value), max(value) FROM metrics WHERE name = 'gpu.temperature'"
    " AND ts BETWEEN TIMESTAMPTZ '2026-01-01 00:03:00Z' AND TIMESTAMPTZ '2026-01-01 00:05:00Z'"
    " GROUP BY rank_id ORDER BY 1",
    "errors by host": "SELECT host_id, count(*) FROM logs WHERE severity_number >= 17 AND body LIKE '%Xid%'"
    " GROUP BY host_id ORDER BY 2 DESC, 1",
    "logs with the spans of their step": "SELECT l.host_id, s.name, count(*), sum(s.dur) FROM logs l JOIN spans s"
    " ON l.run_id = s.run_id AND l.step_id = s.step_id AND l.rank_id = s.rank_id"
    " WHERE l.severity_number >= 17 AND s.category = 'phase' GROUP BY 1, 2 ORDER BY 4 DESC, 1, 2 LIMIT 20",
    "last to start each collective": "SELECT c.rank_id, count(*) FROM collectives c JOIN (SELECT communicator_id, seq,"
    " max(started_at) AS last FROM collectives WHERE step_id >= 100 GROUP BY communicator_id, seq) AS m"
    " ON c.communicator_id = m.communicator_id AND c.seq = m.seq AND c.started_at = m.last"
    " GROUP BY c.rank_id ORDER BY 2 DESC, 1",
}  # fmt: skip


def main() -> None:
    """Generate, run every query on both, print milliseconds and ratios; the aim is a total of at most 1.5."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(query_threads=os.cpu_count() or 1)
        catalog, store = open_catalog(f"{folder}/catalog.sqlite"), open_store(f"{folder}/objects")
        tables = {"spans": spans, "metrics": metrics, "logs": logs, "collectives": collectives}
        paths: dict[str, list[str]] = {name: [] for name in tables}
        for first in range(0, STEPS, FILE_STEPS):
            for name, make in tables.items():
                data, described = write_table(name, make(first), settings)
                key = f"{name}/{first:05d}.parquet"
                store.put(key, data)
                file = DataFile(
                    file_id=key, table=name, path=key, rows=described.rows, size_bytes=len(data),
                    ranges=described.ranges, sets=described.sets,
                )  # fmt: skip
                catalog.publish(Publication(files=(file,)))
                paths[name].append(str(Path(folder) / "objects" / key))
        compare(Engine(catalog, store, settings), peer(paths, settings.query_threads))
        catalog.close()


def compare(engine: Engine, duck: duckdb.DuckDBPyConnection) -> None:
    """Print the best of some rounds of every query on both sides."""
    total = [0.0, 0.0]
    for name, text in QUERIES.items():
        query = text.replace("{span}", span_ids(120, np.array([5]))[0].as_py())
        (ours, lake_s), (theirs, duck_s) = timed(
            lambda query=query: engine.sql(query).arrow(), lambda query=query: duck.sql(query).to_arrow_table()
        )
        same = ours.num_rows == theirs.num_rows
        total[0] += lake_s
        total[1] += duck_s
        note = "" if same else f"  DIFFERENT ROWS: {ours.num_rows} and {theirs.num_rows}"
        print(f"{name:40} {lake_s * 1e3:8.1f} ms  duckdb {duck_s * 1e3:8.1f} ms  ratio {lake_s / duck_s:5.2f}{note}")
    print(f"{'total':40} {total[0] * 1e3:8.1f} ms  duckdb {total[1] * 1e3:8.1f} ms  ratio {total[0] / total[1]:5.2f}")


def timed(*sides: Callable[[], Any]) -> list[tuple[Any, float]]:
    """The result and the least time in seconds of every side, run in turns so that they meet the same machine."""
    best = [(None, float("inf"))] * len(sides)
    for _ in range(ROUNDS):
        for side, run in enumerate(sides):
            started = time.perf_counter()
            result = run()
            best[side] = (result, min(best[side][1], time.perf_counter() - started))
    return best


def peer(paths: dict[str, list[str]], threads: int) -> duckdb.DuckDBPyConnection:
    """DuckDB with a view over the files of every table, and its metadata cache on."""
    duck = duckdb.connect()
    duck.execute(f"SET threads = {threads}; SET enable_object_cache = true; SET TimeZone = 'UTC'")
    for name, files in paths.items():
        listed = ", ".join(f"'{path}'" for path in files)
        duck.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet([{listed}])")
    return duck


def table(which: str, rows: int, /, **columns: Any) -> pa.Table:
    """A table with some columns given and the others null."""
    schema = TABLES[which].schema
    known = {"run_id": pa.repeat("run-1", rows), "attempt_id": np.zeros(rows, np.int32), **columns}
    arrays = [pa.array(known[f.name], f.type) if f.name in known else pa.nulls(rows, f.type) for f in schema]
    return pa.table(arrays, schema=schema)


def identity(steps: np.ndarray, ranks: np.ndarray) -> dict[str, Any]:
    """Columns that say where a row comes from."""
    hosts = pa.array([f"node-{host:02d}" for host in range(RANKS // 8)])
    return {"step_id": steps, "rank_id": ranks.astype(np.int32), "host_id": hosts.take(pa.array(ranks // 8))}


def span_ids(seed: int, numbers: np.ndarray) -> pa.Array:
    """16 hex digits for every number."""
    mixed = (numbers.astype(np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
    return pa.array([f"{value:016x}" for value in mixed])


def spans(first: int) -> pa.Table:
    """One step span, the phases and the kernels of every rank of some steps."""
    each = 1 + len(PHASES) + KERNELS
    rows = FILE_STEPS * RANKS * each
    index = np.arange(rows)
    part, rank, step = index % each, index // each % RANKS, index // each // RANKS + first
    random = np.random.default_rng(first)
    names = pa.array(["train.step", *PHASES, *(f"kernel_{number % 12}_{'x' * 30}" for number in range(KERNELS))])
    kinds = pa.array(["step", *["phase"] * len(PHASES), *["kernel"] * KERNELS])
    phases = pa.array([None, *PHASES, *[None] * KERNELS], pa.string())
    dur = np.where(part == 0, STEP_NS, random.gamma(4, 1e6, rows).astype(np.int64))
    dur += ((rank == 7) & (step >= 120) & (part == 2)) * 150_000_000
    return table(
        "spans", rows, **identity(step, rank), ts=T0 + step * STEP_NS + part * 10_000_000, dur=dur,
        name=names.take(pa.array(part)), category=kinds.take(pa.array(part)), phase=phases.take(pa.array(part)),
        source=pa.repeat("otlp", rows),
        span_id=span_ids(first, index), track=pa.repeat("main", rows),
        attributes=pa.array([[("rank", "1"), ("stream", "7")]] * rows, TABLES["spans"].schema.field("attributes").type),
    )  # fmt: skip


def metrics(first: int) -> pa.Table:
    """Eight gauges of every rank, ten times a step."""
    each = 80
    rows = FILE_STEPS * RANKS * each
    index = np.arange(rows)
    part, rank, step = index % each, index // each % RANKS, index // each // RANKS + first
    names = pa.array(["gpu.temperature", "gpu.power", "gpu.utilization", "loss", "tokens", "mem", "sm", "pcie"])
    value = np.random.default_rng(first).normal(60, 5, rows)
    ts = T0 + step * STEP_NS + part // 8 * (STEP_NS // 10)
    return table("metrics", rows, **identity(step, rank), ts=ts, name=names.take(pa.array(part % 8)), value=value)


def logs(first: int) -> pa.Table:
    """Five lines of every rank and step; one in two hundred is an error."""
    rows = FILE_STEPS * RANKS * 5
    index = np.arange(rows)
    rank, step = index // 5 % RANKS, index // 5 // RANKS + first
    failed = np.random.default_rng(first).random(rows) < 0.005
    bodies = pa.array(["step finished, loss and gradient norm are within bounds", "NVRM: Xid (PCI:0000:3b:00): 79"])
    return table(
        "logs", rows, **identity(step, rank), ts=T0 + step * STEP_NS + index % 5,
        severity_number=np.where(failed, 17, 9).astype(np.int32), body=bodies.take(pa.array(failed.astype(np.int8))),
    )  # fmt: skip


def collectives(first: int) -> pa.Table:
    """Twenty all-reduces of every group of eight ranks in every step."""
    rows = FILE_STEPS * RANKS * 20
    index = np.arange(rows)
    part, rank, step = index % 20, index // 20 % RANKS, index // 20 // RANKS + first
    groups = pa.array([f"dp-{group}" for group in range(RANKS // 8)])
    start = T0 + step * STEP_NS + part * 1_000_000 + np.random.default_rng(first).integers(0, 500_000, rows)
    return table(
        "collectives", rows, **identity(step, rank), ts=start, started_at=start, completed_at=start + 900_000,
        communicator_id=groups.take(pa.array(rank // 8)), seq=step * 20 + part, op=pa.repeat("all_reduce", rows),
    )  # fmt: skip
