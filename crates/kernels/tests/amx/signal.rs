//! Executes the tile instructions that this processor does not have: the handler of the signal that they raise.

use std::cell::UnsafeCell;
use std::sync::OnceLock;
use std::{mem, ptr};

use super::decode::decode;
use super::machine::Machine;

thread_local! {
    // Constant and without a destructor, so that a signal handler can use it.
    static MACHINE: UnsafeCell<Machine> = const { UnsafeCell::new(Machine::RELEASED) };
}

static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Emulates tile instructions in this process from now on. `false` where this is not possible.
pub(super) fn install() -> bool {
    if !is_x86_feature_detected!("avx512f") {
        return false;
    }
    PREVIOUS.get_or_init(|| {
        // SAFETY: zeros are a valid `sigaction`, and both pointers are to live ones. The handler only does what a
        // signal handler may do: it calls nothing that allocates or locks.
        unsafe {
            let (mut action, mut previous): (libc::sigaction, libc::sigaction) = (mem::zeroed(), mem::zeroed());
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGILL, &raw const action, &raw mut previous);
            previous
        }
    });
    true
}

/// Whether [`install`] was called.
pub(super) fn is_installed() -> bool {
    PREVIOUS.get().is_some()
}

/// Where the context of a signal has the registers rax to r15, in the order of their encoding.
const REGISTERS: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

extern "C" fn handle(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the third argument is the context. The instruction pointer is at code, and the operands
    // of a tile instruction are those that the processor would access. No other reference to this thread's machine
    // exists: only this handler makes one, and it raises no SIGILL.
    unsafe {
        let saved = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let registers = REGISTERS.map(|register| saved[register as usize].cast_unsigned());
        let start = saved[libc::REG_RIP as usize] as *const u8;
        let mut at = start;
        // One signal for all instructions that directly follow each other.
        let machine = MACHINE.with(UnsafeCell::get);
        loop {
            let executed = decode(|i| *at.add(i), &registers).and_then(|next| {
                next.map(|(instruction, length)| (*machine).execute(instruction).map(|()| length)).transpose()
            });
            match executed {
                Ok(Some(length)) => at = at.add(length),
                Ok(None) => break,
                Err(fault) => {
                    libc::write(libc::STDERR_FILENO, fault.as_ptr().cast(), fault.len());
                    libc::abort();
                }
            }
        }
        if at == start {
            // Another illegal instruction. It runs again, under the handler that was there before.
            libc::sigaction(signal, PREVIOUS.get().map_or(ptr::null(), ptr::from_ref), ptr::null_mut());
        }
        saved[libc::REG_RIP as usize] = at as i64;
    }
}
