#!/usr/bin/env bash
# Runs Burn's own suite of backend tests on a remat device, and beside it on plain Flex and on a stock group of one.
#   bash tests/burn_backend_tests.sh CHECKOUT [FOLDER]
# CHECKOUT is a checkout of github.com/tracel-ai/burn at the release whose version `Cargo.toml` names, or near it; it is only read.
# FOLDER (default: a temporary one, deleted at the end) gets the tests, a build and the logs.
#
# Burn's tests ask for the default device. So they are built against the crates of this project's lock file, with one function of
# `burn-dispatch` changed in a copy: where it chooses the default device, it takes what the test program has named. That is all that is
# changed; nothing of Burn's is kept here.
#
# What has changed between the checkout and the release is left out by name, where it does not compile. Ends with a table: tests passed and failed on each
# device, and by name what fails on a remat device and passes on the group.
#
# Takes some ten minutes to build on two cores, a minute or two to run, and 3 GB in FOLDER.
set -euo pipefail
project=$(cd "$(dirname "$0")/.." && pwd)
checkout=$(cd "${1:?give a checkout of github.com/tracel-ai/burn}" && pwd)
if [ -n "${2:-}" ]; then
    mkdir -p "$2"
    work=$(cd "$2" && pwd)
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
version=$(sed -n 's/^burn = { version = "=\([^"]*\)".*/\1/p' "$project/Cargo.toml")
tests=$checkout/crates/burn-backend-tests
[ -d "$tests" ] || { echo "$checkout has no crates/burn-backend-tests" >&2; exit 2; }

# The sources of the crate that chooses the default device.
cargo fetch --quiet --manifest-path "$project/Cargo.toml"
dispatch=$(cargo metadata --format-version 1 --manifest-path "$project/Cargo.toml" |
    python3 -c 'import json, os, sys; print(next(os.path.dirname(p["manifest_path"]) for p in json.load(sys.stdin)["packages"] if p["name"] == "burn-dispatch"))')
rm -rf "$work/suite"
# Changed once for a release: all that is built rests on it.
if [ "$(cat "$work/dispatch/version" 2>/dev/null)" != "$version" ]; then
    rm -rf "$work/dispatch"
    cp -r "$dispatch" "$work/dispatch"
    chmod -R u+w "$work/dispatch"
    python3 - "$work/dispatch" <<'END'
import sys, pathlib
folder = pathlib.Path(sys.argv[1])
device = folder / "src/device.rs"
text = device.read_text()
head = "fn default() -> Self {\n"
at = text.index(head, text.index("impl Default for DispatchDevice")) + len(head)
text = text[:at] + "        if let Some(named) = crate::NAMED_DEFAULT.get() {\n            return named.clone();\n        }\n" + text[at:]
device.write_text(text)
lib = folder / "src/lib.rs"
lib.write_text(lib.read_text() + "\n/// The default device that a test program has named.\npub static NAMED_DEFAULT: std::sync::OnceLock<DispatchDevice> = std::sync::OnceLock::new();\n")
END
    echo "$version" >"$work/dispatch/version"
fi

mkdir -p "$work/suite/src"
cp -r "$tests/tests" "$work/suite/tests"
# `might_panic`, which some tests carry, is a macro of that crate.
mkdir -p "$work/suite/macros/src"
cp "$tests/src/lib.rs" "$work/suite/macros/src/lib.rs"
cat >"$work/suite/macros/Cargo.toml" <<END
[package]
name = "burn-backend-tests"
version = "0.0.0"
edition = "2024"
[lib]
proc-macro = true
[dependencies]
proc-macro2 = "1"
quote = "1"
syn = { version = "2", features = ["full"] }
END
# Modules of `burn-tensor` that have become crates.
find "$work/suite/tests" -name '*.rs' -exec sed -i -E \
    -e 's/^( *)use burn_tensor::(linalg|signal);/\1use burn_\2 as \2;/' \
    -e 's/burn_tensor::(linalg|signal)/burn_\1/g' \
    -e 's/^( *)use burn_tensor::\{(.*), (linalg|signal)\};/\1use burn_tensor::{\2};\n\1use burn_\3 as \3;/' \
    -e 's/^( *)use burn_tensor::\{(.*), (linalg|signal)::(\w+)(.*)\};/\1use burn_tensor::{\2\5};\n\1use burn_\3::\4;/' {} +
