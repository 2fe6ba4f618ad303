//! The tensors available to a random program, and the wire over which programs on several threads pass some to each other.

use std::sync::mpsc::{Receiver, Sender};

use burn::tensor::{Bool, Int, Tensor};

use super::MOST_LIVE;

/// Live tensors by kind.
#[derive(Default)]
pub struct Pools {
    pub floats: Vec<Tensor<2>>,
    pub ints: Vec<Tensor<2, Int>>,
    pub bools: Vec<Tensor<2, Bool>>,
}

/// A tensor by its number, wrapped around; with `take` it is removed.
fn pick<T: Clone>(pool: &mut Vec<T>, at: u8, take: bool) -> Option<T> {
    let at = usize::from(at).checked_rem(pool.len())?;
    Some(if take { pool.swap_remove(at) } else { pool[at].clone() })
}

impl Pools {
    pub fn float(&mut self, at: u8, take: bool) -> Option<Tensor<2>> {
        pick(&mut self.floats, at, take)
    }

    pub fn int(&mut self, at: u8, take: bool) -> Option<Tensor<2, Int>> {
        pick(&mut self.ints, at, take)
    }

    pub fn bool(&mut self, at: u8, take: bool) -> Option<Tensor<2, Bool>> {
        pick(&mut self.bools, at, take)
    }

    pub fn drop_one(&mut self, kind: u8, at: u8) {
        match kind {
            0 => drop(self.float(at, true)),
            1 => drop(self.int(at, true)),
            _ => drop(self.bool(at, true)),
        }
    }

    /// Drops the oldest tensors if there are too many.
    pub fn trim(&mut self) {
        fn trim<T>(pool: &mut Vec<T>) {
            pool.drain(..pool.len().saturating_sub(MOST_LIVE));
        }
        trim(&mut self.floats);
        trim(&mut self.ints);
        trim(&mut self.bools);
    }

    pub fn detach(&mut self) {
        for x in &mut self.floats {
            *x = x.clone().detach();
        }
    }

    pub fn read(self, seen: &mut Vec<Vec<u8>>) {
        let Self { floats, ints, bools } = self;
        seen.extend(floats.into_iter().map(|x| x.into_data().as_bytes().to_vec()));
        seen.extend(ints.into_iter().map(|x| x.into_data().as_bytes().to_vec()));
        seen.extend(bools.into_iter().map(|x| x.into_data().as_bytes().to_vec()));
    }
}

/// What a thread passes to the next one and receives from the previous one. Gifts arrive in order and are waited for, so what is received does
/// not depend on which thread is faster.
#[derive(Default)]
pub struct Wire {
    pub to: Option<Sender<Option<Tensor<2>>>>,
    pub from: Option<Receiver<Option<Tensor<2>>>>,
}

impl Wire {
    /// Passes on what `gift` makes, or nothing; does not wait for anybody.
    pub fn give(&self, gift: impl FnOnce() -> Option<Tensor<2>>) {
        if let Some(to) = &self.to {
            // The next thread may have ended.
            let _ = to.send(gift());
        }
    }

    /// The next gift; `None` if no more come. Waits for the previous thread, which never waits for a later one.
    pub fn take(&self) -> Option<Tensor<2>> {
        self.from.as_ref()?.recv().ok().flatten()
    }
}
