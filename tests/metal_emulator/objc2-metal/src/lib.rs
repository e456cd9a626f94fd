//! Stand-in for `objc2-metal`: a Metal device that runs on the CPU.
//!
//! Kernels are compiled by `../gpu/compile.py` when they are asked for. A command buffer runs when it is committed.
#![allow(non_snake_case, reason = "names are Apple's")]

mod buffer;
mod commands;
mod device;
mod kernel;
mod values;

pub use buffer::{MTLAllocation, MTLBuffer, MTLResource};
pub use commands::{
    MTLBlitCommandEncoder, MTLCommandBuffer, MTLCommandEncoder, MTLCommandQueue, MTLComputeCommandEncoder,
};
pub use device::{
    MTLArchitecture, MTLCaptureDescriptor, MTLCaptureManager, MTLCompileOptions, MTLComputePipelineState,
    MTLCopyAllDevices, MTLCreateSystemDefaultDevice, MTLDevice, MTLFence, MTLFunction, MTLFunctionConstantValues,
    MTLLibrary, MTLResidencySet, MTLResidencySetDescriptor,
};
pub use values::{
    MTLBarrierScope, MTLCaptureDestination, MTLCommandBufferStatus, MTLDataType, MTLDispatchType,
    MTLMathFloatingPointFunctions, MTLMathMode, MTLResourceOptions, MTLSize,
};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;

/// An object that implements the protocol `P`.
type Object<P> = Retained<ProtocolObject<P>>;
