//! What an operation may write over: the inputs whose buffers its result may take, on a GPU and on the CPU.
//!
//! Source: burn-cubecl and burn-flex 0.23.0-pre.1. A test of the rehearsal compares what this file says about the CPU with what happens there.

use burn_ir::{
    ActivationOperationIr, BaseOperationIr, BoolOperationIr, FloatOperationIr, NumericOperationIr, OperationIr,
    TensorIr,
};
use smallvec::{SmallVec, smallvec};

/// Inputs of an operation, by preference.
pub(super) type Inputs<'a> = SmallVec<[&'a TensorIr; 2]>;

/// An operation whose result may have the layout of the input that it writes over.
pub(super) struct Overwrites<'a> {
    /// The inputs that it may write over, by preference.
    pub inputs: Inputs<'a>,
    /// Whether a result in a buffer of its own also has the layout of the inputs if they all have the same one. Otherwise it is in the order of its
    /// indices.
    pub walks: bool,
}

/// What an operation may write over on a GPU, if its result has the shape and type of what it reads.
pub(super) fn overwrites(op: &OperationIr) -> Option<Overwrites<'_>> {
    let (inputs, walks): (Inputs<'_>, bool) = match op {
        OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => (number_overwritten(op)?, true),
        OperationIr::Float(_, op) => (float_overwritten(op)?, true),
        OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) => match op {
            BaseOperationIr::MaskWhere(op) => (smallvec![&op.tensor, &op.value], false),
            BaseOperationIr::MaskFill(op) => (smallvec![&op.tensor], false),
            BaseOperationIr::SliceAssign(op) => (smallvec![&op.tensor], true),
            BaseOperationIr::Scatter(op) => (smallvec![&op.tensor], true),
            BaseOperationIr::SelectAssign(op) => (smallvec![&op.tensor], true),
            _ => return None,
        },
        OperationIr::Activation(op) => activation_overwritten(op)?,
        _ => return None,
    };
    let inputs = like_the_result(op, inputs);
    (!inputs.is_empty()).then_some(Overwrites { inputs, walks })
}

/// What an operation may write over on the CPU.
pub(super) fn overwrites_on_host(op: &OperationIr) -> Inputs<'_> {
    use ActivationOperationIr::{
        GeluBackward, HardSigmoid, LogSigmoid, LogSigmoidBackward, LogSoftmax, PRelu, ReluBackward, SigmoidBackward,
    };
    use BaseOperationIr::{MaskFill, MaskWhere, SliceAssign};
    use BoolOperationIr::{And, Not, Or, Xor};
    use NumericOperationIr::{ClampMax, ClampMin, PowiScalar};
    let inputs: Inputs<'_> = match op {
        // The square is a product of the input with itself, and the zeroth power is all ones.
        OperationIr::NumericFloat(_, PowiScalar(op)) | OperationIr::NumericInt(_, PowiScalar(op)) => {
            let exponent: i64 = op.rhs.elem();
            if matches!(exponent, -2 | 0 | 2) { Inputs::new() } else { smallvec![&op.lhs] }
        }
        OperationIr::NumericFloat(_, ClampMin(op) | ClampMax(op))
        | OperationIr::NumericInt(_, ClampMin(op) | ClampMax(op))
        | OperationIr::Float(_, FloatOperationIr::PowfScalar(op)) => smallvec![&op.lhs],
        OperationIr::Bool(Not(op)) | OperationIr::Activation(LogSigmoid(op)) => smallvec![&op.input],
        OperationIr::Bool(And(op) | Or(op) | Xor(op))
        | OperationIr::Activation(
            ReluBackward(op) | GeluBackward(op) | SigmoidBackward(op) | LogSigmoidBackward(op) | PRelu(op),
        ) => {
            smallvec![&op.lhs, &op.rhs]
        }
        OperationIr::Activation(HardSigmoid(op)) => smallvec![&op.tensor],
        OperationIr::Activation(LogSoftmax(op)) => smallvec![&op.input],
        OperationIr::BaseBool(SliceAssign(op)) => smallvec![&op.tensor],
        OperationIr::BaseBool(MaskWhere(op)) => smallvec![&op.tensor, &op.value],
        OperationIr::BaseBool(MaskFill(op)) => smallvec![&op.tensor],
        _ => return overwrites(op).map_or_else(Inputs::new, |overwrites| overwrites.inputs),
    };
    like_the_result(op, inputs)
}

