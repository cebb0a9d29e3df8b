#!/bin/bash
# What no GPU has run yet, a question a step, the most valuable first. It needs an NVIDIA GPU, a llama-server, vLLM and
# torch for CUDA (`benchctl engines list` shows them), and no network: all models are bundled.
#
#   bash benchmarks/on_a_gpu.sh                    every step: up to 80 minutes
#   MINUTES=13 bash benchmarks/on_a_gpu.sh         as many as fit; the last one is cut off, and keeps its answers
#   bash benchmarks/on_a_gpu.sh graphs-8 tune      only these
#   bash benchmarks/on_a_gpu.sh install            only if named, with a network: benchctl's own engines for this card
#   bash benchmarks/on_a_gpu.sh --dry-run          prints every command, with the plan of each run; on any machine, starts no engine
#
# The same command again skips what has ended and resumes what was cut off. $OUT (on_a_gpu by default) is all to keep:
# the runs (records, manifests, engine logs, scores), the report, and NAME.log, what each step printed.
#
# Exit status: 0 every step ended; 1 a step failed, as its log says; 2 there is no such step, or MINUTES is no number;
# 124 the time was over, as of `timeout`: what is left is named.
set -u
OUT=${OUT:-on_a_gpu}
MINUTES=${MINUTES:-1000}
[[ $MINUTES =~ ^[0-9]+$ ]] || { echo "MINUTES is no number: $MINUTES" >&2; exit 2; }
device=cuda # without a GPU a run is refused
dry=
[ "${1-}" = --dry-run ] && { dry=--dry-run device=auto; shift; }
only=" $* " left=" " failed=0 counting=1
declare -A count

quoted() { # WORD …: as a shell reads them
    local word
    for word; do [[ $word =~ ^[A-Za-z0-9_./=:-]+$ ]] && printf '%s ' "$word" || printf '%s ' "${word@Q}"; done
}

step() { # NAME LIMIT_S benchctl COMMAND …: at its limit it is interrupted, and keeps its answers
    local name=$1 limit=$2 began=$SECONDS folder=${!#} seconds cut code; shift 2
    count[$name]=$((${count[$name]-0} + 1))
    [ -z "$counting" ] || return 0
    [[ $only = "  " && $name != install || $only = *" $name "* ]] || return 0
    if [ -n "$dry" ]; then
        echo; echo "== $name, at most $limit s: $(quoted "$@")"
        [[ $2 != run && $2 != tune ]] || "$@" --dry-run </dev/null || failed=1
        return 0
    fi
    local ended=$OUT/$name.${count[$name]}.ended
    [ -e "$ended" ] && { echo "== $name ended before"; return 0; }
    seconds=$((60 * 10#$MINUTES - SECONDS)); [ "$seconds" -lt "$limit" ] && limit=$seconds
    [ "$limit" -gt 20 ] || { left+="$name "; return 0; }
    cut=$(find "$folder" -mindepth 2 -maxdepth 2 -type d -not -path '*-tuned/*' 2>/dev/null | sort | tail -n 1)
    [[ $2 = run || $2 = tune ]] && [ -n "$cut" ] && set -- benchctl "$2" --resume "$cut" -o "$folder"
    echo; echo "== $name, at most $limit s: $(quoted "$@")" | tee -a "$OUT/$name.log"
    timeout --signal INT --kill-after 30 "$limit" "$@" </dev/null 2>&1 | tee -a "$OUT/$name.log" | tail -n 25 | cut -c1-200
    code=${PIPESTATUS[0]}
    echo "== $name ended with $code after $((SECONDS - began)) s, $SECONDS s in all"
    rm -f "$OUT/$name".["${count[$name]}"-9].ended # what follows from it is made again
    case $code in
    0 | 1) touch "$ended" ;; # 1: not lossless, an answer, too
    124 | 137) left+="$name " ;;
    *) failed=1 ;;
    esac
}

