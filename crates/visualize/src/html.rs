//! A self-contained HTML page with all layers and heads.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle_attention::{Error, Result};
use flate2::{Compression, write::ZlibEncoder};
use quick_xml::escape::escape;
use rayon::prelude::*;

use crate::maps::AttentionMaps;
use crate::svg;
use crate::tokens::{Axis, grouped};
use crate::view::View;

/// Weights are stored and shown with four decimals.
const UNITS: f64 = 10_000.0;

/// The most characters of a text that was cut which the page shows.
const MAX_CUT: usize = 20_000;

/// The program of the page: files of one purpose each, that share one scope. All but the last also serve `docs/demo`.
const PROGRAM: [&str; 13] = [
    include_str!("page/data.js"),
    include_str!("page/weights.js"),
    include_str!("page/colors.js"),
    include_str!("page/tokens.js"),
    include_str!("page/map.js"),
    include_str!("page/readout.js"),
    include_str!("page/lines.js"),
    include_str!("page/overview.js"),
    include_str!("page/save.js"),
    include_str!("page/state.js"),
    include_str!("page/input.js"),
    include_str!("page/start.js"),
    include_str!("page/embedded.js"),
];

#[derive(serde::Serialize)]
struct Data<'a> {
    title: &'a str,
    model: &'a str,
    queries: &'a [String],
    /// Bits of each query: 1 special, 2 continues a word, 4 of the second text.
    query_marks: Vec<u8>,
    /// `None` if they equal the queries, marks included.
    keys: Option<&'a [String]>,
    key_marks: Option<Vec<u8>>,
    truncation: Option<TruncationData>,
    layers: Vec<LayerData<'a>>,
    /// The head and token that the page opens on, unless its address says otherwise; `None` is the first.
    view: Option<View>,
    light: &'a svg::Colormap,
    dark: &'a svg::Colormap,
}

#[derive(serde::Serialize)]
struct LayerData<'a> {
    layer: usize,
    heads: &'a [usize],
}

#[derive(serde::Serialize)]
struct TruncationData {
    note: String,
    /// Number of tokens that were cut.
    rest: String,
    cut: Vec<CutText>,
}

#[derive(serde::Serialize)]
struct CutText {
    text: String,
    /// Number of characters that the page does not hold.
    more: usize,
}

impl AttentionMaps {
    /// A self-contained HTML page with all layers and heads, selected by pointer, touch or keyboard: a map of a head,
    /// lines of several heads between two columns of tokens, and for each token what it looks at and what looks at it.
    /// It loads no other files and shows each weight with four decimals, rounded as by `format!("{:.4}")`. Its size is
    /// at most about 1.5 bytes per weight; weights are decompressed when they are shown.
    ///
    /// Labels and title appear as text, whatever they hold. The element `data` has them as JSON (`title`, `model`,
    /// `queries`, `keys`, `layers`, …), the element `w{i}-{j}` the weights of head `j` of entry `i` of `layers`, in
    /// Base64: a zlib stream of the low bytes, then the high bytes, of weights times 10,000.
    ///
    /// # Errors
    /// [`Error::Value`] if there are no layers.
    pub fn html(&self) -> Result<String> {
        if self.layers.is_empty() {
            return Err(Error::value("the number of layers to show", 0, "at least 1"));
        }
        let bits = |axis: &Axis| axis.marks.iter().map(|marks| marks.bits()).collect();
        let keys = Some(&self.keys).filter(|&keys| *keys != self.queries);
        let data = Data {
            title: &self.title,
            model: &self.model,
            queries: &self.queries.names,
            query_marks: bits(&self.queries),
            keys: keys.map(|keys| keys.names.as_slice()),
            key_marks: keys.map(bits),
            truncation: self.truncation_data(),
            layers: self.layers.iter().map(|l| LayerData { layer: l.layer, heads: &l.heads }).collect(),
            view: self.telling_view(),
            light: &svg::LIGHT,
            dark: &svg::DARK,
        };
        let json = serde_json::to_string(&data).map_err(candle_core::Error::wrap)?;
        let heads: Vec<(usize, usize)> =
            self.layers.iter().enumerate().flat_map(|(i, l)| (0..l.heads.len()).map(move |at| (i, at))).collect();
        let packed: Vec<String> = heads
            .par_iter()
            .map(|&(i, at)| {
                let packed = pack(self.head_weights(&self.layers[i], at)).map_err(candle_core::Error::wrap)?;
                Ok(format!("<script type=\"application/octet-stream\" id=\"w{i}-{at}\">{packed}</script>\n"))
            })
            .collect::<Result<_>>()?;
        let names = [self.title.as_str(), self.model.as_str()];
        let title = names.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join(" · ");
        let title = if title.is_empty() { "Attention" } else { &title };
        Ok([
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>",
            &escape(title),
            "</title>\n<style>\n",
            include_str!("page/page.css"),
            "</style>\n",
            &include_str!("page/page.html").replace("{version}", env!("CARGO_PKG_VERSION")),
            "<script type=\"application/json\" id=\"data\">",
            &in_script(&json),
            "</script>\n",
            &packed.concat(),
            "<script>\n\"use strict\";\n(() => {\n",
            &PROGRAM.concat(),
            "})();\n</script>\n</body>\n</html>\n",
        ]
        .concat())
    }

    fn truncation_data(&self) -> Option<TruncationData> {
        let (truncation, note) = (self.truncation.as_ref()?, self.truncation_note()?);
        let cut = truncation.cut.iter().map(|text| {
            let end = text.char_indices().nth(MAX_CUT).map_or(text.len(), |(end, _)| end);
            CutText { text: text[..end].to_string(), more: text[end..].chars().count() }
        });
        let rest = grouped(truncation.total_tokens - self.queries.len());
        Some(TruncationData { note, rest, cut: cut.collect() })
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
