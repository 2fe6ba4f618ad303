#!/usr/bin/env bash
# Runs all tests. Installs what the HiGHS solver needs to build where this is Debian or Ubuntu, or says what to install.
#   bash test.sh              the default suites
#   bash test.sh --ignored    the slow ones (tens of minutes)
set -euo pipefail
cd "$(dirname "$0")"

has_libclang() { ls /usr/lib/llvm-*/lib/libclang*.so* /usr/lib/*/libclang*.so* /usr/lib64/libclang.so* >/dev/null 2>&1 || [ -n "${LIBCLANG_PATH:-}" ]; }

missing=()
command -v cmake >/dev/null || missing+=(cmake)
command -v c++ >/dev/null || missing+=(g++)
has_libclang || missing+=(libclang)
if [ "${#missing[@]}" -gt 0 ]; then
    as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
    if command -v apt-get >/dev/null && "${as_root[@]}" true 2>/dev/null; then
        "${as_root[@]}" apt-get update -qq
        # The package of libclang carries its version in its name: take the newest.
        libclang=$(apt-cache --names-only search '^libclang1-[0-9]+$' | cut -d' ' -f1 | sort -V | tail -n 1)
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            "${missing[@]/libclang/$libclang}" >/dev/null
    else
        echo "Please install: ${missing[*]} (cmake, a C++ compiler and libclang build the HiGHS solver), then run this again." >&2
        echo "Without them: cargo test --workspace" >&2
        exit 2
    fi
fi

features=(--features burn-remat-plan/highs)
if [ "${1:-}" = "--ignored" ]; then
    exec cargo test --release --workspace "${features[@]}" -- --ignored --nocapture
fi
exec cargo test --workspace "${features[@]}" "$@"
