//! Functions of single values, and of a gate and the value that it lets through.

/// Combination of a gate and an up projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `gate / (1 + e^-gate) * up`.
    Silu,
    /// `gelu(gate) * up`, see [`Function::Gelu`].
    Gelu,
    /// `g / (1 + e^(-1.702 g)) * (u + 1)`, with `g` the gate, at most 7, and `u` between -7 and 7:
    /// gpt-oss.
    SwigluOai,
}

/// A function of single values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// `cap * tanh(x / cap)`: about `x` where that is small, and never beyond `cap`, which is
    /// positive.
    SoftCap(f32),
    /// `factor * x`.
    Scale(f32),
    /// `x` between a lower and an upper bound, which may be infinite; NaN stays NaN.
    Clamp(f32, f32),
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
    Gelu,
    /// `max(x, 0)^2`.
    SquaredRelu,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `x / (1 + e^-x)`.
    Silu,
    /// `ln(1 + e^x)`.
    Softplus,
    /// `e^x`; arguments outside [-87.3, 88.3] are clamped.
    Exp,
    /// xIELU (Huang and Schlag 2024), see [`Xielu`].
    Xielu(Xielu),
}

/// Coefficients of xIELU: `positive x^2 + linear x` above 0, and otherwise
/// `negative (e^min(x, least) - 1 - x) + linear x`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // the fields are the formula's names
pub struct Xielu {
    pub positive: f32,
    pub negative: f32,
    pub linear: f32,
    /// A negative number close to 0.
    pub least: f32,
}
