//! Describes Burn's operations to the core: their kind, what they read and make, whether they can run again.
//!
//! Larger than the rule: `joining`, because it is one table of operations.

use std::fmt::{self, Write};
use std::hash::{Hash, Hasher};
use std::mem::discriminant;

use burn_backend::{DType, Distribution};
use burn_ir::{
    ActivationOperationIr, BaseOperationIr, FloatOperationIr, IntOperationIr, IrVisitorMut, ModuleOperationIr,
    NumericOperationIr, OperationIr, TensorId, TensorIr, TensorStatus,
};
use rustc_hash::FxHasher;

use burn_remat_core::{Input, Kind, Nature, Need, Operation, TensorFacts};

use crate::backend::{Padding, RematBackend, tensor_bytes};

/// A short, readable name: `Module.Conv2d`, `NumericFloat.Add`.
///
/// It is cut from the `Debug` form. Formatting stops as soon as the name is complete.
pub(crate) fn operation_name(op: &OperationIr) -> String {
    struct Head {
        text: String,
    }
    impl Write for Head {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            match part.find('{') {
                Some(end) => {
                    self.text.push_str(&part[..end]);
                    Err(fmt::Error)
                }
                None => {
                    self.text.push_str(part);
                    if self.text.len() > 120 { Err(fmt::Error) } else { Ok(()) }
                }
            }
        }
    }
    if let OperationIr::Custom(op) = op {
        return format!("Custom.{}", op.id);
    }
    let mut head = Head { text: String::new() };
    // An error only means that the name is complete.
    let _ = write!(head, "{op:?}");
    // `NumericFloat(F32, Add(BinaryOpIr ` -> `NumericFloat.Add`
    let mut parts = head.text.split(['(', ',', ' ']).filter(|part| !part.is_empty() && !part.ends_with("Ir"));
    let family = parts.next().unwrap_or("operation");
    match parts.next_back() {
        Some(name) => format!("{family}.{name}"),
        None => family.to_owned(),
    }
}

/// A number for the kind of an operation, whatever its tensors and options.
#[inline]
pub(super) fn operation_kind(op: &OperationIr) -> Kind {
    let mut hasher = FxHasher::default();
    discriminant(op).hash(&mut hasher);
    match op {
        OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => {
            discriminant(op).hash(&mut hasher);
        }
        OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => discriminant(op).hash(&mut hasher),
        OperationIr::Bool(op) => discriminant(op).hash(&mut hasher),
        OperationIr::Int(op) => discriminant(op).hash(&mut hasher),
        OperationIr::Float(_, op) => discriminant(op).hash(&mut hasher),
        OperationIr::Module(op) => discriminant(op).hash(&mut hasher),
        OperationIr::Activation(op) => discriminant(op).hash(&mut hasher),
        OperationIr::Custom(op) => op.id.hash(&mut hasher),
        OperationIr::Init(_) | OperationIr::Drop(_) => {}
    }
    // The first variants would give 0, which stands for no operation.
    hasher.finish() | 1
}

/// Shows `see` all tensors of an operation, outputs (those without data yet) last. [`OperationIr::inputs`] and `outputs` do so too, but allocate memory
/// each time.
#[inline]
pub(super) fn for_each_tensor(op: &mut OperationIr, see: impl FnMut(&TensorIr)) {
    struct See<F>(F);
    impl<F: FnMut(&TensorIr)> IrVisitorMut for See<F> {
        #[inline]
        fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
            (self.0)(tensor);
        }
    }
    op.visit_mut(&mut See(see));
}

/// What the core is told about a tensor.
#[inline]
pub(super) fn facts(ir: &TensorIr, padding: Padding) -> TensorFacts {
    let mut hasher = FxHasher::default();
    ir.shape.hash(&mut hasher);
    ir.dtype.hash(&mut hasher);
    let (id, shape, bytes) = (ir.id.value(), hasher.finish(), tensor_bytes(&ir.shape, ir.dtype));
    TensorFacts { id, shape, bytes, buffer_bytes: padding.around(bytes, &ir.shape, ir.dtype) }
}

/// What the core is told about an operation.
#[inline]
pub(crate) fn asked<B: RematBackend>(op: &mut OperationIr, device: &B::Device, padding: Padding) -> Operation {
    let mut asked = Operation::default();
    for_each_tensor(op, |tensor| match tensor.status {
        TensorStatus::NotInit => asked.outputs.push(facts(tensor, padding)),
        status => {
            let (id, last) = (tensor.id.value(), status == TensorStatus::ReadWrite);
            match asked.inputs.iter_mut().find(|input| input.id == id) {
                Some(input) => (input.last, input.once) = (input.last || last, false),
                None => asked.inputs.push(Input { id, last, once: true }),
            }
        }
    });
    asked.kind = operation_kind(op);
    asked.nature = Nature {
        view: is_view(op),
        random: is_random(op),
        mask: is_mask(op),
        opaque: is_opaque(op),
        varies: !B::is_deterministic(device, op),
        one: is_one(op),
    };
    asked.weak = weak_input(op).map(|(ir, need)| (ir.id.value(), need));
    asked
}

