//! How long operations take on a device that fuses them into kernels.
//!
//! On such a device, consecutive elementwise operations are one kernel, and its time is that of moving data: the kernel reads what comes from outside,
//! each tensor once, and writes what is needed outside. What one operation hands to the next inside the kernel is never moved. So the time of a fused
//! operation is a share of its time alone: the bytes that it moves into and out of the kernel, divided by the bytes that it would move alone. An
//! operation whose input and result both stay within its chain takes almost no time.
//!
//! This is a model. What is fused in the end depends on what else is waiting: a recomputation whose input was kept reads that input, but here it counts
//! as handed over.

use rustc_hash::FxHashSet;

use burn_remat_core::{Place, Position, Trace};

/// The share of its time alone that each operation takes. For each operation that can be fused, `joins` has a number for the shape of its result; only
/// operations of the same shape are fused.
///
/// Time and space are linear in the operations and their tensors.
pub(crate) fn shares(trace: &Trace, joins: &[Option<u64>]) -> Vec<f64> {
    let chains = chains(trace, joins);
    let crosses = crossing(trace, &chains);
    let bytes = |place: Place| trace.storages[place as usize].bytes;
    let mut read = FxHashSet::default();
    let ops = trace.ops.iter().zip(&chains);
    ops.map(|(op, &chain)| {
        let Some(chain) = chain else { return 1.0 };
        let (mut moved, mut alone) = (0, 0);
        // Two tensors may be views of one storage.
        let places = op.reads.iter().enumerate().filter(|&(at, place)| !op.reads[..at].contains(place));
        for (_, &place) in places {
            alone += bytes(place);
            if chain_of(trace, &chains, place) != Some(chain) && read.insert((chain, place)) {
                moved += bytes(place);
            }
        }
        for &place in op.writes.iter().filter(|place| !op.reads.contains(place)) {
            alone += bytes(place);
            moved += if crosses[place as usize] { bytes(place) } else { 0 };
        }
        if alone == 0 { 1.0 } else { moved as f64 / alone as f64 }
    })
    .collect()
}

/// The chain of each operation. A view of a result of the open chain ends the chain, because the result is written first.
fn chains(trace: &Trace, joins: &[Option<u64>]) -> Vec<Option<usize>> {
    let (mut count, mut open) = (0, None);
    let mut chains = Vec::with_capacity(trace.ops.len());
    for (position, op) in trace.ops.iter().enumerate() {
        if op.writes.iter().all(|place| op.reads.contains(place)) {
            let made_here = |&place: &Place| open.is_some() && chain_of(trace, &chains, place) == Some(count);
            if op.reads.iter().any(made_here) {
                open = None;
            }
            chains.push(None);
            continue;
        }
        let joins = joins.get(position).copied().flatten();
        count += usize::from(joins != open);
        open = joins;
        chains.push(joins.map(|_| count));
    }
    chains
}

/// The chain that makes a storage.
fn chain_of(trace: &Trace, chains: &[Option<usize>], place: Place) -> Option<usize> {
    trace.storages[place as usize].made_by.and_then(|made_by: Position| chains[made_by as usize])
}

/// The storages that are needed outside of the chain that makes them: by other operations, or by a program that still holds them when
/// the kernel runs.
fn crossing(trace: &Trace, chains: &[Option<usize>]) -> Vec<bool> {
    let mut ends = vec![0; trace.ops.len() + 1];
    for (at, chain) in chains.iter().enumerate() {
        if let Some(chain) = *chain {
            ends[chain] = at;
        }
    }
    let places = 0..trace.storages.len() as Place;
    let mut crosses: Vec<bool> = places
        .map(|place| {
            let end = chain_of(trace, chains, place).map(|chain| ends[chain]);
            // A storage that is dropped between two operations dies with the second; after the last there is none.
            let died = trace.storages[place as usize].died.map(|died| died as usize);
            end.zip(died).is_none_or(|(end, died)| died > end + 1 || end + 1 == trace.ops.len())
        })
        .collect();
    for (op, &chain) in trace.ops.iter().zip(chains) {
        for &place in &op.reads {
            crosses[place as usize] |= chain.is_none() || chain_of(trace, chains, place) != chain;
        }
    }
    for &(_, place) in &trace.reads {
        crosses[place as usize] = true;
    }
    crosses
}

#[cfg(test)]
mod tests {
    use super::super::examples;
    use super::*;

    /// A chain forward and backward, in which the operations of `joined` can be fused.
    fn shares_of(joined: std::ops::Range<usize>) -> Vec<f64> {
        let trace = examples::chain();
        let joins: Vec<_> = (0..trace.ops.len()).map(|at| joined.contains(&at).then_some(4)).collect();
        shares(&trace, &joins)
    }

    #[test]
    fn single_operations_take_their_own_time() {
        assert!(shares_of(0..0).iter().all(|&share| share == 1.0));
        assert_eq!(shares_of(2..3)[2], 1.0);
    }

    #[test]
    fn a_joined_operation_reads_nothing_of_its_chain() {
        // All results of the forward pass are read again by the backward pass, so each is written.
        let shares = shares_of(1..4);
        assert_eq!(shares[..5], [1.0, 1.0, 0.5, 0.5, 1.0]);
    }

    #[test]
    fn what_only_its_chain_reads_is_not_written() {
        // In the backward pass, each result goes to the next operation; the activations come from outside.
        let shares = shares_of(9..12);
        let third = 1.0 / 3.0;
        assert_eq!(shares[8..13], [1.0, 2.0 * third, third, 2.0 * third, 1.0]);
    }

    #[test]
    fn results_of_other_shapes_are_not_joined() {
        let trace = examples::chain();
        let joins: Vec<_> = (0..trace.ops.len() as u64).map(Some).collect();
        assert!(shares(&trace, &joins).iter().all(|&share| share == 1.0));
    }

    #[test]
    fn what_is_viewed_within_its_chain_is_written() {
        let mut trace = examples::chain();
        // The third operation is a view of the result of the second.
        let viewed = trace.ops[2].reads[0];
        trace.ops[2].writes = [viewed].into_iter().collect();
        let joins = [Some(4); 6];
        let shares = shares(&trace, &joins);
        assert_eq!((shares[1], shares[2]), (0.5, 1.0));
        // The fourth begins another chain.
        assert_eq!(shares[3], 1.0);
    }
}
