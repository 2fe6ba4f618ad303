//! Where and when figures were measured, and on which state of the code.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use burn_remat::DisplayBytes;
use serde_json::{Value, json};

/// The machine, the date and the state of the code.
#[derive(Clone, Debug)]
pub struct Machine {
    processor: Option<String>,
    processors: usize,
    memory_bytes: Option<u64>,
    compiler: Option<String>,
    commit: Option<String>,
    profile: &'static str,
    date: String,
}

impl Machine {
    /// This machine, now. What the system does not report stays unknown.
    pub fn here() -> Self {
        let memory_kib =
            field("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        let changed =
            output("git", &["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
        let commit = output("git", &["rev-parse", "--short=12", "HEAD"]);
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self {
            processor: field("/proc/cpuinfo", "model name"),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_kib.map(|kib| kib << 10),
            compiler: output("rustc", &["--version"]),
            commit: commit.map(|commit| if changed { commit + ", with changes" } else { commit }),
            profile: if cfg!(debug_assertions) { "development" } else { "release" },
            date: date(seconds / 86_400),
        }
    }

    /// One line for people.
    pub fn markdown(&self) -> String {
        let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
        format!(
            "Measured on {} at commit {}: {} cores ({}), {} of memory, {}, {} profile;",
            self.date,
            known(&self.commit),
            self.processors,
            known(&self.processor),
            known(&self.memory_bytes.map(|bytes| DisplayBytes(bytes).to_string())),
            known(&self.compiler),
            self.profile
        )
    }

    /// The same as JSON.
    pub fn json(&self) -> Value {
        json!({
            "date": self.date,
            "commit": self.commit,
            "processor": self.processor,
            "processors": self.processors,
            "memory_bytes": self.memory_bytes,
            "compiler": self.compiler,
            "profile": self.profile,
        })
    }
}

/// The first value of `key` in a file of lines such as `key: value`.
fn field(file: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// The output of a program, if it can be run and succeeds.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The date, in UTC, of a day counted from 1 January 1970.
fn date(day: u64) -> String {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970, day);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < days {
            break;
        }
        left -= days;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_dates() {
        for (day, expected) in
            [(0, "1970-01-01"), (59, "1970-03-01"), (789, "1972-02-29"), (11_016, "2000-02-29"), (20_818, "2026-12-31")]
        {
            assert_eq!(date(day), expected);
        }
    }
}
