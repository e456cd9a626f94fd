//! Command buffers and encoders. Work is recorded when it is encoded, and runs when its buffer is committed.
//!
//! Dispatches between two barriers may run in any order on a GPU. Here they run in reverse, so that a missing barrier
//! shows.

use std::cell::RefCell;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::rc::Rc;
use std::{mem, ptr};

use block2::{Block, RcBlock};
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSRange, NSString};

use crate::buffer::{MTLBuffer, Memory};
use crate::device::{Function, MTLComputePipelineState, MTLDevice, MTLFence, MTLResidencySet, the_device};
use crate::kernel::{BUFFERS, Dispatch, emulator};
use crate::{MTLBarrierScope, MTLCommandBufferStatus, MTLDispatchType, MTLSize, Object};

/// What a buffer's argument is bound to.
#[derive(Clone)]
enum Binding {
    Buffer(Object<dyn MTLBuffer>, usize),
    Bytes(Rc<[u8]>),
}

/// Bindings of an encoder.
#[derive(Clone)]
struct Bindings {
    buffers: [Option<Binding>; BUFFERS],
    threadgroup_bytes: [u64; BUFFERS],
    function: Option<Function>,
}

/// Recorded work.
enum Command {
    Dispatch { bindings: Box<Bindings>, threads: [u64; 3], group: [u64; 3] },
    Barrier,
    Copy { from: (Object<dyn MTLBuffer>, usize), to: (Object<dyn MTLBuffer>, usize), size: usize },
    Fill { buffer: Object<dyn MTLBuffer>, range: NSRange, value: u8 },
}

impl Command {
    fn run(&self) -> Result<(), String> {
        let outside = || "a copy reaches outside of a buffer".to_owned();
        match self {
            Self::Dispatch { bindings, threads, group } => run_kernel(bindings, *threads, *group),
            Self::Barrier => Ok(()),
            Self::Copy { from, to, size } => {
                let [from, to] = [from, to].map(|(buffer, offset)| buffer.state::<Memory>().range(*offset, *size));
                // SAFETY: both ranges are inside of their buffers, which are alive.
                unsafe { ptr::copy(from.ok_or_else(outside)?, to.ok_or_else(outside)?, *size) };
                Ok(())
            }
            Self::Fill { buffer, range, value } => {
                let start = buffer.state::<Memory>().range(range.location, range.length).ok_or_else(outside)?;
                // SAFETY: the range is inside of its buffer, which is alive.
                unsafe { start.write_bytes(*value, range.length) };
                Ok(())
            }
        }
    }
}

fn run_kernel(bindings: &Bindings, threads: [u64; 3], group: [u64; 3]) -> Result<(), String> {
    let function = bindings.function.as_ref().ok_or("a dispatch without a kernel")?;
    let address = |binding: &Option<Binding>| match binding {
        Some(Binding::Buffer(buffer, offset)) => buffer.state::<Memory>().start().wrapping_add(*offset),
        Some(Binding::Bytes(bytes)) => bytes.as_ptr().cast_mut(),
        None => ptr::null_mut(),
    };
    let length = |binding: &Option<Binding>| match binding {
        Some(Binding::Bytes(bytes)) => bytes.len() as u64,
        _ => 0,
    };
    let dispatch = Dispatch {
        buffers: bindings.buffers.each_ref().map(address),
        bytes: bindings.buffers.each_ref().map(length),
        threadgroup_bytes: bindings.threadgroup_bytes,
        threads,
        group,
        constants: function.constants.as_ptr(),
        constant_count: function.constants.len() as u64,
    };
    let _alone = emulator().one_at_a_time.lock().expect("no panic while it is held");
    // SAFETY: the buffers are alive. An access outside of them traps, which the emulator reports.
    let message = unsafe { (function.run)(&dispatch) };
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: the message ends with a zero, and is replaced by the next run only.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    Err(format!("kernel {}: {message}", function.name))
}

/// A command buffer's record.
struct Record {
    commands: Vec<Command>,
    status: MTLCommandBufferStatus,
    error: Option<String>,
    handlers: Vec<RcBlock<NonNull<ProtocolObject<dyn MTLCommandBuffer>>>>,
}

type Recorded = Rc<RefCell<Record>>;

impl Record {
    fn run(&mut self) {
        let commands = mem::take(&mut self.commands);
        for part in commands.split(|command| matches!(command, Command::Barrier)) {
            if let Err(error) = part.iter().rev().try_for_each(Command::run) {
                eprintln!("{error}");
                self.error = Some(error);
                self.status = MTLCommandBufferStatus::Error;
                return;
            }
        }
        self.status = MTLCommandBufferStatus::Completed;
    }
}

