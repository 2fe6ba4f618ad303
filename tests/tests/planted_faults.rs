//! A backend that fails at the n-th call of any kind: the program gets an error that names the cause, or the run is
//! bit-identical; what was held is released; the device continues to work.
//!
//! Every case trains one small model on a device that has failed before, so each also tests that the previous one left
//! nothing behind.

mod faulty;
mod small;

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::Device;
use burn_remat::{AdvancedConfig, RematConfig, RematExt, remat_on};
use burn_remat_examples::device::is_flex;
use burn_remat_examples::training::Run;

use faulty::{CAUSE, Fault, Faulty, FaultyDevice, Kind, Moment};
use small::Small;

const STEPS: usize = 3;
/// Below this share an LSTM computes most operations ten times: testing a failure at each of them would take hours.
const LEAST_OF_LSTM: u64 = 66;

/// What may go wrong at each kind of call.
fn kinds(moment: Moment) -> &'static [Kind] {
    match moment {
        Moment::Run | Moment::Upload | Moment::Query => &[Kind::Panic, Kind::Delay],
        Moment::Read => &[Kind::Panic, Kind::Error, Kind::LatePanic, Kind::Delay],
        Moment::Sync => &[Kind::Panic, Kind::Error, Kind::Delay],
    }
}

/// A device under test: the backend with its faults, and the budget on top of it.
struct Bench {
    below: FaultyDevice,
    device: Device,
    expected: Run,
    train: fn(&Device, usize) -> Result<Run, String>,
    name: String,
}

/// The outcome of a training run. A panic counts as an error with its message: Burn panics where a signature cannot return an error.
fn outcome(bench: &Bench) -> Result<Run, String> {
    catch_unwind(AssertUnwindSafe(|| (bench.train)(&bench.device, STEPS))).unwrap_or_else(|payload| {
        Err(payload.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic without a message".to_owned()))
    })
}

impl Bench {
    /// With a budget that is a share, in percent, of what the training takes without a limit.
    fn new((name, train): Small, share: u64) -> Self {
        let expected = train(&Device::flex(), STEPS).unwrap();
        let unlimited = Device::flex().remat("unlimited").unwrap();
        train(&unlimited, STEPS).unwrap();
        let budget = unlimited.remat_report().unwrap().peak_bytes * share / 100;
        let below = FaultyDevice::new();
        let config = RematConfig::new(budget).without_cache().advanced(AdvancedConfig::without_planning);
        let device = remat_on::<Faulty>(below.clone(), config).unwrap();
        Self { below, device, expected, train, name: format!("{name} at {share}%") }
    }

    /// Asserts that nothing is held, as counted by the engine and by the backend itself.
    fn assert_released(&self, case: &str) {
        let report = self.device.remat_report().unwrap();
        assert_eq!((report.tensors, report.recipes, report.live_bytes), (0, 0, 0), "{case}: {report}");
        assert_eq!(self.below.held(), (0, 0), "{case}: the backend holds more than the engine knows of");
    }

    /// How many calls of each kind a complete training run makes.
    fn calls(&self) -> Vec<(Moment, u64)> {
        self.below.arm(None);
        assert!(outcome(self).unwrap().is_identical(&self.expected), "{}: without a fault", self.name);
        let calls = Moment::ALL.map(|moment| (moment, self.below.calls(moment))).to_vec();
        self.assert_released(&self.name);
        calls
    }

    /// One training run with one fault. Returns whether the fault occurred, and whether the program got an error.
    fn check(&self, fault: Fault) -> (bool, bool) {
        let case = format!("{}, {fault:?}", self.name);
        self.below.arm(Some(fault));
        let found = outcome(self);
        let (has_struck, has_failed) = (self.below.has_struck(), found.is_err());
        match found {
            Ok(run) => {
                assert!(run.is_identical(&self.expected), "{case}: different bits, and no error");
            }
            Err(error) => {
                assert!(error.contains(CAUSE), "{case}: the error does not name the cause: {error}");
                assert!(has_struck && fault.kind != Kind::Delay, "{case}: {error}");
            }
        }
        // The failure is reported once more by a sync or not at all, and is then over.
        self.below.arm(None);
        let _ = self.device.sync();
        assert!(self.device.sync().is_ok(), "{case}: the device does not recover");
        self.assert_released(&case);
        (has_struck, has_failed)
    }
}

/// Plants faults in the training of all models whose names contain the value of `BURN_REMAT_TEST_ONLY`, at calls picked by `chosen`. Returns how many
/// were planted, how many occurred and how many became errors.
fn plant(shares: &[u64], chosen: impl Fn(u64) -> Vec<u64>) -> (u64, u64, u64) {
    let only = std::env::var("BURN_REMAT_TEST_ONLY").unwrap_or_default();
    let (mut planted, mut struck, mut failed) = (0, 0, 0);
    for small in small::ALL.into_iter().filter(|(name, _)| name.contains(&only)) {
        for &share in shares {
            let bench = Bench::new(small, if small.0 == "lstm" { share.max(LEAST_OF_LSTM) } else { share });
            for (moment, calls) in bench.calls() {
                println!("{}: {calls} calls of the kind {moment:?}, after {planted} faults", bench.name);
                for at in chosen(calls) {
                    for &kind in kinds(moment) {
                        let (has_struck, has_failed) = bench.check(Fault { moment, at, kind });
                        planted += 1;
                        struck += u64::from(has_struck);
                        failed += u64::from(has_failed);
                    }
                }
            }
            // After all that, it trains as on the first day.
            assert!(outcome(&bench).unwrap().is_identical(&bench.expected), "{}", bench.name);
        }
    }
    (planted, struck, failed)
}

/// Silences the output of panics: thousands are planted.
fn quietly<T>(work: impl FnOnce() -> T) -> T {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        if !text.contains(CAUSE) {
            eprintln!("{text}");
        }
    }));
    let done = work();
    let _ = std::panic::take_hook();
    done
}

/// Up to `count` of the numbers below `below`, spread evenly.
fn spread(below: u64, count: u64) -> Vec<u64> {
    let count = count.min(below);
    (0..count).map(|at| at * below / count).collect()
}

#[test]
fn a_backend_that_panics_in_a_sync_takes_no_thread_with_it() {
    let below = FaultyDevice::new();
    let device = remat_on::<Faulty>(below.clone(), "unlimited").unwrap();
    below.arm(Some(Fault { moment: Moment::Sync, at: 0, kind: Kind::Panic }));
    let error = quietly(|| device.sync()).unwrap_err().to_string();
    assert!(error.contains(CAUSE), "{error}");
    assert!(device.sync().is_ok());
}

#[test]
fn a_fault_at_any_moment_is_an_error_with_its_cause_or_changes_nothing() {
    if !is_flex("a_fault_at_any_moment_is_an_error_with_its_cause_or_changes_nothing", "faults are planted over Flex") {
        return;
    }
    let (planted, _, failed) = quietly(|| plant(&[75], |calls| spread(calls, 5)));
    println!("{planted} faults, {failed} of them reported as errors");
    assert!(failed > planted / 5, "{failed} of {planted} faults were seen");
}

#[test]
#[ignore = "every call of every training run at three budgets: an hour and a half"]
fn a_fault_at_every_moment_is_an_error_with_its_cause_or_changes_nothing() {
    let (planted, struck, failed) = quietly(|| plant(&[200, 75, 50], |calls| (0..calls).collect()));
    println!("{planted} faults, {struck} occurred, {failed} of them reported as errors");
}
