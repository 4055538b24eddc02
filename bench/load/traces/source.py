"""A trace file as lines of text: compression and encoding are told from the bytes, never from the name."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from bench.errors import BenchError

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = tuple(bytes([0x50 + i, 0x2A, 0x4D, 0x18]) for i in range(16))
_NOT_TEXT = {
    b"PAR1": "Parquet",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
    b"\xd4\xc3\xb2\xa1": "a packet capture",
    b"\x0a\x0d\x0d\x0a": "a packet capture",
}
_HEAD_BYTES = 64 * 1024
_READ_BYTES = 256 * 1024


@dataclass(slots=True)
class Seen:
    """The bytes of the file that were read, as they lie on the disk: a file may grow while it is read."""

    hash: Any = field(default_factory=hashlib.sha256)
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An existing trace file. compression: "none", "gzip" or "zstd". encoding: "utf-8" or "utf-16".
    seen: what the last `lines` has read."""

    path: Path
    compression: str
    encoding: str
    byte_order_mark: bool
    seen: Seen = field(default_factory=Seen)

    def lines(self) -> Iterator[str]:
        """All lines, ends normalised to a line feed. Raises BenchError where the file is damaged or cut off."""
        self.seen.hash, self.seen.size = hashlib.sha256(), 0
        bytes_in = _decompressed(self.path, self.compression, self.seen)
        codec = "utf-16" if self.encoding == "utf-16" else "utf-8-sig" if self.byte_order_mark else "utf-8"
        # A log may hold any bytes in a user agent; they do not concern its times.
        text = io.TextIOWrapper(bytes_in, encoding=codec, errors="strict" if codec == "utf-16" else "backslashreplace", newline=None)
        with text:
            try:
                yield from text
            except EOFError:
                raise BenchError(f"{self.path} is truncated: its {self.compression} stream ends early; fetch it again") from None
            except (gzip.BadGzipFile, zlib.error, ValueError) as error:
                raise BenchError(f"{self.path} is damaged ({error}): fetch it again") from None

    def head(self) -> list[str]:
        """The first lines, up to 20 that are not blank or 64 KiB; a damaged file gives what can be read of it."""
        lines: list[str] = []
        size = 0
        try:
            for line in self._head_lines():
                if line.strip():
                    lines.append(line.rstrip("\n"))
                size += len(line)
                if len(lines) >= 20 or size >= _HEAD_BYTES:
                    break
        except BenchError:
            pass
        return lines

    def _head_lines(self) -> Iterator[str]:
        with _decompressed(self.path, self.compression) as bytes_in:
            data = _read_some(self.path, bytes_in, _HEAD_BYTES)
        codec = "utf-16" if self.encoding == "utf-16" else "utf-8-sig"
        whole = len(data) < _HEAD_BYTES
        text = data.decode(codec, errors="replace").replace("\r\n", "\n").replace("\r", "\n")
        lines = text.split("\n")
        # The last of many lines is cut off at an arbitrary place.
        yield from lines if whole or len(lines) == 1 else lines[:-1]


def open_source(path: Path) -> Source:
    """Look at the first bytes. Raises BenchError: no such file, empty, not text."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not a regular file" if path.exists() else "does not exist"
        raise BenchError(f"{path} {what}: name one trace file")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise BenchError(f"{path} cannot be read: {error.strerror}") from None
    compression = "gzip" if magic.startswith(_GZIP) else "zstd" if magic == _ZSTD or magic in _ZSTD_SKIPPABLE else "none"
    with _decompressed(path, compression) as bytes_in:
        start = _read_some(path, bytes_in, 4096)
    if not start:
        raise BenchError(f"{path} is empty: a trace has at least one arrival")
    for signature, what in _NOT_TEXT.items():
        if start.startswith(signature):
            raise BenchError(f"{path} holds {what}, not text: unpack or convert it first (gzip and zstd are read as they are)")
    if start.startswith((_GZIP, _ZSTD)):
        raise BenchError(f"{path} is compressed twice: unpack it once")
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Source(path=path, compression=compression, encoding="utf-16", byte_order_mark=True)
    if b"\x00" in start:
        raise BenchError(f"{path} has zero bytes: it is binary, or UTF-16 without a byte-order mark; save it as UTF-8")
    return Source(path=path, compression=compression, encoding="utf-8", byte_order_mark=start.startswith(b"\xef\xbb\xbf"))


def _decompressed(path: Path, compression: str, seen: Seen | None = None) -> IO[bytes]:
    file: IO[bytes] = path.open("rb") if seen is None else io.BufferedReader(_SeenReader(path, seen), _READ_BYTES)
    if compression == "gzip":
        return _GzipFile(file)  # type: ignore[return-value]
    return io.BufferedReader(_ZstdReader(file), _READ_BYTES) if compression == "zstd" else file


class _GzipFile(gzip.GzipFile):
    """Closes the file that it was given, too."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(fileobj=file)
        self._under = file

    def close(self) -> None:
        super().close()
        self._under.close()


class _SeenReader(io.RawIOBase):
    """A file whose bytes are counted and hashed as they are read."""

    def __init__(self, path: Path, seen: Seen) -> None:
        self._file = path.open("rb", buffering=0)
        self._seen = seen

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = self._file.readinto(buffer)
        self._seen.hash.update(buffer[:count])
        self._seen.size += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _read_some(path: Path, stream: IO[bytes], size: int) -> bytes:
    """The first bytes; a stream that is damaged further on gives what comes before the damage."""
    got = b""
    try:
        while len(got) < size and (more := stream.read(min(512, size - len(got)))):
            got += more
    except (EOFError, gzip.BadGzipFile, zlib.error, ValueError) as error:
        if not got:
            raise BenchError(f"{path} is damaged or truncated ({error}): fetch it again") from None
    return got


class _ZstdReader(io.RawIOBase):
    """All frames of a zstd file. Unlike zstandard's own stream reader it raises EOFError where the last frame is cut off."""

    def __init__(self, file: IO[bytes]) -> None:
        import zstandard

        self._file = file
        self._codec = zstandard.ZstdDecompressor(max_window_size=2**31)
        self._frame = self._codec.decompressobj()
        self._left = b""
        self._ready = memoryview(b"")
        self._in_frame = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        import zstandard

        while not self._ready:
            data = self._left or self._file.read(_READ_BYTES)
            self._left = b""
            if not data:
                if self._in_frame:
                    raise EOFError
                return 0
            try:
                self._ready = memoryview(self._frame.decompress(data))
            except zstandard.ZstdError as error:
                raise ValueError(str(error)) from None
            self._in_frame = not self._frame.eof
            if self._frame.eof:
                self._left = self._frame.unused_data
                self._frame = self._codec.decompressobj()
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
