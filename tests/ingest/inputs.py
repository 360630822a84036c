"""Small inputs of a made-up run, written where a test wants them."""

from __future__ import annotations

import json
from pathlib import Path

STDOUT = b"[rank0]: loading\nWARNING: slow disk\n[rank1]: ready\n"
PYSPY = b"main (train.py:1);forward (model.py:7) 3\nmain (train.py:1);backward (model.py:9) 2\n"


def topology(run: str, *attempts: int, gpus: tuple[str, ...] = ("A", "B")) -> bytes:
    """A topology document: rank r of attempt a has the device that a rotation of `gpus` gives it."""
    entries = [
        {
            "run_id": run,
            "attempt_id": attempt,
            "topology_version": f"tv{attempt}",
            "valid_from": 1000 * attempt,
            "valid_to": 1000 * attempt + 999,
            "ranks": [
                {"rank": rank, "host": "node", "gpu_uuid": gpus[(rank + attempt) % len(gpus)], "nic": f"nic{rank}"}
                for rank in range(len(gpus))
            ],
        }
        for attempt in attempts
    ]
    return json.dumps(entries).encode()


def trace(*names: str, rank: int | None = None) -> bytes:
    """A Chrome trace of one complete event per name, 10 µs each; with `rank`, as the PyTorch profiler writes it."""
    events = [
        {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": 10.0 * i, "dur": 10.0, "args": {}}
        for i, name in enumerate(names)
    ]
    document: dict[str, object] = {"schemaVersion": 1, "traceEvents": events}
    if rank is not None:
        document["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": 2}
    return json.dumps(document).encode()


def write(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files below a folder; gives the folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def run_folder(folder: Path, run: str = "run-a") -> Path:
    """A folder of one run with two attempts: topology, logs, stacks, traces and an empty dump of each rank."""
    files = {"topology.json": topology(run, 0, 1), "README.md": b"# not telemetry", "truth.json": b"{}"}
    for attempt in (0, 1):
        files[f"stdout_{attempt}.log"] = STDOUT + f"attempt {attempt} of {run}\n".encode()
        for rank in (0, 1):
            files[f"flight_recorder/{attempt}_fail_rank_{rank}.pickle"] = b""
            files[f"pyspy/{attempt}_rank{rank}.raw"] = PYSPY
            files[f"kineto/{attempt}_rank{rank}_steps3-4.json"] = trace("forward", "backward", rank=rank)
    return write(folder, files)
