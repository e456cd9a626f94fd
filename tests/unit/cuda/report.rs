//! What NVIDIA's compiler says of the attention kernels for compute capability 9.0. `.ci/devices cuda-report` runs
//! this and prints the table of `docs/devices.md`.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use candle_core::DType;
use rayon::prelude::*;

use crate::kernels::cuda::{Features, Gpu, ProblemShape, Variant};

const HOPPER: Gpu = Gpu { capability: 90, multiprocessors: 132, shared_memory: 227 << 10 };
/// Of a multiprocessor: registers, shared memory in bytes, what it reserves of that for each block, threads and blocks.
const REGISTERS: usize = 65_536;
const SHARED: usize = 228 << 10;
const RESERVED: usize = 1 << 10;
const THREADS: usize = 2048;
const BLOCKS: usize = 32;

/// A kernel as the compiler reports it.
#[derive(Debug, PartialEq)]
struct Report {
    registers: usize,
    /// Bytes of registers that are written to memory and read back.
    spilled: [usize; 2],
}

impl Report {
    /// Reads the report of the kernel `attention` out of what ptxas prints with `-v`.
    fn parse(text: &str) -> Option<Self> {
        let (_, properties) = text.split_once("Function properties for attention\n")?;
        let number_before = |unit: &str| {
            let (before, _) = properties.split_once(unit)?;
            before.rsplit(|c: char| !c.is_ascii_digit()).find(|number| !number.is_empty())?.parse().ok()
        };
        let spilled = [number_before(" bytes spill stores")?, number_before(" bytes spill loads")?];
        Some(Self { registers: number_before(" registers")?, spilled })
    }

    /// Blocks that a multiprocessor runs at a time.
    fn blocks(&self, variant: &Variant) -> usize {
        // A warp gets registers 256 at a time.
        let warp = (32 * self.registers).next_multiple_of(256);
        let by_registers = REGISTERS / (warp * variant.threads / 32);
        let by_shared = SHARED / (variant.shared_bytes() + RESERVED);
        [by_registers, by_shared, THREADS / variant.threads, BLOCKS].into_iter().min().unwrap()
    }
}

/// Every variant that the card selects for heads of these sizes, without mask features and with all of them.
fn variants() -> Vec<Variant> {
    let (mut seen, mut variants) = (HashSet::new(), Vec::new());
    for dtype in [DType::BF16, DType::F32] {
        for d in [32, 64, 128, 256] {
            // Many queries of many heads select the largest tile, fewer the next ones; few heads share keys.
            for (work_items, query_rows) in [(10_000, 4096), (10_000, 60), (10_000, 30), (10_000, 1), (8, 1)] {
                for features in [0, 31].map(Features) {
                    let shape = ProblemShape { dtype, d, d_v: d, work_items, query_rows, keys: 4096, features };
                    let variant = Variant::select(shape, HOPPER).unwrap();
                    if seen.insert(variant) {
                        variants.push(variant);
                    }
                }
            }
        }
    }
    variants
}

fn compile(variant: &Variant, nvcc: &str, folder: &Path, number: usize) -> Report {
    let source = folder.join(format!("{number}.cu"));
    std::fs::write(&source, variant.source(include_str!("../../../src/kernels/cuda/source/device.cuh"))).unwrap();
    let mut command = Command::new(nvcc);
    command.args(["-arch=sm_90", "-std=c++17", "-cubin", "-Xptxas", "-v", "-o"]).arg(source.with_extension("cubin"));
    command.arg(&source).args(variant.definitions().iter().map(|definition| format!("-D{definition}")));
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {nvcc}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{variant:?}: {said}");
    Report::parse(&said).unwrap_or_else(|| panic!("{variant:?}: no report in {said}"))
}

#[test]
#[ignore = "needs NVIDIA's nvcc, which NVCC names: .ci/devices cuda-report"]
fn report_of_the_compiler() {
    let nvcc = std::env::var("NVCC").unwrap_or("nvcc".into());
    let folder = tempfile::tempdir().unwrap();
    let variants = variants();
    let compiled = |(number, variant): (usize, &Variant)| compile(variant, &nvcc, folder.path(), number);
    let reports: Vec<_> = variants.par_iter().enumerate().map(compiled).collect();
    println!("| dtype | head | tile | threads | registers | all features | split | split, all | shared KiB | warps |");
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    let plain = |variant: &Variant| Variant { features: Features(0), split: false, ..*variant };
    for tile in variants.iter().filter(|variant| **variant == plain(variant)) {
        let report = |features, split| {
            let wanted = Variant { features: Features(features), split, ..*tile };
            variants.iter().position(|variant| *variant == wanted).map(|i| &reports[i])
        };
        let registers = |(features, split)| {
            report(features, split).map_or(String::new(), |Report { registers, spilled: [stored, loaded] }| {
                if stored + loaded > 0 { format!("{registers} ({stored} + {loaded})") } else { registers.to_string() }
            })
        };
        let registers = [(0, false), (31, false), (0, true), (31, true)].map(registers).join(" | ");
        let Variant { dtype, head_dim, block_m, block_n, threads, .. } = tile;
        let (dtype, shared) = (dtype.as_str(), tile.shared_bytes() as f64 / 1024.0);
        let warps = report(0, false).map_or(0, |report| report.blocks(tile)) * threads / 32;
        println!("| {dtype} | {head_dim} | {block_m} × {block_n} | {threads} | {registers} | {shared:.0} | {warps} |");
    }
}

#[test]
fn reports_are_read() {
    let text = "ptxas info    : Compiling entry function 'attention' for 'sm_90'\n\
        ptxas info    : Function properties for attention\n    \
        16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n\
        ptxas info    : Used 168 registers, used 1 barriers, 16 bytes cumulative stack size\n";
    assert_eq!(Report::parse(text), Some(Report { registers: 168, spilled: [12, 8] }));
    assert_eq!(Report::parse("ptxas info    : 0 bytes gmem\n"), None);
}
