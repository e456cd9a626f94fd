//! The device, its libraries of kernels, and objects that hold nothing here.

use std::collections::HashSet;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock};

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError, NSString, NSURL};

use crate::buffer::{MTLAllocation, MTLBuffer, Memory};
use crate::commands::{MTLCommandQueue, queue};
use crate::kernel::{Constant, Run, kernel};
use crate::{
    MTLCaptureDestination, MTLDataType, MTLMathFloatingPointFunctions, MTLMathMode, MTLResourceOptions, Object,
};

/// What the device answers for the memory that it has.
const WORKING_SET: u64 = 8 << 30;

/// The device. There is one.
struct Gpu;

/// A device that threads share.
struct Shared(Object<dyn MTLDevice>);

// SAFETY: the device has no state.
unsafe impl Send for Shared {}
// SAFETY: the device has no state.
unsafe impl Sync for Shared {}

pub(crate) fn the_device() -> Object<dyn MTLDevice> {
    static DEVICE: OnceLock<Shared> = OnceLock::new();
    DEVICE.get_or_init(|| Shared(ProtocolObject::retained(Gpu))).0.clone()
}

pub fn MTLCopyAllDevices() -> Retained<NSArray<ProtocolObject<dyn MTLDevice>>> {
    NSArray::new(vec![the_device()])
}

pub fn MTLCreateSystemDefaultDevice() -> Option<Object<dyn MTLDevice>> {
    Some(the_device())
}

/// The kind of a device.
pub struct MTLArchitecture(());

impl MTLArchitecture {
    /// That of an M1, for which candle chooses its tiles.
    pub fn name(&self) -> Retained<NSString> {
        NSString::from_str("applegpu_g13g")
    }
}

pub trait MTLDevice {
    fn registryID(&self) -> u64 {
        1
    }
    fn recommendedMaxWorkingSetSize(&self) -> u64 {
        WORKING_SET
    }
    fn currentAllocatedSize(&self) -> usize {
        0
    }
    fn architecture(&self) -> Retained<MTLArchitecture> {
        Retained::new(MTLArchitecture(()))
    }
    fn newBufferWithLength_options(&self, length: usize, options: MTLResourceOptions) -> Option<Object<dyn MTLBuffer>> {
        Memory::buffer(length, options)
    }
    /// # Safety
    /// There are `length` bytes at `bytes`.
    unsafe fn newBufferWithBytes_length_options(
        &self,
        bytes: NonNull<c_void>,
        length: usize,
        options: MTLResourceOptions,
    ) -> Option<Object<dyn MTLBuffer>> {
        let buffer = Memory::buffer(length, options)?;
        // SAFETY: the buffer has `length` bytes, and the caller promises as many at `bytes`.
        unsafe { buffer.state::<Memory>().start().copy_from_nonoverlapping(bytes.as_ptr().cast(), length) };
        Some(buffer)
    }
    fn newLibraryWithSource_options_error(
        &self,
        source: &NSString,
        _options: Option<&MTLCompileOptions>,
    ) -> Result<Object<dyn MTLLibrary>, Retained<NSError>> {
        Ok(ProtocolObject::retained(Source(source.to_string())))
    }
    fn newComputePipelineStateWithFunction_error(
        &self,
        function: &ProtocolObject<dyn MTLFunction>,
    ) -> Result<Object<dyn MTLComputePipelineState>, Retained<NSError>> {
        Ok(ProtocolObject::retained(function.state::<Function>().clone()))
    }
    fn newCommandQueue(&self) -> Option<Object<dyn MTLCommandQueue>> {
        Some(queue())
    }
    fn newFence(&self) -> Option<Object<dyn MTLFence>> {
        Some(ProtocolObject::retained(()))
    }
    fn newResidencySetWithDescriptor_error(
        &self,
        _descriptor: &MTLResidencySetDescriptor,
    ) -> Result<Object<dyn MTLResidencySet>, Retained<NSError>> {
        Ok(ProtocolObject::retained(Residents::default()))
    }
}

impl MTLDevice for ProtocolObject<dyn MTLDevice> {}

/// The text of a library.
struct Source(String);

/// A kernel with the values of its function constants.
#[derive(Clone)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) run: Run,
    pub(crate) constants: Vec<Constant>,
}

pub trait MTLFunction {}

pub trait MTLLibrary {
    fn newFunctionWithName(&self, name: &NSString) -> Option<Object<dyn MTLFunction>>;
    fn newFunctionWithName_constantValues_error(
        &self,
        name: &NSString,
        constants: &MTLFunctionConstantValues,
    ) -> Result<Object<dyn MTLFunction>, Retained<NSError>>;
}

