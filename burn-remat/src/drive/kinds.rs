//! Names of the kinds of operations.

use burn_ir::OperationIr;
use burn_remat_core::Kind;
use rustc_hash::FxHashMap;

use super::operation::operation_name;

/// How many kinds the small table holds.
const AT_HAND: usize = 64;

/// See the [module](self).
pub(super) struct Names {
    all: FxHashMap<Kind, String>,
    /// Kinds that have a name, at places that follow from their own bits. Looking into the map above for every operation would be noticeable.
    at_hand: [Kind; AT_HAND],
}

impl Default for Names {
    fn default() -> Self {
        Self { all: FxHashMap::default(), at_hand: [0; AT_HAND] }
    }
}

impl Names {
    /// Remembers the name of an operation's kind.
    #[inline]
    pub fn learn(&mut self, kind: Kind, op: &OperationIr) {
        // The last bit is always set.
        let known = &mut self.at_hand[(kind >> 1) as usize % AT_HAND];
        if *known != kind {
            *known = kind;
            self.all.entry(kind).or_insert_with(|| operation_name(op));
        }
    }

    pub fn of(&self, kind: Kind) -> Option<&String> {
        self.all.get(&kind)
    }
}
