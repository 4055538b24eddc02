#!/usr/bin/env bash
# What only a GPU can show. Each step takes under 8 minutes, continues what an earlier one built, and appends to $OUT/results.jsonl.
#
#   OUT=folder tests/gpu/run_all.sh [STEP ...]     steps: cuda build-tiny lean runtime exits build-resnet50 overhead serve clocks build-bert
#
# Uses $TRT_PYTHON (else python3) with tensorrt, pycuda or cuda-python, numpy, onnx, onnxruntime, typer, rich (and for
# `serve` and `clocks` starlette, uvicorn, uvloop, httptools, orjson; for `clocks` nvidia-ml-py, prometheus-client).
# Engines are kept in $WORK (else .gpu-work); a step that fails does not stop the next ones, and the exit code counts the failures.
set -uo pipefail
cd "$(dirname "$0")/../.."
export OUT=${OUT:?set OUT to a folder for the results}
export WORK=${WORK:-$PWD/.gpu-work}
export PYTHONPATH="$PWD:$PWD/tests${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
python=${TRT_PYTHON:-python3}
mkdir -p "$OUT" "$WORK"
failed=0
(($#)) || set -- cuda build-tiny lean runtime exits build-resnet50 overhead serve clocks build-bert
for step in "$@"; do
  began=$(date +%s)
  timeout 480 "$python" -m gpu.steps "$step" 2>&1 | tee -a "$OUT/log.txt"
  code=${PIPESTATUS[0]}
  ((code == 0)) || failed=$((failed + 1))
  echo "== $step: exit $code after $(($(date +%s) - began)) s" | tee -a "$OUT/log.txt"
done
exit "$failed"