/// Makes an operation only read the tensors that are `kept`.
///
/// Burn has [`OperationIr::mark_read_only`] for this, but it misses some inputs, such as the indices of a max pooling's backward.
pub(super) fn mark_read_only(op: &mut OperationIr, kept: impl Fn(TensorId) -> bool) {
    struct ReadOnly<F>(F);
    impl<F: Fn(TensorId) -> bool> IrVisitorMut for ReadOnly<F> {
        fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
            if tensor.status == TensorStatus::ReadWrite && (self.0)(tensor.id) {
                tensor.status = TensorStatus::ReadOnly;
            }
        }
    }
    op.visit_mut(&mut ReadOnly(kept));
}

/// Whether an operation draws random numbers.
pub(crate) fn is_random(op: &OperationIr) -> bool {
    matches!(
        op,
        OperationIr::Float(_, FloatOperationIr::Random(_))
            | OperationIr::NumericInt(_, NumericOperationIr::IntRandom(_))
    )
}

/// Whether the result of an operation is a single element, 1, as Burn's autodiff makes it for the gradient of the loss.
fn is_one(op: &OperationIr) -> bool {
    matches!(op, OperationIr::BaseFloat(BaseOperationIr::Ones(op)) if op.out.shape.num_elements() == 1)
}

/// Whether an operation draws a mask, as dropout does. No parameter is initialised as a mask.
pub(super) fn is_mask(op: &OperationIr) -> bool {
    matches!(op, OperationIr::Float(_, FloatOperationIr::Random(op)) if matches!(op.distribution, Distribution::Bernoulli(_)))
}

/// Whether an operation cannot be trusted to give the same result twice: uninitialised memory and user code.
pub(super) fn is_opaque(op: &OperationIr) -> bool {
    matches!(op, OperationIr::Custom(_)) || matches!(base(op), Some(BaseOperationIr::Empty(_)))
}

/// The operation, if it is one on tensors of any type.
pub(super) fn base(op: &OperationIr) -> Option<&BaseOperationIr> {
    match op {
        OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => Some(op),
        _ => None,
    }
}

/// The input of which an operation needs only the signs or the shape.
#[inline]
pub(super) fn weak_input(op: &OperationIr) -> Option<(&TensorIr, Need)> {
    let (input, need) = match op {
        OperationIr::Activation(ActivationOperationIr::ReluBackward(op)) => (&op.lhs, Need::Signs),
        OperationIr::Module(ModuleOperationIr::MaxPool2dWithIndicesBackward(op)) => (&op.x, Need::Shape),
        OperationIr::Module(ModuleOperationIr::MaxPool3dWithIndicesBackward(op)) => (&op.x, Need::Shape),
        OperationIr::Module(ModuleOperationIr::AvgPool2dBackward(op)) => (&op.x, Need::Shape),
        OperationIr::Module(ModuleOperationIr::AvgPool3dBackward(op)) => (&op.x, Need::Shape),
        OperationIr::Module(ModuleOperationIr::AdaptiveAvgPool2dBackward(op)) => (&op.x, Need::Shape),
        OperationIr::Module(ModuleOperationIr::InterpolateBackward(op)) => (&op.x, Need::Shape),
        _ => return None,
    };
    // The same tensor may also be another input, the gradient for example.
    let is_once = op.inputs().filter(|other| other.id == input.id).count() == 1;
    is_once.then_some((input, need))
}

/// Whether a result of an operation has the shape and type of an input.
pub(super) fn may_hold(op: &OperationIr, input: &TensorIr) -> bool {
    op.outputs().any(|out| out.shape == input.shape && out.dtype == input.dtype)
}