steps() {
    step machine 60 \
        benchctl engines list
    step machine 60 \
        benchctl engines doctor

    # Does `tune` time the widths and find the depth behind the fall at 17 tokens?
    step tune 240 \
        benchctl tune padded --set engine.device=$device --budget 2m -o "$OUT/tune"

    # Does `explain` time the widths of a run's target, and has its report the figure with the cliffs and falls?
    step widths 90 \
        benchctl run padded --set engine.device=$device --only spec_d8 --blocks 3 --yes -o "$OUT/widths"
    step widths 90 \
        benchctl explain --results "$OUT/widths"
    step widths 60 \
        benchctl report --results "$OUT/widths" -o "$OUT/reports"

    # Is a hybrid's output the target's in vLLM with prefix caching, where states are kept at the ends of blocks (`align`)?
    # Is it with CUDA graphs, at 200 prompts? (Eager, 8 at a time: 190 of 200 identical.)
    for requests in 8 1; do
        step align-$requests 400 \
            benchctl run vllm-hybrid --set engine.prefix_caching=true --set "engine.args=[--mamba-cache-mode, align]" --set engine.device=$device --set engine.dtype=bfloat16 --set engine.max_num_seqs=32 --set "prompts={suite: many, limit: 25}" --set "matrix={concurrency: [$requests]}" --set sampling.max_tokens=32 --blocks 1 --yes -o "$OUT/align-$requests"
        step align-$requests 200 \
            benchctl verify-lossless --results "$OUT/align-$requests" --audit-minutes 1.5
        step graphs-$requests 400 \
            benchctl run vllm-hybrid --set engine.device=$device --set engine.dtype=bfloat16 --set engine.max_num_seqs=32 --set "prompts={suite: many, limit: 25}" --set "matrix={concurrency: [$requests]}" --set sampling.max_tokens=32 --blocks 1 --yes -o "$OUT/graphs-$requests"
        step graphs-$requests 200 \
            benchctl verify-lossless --results "$OUT/graphs-$requests" --audit-minutes 1.5
    done

    # Is the self-speculation of transformers lossless on CUDA? (The check was cut off after 40 s.)
    step transformers 200 \
        benchctl run self-speculation-ablation --set engine.device=$device --set models.target.source=bundled:tiny-hybrid --set matrix=null --only ssm_d4 --only layerskip_d4 --blocks 1 --yes -o "$OUT/transformers"
    step transformers 300 \
        benchctl verify-lossless --results "$OUT/transformers" --audit-minutes 2

    # Do n-grams pay in vLLM as it is served, compiled and with CUDA graphs? (Only the baseline was measured.)
    step served 700 \
        benchctl run vllm-load --set engine.device=$device --set engine.dtype=bfloat16 --set matrix=null --only ngram_d8 --blocks 3 --yes -o "$OUT/served"
    step served 200 \
        benchctl verify-lossless --results "$OUT/served" --audit-minutes 1.5

    # What do compilation and CUDA graphs bring each arm? (Each was timed in a run of its own.)
    step eager 400 \
        benchctl run vllm-load --set engine.device=$device --set engine.dtype=bfloat16 --set "matrix={engine.args: {graphs: [], eager: [--enforce-eager]}}" --only ngram_d8 --blocks 1 --yes -o "$OUT/eager"

    # Do benchctl's own installations for CUDA end, and do their engines start? (5 GB of packages; an hour of two cores.)
    step install 1800 \
        benchctl engines install vllm
    step install 5400 \
        benchctl engines install llama.cpp --cuda
    step install 300 \
        benchctl engines doctor
}

steps # only counts
for name in $only; do
    [ -n "${count[$name]-}" ] || { echo "there is no step $name; there are: ${!count[*]}" >&2; exit 2; }
done
count=() counting=
[ -n "$dry" ] || mkdir -p "$OUT"
steps
[ "$left" = " " ] || echo "== The time was over. The same command goes on with: $(printf '%s\n' $left | uniq | paste -sd ' ')"
[ $failed = 0 ] || exit 1
[ "$left" = " " ] || exit 124
