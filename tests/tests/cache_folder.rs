//! What may happen to the folder of stored plans: whatever is in it, training gives the bits of plain Burn and ends, and touches no
//! file that is not its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burn_remat::{RematConfig, RematExt, RematReport, minimum_budget_with};
use burn_remat_examples::training::{Run, train};
use burn_remat_tests::Folder;

/// Steps of a training run, the first step after which a plan is waited for, and the budget in bytes.
const STEPS: usize = 9;
const SEEN: usize = 5;
const BUDGET: u64 = 220 << 10;
/// Tells another process of this test which folder to train with, and within which budget if it does not wait for a plan.
const FOLDER: &str = "BURN_REMAT_TEST_FOLDER";
const NAMED: &str = "BURN_REMAT_TEST_NAMED";

#[derive(Module, Debug)]
struct Tower {
    layers: Vec<Linear>,
}

fn training(device: &Device, seen: &mut dyn FnMut(usize, f32)) -> Run {
    let device = device.clone().autodiff();
    device.seed(5);
    let tower = Tower { layers: (0..6).map(|_| LinearConfig::new(16, 16).init(&device)).collect() };
    let loss = |tower: &Tower, _: usize| {
        let x = Tensor::<2>::full([192, 16], 0.5, &device);
        tower.layers.iter().fold(x, |x, layer| layer.forward(x).tanh().exp().log()).sum()
    };
    train(tower, STEPS, seen, loss).unwrap()
}

/// A training run with plans in `folder`.
fn trained(folder: &Path) -> (Run, RematReport) {
    trained_and(folder, |_| {})
}

fn trained_and(folder: &Path, after: impl Fn(usize)) -> (Run, RematReport) {
    let config = RematConfig::new(BUDGET).with_cache(folder).with_time_limit(Duration::from_millis(200));
    let device = Device::flex().remat(config).unwrap();
    let run = training(&device, &mut |step, _| {
        if step + 1 == SEEN {
            assert!(device.remat_wait_for_plan(Duration::from_secs(120)).unwrap());
        }
        after(step);
    });
    let report = device.remat_report().unwrap();
    assert_eq!((report.failure.as_ref(), report.tensors), (None, 0), "{report}");
    assert!(report.plan.as_ref().is_some_and(|plan| plan.steps_followed >= 2), "{report}");
    // Also if the plan comes from the folder: what was needed before it does not make the budget too small.
    assert!(!report.to_string().contains("too small"), "{report}");
    (run, report)
}

fn is_from_cache(report: &RematReport) -> bool {
    report.plan.as_ref().unwrap().from_cache
}

/// A new folder.
fn made() -> Folder {
    let folder = Folder::fresh();
    std::fs::create_dir_all(&folder.0).unwrap();
    folder
}

/// Where the plans are.
fn plans(folder: &Folder) -> PathBuf {
    folder.0.join("burn-remat-plans")
}

