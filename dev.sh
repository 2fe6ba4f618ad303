#!/usr/bin/env bash
# Development tasks other than `bash test.sh`. Without a name: tidy, format, lints and docs.
#   bash dev.sh tidy          checks file sizes, import cycles, links in the book and file formats: a minute, without Burn
#   bash dev.sh format        checks that the code is formatted
#   bash dev.sh lints         runs clippy on all crates, with all features that do not need CUDA
#   bash dev.sh docs          runs rustdoc, with warnings as errors
#   bash dev.sh book          compiles and runs the code in the README and the book
#   bash dev.sh package       packs the library's crates; with --verify it also builds the packages, including all of Burn
#   bash dev.sh pictures      makes the picture in the README and the book again
#   bash dev.sh benchmarks    measures one small case of each table in BENCHMARKS.md; with --full everything, an hour on an idle machine
# Several tasks run one after the other, until one fails.
set -euo pipefail
cd "$(dirname "$0")"

# With Burn's kernel fusion, which changes types of its GPU backend. The tests are built without it.
features=burn-remat-plan/highs,burn-remat-examples/images,burn-remat-examples/learner,burn-remat-examples/serve
features=$features,burn-remat-examples/wgpu,burn-remat-examples/fusion,burn-remat-tests/wgpu,burn-remat-tests/fusion
packages=(-p burn-remat-grammar -p burn-remat-macros -p burn-remat-core -p burn-remat-plan -p burn-remat)

verify=--no-verify
effort=--quick
names=()
for name in "$@"; do
    case "$name" in
        --verify) verify= ;;
        --full) effort=--full ;;
        *) names+=("$name") ;;
    esac
done
[ "${#names[@]}" -gt 0 ] || names=(tidy format lints docs)

for name in "${names[@]}"; do
    case "$name" in
        tidy) cargo test -p burn-remat-plan --test tidy --test imports --test book --test formats ;;
        format) cargo fmt --all --check ;;
        lints) cargo clippy --workspace --all-targets --features "$features" -- -D warnings ;;
        docs) RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --features "$features" ;;
        book) cargo test --doc -p burn-remat-examples --features learner,serve,wgpu ;;
        package) cargo package "${packages[@]}" --allow-dirty $verify ;;
        pictures)
            cargo run --release --bin train -- --model unet --budget 35% --plan-report target/pictures
            cp target/pictures/memory.svg docs/src/memory.svg
            ;;
        benchmarks) cargo run --release -p burn-remat-examples --features burn-remat-plan/highs --bin benchmarks -- $effort ;;
        *) echo "unknown task \`$name\`: see the top of dev.sh" >&2; exit 2 ;;
    esac
done
