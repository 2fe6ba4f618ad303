//! What strides say about the memory layout of a tensor.
//!
//! Source: burn-cubecl 0.23.0-pre.1, `kernel/memory_order.rs`.

use burn_backend::Shape;
use burn_std::Strides;
use burn_std::tensor::layout::nested_dim_order;
use smallvec::SmallVec;

/// The dimensions of a tensor, outermost first.
pub(crate) type Order = SmallVec<[usize; 6]>;

/// Whether a tensor has all its elements in the same places with other strides. The strides of dimensions of size one do not matter.
pub(crate) fn lie_alike(shape: &Shape, strides: &Strides, others: &Strides) -> bool {
    (0..shape.num_dims()).all(|axis| shape[axis] == 1 || strides[axis] == others[axis])
}

/// The order in which an elementwise kernel walks through a tensor: the order of the indices if memory has the same order, otherwise the order in memory,
/// with dimensions of size one first. `None` if elements share memory or a stride is zero: then nothing is written over the tensor.
pub(crate) fn walked(shape: &Shape, strides: &Strides) -> Option<Order> {
    let nested = nested_dim_order(shape, strides).filter(|_| !strides.contains(&0))?;
    let (single, mut order): (Order, Order) = nested.iter().copied().partition(|&axis| shape[axis] == 1);
    if order.is_sorted() {
        return Some((0..shape.num_dims()).collect());
    }
    let mut all = single;
    all.sort_unstable();
    all.append(&mut order);
    Some(all)
}

/// The strides of a new tensor whose dimensions are in this order in memory.
pub(crate) fn dense(shape: &Shape, order: &Order) -> Strides {
    let mut strides: Order = SmallVec::from_elem(1, order.len());
    let mut elements = 1;
    for &axis in order.iter().rev() {
        strides[axis] = elements;
        elements *= shape[axis];
    }
    Strides::new(&strides)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_last_are_walked_in_their_order_and_single_ones_in_that_of_indices() {
        let shape = Shape::new([2, 3, 4, 5]);
        let last = Strides::new(&[60, 1, 15, 3]);
        let order = walked(&shape, &last).unwrap();
        assert_eq!(order.as_slice(), [0, 2, 3, 1]);
        assert_eq!(dense(&shape, &order), last);
        let one = Shape::new([2, 1, 4, 5]);
        let (last, first) = (Strides::new(&[20, 1, 5, 1]), Strides::new(&[20, 20, 5, 1]));
        assert_eq!(dense(&one, &walked(&one, &last).unwrap()), first);
        assert!(lie_alike(&one, &last, &first) && last != first);
        assert_eq!(walked(&shape, &Strides::new(&[0, 20, 5, 1])), None, "repeated");
        assert_eq!(walked(&one, &Strides::new(&[20, 0, 5, 1])), None, "expanded");
    }
}
