"""The reference traces: figures equal facts.json, and every odd file gives the outcome that expected.json states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from shared_traces import shared_traces

from bench.errors import BenchError
from bench.load.describe import arrival_figures
from bench.load.schedule import Schedule, read_schedule, write_schedule
from bench.load.traces.importing import import_trace
from bench.load.traces.rows import Options


@pytest.fixture
def facts() -> dict[str, Any]:
    return json.loads((shared_traces() / "facts.json").read_text("utf-8"))["files"]


@pytest.mark.parametrize("name", ["azure_llm_code_2023.csv", "mooncake_conversation_first20min.jsonl", "apache_combined_a.log"])
def test_figures_equal_the_facts(facts: dict[str, Any], name: str) -> None:
    schedule = import_trace(shared_traces() / name)
    stated, about, found = facts[name]["arrivals"], schedule.provenance, arrival_figures(schedule.intended_ns)
    assert (about["sha256"], about["bytes"]) == (facts[name]["sha256"], facts[name]["bytes"])
    assert about["backward_steps"] == stated["backward_steps_in_file_order"]
    whole = {
        "count": found.count,
        "peak_count_1s_bins": found.peak_count_1s,
        "peak_count_1s_sliding": found.peak_count_1s_sliding,
        "peak_count_10s_bins": found.peak_count_10s,
        "peak_count_10s_sliding": found.peak_count_10s_sliding,
        "n_1s_bins": found.windows_1s,
        "empty_1s_bins": found.empty_windows_1s,
        "zero_gaps": found.zero_gaps,
        "distinct_timestamps": found.distinct_times,
    }
    assert whole == {key: stated[key] for key in whole}
    assert None not in (found.mean_rate, found.gap_p50_ns, found.gap_p99_ns, found.gap_max_ns, found.gap_mean_ns)
    decimal = {
        "span_s": found.span_ns / 1e9,
        "mean_rate_per_s_n_minus_1_over_span": found.mean_rate,
        "peak_rate_10s_bins_per_s": found.peak_count_10s / 10,
        "iat_p50_s": found.gap_p50_ns / 1e9,  # type: ignore[operator]
        "iat_p99_s": found.gap_p99_ns / 1e9,  # type: ignore[operator]
        "iat_max_s": found.gap_max_ns / 1e9,  # type: ignore[operator]
        "iat_mean_s": found.gap_mean_ns / 1e9,  # type: ignore[operator]
        "iat_cv_ddof0": found.gap_cv,
        "dispersion_1s_ddof0": found.dispersion_1s,
    }
    assert {key: float(f"{value:.9g}") for key, value in decimal.items()} == {key: stated[key] for key in decimal}


def test_further_columns_equal_the_facts(facts: dict[str, Any]) -> None:
    azure = import_trace(shared_traces() / "azure_llm_code_2023.csv")
    stated = facts["azure_llm_code_2023.csv"]
    assert azure.provenance["format"] == stated["format"]
    assert azure.provenance["origin"] == "2023-11-16T18:17:03.979960000Z"
    for column in ("ContextTokens", "GeneratedTokens"):
        assert pc.sum(azure.table.column(column)).as_py() == stated[f"sum_{column}"]

    mooncake = import_trace(shared_traces() / "mooncake_conversation_first20min.jsonl")
    stated = facts["mooncake_conversation_first20min.jsonl"]
    assert mooncake.provenance["unit"] == "ms"
    for column in ("input_length", "output_length"):
        assert pc.sum(mooncake.table.column(column)).as_py() == stated[f"sum_{column}"]
    assert len(np.unique(pc.list_flatten(mooncake.table.column("hash_ids")).to_numpy())) == stated["distinct_hash_ids"]

    apache = import_trace(shared_traces() / "apache_combined_a.log").table
    stated = facts["apache_combined_a.log"]
    for column, key in (("status", "status"), ("method", "methods")):
        counts = pc.value_counts(apache.column(column).combine_chunks().cast("string")).to_pylist()
        assert {c["values"]: c["counts"] for c in counts} == stated[key]
    assert apache.column("bytes").null_count == stated["bytes_dash"]
    assert len(pc.unique(apache.column("client"))) == stated["distinct_clients"]


def _odd(name: str, **options: Any) -> Schedule:
    max_bad_share = options.pop("max_bad_share", 0.01)
    return import_trace(shared_traces() / "odd" / name, options=Options(**options), max_bad_share=max_bad_share)


def _offsets_s(schedule: Schedule) -> list[float]:
    return (schedule.intended_ns / 1e9).tolist()


@pytest.fixture
def expected() -> dict[str, Any]:
    return json.loads((shared_traces() / "odd" / "expected.json").read_text("utf-8"))


LOADS = ["01_bom_crlf", "05_epoch_ns", "10_dst_fall_back_naive", "12_unsorted", "14_all_same_timestamp"]
LOADS += ["30_azure_functions_2021", "43_relative_small_ints"]


@pytest.mark.parametrize("name", [f"{name}.csv" for name in LOADS] + ["21_gzip_two_members.csv.gz", "36_nginx_request_time.log"])
def test_odd_files_that_load(expected: dict[str, Any], name: str, tmp_path: Path) -> None:
    schedule = _odd(name)
    assert len(schedule) == expected[name]["count"] and _offsets_s(schedule) == expected[name]["offsets_s"]
    write_schedule(schedule, tmp_path / "odd.parquet")
    assert read_schedule(tmp_path / "odd.parquet").intended_ns.tolist() == schedule.intended_ns.tolist()


def test_every_odd_file_is_tried(expected: dict[str, Any]) -> None:
    apart = {
        "08_iso_naive_and_zoned.csv",
        "17_header_only.csv",
        "23_gzip_truncated.csv.gz",
        "26_nan_rows.csv",
        "29_azure_functions_2019.csv",
    }
    tried = {f"{name}.csv" for name in LOADS} | {"21_gzip_two_members.csv.gz", "36_nginx_request_time.log", "33_jsonl_truncated.jsonl"}
    assert tried | apart == set(expected)


def test_01_columns_and_05_the_last_digit(expected: dict[str, Any]) -> None:
    table = _odd("01_bom_crlf.csv").table
    assert pc.sum(table.column("ContextTokens")).as_py() == expected["01_bom_crlf.csv"]["sum_context"]
    assert pc.sum(table.column("GeneratedTokens")).as_py() == expected["01_bom_crlf.csv"]["sum_generated"]
    exact = _odd("05_epoch_ns.csv")
    assert exact.intended_ns.tolist()[1:3] == [250_000_000, 250_000_001]
    assert exact.provenance["unit"].startswith("ns since 1970")


def test_08_naive_and_zoned_together() -> None:
    with pytest.raises(BenchError, match=r"line 2 .* without a zone and line 3 one with a zone.*--zone"):
        _odd("08_iso_naive_and_zoned.csv")
    assert _offsets_s(_odd("08_iso_naive_and_zoned.csv", zone="Europe/Berlin")) == [0, 3601]


def test_10_the_hour_that_comes_twice(expected: dict[str, Any]) -> None:
    about = _odd("10_dst_fall_back_naive.csv").provenance
    assert (about["rows_out_of_order"], about["backward_steps"]) == (2, 1)
    assert "taken as UTC" in about["notes"]["zone"]
    with pytest.raises(BenchError, match="line 2: the local time 2026-10-25 02:59:58 comes twice in Europe/Berlin"):
        _odd("10_dst_fall_back_naive.csv", zone="Europe/Berlin")


def test_12_rows_keep_their_columns(expected: dict[str, Any]) -> None:
    schedule = _odd("12_unsorted.csv")
    tokens = zip(*(schedule.table.column(c).to_pylist() for c in ("ContextTokens", "GeneratedTokens")), strict=True)
    assert [list(pair) for pair in tokens] == expected["12_unsorted.csv"]["tokens_in_time_order"]
    assert schedule.provenance["backward_steps"] == 2 and schedule.provenance["rows_out_of_order"] == 3


def test_14_no_span_has_no_rate() -> None:
    schedule = _odd("14_all_same_timestamp.csv")
    figures = arrival_figures(schedule.intended_ns)
    assert schedule.duration_ns == 0
    assert (figures.mean_rate, figures.gap_cv, figures.dispersion_1s, figures.peak_count_1s) == (None, None, None, 10)


def test_17_23_no_arrivals_and_truncated() -> None:
    with pytest.raises(BenchError, match=r"17_header_only\.csv has no arrivals"):
        _odd("17_header_only.csv")
    with pytest.raises(BenchError, match=r"23_gzip_truncated\.csv\.gz is truncated"):
        _odd("23_gzip_truncated.csv.gz")


def test_26_33_bad_rows_stop_or_are_counted(expected: dict[str, Any]) -> None:
    with pytest.raises(BenchError, match=r"4 of 7 rows .* line 3"):
        _odd("26_nan_rows.csv")
    schedule = _odd("26_nan_rows.csv", max_bad_share=0.6)
    assert _offsets_s(schedule) == expected["26_nan_rows.csv"]["offsets_s"]
    assert (schedule.provenance["rows_bad"], schedule.provenance["lines_blank"]) == (4, 1)
    assert [bad["line"] for bad in schedule.provenance["first_bad"]] == [3, 4, 6, 7]
    assert schedule.table.column("GeneratedTokens").to_pylist() == [40, 20, None]
    with pytest.raises(BenchError, match=r"1 of 3 rows .* line 4"):
        _odd("33_jsonl_truncated.jsonl")
    kept = _odd("33_jsonl_truncated.jsonl", max_bad_share=0.5)
    assert _offsets_s(kept) == expected["33_jsonl_truncated.jsonl"]["offsets_s"]


def test_29_counts_are_exact_and_stay_in_their_minute(expected: dict[str, Any]) -> None:
    stated = expected["29_azure_functions_2019.csv"]
    schedule = _odd("29_azure_functions_2019.csv", seed=3)
    assert len(schedule) == stated["count"] and schedule.duration_ns == 1440 * 60 * 10**9
    minutes = np.bincount(schedule.intended_ns // (60 * 10**9) + 1, minlength=1441)
    assert {minute: int(minutes[int(minute)]) for minute in stated["per_minute"]} == stated["per_minute"]
    functions = pc.value_counts(schedule.table.column("HashFunction").combine_chunks()).to_pylist()
    assert sorted(f["counts"] for f in functions) == sorted(n for n in stated["per_function"] if n)
    assert schedule.table.equals(_odd("29_azure_functions_2019.csv", seed=3).table)
    assert schedule.intended_ns.tolist() != _odd("29_azure_functions_2019.csv", seed=4).intended_ns.tolist()


def test_30_36_43_say_what_they_took(expected: dict[str, Any]) -> None:
    functions = _odd("30_azure_functions_2021.csv").provenance
    assert (
        functions["notes"]["meaning"] == "arrival = end_timestamp - duration"
        and "1 of the arrivals lie before 0" in functions["notes"]["kept"]
    )
    log = _odd("36_nginx_request_time.log")
    assert "as logged, which is the end" in log.provenance["notes"]["meaning"]
    begun = _odd("36_nginx_request_time.log", subtract_duration=True)
    assert _offsets_s(begun) == expected["36_nginx_request_time.log"]["arrival_offsets_s"]
    assert "--subtract-duration" in begun.provenance["notes"]["meaning"]
    small = _odd("43_relative_small_ints.csv").provenance
    assert small["unit"].startswith("s, on the trace's own clock (no unit was given")
    assert _offsets_s(_odd("43_relative_small_ints.csv", unit="ms")) == [0, 0.005, 0.045, 0.118]
