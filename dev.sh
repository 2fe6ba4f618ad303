#!/usr/bin/env bash
# Development tasks other than `bash test.sh`. Without a name: tidy, format, lints and docs.
#   bash dev.sh tidy          sizes, import circles, links of the book, file formats: a minute, without Burn
#   bash dev.sh format        is the code formatted?
#   bash dev.sh lints         clippy over all crates, with all features that need no CUDA
#   bash dev.sh docs          rustdoc, with warnings as errors
#   bash dev.sh book          compiles and runs the code in README and book
#   bash dev.sh package       packs the library's crates; with --verify it also builds what was packed, all of Burn included
#   bash dev.sh pictures      the picture of README and book, made anew
#   bash dev.sh benchmarks    all tables of BENCHMARKS.md, one small case of each; with --full everything, an hour on an idle machine
# Several tasks run one after the other, until one fails.
set -euo pipefail
cd "$(dirname "$0")"

# With Burn's kernel fusion, which changes types of its GPU backend: the tests are built without.
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
        *) echo "there is no \`$name\`: see the top of dev.sh" >&2; exit 2 ;;
    esac
done
