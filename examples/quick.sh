#!/usr/bin/env bash
# Runs every example for a few steps, to see that it works: offline, on the CPU, under a memory budget.
#   bash examples/quick.sh              with the build that the tests use
#   bash examples/quick.sh --release    with an optimized build
#   bash examples/quick.sh --learner    text-classification only, which builds Burn once more with its Learner
set -euo pipefail
cd "$(dirname "$0")/.."

profile=debug
build=(cargo build --quiet --workspace --features burn-remat-plan/highs)
names=(mnist custom-training-loop text-generation image-segmentation wgan modern-lstm larger-batches)
for argument in "$@"; do
    case "$argument" in
    --release) profile=release && build+=(--release) ;;
    --learner) build+=(--features burn-remat-examples/learner) && names=(text-classification) ;;
    *) echo "unknown argument $argument: use --release or --learner" >&2 && exit 2 ;;
    esac
done

"${build[@]}" "${names[@]/#/--bin=}"
for name in "${names[@]}"; do
    start=$SECONDS
    if ! output=$("${CARGO_TARGET_DIR:-target}/$profile/$name" --quick 2>&1); then
        echo "$output"
        echo "$name --quick failed" >&2
        exit 1
    fi
    # Examples end with the report of their device; larger-batches with a table.
    if ! grep -qE '^peak|x  ' <<<"$output"; then
        echo "$output"
        echo "$name --quick printed no report" >&2
        exit 1
    fi
    echo "$name: $((SECONDS - start)) s"
done
