#!/usr/bin/env bash
# On a machine with an NVIDIA GPU: recorded steps against eager ones, every kernel against its twin, whole steps in every
# format with and without a CUDA graph, then single operations. At most 8 minutes behind the installation; each part has
# a limit of its own, so that one that hangs or fails costs no other. Rows go to $RESULTS, named after the
# card and the day, as they come. Never run on hardware so far.
#
# PYTHON names the interpreter to use. What it lacks is installed into an environment on top of it.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH=.:common:convert PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$work/triton} # The parts share what is compiled.

say() { echo "nvidia.sh: $*" >&2; }

usable() {
    "$1" -c 'import torch, triton, numpy, safetensors; assert torch.cuda.is_available(), "torch sees no GPU"' 2>"$work/why"
}

install() { # Over the packages that are there, so that a torch which is present is not fetched again.
    "$python" -m venv --system-site-packages "$work/venv" || return 1
    python="$work/venv/bin/python"
    timeout 400 "$python" -m pip install --quiet --disable-pip-version-check \
        'torch>=2.8' 'triton>=3.4' 'numpy>=1.26' 'safetensors>=0.5'
}

if ! usable "$python"; then
    say "$python cannot run the kernels: $(tail -n 1 "$work/why")"
    install || { say "the environment could not be made"; exit 1; }
    usable "$python" || { say "still not: $(tail -n 1 "$work/why")"; exit 1; }
fi

card=$("$python" -c 'import torch; print("-".join(torch.cuda.get_device_name().replace("/", "-").split()))') || exit 1
results=${RESULTS:-benchmarks/results}
out=$results/$card-$(date +%F)
mkdir -p "$results"
for rows in checks steps ops; do : >"$out-$rows.jsonl"; done
failed=0

# part LIMIT ROWS COMMAND...: rows are kept as they come; what went wrong is said and counted.
part() {
    local limit=$1 rows=$out-$2.jsonl begin=$SECONDS code
    shift 2
    timeout --kill-after=5 "$limit" "$@" 2>"$work/errors" | tee -a "$rows"
    code=${PIPESTATUS[0]}
    say "$code after $((SECONDS - begin)) s: $*"
    [ "$code" -eq 0 ] && return
    failed=$((failed + 1))
    tail -n 20 "$work/errors" >&2
}

export DGEMMA_CHECK_DEVICE=cuda
part 75 checks env DGEMMA_CHECK=step- "$python" -m tests.cuda.checks
# 4 bits first: they are to take 8 ms a step on an H200. The first format pays for compiling; plain needs 53 GB.
part 75 steps "$python" -m benchmarks.step --formats affine4 --rounds 20
for format in nvfp4 mxfp4 affine8 mxfp8 plain; do
    part 35 steps "$python" -m benchmarks.step --formats "$format" --rounds 20
done
part 75 checks env DGEMMA_CHECK_SKIP=step- "$python" -m tests.cuda.checks
part 75 ops "$python" -m benchmarks.ops.all torch

wrong=$(grep -cv '"failure": ""' "$out-checks.jsonl")
say "$(wc -l <"$out-checks.jsonl") checks, $wrong failed; $failed parts failed or ran out of time; rows: $out-*.jsonl"
[ "$failed" -eq 0 ] && [ "$wrong" -eq 0 ]
