"""Weighted stacks as a pprof profile or as collapsed text.

Fields are those of https://github.com/google/pprof/blob/main/proto/profile.proto.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.formats import protowrite as pw
from lake.formats.protowrite import Ints, Parts

_SAMPLE_TYPE, _SAMPLE, _MAPPING, _LOCATION, _FUNCTION, _STRING, _DEFAULT_TYPE = 1, 2, 3, 4, 5, 6, 14
_TEXT_FIELDS: Final = ("function", "file", "module", "build_id")


def write_pprof(stacks: pa.Array, weights: Ints, sample_type: str, unit: str) -> bytes:
    """A profile of one value a sample; `stacks` are lists of frames (`lake.schemas.FRAME`), root first.

    A stack that is null or empty is a sample without locations, so that the total stays.
    """
    frames = stacks.flatten()
    columns = [pc.fill_null(_field(frames, name), "") for name in _TEXT_FIELDS]
    texts = pc.unique(pa.concat_arrays([pa.array(["", sample_type, unit]), *columns]))
    function, file, module, build_id = (pc.index_in(column, value_set=texts).to_numpy() for column in columns)
    address, line = (pc.fill_null(_field(frames, name), 0).to_numpy() for name in ("address", "line"))
    mappings, mapping = _distinct(module, build_id)
    functions, function_of = _distinct(function, file)
    locations, location = _distinct(mapping + 1, address, function_of + 1, line)
    lengths = pc.fill_null(pc.list_value_length(stacks), 0).to_numpy().astype(np.int64)
    names = pc.index_in(pa.array([sample_type, unit]), value_set=texts).to_numpy()
    kind = pw.joined(_whole(1, names[:1]), _whole(2, names[1:]))
    out = (
        pw.message(_SAMPLE_TYPE, kind),
        pw.message(_SAMPLE, _samples(location + 1, lengths, weights), pw.everything(len(weights))),
        _numbered(_MAPPING, _whole(5, mappings[:, 0]), _whole(6, mappings[:, 1]), pw.integer(7, 1, _ones(mappings))),
        _numbered(_LOCATION, _whole(2, locations[:, 0]), _whole(3, locations[:, 1]), _lines(locations)),
        _numbered(_FUNCTION, _whole(2, functions[:, 0]), _whole(3, functions[:, 0]), _whole(4, functions[:, 1])),
        pw.message(_STRING, pw.texts(texts), pw.everything(len(texts))),
        _whole(_DEFAULT_TYPE, names[:1]),
    )
    return b"".join(part.data.tobytes() for part in out)


def _samples(location: Ints, lengths: Ints, weights: Ints) -> Parts:
    """Locations of every sample, leaf first, and its value, both packed."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    ends = np.cumsum(lengths)
    leaf_first = np.repeat(2 * ends - lengths - 1, lengths) - np.arange(len(location))
    ids = pw.collected(pw.varints(location[leaf_first]), owner, len(lengths))
    return pw.joined(pw.message(1, ids), pw.message(2, pw.varints(weights)))


def _lines(locations: Ints) -> Parts:
    return pw.message(4, pw.joined(_whole(1, locations[:, 2]), _whole(2, locations[:, 3])))


def _numbered(field: int, *columns: Parts) -> Parts:
    """Messages with ids from 1."""
    return pw.message(field, pw.joined(_whole(1, np.arange(1, len(columns[0]) + 1)), *columns))


def _whole(number: int, values: Ints) -> Parts:
    return pw.integer(number, values, pw.everything(len(values)))


def _ones(rows: Ints) -> pw.Mask:
    return pw.everything(len(rows))


def _distinct(*columns: Ints) -> tuple[Ints, Ints]:
    """(the distinct rows, the number of each row among them)."""
    rows, index = np.unique(np.stack(columns, axis=1).astype(np.int64), axis=0, return_inverse=True)
    return rows, index.reshape(-1)


def _field(frames: pa.Array, name: str) -> pa.Array:
    return frames.field(frames.type.get_field_index(name))


def write_collapsed(labels: pa.Array, weights: Ints) -> bytes:
    """`root;…;leaf weight` lines (Brendan Gregg's collapsed stacks) of lists of frame labels, root first.

    A `;` or a line break inside a label would end it: both are replaced.
    """
    flat = pc.replace_substring_regex(labels.flatten(), r"[\r\n]+", " ")
    flat = pc.replace_substring(flat, ";", ":")
    offsets = np.zeros(len(labels) + 1, np.int32)
    np.cumsum(pc.fill_null(pc.list_value_length(labels), 0).to_numpy(), out=offsets[1:])
    stacks = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), flat), ";")
    stacks = pc.if_else(pc.equal(stacks, ""), "[unwind error]", stacks)
    lines = pc.binary_join_element_wise(stacks, pa.array(weights).cast(pa.string()), " ")
    return "".join(f"{line}\n" for line in lines.to_pylist()).encode()
