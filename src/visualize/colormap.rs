//! From a weight to a colour.

/// Colours between which is mixed, from no weight to the largest.
pub(crate) type Ramp = [[u8; 3]; 6];

/// On white.
pub(crate) const LIGHT: Ramp =
    [[255, 255, 255], [214, 230, 244], [147, 196, 222], [74, 151, 201], [24, 100, 170], [8, 45, 100]];
/// On black.
pub(crate) const DARK: Ramp =
    [[22, 27, 34], [27, 58, 92], [28, 106, 143], [47, 163, 163], [143, 214, 148], [250, 245, 180]];

/// The colour at `level` of 0 to 1.
pub(crate) fn color(ramp: &Ramp, level: f32) -> [u8; 3] {
    let at = level.clamp(0.0, 1.0) * (ramp.len() - 1) as f32;
    let low = (at as usize).min(ramp.len() - 2);
    let share = at - low as f32;
    std::array::from_fn(|i| {
        let (a, b) = (f32::from(ramp[low][i]), f32::from(ramp[low + 1][i]));
        (a + (b - a) * share).round() as u8
    })
}

/// How far up the ramp a weight stands: by its square root, for most weights are small beside the largest.
pub(crate) fn level(weight: f32, largest: f32) -> f32 {
    if largest > 0.0 { (weight / largest).clamp(0.0, 1.0).sqrt() } else { 0.0 }
}

/// The largest of some weights.
pub(crate) fn largest(weights: &[f32]) -> f32 {
    weights.iter().copied().fold(0.0, f32::max)
}
