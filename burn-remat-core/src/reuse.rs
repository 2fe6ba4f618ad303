//! How many new bytes an operation will really take.
//!
//! Its outputs may be views of an input or be written in place. The backend decides that from facts that can be seen from here (who
//! owns the buffer, who consumes it) and some that cannot (strides), but the same operation in the same place of a step decides the
//! same way every time. So the full size of the outputs is taken until the outcome for a signature was seen, and the largest outcome
//! from then on. Signatures are computed only when memory is tight.

use rustc_hash::FxHashMap;

/// Signatures beyond which all are forgotten: a program whose shapes never come back.
const MOST: usize = 100_000;

/// Outcomes by signature.
#[derive(Default)]
pub(crate) struct Reuse {
    seen: FxHashMap<u64, u64>,
    /// Signature of the operation about to run, where one was computed.
    pending: Option<u64>,
}

impl Reuse {
    /// The next operation has no signature.
    #[inline]
    pub fn skip(&mut self) {
        self.pending = None;
    }

    /// What an operation with this signature takes, which runs next and whose outputs are `full` bytes.
    pub fn expect(&mut self, signature: u64, full: u64) -> u64 {
        self.pending = Some(signature);
        self.seen.get(&signature).copied().unwrap_or(full)
    }

    /// Learns what the operation just run has taken.
    #[inline]
    pub fn learn(&mut self, bytes: u64) {
        if let Some(signature) = self.pending.take() {
            if self.seen.len() >= MOST {
                self.seen.clear();
            }
            let known = self.seen.entry(signature).or_insert(bytes);
            *known = bytes.max(*known);
        }
    }
}
