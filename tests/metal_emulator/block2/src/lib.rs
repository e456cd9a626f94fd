//! Stand-in for `block2`: a block is a closure with one argument.

use std::sync::Arc;

/// A closure that is called with an `A`.
pub struct Block<A>(Box<dyn Fn(A)>);

impl<A> Block<A> {
    pub fn call(&self, argument: A) {
        (self.0)(argument);
    }
}

/// A counted reference to a block.
pub struct RcBlock<A>(Arc<Block<A>>);

impl<A> RcBlock<A> {
    pub fn new(closure: impl Fn(A) + 'static) -> Self {
        Self(Arc::new(Block(Box::new(closure))))
    }

    pub fn as_ptr(this: &Self) -> *mut Block<A> {
        Arc::as_ptr(&this.0).cast_mut()
    }

    /// # Safety
    /// `block` is from [`RcBlock::as_ptr`] of a block that is alive.
    pub unsafe fn copy(block: *mut Block<A>) -> Self {
        // SAFETY: the caller promises that the pointer is one to the contents of an `Arc` that is alive.
        unsafe {
            Arc::increment_strong_count(block);
            Self(Arc::from_raw(block))
        }
    }

    pub fn call(&self, argument: A) {
        self.0.call(argument);
    }
}
