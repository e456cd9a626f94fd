//! The targets: each a function of the bytes of a fuzzer that panics where the crate breaks a promise.

mod detect;
mod encoder;
mod inspect;
mod kernels;
mod layer;
mod open;
mod page;
mod state;
mod tokenizer;

macro_rules! targets {
    ($($name:ident)*) => {
        $(
            /// The target of this name.
            pub fn $name(bytes: &[u8]) {
                // The bytes have run out: no input.
                let _ = $name::run(&mut arbitrary::Unstructured::new(bytes));
            }
        )*

        /// All targets by their names.
        pub const ALL: &[(&str, fn(&[u8]))] = &[$((stringify!($name), $name)),*];
    };
}

targets! { open detect inspect encoder tokenizer state page kernels layer }
