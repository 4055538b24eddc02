"""The steps of tests/gpu/run_all.sh: `python -m gpu.steps STEP`. Each asserts what must hold and appends one line to $OUT/results.jsonl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine.manifest import read_manifest, relative_error
from bench.subprocesses import child_environment, module_command

OUT, WORK = Path(os.environ.get("OUT", ".")), Path(os.environ.get("WORK", ".gpu-work"))
PRECISIONS = ("fp32", "fp16", "int8")
CASES = Path(__file__).with_name("cases.py")


def record(step: str, **facts: Any) -> None:
    line = json.dumps({"step": step, **facts})
    print(line)
    with (OUT / "results.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")


def run(*command: str, expect: int | None = 0, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The program's output. Its exit code must be the one expected; None: any."""
    answer = subprocess.run(command, capture_output=True, text=True, env=child_environment(environment), timeout=470)
    if expect is not None and answer.returncode != expect:
        raise AssertionError(f"{' '.join(command)}: exit {answer.returncode}\n{answer.stdout[-2000:]}\n{answer.stderr[-2000:]}")
    return answer


def build(model: str, precision: str, *extra: str, name: str | None = None) -> Path:
    """An engine in $WORK, built where it is not there. The timing cache makes a second build quick."""
    engine = WORK / (name or f"{model}-{precision}")
    if not (engine / "manifest.json").exists():
        run(
            *module_command("bench", "build", model, "--runtime", "tensorrt", "--precision", precision, "-o", str(engine), "--force"),
            *("--timing-cache", str(WORK / "timing.cache"), *extra),
        )
    return engine


def report_engine(step: str, engine: Path) -> None:
    """What the manifest says of it, and the inspector's layers by precision."""
    manifest = read_manifest(engine)
    assert manifest.details is not None
    assert manifest.baseline is not None
    record(
        step,
        engine=engine.name,
        title=manifest.title,
        bytes=manifest.engine_bytes,
        build_s=manifest.build_duration_ns / 1e9,
        rate_per_s=manifest.baseline.rate_per_s,
        p50_us=manifest.baseline.p50_ns / 1e3,
        p99_us=(manifest.baseline.p99_ns or 0) / 1e3,
        errors=dict(manifest.baseline.errors),
        tolerance=manifest.tolerance,
        share_fused=manifest.details.share_fused,
        **json.loads(manifest.to_json())["details"],
    )


def build_models(step: str, model: str) -> None:
    failed, sizes = [], {}
    for precision in PRECISIONS:
        try:
            engine = build(model, precision)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            failed.append(precision)
            record(step, precision=precision, reason=str(error)[-3000:])
            continue
        report_engine(step, engine)
        print(run(*module_command("bench", "inspect", str(engine), "--layers")).stdout)
        sizes[precision] = read_manifest(engine).engine_bytes
    assert not failed, failed
    if model == "resnet50":  # nearly all of its bytes are weights that change their type
        assert 0.4 < sizes["fp16"] / sizes["fp32"] < 0.65, sizes
        assert 0.2 < sizes["int8"] / sizes["fp32"] < 0.35, sizes


def cuda() -> None:
    """The contract of the CUDA seam for each of the bindings that is installed; their processes end with code 0."""
    for name in ("pycuda", "cuda-python"):
        answer = run(sys.executable, "-m", "gpu.cuda_contract", name, str(WORK / "contract.json"), expect=None)
        missing = "CUDA bindings can be imported" in answer.stderr
        assert answer.returncode == 0 or missing, answer.stderr[-3000:]
        facts = {"skipped": answer.stderr.splitlines()[-1]} if missing else json.loads((WORK / "contract.json").read_text())
        record("cuda", **{**facts, "bindings": name, "exit_code": answer.returncode, "stderr": answer.stderr[-300:]})


