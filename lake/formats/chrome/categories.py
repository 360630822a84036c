"""What a slice is: its category and phase, from the trace's own category and the shared vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.formats.chrome.words import Words
from lake.formats.vocabulary import classify

KINETO: Final = MappingProxyType(
    {
        "kernel": "kernel",
        "concurrent_kernel": "kernel",
        "gpu_memcpy": "memcpy",
        "gpu_memset": "memset",
        "memcpy": "memcpy",
        "memset": "memset",
        "mtia_ccp_events": "kernel",
        "cuda_runtime": "runtime",
        "cuda_driver": "runtime",
        "hip_runtime": "runtime",
        "hip_driver": "runtime",
        "mtia_runtime": "runtime",
        "xpu_runtime": "runtime",
        "privateuse1_runtime": "runtime",
        "privateuse1_driver": "runtime",
        "runtime": "runtime",
        "cuda_sync": "sync",
        "cpu_op": "cpu_op",
        "operator": "cpu_op",
        "user_annotation": "annotation",
        "gpu_user_annotation": "gpu_annotation",
        "python_function": "python_function",
        "cpu_instant_event": "instant",
        "overhead": "overhead",
        "trace": "trace",
    }
)
"""Kineto's categories, lower-cased (`Operator`, `Runtime`, `Kernel`, … are those of 2021), as span categories."""
GPU: Final = frozenset({"kernel", "memcpy", "memset", "sync", "gpu_annotation"})
_NAMED_BY_VOCABULARY: Final = frozenset({"annotation"})
_STEP_ONLY: Final = frozenset({"cpu_op"})
_PHASE_ONLY: Final = frozenset({"gpu_annotation"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Categories:
    """Category of each slice and the phase its own name tells, as texts with one number per row (-1: null)."""

    names: list[str]
    category: npt.NDArray[np.int32]
    phases: list[str]
    phase: npt.NDArray[np.int32]

    def column(self, rows: npt.NDArray[np.int64]) -> pa.Array:
        """The column `category` of `rows`."""
        return _take(self.names, self.category[rows])

    def phase_column(self, phase: npt.NDArray[np.int32]) -> pa.Array:
        """Texts of phase numbers."""
        return _take(self.phases, phase)

    def of(self, *names: str) -> npt.NDArray[np.bool_]:
        """Whether each row has one of these categories."""
        return _among(self.category, [at for at, name in enumerate(self.names) if name in names])


def _among(numbers: npt.NDArray[Any], chosen: list[int]) -> npt.NDArray[np.bool_]:
    """Whether each number, -1 or one of few, is chosen."""
    table = np.zeros(int(numbers.max(initial=0)) + 2, np.bool_)
    table[[at for at in chosen if at < len(table) - 1]] = True
    chosen_rows: npt.NDArray[np.bool_] = table[numbers]
    return chosen_rows


def _take(texts: list[str], numbers: npt.NDArray[np.int32]) -> pa.Array:
    return pa.array(texts, pa.string()).take(pa.array(numbers, mask=numbers < 0))


def categorise(words: Words, cat: npt.NDArray[np.int32], name: npt.NDArray[np.int32], *, kineto: bool) -> Categories:
    """Categories of slices from the words of their `cat` and `name`.

    In a Kineto trace the vocabulary speaks for annotations, and for steps among operators (as traces of 2021 have
    them); elsewhere for every name. A category it does not know stays as it is.
    """
    known = words.text.take(pa.array(words.distinct(cat))).to_pylist()
    mapped = {text: KINETO.get(text.lower(), text) if kineto else text for text in known}
    names = sorted({*mapped.values(), "step", "phase", "collective", "p2p", "io", "gc"})
    number = {text: at for at, text in enumerate(names)}
    of_cat = np.full(len(words.text) + 1, -1, np.int32)
    of_cat[words.distinct(cat)] = [number[mapped[text]] for text in known]
    category = of_cat[cat]

    def are(which: frozenset[str]) -> npt.NDArray[np.bool_]:
        return _among(category, [number[text] for text in which if text in number])

    asked = (
        are(_NAMED_BY_VOCABULARY | _PHASE_ONLY | _STEP_ONLY) | (category < 0) if kineto else np.ones(len(cat), np.bool_)
    )
    told, phases, phase = _vocabulary(words, np.where(asked, name, np.int32(-1)), number)
    if kineto:
        step_only, phase_only = are(_STEP_ONLY), are(_PHASE_ONLY)
        told[phase_only | (step_only & (told != number["step"]))] = -1
        phase[step_only] = -1
    return Categories(names=names, category=np.where(told >= 0, told, category), phases=phases, phase=phase)


def _vocabulary(
    words: Words, name: npt.NDArray[np.int32], number: dict[str, int]
) -> tuple[npt.NDArray[np.int32], list[str], npt.NDArray[np.int32]]:
    distinct = words.distinct(name)
    categories, phases = classify(words.text.take(pa.array(distinct)))
    texts = sorted({text for text in phases.to_pylist() if text is not None})
    at = {text: position for position, text in enumerate(texts)}
    category_of = np.full(len(words.text) + 1, -1, np.int32)
    category_of[distinct] = [-1 if text is None else number[text] for text in categories.to_pylist()]
    phase_of = np.full(len(words.text) + 1, -1, np.int32)
    phase_of[distinct] = [-1 if text is None else at[text] for text in phases.to_pylist()]
    return category_of[name], texts, phase_of[name]