fn files(folder: &Folder) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(plans(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// All in one test, because training runs share the backend's generator of random numbers.
#[test]
fn whatever_is_done_to_the_folder_of_plans_a_training_gives_the_same_bits() {
    let _ = env_logger::try_init();
    let plain = training(&Device::flex(), &mut |_, _| {});
    a_folder_that_cannot_be_written_costs_only_the_plan(&plain);
    a_folder_that_disappears_is_made_again(&plain);
    files_that_somebody_has_been_at_are_not_used(&plain);
    two_processes_may_share_a_folder(&plain);
    another_process_keeps_what_a_dry_run_names();
    a_disk_without_room_leaves_no_half_files(&plain);
}

fn a_folder_that_cannot_be_written_costs_only_the_plan(plain: &Run) {
    let folder = made();
    let file = folder.0.join("a file");
    std::fs::write(&file, "mine").unwrap();
    // Nobody may write there, not even root.
    let read_only = PathBuf::from("/proc/self");
    for path in [file.clone(), file.join("below"), read_only] {
        let (run, report) = trained(&path);
        assert!(run.is_identical(plain) && !is_from_cache(&report), "{}: {report}", path.display());
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "mine");
}

fn a_folder_that_disappears_is_made_again(plain: &Run) {
    let folder = made();
    for at in [0, SEEN - 2, SEEN] {
        let (run, report) = trained_and(&folder.0, |step| {
            if step == at {
                let _ = std::fs::remove_dir_all(&folder.0);
            }
        });
        assert!(run.is_identical(plain), "removed after step {at}: {report}");
    }
    // A folder that existed when the plan was made contains it.
    let (run, _) = trained(&folder.0);
    let (again, report) = trained(&folder.0);
    assert!(run.is_identical(plain) && again.is_identical(plain), "{report}");
    assert!(is_from_cache(&report), "{report}");
}

fn files_that_somebody_has_been_at_are_not_used(plain: &Run) {
    let folder = made();
    let (run, report) = trained(&folder.0);
    assert!(run.is_identical(plain) && !is_from_cache(&report), "{report}");
    let found = files(&folder);
    let [file] = &found[..] else { panic!("one plan is stored: {found:?}") };
    let whole = std::fs::read(file).unwrap();
    let theirs = [folder.0.join("notes.json"), plans(&folder).join("notes.json"), plans(&folder).join("step-1.json")];
    theirs.iter().for_each(|path| std::fs::write(path, "mine").unwrap());
    let half = whole[..whole.len() / 2].to_vec();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    let deep = "[".repeat(1 << 20).into_bytes();
    for (what, bytes) in
        [("half", half), ("flipped", flipped), ("empty", Vec::new()), ("deep", deep), ("binary", vec![0xff; 4096])]
    {
        std::fs::write(file, bytes).unwrap();
        let (run, report) = trained(&folder.0);
        assert!(run.is_identical(plain), "{what}: {:?} {:?} {report}", run.losses, plain.losses);
        assert!(!is_from_cache(&report), "{what}: {report}");
        // It is made again.
        let (run, report) = trained(&folder.0);
        assert!(run.is_identical(plain) && is_from_cache(&report), "{what}: {report}");
    }
    std::fs::remove_file(file).unwrap();
    std::fs::create_dir(file).unwrap();
    let (run, report) = trained(&folder.0);
    assert!(run.is_identical(plain) && !is_from_cache(&report), "a folder in its place: {report}");
    assert!(theirs.iter().all(|path| std::fs::read_to_string(path).unwrap() == "mine"));
    assert!(files(&folder).iter().all(|path| path.extension().is_none_or(|end| end != "tmp")), "{:?}", files(&folder));
}

/// Another process that trains with the plans in `folder`; started through a shell if `limits` are set first.
fn another(folder: &Path, limits: Option<&str>) -> Child {
    command(folder, limits).spawn().unwrap()
}

fn command(folder: &Path, limits: Option<&str>) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut command = match limits {
        None => Command::new(program),
        Some(limits) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]).arg(program);
            shell
        }
    };
    command.args(["--exact", "the_other_process", "--include-ignored"]).env(FOLDER, folder);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn assert_succeeds(child: Child) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

fn two_processes_may_share_a_folder(plain: &Run) {
    let folder = made();
    let children: Vec<Child> = (0..2).map(|_| another(&folder.0, None)).collect();
    children.into_iter().for_each(assert_succeeds);
    assert_eq!(files(&folder).len(), 1);
    let (run, report) = trained(&folder.0);
    assert!(run.is_identical(plain) && is_from_cache(&report), "{report}");
}

/// The plan of the dry run is used as soon as its step comes again.
fn another_process_keeps_what_a_dry_run_names() {
    let folder = made();
    let config = RematConfig::default().with_cache(&folder.0);
    let needs = minimum_budget_with(&Device::flex(), config, |device| training(device, &mut |_, _| {})).unwrap();
    assert_eq!(files(&folder).len(), 1, "{:?}", files(&folder));
    println!("a dry run names {} bytes", needs.minimum_bytes);
    let mut child = command(&folder.0, None);
    assert_succeeds(child.env(NAMED, needs.minimum_bytes.to_string()).spawn().unwrap());
}

#[cfg(unix)]
fn a_disk_without_room_leaves_no_half_files(_plain: &Run) {
    let folder = made();
    // No file may be larger than one block, so writing a plan fails half way, as on a full disk.
    assert_succeeds(another(&folder.0, Some("trap '' XFSZ; ulimit -f 1")));
    assert_eq!(files(&folder), Vec::<PathBuf>::new());
}

#[cfg(not(unix))]
fn a_disk_without_room_leaves_no_half_files(_plain: &Run) {}

#[test]
#[ignore = "run in another process by whatever_is_done_to_the_folder_of_plans_a_training_gives_the_same_bits"]
fn the_other_process() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let plain = training(&Device::flex(), &mut |_, _| {});
    let Ok(named) = std::env::var(NAMED) else {
        let (run, report) = trained(Path::new(&folder));
        return assert!(run.is_identical(&plain), "{report}");
    };
    // Does not wait for a plan.
    let config = RematConfig::new(named.parse::<u64>().unwrap()).with_cache(&folder);
    let device = Device::flex().remat(config).unwrap();
    let run = training(&device, &mut |_, _| {});
    let report = device.remat_report().unwrap();
    assert!(run.is_identical(&plain), "{report}");
    // The first step sets up parameters, so the second step of the common kind is the third step.
    let planned = report.plan.as_ref().map_or(0, |plan| plan.steps_followed);
    assert!(report.steps_over_budget <= 3 && planned as usize >= STEPS - 3, "{report}");
}
