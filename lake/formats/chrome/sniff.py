"""Recognising a trace by the beginning of its content, without loading the decoder."""

from __future__ import annotations

import json
import re
from typing import Final

_KINETO_KEYS: Final = frozenset(
    {"deviceProperties", "distributedInfo", "baseTimeNanoseconds", "schemaVersion", "traceName"}
)
_KINETO_CATEGORIES: Final = re.compile(
    rb'"cat"\s*:\s*"(cpu_op|user_annotation|python_function|cuda_runtime|kernel|gpu_memcpy|mtia_runtime|Operator|Runtime'
    rb'|Kernel)"'
)
_PHASE: Final = re.compile(r'"ph"\s*:\s*"[a-zA-Z(),=]"')
_BLANK: Final = re.compile(r"[ \t\r\n,\0]*")
_COLON: Final = re.compile(r"\s*:\s*")
_JSON: Final = json.JSONDecoder()


def sniff_kineto(_name: str, head: bytes) -> bool:
    """Whether it is a trace with signs of PyTorch's profiler."""
    return _is_trace(head) and _is_kineto(head)


def sniff_chrome(_name: str, head: bytes) -> bool:
    """Whether it is any other trace in the Trace Event format."""
    return _is_trace(head) and not _is_kineto(head)


def _is_trace(head: bytes) -> bool:
    text = _text(head)
    if text.startswith("{"):
        keys = _keys(text)
        return "traceEvents" in keys or {"schemaVersion", "deviceProperties"} <= keys
    if not text.startswith("["):
        return False
    first = _BLANK.match(text, 1).end()  # type: ignore[union-attr]
    if not text.startswith("{", first):
        return False
    try:
        _, end = _JSON.raw_decode(text, first)
    except (ValueError, RecursionError):
        end = len(text)  # the first event goes beyond the head, or is broken
    return _PHASE.search(text, first, end) is not None


def _is_kineto(head: bytes) -> bool:
    text = _text(head)
    return (text.startswith("{") and len(_KINETO_KEYS & _keys(text)) >= 2) or bool(_KINETO_CATEGORIES.search(head))


def _text(head: bytes) -> str:
    if head.lstrip(b"\xef\xbb\xbf \t\r\n\0")[:1] not in (b"{", b"["):
        return ""
    return bytes(head).decode("utf-8-sig", "replace").lstrip(" \t\r\n\0")


def _keys(text: str) -> set[str]:
    """The top-level keys of an object up to `traceEvents`, as far as the text goes."""
    keys: set[str] = set()
    at = _BLANK.match(text, 1).end()  # type: ignore[union-attr]
    while text.startswith('"', at):
        try:
            key, at = _JSON.raw_decode(text, at)
            keys.add(key)
            colon = _COLON.match(text, at)
            if key == "traceEvents" or colon is None:
                break
            _, at = _JSON.raw_decode(text, colon.end())
        except (ValueError, RecursionError):
            break
        at = _BLANK.match(text, at).end()  # type: ignore[union-attr]
    return keys
