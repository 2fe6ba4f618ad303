//! The folder in which plans are kept for other processes: one of our own, inside the one that the user names. Other files there are left alone.
//!
//! A file is written under another name and then renamed, so that no reader sees half a file, whichever devices and processes there are. If there are too
//! many files, or they take too much space, the oldest are removed. A failure costs only the time to plan again, so it is logged and is not an error.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// How many of our files, and how many bytes, there may be before the oldest are removed.
const MOST_FILES: usize = 500;
const MOST_BYTES: u64 = 256 << 20;
const OWN_FOLDER: &str = "burn-remat-plans";
/// What the names of our files begin with, and how many parts follow. The last part is a shortened [`digest`].
const NAMES: [(&str, usize); 2] = [("step-", 3), ("dry-run-", 4)];

/// FNV-1a, 64 bits: the same on every machine and in every version.
pub(super) fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The folder of this user's plans: `$BURN_REMAT_CACHE`, or `burn-remat` in `$XDG_CACHE_HOME` or `~/.cache`.
pub(super) fn default_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("BURN_REMAT_CACHE").or_else(|| {
        set("XDG_CACHE_HOME")
            .or_else(|| set("LOCALAPPDATA"))
            .or_else(|| set("HOME").map(|home| home.join(".cache")))
            .map(|base| base.join("burn-remat"))
    })
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Our folder inside the one that the user names.
    pub fn inside(folder: &Path) -> Self {
        Self(folder.join(OWN_FOLDER))
    }

    /// Where the file of this name is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names of the files that we have written.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_ours(name)).collect()
    }

    /// When the file of this name was written.
    pub fn written(&self, name: &str) -> Option<SystemTime> {
        self.path(name).metadata().and_then(|data| data.modified()).ok()
    }

    /// Writes a file.
    pub fn write(&self, name: &str, text: &str) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let path = self.path(name);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let draft = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
        let done = std::fs::create_dir_all(&self.0)
            .and_then(|()| std::fs::write(&draft, text))
            .and_then(|()| std::fs::rename(&draft, &path));
        if let Err(error) = done {
            log::warn!("the plan could not be stored in {}: {error}", path.display());
            // On a full disk, half of the file may be there.
            let _ = std::fs::remove_file(&draft);
        }
        self.prune();
    }

    /// Removes the oldest files if there are too many.
    fn prune(&self) {
        let mut files = self.names();
        files.sort_by_cached_key(|name| Reverse(self.written(name)));
        let (mut count, mut bytes) = (0, 0);
        for path in files.iter().map(|name| self.path(name)) {
            // Another process may have been faster.
            let Ok(data) = path.metadata() else { continue };
            (count, bytes) = (count + 1, bytes + data.len());
            if count > MOST_FILES || bytes > MOST_BYTES {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Whether we have written a file, judging by its name: hexadecimal digits, numbers, and hexadecimal digits.
fn is_ours(name: &str) -> bool {
    let is_hex = |text: &str, length| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_number = |text: &&str| text.parse::<u64>().is_ok();
    NAMES.iter().any(|&(prefix, count)| {
        let parts = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(".json"));
        let parts: Vec<&str> = parts.map_or_else(Vec::new, |rest| rest.split('-').collect());
        let [first, numbers @ .., last] = &parts[..] else { return false };
        parts.len() == count && is_hex(first, 16) && numbers.iter().all(is_number) && is_hex(last, 8)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder for one test.
    fn folder(test: &str) -> (PathBuf, Folder) {
        let path = std::env::temp_dir().join(format!("burn-remat-folder-{test}-{}", std::process::id()));
        let folder = Folder::inside(&path);
        std::fs::create_dir_all(&folder.0).unwrap();
        (path, folder)
    }

    fn name(number: u64) -> String {
        format!("step-0123456789abcdef-{number}-01234567.json")
    }

    #[test]
    fn only_files_of_ours_are_removed() {
        let (path, folder) = folder("count");
        let theirs = [
            "notes.json",
            "step-1.json",
            "step-0123456789abcdef-10-0123456g.json",
            "dry-run-0123456789abcdef-10-01234567.json",
        ];
        theirs.iter().for_each(|name| std::fs::write(folder.path(name), "mine").unwrap());
        std::fs::write(path.join("results.json"), "mine").unwrap();
        let count = MOST_FILES as u64 + 20;
        (0..count).for_each(|number| std::fs::write(folder.path(&name(number)), "plan").unwrap());
        folder.write("dry-run-0123456789abcdef-10-20-01234567.json", "plans");
        assert_eq!(folder.names().len(), MOST_FILES);
        let left = std::fs::read_dir(&folder.0).unwrap().count();
        assert_eq!(left, MOST_FILES + theirs.len());
        assert!(theirs.iter().all(|name| folder.path(name).exists()) && path.join("results.json").exists());
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn large_files_are_fewer_and_the_newest_stay() {
        let (path, folder) = folder("bytes");
        // These take no space on the disk, because nothing is written.
        let large = |number| {
            let file = std::fs::File::create(folder.path(&name(number))).unwrap();
            file.set_len(MOST_BYTES / 2).unwrap();
            let age = std::time::Duration::from_secs(60 - number);
            file.set_modified(SystemTime::now() - age).unwrap();
        };
        (0..4).for_each(large);
        folder.write(&name(4), "plan");
        let mut left = folder.names();
        left.sort();
        assert_eq!(left, [name(3), name(4)]);
        std::fs::remove_dir_all(path).unwrap();
    }
}
