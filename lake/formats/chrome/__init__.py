"""Traces in the Trace Event format: Chrome, viztracer and others, and PyTorch's Kineto profiles."""

from __future__ import annotations

from functools import partial
from typing import Final

from lake.formats.base import Decoded, Format, Source
from lake.formats.chrome.sniff import sniff_chrome, sniff_kineto


def _decode(source: Source, *, kineto: bool) -> Decoded:
    # The compiled decoder is loaded only when there is something to decode.
    from lake.formats.chrome.decode import decode_trace

    return decode_trace(source, kineto=kineto)


FORMATS: Final = (
    Format(name="kineto", sniff=sniff_kineto, decode=partial(_decode, kineto=True)),
    Format(name="chrome", sniff=sniff_chrome, decode=partial(_decode, kineto=False)),
)
