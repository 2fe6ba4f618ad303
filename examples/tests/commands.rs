//! The programs as a user runs them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use burn::remote::{EndpointId, IrohHost, IrohRelays, RemoteHost};
use burn::tensor::{Device, Tensor};
use burn_remat_examples::device::name_under_test;

// ---- train

fn train(arguments: &[&str]) -> Output {
    let mut train = Command::new(env!("CARGO_BIN_EXE_train"));
    if !arguments.contains(&"--device") {
        train.args(["--device", &name_under_test()]);
    }
    train.args(arguments).output().expect("train starts")
}

#[test]
fn train_prints_a_verdict_and_writes_json() {
    let file = std::env::temp_dir().join(format!("burn-remat-train-{}.json", std::process::id()));
    let path = file.to_str().unwrap();
    let small = ["--model", "cnn", "--batch-size", "8", "--steps", "3", "--budget", "70%", "--json", path];
    let output = train(&small);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        text.contains("identical to plain Burn's, to the last bit") && text.contains("within the budget"),
        "{text}"
    );
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    let keys = [
        "model",
        "device",
        "batch_size",
        "steps",
        "budget_bytes",
        "floor_bytes",
        "peak_bytes",
        "store_all_peak_bytes",
        "step_ms",
        "store_all_step_ms",
        "plain_burn_step_ms",
        "ops",
        "recomputed_ops",
        "losses_identical",
    ];
    assert!(keys.iter().all(|key| !json[key].is_null()), "{json}");
    assert_eq!(json["losses_identical"], true);
    assert!(json["peak_bytes"].as_u64() <= json["budget_bytes"].as_u64());
    assert!(json["recomputed_ops"].as_u64() > Some(0));
}

#[test]
fn train_refuses_what_it_cannot_use_and_says_what_to_do() {
    for (arguments, expected) in [
        (["--budget", "8 XB"], "unit is unknown"),
        (["--budget", "-1"], "negative"),
        (["--budget", "150%"], "unlimited"),
        (["--device", "tpu"], "use flex"),
        (["--images", "/nowhere"], "/nowhere"),
        (["--batch-size", "0"], "batch-size"),
    ] {
        let output = train(&arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}

#[test]
fn a_strict_train_below_the_floor_names_the_floor() {
    let output = train(&["--model", "mlp", "--batch-size", "8", "--steps", "2", "--budget", "1 MiB", "--strict"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("below the floor") && text.contains("Set a budget of at least"), "{text}");
}

// ---- serve

/// A running server, stopped when it goes.
struct Server {
    child: Child,
    lines: Vec<String>,
}

impl Server {
    /// Starts `serve` and waits until it has printed `lines` lines.
    fn start(arguments: &[&str], lines: usize) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_serve"))
            .args(["--budget", "1 MiB", "--device", &name_under_test()])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("serve starts");
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let lines = stdout.lines().take(lines).map(|line| line.unwrap()).collect();
        Self { child, lines }
    }

    fn value(&self, prefix: &str) -> &str {
        self.lines.iter().find_map(|line| line.strip_prefix(prefix)).unwrap_or_else(|| panic!("{:?}", self.lines))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already gone is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn works(device: &Device) {
    let x = Tensor::<2>::full([32, 32], 0.5, device);
    assert_eq!((x.clone().matmul(x) + 1.0).mean().into_scalar::<f32>(), 9.0);
}

#[test]
fn a_served_device_wants_its_token() {
    let server = Server::start(&["--websocket", "127.0.0.1:0"], 2);
    let host = RemoteHost::websocket(server.value("serving on "));
    assert!(Device::remote_options(&host).init().is_err());
    let host = host.with_credential(server.value("token: "));
    works(&Device::remote_options(&host).init().unwrap());
}

#[test]
fn another_burn_program_reaches_the_device_by_its_environment() {
    let server = Server::start(&["--websocket", "127.0.0.1:0", "--allow-any"], 1);
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_burn_program", "--include-ignored"])
        .env("BURN_DEVICE", "remote")
        .env("BURN_REMOTE_ADDRESS", server.value("serving on "))
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

#[test]
#[ignore = "run by another_burn_program_reaches_the_device_by_its_environment"]
fn the_other_burn_program() {
    if std::env::var_os("BURN_REMOTE_ADDRESS").is_some() {
        works(&Device::default());
    }
}

#[test]
fn a_device_is_served_over_iroh() {
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Server::start(&["--port", &port.to_string(), "--no-relays"], 2);
    let id: EndpointId = server.value("serving over Iroh as ").parse().unwrap();
    let address = ([127, 0, 0, 1], port).into();
    let host = RemoteHost::iroh(IrohHost::new(id).with_address(address).with_relays(IrohRelays::Disabled));
    assert!(Device::remote_options(&host).init().is_err());
    let host = host.with_credential(server.value("token: "));
    works(&Device::remote_options(&host).init().unwrap());
}

#[test]
fn serve_says_what_it_cannot_do() {
    for arguments in [vec!["--budget", "none"], vec!["--budget", "1 MiB", "--device", "tpu"], vec![]] {
        let output = Command::new(env!("CARGO_BIN_EXE_serve")).args(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}
