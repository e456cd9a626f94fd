//! Compiles the kernel when a variant first occurs, and launches it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use candle_core::metal_backend::DeviceId;
use candle_core::{MetalDevice, MetalStorage};
use candle_metal_kernels::metal::{Buffer, ComputePipeline};
use objc2_metal::{MTLCompileOptions, MTLSize};

use super::params::{Params, Sequence};
use super::variant::{QUERIES, THREADS, Variant};
use crate::error::{Error, Result};

/// A buffer, and where its first element is, in bytes.
pub(crate) struct Input<'a> {
    pub buffer: &'a Buffer,
    pub offset: usize,
}

/// The pipelines of this process, or why there is none.
static PIPELINES: Mutex<Option<HashMap<(DeviceId, Variant), std::result::Result<ComputePipeline, String>>>> =
    Mutex::new(None);

/// Compiles a variant unless that was done before. The message of the compiler, if it fails.
pub(crate) fn compile(device: &MetalDevice, variant: Variant) -> std::result::Result<ComputePipeline, String> {
    let mut pipelines = PIPELINES.lock().unwrap_or_else(PoisonError::into_inner);
    let pipeline = pipelines.get_or_insert_default().entry((device.id(), variant));
    pipeline.or_insert_with(|| build(device, variant).map_err(|e| e.to_string())).clone()
}

fn build(device: &MetalDevice, variant: Variant) -> Result<ComputePipeline> {
    let options = MTLCompileOptions::new();
    // Infinities and NaN have to be what they are.
    #[allow(deprecated)] // The method after it is in macOS 15 only.
    options.setFastMathEnabled(false);
    let failed = candle_core::Error::wrap;
    let library =
        device.device().new_library_with_source(&variant.source(variant.element()?), Some(&options)).map_err(failed)?;
    let function = library.get_function("attention", None).map_err(failed)?;
    let pipeline = device.device().new_compute_pipeline_state_with_function(&function).map_err(failed)?;
    match pipeline.max_total_threads_per_threadgroup() {
        most if most < THREADS => {
            Err(Error::value("the largest threadgroup of the Metal kernel", most, format!("{THREADS} threads")))
        }
        _ => Ok(pipeline),
    }
}

/// One launch of the kernel. The caller has checked that the sequences are inside of the buffers and the output.
pub(crate) struct Launch<'a> {
    pub variant: Variant,
    /// q, k and v.
    pub inputs: [Input<'a>; 3],
    pub sinks: Option<Input<'a>>,
    pub params: Params,
    pub sequences: &'a [Sequence],
    /// Queries of the longest sequence.
    pub longest: usize,
    /// Elements of the output.
    pub outputs: usize,
}

impl Launch<'_> {
    /// Queues the launch, and returns the output.
    pub fn queue(self, device: &MetalDevice) -> Result<MetalStorage> {
        let Self { variant, inputs: [q, k, v], sinks, params, sequences, longest, outputs } = self;
        let pipeline = compile(device, variant).map_err(|reason| Error::Backend {
            backend: "metal-kernel".to_string(),
            reason: format!("its source did not compile: {reason}"),
        })?;
        let out = device.new_buffer_builder().with_size_for(outputs, variant.dtype).build()?;
        let sequence_buffer = device.new_buffer_with_data(sequences)?;
        let groups = MTLSize {
            width: longest.div_ceil(QUERIES),
            height: sequences.len() * params.h.unsigned_abs() as usize,
            depth: 1,
        };
        let encoder = device.command_encoder()?;
        encoder.set_label("candle-attention");
        encoder.set_compute_pipeline_state(&pipeline);
        let encoder = encoder.as_ref();
        for (index, input) in [(0, &q), (1, &k), (2, &v)] {
            encoder.set_input_buffer(index, Some(input.buffer), input.offset);
        }
        encoder.set_output_buffer(3, Some(&out), 0);
        encoder.set_input_buffer(4, Some(&sequence_buffer), 0);
        // Without sinks the kernel does not read this buffer, but one has to be there.
        let sinks = sinks.unwrap_or(Input { buffer: &sequence_buffer, offset: 0 });
        encoder.set_input_buffer(5, Some(sinks.buffer), sinks.offset);
        encoder.set_bytes(6, &params);
        encoder.set_threadgroup_memory_length(0, variant.tile_bytes());
        encoder.dispatch_thread_groups(groups, MTLSize { width: THREADS, height: 1, depth: 1 });
        Ok(MetalStorage::new(out, device.clone(), outputs, variant.dtype))
    }
}