/// A number for the shape of the result of an operation that a fusing device joins with others of that shape: elementwise operations, as
/// burn-cubecl-fusion knows them. There, an activation is made of several of these.
pub(super) fn joining(op: &OperationIr) -> Option<u64> {
    use ActivationOperationIr::{LogSoftmax, Softmax, Softmin};
    use BaseOperationIr::{Cast, Equal, EqualElem, MaskFill, MaskWhere, Ones, Zeros};
    use FloatOperationIr::{Cos, Erf, Exp, Log, Log1p, Powf, PowfScalar, Recip, Sin, Sqrt, Tanh};
    use IntOperationIr::{
        BitwiseAnd, BitwiseAndScalar, BitwiseLeftShift, BitwiseLeftShiftScalar, BitwiseNot, BitwiseOr, BitwiseOrScalar,
        BitwiseRightShift, BitwiseRightShiftScalar, BitwiseXor, BitwiseXorScalar, IntoFloat,
    };
    use NumericOperationIr::{
        Abs, Add, AddScalar, Clamp, Div, DivScalar, Full, Greater, GreaterElem, GreaterEqual, GreaterEqualElem, Lower,
        LowerElem, LowerEqual, LowerEqualElem, Mul, MulScalar, Rem, RemScalar, Sub, SubScalar,
    };
    let joins = match op {
        OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => {
            matches!(op, Equal(_) | EqualElem(_) | Cast(_) | Ones(_) | Zeros(_) | MaskWhere(_) | MaskFill(_))
        }
        OperationIr::Float(_, op) => matches!(
            op,
            Exp(_)
                | Log(_)
                | Powf(_)
                | Log1p(_)
                | Cos(_)
                | Sin(_)
                | PowfScalar(_)
                | Tanh(_)
                | Erf(_)
                | Sqrt(_)
                | Recip(_)
        ),
        OperationIr::Int(op) => matches!(
            op,
            IntoFloat(_)
                | BitwiseAnd(_)
                | BitwiseAndScalar(_)
                | BitwiseOr(_)
                | BitwiseOrScalar(_)
                | BitwiseXor(_)
                | BitwiseXorScalar(_)
                | BitwiseNot(_)
                | BitwiseLeftShift(_)
                | BitwiseLeftShiftScalar(_)
                | BitwiseRightShift(_)
                | BitwiseRightShiftScalar(_)
        ),
        OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => matches!(
            op,
            Add(_)
                | AddScalar(_)
                | Sub(_)
                | SubScalar(_)
                | Mul(_)
                | MulScalar(_)
                | Div(_)
                | DivScalar(_)
                | Abs(_)
                | Lower(_)
                | LowerElem(_)
                | Greater(_)
                | GreaterElem(_)
                | LowerEqual(_)
                | LowerEqualElem(_)
                | GreaterEqual(_)
                | GreaterEqualElem(_)
                | Full(_)
                | Rem(_)
                | RemScalar(_)
                | Clamp(_)
        ),
        OperationIr::Activation(op) => !matches!(op, Softmax(_) | LogSoftmax(_) | Softmin(_)),
        _ => false,
    };
    let out = op.outputs().next().filter(|_| joins)?;
    let mut hasher = FxHasher::default();
    out.shape.hash(&mut hasher);
    Some(hasher.finish())
}

/// Whether an operation gives its input another shape.
pub(super) fn is_reshape(op: &OperationIr) -> bool {
    matches!(base(op), Some(BaseOperationIr::Reshape(_)))
}

/// Whether an operation reverses the order of its input's elements along some axes.
pub(super) fn is_flip(op: &OperationIr) -> bool {
    matches!(base(op), Some(BaseOperationIr::Flip(_)))
}

/// Whether the result of an operation is a view of its first input's buffer.
pub(super) fn is_view(op: &OperationIr) -> bool {
    let out = match base(op) {
        Some(BaseOperationIr::Reshape(op) | BaseOperationIr::Expand(op)) => &op.out,
        Some(BaseOperationIr::SwapDims(op)) => &op.out,
        Some(BaseOperationIr::Permute(op)) => &op.out,
        Some(BaseOperationIr::Slice(op)) => &op.out,
        _ => return false,
    };
    // The scales of blocks do not follow when the values are reordered.
    !matches!(out.dtype, DType::QFloat(scheme) if scheme.block_size().is_some())
}

#[cfg(test)]
mod tests {
    use burn_ir::{MaxPool2dWithIndicesBackwardOpIr, ModuleOperationIr};

    use super::*;

    #[test]
    fn what_is_kept_is_only_read_whichever_input_it_is() {
        let tensor = |id: u64| TensorIr {
            id: TensorId::new(id),
            shape: [1, 1, 2, 2].into(),
            status: TensorStatus::ReadWrite,
            dtype: DType::F32,
        };
        let mut op =
            OperationIr::Module(ModuleOperationIr::MaxPool2dWithIndicesBackward(MaxPool2dWithIndicesBackwardOpIr {
                x: tensor(1),
                grad: tensor(2),
                indices: tensor(3),
                kernel_size: [1, 1],
                stride: [1, 1],
                padding: [0, 0],
                dilation: [1, 1],
                ceil_mode: false,
                out: TensorIr { status: TensorStatus::NotInit, ..tensor(4) },
            }));
        mark_read_only(&mut op, |id| [1, 3].contains(&id.value()));
        let consumed = op.inputs().filter(|input| input.status == TensorStatus::ReadWrite);
        assert_eq!(consumed.map(|input| input.id).collect::<Vec<_>>(), [TensorId::new(2)]);
    }
}
