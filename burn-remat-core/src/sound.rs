//! Whether a trace that was read from a file is one that a machine can go through: a file may contain anything.
//!
//! Complexity: O(operations + storages + tensors).

use alloc::vec;
use alloc::vec::Vec;

use crate::recording::{MOST, Misfit};
use crate::trace::{Between, Number, Place, Position, Trace, TracedOp};

/// The origin of a tensor has no room for more operations than this.
const MOST_OPS: usize = 1 << 24;
/// Nor for more results of one operation than this.
const MOST_RESULTS: usize = 1 << 8;

fn misfit<T>(field: &'static str, reason: &'static str) -> Result<T, Misfit> {
    Err(Misfit { field, reason })
}

fn all(holds: bool, field: &'static str, reason: &'static str) -> Result<(), Misfit> {
    if holds { Ok(()) } else { misfit(field, reason) }
}

impl Trace {
    /// Restores a trace that was written to a file and read again, if it is valid.
    ///
    /// # Errors
    ///
    /// What does not fit: numbers of things that do not exist, tensors that come twice, more bytes or more time than is possible.
    pub fn read_back(mut self) -> Result<Self, Misfit> {
        all(self.ops.len() < MOST_OPS, "ops", "has more operations than a step can have")?;
        self.sound_storages()?;
        self.sound_ops()?;
        self.sound_events()?;
        self.sound_sums()?;
        self.sign();
        Ok(self)
    }

    fn has_place(&self, place: Place) -> bool {
        (place as usize) < self.storages.len()
    }

    fn has_number(&self, number: Number) -> bool {
        (number as usize) < self.tensors.len()
    }

    fn has_op(&self, position: Position) -> bool {
        (position as usize) < self.ops.len()
    }

    fn is_within(&self, position: Position) -> bool {
        position as usize <= self.ops.len()
    }

    fn sound_storages(&self) -> Result<(), Misfit> {
        for (place, storage) in (0..).zip(&self.storages) {
            all(storage.made_by.is_none_or(|at| self.has_op(at)), "storages.made_by", "is not an existing operation")?;
            all(storage.died.is_none_or(|at| self.has_op(at)), "storages.died", "is not an existing operation")?;
            all(self.is_within(storage.appeared), "storages.appeared", "is beyond the end")?;
            let is_known = storage.reuses.is_none_or(|base| base < place && storage.made_by.is_some());
            all(is_known, "storages.reuses", "is not an earlier storage")?;
        }
        all(
            self.tensors.iter().all(|tensor| self.has_place(tensor.place)),
            "tensors.place",
            "is not an existing storage",
        )
    }

    fn sound_ops(&self) -> Result<(), Misfit> {
        for op in &self.ops {
            let places = op.reads.iter().chain(&op.writes).copied().chain(op.stub.map(|stub| stub.place));
            all(places.into_iter().all(|place| self.has_place(place)), "ops", "name a storage that does not exist")?;
            all(
                op.inputs.iter().all(|&(number, _)| self.has_number(number)),
                "ops.inputs",
                "is not an existing tensor",
            )?;
            let outputs = (op.outputs as usize).checked_add(op.writes.len());
            let are_there = outputs.is_some_and(|end| end <= self.tensors.len()) && op.writes.len() < MOST_RESULTS;
            all(are_there, "ops.outputs", "are tensors that do not exist")?;
            let place = |number: Number| self.tensors[number as usize].place;
            let reads = op.inputs.iter().map(|&(number, _)| place(number));
            let writes = (op.outputs..).take(op.writes.len()).map(place);
            all(reads.eq(op.reads.iter().copied()), "ops.reads", "are not the storages of its inputs")?;
            all(writes.eq(op.writes.iter().copied()), "ops.writes", "are not the storages of its outputs")?;
            all(op.visit as usize <= self.visits.len(), "ops.visit", "is not an existing visit")?;
        }
        Ok(())
    }

    /// Checks that tensors exist when they are read, and come only once.
    fn sound_events(&self) -> Result<(), Misfit> {
        let events = &self.between;
        let numbers = events.iter().map(|(_, event)| event.number());
        all(numbers.into_iter().all(|number| self.has_number(number)), "between", "names an unknown tensor")?;
        let positions = events.iter().map(|(at, _)| *at).chain(self.seed).chain(self.over);
        all(positions.into_iter().all(|at| self.is_within(at)), "between", "has something beyond the end")?;
        let reads = self.reads.iter().all(|&(at, place)| self.has_op(at) && self.has_place(place));
        all(reads, "reads", "names an unknown operation or storage")?;
        let mut presence = Presence::of(self);
        let mut events: Vec<_> = events.iter().collect();
        events.sort_by_key(|(at, _)| *at);
        let mut events = events.into_iter().peekable();
        for (at, op) in self.ops.iter().enumerate() {
            while let Some((_, event)) = events.next_if(|(position, _)| *position as usize <= at) {
                presence.after_event(event)?;
            }
            presence.after(op)?;
        }
        Ok(())
    }

