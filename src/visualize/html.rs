//! A self-contained HTML page with all layers and heads.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::{Compression, write::ZlibEncoder};
use quick_xml::escape::escape;
use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::visualize::colormap;
use crate::visualize::maps::AttentionMaps;

/// Weights are stored and shown with four decimals.
const UNITS: f64 = 10_000.0;

#[derive(serde::Serialize)]
struct Data<'a> {
    title: &'a str,
    queries: &'a [String],
    /// `None` if they equal the queries.
    keys: Option<&'a [String]>,
    layers: Vec<LayerData<'a>>,
    light: &'a colormap::Colormap,
    dark: &'a colormap::Colormap,
}

#[derive(serde::Serialize)]
struct LayerData<'a> {
    layer: usize,
    heads: &'a [usize],
}

impl AttentionMaps {
    /// A self-contained HTML page with all layers and heads, selected by pointer or keyboard. It loads no other files and
    /// shows each weight with four decimals, rounded as by `format!("{:.4}")`. Its size is at most about 1.5 bytes per weight;
    /// weights are decompressed when they are shown.
    ///
    /// Labels and title appear as text, whatever they hold. The element `data` has them as JSON (`title`, `queries`,
    /// `keys`, `layers`), the element `w{i}-{j}` the weights of head `j` of entry `i` of `layers`, in Base64: a zlib
    /// stream of the low bytes, then the high bytes, of weights times 10,000.
    ///
    /// # Errors
    /// [`Error::Value`] if there are no layers.
    pub fn html(&self) -> Result<String> {
        if self.layers.is_empty() {
            return Err(Error::value("the number of layers to show", 0, "at least 1"));
        }
        let data = Data {
            title: &self.title,
            queries: &self.queries,
            keys: (self.keys != self.queries).then_some(&self.keys),
            layers: self.layers.iter().map(|l| LayerData { layer: l.layer, heads: &l.heads }).collect(),
            light: &colormap::LIGHT,
            dark: &colormap::DARK,
        };
        let json = serde_json::to_string(&data).map_err(candle_core::Error::wrap)?;
        let heads: Vec<(usize, usize)> =
            self.layers.iter().enumerate().flat_map(|(i, l)| (0..l.heads.len()).map(move |at| (i, at))).collect();
        let packed: Vec<String> = heads
            .par_iter()
            .map(|&(i, at)| {
                let packed = pack(self.of_head(&self.layers[i], at)).map_err(candle_core::Error::wrap)?;
                Ok(format!("<script type=\"application/octet-stream\" id=\"w{i}-{at}\">{packed}</script>\n"))
            })
            .collect::<Result<_>>()?;
        let title = if self.title.is_empty() { "Attention".into() } else { escape(&self.title) };
        Ok([
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>",
            &title,
            "</title>\n<style>\n",
            include_str!("page.css"),
            "</style>\n",
            include_str!("page.html"),
            "<script type=\"application/json\" id=\"data\">",
            &in_script(&json),
            "</script>\n",
            &packed.concat(),
            "<script>\n",
            include_str!("page.js"),
            "</script>\n</body>\n</html>\n",
        ]
        .concat())
    }
}

/// Compresses weights as 16-bit integers: all low bytes, then all high bytes, which compresses better than pairs.
fn pack(weights: &[f32]) -> std::io::Result<String> {
    let units = |weight: &f32| (f64::from(*weight) * UNITS).round_ties_even() as u16;
    let low = weights.iter().map(|weight| units(weight) as u8);
    let high = weights.iter().map(|weight| (units(weight) >> 8) as u8);
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
    encoder.write_all(&low.chain(high).collect::<Vec<u8>>())?;
    Ok(STANDARD.encode(encoder.finish()?))
}

/// Escapes JSON so that it cannot end the script element around it.
fn in_script(json: &str) -> String {
    let escaped = |c: char| match c {
        '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    json.chars().map(escaped).collect()
}
