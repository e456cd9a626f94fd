//! Loops and choices that are written out.

/// Runs an expression for each index of a range from 0 to a constant of at most 16, without a loop:
/// `unroll!(r in 0..ROWS => …)`, where the index is a constant in each copy.
///
/// An array stays in registers only if all its indices are constants. The compiler unrolls short loops, too, but under
/// some build profiles (`lto = "off"`, `lto = "fat"`) too late for that: the sums of a tile were on the stack, and
/// products took twice as long. For the same reason arrays of vectors begin as [`zeroed`](bytemuck::Zeroable::zeroed):
/// `[x; N]` is a loop.
macro_rules! unroll {
    ($i:ident in 0..$count:expr => $body:expr) => {{
        const { assert!($count <= 16) };
        $crate::unroll::unroll!($i, $count, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    }};
    ($i:ident, $count:expr, $body:expr, $($index:literal)+) => {$(
        if const { $index < $count } {
            // Of a copy that is left out, an index may be too large for an array.
            #[allow(unconditional_panic)]
            {
                let $i: usize = $index;
                $body;
            }
        }
    )+};
}
pub(crate) use unroll;

/// Calls a function, whose last constant is a number of rows, for the smallest of 1, 2, 4 and the `most` rows that has
/// all of them: `by_rows!(rows, MR => function[its types], (its arguments))`.
macro_rules! by_rows {
    ($rows:expr, $most:ident => $($function:ident).+ $([$($generic:ty),+])?, ($($argument:expr),* $(,)?)) => {
        match $rows {
            1 => $($function).+::<$($($generic,)+)? 1>($($argument),*),
            2 => $($function).+::<$($($generic,)+)? 2>($($argument),*),
            5.. if $most > 4 => $($function).+::<$($($generic,)+)? $most>($($argument),*),
            _ => $($function).+::<$($($generic,)+)? 4>($($argument),*),
        }
    };
}
pub(crate) use by_rows;
