"""What the user names as a file to write is replaced only where it is one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from bench.drafts import file_to_replace
from bench.errors import BenchError
from bench.load.schedule import write_schedule
from bench.models import write_model
from bench.report.build import write_html


def test_a_link_is_followed_and_kept(tmp_path: Path) -> None:
    target, link, dangling = tmp_path / "target", tmp_path / "link", tmp_path / "dangling"
    target.write_text("what was there")
    link.symlink_to(target)
    dangling.symlink_to(tmp_path / "later")
    assert file_to_replace(link) == target.resolve()
    assert file_to_replace(dangling) == (tmp_path / "later").resolve()
    assert file_to_replace(tmp_path / "new") == tmp_path / "new"
    write_html(link, [])
    assert link.is_symlink() and "what was there" not in target.read_text()


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    from bench.load.arrivals_text import parse_arrivals

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for write in (
        lambda: write_html(pipe, []),
        lambda: write_schedule(parse_arrivals("poisson:rate=5,duration=1s").schedule(1), pipe, force=True),
        lambda: write_model("tiny", 0, pipe, force=True),
    ):
        with pytest.raises(BenchError, match="is no regular file: name a file"):
            write()
    assert stat.S_ISFIFO(pipe.stat().st_mode) and [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_the_option_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=f"^--timing-cache {tmp_path} is a folder: name a file$"):
        file_to_replace(tmp_path, "--timing-cache")
