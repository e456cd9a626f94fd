//! Stopping a call from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stops the calls that it was passed to: they end before their next batch with the error `Cancelled`. It stays cancelled.
#[derive(Debug, Default, uniffi::Object)]
pub struct Cancellation {
    cancelled: AtomicBool,
}

#[uniffi::export]
impl Cancellation {
    /// Not cancelled yet.
    #[uniffi::constructor]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Stops the calls, from any thread.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}
