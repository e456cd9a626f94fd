//! Rendering of the SVG picture to PNG.

use candle_attention::{Error, Result};
use resvg::{tiny_skia, usvg};

use crate::visualize::maps::AttentionMaps;

/// The most pixels of a picture, 2 GiB of them. The 12 heads of a layer with 128 tokens at a scale of 4 have 230 million.
const MAX_PIXELS: u64 = 1 << 29;

impl AttentionMaps {
    /// The picture of [`svg`](Self::svg) as a PNG file with the system's fonts; `scale` is the number of pixels per SVG unit.
    ///
    /// # Errors
    /// [`Error::Value`] for a layer that was not added, for a scale outside 0.1 to 8, for more than 2^29 pixels, and on a
    /// system without fonts.
    pub fn png(&self, layer: usize, scale: f32) -> Result<Vec<u8>> {
        if !(0.1..=8.0).contains(&scale) {
            return Err(Error::value("scale", scale, "0.1 to 8"));
        }
        let wrong = |e: &dyn std::fmt::Display| Error::value("the picture", e, "one that can be drawn");
        let mut options = usvg::Options::default();
        let fonts = options.fontdb_mut();
        fonts.load_system_fonts();
        if fonts.is_empty() {
            return Err(Error::value("the system's fonts", "none", "at least one, for the labels"));
        }
        let mono = fonts.faces().find(|face| face.monospaced).or_else(|| fonts.faces().next());
        // The generic family `monospace` is not mapped to an installed font by default.
        if let Some(family) = mono.and_then(|face| face.families.first()).map(|(name, _)| name.clone()) {
            fonts.set_monospace_family(family);
        }
        let tree = usvg::Tree::from_str(&self.svg(layer)?, &options).map_err(|e| wrong(&e))?;
        let size = tree.size().to_int_size().scale_by(scale).ok_or_else(|| wrong(&"too small"))?;
        let count = u64::from(size.width()) * u64::from(size.height());
        if count > MAX_PIXELS {
            return Err(Error::value("the number of pixels of the picture", count, format!("at most {MAX_PIXELS}")));
        }
        let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height()).ok_or_else(|| wrong(&"too large"))?;
        resvg::render(&tree, tiny_skia::Transform::from_scale(scale, scale), &mut pixels.as_mut());
        pixels.encode_png().map_err(|e| wrong(&e))
    }
}
