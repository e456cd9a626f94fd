//! When the operating system is asked for the permission to use AMX, which changes the process.

use std::process::Command;

use candle_attention_kernels::Isa;

use super::signal;

/// Whether this process has the permission.
fn is_permitted() -> bool {
    const ARCH_GET_XCOMP_PERM: i32 = 0x1022;
    const XTILEDATA: u64 = 1 << 18;
    let mut permitted = 0u64;
    // SAFETY: the system call writes one u64.
    let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &raw mut permitted) };
    // Kernels before 5.16 do not know the call, and do not have AMX.
    result == 0 && permitted & XTILEDATA != 0
}

/// In a process of its own, because the permission cannot be given back.
#[test]
fn the_permission_is_asked_for_amx_only() {
    let has_amx = Isa::all().iter().any(|isa| isa.name() == "amx");
    let others = Isa::all().into_iter().map(Isa::name).filter(|name| *name != "amx");
    for (name, asks) in others.map(|name| (name, false)).chain(has_amx.then_some(("amx", true))) {
        // The path of a test does not begin with the name of its crate.
        let path = concat!(module_path!(), "::child").split_once("::").unwrap().1;
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", path, "--ignored", "--nocapture"]).env("CANDLE_ATTENTION_ISA", name);
        let output = child.output().unwrap();
        let output = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.contains(&format!("{name} asked: {asks}")), "{name}: {output}");
    }
}

#[test]
#[ignore = "the child process of the test above"]
fn child() {
    let before = is_permitted() || signal::is_installed();
    let isa = Isa::detect().unwrap();
    println!("{} asked: {}", isa.name(), !before && (is_permitted() || signal::is_installed()));
}