pub(crate) fn queue() -> Object<dyn MTLCommandQueue> {
    ProtocolObject::retained(())
}

pub trait MTLCommandQueue {
    fn commandBuffer(&self) -> Option<Object<dyn MTLCommandBuffer>> {
        let record = Record {
            commands: Vec::new(),
            status: MTLCommandBufferStatus::NotEnqueued,
            error: None,
            handlers: Vec::new(),
        };
        Some(ProtocolObject::retained(Rc::new(RefCell::new(record))))
    }
    fn device(&self) -> Object<dyn MTLDevice> {
        the_device()
    }
    fn addResidencySet(&self, _set: &ProtocolObject<dyn MTLResidencySet>) {}
    fn setLabel(&self, _label: Option<&NSString>) {}
}

impl MTLCommandQueue for ProtocolObject<dyn MTLCommandQueue> {}

pub trait MTLCommandBuffer {
    fn computeCommandEncoderWithDispatchType(
        &self,
        kind: MTLDispatchType,
    ) -> Option<Object<dyn MTLComputeCommandEncoder>>;
    fn blitCommandEncoder(&self) -> Option<Object<dyn MTLBlitCommandEncoder>>;
    fn device(&self) -> Object<dyn MTLDevice>;
    fn commit(&self);
    fn enqueue(&self);
    fn setLabel(&self, _label: Option<&NSString>) {}
    fn status(&self) -> MTLCommandBufferStatus;
    fn error(&self) -> Option<Retained<NSError>>;
    fn waitUntilCompleted(&self);
    /// # Safety
    /// The block is alive.
    unsafe fn addCompletedHandler(&self, handler: *mut Block<NonNull<ProtocolObject<dyn MTLCommandBuffer>>>);
}

impl MTLCommandBuffer for ProtocolObject<dyn MTLCommandBuffer> {
    fn computeCommandEncoderWithDispatchType(
        &self,
        _kind: MTLDispatchType,
    ) -> Option<Object<dyn MTLComputeCommandEncoder>> {
        let record = self.state::<Recorded>().clone();
        // What is encoded before has run.
        record.borrow_mut().commands.push(Command::Barrier);
        let bindings = Bindings { buffers: [const { None }; BUFFERS], threadgroup_bytes: [0; BUFFERS], function: None };
        Some(ProtocolObject::retained(Encoder { record, bindings: RefCell::new(bindings) }))
    }

    fn blitCommandEncoder(&self) -> Option<Object<dyn MTLBlitCommandEncoder>> {
        Some(ProtocolObject::retained(self.state::<Recorded>().clone()))
    }

    fn device(&self) -> Object<dyn MTLDevice> {
        the_device()
    }

    fn commit(&self) {
        let record = self.state::<Recorded>();
        record.borrow_mut().run();
        let handlers = mem::take(&mut record.borrow_mut().handlers);
        handlers.iter().for_each(|handler| handler.call(NonNull::from(self)));
    }

    fn enqueue(&self) {
        self.state::<Recorded>().borrow_mut().status = MTLCommandBufferStatus::Enqueued;
    }

    fn status(&self) -> MTLCommandBufferStatus {
        self.state::<Recorded>().borrow().status
    }

    fn error(&self) -> Option<Retained<NSError>> {
        self.state::<Recorded>().borrow().error.as_deref().map(NSError::new)
    }

    fn waitUntilCompleted(&self) {}

    unsafe fn addCompletedHandler(&self, handler: *mut Block<NonNull<ProtocolObject<dyn MTLCommandBuffer>>>) {
        // SAFETY: the caller promises that the block is alive.
        let handler = unsafe { RcBlock::copy(handler) };
        self.state::<Recorded>().borrow_mut().handlers.push(handler);
    }
}

pub trait MTLCommandEncoder {
    fn endEncoding(&self) {}
    fn setLabel(&self, _label: Option<&NSString>) {}
    fn pushDebugGroup(&self, _label: &NSString) {}
    fn popDebugGroup(&self) {}
}

impl MTLCommandEncoder for ProtocolObject<dyn MTLComputeCommandEncoder> {}
impl MTLCommandEncoder for ProtocolObject<dyn MTLBlitCommandEncoder> {}

/// An encoder of dispatches.
struct Encoder {
    record: Recorded,
    bindings: RefCell<Bindings>,
}

