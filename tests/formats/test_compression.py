from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lake.errors import Invalid, LakeError, LimitExceeded
from lake.formats.compression import compression, decompress
from lake.settings import Settings

SETTINGS = Settings()
METHODS = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


@pytest.mark.parametrize("method", METHODS)
def test_round_trip_of_one_and_of_several_members(method: str) -> None:
    compress = METHODS[method]
    assert compression(compress(b"abc")) == method
    one = decompress(compress(b"abc" * 100_000), SETTINGS)
    assert (one.data, one.method, one.problem) == (b"abc" * 100_000, method, None)
    several = decompress(compress(b"first") + compress(b"") + compress(b"second"), SETTINGS)
    assert (several.data, several.problem) == (b"firstsecond", None)


def test_plain_bytes_come_back_untouched() -> None:
    plain = b"{}"
    result = decompress(plain, SETTINGS)
    assert result.data is plain
    assert result.method is None


@pytest.mark.parametrize("method", METHODS)
def test_a_cut_stream_keeps_what_came_out(method: str) -> None:
    content = os.urandom(2_000_000)
    whole = METHODS[method](content)
    cut = decompress(whole[: len(whole) * 3 // 4], SETTINGS)
    assert cut.problem is not None
    assert "broken after" in cut.problem
    assert len(cut.data) > 800_000  # bzip2 gives whole blocks of 900 kB
    assert content.startswith(bytes(cut.data))


def test_a_flipped_bit_is_reported_by_the_checksum() -> None:
    broken = bytearray(gzip.compress(os.urandom(100_000)))
    broken[-5] ^= 1  # length and CRC are the last eight bytes of a member (RFC 1952)
    result = decompress(bytes(broken), SETTINGS)
    assert len(result.data) == 100_000 or result.problem is not None
    assert result.problem is not None


def test_zero_padding_is_allowed_and_other_rubbish_reported() -> None:
    assert decompress(gzip.compress(b"a") + bytes(512), SETTINGS).problem is None
    rubbish = decompress(gzip.compress(b"a") + b"rubbish", SETTINGS)
    assert rubbish.data == b"a"
    assert "7 bytes follow" in str(rubbish.problem)


def test_nothing_out_of_a_broken_stream_is_invalid() -> None:
    with pytest.raises(Invalid, match="gzip stream is broken after 0"):
        decompress(gzip.compress(b"hello")[:11], SETTINGS)


@pytest.mark.parametrize("method", METHODS)
def test_a_bomb_is_stopped_by_its_ratio(method: str) -> None:
    # 1 GiB of zeros would come out of about 1 MB of gzip; the others grow even more
    bomb = METHODS[method](bytes(80 << 20))
    with pytest.raises(LimitExceeded, match="LAKE_MAX_DECOMPRESSION_RATIO=100 times"):
        decompress(bomb, Settings(max_decompression_ratio=100))


def test_a_large_file_is_stopped_by_its_size() -> None:
    with pytest.raises(LimitExceeded, match="LAKE_MAX_FILE_BYTES=1000"):
        decompress(gzip.compress(bytes(5000)), Settings(max_file_bytes=1000))


def test_a_high_ratio_below_64_mib_is_fine() -> None:
    assert len(decompress(gzip.compress(bytes(4 << 20)), Settings(max_decompression_ratio=2)).data) == 4 << 20


@given(st.sampled_from([b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"BZh9", b"\xfd7zXZ\x00", b""]), st.binary(max_size=300))
def test_any_bytes_give_bytes_or_an_error_of_ours(magic: bytes, rest: bytes) -> None:
    with contextlib.suppress(LakeError):
        decompress(magic + rest, SETTINGS)
