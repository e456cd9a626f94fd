//! The emulated processors of `.ci/devices neon` have the instruction sets that they should. The other tests compare
//! what is there, and would not miss one.

use candle_attention_kernels::Isa;

#[test]
fn an_emulated_processor_has_its_instruction_sets() {
    let Ok(processor) = std::env::var("QEMU_CPU") else { return };
    let names: Vec<&str> = Isa::all().into_iter().map(Isa::name).collect();
    let expected: &[&str] = match &*processor {
        "max" => &["neon_bf16", "neon_fhm", "neon_dotprod", "neon"],
        "neoverse-n1" => &["neon_dotprod", "neon"],
        "cortex-a72" => &["neon"],
        other => panic!("nobody has written down what `{other}` has"),
    };
    assert_eq!(names[..names.len() - 2], *expected, "{processor}");
    assert_eq!(names[names.len() - 2..], ["portable", "portable_bf16"]);
}
