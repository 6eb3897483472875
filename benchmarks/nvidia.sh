#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: every kernel against its twin, then operation and step benchmarks, in about 8 minutes.
# Rows go to benchmarks/results/, named after the card and the day. Never run on hardware so far.
set -uo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH=.:common:convert
python=${PYTHON:-python}
card=$("$python" -c 'import torch; print(torch.cuda.get_device_name().replace(" ", "-"))') || exit 1
out=benchmarks/results/$card-$(date +%F)
mkdir -p benchmarks/results

DGEMMA_CHECK_DEVICE=cuda timeout 150 "$python" -m tests.cuda.checks | tee "$out-checks.jsonl"
timeout 150 "$python" -m benchmarks.ops.all | tee "$out-ops.jsonl"
for format in affine4 nvfp4 plain affine8 mxfp4; do
    timeout 60 "$python" -m benchmarks.step --formats "$format" --rounds 20 | tee -a "$out-steps.jsonl"
done
