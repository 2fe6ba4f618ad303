//! Exit statuses and output. Nothing else in the program prints.

use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use burn_remat_plan::PlanError;

/// An exit other than success.
#[derive(Debug)]
pub struct Exit {
    code: u8,
    message: String,
}

impl Exit {
    /// A check failed: status 1.
    pub fn check(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// Unusable arguments or file: status 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    /// No plan: status 3.
    pub fn infeasible(message: impl Into<String>) -> Self {
        Self { code: 3, message: message.into() }
    }

    /// Prints the message on standard error and returns the exit status.
    pub fn report(self) -> ExitCode {
        // If this fails, there is nobody left to tell.
        let _ = writeln!(std::io::stderr(), "remat-plan: {}", self.message);
        ExitCode::from(self.code)
    }
}

impl From<PlanError> for Exit {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Infeasible { .. } => Self::infeasible(error.to_string()),
            PlanError::Internal { .. } => Self::check(error.to_string()),
            _ => Self::usage(error.to_string()),
        }
    }
}

/// Writes to standard output. It does no harm if the reader is gone (`remat-plan show x | head`).
pub fn print(text: &str) -> Result<(), Exit> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Exit::usage(format!("standard output: {error}"))),
        _ => Ok(()),
    }
}

/// Checks that a file can be written, before the work whose result it is meant to hold.
pub fn writable(path: Option<&Path>) -> Result<(), Exit> {
    let Some(path) = path else { return Ok(()) };
    let found = std::fs::metadata(path);
    // A pipe or a device must not be opened twice.
    if found.as_ref().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return Ok(());
    }
    let is_new = std::fs::symlink_metadata(path).is_err();
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| Exit::usage(format!("{}: {error}", path.display())))?;
    if is_new {
        // Leave no empty file behind if there turns out to be no result.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Writes a file.
pub fn write(path: &Path, text: &str) -> Result<(), Exit> {
    std::fs::write(path, text).map_err(|error| Exit::usage(format!("{}: {error}", path.display())))
}