rm -rf "$work/suite/tests/"{cubecl,fusion,cubecl.rs,graph_capture.rs,memory_cleaning.rs}
cat >"$work/suite/Cargo.toml" <<END
[package]
name = "suite"
version = "0.0.0"
edition = "2024"
[workspace]
[features]
default = ["flex", "std", "quantization"]
flex = []
std = []
quantization = []
[dependencies]
burn-backend-tests = { path = "macros" }
burn = { version = "=$version", default-features = false, features = ["std", "autodiff", "extension", "flex", "group"] }
burn-dispatch = { version = "=$version", default-features = false }
burn-tensor = { version = "=$version", default-features = false, features = ["std", "autodiff", "flex"] }
burn-backend = { version = "=$version" }
burn-autodiff = { version = "=$version", default-features = false, features = ["std", "export_tests"] }
burn-linalg = { version = "=$version", default-features = false, features = ["std", "flex", "router"] }
burn-signal = { version = "=$version", default-features = false, features = ["std", "autodiff", "flex", "router"] }
burn-remat = { path = "$project/burn-remat" }
ctor = "0.10"
num-traits = "0.2"
rand = "0.10"
serial_test = "3"
[patch.crates-io]
burn-dispatch = { path = "../dispatch" }
END
# What computes is optimised, as in this project's own tests.
awk '/^\[/ { on = /^\[profile\.dev[].]/ } on' "$project/Cargo.toml" >>"$work/suite/Cargo.toml"
cat >"$work/suite/src/lib.rs" <<'END'
//! The device under test, by the environment variable `SUITE_DEVICE`.
use burn::tensor::Device;
use burn_remat::{RematConfig, RematExt};

pub fn name_device() {
    let flex = || burn_dispatch::DispatchDevice::Flex(Default::default());
    let flex = Device::new(flex());
    let remat = |budget: &str| flex.remat(RematConfig::new(budget).without_cache()).expect("a remat device");
    let device = match std::env::var("SUITE_DEVICE").as_deref() {
        Ok("group") => Device::group_options(&[flex]).init().expect("a group of one"),
        Ok("ample") => remat("1 GiB"),
        // Less than any tensor takes: whatever has a recipe goes as soon as it is made.
        Ok("tiny") => remat("1"),
        _ => flex,
    };
    burn_dispatch::NAMED_DEFAULT.set(device.as_dispatch().clone()).expect("named once");
}
END
cat >"$work/suite/tests/common/backend.rs" <<'END'
use super::{FloatElem, IntElem};
use burn_tensor::Element;

#[ctor::ctor(unsafe)]
fn init_device() {
    suite::name_device();
    let config = burn_tensor::DeviceConfig::default()
        .float_dtype(<FloatElem as Element>::dtype())
        .int_dtype(<IntElem as Element>::dtype());
    burn_tensor::Device::default().configure(config).unwrap();
}

#[allow(unused)]
pub mod prelude {
    pub use burn_tensor::Tensor;
    pub type TestTensor<const D: usize> = Tensor<D>;
    pub type TestTensorInt<const D: usize> = Tensor<D, burn_tensor::Int>;
    pub type TestTensorBool<const D: usize> = Tensor<D, burn_tensor::Bool>;
}
#[allow(unused)]
pub use prelude::*;
END

