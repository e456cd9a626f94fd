//! Multiplies 64 rows of 384 inputs with packed weights of 384 outputs, so many times: for `.ci/devices neon-counts`.
//!
//! `product FORMAT TIMES`

use candle_attention_kernels::{Activation, Isa, Packer, Team, WeightFormat};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const SIZES: [usize; 3] = [64, 384, 384];
    let [rows, inputs, outputs] = SIZES;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [format, times] = &arguments[..] else { return Err("expected a format and a number".into()) };
    let formats = {
        use WeightFormat::*;
        [F32, Bf16, F16, Int8, Q8_0, Q4_0]
    };
    let format = formats.into_iter().find(|known| format!("{known:?}") == *format).ok_or("no such format")?;

    let values = |count: usize| -> Vec<f32> { (0..count).map(|i| (i % 97) as f32 / 97.0 - 0.5).collect() };
    let isa = Isa::detect()?;
    let mut packer = Packer::new(isa, format, outputs, inputs)?;
    packer.push(outputs, &values(outputs * inputs), None)?;
    let (weights, xs, mut ys) = (packer.finish()?, values(rows * inputs), Vec::<f32>::new());
    for _ in 0..times.parse()? {
        weights.multiply(Team::ALONE, &xs, rows, Activation::Identity, &mut ys)?;
    }
    println!("{} {:?} {:?}", isa.name(), weights.format(), ys.first());
    Ok(())
}
