//! Buffers: memory that starts as NaN and ends at a page that traps.

use std::ffi::c_void;
use std::ptr::NonNull;

use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSRange, NSString};

use crate::kernel::emulator;
use crate::{MTLResourceOptions, Object};

/// The memory of a buffer.
pub(crate) struct Memory {
    start: NonNull<u8>,
    length: usize,
    private: bool,
}

// SAFETY: the memory is not bound to a thread.
unsafe impl Send for Memory {}

impl Memory {
    /// A new buffer; `None` if it would be empty.
    pub(crate) fn buffer(length: usize, options: MTLResourceOptions) -> Option<Object<dyn MTLBuffer>> {
        if length == 0 {
            return None;
        }
        // SAFETY: the function allocates; the memory has `length` bytes.
        let start = unsafe {
            let start = NonNull::new((emulator().allocate)(length))?;
            start.write_bytes(0xff, length);
            start
        };
        let private = options.0 & MTLResourceOptions::StorageModePrivate.0 != 0;
        Some(ProtocolObject::retained(Self { start, length, private }))
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The address of a range of the memory; `None` if it is not inside.
    pub(crate) fn range(&self, offset: usize, length: usize) -> Option<*mut u8> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        inside.then(|| self.start().wrapping_add(offset))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the memory is from `allocate`, with the same length.
        unsafe { (emulator().release)(self.start.as_ptr(), self.length) }
    }
}

pub trait MTLAllocation {}

pub trait MTLResource {
    fn setLabel(&self, _label: Option<&NSString>) {}
}

impl MTLResource for ProtocolObject<dyn MTLBuffer> {}

pub trait MTLBuffer {
    fn contents(&self) -> NonNull<c_void>;
    fn length(&self) -> usize;
    fn didModifyRange(&self, range: NSRange);
}

impl MTLBuffer for ProtocolObject<dyn MTLBuffer> {
    fn contents(&self) -> NonNull<c_void> {
        let memory: &Memory = self.state();
        assert!(!memory.private, "the CPU cannot read a private buffer");
        memory.start.cast()
    }

    fn length(&self) -> usize {
        self.state::<Memory>().length
    }

    fn didModifyRange(&self, _range: NSRange) {}
}