cd "$work/suite"
cp "$project/Cargo.lock" Cargo.lock
export CARGO_TARGET_DIR=$work/target
suites=(tensor autodiff)
# Where the checkout is of another day than the release, some tests do not compile. Functions in which the compiler finds errors are taken out, until it
# finds none.
builds() {
    cargo test --quiet --no-run --message-format json --test "$1" >"$work/messages.json" 2>"$work/build.log"
}
: >"$work/left_out"
for suite in "${suites[@]}"; do
    echo "building: $suite"
    for round in $(seq 12); do
        ! builds "$suite" || break
        [ "$round" -lt 12 ] || { cat "$work/build.log" >&2; exit 2; }
        python3 - "$work/messages.json" <<'END' | tee -a "$work/left_out" || { tail -n 20 "$work/build.log" >&2; exit 2; }
import collections, json, pathlib, re, sys

lines_at_fault = collections.defaultdict(set)
for line in open(sys.argv[1]):
    message = json.loads(line)
    if message.get("reason") != "compiler-message" or message["message"]["level"] != "error":
        continue
    for span in message["message"]["spans"]:
        # Where a macro is at fault, its caller.
        while span.get("expansion") and not span["file_name"].startswith("tests/"):
            span = span["expansion"]["span"]
        if span["is_primary"]:
            lines_at_fault[pathlib.Path(span["file_name"])].add(span["line_start"] - 1)
if not lines_at_fault:
    sys.exit("the build fails for another reason")


def function_around(lines, at):
    """First and last line of the innermost function around a line, with what stands before it."""
    for begin in range(at, -1, -1):
        head = re.match(r"( *)(pub(\(.*?\))? )?(async )?fn (\w+)", lines[begin])
        if not head:
            continue
        end = next(k for k in range(begin, len(lines)) if lines[k].rstrip() == head[1] + "}")
        if end >= at:
            while begin and re.match(r"\s*(#\[|//)", lines[begin - 1]):
                begin -= 1
            return begin, end, head[5]
    return at, at, lines[at].strip()


for path, faults in sorted(lines_at_fault.items()):
    lines = path.read_text().splitlines()
    spans = {function_around(lines, at) for at in faults}
    for begin, end, name in sorted(spans, reverse=True):
        del lines[begin : end + 1]
        print(f"    does not compile: {path.resolve().relative_to(pathlib.Path.cwd())}: {name}")
    path.write_text("\n".join(lines) + "\n")
END
    done
done
for device in flex group ample tiny; do
    for suite in "${suites[@]}"; do
        log=$work/$device-$suite
        echo "$device: $suite"
        SUITE_DEVICE=$device timeout 1800 cargo test --quiet --test "$suite" -- --test-threads 2 --format pretty >"$log.log" 2>"$log.errors" || true
        grep '^test result' "$log.log" || echo "    did not run to the end: see $log.log and $log.errors"
    done
    for outcome in ok FAILED; do
        for suite in "${suites[@]}"; do
            sed -n "s/^test \(.*\) \.\.\. $outcome\$/$suite: \1/p" "$work/$device-$suite.log"
        done | sort >"$work/$device.$outcome"
    done
done
echo
echo "$(wc -l <"$work/left_out") functions that do not compile were left out"
for device in flex group ample tiny; do
    echo "$device: $(wc -l <"$work/$device.ok") passed, $(wc -l <"$work/$device.FAILED") failed"
done
# All tests share a device, and its `sync` tells of a failure whoever has caused it: tests of what panics may fail others that sync. So what differs is run
# once more, alone.
status=0
for device in ample tiny; do
    comm -23 "$work/group.ok" "$work/$device.ok" | while IFS=: read -r suite name; do
        if SUITE_DEVICE=$device cargo test --quiet --test "$suite" -- --exact "${name# }" </dev/null >"$work/alone.log" 2>&1; then
            echo "passes alone on a remat device ($device), and not beside the others: $suite: ${name# }"
        else
            echo "passes on a group of one and not on a remat device ($device): $suite: ${name# }"
        fi
    done | tee "$work/$device.worse"
    ! grep -q '^passes on' "$work/$device.worse" || status=1
done
[ "$(wc -l <"$work/group.ok")" -gt 0 ] || { echo "no test ran" >&2; status=2; }
exit $status
