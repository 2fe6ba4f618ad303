//! Traces to test with.

use burn_remat_core::{Alternative, Need, Trace, TracedForm, TracedOp, TracedStorage, TracedStub, TracedTensor};

const BYTES: u64 = 1 << 20;
const DEPTH: u32 = 8;

/// Forward and backward through a chain. All activations have a form, and the backward pass needs only the signs of every other one.
pub fn chain() -> Trace {
    chain_of(DEPTH)
}

/// The same with this many forward operations.
pub fn chain_of(depth: u32) -> Trace {
    let died = |place| died(place, depth);
    let mut trace = Trace { held_at_start: BYTES, ..Trace::default() };
    let storage = |made_by: Option<u32>, died| TracedStorage {
        bytes: BYTES,
        made_by,
        uploaded: false,
        appeared: made_by.unwrap_or(0),
        died,
        reuses: None,
        form: made_by.map(|_| TracedForm { alternative: Alternative::Offload, bytes: 0, cost_ns: 500 }),
    };
    let op = |at: u32, reads: &[u32]| TracedOp {
        signature: u64::from(at),
        kind: u64::from(at),
        nature: Default::default(),
        inputs: reads.iter().map(|&read| (read, died(read) == Some(at))).collect(),
        outputs: at + 1,
        reads: reads.iter().copied().collect(),
        writes: [at + 1].into_iter().collect(),
        cost_ns: 1000 + u64::from(at),
        scratch: 0,
        recordable: true,
        updates: false,
        visit: 0,
        rule: None,
        stub: None,
    };
    trace.storages.push(storage(None, None));
    for at in 0..depth {
        trace.ops.push(op(at, &[at]));
        trace.storages.push(storage(Some(at), died(at + 1)));
    }
    for at in depth..2 * depth {
        let activation = 2 * depth - at;
        let reads = [at, activation];
        let mut op = op(at, if at == activation { &reads[..1] } else { &reads });
        let stub = TracedStub { place: activation, need: Need::Signs, bytes: BYTES / 32, stand_in: BYTES, cost_ns: 90 };
        op.stub = (at % 2 == 0).then_some(stub);
        trace.ops.push(op);
        trace.storages.push(storage(Some(at), died(at + 1)));
    }
    for place in 0..trace.storages.len() as u32 {
        trace.tensors.push(TracedTensor { place, shape: 1, bytes: BYTES, buffer_bytes: BYTES });
    }
    trace
}

/// The operation that is the last to read a storage.
fn died(place: u32, depth: u32) -> Option<u32> {
    let made_by = place.checked_sub(1)?;
    Some(if made_by < depth { 2 * depth - 1 - made_by } else { (made_by + 1).min(2 * depth - 1) })
}
