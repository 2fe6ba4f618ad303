#!/usr/bin/env bash
# Runs the tests. They need the tools that build the HiGHS solver, and a Vulkan driver (Mesa's runs without a GPU). On Debian and Ubuntu this
# script installs what is missing; elsewhere it says what to install.
#   bash test.sh                          all suites on the CPU, then some of them through wgpu
#   bash test.sh --device flex            on the CPU only: builds a third less
#   bash test.sh --device wgpu            the end-to-end suites on another device: wgpu, vulkan or cuda
#   bash test.sh --device wgpu --short    some of these
#   bash test.sh --fusion                 the suite for Burn's kernel fusion, through wgpu unless --device names another GPU; needs a separate build
#   bash test.sh --ignored                the slow tests (tens of minutes); also with --device
# Other arguments are passed to cargo.
# Prints one line per suite, the whole output of suites that fail, and a summary. The full output is in target/test.log. With
# arguments for cargo, and with --ignored, it is also printed while the tests run.
set -euo pipefail
cd "$(dirname "$0")"

device=
part=default
rest=()
while [ "$#" -gt 0 ]; do
    case "$1" in
        --device) device="${2:?--device needs a name: flex, wgpu, vulkan or cuda}"; shift 2 ;;
        --short) part=short; shift ;;
        --fusion) part=fusion; shift ;;
        --ignored) part=ignored; shift ;;
        *) rest+=("$1"); shift ;;
    esac
done

if [ -z "$device" ] && [ "$part" = fusion ]; then
    device=wgpu
elif [ -z "$device" ]; then
    device=flex
    [ "$part" != default ] || [ "${#rest[@]}" -gt 0 ] || device=flex,wgpu
fi

