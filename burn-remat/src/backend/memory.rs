//! How much memory a device has free, for a budget that is a share of it.

use burn_backend::DeviceOps;
use burn_flex::FlexDevice;
use sysinfo::{MemoryRefreshKind, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System};

/// A device that may report how much of its memory is free, for [`Budget::Free`](crate::Budget::Free).
pub trait DeviceMemory: DeviceOps {
    /// Bytes that this process could still allocate on the device; `None` if the device does not report it.
    fn free_bytes(&self) -> Option<u64> {
        None
    }
}

impl DeviceMemory for FlexDevice {
    fn free_bytes(&self) -> Option<u64> {
        host_free_bytes()
    }
}

/// Bytes of main memory available without swapping, within the limits of the process's control group on Linux.
pub(super) fn host_free_bytes() -> Option<u64> {
    let ram = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let mut system = System::new_with_specifics(ram);
    let available = Some(system.available_memory()).filter(|bytes| *bytes > 0)?;
    let limits = sysinfo::get_current_pid().ok().and_then(|pid| {
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), false, ProcessRefreshKind::nothing());
        system.process(pid)?.cgroup_limits()
    });
    // The page cache counts as used there, but it can be reclaimed. So only resident memory is subtracted.
    let allowed = limits.map_or(u64::MAX, |limits| limits.total_memory.saturating_sub(limits.rss));
    Some(available.min(allowed))
}
