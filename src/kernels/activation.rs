//! The element-wise activations that a matrix product can end with, on every device.

/// An element-wise activation. The discriminants are those that `cuda/source/rowwise.cuh` reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x`.
    Identity = 0,
    /// `x · Φ(x)`, exact by the error function ([Hendrycks 2016](https://arxiv.org/abs/1606.08415)).
    Gelu = 1,
    /// `x · Φ(x)`, approximated by the hyperbolic tangent.
    GeluTanh = 2,
    /// `x / (1 + e^-x)`, also called Swish ([Elfwing 2017](https://arxiv.org/abs/1702.03118)).
    Silu = 3,
    /// `max(x, 0)`.
    Relu = 4,
}