def lean() -> None:
    """One version-compatible plan under the TensorRT that built it and under a later lean runtime: same answers, side by side."""
    engine = build("tiny", "fp16", "--version-compatible", name="tiny-fp16-compatible")
    big = "resnet50-fp16-compatible"
    engines = [engine]
    if any((WORK / name / "manifest.json").exists() for name in (big, "resnet50-fp32")):
        engines.append(build("resnet50", "fp16", "--version-compatible", name=big))
    for one in engines:
        digests, saved, rows = {}, {}, {}
        for module in ("tensorrt", "tensorrt_lean"):
            save = WORK / f"{one.name}-{module}.npz"
            settings = (f"module={module}", "trust_host_code=on", f"save={save}")
            answer = run(sys.executable, str(CASES), "answers", str(one), *settings, expect=None)
            if answer.returncode and "cannot be imported" in answer.stderr:
                record("lean", engine=one.name, module=module, skipped=answer.stderr.splitlines()[-1])
                continue
            assert answer.returncode == 0, answer.stderr[-3000:]
            facts = json.loads(answer.stdout.splitlines()[-1])
            digests[module], saved[module] = facts["digest"], save
            starts = []
            for _ in range(5):
                began = time.monotonic_ns()
                command = module_command("reference_server.probe", str(one), "--set", f"module={module}", "--set", "trust_host_code=on")
                trial = json.loads(run(*command).stdout.splitlines()[-1])
                starts.append((trial["answered_ns"] - began) / 1e6)
            phases = {p["name"]: (p["end_ns"] - p["start_ns"]) / 1e6 for p in (*trial["phases"], *trial["after"])}
            rows[module] = {"process_ms": sorted(starts)[2], **{f"{name}_ms": ms for name, ms in phases.items()}, **facts}
            record("lean", engine=one.name, module=module, process_ms=sorted(starts), phases_ms=phases, **facts)
        if len(saved) == 2:
            record("lean", engine=one.name, differences=differences(*saved.values()), same_bits=len(set(digests.values())) == 1)
        show_side_by_side(one.name, rows)
        assert len(set(digests.values())) <= 1, digests
    refused = run(*module_command("reference_server.probe", str(engine)), expect=2)
    assert "brings code of its own" in refused.stderr, refused.stderr
    record("lean", refused=refused.stderr.strip())


def differences(first: Path, second: Path) -> dict[str, float]:
    """How far apart two saved files of answers are, relative to each output's largest magnitude, by case and output."""
    with np.load(first) as ones, np.load(second) as others:
        assert sorted(ones.files) == sorted(others.files)
        return {name: relative_error(ones[name], others[name]) for name in ones.files}


def show_side_by_side(title: str, rows: dict[str, dict[str, Any]]) -> None:
    """A line for each fact that all rows have, a column a row; printed, and appended to $OUT/lean.txt."""
    names = [name for name in next(iter(rows.values()), {}) if all(name in row for row in rows.values())]
    lines = [f"{title:26}" + "".join(f"{column:>18}" for column in rows)]
    for name in names:
        cells = [row[name][:12] if isinstance(row[name], str) else f"{row[name]:,.1f}" for row in rows.values()]
        lines.append(f"{name:26}" + "".join(f"{cell:>18}" for cell in cells))
    text = "\n".join(lines) + "\n\n"
    print(text)
    with (OUT / "lean.txt").open("a", encoding="utf-8") as stream:
        stream.write(text)


def runtime() -> None:
    """Every case of tests/gpu/cases.py, each in a process of its own, with every binding installed; each ends with code 0."""
    engine, other = build("tiny", "fp32"), build("tiny", "fp16")
    profiles = build("tiny", "fp32", "--shape", "input=1x64,2x64:8x64:16x64", name="tiny-profiles")
    failed = []
    for case in ("answers", "shapes", "memory", "churn", "threads", "buffers", "graphs", "refusals"):
        subject = profiles if case == "shapes" else engine
        for bindings in ("pycuda", "cuda-python"):
            answer = run(sys.executable, str(CASES), case, str(subject), f"cuda={bindings}", f"other={other}", expect=None)
            if answer.returncode and "CUDA bindings can be imported" in answer.stderr:
                continue
            if answer.returncode:
                failed.append(f"{case} {bindings}")
                record("runtime", case=case, bindings=bindings, exit_code=answer.returncode, stderr=answer.stderr[-3000:])
                continue
            record("runtime", case=case, bindings=bindings, stderr=answer.stderr[-300:], **json.loads(answer.stdout.splitlines()[-1]))
    large = WORK / "resnet50-fp16"
    if (large / "manifest.json").exists():
        for case in ("memory", "threads", "buffers", "graphs"):
            answer = run(sys.executable, str(CASES), case, str(large))
            record("runtime", case=case, subject=large.name, **json.loads(answer.stdout.splitlines()[-1]))
    assert not failed, failed


