"""The page cache on real files. What this file system or kernel cannot show is skipped with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import pagecache
from bench.environment import try_page_cache

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the page cache is only looked at on Linux")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder whose files' pages can be dropped and seen gone."""
    if try_page_cache(tmp_path) is not True:
        pytest.skip(f"pages of files in {tmp_path} cannot be dropped and verified (tmpfs, or not Linux)")
    return tmp_path


def write(path: Path, size: int) -> Path:
    path.write_bytes(os.urandom(size))
    return path


@pytest.mark.parametrize("size", [1, 4096, 4097, 1_000_003, 32 << 20])
def test_pages_are_resident_after_a_write_gone_after_a_drop_and_back_after_a_read(disk: Path, size: int) -> None:
    path = write(disk / "file", size)
    assert pagecache.resident_fraction(path) == 1
    assert pagecache.drop(path) is True
    assert pagecache.resident_fraction(path) == 0
    assert pagecache.warm(path) == size
    assert pagecache.resident_fraction(path) == 1


def test_looking_brings_no_page_in(disk: Path) -> None:
    path = write(disk / "file", 1 << 20)
    pagecache.drop(path)
    assert [pagecache.resident_fraction(path) for _ in range(3)] == [0, 0, 0]


def test_part_of_a_file(disk: Path) -> None:
    path = write(disk / "file", 16 << 20)
    pagecache.drop(path)
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
        file.read(4 << 20)
    fraction = pagecache.resident_fraction(path)
    assert fraction is not None
    assert 0.25 <= fraction < 1


def test_windows_add_up_to_the_whole(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(disk / "file", 1_000_003)
    monkeypatch.setattr(pagecache, "_WINDOW_BYTES", 64 << 10)
    assert pagecache.resident_fraction(path) == 1
    assert pagecache.drop(path) is True


@linux_only
def test_a_sparse_file_larger_than_memory_is_looked_at_without_filling_it(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        try:
            file.truncate(64 << 30)
        except OSError as error:
            pytest.skip(f"no sparse file of 64 GiB here: {error}")
    assert pagecache.resident_fraction(path) == 0


@linux_only
def test_an_empty_file_has_nothing_resident(tmp_path: Path) -> None:
    path = write(tmp_path / "empty", 0)
    assert pagecache.resident_fraction(path) == 0
    assert pagecache.drop(path) is True
    assert pagecache.warm(path) == 0


def test_a_mapped_page_stays_and_is_said_to_stay(disk: Path) -> None:
    import mmap

    path = write(disk / "file", 1 << 20)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[0] == path.read_bytes()[0]
        assert pagecache.drop(path) is False
    assert pagecache.drop(path) is True


@linux_only
def test_on_tmpfs_pages_stay() -> None:
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        pytest.skip("/dev/shm cannot be written here")
    assert try_page_cache(shared) in (False, None)


def test_what_is_not_a_regular_file_is_not_known_and_never_waited_for(tmp_path: Path) -> None:
    paths = [tmp_path]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        paths.append(tmp_path / "pipe")
    for path in paths:
        assert pagecache.resident_fraction(path) is None
        assert pagecache.drop(path) is None


@pytest.mark.parametrize("act", [pagecache.resident_fraction, pagecache.drop, pagecache.warm])
def test_a_missing_file_raises(tmp_path: Path, act: object) -> None:
    assert callable(act)
    with pytest.raises(FileNotFoundError):
        act(tmp_path / "missing")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_of_a_file_of_somebody_else_nothing_is_known(disk: Path) -> None:
    write(disk / "file", 4096).chmod(0o444)
    disk.chmod(0o755)  # and the file is named from inside, since folders above may be closed to others
    program = (
        "import os; from pathlib import Path; from bench import pagecache; os.setgroups([]); os.setgid(65534); os.setuid(65534); "
        "print(Path('file').read_bytes() != b'', pagecache.resident_fraction(Path('file')), pagecache.drop(Path('file')))"
    )
    root = Path(__file__).resolve().parents[1]
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=disk, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True
    )
    assert answer.stdout.split() == ["True", "None", "None"], answer.stderr


@linux_only
def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    path = write(tmp_path / "file", 4096)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        pagecache.resident_fraction(path)
        pagecache.drop(path)
        pagecache.warm(path)
        pagecache.drop(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
