"""What requests found when they came, by hand."""

from __future__ import annotations

from request_rows import requests

from bench.analysis.pool import pool_use

MS = 1_000_000


def test_by_hand() -> None:
    pool: list[float | None] = [0, 500, 2 * MS, 0, 4 * MS, None, 9 * MS]
    load: list[float | None] = [0, 0, 0, 30 * MS, 10 * MS, None, 9 * MS]
    status = ["ok"] * 6 + ["error"]
    found = pool_use(requests(intended=range(7), response=[1] * 7, status=status, parts={"pool": pool, "load": load}))
    assert (found.known, found.hit_share, found.waited_share, found.loaded_share) == (5, 0.4, 0.4, 0.4)
    assert found.mean_load_wait_ns == 8 * MS
    assert found.mean_pool_wait_ns == (2 * MS + 4 * MS + 500) / 5
    assert found.pool_wait_p99_ns is None


def test_a_server_that_tells_nothing() -> None:
    found = pool_use(requests(intended=[0], response=[1]))
    assert (found.known, found.hit_share, found.mean_pool_wait_ns) == (0, None, None)
