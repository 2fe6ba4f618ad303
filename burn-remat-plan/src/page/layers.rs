//! How memory is divided into bands.
//!
//! The values that take up the most memory over time without evictions (bytes times time) have a band of their own. The other activations are
//! summed in groups, in the order in which they are computed, so that deep models show their depth; other gradients and the inputs are one band
//! each. A value is in one band, and the bands are the same for all plans, so that they keep their colours.

use crate::graph::{Graph, ValueId};
use crate::plan::Step;

use super::model::{Kind, Layer};
use super::rows::kind_of;
use super::run::Run;
use super::texts::Names;

/// Largest number of bands of single activations, and of single gradients.
const MOST_SINGLE: [usize; 2] = [30, 10];
/// Number of bands into which the other activations are divided, if there are many.
const GROUPS: usize = 8;

/// The bands from the bottom up: constants first, the scratch of the running op last.
pub(super) struct Layers {
    bands: Vec<Band>,
    /// The band of each value.
    pub of: Vec<usize>,
}

struct Band {
    kind: Kind,
    /// In the order in which they are computed.
    values: Vec<ValueId>,
    is_single: bool,
}

impl Layers {
    /// Divides the values of a graph.
    pub fn of(graph: &Graph, store_all: &Run) -> Self {
        let areas = areas(graph, store_all);
        let mut computed: Vec<ValueId> = (0..areas.len()).filter(|&value| graph.producer(value).is_some()).collect();
        computed.sort_by(|&a, &b| areas[b].total_cmp(&areas[a]).then(a.cmp(&b)));
        let of_kind = |kind: Kind| computed.iter().copied().filter(move |&value| kind_of(graph, value) == kind);
        let divided = |kind: Kind, most: usize, groups: usize| {
            let singles = of_kind(kind).take_while(|&value| areas[value] > 0.0).take(most).map(|value| vec![value]);
            let mut bands: Vec<Band> = singles.map(|values| Band { kind, values, is_single: true }).collect();
            let mut others: Vec<ValueId> = of_kind(kind).skip(bands.len()).collect();
            others.sort_by_key(|&value| (graph.producer(value), value));
            let size = others.len().div_ceil(groups).max(1);
            bands.extend(others.chunks(size).map(|part| Band { kind, values: part.to_vec(), is_single: false }));
            bands.sort_by_key(|band| graph.producer(band.values[0]));
            bands
        };
        let mut bands = vec![Band { kind: Kind::Constant, values: Vec::new(), is_single: false }];
        bands.push(Band { kind: Kind::Input, values: graph.inputs().collect(), is_single: false });
        bands.extend(divided(Kind::Activation, MOST_SINGLE[0], GROUPS));
        bands.extend(divided(Kind::Gradient, MOST_SINGLE[1], 1));
        bands.push(Band { kind: Kind::Scratch, values: Vec::new(), is_single: false });
        let mut of = vec![0; areas.len()];
        for (band, Band { values, .. }) in bands.iter().enumerate() {
            values.iter().for_each(|&value| of[value] = band);
        }
        Self { bands, of }
    }

    /// The number of bands.
    pub fn count(&self) -> usize {
        self.bands.len()
    }

    /// The values with a band of their own.
    pub fn singles(&self) -> Vec<ValueId> {
        self.bands.iter().filter(|band| band.is_single).map(|band| band.values[0]).collect()
    }

    /// What the page says about the bands. `rows` are the values that have a row.
    pub fn described(&self, graph: &Graph, rows: &[ValueId], names: &mut Names<'_>) -> Vec<Layer> {
        let describe = |band: &Band| {
            let row = band
                .values
                .first()
                .filter(|_| band.is_single)
                .and_then(|value| rows.iter().position(|row| row == value));
            let mut place =
                |value: Option<&ValueId>| value.and_then(|&value| graph.producer(value)).map(|op| names.place(op));
            let group = match (place(band.values.first()), place(band.values.last())) {
                (Some(first), Some(last)) if first == last => first,
                (Some(first), Some(last)) => format!("{first} to {last}"),
                _ => String::new(),
            };
            let group = (!band.is_single && !group.is_empty()).then(|| names.texts.index(&group));
            Layer { kind: band.kind, row, group }
        };
        self.bands.iter().map(describe).collect()
    }
}

/// For each value, bytes times the time for which it is held.
fn areas(graph: &Graph, run: &Run) -> Vec<f64> {
    let mut since: Vec<Option<f64>> = vec![None; graph.values().len()];
    let mut areas = vec![0.0; since.len()];
    let mut now = 0.0;
    for (step, time) in run.plan.steps.iter().zip(&run.times) {
        match *step {
            Step::Evict(value) => {
                if let Some(since) = since[value].take() {
                    areas[value] += graph.bytes(value) as f64 * (now - since);
                }
            }
            Step::Compute(op) | Step::ComputeAlternative(op, _) => {
                for &value in &graph.ops()[op].outputs {
                    since[value].get_or_insert(now);
                }
                now += time;
            }
        }
    }
    for (value, since) in since.into_iter().enumerate() {
        areas[value] += since.map_or(0.0, |since| graph.bytes(value) as f64 * (now - since));
    }
    areas
}
