//! One model on two served devices at once, as `several-machines` trains it with Burn's `Learner`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use burn_remat_examples::device::name_under_test;
use burn_remat_examples::training::is_about;

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A running `serve`, stopped when dropped.
struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    address: String,
}

impl Server {
    fn start(budget: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_serve"))
            .args(["--websocket", "127.0.0.1:0", "--allow-any", "--budget", budget, "--device", &name_under_test()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("serving on ").unwrap().to_owned();
        Self { child, stdout, address }
    }

    /// Asks it to end as an operator would, and returns the report that it prints.
    fn report(mut self) -> String {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let mut report = String::new();
        self.stdout.read_to_string(&mut report).unwrap();
        assert!(self.child.wait().unwrap().success(), "{report}");
        report
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may already have stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Losses of the epochs that `several-machines` printed for `split`.
fn losses<'a>(text: &'a str, split: &str) -> Vec<&'a str> {
    let prefix = format!("{split} loss of epoch ");
    text.lines().filter_map(|line| line.strip_prefix(&prefix)?.split(": ").nth(1)).collect()
}

/// Starts `several-machines` on two servers, and kills it if it takes longer than `limit`.
fn on_servers(servers: &[Server; 2], strategy: &str, limit: Duration) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_several-machines"))
        .args(["--server", &servers[0].address, "--server", &servers[1].address])
        .args(["--epochs", "2", "--batch-size", "8", "--quick", "--strategy", strategy])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > limit {
            child.kill().unwrap();
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    child.wait_with_output().unwrap()
}

/// Trains on two servers with a budget each; returns what the program printed and both reports.
fn trained(budget: &str, strategy: &str) -> (String, [String; 2]) {
    let servers = [Server::start(budget), Server::start(budget)];
    // On a GPU's software driver the longest one takes some minutes.
    let limit = if name_under_test() == "flex" { 300 } else { 1200 };
    let output = on_servers(&servers, strategy, Duration::from_secs(limit));
    let text = text(&output);
    assert!(output.status.success(), "{text}");
    let reports = servers.map(Server::report);
    println!("{budget}, {strategy}\n{text}\n{}\n{}", reports[0], reports[1]);
    (text, reports)
}

#[cfg(unix)]
#[test]
fn two_servers_train_one_model_within_their_budgets() {
    for strategy in ["main", "sharded", "ddp"] {
        let (unlimited, _) = trained("unlimited", strategy);
        let (limited, reports) = trained("20 MiB", strategy);
        for split in ["train", "valid"] {
            let (losses, expected) = (losses(&limited, split), losses(&unlimited, split));
            assert_eq!((losses.len(), expected.len()), (2, 2), "{limited}");
            let value = |loss: &str| loss.parse::<f64>().unwrap();
            // GPUs add up the gradient of an embedding in a random order, so plain Burn also differs from itself there.
            let alike = |(a, b): (&&str, &&str)| is_about(value(a), value(b));
            let same = match name_under_test().as_str() {
                "flex" => losses == expected,
                _ => losses.iter().zip(&expected).all(alike),
            };
            assert!(same, "a budget must not change results: {losses:?}, {expected:?}");
        }
        let values: Vec<f64> = losses(&limited, "train").iter().map(|loss| loss.parse().unwrap()).collect();
        assert!(values[1] < values[0], "the loss does not fall: {values:?}");
        for report in reports {
            let evictions = report.lines().find_map(|line| line.strip_prefix("evictions")).unwrap();
            assert!(evictions.trim() != "0" && report.contains(", 0 over budget"), "{report}");
        }
    }
}
