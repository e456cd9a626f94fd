//! Colormaps: from an attention weight to a color.

/// Equidistant colors from weight 0 to the largest weight, interpolated linearly.
pub(crate) type Colormap = [[u8; 3]; 6];

/// For a white background.
pub(crate) const LIGHT: Colormap =
    [[255, 255, 255], [214, 230, 244], [147, 196, 222], [74, 151, 201], [24, 100, 170], [8, 45, 100]];
/// For a black background.
pub(crate) const DARK: Colormap =
    [[22, 27, 34], [27, 58, 92], [28, 106, 143], [47, 163, 163], [143, 214, 148], [250, 245, 180]];

/// The color at `level`, from 0 to 1.
pub(crate) fn color(colormap: &Colormap, level: f32) -> [u8; 3] {
    let position = level.clamp(0.0, 1.0) * (colormap.len() - 1) as f32;
    let low = (position as usize).min(colormap.len() - 2);
    let fraction = position - low as f32;
    std::array::from_fn(|i| {
        let (a, b) = (f32::from(colormap[low][i]), f32::from(colormap[low + 1][i]));
        (a + (b - a) * fraction).round() as u8
    })
}

/// The level of a weight: the square root of its ratio to the largest, because most weights are small compared with it.
pub(crate) fn level(weight: f32, largest: f32) -> f32 {
    if largest > 0.0 { (weight / largest).clamp(0.0, 1.0).sqrt() } else { 0.0 }
}

/// The largest of the weights.
pub(crate) fn largest(weights: &[f32]) -> f32 {
    weights.iter().copied().fold(0.0, f32::max)
}
