"""One line on a terminal that says how far an ingestion is."""

from __future__ import annotations

import shutil
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from lake.ingest.report import Progress

_TICK_S: Final = 0.5
_UNITS: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class ProgressLine:
    """Written again at every file and twice a second, and wiped at the end; a context manager."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = time.monotonic()
        self._last: Progress | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="lake-progress", daemon=True)

    def __call__(self, progress: Progress) -> None:
        """Show where it is now."""
        self._last = progress
        self._show()

    def __enter__(self) -> ProgressLine:
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._ticker.join()
        if self._last is not None:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _tick(self) -> None:
        while not self._done.wait(_TICK_S):
            self._show()

    def _show(self) -> None:
        with self._lock:
            if self._last is not None:
                width = shutil.get_terminal_size().columns - 1
                line = progress_text(self._last, time.monotonic() - self._began, width)
                self._stream.write(f"\r\x1b[K{line}")
                self._stream.flush()


def progress_text(progress: Progress, elapsed_s: float, width: int) -> str:
    """Files, bytes, rows, rate, time left and the current file, cut at `width` characters."""
    rate = progress.bytes_done / elapsed_s if elapsed_s > 0 else 0.0
    parts = [
        f"{progress.files_done}/{progress.files} files",
        f"{size_text(progress.bytes_done)} of {size_text(progress.bytes)}",
        f"{progress.rows:,} rows",
    ]
    if rate:
        parts.append(f"{size_text(int(rate))}/s")
        parts.append(f"{_duration((progress.bytes - progress.bytes_done) / rate)} left")
    else:
        parts.append(_duration(elapsed_s))
    line = ", ".join(parts)
    if progress.current is not None:
        shown = "".join(character if character.isprintable() else "?" for character in progress.current)
        room = width - len(line) - 2
        line += "  " + (shown if len(shown) <= room else "…" + shown[len(shown) - max(room, 1) + 1 :])
    return line[:width]


def size_text(size_bytes: int) -> str:
    """A size in the largest unit it fills."""
    for unit, name in _UNITS:
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
