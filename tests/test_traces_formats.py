"""More files of each odd kind, made here: compression, encodings, clocks, broken rows, and the formats one by one."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import BenchError
from bench.load.schedule import Schedule
from bench.load.traces.formats import FORMATS, detect
from bench.load.traces.importing import import_trace
from bench.load.traces.rows import Options
from bench.load.traces.source import open_source
from bench.load.traces.times import numbers_to_ns, strings
from bench.load.traces.transform import Steps

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"2026-03-01 10:00:0{i}.5000000,{i},1\n" for i in range(5))
OFFSETS = [0, 1, 2, 3, 4]


def _load(
    tmp_path: Path, content: str | bytes, *, name: str = "trace", form: str | None = None, bad: float = 0.01, **options: Any
) -> Schedule:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return import_trace(path, form=form, options=Options(**options), max_bad_share=bad)


def _seconds(schedule: Schedule) -> list[float]:
    return (schedule.intended_ns / 1e9).tolist()


def _zstd(text: str) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(text.encode())


ENCODED = {
    "plain": AZURE.encode(),
    "plain in a name that says gz": AZURE.encode(),
    "crlf": AZURE.replace("\n", "\r\n").encode(),
    "cr only": AZURE.replace("\n", "\r").encode(),
    "no last line end": AZURE.rstrip("\n").encode(),
    "bom": b"\xef\xbb\xbf" + AZURE.encode(),
    "utf-16 le": b"\xff\xfe" + AZURE.encode("utf-16-le"),
    "utf-16 be crlf": b"\xfe\xff" + AZURE.replace("\n", "\r\n").encode("utf-16-be"),
    "gzip": gzip.compress(AZURE.encode()),
    "gzip, a member a line": b"".join(gzip.compress(line.encode() + b"\n") for line in AZURE.splitlines()),
    "gzip padded with zeros": gzip.compress(AZURE.encode()) + bytes(512),
    "gzip of a bom": gzip.compress(b"\xef\xbb\xbf" + AZURE.encode()),
    "gzip of utf-16": gzip.compress(b"\xff\xfe" + AZURE.encode("utf-16-le")),
    "zstd": _zstd(AZURE),
    "zstd, a frame a line": b"".join(_zstd(line + "\n") for line in AZURE.splitlines()),
    "zstd after a skippable frame": b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + _zstd(AZURE),
    "quoted": "\n".join(",".join(f'"{cell}"' for cell in line.split(",")) for line in AZURE.splitlines()).encode(),
    "blank lines": AZURE.replace("\n", "\n\n").encode(),
    "joined with its header": (
        AZURE[: AZURE.index("2026-03-01 10:00:02")] + AZURE[: AZURE.index("2026")] + AZURE[AZURE.index("2026-03-01 10:00:02") :]
    ).encode(),
    "space around the cells": AZURE.replace(",", " , ").encode(),
}


@pytest.mark.parametrize("content", ENCODED.values(), ids=ENCODED.keys())
def test_the_same_trace_in_many_dresses(tmp_path: Path, content: bytes) -> None:
    schedule = _load(tmp_path, content, name="trace.csv.gz")
    assert _seconds(schedule) == OFFSETS and schedule.table.column("ContextTokens").to_pylist() == OFFSETS
    assert schedule.provenance["format"] == "azure-llm-2023" and schedule.provenance["rows_bad"] == 0


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["gzip", "zstd"]), st.floats(0.02, 0.999))
def test_a_cut_file_is_never_a_short_trace(tmp_path_factory: pytest.TempPathFactory, kind: str, share: float) -> None:
    rng = np.random.default_rng(1)
    text = "timestamp\n" + "\n".join(f"{t}" for t in np.cumsum(rng.integers(1, 10**9, 2000)) + 1772359200_000_000_000)
    whole = gzip.compress(text.encode()) if kind == "gzip" else _zstd(text)
    with pytest.raises(BenchError, match=r"truncated|damaged|empty"):
        _load(tmp_path_factory.mktemp("cut"), whole[: max(5, int(len(whole) * share))])


FUNCTIONS = b"HashOwner,HashApp,HashFunction,Trigger,"
MOONCAKE = b'{"timestamp": %s, "input_length": 1, "output_length": 1, "hash_ids": [1]}\n'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"\xef\xbb\xbf", "no arrivals"),
        (b"\n \n\n", "no arrivals"),
        (gzip.compress(AZURE.encode()) + b"garbage", "damaged"),
        (gzip.compress(AZURE.encode())[:-8] + bytes(8), "damaged"),
        (_zstd(AZURE)[:-4] + b"abcd", "damaged"),
        (gzip.compress(gzip.compress(AZURE.encode())), "compressed twice"),
        (b"PAR1" + bytes(50), "holds Parquet"),
        (b"\xfd7zXZ\x00" + bytes(50), "holds xz"),
        (AZURE.encode("utf-16-le"), "UTF-16 without a byte-order mark"),
        (b"\xff\xfe" + AZURE.encode("utf-16-le")[:-1], "damaged"),
        (b"hello,world\n1,2\n", "fits no format"),
        (b"a;b\n1;2\n", "fits no format"),
        (b"[1, 2, 3]\n", "fits no format|no arrivals"),
        (b"timestamp\n", "no arrivals"),
        (b"timestamp\nNaN\nnull\n", "fits no format|none of its"),
        (b"Timestamp,Model,Request tokens,Response tokens\n", "no arrivals"),
        (b"app,func,end_timestamp,duration\n", "no arrivals"),
        (b"app,func,end_timestamp,duration\na,f,5,-1\n", "line 2: duration is '-1'"),
        (b"HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,http,0,0\n", "no arrivals"),
        (b"HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,http,1,-1\n", "line 2: the count of minute 2 is '-1'"),
        (b"HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,http,1,1.5\n", "count of minute 2"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2026-03-01 10:00:00,many,1\n", "line 2: ContextTokens is 'many'"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2026-02-30 10:00:00,1,1\n", "line 2: TIMESTAMP is '2026-02-30"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2026-03-01 10:00:00,1\n", "line 2: 2 cells, not 3"),
        (b"timestamp\n2026-03-01T10:00:00Z\n2026-03-01T10:00:01\n", "line 3 has a time without a zone and line 2 one with"),
        (FUNCTIONS + b"2,2\no,a,f,http,1,1\n", "two columns named '2'"),
        (FUNCTIONS + b"2,02\no,a,f,http,1,1\n", "two columns for minute 2"),
        (FUNCTIONS + b"99999999999999999999\no,a,f,http,1\n", "minute column 99999999999999999999, which lies beyond"),
        (
            FUNCTIONS + ",".join(map(str, range(1, 1441))).encode() + b"\no,a,f,http" + b",10000000" * 1440,
            "line 2: .* 14,400,000,000 arrivals",
        ),
        ("HashOwner,HashApp,HashFunction,Trigger,²\no,a,f,http,1\n".encode(), "no minute columns"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens,TIMESTAMP\n", "two columns named 'TIMESTAMP'"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens,a,a\n", "two columns named 'a'"),
        (MOONCAKE % b"1e999999", "line 1: timestamp is 1E.999999, out of range"),
        (MOONCAKE % b"1e99999999999999999999", "line 1: not one JSON object|fits no format"),
        (b'{"log": {"entries": []}}', "no arrivals"),
        (b'{"log": {"entries": [', "not whole JSON"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(BenchError, match=says) as caught:
        _load(tmp_path, content)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_stray_quote_does_not_swallow_rows_in_silence(tmp_path: Path) -> None:
    lines = AZURE.splitlines()
    lines[2] = '"' + lines[2]
    with pytest.raises(BenchError, match="line 3"):
        _load(tmp_path, "\n".join(lines), bad=0.5)


@pytest.mark.parametrize("odd", ['"x"', "[99999999999999999999]", "[1.5]", "[[1]]"])
def test_a_column_of_another_kind_far_down_is_a_bad_row(tmp_path: Path, odd: str) -> None:
    line = '{"timestamp": %d, "input_length": 1, "output_length": 1, "hash_ids": %s}'
    lines = [line % (i, "[1, 2]") for i in range(17_000)]
    schedule = _load(tmp_path, "\n".join([*lines, line % (17_000, odd)]))
    assert len(schedule) == 17_000 and schedule.provenance["first_bad"][0]["line"] == 17_001
    assert "hash_ids" in schedule.provenance["first_bad"][0]["why"]


def test_a_share_of_bad_rows_is_compared_exactly(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["1"] * 71 + ["x"] * 29))
    assert len(import_trace(path, max_bad_share=0.29)) == 71  # 0.29 * 100 is 28.999999999999996
    with pytest.raises(BenchError, match="29 of 100 rows"):
        import_trace(path, max_bad_share=0.28)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_the_hash_is_of_what_was_read(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "t.csv"
    content = pack(b"".join(b"%d\n" % i for i in range(1000)))
    path.write_bytes(content)
    source = open_source(path)
    lines = source.lines()
    next(lines)
    read = list(lines)
    with path.open("ab") as growing:  # after it was read, before the provenance is written
        growing.write(b"1000\n")
    assert len(read) == 999 and source.seen.size == len(content)
    assert source.seen.hash.hexdigest() == hashlib.sha256(content).hexdigest()


def test_one_per_cent_of_bad_rows_is_the_limit(tmp_path: Path) -> None:
    rows = [f"{i}" for i in range(198)]
    schedule = _load(tmp_path, "\n".join([*rows[:50], "NaN", *rows[50:], "-"]))
    assert len(schedule) == 198
    assert [bad["line"] for bad in schedule.provenance["first_bad"]] == [51, 200] and schedule.provenance["rows_bad"] == 2
    with pytest.raises(BenchError, match="3 of 201 rows"):
        _load(tmp_path, "\n".join([*rows[:50], "NaN", *rows[50:], "-", "inf"]))


EPOCHS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(sorted(EPOCHS)), st.lists(st.integers(0, 10**14), min_size=1, max_size=20), st.booleans())
def test_times_since_1970_are_told_by_their_size(
    tmp_path_factory: pytest.TempPathFactory, unit: str, ticks: list[int], header: bool
) -> None:
    scale = EPOCHS[unit]
    stamps = [1_500_000_000 * scale + tick % (10**6 * scale) for tick in ticks]
    text = "\n".join((["time"] if header else []) + [str(stamp) for stamp in stamps])
    schedule = _load(tmp_path_factory.mktemp("epoch"), text)
    offsets = np.sort(np.array(stamps, object)) - min(stamps)
    assert schedule.intended_ns.tolist() == [int(offset * (10**9 // scale)) for offset in offsets]
    assert schedule.provenance["unit"].startswith(f"{unit} since 1970")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["0", "250000000", "3000000000"], "line 2: the unit is ambiguous"),
        (["1772359200", "1772359200500"], "line 2: the unit is ambiguous"),
        (["5", "1772359200"], "line 2: the unit is ambiguous"),
        (["804571201", "804571211"], "line 1: the unit of 804571201 is ambiguous"),
        (["100000000000"], "ambiguous"),
    ],
)
def test_an_ambiguous_unit_names_the_flag(tmp_path: Path, lines: list[str], says: str) -> None:
    with pytest.raises(BenchError, match=says) as caught:
        _load(tmp_path, "\n".join(lines), form="plain")
    assert "--unit s, ms, us or ns" in str(caught.value)
    assert len(_load(tmp_path, "\n".join(lines), form="plain", unit="ns")) == len(lines)


@settings(max_examples=200, deadline=None)
@given(
    st.decimals(min_value=-(10**9), max_value=10**9, allow_nan=False, places=12), st.sampled_from(["s", "ms", "us", "ns"]), st.booleans()
)
def test_decimals_are_exact_to_the_ns(value: Any, unit: str, exponent: bool) -> None:
    text = f"{value:e}" if exponent else f"{value:f}"
    found, ok = numbers_to_ns(strings([text]), unit)
    scaled = value.scaleb({"s": 9, "ms": 6, "us": 3, "ns": 0}[unit])
    assert ok[0] and found[0] == int(scaled)


@pytest.mark.parametrize("text", ["", ".", "-", "+", "nan", "inf", "1e", "1e999", "0x10", "1_000", "1,5", "99999999999999999999", "٣"])
def test_what_is_no_number(text: str) -> None:
    assert not numbers_to_ns(strings([text]), "s")[1][0]


def test_date_times_in_many_spellings(tmp_path: Path) -> None:
    zoned = [
        "2026-03-01T10:00:00Z",
        "2026-03-01 11:00:01+01:00",
        "2026-03-01T05:00:02.000000000-0500",
        "2026-03-01 10:00:03 UTC",
        "2026-03-01t10:00:04.0z",
    ]
    assert _seconds(_load(tmp_path, "\n".join(zoned))) == OFFSETS
    naive = [
        "2026-03-01 10:00",
        "2026-03-01T10:00:01",
        '"2026-03-01 10:00:02,0"',
        "2026-03-01 10:00:03.0000000000",
        "2026-03-01 10:00:04.000",
    ]
    assert _seconds(_load(tmp_path, "\n".join(naive))) == OFFSETS
    for zone in ("Europe/Berlin", "UTC"):
        assert _seconds(_load(tmp_path, "\n".join(naive), zone=zone)) == OFFSETS
    with pytest.raises(BenchError, match="zone 'Mars' is not known"):
        _load(tmp_path, "\n".join(naive), zone="Mars")


def test_the_hour_that_does_not_exist(tmp_path: Path) -> None:
    text = "2026-03-29 01:59:59\n2026-03-29 02:30:00\n"
    assert _seconds(_load(tmp_path, text)) == [0, 1801]
    with pytest.raises(BenchError, match="line 2: the local time 2026-03-29 02:30:00 does not exist in Europe/Berlin"):
        _load(tmp_path, text, zone="Europe/Berlin")
    assert _seconds(_load(tmp_path, "2026-03-29 01:59:59\n2026-03-29 03:00:00\n", zone="Europe/Berlin")) == [0, 1]


def test_azure_llm_2024_and_with_images(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:00.017335+00:00,2399,\n"
    schedule = _load(tmp_path, text)
    assert schedule.provenance["format"] == "azure-llm-2024" and schedule.intended_ns.tolist() == [0, 7_405_000]
    assert schedule.table.column("GeneratedTokens").to_pylist() == [5, None]
    images = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15 00:00:00.1,2,4,5\n"
    assert _load(tmp_path, images).extra_columns == ("NumImages", "ContextTokens", "GeneratedTokens")


def test_burstgpt_of_both_versions(tmp_path: Path) -> None:
    first = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    first += "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n"
    schedule = _load(tmp_path, first)
    assert (schedule.provenance["format"], schedule.provenance["unit"], _seconds(schedule)) == ("burstgpt", "s", [0, 40])
    assert schedule.table.column("Model").to_pylist() == ["ChatGPT", "GPT-4"]
    second = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n5.25,a,1.5,GPT-4,1,2,3,x\n"
    assert _load(tmp_path, second).table.column("Elapsed time").to_pylist() == [1.5]


def test_json_lines(tmp_path: Path) -> None:
    mooncake = '{"timestamp": %s, "input_length": 1, "output_length": 2, "hash_ids": [1, 2]}\n'
    assert _load(tmp_path, mooncake % 500 + mooncake % "500.25" + mooncake % 0).intended_ns.tolist() == [0, 500_000_000, 500_250_000]
    good = "".join(mooncake % i for i in range(300))
    for bad in ("null", "NaN", '"x"', "true", "1e400", "[]", "99999999999999999999"):
        schedule = _load(tmp_path, good + mooncake % bad + "{}\nnot json\n[1]\n", bad=0.02)
        assert (len(schedule), schedule.provenance["rows_bad"]) == (300, 4), bad
    qwen = '{"chat_id": %d, "parent_chat_id": -1, "timestamp": %s, "input_length": 5, "output_length": 1, '
    qwen += '"type": "text", "turn": 1, "hash_ids": [7]}\n'
    schedule = _load(tmp_path, qwen % (1, "61.114") + qwen % (2, "61.5"))
    assert (schedule.provenance["format"], schedule.provenance["unit"]) == ("qwen-bailian", "s")
    assert schedule.intended_ns.tolist() == [0, 386_000_000] and schedule.table.column("type").to_pylist() == ["text", "text"]
    with pytest.raises(BenchError, match="fits no format"):
        _load(tmp_path, '{"timestamp": 1}\n')


def test_logs_with_the_virtual_host_in_front(tmp_path: Path) -> None:
    line = 'ex.com:80 10.0.0.%d - - [01/Mar/2026:10:00:0%d +0000] "GET / HTTP/1.1" 200 9 "-" "x"'
    schedule = _load(tmp_path, "\n".join(line % (i, i) for i in range(3)))
    assert schedule.table.column("client").to_pylist() == ["10.0.0.0", "10.0.0.1", "10.0.0.2"]
    assert "left out" in schedule.provenance["notes"]["virtual host"]


def test_access_logs(tmp_path: Path) -> None:
    lines = [
        '::1 - - [01/Mar/2026:10:00:00 +0100] "GET / HTTP/1.1" 200 5',
        'host.example - frank smith [01/Mar/2026:09:00:01 +0000] "GET /a\\"b HTTP/1.0" 404 - "-" "say \\"hi\\""',
        '198.18.0.1 - - [01/Mar/2026:09:00:02 +0000] "\\x16\\x03" 400 0 "-" "-"',
        '198.18.0.1 - - [01/Mar/2026:09:00:03 +0000] "-" 408 0 "-" "-"',
        '198.18.0.1 - - [01/Mar/2026:09:00:04 +0000] "GET /\xff HTTP/1.1" 200 7 "-" "x"',
    ]
    schedule = _load(tmp_path, "\r\n".join(lines).encode("latin-1"))
    assert schedule.provenance["format"] == "combined" and _seconds(schedule) == OFFSETS
    assert schedule.table.column("method").to_pylist() == ["GET", "GET", None, None, "GET"]
    assert schedule.table.column("bytes").to_pylist() == [5, None, 0, 0, 7]
    with pytest.raises(BenchError, match="logs no request time"):
        _load(tmp_path, "\n".join(lines), subtract_duration=True)
    for rest in ("0.500", "rt=0.500 uct=-", 'request_time="0.5"', '"-" rt=0.5'):
        log = f"{lines[2]} {rest}\n{lines[3].replace(':03 ', ':02 ')} {rest}\n"
        schedule = _load(tmp_path, log, subtract_duration=True)
        assert schedule.provenance["format"] == "nginx" and schedule.table.column("request_time_ns").to_pylist() == [500_000_000] * 2
    with pytest.raises(BenchError, match=r"1 of 6 rows .* line 6: not a line of an access log"):
        _load(tmp_path, "\n".join([*lines, "trailing rubbish"]).encode("latin-1"))


def test_what_other_load_tools_wrote(tmp_path: Path) -> None:
    k6 = "metric_name,timestamp,metric_value,check,method,status,url\n"
    k6 += "http_reqs,1772359201,1.0,,GET,200,u\nhttp_req_duration,1772359201,250.5,,GET,200,u\n"
    k6 += "vus,1772359201,3,,,,\nhttp_reqs,1772359203,1.0,,GET,200,u\nhttp_req_duration,1772359203,1250.5,,GET,200,u\n"
    schedule = _load(tmp_path, k6)
    assert _seconds(schedule) == [0, 2] and schedule.provenance["rows_of_other_kinds"] == 3
    assert _seconds(_load(tmp_path, k6, subtract_duration=True)) == [0, 1]
    vegeta = "1772359200000000000,200,1000000,0,5,,Ym9keQ==,attack,0\n1772359200500000000,0,9000000,0,0,timeout,,attack,1\n"
    schedule = _load(tmp_path, vegeta)
    assert (schedule.provenance["format"], _seconds(schedule)) == ("vegeta", [0, 0.5])
    assert schedule.table.column("status").to_pylist() == [200, 0]
    entries = [{"startedDateTime": f"2026-03-01T10:00:0{i}.250Z", "request": {"method": "GET", "url": "http://h/"}} for i in (1, 0)]
    har = json.dumps({"log": {"version": "1.2", "creator": {}, "entries": entries}}, indent=1)
    schedule = _load(tmp_path, har)
    assert (schedule.provenance["format"], _seconds(schedule), schedule.provenance["backward_steps"]) == ("har", [0, 1], 1)


def test_plain_columns(tmp_path: Path) -> None:
    table = "user,when,size\na,0.5,7\nb,0.25,\nc,2,9\n"
    with pytest.raises(BenchError, match="fits no format"):
        _load(tmp_path, table)
    with pytest.raises(BenchError, match="3 columns: say which"):
        _load(tmp_path, table, form="plain")
    with pytest.raises(BenchError, match="no column 'time'; it has user, when, size"):
        _load(tmp_path, table, form="plain", column="time")
    for column in ("when", "2"):
        schedule = _load(tmp_path, table, form="plain", column=column)
        assert _seconds(schedule) == [0, 0.25, 1.75]
        assert schedule.table.column("user").to_pylist() == ["b", "a", "c"] and schedule.table.column("size").to_pylist() == [None, 7, 9]
    assert _seconds(_load(tmp_path, "-1\n0\n1e0\n+2.5\n")) == [0, 1, 2, 3.5]
    assert _seconds(_load(tmp_path, "1772359200.000000001\n1772359200.5\n")) == [0, 0.499999999]


def test_a_single_arrival_is_a_trace(tmp_path: Path) -> None:
    schedule = _load(tmp_path, "17\n")
    assert (len(schedule), schedule.duration_ns, schedule.intended_ns.tolist()) == (1, 0, [0])


@pytest.mark.parametrize("form", [None, "azure-functions-2021"])
def test_columns_may_be_left_out(tmp_path: Path, form: str | None) -> None:
    (tmp_path / "t").write_text("app,func,end_timestamp,duration\na,f,5,1\nb,g,3,1\na,f,9,0\n")
    steps = Steps(window=(0, 10**10), spread_ns=10**8, cap_gap_ns=10**9, rate_factor=2.5, time_factor=2.0)
    for kept in ([], ["app"]):
        schedule = import_trace(tmp_path / "t", form=form, columns=kept, steps=steps)
        assert schedule.extra_columns == tuple(kept) and 6 <= len(schedule) <= 9
    with pytest.raises(BenchError, match="no column 'user' to keep; it has app, func, duration_ns"):
        import_trace(tmp_path / "t", columns=["user"])


def test_options_that_a_format_has_no_use_for(tmp_path: Path) -> None:
    for options in ({"unit": "ms"}, {"column": "1"}, {"subtract_duration": True}):
        with pytest.raises(BenchError, match="azure-llm-2023 has no use for --"):
            _load(tmp_path, AZURE, **options)
    with pytest.raises(BenchError, match="no trace format 'azure'; there are azure-llm-2023"):
        _load(tmp_path, AZURE, form="azure")


def test_the_wrong_format_stops(tmp_path: Path) -> None:
    """Whatever format is forced upon a file of another one, the outcome is a sentence or all the rows."""
    (tmp_path / "trace").write_text(AZURE)
    assert detect(open_source(tmp_path / "trace")) == "azure-llm-2023"
    for name in FORMATS:
        if name.startswith("azure-llm"):
            continue
        with pytest.raises(BenchError):
            import_trace(tmp_path / "trace", form=name)


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=300),
    st.sampled_from(["", "timestamp\n", "TIMESTAMP,ContextTokens,GeneratedTokens\n", '{"timestamp":', "1772359200,"]),
)
def test_no_bytes_give_a_traceback(tmp_path_factory: pytest.TempPathFactory, rest: bytes, start: str) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    for form in (None, "plain", "combined", "mooncake", "azure-functions-2021", "har", "vegeta", "k6"):
        try:
            schedule = _load(folder, start.encode() + rest, form=form)
        except BenchError:
            continue
        assert len(schedule) >= 1


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(1, 7))
def test_any_order_is_sorted_stably_and_counted(tmp_path_factory: pytest.TempPathFactory, times: list[int], batch: int) -> None:
    text = "t,row\n" + "".join(f"{t},{i}\n" for i, t in enumerate(times))
    with pytest.MonkeyPatch.context() as patch:
        # Several batches in a small file: the counts must not depend on where a batch ends.
        patch.setattr("bench.load.traces.rows.csv_columns.__kwdefaults__", {"batch_rows": batch})
        schedule = _load(tmp_path_factory.mktemp("order"), text, form="plain", column="t")
    order = sorted(range(len(times)), key=lambda i: times[i])
    assert schedule.table.column("row").to_pylist() == order
    assert schedule.provenance["backward_steps"] == sum(b < a for a, b in pairwise(times))
    assert schedule.provenance["rows_out_of_order"] == sum(t < max(times[: i + 1]) for i, t in enumerate(times))


MEMORY = """
import resource, sys
from pathlib import Path
from bench.load.traces.importing import import_trace
from bench.load.traces.transform import Steps
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
schedule = import_trace(Path(sys.argv[1]), steps=Steps(window=(0, 10**9)) if sys.argv[2] == "window" else Steps())
print(len(schedule), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize(("what", "bytes_a_row", "rows"), [("all", 100, 1_000_000), ("window", 0, 1_001)])
def test_rows_are_not_held_as_objects(tmp_path: Path, what: str, bytes_a_row: int, rows: int) -> None:
    """A million rows grow the process by less than 100 bytes each (a Python int and its place in a list take 40, its text
    and list some 180 more), and with a window by no more than a few batches: 96 MiB at most."""
    path = tmp_path / "million.csv.gz"
    stamps = 1_772_359_200_000 + np.arange(1_000_000)
    path.write_bytes(gzip.compress("\n".join(map(str, stamps.tolist())).encode(), 1))
    done = subprocess.run([sys.executable, "-c", MEMORY, str(path), what], capture_output=True, text=True, check=True)
    count, grown = map(int, done.stdout.split())
    assert count == rows - (what == "window") and grown < 1_000_000 * bytes_a_row + 96 * 2**20