impl MTLLibrary for ProtocolObject<dyn MTLLibrary> {
    fn newFunctionWithName(&self, name: &NSString) -> Option<Object<dyn MTLFunction>> {
        let found = self.newFunctionWithName_constantValues_error(name, &MTLFunctionConstantValues::default());
        found.inspect_err(|error| eprintln!("{error}")).ok()
    }

    fn newFunctionWithName_constantValues_error(
        &self,
        name: &NSString,
        constants: &MTLFunctionConstantValues,
    ) -> Result<Object<dyn MTLFunction>, Retained<NSError>> {
        let name = name.to_string();
        match kernel(&self.state::<Source>().0, &name) {
            Ok(Some(run)) => {
                let constants = constants.0.lock().expect("no panic while it is held").clone();
                Ok(ProtocolObject::retained(Function { name, run, constants }))
            }
            Ok(None) => Err(NSError::new(&format!("there is no kernel {name}"))),
            Err(error) => Err(NSError::new(&format!("{name}: {error}"))),
        }
    }
}

/// Values of function constants.
#[derive(Default)]
pub struct MTLFunctionConstantValues(Mutex<Vec<Constant>>);

impl MTLFunctionConstantValues {
    #[allow(clippy::new_ret_no_self, reason = "as in objc2-metal")]
    pub fn new() -> Retained<Self> {
        Retained::new(Self::default())
    }

    /// # Safety
    /// `value` points to a value of the type.
    pub unsafe fn setConstantValue_type_atIndex(&self, value: NonNull<c_void>, of: MTLDataType, index: usize) {
        let mut bits = [0; 8];
        // SAFETY: the caller promises a value of this size, which is 8 bytes at most.
        unsafe { value.cast::<u8>().copy_to_nonoverlapping(NonNull::from(&mut bits).cast(), of.size()) };
        self.0.lock().expect("no panic while it is held").push(Constant { index: index as u64, bits });
    }
}

pub trait MTLComputePipelineState {
    fn maxTotalThreadsPerThreadgroup(&self) -> usize {
        1024
    }
}

impl MTLComputePipelineState for ProtocolObject<dyn MTLComputePipelineState> {}

/// Command buffers run in order, so that there is nothing to wait for.
pub trait MTLFence {}

/// A set of memory. All memory is resident, so that the set is only counted.
pub trait MTLResidencySet {
    fn requestResidency(&self) {}
    fn addAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>);
    fn removeAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>);
    fn allocationCount(&self) -> usize;
    fn commit(&self) {}
}

impl MTLResidencySet for ProtocolObject<dyn MTLResidencySet> {
    fn addAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>) {
        self.state::<Residents>().lock().expect("no panic while it is held").insert(address(allocation));
    }

    fn removeAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>) {
        self.state::<Residents>().lock().expect("no panic while it is held").remove(&address(allocation));
    }

    fn allocationCount(&self) -> usize {
        self.state::<Residents>().lock().expect("no panic while it is held").len()
    }
}

/// Addresses of the members of a set.
type Residents = Mutex<HashSet<usize>>;

fn address(allocation: &ProtocolObject<dyn MTLAllocation>) -> usize {
    std::ptr::from_ref(allocation).addr()
}

macro_rules! settings {
    ($($(#[$doc:meta])* $class:ident: $($setter:ident($value:ty)),*;)*) => {$(
        $(#[$doc])*
        pub struct $class(());

        impl $class {
            #[allow(clippy::new_ret_no_self, reason = "as in objc2-metal")]
            pub fn new() -> Retained<Self> {
                Retained::new(Self(()))
            }

            $(pub fn $setter(&self, _value: $value) {})*
        }
    )*};
}

settings! {
    /// Options of a compilation. There is no fast arithmetic here.
    MTLCompileOptions: setMathMode(MTLMathMode), setMathFloatingPointFunctions(MTLMathFloatingPointFunctions),
        setFastMathEnabled(bool);
    /// A set of memory.
    MTLResidencySetDescriptor: ;
    /// What to capture.
    MTLCaptureDescriptor: setDestination(MTLCaptureDestination), set_capture_device(&ProtocolObject<dyn MTLDevice>),
        setOutputURL(Option<&NSURL>);
}

/// Captures nothing.
pub struct MTLCaptureManager(());

impl MTLCaptureManager {
    /// # Safety
    /// There is nothing to promise.
    pub unsafe fn sharedCaptureManager() -> Retained<Self> {
        Retained::new(Self(()))
    }

    pub fn startCaptureWithDescriptor_error(
        &self,
        _descriptor: &MTLCaptureDescriptor,
    ) -> Result<(), Retained<NSError>> {
        Err(NSError::new("the emulator captures nothing"))
    }
}
