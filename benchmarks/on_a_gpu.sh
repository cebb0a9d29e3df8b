#!/bin/bash
# What no GPU has run yet, a question a step. It needs an NVIDIA GPU, a llama-server, vLLM and torch for CUDA
# (`benchctl engines list` shows them), and no network: all models are bundled.
#
#   bash benchmarks/on_a_gpu.sh                    every step: up to 75 minutes
#   bash benchmarks/on_a_gpu.sh graphs-8 tune      only these
#   bash benchmarks/on_a_gpu.sh --dry-run          lays every run out, on any machine; starts no engine
#
# $OUT (on_a_gpu by default) gets the runs, the report and what each step printed.
set -u
OUT=${OUT:-on_a_gpu}
device=cuda # without a GPU a run is refused
dry=
[ "${1-}" = --dry-run ] && { dry=--dry-run device=auto; shift; }
only=" $* "
failed=0
mkdir -p "$OUT"

step() { # NAME LIMIT_S benchctl COMMAND …: at its limit it is interrupted, and keeps its answers
    local name=$1 limit=$2 began=$SECONDS; shift 2
    [[ $only = "  " || $only = *" $name "* ]] || return 0
    case "$dry $2" in "--dry-run run" | "--dry-run tune") set -- "$@" --dry-run ;; --dry-run*) return 0 ;; esac
    echo; echo "== $name, at most $limit s: $*" | tee -a "$OUT/$name.log"
    timeout --signal INT --kill-after 30 "$limit" "$@" </dev/null 2>&1 | tee -a "$OUT/$name.log" | tail -n 25 | cut -c1-200
    local code=${PIPESTATUS[0]}
    echo "== $name ended with $code after $((SECONDS - began)) s"
    [ "$code" -le 1 ] || failed=1 # 1: an arm is not lossless, which is an answer
}

step machine 60 \
    benchctl engines list
step machine 60 \
    benchctl engines doctor

# Is a hybrid's output the target's in vLLM with CUDA graphs, at 200 prompts? (Eager, 8 at a time: 190 of 200 identical.)
# Is it with prefix caching, where states are kept at the ends of blocks (`align`)?
for requests in 8 1; do
    step graphs-$requests 400 \
        benchctl run vllm-hybrid --set engine.device=$device --set engine.dtype=bfloat16 --set engine.max_num_seqs=32 --set "prompts={suite: many, limit: 25}" --set "matrix={concurrency: [$requests]}" --set sampling.max_tokens=32 --blocks 1 --yes -o "$OUT/graphs-$requests"
    step graphs-$requests 200 \
        benchctl verify-lossless --results "$OUT/graphs-$requests" --audit-minutes 1.5
    step align-$requests 400 \
        benchctl run vllm-hybrid --set engine.prefix_caching=true --set "engine.args=[--mamba-cache-mode, align]" --set engine.device=$device --set engine.dtype=bfloat16 --set engine.max_num_seqs=32 --set "prompts={suite: many, limit: 25}" --set "matrix={concurrency: [$requests]}" --set sampling.max_tokens=32 --blocks 1 --yes -o "$OUT/align-$requests"
    step align-$requests 200 \
        benchctl verify-lossless --results "$OUT/align-$requests" --audit-minutes 1.5
done

# Do n-grams pay in vLLM as it is served, compiled and with CUDA graphs? (Only the baseline was measured.)
step served 700 \
    benchctl run vllm-load --set engine.device=$device --set engine.dtype=bfloat16 --set matrix=null --only ngram_d8 --blocks 3 --yes -o "$OUT/served"
step served 200 \
    benchctl verify-lossless --results "$OUT/served" --audit-minutes 1.5

# Does `tune` time the widths and find the depth behind the fall at 17 tokens?
step tune 420 \
    benchctl tune padded --set engine.device=$device --budget 5m -o "$OUT/tune"

# Is the self-speculation of transformers lossless on CUDA? (The check was cut off after 40 s.)
step transformers 200 \
    benchctl run self-speculation-ablation --set engine.device=$device --set models.target.source=bundled:tiny-hybrid --set matrix=null --only ssm_d4 --only layerskip_d4 --blocks 1 --yes -o "$OUT/transformers"
step transformers 300 \
    benchctl verify-lossless --results "$OUT/transformers" --audit-minutes 2

# Does `explain` time the widths of a run's target, and has its report the figure with the cliffs and falls?
step widths 150 \
    benchctl run padded --set engine.device=$device --only spec_d8 --blocks 3 --yes -o "$OUT/widths"
step widths 120 \
    benchctl explain --results "$OUT/widths"
step widths 60 \
    benchctl report --results "$OUT/widths" -o "$OUT/reports"

exit $failed