def exits() -> None:
    """Exit codes: a worker's exception, SIGTERM in the middle of runs, a spoiled device; never an abort of pycuda's (-6)."""
    engine = build("tiny", "fp32")
    codes = {}
    for case in ("worker-exception", "leaves-all-open", "terminated", "spoiled"):
        answer = run(sys.executable, str(CASES), case, str(engine), expect=None)
        codes[case] = answer.returncode
        record("exits", case=case, exit_code=answer.returncode, stdout=answer.stdout[-500:], stderr=answer.stderr[-500:])
    assert codes == {"worker-exception": 0, "leaves-all-open": 0, "terminated": -15, "spoiled": 70}, codes


def overhead() -> None:
    """A warm slot against bare TensorRT with the same copies, and process start to ready against a bare script, alternating."""
    engine = build("resnet50", "fp16")
    rows: dict[str, list[dict[str, Any]]] = {"bare": [], "ours": []}
    for _ in range(7):
        for name in rows:
            began = time.monotonic_ns()
            answer = json.loads(run(sys.executable, str(CASES), f"warm-{name}", str(engine)).stdout.splitlines()[-1])
            rows[name].append({"ready_ms": (answer.pop("ready_ns") - began) / 1e6, **answer})
    middle = {name: {key: sorted(row[key] for row in all_rows)[3] for key in all_rows[0]} for name, all_rows in rows.items()}
    ratios = {key: middle["ours"][key] / middle["bare"][key] for key in middle["bare"]}
    record("overhead", medians=middle, ratios=ratios, rows=rows)


def serve() -> None:
    """The HTTP server over the largest engine there is, beside bare TensorRT and a bare handler."""
    from gpu.serving import serve as serve_engine

    engine = WORK / "resnet50-fp16"
    if not (engine / "manifest.json").exists():
        engine = build("tiny", "fp32")
    bare = run(sys.executable, str(CASES), "warm-bare", str(engine), expect=None)  # it needs pycuda
    p50_us = json.loads(bare.stdout.splitlines()[-1])["p50_us"] if bare.returncode == 0 else None
    record("serve", engine=engine.name, **serve_engine(engine, p50_us))


def clocks() -> None:
    """The GPU's clock through both bindings; then through the server's timeline and /metrics, with the share fused."""
    from gpu.serving import clocks as serve_clocks

    engine = build("resnet50", "fp16")  # of `tiny` nothing is fused
    seen = {}
    for bindings in ("pycuda", "cuda-python"):
        answer = run(sys.executable, str(CASES), "clock", str(engine), f"cuda={bindings}", expect=None)
        if answer.returncode and "CUDA bindings can be imported" in answer.stderr:
            continue
        assert answer.returncode == 0, answer.stderr[-3000:]
        seen[bindings] = json.loads(answer.stdout.splitlines()[-1])
        record("clocks", case="clock", bindings=bindings, **seen[bindings])
    assert len({facts["pci_address"][-10:].upper() for facts in seen.values()}) == 1, seen  # without the domain, of 4 digits or 8
    record("clocks", engine=engine.name, **serve_clocks(engine, WORK))


STEPS: dict[str, Callable[[], None]] = {
    "cuda": cuda,
    "build-tiny": lambda: build_models("build-tiny", "tiny"),
    "build-resnet50": lambda: build_models("build-resnet50", "resnet50"),
    "build-bert": lambda: build_models("build-bert", "bert-base"),
    "lean": lean,
    "runtime": runtime,
    "exits": exits,
    "overhead": overhead,
    "serve": serve,
    "clocks": clocks,
}


def main() -> None:
    """Run one step. An assertion that fails is recorded too."""
    (step,) = sys.argv[1:]
    began = time.monotonic()
    try:
        STEPS[step]()
    except BaseException as error:
        record(step, failed=f"{type(error).__name__}: {error}"[-3000:], seconds=time.monotonic() - began)
        raise
    record(step, passed=True, seconds=time.monotonic() - began, disk_free=shutil.disk_usage(WORK).free)


if __name__ == "__main__":
    main()