/// Those of an operation's inputs that have the shape and type of its result.
fn like_the_result<'a>(op: &'a OperationIr, inputs: Inputs<'a>) -> Inputs<'a> {
    let Some(out) = op.outputs().next() else { return Inputs::new() };
    inputs.into_iter().filter(|input| input.shape == out.shape && input.dtype == out.dtype).collect()
}

/// What an operation on numbers may write over.
fn number_overwritten(op: &NumericOperationIr) -> Option<Inputs<'_>> {
    use NumericOperationIr::{
        Abs, Add, AddScalar, Clamp, Div, DivScalar, Mul, MulScalar, Neg, Powi, Rem, RemScalar, Sign, Sub, SubScalar,
    };
    match op {
        Add(op) | Sub(op) | Mul(op) | Div(op) | Rem(op) | Powi(op) => Some(smallvec![&op.lhs, &op.rhs]),
        // Scalar powers are not among these: the square is a product of the input with itself, and the first power is the input.
        AddScalar(op) | SubScalar(op) | MulScalar(op) | DivScalar(op) | RemScalar(op) => Some(smallvec![&op.lhs]),
        Abs(op) | Neg(op) | Sign(op) => Some(smallvec![&op.input]),
        Clamp(op) => Some(smallvec![&op.tensor]),
        _ => None,
    }
}

/// What an operation on floats may write over.
fn float_overwritten(op: &FloatOperationIr) -> Option<Inputs<'_>> {
    use FloatOperationIr::{
        ArcCos, ArcCosh, ArcSin, ArcSinh, ArcTan, ArcTan2, ArcTanh, Ceil, Cos, Cosh, Erf, Exp, Floor, Fmod, FmodScalar,
        Hypot, Log, Log1p, Powf, Recip, Round, Sin, Sinh, Sqrt, Tan, Tanh, Trunc,
    };
    match op {
        Powf(op) | Hypot(op) | ArcTan2(op) | Fmod(op) => Some(smallvec![&op.lhs, &op.rhs]),
        FmodScalar(op) => Some(smallvec![&op.lhs]),
        Exp(op) | Log(op) | Log1p(op) | Erf(op) | Sqrt(op) | Recip(op) | Round(op) | Floor(op) | Ceil(op)
        | Trunc(op) | Cos(op) | Cosh(op) | Sin(op) | Sinh(op) | Tan(op) | Tanh(op) | ArcCos(op) | ArcCosh(op)
        | ArcSin(op) | ArcSinh(op) | ArcTan(op) | ArcTanh(op) => Some(smallvec![&op.input]),
        _ => None,
    }
}

/// What an activation may write over, and whether its result has that layout even where it may not write over it.
fn activation_overwritten(op: &ActivationOperationIr) -> Option<(Inputs<'_>, bool)> {
    use ActivationOperationIr::{Gelu, GeluBackward, LeakyRelu, PRelu, Relu, ReluBackward, Sigmoid, SigmoidBackward};
    match op {
        // Negative elements are filled with zeros, through a mask.
        Relu(op) => Some((smallvec![&op.input], false)),
        ReluBackward(op) => Some((smallvec![&op.rhs], false)),
        Gelu(op) | Sigmoid(op) => Some((smallvec![&op.input], true)),
        GeluBackward(op) | SigmoidBackward(op) => Some((smallvec![&op.lhs, &op.rhs], true)),
        // If it may not, it writes over the scaled copy.
        LeakyRelu(op) => Some((smallvec![&op.lhs], true)),
        PRelu(op) => Some((smallvec![&op.lhs], true)),
        _ => None,
    }
}
