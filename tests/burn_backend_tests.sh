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
# Ends with a table: tests passed and failed on each device, and by name what fails on a remat device and passes on the group.
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
rm -rf "$work/dispatch" "$work/suite"
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
burn-remat = { path = "$project/burn-remat" }
ctor = "0.10"
num-traits = "0.2"
rand = "0.10"
serial_test = "3"
[patch.crates-io]
burn-dispatch = { path = "../dispatch" }
[profile.dev]
debug = false
[profile.dev.package."*"]
opt-level = 1
END
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
suites=()
for file in tests/*.rs; do suites+=("$(basename "$file" .rs)"); done
for device in flex group ample tiny; do
    for suite in "${suites[@]}"; do
        echo "$device: $suite"
        SUITE_DEVICE=$device cargo test --quiet --test "$suite" -- --test-threads 2 --format pretty >"$work/$device-$suite.log" 2>&1 || true
    done
    cat "$work/$device"-*.log | sed -n 's/^test \(.*\) \.\.\. ok$/\1/p' | sort >"$work/$device.passed"
    cat "$work/$device"-*.log | sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' | sort >"$work/$device.failed"
done
echo
for device in flex group ample tiny; do
    echo "$device: $(wc -l <"$work/$device.passed") passed, $(wc -l <"$work/$device.failed") failed"
done
status=0
for device in ample tiny; do
    worse=$(comm -23 "$work/group.passed" "$work/$device.passed")
    [ -z "$worse" ] || { echo "passes on a group of one and not on a remat device ($device):"; echo "$worse"; status=1; }
done
[ "$(wc -l <"$work/group.passed")" -gt 0 ] || { echo "no test ran" >&2; status=2; }
exit $status
