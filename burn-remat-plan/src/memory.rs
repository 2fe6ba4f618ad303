//! How much memory this process may still use.
//!
//! Method: the least of the amounts that the system reports. On Linux, these are the machine's available memory
//! (`/proc/meminfo`), what the process's control groups leave of their limits (both versions, each group and those above
//! it), and what a limit on the address space leaves (`ulimit -v`). Elsewhere, or if none of these can be read, it is a
//! fixed amount.
//!
//! Everything is read again on each call, because other programs come and go. That takes about ten microseconds.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Used if the system reports nothing.
const UNKNOWN: u64 = 4 << 30;

/// The share of the free memory that a planner may take by default.
const SHARE: u64 = 4;

/// A quarter of the memory that is free now: the default limit of a planner.
pub fn default_limit() -> u64 {
    free_bytes() / SHARE
}

/// Bytes that this process may still use; 4 GiB if the system does not say.
pub fn free_bytes() -> u64 {
    let known = available_on_machine().into_iter().chain(left_by_groups()).chain(left_of_address_space());
    known.min().unwrap_or(UNKNOWN)
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

fn available_on_machine() -> Option<u64> {
    available_in(&read_to_string("/proc/meminfo").ok()?)
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    number(line.trim().strip_suffix("kB")?)?.checked_mul(1024)
}

/// What each control group of the process, and each above it, has left.
fn left_by_groups() -> impl Iterator<Item = u64> {
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let files: Vec<_> = groups.lines().filter_map(files_of_group).collect();
    files.into_iter().flat_map(|Group { root, group, limit, used }| {
        let folders: Vec<PathBuf> = group.ancestors().map(|folder| root.join(folder)).collect();
        folders.into_iter().filter_map(move |folder| {
            let read = |name: &str| number(&read_to_string(folder.join(name)).ok()?);
            // `max`, which means no limit, is not a number. What was read from files lately counts as used, but makes room if it has to.
            let files =
                read_to_string(folder.join("memory.stat")).ok().and_then(|stat| idle_files_in(&stat)).unwrap_or(0);
            Some(read(limit)?.saturating_sub(read(used)?.saturating_sub(files)))
        })
    })
}

/// Bytes of files that a group keeps in memory and has not used lately.
fn idle_files_in(stat: &str) -> Option<u64> {
    let of = |name: &str| stat.lines().find_map(|line| number(line.strip_prefix(name)?));
    of("total_inactive_file ").or_else(|| of("inactive_file "))
}

/// A control group with a limit on memory.
#[derive(Debug, PartialEq)]
struct Group {
    /// Where the groups are.
    root: PathBuf,
    group: PathBuf,
    /// Names of the files with its limit and its usage.
    limit: &'static str,
    used: &'static str,
}

/// The group of a line of `/proc/self/cgroup` (`0::/user.slice`, `5:memory:/job`).
fn files_of_group(line: &str) -> Option<Group> {
    let (number, rest) = line.split_once(':')?;
    let (controllers, group) = rest.split_once(':')?;
    let group = Path::new(group.trim_start_matches('/')).to_path_buf();
    if number == "0" && controllers.is_empty() {
        let root = PathBuf::from("/sys/fs/cgroup");
        return Some(Group { root, group, limit: "memory.max", used: "memory.current" });
    }
    let is_memory = controllers.split(',').any(|name| name == "memory");
    let root = PathBuf::from("/sys/fs/cgroup/memory");
    is_memory.then_some(Group { root, group, limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes" })
}

fn left_of_address_space() -> Option<u64> {
    let limit = address_limit_in(&read_to_string("/proc/self/limits").ok()?)?;
    let status = read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let used = number(line.trim().strip_suffix("kB")?)?.checked_mul(1024)?;
    Some(limit.saturating_sub(used))
}

fn address_limit_in(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    // `unlimited` is not a number.
    number(line.split_whitespace().next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_writes_is_understood() {
        let meminfo = "MemTotal:       24684088 kB\nMemFree:         1000 kB\nMemAvailable:       2048 kB\n";
        assert_eq!(available_in(meminfo), Some(2 << 20));
        let limits =
            "Limit       Soft Limit   Hard Limit   Units\nMax address space   4096000000   unlimited   bytes\n";
        assert_eq!(address_limit_in(limits), Some(4_096_000_000));
        assert_eq!(address_limit_in("Max address space   unlimited   unlimited   bytes\n"), None);
        let Group { root, group, limit, .. } = files_of_group("0::/user.slice/job").unwrap();
        assert_eq!((root.join(group), limit), (PathBuf::from("/sys/fs/cgroup/user.slice/job"), "memory.max"));
        let Group { root, group, limit, .. } = files_of_group("5:cpu,memory:/job").unwrap();
        assert_eq!((root.join(group), limit), (PathBuf::from("/sys/fs/cgroup/memory/job"), "memory.limit_in_bytes"));
        assert_eq!(files_of_group("3:cpuset:/"), None);
    }

    #[test]
    fn some_memory_is_free() {
        assert!(free_bytes() > 0 && default_limit() <= free_bytes());
    }
}
