"""Traces in the Trace Event format: Chrome, viztracer and others, and PyTorch's Kineto profiles."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

import numpy as np

from lake.formats.base import Format
from lake.formats.chrome.decode import decode_trace
from lake.formats.chrome.envelope import top_level_keys
from lake.formats.chrome.tokens import skip_value

_KINETO_KEYS: Final = frozenset(
    {"deviceProperties", "distributedInfo", "baseTimeNanoseconds", "schemaVersion", "traceName"}
)
_KINETO_CATEGORIES: Final = re.compile(
    rb'"cat"\s*:\s*"(cpu_op|user_annotation|python_function|cuda_runtime|kernel|gpu_memcpy|mtia_runtime|Operator|Runtime'
    rb'|Kernel)"'
)
_PHASE: Final = re.compile(rb'"ph"\s*:\s*"[a-zA-Z(),=]"')


def _is_trace(head: bytes) -> bool:
    keys, top = top_level_keys(head)
    if top == "{":
        return "traceEvents" in keys or {"schemaVersion", "deviceProperties"} <= set(keys)
    if top != "[":
        return False
    start = head.index(b"[") + 1
    body = head[start:].lstrip(b" \t\r\n,")
    if not body.startswith(b"{"):
        return False
    end = skip_value(np.frombuffer(body, np.uint8), 0, len(body), 64)
    return _PHASE.search(body[:end] if end > 0 else body) is not None


def _is_kineto(head: bytes) -> bool:
    keys, top = top_level_keys(head)
    return (top == "{" and len(_KINETO_KEYS & set(keys)) >= 2) or _KINETO_CATEGORIES.search(head) is not None


def _sniff_kineto(_name: str, head: bytes) -> bool:
    return _is_trace(head) and _is_kineto(head)


def _sniff_chrome(_name: str, head: bytes) -> bool:
    return _is_trace(head) and not _is_kineto(head)


FORMATS: Final = (
    Format(name="kineto", sniff=_sniff_kineto, decode=partial(decode_trace, kineto=True)),
    Format(name="chrome", sniff=_sniff_chrome, decode=partial(decode_trace, kineto=False)),
)
