//! `serve` as a user runs it: who may connect, over which transport, and that step marks reach the device.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use burn::remote::{EndpointId, IrohHost, IrohRelays, RemoteHost};
use burn::tensor::{Device, Tensor};
use burn_remat::RematExt;
use burn_remat_examples::device::name_under_test;

/// A running server, stopped when dropped.
struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
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
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let lines = stdout.by_ref().lines().take(lines).map(|line| line.unwrap()).collect();
        Self { child, stdout, lines }
    }

    fn value(&self, prefix: &str) -> &str {
        self.lines.iter().find_map(|line| line.strip_prefix(prefix)).unwrap_or_else(|| panic!("{:?}", self.lines))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may already have stopped.
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

#[cfg(unix)]
#[test]
fn marks_of_steps_reach_a_served_device() {
    let mut server = Server::start(&["--websocket", "127.0.0.1:0", "--allow-any"], 1);
    let device = Device::remote_options(&RemoteHost::websocket(server.value("serving on "))).init().unwrap();
    // Not sent yet: an unknown operation would end the session of any other remote device.
    device.remat_mark_step();
    device.remat_enable_remote_marks();
    for _ in 0..6 {
        device.remat_mark_step();
        works(&device);
    }
    let id = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    let mut report = String::new();
    server.stdout.read_to_string(&mut report).unwrap();
    let steps = report.lines().find_map(|line| line.strip_prefix("steps")).unwrap_or_else(|| panic!("{report}"));
    assert!(steps.trim().starts_with("5,"), "{report}");
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