pub trait MTLComputeCommandEncoder {
    fn setComputePipelineState(&self, state: &ProtocolObject<dyn MTLComputePipelineState>);
    /// # Safety
    /// The kernel reads and writes inside of the buffer.
    unsafe fn setBuffer_offset_atIndex(
        &self,
        buffer: Option<&ProtocolObject<dyn MTLBuffer>>,
        offset: usize,
        index: usize,
    );
    /// # Safety
    /// There are `length` bytes at `bytes`.
    unsafe fn setBytes_length_atIndex(&self, bytes: NonNull<c_void>, length: usize, index: usize);
    /// # Safety
    /// The length is what the kernel needs.
    unsafe fn setThreadgroupMemoryLength_atIndex(&self, length: usize, index: usize);
    fn dispatchThreads_threadsPerThreadgroup(&self, threads: MTLSize, group: MTLSize);
    fn dispatchThreadgroups_threadsPerThreadgroup(&self, groups: MTLSize, group: MTLSize);
    fn memoryBarrierWithScope(&self, scope: MTLBarrierScope);
    fn waitForFence(&self, _fence: &ProtocolObject<dyn MTLFence>) {}
    fn updateFence(&self, _fence: &ProtocolObject<dyn MTLFence>) {}
}

impl MTLComputeCommandEncoder for ProtocolObject<dyn MTLComputeCommandEncoder> {
    fn setComputePipelineState(&self, state: &ProtocolObject<dyn MTLComputePipelineState>) {
        self.state::<Encoder>().bindings.borrow_mut().function = Some(state.state::<Function>().clone());
    }

    unsafe fn setBuffer_offset_atIndex(
        &self,
        buffer: Option<&ProtocolObject<dyn MTLBuffer>>,
        offset: usize,
        index: usize,
    ) {
        let binding = buffer.map(|buffer| Binding::Buffer(buffer.retain(), offset));
        self.state::<Encoder>().bindings.borrow_mut().buffers[index] = binding;
    }

    unsafe fn setBytes_length_atIndex(&self, bytes: NonNull<c_void>, length: usize, index: usize) {
        // SAFETY: the caller promises that the bytes are there.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>().as_ptr(), length) };
        self.state::<Encoder>().bindings.borrow_mut().buffers[index] = Some(Binding::Bytes(bytes.into()));
    }

    unsafe fn setThreadgroupMemoryLength_atIndex(&self, length: usize, index: usize) {
        self.state::<Encoder>().bindings.borrow_mut().threadgroup_bytes[index] = length as u64;
    }

    fn dispatchThreads_threadsPerThreadgroup(&self, threads: MTLSize, group: MTLSize) {
        let encoder: &Encoder = self.state();
        let bindings = Box::new(encoder.bindings.borrow().clone());
        let command = Command::Dispatch { bindings, threads: threads.numbers(), group: group.numbers() };
        encoder.record.borrow_mut().commands.push(command);
    }

    fn dispatchThreadgroups_threadsPerThreadgroup(&self, groups: MTLSize, group: MTLSize) {
        let threads = MTLSize {
            width: groups.width * group.width,
            height: groups.height * group.height,
            depth: groups.depth * group.depth,
        };
        self.dispatchThreads_threadsPerThreadgroup(threads, group);
    }

    fn memoryBarrierWithScope(&self, _scope: MTLBarrierScope) {
        self.state::<Encoder>().record.borrow_mut().commands.push(Command::Barrier);
    }
}

pub trait MTLBlitCommandEncoder {
    fn waitForFence(&self, _fence: &ProtocolObject<dyn MTLFence>) {}
    fn updateFence(&self, _fence: &ProtocolObject<dyn MTLFence>) {}
    /// # Safety
    /// The ranges are inside of the buffers.
    unsafe fn copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
        &self,
        from: &ProtocolObject<dyn MTLBuffer>,
        from_offset: usize,
        to: &ProtocolObject<dyn MTLBuffer>,
        to_offset: usize,
        size: usize,
    );
    fn fillBuffer_range_value(&self, buffer: &ProtocolObject<dyn MTLBuffer>, range: NSRange, value: u8);
}

impl MTLBlitCommandEncoder for ProtocolObject<dyn MTLBlitCommandEncoder> {
    unsafe fn copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
        &self,
        from: &ProtocolObject<dyn MTLBuffer>,
        from_offset: usize,
        to: &ProtocolObject<dyn MTLBuffer>,
        to_offset: usize,
        size: usize,
    ) {
        let copy = Command::Copy { from: (from.retain(), from_offset), to: (to.retain(), to_offset), size };
        self.state::<Recorded>().borrow_mut().commands.extend([Command::Barrier, copy]);
    }

    fn fillBuffer_range_value(&self, buffer: &ProtocolObject<dyn MTLBuffer>, range: NSRange, value: u8) {
        let fill = Command::Fill { buffer: buffer.retain(), range, value };
        self.state::<Recorded>().borrow_mut().commands.extend([Command::Barrier, fill]);
    }
}
