//! Stages: named parts of a model, marked in order with its operations.
//!
//! A [`Stage`] is a guard. The engine is told when a stage is entered and left, in order with the operations in between. Leaving is the guard's `Drop`:
//! it happens on every path out of a function, also while unwinding.
//!
//! Names are interned: the engine is told the number of a name in a table of this process, the number of the stage that is entered or left, and a policy,
//! if the stage sets one.
//!
//! Cost: until the process makes its first remat device, a stage is one load of an atomic. From then on it also asks the tensors among the arguments for
//! their devices, and calls the engine of each remat device twice.
//!
//! What the attribute [`remat`](macro@crate::remat) generates calls [`enter`] and [`mark_step`], which find the devices
//! among a function's arguments: the macro cannot see types, so method resolution decides, argument by argument, which of
//! [`SeeTensors`], [`SeeModule`] and [`SeeNothing`] applies. Programs need not call these themselves.

use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use burn::module::Module;
use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor};
use burn_remat_core::CheckpointPolicy;
use smallvec::SmallVec;

use crate::door::{EngineControl, any_device, control_of};
use crate::names::{NameId, intern};

static NEXT_STAGE: AtomicI64 = AtomicI64::new(1);

// ---- names

/// A stage's name, interned when it is first entered.
#[derive(Debug)]
pub struct StageName {
    name: &'static str,
    id: OnceLock<NameId>,
}

impl StageName {
    /// The stage called `name`.
    pub const fn new(name: &'static str) -> Self {
        Self { name, id: OnceLock::new() }
    }
}

// ---- guards

/// A stage that is open until this is dropped; see [`RematExt::remat_stage`](crate::RematExt::remat_stage).
///
/// It belongs to the thread that opened it: the operations of other threads are not in it.
#[derive(Debug)]
#[must_use = "the stage ends when this is dropped: `let _stage = ..`"]
pub struct Stage {
    /// The engine of each device with the number of the stage there.
    open: SmallVec<[(Arc<dyn EngineControl>, i64); 1]>,
    /// Not to be sent to another thread.
    thread: PhantomData<*const ()>,
}

impl Stage {
    fn open(
        engines: impl IntoIterator<Item = Arc<dyn EngineControl>>,
        name: NameId,
        policy: Option<CheckpointPolicy>,
    ) -> Self {
        let open = engines.into_iter().map(|engine| {
            let number = NEXT_STAGE.fetch_add(1, Ordering::Relaxed);
            engine.enter_stage(name, number, policy);
            (engine, number)
        });
        Self { open: open.collect(), thread: PhantomData }
    }

    fn nowhere() -> Self {
        Self { open: SmallVec::new(), thread: PhantomData }
    }

    /// The stage called `name` on `device`.
    pub(crate) fn on(device: &Device, name: &str, policy: Option<CheckpointPolicy>) -> Self {
        if name.is_empty() || !any_device() {
            return Self::nowhere();
        }
        match control_of(&device.clone().without_autodiff()) {
            Some(engine) => Self::open([engine], intern(name), policy),
            None => Self::nowhere(),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for (engine, number) in &self.open {
            engine.leave_stage(*number);
        }
    }
}

// ---- devices among arguments

/// Enters a stage on the remat devices of the arguments that `look` shows; on none if there are none.
pub fn enter(name: &'static StageName, policy: Option<CheckpointPolicy>, look: impl Fn(&mut Seen)) -> Stage {
    if !any_device() {
        return Stage::nowhere();
    }
    let engines = Seen::by(look);
    if engines.is_empty() {
        return Stage::nowhere();
    }
    Stage::open(engines, *name.id.get_or_init(|| intern(name.name)), policy)
}

/// Marks a training step on the remat devices of the arguments that `look` shows.
pub fn mark_step(look: impl Fn(&mut Seen)) {
    if any_device() {
        for engine in Seen::by(look) {
            engine.mark_step();
        }
    }
}

/// The remat devices seen so far, each once.
#[derive(Debug, Default)]
pub struct Seen {
    engines: SmallVec<[Arc<dyn EngineControl>; 1]>,
    /// All devices seen, so that each is looked up once.
    devices: SmallVec<[Device; 1]>,
    /// Whether modules are asked for their devices. This is done only if no argument is a tensor, because modules are large.
    modules: bool,
}

impl Seen {
    fn by(look: impl Fn(&mut Seen)) -> SmallVec<[Arc<dyn EngineControl>; 1]> {
        let mut seen = Self::default();
        look(&mut seen);
        if seen.devices.is_empty() {
            seen.modules = true;
            look(&mut seen);
        }
        seen.engines
    }

    fn add(&mut self, device: Device) {
        let plain = device.without_autodiff();
        if !self.devices.contains(&plain) {
            self.engines.extend(control_of(&plain));
            self.devices.push(plain);
        }
    }
}

/// An argument to be looked at.
#[derive(Debug)]
pub struct Look<'a, T: ?Sized>(
    /// The argument.
    pub &'a T,
);

/// First choice: the argument holds tensors.
pub trait SeeTensors {
    /// Adds their devices.
    fn see(&self, seen: &mut Seen);
}

