//! Stand-in for `objc2`: objects are Rust values behind an `Arc`, and protocols are traits.

/// Reference counting.
pub mod rc {
    use std::fmt;
    use std::hash::{Hash, Hasher};
    use std::ops::Deref;
    use std::sync::Arc;

    /// A counted reference to an object. Two are equal if their object is the same.
    pub struct Retained<T>(Arc<T>);

    impl<T> Retained<T> {
        pub fn new(object: T) -> Self {
            Self(Arc::new(object))
        }

        /// Another reference to an object.
        ///
        /// # Safety
        /// The object is from [`Retained::new`].
        pub unsafe fn retain(object: &T) -> Self {
            // SAFETY: the caller promises that the object lies in an `Arc`, which its reference keeps alive.
            unsafe {
                Arc::increment_strong_count(object);
                Self(Arc::from_raw(object))
            }
        }

        pub fn as_ptr(this: &Self) -> *const T {
            Arc::as_ptr(&this.0)
        }
    }

    impl<T> Clone for Retained<T> {
        fn clone(&self) -> Self {
            Self(Arc::clone(&self.0))
        }
    }

    impl<T> Deref for Retained<T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0
        }
    }

    impl<T> AsRef<T> for Retained<T> {
        fn as_ref(&self) -> &T {
            &self.0
        }
    }

    impl<T> fmt::Debug for Retained<T> {
        fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
            write!(f, "{:p}", self.0)
        }
    }

    impl<T: fmt::Display> fmt::Display for Retained<T> {
        fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
            self.0.fmt(f)
        }
    }

    impl<T> PartialEq for Retained<T> {
        fn eq(&self, other: &Self) -> bool {
            Arc::ptr_eq(&self.0, &other.0)
        }
    }

    impl<T> Eq for Retained<T> {}

    impl<T> Hash for Retained<T> {
        fn hash<H: Hasher>(&self, state: &mut H) {
            Arc::as_ptr(&self.0).hash(state);
        }
    }
}

/// Objects.
pub mod runtime {
    use std::any::Any;
    use std::marker::PhantomData;

    use crate::rc::Retained;

    /// An object of a class that its user does not name.
    pub struct AnyObject(());

    /// An object that implements the protocol `P`. The layout does not depend on `P`.
    #[repr(C)]
    pub struct ProtocolObject<P: ?Sized> {
        state: Box<dyn Any>,
        protocol: PhantomData<P>,
    }

    impl<P: ?Sized> ProtocolObject<P> {
        pub fn retained(state: impl Any) -> Retained<Self> {
            Retained::new(Self { state: Box::new(state), protocol: PhantomData })
        }

        /// Another reference to the object.
        pub fn retain(&self) -> Retained<Self> {
            // SAFETY: `retained` alone makes objects.
            unsafe { Retained::retain(self) }
        }

        /// The Rust value behind the object.
        pub fn state<S: Any>(&self) -> &S {
            self.state.downcast_ref().expect("an object of another protocol")
        }

        pub fn from_ref<Q: ?Sized>(object: &ProtocolObject<Q>) -> &Self {
            // SAFETY: the layout does not depend on the protocol.
            unsafe { &*std::ptr::from_ref(object).cast() }
        }
    }
}

/// Whether the system is recent enough. It is.
#[macro_export]
macro_rules! available {
    ($($condition:tt)*) => {
        true
    };
}

/// A message whose answer is an object: not null.
#[macro_export]
macro_rules! msg_send {
    [$object:expr, $message:ident] => {
        std::ptr::from_ref($object).cast()
    };
}
