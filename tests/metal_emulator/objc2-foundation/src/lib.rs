//! Stand-in for `objc2-foundation`.
#![allow(non_snake_case, reason = "names are Apple's")]

use std::ffi::{CString, c_char};
use std::fmt;
use std::path::Path;

use objc2::rc::Retained;

/// A string.
pub struct NSString(CString);

impl NSString {
    #[allow(clippy::should_implement_trait, reason = "the name is that of objc2-foundation")]
    pub fn from_str(text: &str) -> Retained<Self> {
        Retained::new(Self(CString::new(text).expect("a text without zeros")))
    }

    /// Leaks, because its callers let go of the string before they read the result, which on Apple's systems lives on
    /// until the pool of the thread is drained.
    pub fn UTF8String(&self) -> *const c_char {
        self.0.clone().into_raw()
    }

    pub fn as_str(&self) -> &str {
        self.0.to_str().expect("made from a str")
    }
}

impl fmt::Display for NSString {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error with its description.
pub struct NSError(Retained<NSString>);

impl NSError {
    pub fn new(description: &str) -> Retained<Self> {
        Retained::new(Self(NSString::from_str(description)))
    }

    pub fn localizedDescription(&self) -> Retained<NSString> {
        self.0.clone()
    }
}

impl fmt::Display for NSError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A list.
pub struct NSArray<T>(Vec<Retained<T>>);

impl<T> NSArray<T> {
    pub fn new(objects: Vec<Retained<T>>) -> Retained<Self> {
        Retained::new(Self(objects))
    }

    pub fn to_vec(&self) -> Vec<Retained<T>> {
        self.0.clone()
    }
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct NSRange {
    pub location: usize,
    pub length: usize,
}

impl NSRange {
    pub fn new(location: usize, length: usize) -> Self {
        Self { location, length }
    }
}

/// The address of a file.
pub struct NSURL(());

impl NSURL {
    pub fn from_file_path(_: impl AsRef<Path>) -> Option<Retained<Self>> {
        Some(Retained::new(Self(())))
    }
}
