//! [`RematDevice`]: a device of a backend with a configuration of its own.

use std::collections::BTreeMap;
use std::sync::Mutex;

use burn_backend::{DeviceId, DeviceOps, DeviceSettings};

use crate::backend::DeviceMemory;
use crate::config::RematConfig;
use crate::error::RematError;
use crate::panics::lock;

/// Devices of one process that carry a configuration, by slot. Slot 0 is every device's plain, unlimited one.
static SLOTS: Mutex<BTreeMap<u16, (DeviceId, RematConfig)>> = Mutex::new(BTreeMap::new());
/// Set in the index of a device id that belongs to a slot.
const SLOT_BIT: u16 = 1 << 15;

/// A device of backend `B` with a budget of its own.
///
/// Every [`new`](Self::new) makes another device. Several budgets on one piece of hardware do not know of each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RematDevice<D> {
    inner: D,
    slot: u16,
}

impl<D: DeviceMemory> RematDevice<D> {
    /// Makes a device like `inner` with this configuration.
    ///
    /// # Errors
    ///
    /// The error of the configuration, [`RematError::FreeMemory`] if the budget is a share of free memory and the device does not report that, or
    /// [`RematError::TooManyDevices`] after 32,767 devices in one process.
    pub fn new(inner: D, config: impl Into<RematConfig>) -> Result<Self, RematError> {
        let config = config.into().validated_on(&inner)?;
        let mut slots = lock(&SLOTS);
        let slot = slots.last_key_value().map_or(1, |(last, _)| last + 1);
        if slot >= SLOT_BIT {
            return Err(RematError::TooManyDevices);
        }
        slots.insert(slot, (inner.id(), config));
        Ok(Self { inner, slot })
    }

    /// The device without the budget.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The configuration. Without one, that of an unlimited device.
    pub(super) fn config(&self) -> RematConfig {
        lock(&SLOTS).get(&self.slot).map(|(_, config)| config.clone()).unwrap_or_default()
    }
}

impl<D: DeviceOps> burn_std::device::Device for RematDevice<D> {
    fn from_id(id: DeviceId) -> Self {
        if id.index_id & SLOT_BIT == 0 {
            return Self { inner: D::from_id(id), slot: 0 };
        }
        let slot = id.index_id & !SLOT_BIT;
        let inner = lock(&SLOTS).get(&slot).map_or_else(D::default, |(inner, _)| D::from_id(*inner));
        Self { inner, slot }
    }

    fn to_id(&self) -> DeviceId {
        let id = self.inner.to_id();
        if self.slot == 0 { id } else { DeviceId { type_id: id.type_id, index_id: SLOT_BIT | self.slot } }
    }
}

impl<D: DeviceOps> DeviceOps for RematDevice<D> {
    fn defaults(&self) -> DeviceSettings {
        self.inner.defaults()
    }
}
