//! Decodes the tile instructions: three-byte VEX prefix, opcode, ModR/M, SIB and displacement. Volume 2 of Intel's
//! Software Developer's Manual has the encodings.

/// A tile instruction with the values of its memory operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Instruction {
    LoadConfig {
        at: u64,
    },
    StoreConfig {
        at: u64,
    },
    Release,
    Zero {
        tile: usize,
    },
    /// Row `r` is at `at + r · stride`.
    Load {
        tile: usize,
        at: u64,
        stride: u64,
    },
    Store {
        tile: usize,
        at: u64,
        stride: u64,
    },
    /// `to += a · b` in bf16 pairs.
    MultiplyBf16 {
        to: usize,
        a: usize,
        b: usize,
    },
    /// `to += a · b` in fours of signed bytes.
    MultiplyInt8 {
        to: usize,
        a: usize,
        b: usize,
    },
}

/// Why an instruction cannot be executed: the exception of the manual, or what is not emulated.
pub(super) type Fault = &'static str;

/// The code bytes at the instruction pointer, read one by one: what follows an instruction may not be mapped.
struct Reader<R> {
    read: R,
    at: usize,
}

impl<R: Fn(usize) -> u8> Reader<R> {
    fn byte(&mut self) -> u8 {
        self.at += 1;
        (self.read)(self.at - 1)
    }
}

/// The fields of a VEX prefix that select registers. The prefix holds them inverted.
#[derive(Clone, Copy)]
struct Vex {
    r: bool,
    x: bool,
    b: bool,
    /// `vvvv`: 0 if unused.
    register: usize,
}

/// The instruction whose byte `i` is `read(i)`, and its length; `None` if it is none of the tile instructions.
/// `registers` are the general registers in the order of their encoding, from rax to r15.
pub(super) fn decode(read: impl Fn(usize) -> u8, registers: &[u64; 16]) -> Result<Option<(Instruction, usize)>, Fault> {
    let mut code = Reader { read, at: 0 };
    if code.byte() != 0xc4 {
        return Ok(None);
    }
    let (first, second, opcode) = (code.byte(), code.byte(), code.byte());
    const MAP_0F38: u8 = 2;
    if first & 0x1f != MAP_0F38 || ![0x49, 0x4b, 0x5c, 0x5e].contains(&opcode) {
        return Ok(None);
    }
    if second & 0x84 != 0 {
        return Err("#UD: VEX.W or VEX.L of a tile instruction is 1");
    }
    let vex = Vex {
        r: first & 0x80 == 0,
        x: first & 0x40 == 0,
        b: first & 0x20 == 0,
        register: usize::from(!second >> 3 & 0xf),
    };
    let modrm = code.byte();
    let is_memory = modrm >> 6 != 3;
    let reg = usize::from(modrm >> 3 & 7) + 8 * usize::from(vex.r);
    let rm = usize::from(modrm & 7) + 8 * usize::from(vex.b);
    let tile = |register: usize| if register < 8 { Ok(register) } else { Err("#UD: a tile register above 7") };
    const SIB: u8 = 4;
    // The prefix that `pp` stands for.
    let instruction = match (opcode, second & 3, is_memory) {
        (0x49, 0b00, true) if reg == 0 => {
            Instruction::LoadConfig { at: operand(&mut code, vex, modrm, registers)?.sum() }
        }
        (0x49, 0b01, true) if reg == 0 => {
            Instruction::StoreConfig { at: operand(&mut code, vex, modrm, registers)?.sum() }
        }
        (0x49, 0b00, false) if modrm == 0xc0 => Instruction::Release,
        (0x49, 0b11, false) if modrm & 7 == 0 => Instruction::Zero { tile: tile(reg)? },
        (0x4b, 0b01..=0b11, true) if modrm & 7 == SIB => {
            let (tile, operand) = (tile(reg)?, operand(&mut code, vex, modrm, registers)?);
            let (at, stride) = (operand.base, operand.index);
            // 0b10 is F3; the other two are a load and a load with a hint.
            if second & 3 == 0b10 {
                Instruction::Store { tile, at, stride }
            } else {
                Instruction::Load { tile, at, stride }
            }
        }
        (0x5c, 0b10, false) => Instruction::MultiplyBf16 { to: tile(reg)?, a: tile(rm)?, b: tile(vex.register)? },
        (0x5e, 0b11, false) => Instruction::MultiplyInt8 { to: tile(reg)?, a: tile(rm)?, b: tile(vex.register)? },
        _ => return Err("#UD: an unknown form of a tile instruction"),
    };
    if vex.register != 0 && ![0x5c, 0x5e].contains(&opcode) {
        return Err("#UD: VEX.vvvv of an instruction without a third register is not 1111");
    }
    Ok(Some((instruction, code.at)))
}

struct Operand {
    /// Base and displacement.
    base: u64,
    /// Index times scale; 0 without an index.
    index: u64,
}

impl Operand {
    fn sum(self) -> u64 {
        self.base.wrapping_add(self.index)
    }
}