/// Second choice: it is a module.
pub trait SeeModule {
    /// Adds its devices if no tensor has been seen.
    fn see(&self, seen: &mut Seen);
}

/// Last choice: its device cannot be known.
pub trait SeeNothing {
    /// Adds nothing.
    fn see(&self, _seen: &mut Seen) {}
}

// The generated call is on `&&&Look(&argument)`: the compiler takes the first of these three that applies.

impl<T: HasTensors + ?Sized> SeeTensors for &&Look<'_, T> {
    fn see(&self, seen: &mut Seen) {
        self.0.show(seen);
    }
}

impl<T: Module> SeeModule for &Look<'_, T> {
    fn see(&self, seen: &mut Seen) {
        if seen.modules {
            self.0.devices().into_iter().for_each(|device| seen.add(device));
        }
    }
}

impl<T: ?Sized> SeeNothing for Look<'_, T> {}

/// A tensor, or something made of tensors.
pub trait HasTensors {
    /// Adds their devices.
    fn show(&self, seen: &mut Seen);
}

impl<const D: usize, K: Basic> HasTensors for Tensor<D, K> {
    fn show(&self, seen: &mut Seen) {
        if !seen.modules {
            seen.add(self.device());
        }
    }
}

macro_rules! through {
    ($([$($generics:tt)*] $type:ty => |$this:ident| $parts:expr;)*) => {$(
        impl<$($generics)*> HasTensors for $type {
            fn show(&self, seen: &mut Seen) {
                let $this = self;
                $parts.into_iter().for_each(|part| part.show(seen));
            }
        }
    )*};
}
through! {
    [T: HasTensors + ?Sized] &T => |this| [&**this];
    [T: HasTensors + ?Sized] &mut T => |this| [&**this];
    [T: HasTensors + ?Sized] Box<T> => |this| [&**this];
    [T: HasTensors + ?Sized] Rc<T> => |this| [&**this];
    [T: HasTensors + ?Sized] Arc<T> => |this| [&**this];
    [T: HasTensors] Option<T> => |this| this;
    [T: HasTensors] Vec<T> => |this| this;
    [T: HasTensors] [T] => |this| this;
    [T: HasTensors, const N: usize] [T; N] => |this| this;
}

/// Types that may stand beside a tensor in a tuple.
macro_rules! plain {
    ($($type:ty),*) => {$(
        impl HasTensors for $type {
            fn show(&self, _: &mut Seen) {}
        }
    )*};
}
plain!((), bool, char, str, String, u8, u16, u32, u64, usize, i8, i16, i32, i64, isize, f32, f64);

macro_rules! tuples {
    ($(($($part:ident)+))*) => {$(
        impl<$($part: HasTensors),+> HasTensors for ($($part,)+) {
            fn show(&self, seen: &mut Seen) {
                #[allow(non_snake_case, reason = "the parts are named after their types")]
                let ($($part,)+) = self;
                $($part.show(seen);)+
            }
        }
    )*};
}
tuples! { (A) (A B) (A B C) (A B C E) (A B C E F) (A B C E F G) (A B C E F G H) (A B C E F G H I) }

#[cfg(test)]
#[allow(clippy::needless_borrow, reason = "the calls are those of the generated code")]
mod tests {
    use super::*;

    struct Batch;

    /// Devices seen.
    fn looked_at(look: impl Fn(&mut Seen)) -> usize {
        let mut seen = Seen::default();
        look(&mut seen);
        seen.devices.len()
    }

    #[test]
    fn tensors_are_seen_wherever_an_argument_holds_them() {
        let x = Tensor::<1>::ones([1], &Device::flex());
        let (some, none): (Option<Tensor<1>>, Option<Tensor<1>>) = (Some(x.clone()), None);
        let pair = (x.clone(), 3_usize);
        let list = vec![[x.clone(), x.clone()]];
        let slice: &[Tensor<1>] = std::slice::from_ref(&x);
        let borrowed = &x;
        assert_eq!(looked_at(|seen| (&&&Look(&x)).see(seen)), 1);
        assert_eq!(looked_at(|seen| (&&&Look(&some)).see(seen)), 1);
        assert_eq!(looked_at(|seen| (&&&Look(&none)).see(seen)), 0);
        assert_eq!(looked_at(|seen| (&&&Look(&pair)).see(seen)), 1);
        assert_eq!(looked_at(|seen| (&&&Look(&list)).see(seen)), 1);
        assert_eq!(looked_at(|seen| (&&&Look(slice)).see(seen)), 1);
        assert_eq!(looked_at(|seen| (&&&Look(&borrowed)).see(seen)), 1);
        assert_eq!(looked_at(|seen| (&&&Look(&Batch)).see(seen)), 0);
        assert_eq!(looked_at(|seen| (&&&Look("text")).see(seen)), 0);
    }

    #[test]
    fn a_module_is_asked_only_where_there_is_no_tensor() {
        let device = Device::flex();
        let layer = burn::nn::LinearConfig::new(2, 2).init(&device);
        let look = |seen: &mut Seen| (&&&Look(&layer)).see(seen);
        assert_eq!(looked_at(look), 0);
        let mut seen = Seen { modules: true, ..Seen::default() };
        look(&mut seen);
        assert_eq!(seen.devices.len(), 1);
    }
}
