//! Names of stages as numbers, in a table of this process.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Number of a name in the table of this process.
pub(crate) type NameId = u32;

#[derive(Default)]
struct Names {
    list: Vec<Arc<str>>,
    index: BTreeMap<Arc<str>, NameId>,
}

static NAMES: RwLock<Names> = RwLock::new(Names { list: Vec::new(), index: BTreeMap::new() });

/// The number of a name, which is kept for as long as the process runs.
pub(crate) fn intern(name: &str) -> NameId {
    let known = NAMES.read().unwrap_or_else(PoisonError::into_inner).index.get(name).copied();
    known.unwrap_or_else(|| {
        let mut names = NAMES.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(&id) = names.index.get(name) {
            return id;
        }
        let (id, name) = (names.list.len() as NameId, Arc::<str>::from(name));
        names.list.push(name.clone());
        names.index.insert(name, id);
        id
    })
}

/// The name with this number, if there is one.
pub(crate) fn name_of(id: NameId) -> Option<Arc<str>> {
    NAMES.read().unwrap_or_else(PoisonError::into_inner).list.get(id as usize).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_number() {
        let (first, second) = (intern("a_name_has_one_number"), intern("another"));
        assert_eq!(intern("a_name_has_one_number"), first);
        assert_ne!(first, second);
        assert_eq!(name_of(second).as_deref(), Some("another"));
        assert_eq!(name_of(u32::MAX), None);
    }
}
