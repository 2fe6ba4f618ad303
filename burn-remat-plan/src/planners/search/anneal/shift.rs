//! The move *shift*: a repeat runs at another position.

use super::super::state::{END, Instance, START};
use super::Walk;

impl Walk<'_, '_> {
    pub(super) fn shift(&mut self) -> bool {
        let repeats = self.state.repeats();
        if repeats.is_empty() {
            return false;
        }
        let instance = repeats[self.random.below(repeats.len())];
        let op = self.state.op(instance);
        let label = |i: Instance| self.state.label(i);
        // It may go anywhere after its inputs and the previous repeat of its op, and before its first use.
        let mut low = START;
        for &value in &self.state.way(instance).inputs {
            let Some(span) = self.state.span(value, instance) else { return false };
            low = if label(span.start) > label(low) { span.start } else { low };
        }
        let earlier = self.last_before(op, label(instance));
        low = earlier.filter(|&i| label(i) > label(low)).unwrap_or(low);
        let (low, high) = (label(low), label(self.first_use(instance)));
        let short = self.random.chance(0.5);
        for _ in 0..6 {
            // Half of the moves go a short way: most gains lie near.
            let steps = self.random.below(7) as i32 - 3;
            let target = if short { self.state.near(instance, steps) } else { self.anywhere() };
            let at = self.state.label(target);
            if target != instance && at > low && at <= high && target != self.state.near(instance, 1) {
                self.move_to(instance, target);
                return true;
            }
        }
        false
    }

    /// The first use of what `instance` computes, before that is computed again; [`END`] if there is none, or if it is at the end.
    pub(super) fn first_use(&self, instance: Instance) -> Instance {
        let outputs = &self.state.problem.graph.ops()[self.state.op(instance)].outputs;
        let uses = outputs.iter().filter_map(|&value| self.state.span_behind(value, instance)?.next);
        uses.min_by_key(|&next| self.state.label(next)).unwrap_or(END)
    }

    /// Moves a repeat to just before `target`.
    pub(super) fn move_to(&mut self, instance: Instance, target: Instance) {
        let way = self.state.way_id(instance);
        self.state.remove(instance);
        self.state.insert(way, target);
    }
}