has_libclang() { ls /usr/lib/llvm-*/lib/libclang*.so* /usr/lib/*/libclang*.so* /usr/lib64/libclang.so* >/dev/null 2>&1 || [ -n "${LIBCLANG_PATH:-}" ]; }
has_vulkan() { ls /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json >/dev/null 2>&1; }

missing=()
command -v cmake >/dev/null || missing+=(cmake)
command -v c++ >/dev/null || missing+=(g++)
has_libclang || missing+=(libclang)
case "$device:$(uname -s)" in
    *wgpu:Linux | vulkan:Linux) has_vulkan || missing+=(mesa-vulkan-drivers libvulkan1) ;;
esac
if [ "${#missing[@]}" -gt 0 ]; then
    as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
    if command -v apt-get >/dev/null && "${as_root[@]}" true 2>/dev/null; then
        "${as_root[@]}" apt-get update -qq
        # The name of the libclang package contains its version: take the newest.
        libclang=$(apt-cache --names-only search '^libclang1-[0-9]+$' | cut -d' ' -f1 | sort -V | tail -n 1)
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            "${missing[@]/libclang/$libclang}" >/dev/null
    else
        echo "Please install ${missing[*]}, then run this again. (cmake, a C++ compiler and libclang are needed to build the HiGHS" >&2
        echo "solver. To test without it: cargo test --workspace)" >&2
        exit 2
    fi
fi

if [[ "$part" = short || "$part" = fusion ]] && [ "$device" = flex ]; then
    echo "--$part needs one device other than the CPU, for example: bash test.sh --device wgpu --$part" >&2
    exit 2
fi

# All commands use the whole workspace with the same features, so nothing is built twice.
what=(--workspace --features burn-remat-plan/highs,burn-remat-examples/learner,burn-remat-examples/serve)
other="${device#flex}" && other="${other#,}"
[ -z "$other" ] || what+=(--features "burn-remat-tests/$other,burn-remat-examples/$other")
[ "$part" != fusion ] || what+=(--features burn-remat-tests/fusion)
[ "$part" != ignored ] || { what=(--release "${what[@]}"); rest+=(-- --ignored --nocapture); }
short=(clock faults layouts pool repeats)
end_to_end=(
    "${short[@]}" alternatives checkpoint commands engine learner macros models modules networks optimizers planned programs quantized quick rehearsal served several_machines
    stages steps threads
)

# Some fifty programs and suites each contain all of Burn.
mkdir -p target
built="${CARGO_TARGET_DIR:-target}" needs=16
mkdir -p "$built"
free=$((($(df -Pk "$built" | awk 'END { print $4 }') + $(du -sk "$built" | cut -f 1)) / 1048576))
[ "$free" -ge "$needs" ] || echo "The tests may need $needs GiB in $built, but only $free GiB are free. If the linker fails, this is the reason." >&2

log=target/test.log
: >"$log"
says=lines
[ "$part" != ignored ] && [ "${#rest[@]}" -eq 0 ] || says=everything

# Shortens cargo's output: one line per suite, the whole output of suites that fail, and everything else that cargo prints except the names of crates.
told() {
    awk -v on="$1" -v says="$says" '
        function line(text) { if (says != "everything") print text; fflush() }
        function lost() { if (suite != "") line(kept "  FAILED  " on ", " suite ": it ended without a result") }
        # When the linker fails, cargo prints all of its arguments before its error message.
        says != "everything" && / = note: +"cc" / { $0 = substr($0, 1, 100) " .." }
        { if (says == "everything") { print; fflush() } }
        /^ *Running / { lost(); suite = $0; sub(/^ *Running (unittests )?/, "", suite); sub(/ \(.*\/deps\//, " (", suite); kept = ""; next }
        /^ *Doc-tests / { lost(); suite = "examples in the documentation of " $2; kept = ""; next }
        /^test result: / {
            result = $0; sub(/^test result: [a-zA-Z]*\. /, "", result)
            # The output of a suite may be longer than some versions of awk can format.
            if ($3 == "ok.") line("  ok      " on ", " suite ": " result)
            else line(kept "  FAILED  " on ", " suite ": " result)
            suite = ""; kept = ""; next
        }
        suite != "" { kept = kept $0 "\n"; next }
        /^ *(Compiling|Checking|Executable|Fresh|Downloading|Downloaded|Updating|Locking|Blocking|Adding) / || /^$/ { next }
        { line($0) }
        END { lost() }
    '
}

# Counts the tests that passed, and names those that failed.
summary() {
    awk '
        /^test result: / { suites++; for (at = 4; at <= NF; at++) { if ($at ~ /^passed/) passed += $(at - 1)
            if ($at ~ /^failed/) failed += $(at - 1); if ($at ~ /^ignored/) ignored += $(at - 1) } }
        /^test .* FAILED$/ { names = names "  " $2 "\n" }
        / is skipped on / { skipped++ }
        END {
            printf "\n%d suites: %d tests passed, %d failed, %d only run with --ignored, %d do not apply to this device\n%s",
                suites, passed, failed, ignored, skipped, names
        }
    ' "$log"
    echo "$((SECONDS / 60)) min $((SECONDS % 60)) s; full output: $log"
}
trap summary EXIT

# A suite that hangs, for example because a driver has lost a thread, is stopped after many times as long as any takes, so that the others still get
# their line. Slow tests have no limit.
if [ "$part" != ignored ] && command -v timeout >/dev/null; then
    host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
    export "CARGO_TARGET_${host}_RUNNER=timeout --foreground --kill-after=10 1800"
fi

# Runs cargo's tests on a device, with these arguments. Their output is appended to a log.
tests() {
    local on="$1" says_to="$2"
    shift 2
    # All tests of a suite share the device's pool. Output is not captured, so that a message of a driver thread is not lost if the suite then hangs.
    [ "$on" = flex ] || export RUST_TEST_THREADS=1 RUST_TEST_NOCAPTURE=1
    BURN_REMAT_TEST_DEVICE="$on" cargo test --no-fail-fast "${what[@]}" "$@" 2>&1 | tee -a "$says_to" | told "$on"
}

# Runs suites on a device: all if none are named.
run() {
    local on="$1" suites=()
    shift
    for suite in "$@"; do suites+=(--test "$suite"); done
    echo "building the tests for $on"
    tests "$on" "$log" ${suites[@]+"${suites[@]}"} ${rest[@]+"${rest[@]}"}
}

# The names of all suites in these folders.
suites_in() {
    local folder file
    for folder in "$@"; do
        for file in "$folder"/tests/*.rs "$folder"/tests/*/main.rs; do
            file="${file%/main.rs}"
            [ ! -e "$file" ] || basename "$file" .rs
        done
    done | sort -u
}

# Runs everything, two suites at a time, since most of them use one processor. One lane has the end-to-end suites and those of other crates with
# the same names; the other has the rest, the examples in the documentation, and what runs on a second device.
in_two_lanes() {
    local second=target/test-2.log ended=0 one=() two=() suite
    : >"$second"
    echo "building the tests"
    cargo test --no-run "${what[@]}" 2>&1 | tee -a "$log" | told building
    for suite in $(suites_in tests); do two+=(--test "$suite"); done
    # `page_in_browser` needs a browser and a feature.
    for suite in $(comm -13 <(suites_in tests) <(suites_in burn-remat* examples tests/macros)); do
        [ "$suite" = page_in_browser ] || one+=(--test "$suite")
    done
    tests flex "$second" "${two[@]}" &
    # Of the programs, only this one has tests in itself: `--bins` would build a second copy of each example.
    tests flex "$log" --lib --bin remat-plan "${one[@]}" || ended=1
    tests flex "$log" --doc || ended=1
    [ -z "$other" ] || tests "$other" "$log" "${short[@]/#/--test=}" || ended=1
    wait %% || ended=1
    cat "$second" >>"$log" && rm "$second"
    return "$ended"
}

case "$device:$part:${#rest[@]}" in
    flex:default:0 | flex,*:default:0) in_two_lanes ;;
    flex:*) run flex ;;
    *:short:*) run "$device" "${short[@]}" ;;
    *:fusion:*) run "$device" fusion ;;
    *) run "$device" "${end_to_end[@]}" ;;
esac
