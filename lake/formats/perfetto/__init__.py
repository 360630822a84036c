"""Perfetto traces: protobuf packets of tracing services, SDKs, Chrome and Android."""

from __future__ import annotations

from typing import Final

from lake.formats.base import Decoded, Format, Source
from lake.formats.perfetto.sniff import sniff


def _decode(source: Source) -> Decoded:
    # The compiled decoder is loaded only when there is something to decode.
    from lake.formats.perfetto.decode import decode

    return decode(source)


FORMAT: Final = Format(name="perfetto", sniff=sniff, decode=_decode)
