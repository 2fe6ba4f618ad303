//! A trace while it is being made.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use rustc_hash::FxHashMap;

use crate::trace::{Between, Number, Place, Position, Trace, TracedStorage, TracedTensor};

/// A step with more operations than this is not traced: a program without steps. With half as many, the trace of a pass begins anew if the pass has not.
pub(crate) const LONGEST: usize = 100_000;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Tracer {
    pub trace: Trace,
    /// How many tensors of each storage the program holds.
    owners: Vec<u32>,
    /// Storages from before the step, by the serial of their buffer.
    externals: FxHashMap<u64, Place>,
}

impl Tracer {
    /// `held` bytes are held when the step begins, `yielding` of which are evicted if it needs the room.
    pub fn new(held: u64, yielding: u64) -> Self {
        let held_at_start = held.saturating_sub(yielding);
        Self { trace: Trace { held_at_start, yielding, ..Trace::default() }, ..Self::default() }
    }

    /// Continues as if the first operations of a step, which were those of `seen`, had been traced.
    pub fn resumed(seen: &Trace, position: Position, (held, yielding): (u64, u64)) -> Self {
        let ops = &seen.ops[..position as usize];
        let places = ops.iter().flat_map(|op| op.reads.iter().chain(&op.writes));
        let storages = places.max().map_or(0, |place| *place as usize + 1);
        let tensors = ops.iter().map(|op| op.outputs as usize + op.writes.len());
        let numbers = ops.iter().flat_map(|op| op.inputs.iter().map(|(number, _)| *number as usize + 1));
        let tensors = tensors.chain(numbers).max().unwrap_or(0);
        let mut tracer = Self::new(held, yielding);
        let trace = &mut tracer.trace;
        trace.ops.extend_from_slice(ops);
        trace.storages.extend_from_slice(&seen.storages[..storages]);
        trace.tensors.extend_from_slice(&seen.tensors[..tensors]);
        trace.visits.extend_from_slice(&seen.visits);
        trace.reads.extend(seen.reads.iter().filter(|(at, place)| *at < position && (*place as usize) < storages));
        let known = |between: &Between| match between {
            Between::Arrives(number) | Between::Drops(number) | Between::Reads(number) => (*number as usize) < tensors,
        };
        trace.between.extend(seen.between.iter().filter(|(at, between)| *at < position && known(between)));
        // Nothing of what the program holds is known here: the caller says it.
        tracer.owners = vec![0; storages];
        tracer
    }

    pub fn add(&mut self, storage: TracedStorage) -> Place {
        self.trace.storages.push(storage);
        self.owners.push(0);
        (self.owners.len() - 1) as Place
    }

    pub fn add_tensor(&mut self, tensor: TracedTensor) -> Number {
        self.trace.tensors.push(tensor);
        (self.trace.tensors.len() - 1) as Number
    }

    pub fn external(&self, serial: u64) -> Option<Place> {
        self.externals.get(&serial).copied()
    }

    pub fn set_external(&mut self, serial: u64, place: Place) {
        self.externals.insert(serial, place);
    }

    /// The program holds this many more tensors of a storage.
    pub fn hold(&mut self, place: Place, tensors: u32) {
        self.owners[place as usize] += tensors;
    }

    /// The program has released one tensor of a storage.
    pub fn lose(&mut self, place: Place, position: Position) {
        let owners = &mut self.owners[place as usize];
        *owners = owners.saturating_sub(1);
        if *owners == 0 {
            self.trace.storages[place as usize].died.get_or_insert(position);
        }
    }

    /// Corrects when storages died, after [`resumed`](Self::resumed), once it is known which of them are held.
    pub fn settle_deaths(&mut self, position: Position) {
        for (storage, owners) in self.trace.storages.iter_mut().zip(&self.owners) {
            if storage.uploaded && *owners == 0 && storage.died.is_none_or(|died| died >= position) {
                // It arrived without being traced: it is among those that were added since.
                storage.bytes = 0;
            }
            if *owners > 0 {
                storage.died = None;
            } else {
                storage.died.get_or_insert(position.saturating_sub(1));
            }
        }
    }

    /// A visit of a stage begins.
    pub fn visit(&mut self, path: Arc<str>) {
        self.trace.visits.push(path);
    }

    /// The finished trace.
    pub fn finish(mut self) -> Trace {
        let last = self.trace.ops.len().saturating_sub(1) as Position;
        for died in self.trace.storages.iter_mut().filter_map(|storage| storage.died.as_mut()) {
            *died = last.min(*died);
        }
        // Planning subtracts what existed before from what was held, so it must never be more.
        let there = |storage: &&TracedStorage| storage.made_by.is_none() && !storage.uploaded;
        let there = self.trace.storages.iter().filter(there).map(|storage| storage.bytes).sum();
        self.trace.held_at_start = self.trace.held_at_start.max(there);
        self.trace
    }
}