    /// Checks that no sum is too large for a machine.
    fn sound_sums(&self) -> Result<(), Misfit> {
        let forms = || self.storages.iter().filter_map(|storage| storage.form);
        let stubs = || self.ops.iter().filter_map(|op| op.stub);
        let bytes = self.storages.iter().map(|storage| storage.bytes);
        let bytes = bytes.chain(self.tensors.iter().flat_map(|tensor| [tensor.bytes, tensor.buffer_bytes]));
        let bytes = bytes.chain(forms().map(|form| form.bytes)).chain(self.ops.iter().map(|op| op.scratch));
        let bytes = bytes.chain(stubs().flat_map(|stub| [stub.bytes, stub.stand_in]));
        let costs = self.ops.iter().map(|op| op.cost_ns).chain(forms().map(|form| form.cost_ns));
        let costs = costs.chain(stubs().map(|stub| stub.cost_ns));
        let is_counted = |sum: u64| sum <= MOST;
        let bytes = bytes.chain([self.held_at_start, self.yielding]).fold(0, u64::saturating_add);
        all(is_counted(bytes), "storages", "have more bytes than any machine (2^53 in all)")?;
        all(is_counted(costs.fold(0, u64::saturating_add)), "ops", "take longer than any step (2^53 ns in all)")?;
        let was_there = self.storages.iter().filter(|storage| storage.made_by.is_none() && !storage.uploaded);
        let known: u64 = was_there.map(|storage| storage.bytes).sum();
        all(known <= self.held_at_start, "held_at_start", "is less than the storages that existed before")
    }
}

/// Which tensors exist.
struct Presence(Vec<bool>);

impl Presence {
    /// Those that exist when a step begins.
    fn of(trace: &Trace) -> Self {
        let mut there = vec![true; trace.tensors.len()];
        for op in &trace.ops {
            (op.outputs..).take(op.writes.len()).for_each(|number| there[number as usize] = false);
        }
        for (_, event) in &trace.between {
            if let Between::Arrives(number) = event {
                there[*number as usize] = false;
            }
        }
        Self(there)
    }

    fn comes(&mut self, number: Number) -> Result<(), Misfit> {
        let was_there = core::mem::replace(&mut self.0[number as usize], true);
        all(!was_there, "tensors", "contains one that comes twice")
    }

    fn after_event(&mut self, event: &Between) -> Result<(), Misfit> {
        match *event {
            Between::Arrives(number) => return self.comes(number),
            Between::Drops(number) => self.0[number as usize] = false,
            Between::Reads(_) => {}
        }
        Ok(())
    }

    fn after(&mut self, op: &TracedOp) -> Result<(), Misfit> {
        let are_there = op.inputs.iter().all(|&(number, _)| self.0[number as usize]);
        all(are_there, "ops.inputs", "contains a tensor that does not exist")?;
        for &(number, _) in op.inputs.iter().filter(|(_, last)| *last) {
            self.0[number as usize] = false;
        }
        (op.outputs..).take(op.writes.len()).try_for_each(|number| self.comes(number))
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::trace::{TracedStorage, TracedTensor};

    /// Reads a tensor that existed before and makes one from it, which is dropped.
    fn step() -> Trace {
        let storage = |made_by, died| TracedStorage {
            bytes: 100,
            made_by,
            uploaded: false,
            appeared: 0,
            died,
            reuses: None,
            form: None,
        };
        let tensor = |place| TracedTensor { place, shape: 1, bytes: 100, buffer_bytes: 100 };
        let op = TracedOp {
            reads: smallvec![0],
            writes: smallvec![1],
            inputs: smallvec![(0, false)],
            outputs: 1,
            ..TracedOp::default()
        };
        Trace {
            ops: vec![op],
            storages: vec![storage(None, None), storage(Some(0), Some(0))],
            tensors: vec![tensor(0), tensor(1)],
            between: vec![(1, Between::Drops(1))],
            held_at_start: 100,
            ..Trace::default()
        }
    }

    /// The field that is named, and how the step is changed.
    type Case = (&'static str, fn(&mut Trace));

    #[test]
    fn what_cannot_be_is_refused_and_its_field_named() {
        assert!(step().read_back().is_ok());
        let cases: [Case; 19] = [
            ("storages.made_by", |step| step.storages[1].made_by = Some(1)),
            ("storages.died", |step| step.storages[1].died = Some(1)),
            ("storages.appeared", |step| step.storages[1].appeared = 2),
            ("storages.reuses", |step| step.storages[1].reuses = Some(1)),
            ("tensors.place", |step| step.tensors[0].place = 2),
            ("ops", |step| step.ops[0].writes = smallvec![2]),
            ("ops.inputs", |step| step.ops[0].inputs = smallvec![(2, false)]),
            ("ops.outputs", |step| step.ops[0].outputs = u32::MAX),
            ("ops.reads", |step| step.ops[0].reads = smallvec![1]),
            ("ops.writes", |step| step.ops[0].writes = smallvec![0]),
            ("ops.visit", |step| step.ops[0].visit = 1),
            ("between", |step| step.between[0].0 = 2),
            ("between", |step| step.between[0].1 = Between::Reads(2)),
            ("tensors", |step| step.between = vec![(0, Between::Arrives(1))]),
            ("ops.inputs", |step| step.between = vec![(0, Between::Drops(0))]),
            ("reads", |step| step.reads = vec![(0, 2)]),
            ("reads", |step| step.reads = vec![(1, 0)]),
            ("storages", |step| step.yielding = 1 << 54),
            ("held_at_start", |step| step.held_at_start = 99),
        ];
        for (at, (field, change)) in cases.into_iter().enumerate() {
            let mut step = step();
            change(&mut step);
            assert_eq!(step.read_back().map_err(|misfit| misfit.field), Err(field), "case {at}");
        }
    }
}
