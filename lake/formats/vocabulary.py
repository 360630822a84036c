"""What a span's name tells: its category and, where it names one, its phase.

Frameworks name the same work differently; this is the one table that decoders share. It is data: patterns
are tried in order on the lower-cased name, the first that matches decides.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_RULES: Final = tuple(
    (re.compile(pattern), category)
    for pattern, category in (
        (r"^(profilerstep#\d+|(train(ing)?[._ /-]?)?(step|iteration)([#:_ ]?\d+)?)$", "step"),
        (r"(python|cpython)?[._ ]?\bgc\b|python_gc|garbage[_ ]collect|^gc([._:]|$)", "gc"),
        (r"^(nccl|gloo|mpi|ucc|xccl|hccl|rccl)[:_](send|recv|isend|irecv|batch_isend|coalesced)", "p2p"),
        (r"^(nccl|gloo|mpi|ucc|xccl|hccl|rccl):", "collective"),
        (r"nccl.*(sendrecv)", "p2p"),
        (r"^(nccl|rccl|onccl|mscclpp?)(dev)?kernel|ncclkernel|ncclfunction", "collective"),
        (
            r"all[_-]?reduce|reduce[_-]?scatter|all[_-]?gather|all[_-]?to[_-]?all|^all2all|broadcast_?coll|\bbarrier\b"
            r"|grad(s)?[_-]sync|params?[_-]sync",
            "collective",
        ),
        (
            r"^(pp|pipeline|p2p|forward|backward)[_.-](send|recv)|^(isend|irecv|send|recv)$|send[_-]?(forward|backward)"
            r"|recv[_-]?(forward|backward)|^(send|recv)_",
            "p2p",
        ),
        (r"data[_.-]?load|dataloader|next_batch|get_batch|load_batch|enumerate\(dataloader\)", "io"),
        (r"checkpoint[_.-]?(save|load|restore|write)|(save|load|restore)[_.-]?checkpoint", "io"),
        (
            r"^(forward|fwd|backward|bwd|optimizer|optimizer[._]step|loss|zero_grad|clip_grad)$"
            r"|^(forward|backward)[_-](pass|compute|step)$|^optimizer[_-]?\w*$",
            "phase",
        ),
    )
)
_PHASES: Final = {"fwd": "forward", "bwd": "backward", "dataload": "data_load", "dataloader": "data_load"}


def classify_name(name: str) -> tuple[str | None, str | None]:
    """(category, phase) of a span name, each None when the name does not tell.

    Categories: step, phase, collective, p2p, io, gc. The phase is the lower-cased name itself, common
    abbreviations written out, for every category but step; names with a library prefix (`nccl:…`) and
    kernels name no phase.
    """
    low = name.lower()
    for pattern, category in _RULES:
        if pattern.search(low):
            if category == "step" or ":" in low or "kernel" in low or len(low) > 40:
                return category, None
            return category, _PHASES.get(low, low)
    return None, None


def classify(names: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Category and phase (string arrays, null where not told) of every name; each distinct name is read once."""
    encoded = pc.dictionary_encode(names)
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks() if encoded.num_chunks != 1 else encoded.chunk(0)
    pairs = [classify_name(name) for name in encoded.dictionary.to_pylist()]
    category = pa.array([pair[0] for pair in pairs], pa.string())
    phase = pa.array([pair[1] for pair in pairs], pa.string())
    return category.take(encoded.indices), phase.take(encoded.indices)
