//! Numbers of Metal's interface.

/// Three sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MTLSize {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

impl MTLSize {
    pub(crate) fn numbers(self) -> [u64; 3] {
        [self.width, self.height, self.depth].map(|size| size as u64)
    }
}

/// Where a buffer is and whether its use is tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MTLResourceOptions(pub usize);

#[allow(non_upper_case_globals, reason = "names are Apple's")]
impl MTLResourceOptions {
    pub const StorageModeShared: Self = Self(0);
    pub const StorageModePrivate: Self = Self(2 << 4);
    pub const HazardTrackingModeUntracked: Self = Self(1 << 8);
}

/// The type of a function constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MTLDataType {
    Float,
    UShort,
    ULong,
    Bool,
}

impl MTLDataType {
    pub(crate) fn size(self) -> usize {
        match self {
            Self::Float => 4,
            Self::UShort => 2,
            Self::ULong => 8,
            Self::Bool => 1,
        }
    }
}

/// Whether the dispatches of an encoder may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MTLDispatchType {
    Serial,
    Concurrent,
}

/// What a barrier is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MTLBarrierScope {
    Buffers,
}

/// How exact arithmetic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MTLMathMode {
    Safe,
    Relaxed,
    Fast,
}

/// How exact functions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MTLMathFloatingPointFunctions {
    Fast,
    Precise,
}

/// Where a capture goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MTLCaptureDestination {
    DeveloperTools,
    GPUTraceDocument,
}

/// How far a command buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MTLCommandBufferStatus {
    NotEnqueued,
    Enqueued,
    Committed,
    Scheduled,
    Completed,
    Error,
}
