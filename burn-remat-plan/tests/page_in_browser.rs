//! The HTML page in a real browser: it opens without an error, its pictures, slider, keys and table work at two sizes, and it makes
//! no network requests.
//!
//! Needs Chromium, Chrome or Firefox, found by its usual names or named with its arguments; without one the test says so and is skipped:
//!
//! ```text
//! BURN_REMAT_BROWSER="chromium --no-sandbox" cargo test -p burn-remat-plan --test page_in_browser -- --ignored --nocapture
//! ```
//!
//! Method: a server on this machine gives the browser one document, which holds the page in a frame and a script (`checks.js`) that uses it.
//! The script sends what it finds wrong. Everything that the browser requests goes through the server, which records it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use burn_remat_plan::generate::{Options, by_name};
use burn_remat_plan::page::{Page, Run};
use burn_remat_plan::planners::StoreAll;
use burn_remat_plan::{Graph, Request, minimum, registry, solve};

const CHECKS: &str = include_str!("page_in_browser/checks.js");
/// Comes before everything else in the page and collects what goes wrong in it.
const WATCH: &str = "<head><script>var troubles = [];
    addEventListener('error', (event) => troubles.push('error: ' + event.message));
    document.addEventListener('securitypolicyviolation', (event) => troubles.push('request: ' + event.blockedURI));
</script>";
const BROWSERS: [&str; 5] = ["chromium", "chromium-browser", "google-chrome", "chrome", "firefox"];
const PATIENCE: Duration = Duration::from_secs(120);

/// The page of a small transformer at several budgets.
fn page() -> String {
    let graph: Graph = by_name("gpt", &Options { depth: 4, ..Options::default() }).unwrap();
    let (least, most) = (minimum(&graph), StoreAll::peak(&graph));
    let planned = |budget: u64| {
        let found = solve(&*registry::planner("online").unwrap(), &graph, &Request::new(budget)).ok()?;
        Some(Run::new(&graph, "online", found.outcome.plan?))
    };
    let middle = least.achieved + (most - least.achieved) / 2;
    let mut page = Page::new(&graph).budget(least.achieved, Run::new(&graph, "minimum", least.plan.clone()));
    page = page.plan(planned(middle).unwrap(), Some(middle));
    for part in 1..8 {
        let budget = least.achieved + (most - least.achieved) * part / 8;
        page = planned(budget).into_iter().fold(page, |page, run| page.budget(budget, run));
    }
    page.html()
}

/// A browser that runs without a window, and its folder.
fn browser(url: &str) -> Option<Child> {
    let named = std::env::var("BURN_REMAT_BROWSER").ok();
    let found = || BROWSERS.into_iter().find(|name| Command::new(name).arg("--version").output().is_ok());
    let words = named.or_else(|| found().map(str::to_owned))?;
    let mut words = words.split_whitespace();
    let program = words.next()?;
    let profile = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("browser-{}", std::process::id()));
    std::fs::create_dir_all(&profile).unwrap();
    let mut command = Command::new(program);
    command.args(words).arg("--headless");
    if program.contains("firefox") {
        command.arg("--no-remote").arg("--profile").arg(&profile);
    } else {
        command.args(["--disable-gpu", "--no-first-run"]).arg(format!("--user-data-dir={}", profile.display()));
    }
    let command = command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Some(command.spawn().unwrap_or_else(|error| panic!("{program}: {error}")))
}

/// Reads a request: its path without what follows a `?`, and its body.
fn request(stream: &TcpStream) -> Option<(String, String)> {
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split_whitespace().nth(1)?.split('?').next()?.to_owned();
    let mut length = 0;
    loop {
        line.clear();
        if reader.read_line(&mut line).ok()? <= 2 {
            break;
        }
        if let Some(number) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = number.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((path, String::from_utf8(body).ok()?))
}

fn answer(mut stream: TcpStream, text: &str) {
    let head = format!("Content-Type: text/html; charset=utf-8\r\nContent-Length: {}", text.len());
    // The browser may have closed the connection, which is no error.
    let _ = write!(stream, "HTTP/1.1 200 OK\r\n{head}\r\nConnection: close\r\n\r\n{text}");
}

#[test]
#[ignore = "needs a browser"]
fn the_page_works_in_a_browser() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let Some(mut child) = browser(&format!("http://{}/", listener.local_addr().unwrap())) else {
        println!("skipped: no browser was found; name one in BURN_REMAT_BROWSER");
        return;
    };
    let page = page().replacen("<head>", WATCH, 1);
    let outer = format!(
        "<!doctype html><meta charset=utf-8><link rel=icon href=data:,><title>test</title><iframe></iframe><script>{CHECKS}</script>"
    );
    let start = Instant::now();
    let (mut paths, mut result) = (BTreeSet::new(), None);
    while result.is_none() && start.elapsed() < PATIENCE {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        stream.set_nonblocking(false).unwrap();
        let Some((path, body)) = request(&stream) else { continue };
        match path.as_str() {
            "/" => answer(stream, &outer),
            "/page" => answer(stream, &page),
            "/result" => {
                answer(stream, "");
                result = Some(body);
            }
            _ => answer(stream, ""),
        }
        paths.insert(path);
    }
    let _ = child.kill();
    let _ = child.wait();
    let result = result.unwrap_or_else(|| panic!("the browser did not answer; it requested {paths:?}"));
    let failures: Vec<String> = serde_json::from_str(&result).unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let asked: Vec<&str> = paths.iter().map(String::as_str).collect();
    assert_eq!(asked, ["/", "/page", "/result"]);
}
