//! Writes the JavaScript and TypeScript bindings of a compiled module: `bindgen MODULE.wasm FOLDER`.
//!
//! The same library that `wasm-bindgen-cli` calls, in the version of the lock file, which must be that of the module.

use std::path::PathBuf;

use anyhow::Context;
use wasm_bindgen_cli_support::Bindgen;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (module, folder) = arguments.next().zip(arguments.next()).context("expected MODULE.wasm FOLDER")?;
    let mut bindgen = Bindgen::new();
    bindgen.input_path(module).out_name("bindings").web(true)?.typescript(true);
    bindgen.generate(folder)
}