fn operand<R: Fn(usize) -> u8>(
    code: &mut Reader<R>,
    vex: Vex,
    modrm: u8,
    registers: &[u64; 16],
) -> Result<Operand, Fault> {
    let extended = |register: u8, extension: bool| usize::from(register & 7) + 8 * usize::from(extension);
    let (mode, mut base, mut index) = (modrm >> 6, extended(modrm, vex.b), 0);
    if modrm & 7 == 4 {
        let sib = code.byte();
        base = extended(sib, vex.b);
        const NO_INDEX: usize = 4;
        let register = extended(sib >> 3, vex.x);
        if register != NO_INDEX {
            index = registers[register] << (sib >> 6);
        }
    }
    if mode == 0 && base & 7 == 5 {
        return Err("an operand without a base register is not emulated");
    }
    let displacement = match mode {
        0 => 0,
        1 => i64::from(code.byte().cast_signed()),
        _ => i64::from(i32::from_le_bytes([code.byte(), code.byte(), code.byte(), code.byte()])),
    };
    Ok(Operand { base: registers[base].wrapping_add_signed(displacement), index })
}

/// Encodings as GNU as writes them.
#[test]
fn instructions_are_decoded() {
    let registers = std::array::from_fn(|i| 0x1_0000 * i as u64);
    let cases: [(&str, &[u8], Instruction); 16] = [
        ("ldtilecfg [rdi]", &[0xc4, 0xe2, 0x78, 0x49, 0x07], Instruction::LoadConfig { at: 0x7_0000 }),
        ("ldtilecfg [r12+64]", &[0xc4, 0xc2, 0x78, 0x49, 0x44, 0x24, 0x40], Instruction::LoadConfig { at: 0xc_0040 }),
        ("sttilecfg [rdi]", &[0xc4, 0xe2, 0x79, 0x49, 0x07], Instruction::StoreConfig { at: 0x7_0000 }),
        ("tilerelease", &[0xc4, 0xe2, 0x78, 0x49, 0xc0], Instruction::Release),
        ("tilezero tmm0", &[0xc4, 0xe2, 0x7b, 0x49, 0xc0], Instruction::Zero { tile: 0 }),
        ("tilezero tmm3", &[0xc4, 0xe2, 0x7b, 0x49, 0xd8], Instruction::Zero { tile: 3 }),
        ("tileloadd tmm4, [rdi+r8*1]", &[0xc4, 0xa2, 0x7b, 0x4b, 0x24, 0x07], load(4, 0x7_0000, 0x8_0000)),
        ("tileloadd tmm7, [rsi+r8*1+64]", &[0xc4, 0xa2, 0x7b, 0x4b, 0x7c, 0x06, 0x40], load(7, 0x6_0040, 0x8_0000)),
        ("tileloaddt1 tmm0, [rax+rcx*2]", &[0xc4, 0xe2, 0x79, 0x4b, 0x04, 0x48], load(0, 0, 0x2_0000)),
        ("tileloadd tmm1, [r13+r12*1-128]", &[0xc4, 0x82, 0x7b, 0x4b, 0x4c, 0x25, 0x80], load(1, 0xc_ff80, 0xc_0000)),
        ("tileloadd tmm1, [rbp+rbx*4]", &[0xc4, 0xe2, 0x7b, 0x4b, 0x4c, 0x9d, 0x00], load(1, 0x5_0000, 0xc_0000)),
        ("tileloadd tmm2, [r9]", &[0xc4, 0xc2, 0x7b, 0x4b, 0x14, 0x21], load(2, 0x9_0000, 0)),
        (
            "tilestored [r15+r14*1+4096], tmm2",
            &[0xc4, 0x82, 0x7a, 0x4b, 0x94, 0x37, 0x00, 0x10, 0x00, 0x00],
            Instruction::Store { tile: 2, at: 0xf_1000, stride: 0xe_0000 },
        ),
        (
            "tdpbf16ps tmm1, tmm4, tmm7",
            &[0xc4, 0xe2, 0x42, 0x5c, 0xcc],
            Instruction::MultiplyBf16 { to: 1, a: 4, b: 7 },
        ),
        (
            "tdpbf16ps tmm3, tmm5, tmm0",
            &[0xc4, 0xe2, 0x7a, 0x5c, 0xdd],
            Instruction::MultiplyBf16 { to: 3, a: 5, b: 0 },
        ),
        ("tdpbssd tmm1, tmm4, tmm7", &[0xc4, 0xe2, 0x43, 0x5e, 0xcc], Instruction::MultiplyInt8 { to: 1, a: 4, b: 7 }),
    ];
    for (text, code, instruction) in cases {
        assert_eq!(decode(|i| code[i], &registers), Ok(Some((instruction, code.len()))), "{text}");
    }
    for (text, code) in [("ud2", &[0x0f, 0x0b][..]), ("vpshufb xmm0, xmm0, xmm0", &[0xc4, 0xe2, 0x79, 0x00, 0xc0])] {
        assert_eq!(decode(|i| code[i], &registers), Ok(None), "{text}");
    }
    for (text, code) in [
        ("W = 1", [0xc4, 0xe2, 0xfb, 0x49, 0xc0]),
        ("L = 1", [0xc4, 0xe2, 0x7f, 0x49, 0xc0]),
        ("tmm8", [0xc4, 0x62, 0x7b, 0x49, 0xc0]),
        ("vvvv of tilezero", [0xc4, 0xe2, 0x73, 0x49, 0xc0]),
        ("tileloadd without SIB", [0xc4, 0xe2, 0x7b, 0x4b, 0x07]),
        ("tdpbf16ps with tmm8", [0xc4, 0xe2, 0x3a, 0x5c, 0xcc]),
    ] {
        assert!(decode(|i| code[i], &registers).is_err(), "{text}");
    }
}

fn load(tile: usize, at: u64, stride: u64) -> Instruction {
    Instruction::Load { tile, at, stride }
}
